"""Whole runs whose job fails in every way: one sentence, an end within seconds, and nothing left behind.

`meshrun -n 3 run ...` as a user runs it, under whichever MPI this environment has.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import (
    DEADLOCK,
    Place,
    launcher_problem,
    left_running,
    nightly,
    of_the_run,
    own_lines,
    place_below,
    promised,
    small_disk,
    wait_for,
)

from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.launch.mpi.rank_command import PROGRAM

ROOT = Path(__file__).parents[2]
PROMISE, PROMISE_KILLED = 5, 10  # seconds from a rank's failure, or death, to the end of the command
HOST = os.uname().nodename

JOB = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
import meshrun

folder = Path(os.environ["MESHRUN_TEST_RUN"])
told = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))

class Odd(Exception):
    pass

def fail(how):
    (folder / f"failing-{told}").touch()
    if how == "value":
        raise ValueError("no such number")
    if how == "odd":
        raise Odd("two\\nlines")
    if how == "user":
        raise meshrun.UserError("not this one", got=1, expected=2)
    if how == "memory":
        np.empty(1 << 57, np.uint8)
    if how == "exit":
        sys.exit(0)
    if how == "vanish":
        os._exit(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while how == "loop":
        pass

if told == 1 and "IMPORT" in os.environ:
    fail(os.environ["IMPORT"])

@meshrun.map_blocks(halo=(1, 0), split_dependent=True)
def edges(block, *, out, here, how: str = "", everywhere: bool = False):
    if everywhere or here.rank == 1:
        fail(how)
    out[...] = block[1:-1]

@meshrun.reduce_blocks(combine=lambda a, b: a + b)
def total(block, *, how: str):
    if told == 1:
        fail(how)
    return float(block.sum())
"""


needs_mpi = pytest.mark.skipif(launcher_problem() is not None, reason=str(launcher_problem()))


class Site(Place):
    """With an input, an old output and the job."""

    def begin(
        self, words: list[str], *, program: tuple[str, ...] = PROGRAM, **changes: str
    ) -> subprocess.Popen[str]:
        return self.start([*program, *words], **changes)

    def end(self, process: subprocess.Popen[str], promise: float) -> str:
        """Its stderr; it must end as soon after a rank's failure as promised, and leave no process."""
        wait_for(lambda: process.poll() is not None or any(self.notes.glob("failing-*")))
        _, errors = process.communicate(timeout=promised(promise, self.begun))
        assert left_running(self.notes) == []
        return of_the_run(errors)

    def run(self, words: list[str], promise: float = PROMISE, **changes: str) -> tuple[int, str]:
        """The exit status and stderr of a run that fails; its folder must be as before."""
        before = content(self.work)
        process = self.begin(words, **changes)
        errors = self.end(process, promise)
        assert content(self.work) == before
        assert list(self.temporary.iterdir()) == []
        assert ("Traceback" in errors) == ("--debug" in words)
        return process.returncode, errors


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with place_below(tmp_path, Site) as made:
        np.save(made.work / "in.npy", np.random.default_rng(0).random((12, 500)))
        np.save(made.work / "out.npy", np.arange(7))
        (made.work / "job.py").write_text(JOB)
        yield made


def content(folder: Path) -> dict[str, bytes]:
    """Every file by name, hidden ones too, without what Python compiles."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def words(job: str = "edges", *more: str, ranks: int = 3) -> list[str]:
    files = ["in.npy", "out.npy"] if job == "edges" else ["in.npy"]
    return ["-n", str(ranks), "run", f"job.py:{job}", *files, *more]


RAISED = {
    "value": (1, "ValueError: no such number (", "Try: --debug"),
    "odd": (1, "Odd: two lines (", "Try: --debug"),
    "user": (2, "not this one: got 1, expected 2", ""),
    "memory": (1, "out of memory: Unable to allocate 128. PiB", "Try: more ranks"),
    "exit": (1, "SystemExit: 0 (", "Try: --debug"),
}
ONE, ALL = "one rank", "all ranks"


@needs_mpi
@pytest.mark.parametrize(
    ("how", "where"),
    [
        pytest.param("value", ONE, marks=pytest.mark.mpi_library),
        ("memory", ONE),
        ("exit", ONE),
        ("odd", ALL),
        ("user", ALL),
        *(nightly(*each) for each in (("odd", ONE), ("user", ONE))),
        *(nightly(*each) for each in (("value", ALL), ("memory", ALL), ("exit", ALL))),
    ],
)
def test_an_error_in_the_function_is_told_once_and_ends_all(site: Site, how: str, where: str) -> None:
    status, what, hint = RAISED[how]
    found, errors = site.run(words("edges", "--how", how, *(["--everywhere"] if where == ALL else [])))
    assert found == status
    (sentence,) = own_lines(errors)
    rank = "[012]" if where == ALL else "1"
    assert re.match(rf"meshrun: \[rank {rank}, host {HOST}, CPU\] ", sentence)
    assert what in sentence
    assert hint in sentence


@needs_mpi
@pytest.mark.parametrize("attempt", [0, nightly(1), nightly(2)])
def test_the_rank_that_failed_speaks_though_others_meet_what_it_cleaned_up(site: Site, attempt: int) -> None:
    """Many small writes by the others: one of them is between two when the file goes away."""
    np.save(site.work / "in.npy", np.zeros((3_000, 2_000)))
    _, errors = site.run(words("edges", "--how", "value"))
    assert f"[rank 1, host {HOST}, CPU] ValueError" in errors
    assert errors.count("meshrun: ") == 1


@needs_mpi
def test_an_error_while_others_wait_for_a_partial_result(site: Site) -> None:
    np.save(site.work / "in.npy", np.zeros((9, 350_000)))  # four tiles: each rank has one
    status, errors = site.run(words("total", "--how", "value"))
    assert status == 1
    (sentence,) = own_lines(errors)
    assert f"[rank 1, host {HOST}, CPU] ValueError: no such number" in sentence


@needs_mpi
def test_debug_shows_the_traceback(site: Site) -> None:
    status, errors = site.run(words("edges", "--how", "value", "--debug"))
    assert status == 1
    assert errors.count("Traceback (most recent call last)") == 1
    assert "in fail\n    raise ValueError" in errors
    assert errors.count(f"meshrun: [rank 1, host {HOST}, CPU] ValueError") == 1


@needs_mpi
@pytest.mark.mpi_library
@pytest.mark.parametrize(
    "more",
    [["--no-overlap"], ["--overlap"]],
    ids=["others wait at the end of the file", "others wait for its halo"],
)
def test_a_killed_rank_ends_all(site: Site, more: list[str]) -> None:
    # Rows of 2 MB: the message is on its way only while its sender lives.
    np.save(site.work / "in.npy", np.zeros((9, 250_000)))
    status, errors = site.run(words("edges", "--how", "kill", *more), PROMISE_KILLED)
    assert status == 1
    (sentence,) = own_lines(errors)
    # MPICH's launcher kills the other ranks, and may name one of them.
    rank = "[012]" if mpi_launcher.find().vendor == "MPICH" else "1"
    assert re.match(rf"meshrun: \[rank {rank}, host {HOST}\] killed by signal 9 \(SIGKILL\)", sentence)
    assert "Try: dmesg" in sentence


@needs_mpi
@pytest.mark.mpi_library
def test_a_rank_that_vanishes_ends_all(site: Site) -> None:
    status, errors = site.run(words("edges", "--how", "vanish"), PROMISE_KILLED)
    assert status == 1
    (sentence,) = own_lines(errors)
    assert "no completion record" in sentence or "killed by signal 9" in sentence
    if mpi_launcher.find().vendor == "Open MPI":
        assert f"[rank 1, host {HOST}] ended too early" in sentence


@needs_mpi
@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("value", "ValueError: no such number"),
        nightly("odd", "Odd: two lines"),
        pytest.param("exit", "SystemExit: 0", marks=pytest.mark.mpi_library),
    ],
)
def test_a_file_that_one_rank_cannot_import_ends_all(site: Site, how: str, what: str) -> None:
    """The others are in MPI's initialization by then, and wait for it there."""
    status, errors = site.run(words("edges"), IMPORT=how)
    assert status == 2
    (sentence,) = own_lines(errors)
    assert sentence.startswith("meshrun: job.py cannot be imported: ")
    assert what in sentence


@needs_mpi
@pytest.mark.parametrize(
    ("where", "number"),
    [
        pytest.param(ONE, signal.SIGINT, marks=pytest.mark.mpi_library),
        (ALL, signal.SIGTERM),
        nightly(ONE, signal.SIGTERM),
        nightly(ALL, signal.SIGINT),
    ],
)
def test_a_loop_without_end_is_interrupted(site: Site, where: str, number: signal.Signals) -> None:
    before = content(site.work)
    process = site.begin(words("edges", "--how", "loop", *(["--everywhere"] if where == ALL else [])))
    wait_for(lambda: any(site.notes.glob("failing-*")))
    assert list(site.work.glob(".out.npy.*.partial"))
    process.send_signal(number)
    errors = site.end(process, PROMISE_KILLED)
    assert process.returncode == 128 + number, errors
    assert own_lines(errors) == [f"meshrun: interrupted by {number.name}: every rank has ended"]
    assert content(site.work) == before
    assert list(site.temporary.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, nightly(signal.SIGTERM)])
def test_a_rank_alone_is_interrupted(site: Site, number: signal.Signals) -> None:
    before = content(site.work)
    process = site.begin(words("edges", "--how", "loop", "--everywhere", ranks=1))
    wait_for(lambda: any(site.notes.glob("failing-*")))
    process.send_signal(number)
    assert site.end(process, PROMISE) == "meshrun: interrupted; nothing was written\n"
    assert process.returncode == 128 + number
    assert content(site.work) == before


PHOTOGRAPH = ROOT / "examples" / "rocket.jpg"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for 256 kB."""
    with small_disk(tmp_path / "disk", 256 << 10) as folder:
        yield folder


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        pytest.param("out.npy", 3, marks=needs_mpi),
        ("out.png", 1),
        nightly("out.npy", 1),
        pytest.param("out.png", 3, marks=[needs_mpi, pytest.mark.nightly]),
    ],
)
def test_a_full_disk(site: Site, disk: Path, name: str, ranks: int) -> None:
    """The array needs 820 kB and asks for them before the work; the picture 300 kB, at its end."""
    old, target = b"as it was", disk / name
    target.write_bytes(old)
    status, errors = site.run(["-n", str(ranks), "run", "laplacian", str(PHOTOGRAPH), str(target)])
    assert status == 1
    (sentence,) = own_lines(errors)
    assert re.search(rf"cannot write {target}: No space left on device, [\d,]+ bytes free there", sentence)
    assert "Try: an output on another disk" in sentence
    assert content(disk) == {name: old}


@pytest.mark.parametrize("name", ["out.npy", nightly("out.png")])
def test_a_file_larger_than_allowed(site: Site, name: str) -> None:
    """Disk quotas and `ulimit -f` end a write like a full disk does."""
    before = content(site.work)
    limit = (100_000, 100_000)
    command = [*PROGRAM, "run", "laplacian", str(PHOTOGRAPH), name]
    ended = subprocess.run(
        command,
        cwd=site.work,
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    assert ended.returncode == 1
    warning, sentence = ended.stderr.splitlines()
    assert "no flight recorder" in warning  # its file is larger, too
    assert f"cannot write {name}: File too large" in sentence
    assert content(site.work) == before


MPI_PROGRAM = """
import sys
from pathlib import Path
sys.path.append(".")
import meshrun
from job import edges, told

def attempt(source, **options):
    try:
        record = edges.run(source, "out.npy", device="cpu", **options)
    except meshrun.MeshrunError as failure:
        return f"{type(failure).__name__} {failure}"
    return f"{record['ranks']} ranks"

last_input, notes = sys.argv[1:]
found = [attempt("gone.npy"), attempt("in.npy", grid="7"), attempt("in.npy")]
found += [attempt(last_input, how="value")]
(Path(notes) / f"found-{told}").write_text("\\n".join(found))
"""


@pytest.fixture
def program(site: Site) -> Callable[..., tuple[int, str]]:
    """Run MPI_PROGRAM on three ranks under the launcher itself, as any MPI program; status and stderr."""
    (site.work / "program.py").write_text(MPI_PROGRAM)

    def run(last_input: str) -> tuple[int, str]:
        launcher = mpi_launcher.find()
        environment = launcher.environment(3, os.environ, site.temporary)
        process = site.begin(
            ["program.py", last_input, str(site.notes)],
            program=(*launcher.command(3), sys.executable),
            **environment,
        )
        wait_for(lambda: process.poll() is not None or any(site.notes.glob("failing-*")))
        _, errors = process.communicate(timeout=promised(PROMISE, site.begun))
        wait_for(lambda: left_running(site.notes) == [])  # MPICH's launcher may end before its ranks
        return process.returncode, errors

    return run


@needs_mpi
@pytest.mark.mpi_library
def test_in_a_program_an_error_everywhere_is_raised_everywhere_and_the_program_goes_on(
    site: Site, program: Callable[..., tuple[int, str]]
) -> None:
    status, errors = program("gone.npy")
    assert status == 0
    assert "meshrun: " not in errors
    missing, grid = "UserError gone.npy does not exist", "UserError grid does not use"
    for rank in range(3):
        found = (site.notes / f"found-{rank}").read_text().splitlines()
        for line, expected in zip(found, [missing, grid, "3 ranks", missing], strict=True):
            assert line.startswith(expected)
    np.testing.assert_array_equal(np.load(site.work / "out.npy"), np.load(site.work / "in.npy"))


@needs_mpi
@pytest.mark.mpi_library
def test_in_a_program_an_error_on_one_rank_ends_all(
    site: Site, program: Callable[..., tuple[int, str]]
) -> None:
    status, errors = program("in.npy")
    assert status != 0
    assert errors.count("meshrun: ") == 1
    assert f"meshrun: [rank 1, host {HOST}, CPU] ValueError: no such number" in errors
    assert list(site.notes.glob("found-*")) == []
    assert list(site.work.glob(".*.partial")) == []
    # The run before the last one wrote it.
    np.testing.assert_array_equal(np.load(site.work / "out.npy"), np.load(site.work / "in.npy"))


ENDLESS = """
import numpy as np
import meshrun

@meshrun.distribute
def solve(u, *, tol: float = 1e-3):
    change = np.max(u)
    while change > tol:
        u = u * 0.5 + 1
        change = np.max(np.abs(u))
    return u
"""


@needs_mpi
def test_a_loop_that_does_not_end_fails_on_all_ranks_with_its_numbers(site: Site) -> None:
    (site.work / "endless.py").write_text(ENDLESS)
    np.save(site.work / "in.npy", np.full((40, 30), 6.0))
    files = ["run", "endless.py:solve", "in.npy", "solved.npy"]
    status, errors = site.run(["-n", "2", *files, "--max-iterations", "200"])
    assert status == 1
    assert errors == (
        "meshrun: the loop in line 8 did not end within 200 iterations: in the last 3 its condition compared "
        "2 > 0.001, 2 > 0.001, 2 > 0.001. Try: a looser tolerance, or --max-iterations N for more\n"
    )
