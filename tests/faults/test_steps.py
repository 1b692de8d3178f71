"""Runs of time steps whose ranks are killed, or whose disk is full: --resume gives the same bits.

`meshrun -n N run ... --steps` as a user runs it, under whichever MPI this environment has.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import nightly, small_disk, wait_for
from streamed import HOST, Site, content, needs_mpi, site_at

from meshrun.launch.mpi import launcher as mpi_launcher

ROWS, COLUMNS, STEPS, EVERY, FRAMES = 36, 150, 30, 7, 4
FILES = ["in.npy", "clock.npy", "out.npy", "end.npy"]
RUN = [
    "run",
    "job.py:march",
    *FILES,
    "--steps",
    str(STEPS),
    "--checkpoint",
    str(EVERY),
    "--json",
    "record.json",
]
CHECKPOINTS = "out.npy.checkpoint"
KEPT = "meshrun: checkpoints are kept; continue with the same command and --resume"
CHUNKS = ["--chunk-bytes", "64K"]
FILM = ["--frames", "film.npy", "--every", str(FRAMES)]

pytestmark = needs_mpi


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_at(tmp_path) as made:
        shutil.copy(Path(__file__).with_name("dying_steps.py"), made.work / "job.py")
        np.save(made.work / "in.npy", start())
        np.save(made.work / "clock.npy", np.zeros((ROWS, COLUMNS), np.uint64))
        yield made


def start() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 2**64, (ROWS, COLUMNS), np.uint64)


@pytest.fixture(scope="module")
def states() -> list[np.ndarray[Any, Any]]:
    """The field before the first step and after each, by a plain loop."""
    found = [start()]
    for _ in range(STEPS):
        wide = np.pad(found[-1], 1, "reflect")
        sums = 3 * wide[1:-1, 1:-1] + 5 * wide[:-2, 1:-1] + 7 * wide[2:, 2:] + 11 * wide[1:-1, :-2]
        found.append(sums + wide[2:, :-2])
    return found


def steps_kept(work: Path) -> list[int]:
    """The steps of the checkpoints with a state."""
    return sorted(int(one.parent.name[5:]) for one in (work / CHECKPOINTS).glob("step-*/state.json"))


def steps_at(site: Site, rank: int) -> int:
    """How many steps were finished before the one that the rank has begun last."""
    note = site.notes / f"at-{rank}"
    return int(note.read_text()) if note.exists() else 0


def resumed(site: Site, ranks: int, states: list[np.ndarray[Any, Any]], *more: str) -> None:
    """Go on from the newest checkpoint to the same bits; nothing else is left."""
    first = steps_kept(site.work)[-1]
    record = site.finish(["-n", str(ranks), *RUN, *more, "--resume"])
    assert record["steps"]["first"] == first
    assert record["steps"]["steps"] == STEPS
    as_expected(site, states)


def as_expected(site: Site, states: list[np.ndarray[Any, Any]]) -> None:
    np.testing.assert_array_equal(np.load(site.work / "out.npy"), states[-1])
    np.testing.assert_array_equal(np.load(site.work / "end.npy"), np.full((ROWS, COLUMNS), STEPS))
    assert not (site.work / CHECKPOINTS).exists()


def only_checkpoints_are_left(site: Site, before: dict[str, bytes]) -> None:
    """What was there is as it was; of the run there are complete checkpoints and no others."""
    after = content(site.work)
    assert {name: after[name] for name in before} == before
    places = {name.split("/")[1] for name in set(after) - set(before) if name.startswith(f"{CHECKPOINTS}/")}
    assert set(after) - set(before) == {name for name in after if name.startswith(f"{CHECKPOINTS}/step-")}
    assert len(places) <= 3


def told_of_its_death(lines: list[str], victim: int) -> None:
    sentence, kept = lines
    assert kept == KEPT
    # MPICH's launcher kills the other ranks, and may name one of them.
    rank = r"\d" if mpi_launcher.find().vendor == "MPICH" else victim
    assert re.match(rf"meshrun: \[rank {rank}, host {HOST}\] killed by signal 9 \(SIGKILL\)", sentence)


@pytest.mark.parametrize("seed", [0, *map(nightly, range(1, 8))])
def test_a_rank_that_is_killed_at_any_moment_costs_at_most_one_interval(
    site: Site, states: list[np.ndarray[Any, Any]], tmp_path: Path, seed: int
) -> None:
    chance, before = random.Random(seed), content(site.work)
    victim, moment = chance.randrange(2), chance.randrange(EVERY + 1, STEPS - EVERY)
    process = site.begin(["-n", "2", *RUN, *FILM], PAUSE="0.01", HOLD_AT=str(STEPS - 1))
    wait_for(lambda: steps_at(site, victim) >= moment)
    time.sleep(chance.random() * 0.02)
    (site.notes / "failing-now").touch()
    os.kill(int((site.notes / f"pid-{victim}").read_text()), signal.SIGKILL)
    status, lines = site.end(process)
    assert status != 0
    told_of_its_death(lines, victim)
    only_checkpoints_are_left(site, before)
    begun, kept = steps_at(site, victim) + 1, steps_kept(site.work)
    assert kept[-1] <= begun <= kept[-1] + EVERY
    copy = tmp_path / "copy"
    shutil.copytree(site.work, copy)
    resumed(site, 1, states, *FILM)
    film = np.load(site.work / "film.npy")
    first = -(-kept[-1] // FRAMES) * FRAMES
    np.testing.assert_array_equal(film, np.stack(states[first::FRAMES]))
    put_back(site, copy)
    resumed(site, 3, states, *FILM)


def put_back(site: Site, copy: Path) -> None:
    """The folder as it was, with the times that inputs are known by."""
    shutil.rmtree(site.work)
    shutil.copytree(copy, site.work)


# Where in the checkpoint after step 14, of steps 7 and 14, which rank dies; which of them are complete
# then; how many ranks go on.
KILLS = [
    ("a field", 1, [7], 1),
    ("before its name", 0, [7], 3),
]
MORE_KILLS = [
    ("a field", 0, [7], 3),
    ("sync", 1, [7], 3),
    ("before its state", 0, [7], 3),
    ("its state", 0, [7], 1),
    ("after its name", 0, [7, 14], 3),
]


@pytest.mark.parametrize(
    ("where", "victim", "complete", "later"), [*KILLS, *(nightly(*kill) for kill in MORE_KILLS)]
)
def test_a_rank_that_is_killed_in_a_checkpoint_leaves_a_whole_one(
    site: Site, states: list[np.ndarray[Any, Any]], where: str, victim: int, complete: list[int], later: int
) -> None:
    before = content(site.work)
    status, lines = site.run(["-n", "2", *RUN], STAGE=f"{where},{victim},14")
    assert status != 0
    told_of_its_death(lines, victim)
    only_checkpoints_are_left(site, before)
    assert steps_kept(site.work) == complete
    resumed(site, later, states)


def test_a_rank_that_is_killed_while_another_writes_the_state(
    site: Site, states: list[np.ndarray[Any, Any]]
) -> None:
    before = content(site.work)
    process = site.begin(["-n", "2", *RUN], STAGE="hold,0,14")
    wait_for((site.notes / "holding-0").exists)
    (site.notes / "failing-now").touch()
    os.kill(int((site.notes / "pid-1").read_text()), signal.SIGKILL)
    status, lines = site.end(process)
    assert status != 0
    told_of_its_death(lines, 1)
    only_checkpoints_are_left(site, before)
    assert steps_kept(site.work) == [7]
    resumed(site, 3, states)


@pytest.mark.parametrize(
    ("where", "victim", "when", "complete", "later"),
    [
        ("a field", 1, 14, [7], 1),
        ("step", 1, 16, [7, 14], 3),
        nightly("sync", 0, 14, [7], 3),
        nightly("before its name", 0, 14, [7], 3),
        nightly("after its name", 0, 14, [7, 14], 2),
    ],
)
def test_a_rank_of_a_run_in_chunks_that_is_killed_leaves_a_whole_checkpoint(
    site: Site,
    states: list[np.ndarray[Any, Any]],
    where: str,
    victim: int,
    when: int,
    complete: list[int],
    later: int,
) -> None:
    """In a checkpoint, or in a pass. The run goes on in chunks, and then in memory from the same one."""
    before = content(site.work)
    # --static: or the other rank may take all chunks of that pass.
    status, lines = site.run(["-n", "2", *RUN, *CHUNKS, "--static"], STAGE=f"{where},{victim},{when}")
    assert status != 0
    told_of_its_death(lines, victim)
    only_checkpoints_are_left(site, before)
    assert steps_kept(site.work) == complete
    copy = site.work.with_name("copy")
    shutil.copytree(site.work, copy)
    resumed(site, later, states, *CHUNKS)
    put_back(site, copy)
    resumed(site, later, states)


@pytest.mark.nightly
def test_a_rank_that_is_killed_while_it_removes_an_old_checkpoint(
    site: Site, states: list[np.ndarray[Any, Any]]
) -> None:
    """A part of step 7 is left beside 14 and 21. It goes with the others."""
    status, lines = site.run(["-n", "2", *RUN], STAGE="the old one,0,21")
    assert status != 0
    told_of_its_death(lines, 0)
    assert steps_kept(site.work) == [14, 21]
    assert (site.work / CHECKPOINTS / "step-7").is_dir()
    resumed(site, 1, states)


def test_killed_before_its_first_checkpoint_the_run_begins_anew(
    site: Site, states: list[np.ndarray[Any, Any]]
) -> None:
    before = content(site.work)
    status, lines = site.run(["-n", "2", *RUN, *FILM], STAGE="step,1,5")
    assert status != 0
    assert KEPT not in lines
    assert content(site.work) == before
    assert not (site.work / CHECKPOINTS).exists()
    assert site.finish(["-n", "1", *RUN, *FILM, "--resume"])["steps"]["first"] == 0
    as_expected(site, states)


def test_an_interrupted_run_says_how_to_continue(site: Site, states: list[np.ndarray[Any, Any]]) -> None:
    before = content(site.work)
    process = site.begin(["-n", "2", *RUN, *FILM], HOLD_AT=str(STEPS - 1))
    wait_for(lambda: steps_at(site, 0) >= EVERY)
    (site.notes / "failing-now").touch()
    process.send_signal(signal.SIGINT)
    status, lines = site.end(process)
    assert status == 128 + signal.SIGINT
    assert lines == ["meshrun: interrupted by SIGINT: every rank has ended", KEPT]
    only_checkpoints_are_left(site, before)
    resumed(site, 1, states)


def test_a_checkpoint_larger_than_a_file_may_be(site: Site, states: list[np.ndarray[Any, Any]]) -> None:
    """After step 10, no rank may write a file beyond 10 kB: the checkpoint after step 14 fails."""
    before = content(site.work)
    status, lines = site.run(["-n", "2", *RUN], STAGE="limit,0,10")
    assert status == 1
    sentence, kept = lines
    assert f"cannot write {CHECKPOINTS}/" in sentence
    assert "File too large" in sentence
    assert kept == KEPT
    only_checkpoints_are_left(site, before)
    assert steps_kept(site.work) == [7]
    resumed(site, 3, states)


@pytest.fixture
def disk(site: Site) -> Iterator[Path]:
    """A file system with room for the outputs and a checkpoint and a half."""
    with small_disk(site.work / "disk", 5 * ROWS * COLUMNS * 8 + 40_000) as folder:
        yield folder


def test_a_disk_that_a_checkpoint_fills(site: Site, disk: Path, states: list[np.ndarray[Any, Any]]) -> None:
    run = [f"disk/{word}" if word in ("out.npy", "end.npy") else word for word in RUN]
    for more in ([], ["--resume"]):  # the second one gets no further
        status, lines = site.run(["-n", "2", *run, *more])
        assert status == 1
        sentence, kept = lines
        assert re.search(
            rf"cannot write disk/{CHECKPOINTS}/\S+: No space left on device, [\d,]+ bytes free there",
            sentence,
        )
        assert kept == KEPT
        assert steps_kept(disk) == [7]
        assert [path.name for path in disk.iterdir()] == [CHECKPOINTS]
        assert [path.name for path in (disk / CHECKPOINTS).iterdir()] == ["step-7"]
    subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
    record = site.finish(["-n", "3", *run, "--resume"])
    assert record["steps"]["first"] == 7
    np.testing.assert_array_equal(np.load(disk / "out.npy"), states[-1])
    assert {path.name for path in disk.iterdir()} == {"out.npy", "end.npy"}
