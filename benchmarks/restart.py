"""How soon a run works again after one of its ranks was killed: `--on-failure resume`.

    python benchmarks/restart.py [--ranks 4] [--runs 50] [--steps 400] [--device cpu] [--json FILE]

Each run takes time steps of a small field and keeps a checkpoint every 20 steps. A rank chosen by a seed gets
SIGKILL at a moment chosen by it. The result is compared with that of an undisturbed run, byte by byte.

working again   seconds from the kill to the end of the next step on any rank
lost steps      steps that are taken again, because they were after the last checkpoint
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import marching

from meshrun.runner.report.record import write_json

AT_STEP = """
def at_step(done):
    with open(f"{os.environ['NOTES']}/{os.getpid()}", "w") as file:
        file.write(f"{rank} {done}")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        marching.prepare(work, AT_STEP)
        expected, _ = one_run(work, options, None)
        for seed in range(options.runs):
            found, row = one_run(work, options, seed)
            rows.append(row | {"seed": seed, "same": found == expected})
    right = sum(row["same"] and row["status"] == 0 for row in rows)
    again = sorted(row["working_again"] for row in rows if row["working_again"] is not None)
    lost = [row["lost_steps"] for row in rows if row["lost_steps"] is not None]
    print(f"{right} of {len(rows)} runs were completed with the same bytes")
    if again:
        print(
            f"working again after {statistics.median(again):.2f} s (median), {again[-1]:.2f} s (most), "
            f"{statistics.median(lost):.0f} steps taken again (median)"
        )
    if options.json:
        shown = {key: value for key, value in vars(options).items() if key != "json"}
        write_json(options.json, "benchmark", 1, {"benchmark": "restart", **shown, "rows": rows})
    sys.exit(int(right < len(rows)))


def one_run(work: Path, options: argparse.Namespace, seed: int | None) -> tuple[bytes, dict[str, Any]]:
    """Run with a kill by the seed, or without one; return the output's bytes and the figures."""
    resume = ["--on-failure", "resume"]
    more = ["--steps", str(options.steps), "--checkpoint", "20", "--device", options.device]
    with tempfile.TemporaryDirectory() as notes, tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            marching.command(work, options.ranks, resume, more),
            cwd=work,
            env={**os.environ, "NOTES": notes},
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
        working = lost = None
        if seed is not None:
            working, lost = killed(Path(notes), options, random.Random(seed), process)
        status = process.wait()
        if status:
            said.seek(0)
            print(f"seed {seed}: status {status}", *said.read().splitlines()[-9:], sep="\n  ")
            if seed is None:
                sys.exit(1)
    return marching.result(work, status), {"status": status, "working_again": working, "lost_steps": lost}


def killed(
    notes: Path, options: argparse.Namespace, chance: random.Random, process: subprocess.Popen[bytes]
) -> tuple[float | None, int | None]:
    """Kill a rank after a random step; return the seconds until a step is done again, and the steps lost."""
    victim, moment = chance.randrange(options.ranks), chance.randrange(25, options.steps - 25)
    while (found := progress(notes, victim)) is None or found[1] < moment:
        if process.poll() is not None:
            return None, None
        time.sleep(0.001)
    before = {path.name for path in notes.iterdir()}
    os.kill(found[0], signal.SIGKILL)
    begin = time.monotonic()
    while process.poll() is None:
        new = [path for path in notes.iterdir() if path.name not in before]
        steps = [int(words[1]) for path in new if len(words := path.read_text().split()) == 2]
        if steps and min(steps) > 0:  # 0: the runner asks the function for its dtype
            return time.monotonic() - begin, found[1] - min(steps)
        time.sleep(0.001)
    return None, None


def progress(notes: Path, rank: int) -> tuple[int, int] | None:
    """Return a rank's process and its last step."""
    for path in notes.iterdir():
        words = path.read_text().split()
        if len(words) == 2 and int(words[0]) == rank:
            return int(path.name), int(words[1])
    return None


if __name__ == "__main__":
    main()
