"""Seeded stalls of real ranks: the report names rank, operation and Python line, and the run ends.

python -m pytest -m nightly -s tests/faults/test_stalls.py -k hundred       prints the table
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from processes import DEADLOCK, MARK, launcher_problem, left_running

from meshrun.runner.recorder import ring

pytestmark = [
    pytest.mark.skipif(launcher_problem() is not None, reason=str(launcher_problem())),
    pytest.mark.timeout(2 * DEADLOCK),
]
JOB = Path(__file__).with_name("stalling_job.py")
ROOT = Path(ring.__file__).parents[2]
COMMAND = (sys.executable, "-m", "meshrun")
SECONDS = 2  # --stall-timeout
FAULTS = ("spin", "sleep_for_ever", "stop", "missing", "receive_first", "send_first")
# What the first sentence says of each, with the culprit as {rank} and the other rank of a deadlock as {peer}.
EXPECTED = {
    "spin": r"rank {rank} \(host \S+, CPU\) has not (entered all_reduce \d+|sent or received the messages).*"
    r"it is at stalling_job.py:\d+ in spin, for .* in job",
    "sleep_for_ever": r"rank {rank} \(.*\) has not (entered all_reduce|sent or received).*"
    r"it is at stalling_job.py:\d+ in sleep_for_ever, for .* in job",
    "stop": r"rank {rank} \(.*\) is stopped \(by SIGSTOP or a debugger\); it was in job",
    "missing": r"rank {rank} \(.*\) has not sent or received the messages"
    r".*in stalling, for .* in barrier \d+|"
    r"rank {rank} \(.*\) is in barrier \d+ at stalling_job.py:\d+ in stalling, and rank|"
    r"deadlock: .*rank {rank} has waited .* in barrier \d+ at stalling_job.py:\d+ in stalling",
    "receive_first": r"deadlock: ranks {both} wait for each other: .*"
    r"for messages at stalling_job.py:\d+ in receive_first",
    "send_first": r"deadlock: ranks {both} wait for each other: .*"
    r"for messages at stalling_job.py:\d+ in send_first",
}


@dataclass(frozen=True)
class Trial:
    fault: str
    ranks: int
    rank: int
    steps: int


@dataclass(frozen=True)
class Outcome:
    """status: the command's. text: what it printed. left: processes and files."""

    status: int
    text: str
    left: list[str]

    @property
    def first(self) -> str:
        return next((line for line in self.text.splitlines() if "stalled:" in line), "")

    @property
    def waited(self) -> float:
        """Seconds that the first sentence says that ranks have waited: how late the stall was told."""
        found = re.search(r"waited (\d+(?:\.\d+)?) s", self.first)
        return float(found[1]) if found else float("nan")


def is_right(trial: Trial, outcome: Outcome) -> bool:
    peer = (trial.rank + 1) % trial.ranks
    low, high = sorted((trial.rank, peer))
    both = f"{low}-{high}" if high == low + 1 else f"{low}, {high}"
    said = EXPECTED[trial.fault].replace("{rank}", str(trial.rank)).replace("{both}", both)
    return outcome.status == 1 and re.search(said, outcome.first) is not None and not outcome.left


def stall(trial: Trial, folder: Path) -> Outcome:
    np.save(folder / "in.npy", np.zeros((4, 4)))
    words = ["run", f"{JOB}:stalling", str(folder / "in.npy")]
    words += [f"--fault={trial.fault}", f"--rank={trial.rank}", f"--steps={trial.steps}"]
    done = subprocess.run(
        [*COMMAND, f"--stall-timeout={SECONDS}", f"-n{trial.ranks}", *words],
        cwd=ROOT,
        env={**os.environ, MARK: str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )
    left = [*map(str, left_running(folder)), *recorders_left(folder)]
    return Outcome(done.returncode, done.stdout + done.stderr, left)


def recorders_left(folder: Path) -> list[str]:
    """Those of this run's ranks; other tests run at the same time, and kill ranks and launchers of theirs."""
    ranks = {int(path.read_text()) for path in folder.glob("pid-*")}
    assert ranks
    return [str(path) for path in ring.files_of() if (about := ring.about_of(path)) and about["pid"] in ranks]


def trials(seed: int, count: int) -> list[Trial]:
    """Faults in turn, on random ranks of 2 to 4, after a random number of steps."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        ranks = chance.randint(2, 4)
        made.append(
            Trial(FAULTS[number % len(FAULTS)], ranks, chance.randrange(ranks), chance.randint(0, 40))
        )
    return made


@pytest.mark.parametrize(
    "trial",
    [
        Trial("spin", 3, 2, 3),
        Trial("stop", 2, 0, 0),
        Trial("receive_first", 3, 1, 2),
        Trial("missing", 2, 1, 1),
    ],
    ids=lambda trial: trial.fault,
)
def test_a_stalled_rank_is_named(trial: Trial, tmp_path: Path) -> None:
    outcome = stall(trial, tmp_path)
    assert is_right(trial, outcome), outcome
    assert "no rank has entered an operation for 2 s (--stall-timeout)" in outcome.text
    assert "Traceback" not in outcome.text


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_of_a_hundred_stalls_at_least_99_are_explained(tmp_path: Path) -> None:
    count, seed = int(os.environ.get("MESHRUN_STALLS", "100")), 20261124
    right: Counter[str] = Counter()
    all_of: Counter[str] = Counter()
    waited: dict[str, list[float]] = {}
    wrong = []
    for number, trial in enumerate(trials(seed, count)):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcome = stall(trial, folder)
        all_of[trial.fault] += 1
        right[trial.fault] += is_right(trial, outcome)
        waited.setdefault(trial.fault, []).append(outcome.waited)
        if not is_right(trial, outcome):
            wrong.append((trial, outcome))
            print(trial, outcome, sep="\n")
    rows = ["fault           runs  right  longest wait when told"]
    for fault in FAULTS:
        rows.append(f"{fault:<15} {all_of[fault]:>4}  {right[fault]:>5}  {max(waited.get(fault, [0])):.1f} s")
    print("\n".join(rows))
    assert sum(right.values()) >= 0.99 * count, wrong


def status(*words: str) -> str:
    return subprocess.run(
        [*COMMAND, "status", *words], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout


def test_a_live_run_is_shown_to_another_process(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.zeros((4, 4)))
    started = subprocess.Popen(
        [*COMMAND, "-n2", "run", f"{JOB}:stalling", str(tmp_path / "in.npy"), "--fault=sleep_for_ever"],
        cwd=ROOT,
        env={**os.environ, MARK: str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + DEADLOCK
        found: list[str] = []
        while found[:1] != ["sleep_for_ever"]:
            assert time.monotonic() < until, found
            runs = [run for run in json.loads(status("--json") or "[]") if run["command"] == "run stalling"]
            found = [(rank["at"] or {}).get("function", "") for run in runs for rank in run["ranks"]]
            time.sleep(0.2)
        assert re.search(
            r"^  0 +waiting +job .* stalling_job.py:\d+ in sleep_for_ever$", status(), re.MULTILINE
        )
        assert started.poll() is None
    finally:
        started.terminate()
        started.wait(DEADLOCK)
    assert left_running(tmp_path) == []
