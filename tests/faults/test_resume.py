"""Streamed runs that end at every stage, by every means: what is finished is kept, and --resume goes on.

`meshrun -n N run ...` as a user runs it, under whichever MPI this environment has. What the resumed run
writes is compared byte for byte with what an undisturbed one has written.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import left_running, nightly, wait_for
from streamed import (
    CHUNKS,
    HOST,
    JOURNAL,
    KEPT,
    PARTIAL,
    UNFINISHED,
    Site,
    content,
    needs_mpi,
    site_at,
    smoothed,
)

from meshrun.launch.mpi import launcher as mpi_launcher

LEFT_BEHIND = f"or to start from the beginning: rm -r {JOURNAL} {PARTIAL}"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_at(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The output of a run that nothing happens to."""
    with site_at(tmp_path_factory.mktemp("undisturbed")) as site:
        stream = site.finish(site.words(1))["stream"]
        assert (stream["chunks"], stream["resumed"]) == (CHUNKS, 0)
        assert site.calls == list(range(0, 2 * CHUNKS, 2))
        np.testing.assert_allclose(
            np.load(site.work / "out.npy"), smoothed(np.load(site.work / "in.npy")), rtol=1e-14
        )
        return (site.work / "out.npy").read_bytes()


def resumed(site: Site, words: list[str], undisturbed: bytes) -> None:
    """Resume, and show that what was finished is not done again."""
    done = site.done
    stream = site.finish([*words, "--resume"])["stream"]
    assert stream["resumed"] == len(done)
    assert site.calls == sorted({2 * number for number in range(CHUNKS)} - {2 * number for number in done})
    assert (site.work / "out.npy").read_bytes() == undisturbed


# Where, which rank of how many dies, at which call there; how many ranks go on. With three chunks under
# way, the fourth is begun when the first is finished.
KILLS = [
    ("read", 1, 2, 3, 1),
    ("write", 0, 1, 5, 3),
    ("in its line", 1, 3, 0, 2),
    ("after its line", 1, 2, 3, 3),
    ("sync", 1, 2, 0, 1),
    ("rename", 0, 3, 1, 4),
]
MORE_KILLS = [
    ("kernel", 1, 3, 4, 2),
    ("kernel", 0, 2, 5, 3),
    ("write", 1, 2, 4, 4),
    ("before its line", 1, 2, 2, 1),
    ("after its line", 0, 1, 3, 4),
    ("synced", 1, 3, 0, 2),
]


@pytest.mark.parametrize(
    ("where", "victim", "ranks", "call", "later"),
    [pytest.param(*kill, id=f"{kill[0]}, {kill[2]} ranks", marks=needs_mpi) for kill in KILLS]
    + [
        pytest.param(*kill, id=f"{kill[0]}, {kill[2]} ranks", marks=[needs_mpi, pytest.mark.nightly])
        for kill in MORE_KILLS
    ],
)
def test_a_killed_rank_loses_nothing_that_was_finished(
    site: Site, undisturbed: bytes, where: str, victim: int, ranks: int, call: int, later: int
) -> None:
    before = content(site.work)
    status, lines = site.run(site.words(ranks), STAGE=f"{where},{victim},{call}")
    assert status != 0
    told_of_its_death(lines, victim, ranks)
    after = content(site.work)
    assert set(after) >= set(before) | {PARTIAL}
    assert {name: after[name] for name in before} == before
    if where != "read":
        assert site.done
    if where == "rename":
        assert len(site.done) == CHUNKS
    resumed(site, site.words(later), undisturbed)


def told_of_its_death(lines: list[str], victim: int, ranks: int) -> None:
    """In one sentence, and what to type in another; by nobody where the rank was alone."""
    if ranks == 1:
        assert lines == []
        return
    sentence, kept = lines
    assert kept == KEPT
    # MPICH's launcher kills the other ranks, and may name one of them.
    rank = r"\d" if mpi_launcher.find().vendor == "MPICH" else victim
    assert re.match(rf"meshrun: \[rank {rank}, host {HOST}\] killed by signal 9 \(SIGKILL\)", sentence)


@needs_mpi
@pytest.mark.nightly
def test_a_run_that_is_killed_again_and_again_ends(site: Site, undisturbed: bytes) -> None:
    """Each time with other ranks: the journal adds up what all of them have finished."""
    done: list[set[int]] = [set()]
    for ranks, stage in [
        (2, "after its line,1,2"),
        (3, "after its line,0,1"),
        (4, "after its line,3,1"),
        (1, "before its line,0,3"),
    ]:
        more = ["--resume"] if done[-1] else []
        status, _ = site.run(site.words(ranks, *more), STAGE=stage)
        assert status != 0
        assert not {2 * number for number in done[-1]} & set(site.calls)
        assert site.done > done[-1]
        done.append(site.done)
    resumed(site, site.words(3), undisturbed)


@needs_mpi
def test_killed_before_the_journal_is_there_the_run_begins_anew(site: Site, undisturbed: bytes) -> None:
    before = content(site.work)
    status, lines = site.run(site.words(2), STAGE="begin,0,1")
    assert status == 1
    assert KEPT not in lines
    assert content(site.work) == before
    assert site.finish(site.words(2))["stream"]["resumed"] == 0
    assert (site.work / "out.npy").read_bytes() == undisturbed


@needs_mpi
def test_killed_after_the_rename_the_output_is_there(site: Site, undisturbed: bytes) -> None:
    status, _ = site.run(site.words(2), STAGE="renamed,0,1")
    assert status == 1
    assert (site.work / "out.npy").read_bytes() == undisturbed
    sentence = site.refused(site.words(2, "--resume"))
    assert f"the unfinished output {PARTIAL} is gone" in sentence
    assert f"Try: rm -r {JOURNAL}" in sentence
    assert "if out.npy is finished" in sentence
    assert (site.work / "out.npy").read_bytes() == undisturbed


@pytest.mark.parametrize(
    ("ranks", "number"),
    [
        (1, signal.SIGINT),
        pytest.param(3, signal.SIGTERM, marks=[needs_mpi, pytest.mark.mpi_library]),
        nightly(1, signal.SIGTERM),
        pytest.param(3, signal.SIGINT, marks=[needs_mpi, pytest.mark.nightly]),
    ],
)
def test_an_interrupted_run_says_what_to_type(
    site: Site, undisturbed: bytes, ranks: int, number: signal.Signals
) -> None:
    process = site.begin(site.words(ranks), STAGE=f"hold,{ranks - 1},4")
    wait_for(lambda: site.failing)
    process.send_signal(number)
    status, lines = site.end(process)
    assert status == 128 + number
    if ranks == 1:
        assert lines == [KEPT.replace("meshrun: ", "meshrun: interrupted; ")]
    else:
        assert lines == [f"meshrun: interrupted by {number.name}: every rank has ended", KEPT]
    resumed(site, site.words(2 if ranks == 1 else 1), undisturbed)


@needs_mpi
@pytest.mark.mpi_library
@pytest.mark.parametrize("whom", ["the command", "the launcher"])
def test_the_command_or_its_launcher_is_killed(site: Site, undisturbed: bytes, whom: str) -> None:
    process = site.begin(site.words(2), STAGE="hold,1,4")
    wait_for(lambda: site.failing and bool(site.done))
    if whom == "the command":
        process.kill()
        process.communicate()
    else:
        (launcher,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(launcher), signal.SIGKILL)
        status, lines = site.end(process)
        assert status == 1
        assert lines[-1] == KEPT
    wait_for(lambda: left_running(site.notes) == [])
    for folder in site.temporary.iterdir():  # nobody could do that for the command
        shutil.rmtree(folder)
    resumed(site, site.words(3), undisturbed)


@needs_mpi
def test_a_function_that_raises_is_told_once_and_resumed(site: Site, undisturbed: bytes) -> None:
    status, lines = site.run(site.words(3), STAGE="raise,1,4")
    assert status == 1
    sentence, kept = lines
    assert sentence.startswith(f"meshrun: [rank 1, host {HOST}, CPU] ValueError: no such number (")
    assert kept == KEPT
    assert site.refused(site.words(3)) == f"{UNFINISHED}, {LEFT_BEHIND}"
    resumed(site, site.words(2), undisturbed)


@pytest.fixture
def unfinished(site: Site) -> Site:
    """Where a run has failed in the middle."""
    status, lines = site.run(site.words(1), STAGE="raise,0,8")
    assert status == 1
    assert "ValueError: no such number" in lines[0]
    assert lines[1:] == [KEPT]
    assert site.done
    return site


@pytest.mark.parametrize("what", [nightly("code"), "input", nightly("parameter"), "rows"])
def test_only_the_same_run_is_resumed(unfinished: Site, undisturbed: bytes, what: str) -> None:
    """The sentence names what differs; what is finished is still there afterwards."""
    site, job, source = unfinished, unfinished.work / "job.py", unfinished.work / "in.npy"
    code, state, words = job.read_text(), source.stat(), site.words(1, "--resume")
    if what == "code":
        job.write_text(f"{code}# edited\n")
    elif what == "input":
        os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns + 1_000))
    elif what == "parameter":
        words += ["--gain", "3"]
    else:
        words += ["--host-memory", "100K"]
    sentence = site.refused(words)
    if what == "rows":
        assert "the chunks of the unfinished run do not fit this run's memory" in sentence
    else:
        assert "cannot resume out.npy, its unfinished run differs in 1 value(s)" in sentence
        name = {"code": "code ", "input": "inputs.block.changed_ns ", "parameter": "parameters.gain 3.0"}[
            what
        ]
        assert f": got {name}" in sentence
        assert LEFT_BEHIND in sentence

    job.write_text(code)
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))
    resumed(site, site.words(1), undisturbed)


def test_what_is_left_of_an_unfinished_run_is_looked_at(unfinished: Site) -> None:
    """Its output may be gone, its journal be broken."""
    (unfinished.work / PARTIAL).rename(unfinished.work / "elsewhere")
    assert f"the unfinished output {PARTIAL} is gone" in unfinished.refused(unfinished.words(1, "--resume"))
    (unfinished.work / JOURNAL / "identity.json").write_text("{")
    for more in ([], ["--resume"]):
        sentence = unfinished.refused(unfinished.words(1, *more))
        assert f"{JOURNAL}/identity.json is broken" in sentence


def test_begun_anew_as_the_sentence_says(unfinished: Site, undisturbed: bytes) -> None:
    sentence = unfinished.refused(unfinished.words(1))
    subprocess.run(
        shlex.split(sentence.rpartition("to start from the beginning: ")[2]), cwd=unfinished.work, check=True
    )
    assert unfinished.finish(unfinished.words(1))["stream"]["resumed"] == 0
    assert (unfinished.work / "out.npy").read_bytes() == undisturbed


def test_no_lock_is_left(site: Site, undisturbed: bytes) -> None:
    """Not by a run that ends well, nor by one that a launcher sees killed."""
    assert not list(site.work.glob(".*.lock"))
    status, _ = site.run(site.words(2), STAGE="kernel,1,3")
    assert status != 0
    assert not list(site.work.glob(".*.lock"))
