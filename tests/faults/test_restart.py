"""Runs that go on with the ranks that are left after one is killed: `--on-failure resume`.

`meshrun -n N` as a user runs it, under whichever MPI this environment has.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import nightly, wait_for
from streamed import CHUNKS, HOST, Site, needs_mpi, site_at
from test_steps import COLUMNS, FILES, ROWS, RUN, STEPS, start

from meshrun.launch.mpi import launcher as mpi_launcher

GO_ON = ["--on-failure", "resume"]

pytestmark = needs_mpi


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_at(tmp_path) as made:
        yield made


@pytest.fixture
def steps(site: Site) -> Site:
    shutil.copy(Path(__file__).with_name("dying_steps.py"), site.work / "job.py")
    np.save(site.work / "in.npy", start())
    np.save(site.work / "clock.npy", np.zeros((ROWS, COLUMNS), np.uint64))
    return site


@pytest.fixture(scope="module")
def last() -> np.ndarray[Any, Any]:
    field = start()
    for _ in range(STEPS):
        wide = np.pad(field, 1, "reflect")
        sums = 3 * wide[1:-1, 1:-1] + 5 * wide[:-2, 1:-1] + 7 * wide[2:, 2:] + 11 * wide[1:-1, :-2]
        field = sums + wide[2:, :-2]
    return field


def killed(line: str, victim: int) -> bool:
    # MPICH's launcher kills the other ranks, and may name one of them.
    rank = r"\d" if mpi_launcher.find().vendor == "MPICH" else victim
    return bool(re.match(rf"meshrun: \[rank {rank}, host {HOST}\] killed by signal 9 \(SIGKILL\)", line))


def again(ranks: str, kept: str, number: int, most: int = 3) -> str:
    return f"meshrun: starting again on {ranks}, {kept} (restart {number} of {most})"


def test_steps_go_on_from_the_last_checkpoint_on_fewer_ranks(steps: Site, last: Any) -> None:
    """Rank 1 dies in step 17, with three ranks and with two; one rank completes the run."""
    record = steps.finish(["-n", "3", *GO_ON, *RUN], STAGE="step,1,16")
    assert (record["ranks"], record["steps"]["first"], record["steps"]["steps"]) == (1, 14, STEPS)
    np.testing.assert_array_equal(np.load(steps.work / "out.npy"), last)
    assert not (steps.work / "out.npy.checkpoint").exists()


def test_what_is_said(steps: Site) -> None:
    status, lines = steps.run(["-n", "3", *GO_ON, "--max-restarts", "1", *RUN], STAGE="step,1,16")
    assert status == 1
    first, restart, second, kept = lines
    assert killed(first, 1)
    assert restart == again("2 ranks", "continuing with what is complete", 1, 1)
    assert killed(second, 1)
    assert kept == "meshrun: checkpoints are kept; continue with the same command and --resume"
    assert np.load(steps.work / "out.npy").tolist() == list(range(7))  # the old output


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(40))
def test_any_rank_at_any_moment(steps: Site, last: Any, seed: int) -> None:
    chance = random.Random(seed)
    victim, pause = chance.randrange(4), chance.uniform(0, 0.5)
    process = steps.begin(["-n", "4", *GO_ON, *RUN], PAUSE="0.02", HOLD_AT=str(STEPS - 1))
    wait_for((steps.notes / f"at-{victim}").exists)
    time.sleep(pause)
    (steps.notes / "failing-now").touch()
    os.kill(int((steps.notes / f"pid-{victim}").read_text()), signal.SIGKILL)
    (steps.notes / "go").touch()
    status, lines = steps.end(process)
    assert status == 0, lines
    assert killed(lines[0], victim)
    np.testing.assert_array_equal(np.load(steps.work / "out.npy"), last)


def test_chunks_that_are_complete_are_not_made_again(site: Site) -> None:
    words = site.words(2)
    process = site.begin([*words[:2], *GO_ON, *words[2:]], STAGE="hold,1,7")
    wait_for(lambda: site.failing and len(site.done) > 3)  # three are under way
    first = (site.notes / "pid-0").read_text()
    os.kill(int((site.notes / "pid-1").read_text()), signal.SIGKILL)
    wait_for(lambda: (site.notes / "pid-0").read_text() not in ("", first))  # who goes on does not hold
    (site.notes / "go").touch()
    status, lines = site.end(process)
    assert status == 0, lines
    assert killed(lines[0], 1)
    assert lines[1] == again("1 rank", "continuing with what is complete", 1)
    record = json.loads((site.work / "record.json").read_text())
    assert record["ranks"] == 1
    assert 3 < record["stream"]["resumed"] < CHUNKS


def test_a_run_that_keeps_nothing_begins_again(steps: Site, last: Any) -> None:
    run = ["run", "job.py:march", *FILES, "--steps", str(STEPS), "--json", "record.json"]
    status, lines = steps.run(["-n", "2", *GO_ON, *run], STAGE="step,1,16")
    assert status == 0
    assert killed(lines[0], 1)
    assert lines[1] == again("1 rank", "from the beginning", 1)
    np.testing.assert_array_equal(np.load(steps.work / "out.npy"), last)


def test_frames_of_a_run_that_begins_again_are_made_again(steps: Site, last: Any) -> None:
    run = ["run", "job.py:march", *FILES, "--steps", str(STEPS), "--frames", "film", "--every", "5"]
    status, lines = steps.run(["-n", "2", *GO_ON, *run], STAGE="step,1,16")
    assert status == 0, lines
    assert lines[1] == again("1 rank", "from the beginning", 1)
    names = [f"frame-{step:06d}.png" for step in range(0, STEPS + 1, 5)]
    assert sorted(os.listdir(steps.work / "film")) == names
    np.testing.assert_array_equal(np.load(steps.work / "out.npy"), last)


def test_a_mistake_of_the_user_is_not_repeated(steps: Site) -> None:
    status, lines = steps.run(["-n", "2", *GO_ON, *RUN, "--boundary", "nowhere"])
    assert status == 2
    assert len(lines) == 1
    assert "nowhere" in lines[0]


# A loop of a job's own, with meshrun.checkpoint

SOLVE = ["run", "job.py:solve", "b.npy", "x.npy", "--json", "record.json"]


@pytest.fixture
def loop(site: Site) -> Site:
    shutil.copy(Path(__file__).with_name("dying_loop.py"), site.work / "job.py")
    np.save(site.work / "b.npy", np.random.default_rng(3).random((24, 11)))
    return site


@pytest.mark.parametrize(
    ("ranks", "stage"),
    [
        (2, "loop,1,17"),
        (3, "checkpoint,1,20"),
        *(nightly(*one) for one in [(2, "loop,0,25"), (3, "loop,2,20"), (3, "checkpoint,0,20")]),
    ],
)
def test_a_loop_goes_on_from_its_saved_state(loop: Site, ranks: int, stage: str) -> None:
    """The ranks that are left have the bits of an undisturbed run on one rank."""
    whole = loop.finish(["-n", "1", *SOLVE])["result"]
    wanted = (loop.work / "x.npy").read_bytes()
    (loop.work / "x.npy").unlink()
    assert whole["iterations"] > 25

    status, lines = loop.run(["-n", str(ranks), *GO_ON, *SOLVE], STAGE=stage, DELAYS="1")
    assert status == 0, lines
    where, victim, moment = stage.split(",")
    saved = int(moment) // 10 * 10 - (10 if where == "checkpoint" else 0)
    assert killed(lines[0], int(victim))
    left = ranks - 1
    plural = "ranks" if left > 1 else "rank"
    assert lines[1] == again(f"{left} {plural}", "continuing with what is complete", 1)
    assert lines[2] == f"meshrun: continuing after {saved} iterations, from cg.checkpoint"
    record = json.loads((loop.work / "record.json").read_text())
    assert record["result"] == {**whole, "began": saved}
    assert (loop.work / "x.npy").read_bytes() == wanted
    assert not [*loop.work.glob(".*"), *loop.work.glob("*.lock"), *loop.work.glob("cg.checkpoint/.*")]


@pytest.mark.nightly
def test_a_loop_that_has_saved_nothing_begins_again(loop: Site) -> None:
    status, lines = loop.run(["-n", "2", *GO_ON, *SOLVE], STAGE="loop,1,7")
    assert status == 0, lines
    assert lines[1] == again("1 rank", "from the beginning", 1)
    assert json.loads((loop.work / "record.json").read_text())["result"]["began"] == 0


def test_what_a_killed_loop_leaves_is_said(loop: Site) -> None:
    status, lines = loop.run(["-n", "2", *SOLVE], STAGE="loop,1,17")
    assert status != 0
    assert killed(lines[0], 1)
    assert lines[1:] == [
        "meshrun: cg.checkpoint has the state after 10 iterations. Try: the same command with --resume"
    ]
