"""`meshrun -n N bench` with faults: stuck ranks end in time and are named, and so is wrong data."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import (
    DEADLOCK,
    MARK,
    Place,
    launcher_problem,
    left_running,
    nightly,
    own_lines,
    place_below,
    promised,
    wait_for,
)

from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.launch.mpi import local
from meshrun.launch.mpi.rank_command import PROGRAM

ALLOWED = 2  # seconds without progress: -T
PROMISE = ALLOWED + 10  # seconds from a fault to the end of the command
HOST = os.uname().nodename
FOR_EVER = ("-b", "64", "-e", "64K", "-f", "4", "-N", "0", "--device", "cpu")
SMALL = ("-b", "64", "-e", "16K", "-f", "4", "-n", "3", "--device", "cpu")
PLACE = r"all_reduce float sum, \d+ B, (out-of-place|in-place)(, iteration \d+)?"
STUCK = rf"stuck: {PLACE}: no progress for {ALLOWED} s"

# The command, with what a test plants in it; run instead of it as every rank.
PLANTED = f"""
import os, sys, time
sys.path.append({str(Path(local.__file__).parents[2])!r})
from pathlib import Path
from meshrun.jobs.bench.collectives import checks, measure, timing
notes = Path(os.environ[{MARK!r}])
told = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
"""
MAIN = """
from meshrun.launch.cli.main import main
sys.exit(main())
"""
BIT = """
verify = checks.verify
def disturbed(memory, datatype, segments):
    if told == 1:
        memory[7 * datatype.itemsize] ^= 1
    return verify(memory, datatype, segments)
checks.verify = disturbed
"""
# Where rank 1 falls asleep: before the timed calls of a size, and before the call that is checked.
SLEEP = """
{name}, calls = measure.{name}, 0
def sleepy(*arguments):
    global calls
    calls += 1
    if told == 1 and calls == 5:
        (notes / "failing-1").touch()
        time.sleep(600)
    return {name}(*arguments)
measure.{name} = sleepy
"""
RAISE = """
bound_call, calls = measure.bound_call, 0
def failing(bench, point, iteration):
    global calls
    calls += 1
    if told == 1 and calls == 5:
        (notes / "failing-1").touch()
        raise ValueError("planted")
    return bound_call(bench, point, iteration)
measure.bound_call = failing
"""


pytestmark = pytest.mark.skipif(launcher_problem() is not None, reason=str(launcher_problem()))


class Site(Place):
    def begin(self, *words: str, ranks: int = 3, planted: str = "") -> subprocess.Popen[str]:
        """The command, its standard output a file; planted: Python lines run first in every rank."""
        arguments = ["bench", *words]
        command = [*PROGRAM, "-n", str(ranks), *arguments]
        if planted:
            script = self.notes / "planted.py"
            script.write_text(PLANTED + planted + MAIN)
            starter = (
                f"import sys; sys.path.append({str(Path(local.__file__).parents[2])!r}); "
                "from meshrun.launch.mpi.local import start; "
                f"sys.exit(start({ranks}, {arguments!r}, program=(sys.executable, {str(script)!r})))"
            )
            command = [sys.executable, "-c", starter]
        with self.out.open("w") as out:
            return self.start(command, out)

    def begin_bare(self, *words: str, ranks: int = 3) -> subprocess.Popen[str]:
        """The MPI launcher with the command as every rank, as on a cluster."""
        launcher = mpi_launcher.find()
        environment = launcher.environment(ranks, os.environ, self.temporary)
        with self.out.open("w") as out:
            process = subprocess.Popen(
                [*launcher.command(ranks), *PROGRAM, "bench", *words],
                env={**environment, "TMPDIR": str(self.temporary), MARK: str(self.notes)},
                stdout=out,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        self.started.append(process)
        return process

    @property
    def out(self) -> Path:
        return self.notes / "out.txt"

    def rows(self) -> list[list[str]]:
        text = self.out.read_text()
        return [line.split() for line in text.splitlines(keepends=True) if line[:1] == " " and "\n" in line]

    def in_full_swing(self, process: subprocess.Popen[str], rows: int = 8) -> dict[int, int]:
        """Wait until so many rows have been printed; each rank's process, as the header tells."""
        wait_for(lambda: process.poll() is not None or len(self.rows()) >= rows)
        assert process.poll() is None, process.communicate()[1]
        seats = re.findall(r"^#  Rank +(\d+) Group +\d+ Pid +(\d+) on ", self.out.read_text(), re.M)
        return {int(rank): int(pid) for rank, pid in seats}

    def end(self, process: subprocess.Popen[str], by_itself: bool = False) -> str:
        """Its stderr, when it leaves no process and no file behind.

        It must end as soon as promised after what was done to it, which is done now; or else `by_itself`.
        """
        _, errors = process.communicate(timeout=DEADLOCK if by_itself else promised(PROMISE, self.begun))
        assert left_running(self.notes) == []
        assert list(self.temporary.iterdir()) == []
        assert "Traceback" not in errors
        return "\n".join(own_lines(errors))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with place_below(tmp_path, Site) as made:
        yield made


# Stuck.


@pytest.mark.mpi_library
def test_a_stopped_rank_is_named(site: Site) -> None:
    process = site.begin("all_reduce", *FOR_EVER, "-T", str(ALLOWED), "-J", "out.json")
    pids = site.in_full_swing(process)
    os.kill(pids[1], signal.SIGSTOP)
    errors = site.end(process)
    assert process.returncode == 4
    assert re.match(rf"meshrun: {STUCK}\n", errors)
    assert f"  no answer: rank 1, host {HOST}, CPU (frozen, or its host gone)" in errors
    assert errors.count("meshrun: ") == 1
    record = json.loads((site.work / "out.json").read_text())
    assert len(record["results"]) == len(site.rows())
    assert record["errors"] == ["ended before all was measured"]


def test_rank_0_stopped(site: Site) -> None:
    process = site.begin("all_reduce", *FOR_EVER, "-T", str(ALLOWED))
    os.kill(site.in_full_swing(process)[0], signal.SIGSTOP)
    errors = site.end(process)
    assert process.returncode == 4
    assert re.match(
        rf"meshrun: {STUCK}; \[rank [12], host {HOST}, CPU\] .*; rank 0 does not answer: frozen or gone$",
        errors,
    )
    assert errors.count("meshrun: ") == 1


@pytest.mark.parametrize(("step", "heading"), [("clock", "not entered"), nightly("check", "finished")])
def test_a_rank_that_sleeps_in_python_is_named(site: Site, step: str, heading: str) -> None:
    planted = SLEEP.format(name=step)
    process = site.begin("all_reduce", *SMALL, "-T", str(ALLOWED), "-J", "out.json", planted=planted)
    wait_for(lambda: process.poll() is not None or (site.notes / "failing-1").exists())
    errors = site.end(process)
    assert process.returncode == 4
    assert re.match(rf"meshrun: {STUCK}\n", errors)
    # Rank 1 stands apart: the others are a step further.
    assert re.search(rf"^  {heading}: rank 1, host {HOST}, CPU( \([^)]*\))?$", errors, re.M), errors
    others = rf"^  .*: rank 0, host {HOST}, CPU; rank 2, host {HOST}, CPU( \([^)]*\))?$"
    assert re.search(others, errors, re.M), errors
    assert len(site.rows()) == 2
    assert len(json.loads((site.work / "out.json").read_text())["results"]) == 2


def test_a_run_that_goes_on_is_left_alone(site: Site) -> None:
    """Longer than -T in all, and each measurement well within it."""
    process = site.begin("all_reduce", *FOR_EVER, "-T", "3")
    site.in_full_swing(process)
    begun = time.monotonic()
    wait_for(lambda: process.poll() is not None or time.monotonic() - begun > 4)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    site.end(process)


# Other ends.


@pytest.mark.parametrize(
    ("timeout", "number"),
    [
        ((), signal.SIGINT),
        pytest.param(("-T", "30"), signal.SIGTERM, marks=pytest.mark.mpi_library),
        nightly((), signal.SIGTERM),
        nightly(("-T", "30"), signal.SIGINT),
    ],
)
def test_an_interrupted_run_ends_whole(site: Site, number: signal.Signals, timeout: tuple[str, ...]) -> None:
    process = site.begin("all_reduce", *FOR_EVER, "-J", "out.json", *timeout)
    site.in_full_swing(process)
    process.send_signal(number)
    errors = site.end(process)
    assert process.returncode == 128 + number
    assert errors == f"meshrun: interrupted by {number.name}: every rank has ended"
    record = json.loads((site.work / "out.json").read_text())
    assert len(record["results"]) > 0
    assert record["errors"] == ["ended before all was measured"]


def test_an_interrupted_run_whose_rank_is_stopped_ends_whole(site: Site) -> None:
    process = site.begin("all_reduce", *FOR_EVER)
    os.kill(site.in_full_swing(process)[2], signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    assert "interrupted by SIGINT" in site.end(process)
    assert process.returncode == 130


@pytest.mark.mpi_library
def test_a_killed_rank_ends_all(site: Site) -> None:
    process = site.begin("all_reduce", *FOR_EVER, "-T", "30")
    os.kill(site.in_full_swing(process)[1], signal.SIGKILL)
    errors = site.end(process)
    assert process.returncode == 1
    # Another rank's call may fail before MPICH's launcher speaks.
    told = (
        "killed by signal 9|an MPI call failed"
        if mpi_launcher.find().vendor == "MPICH"
        else "killed by signal 9"
    )
    assert re.search(told, errors)


@pytest.mark.mpi_library
def test_a_killed_launcher_ends_all(site: Site) -> None:
    """Open MPI's leaves its ranks to themselves, and these have nothing to print that would fail."""
    process = site.begin_bare("all_reduce", "-b", "64", "-e", "64", "-n", "5000000", "--device", "cpu")
    site.in_full_swing(process, rows=0)
    wait_for(lambda: "#wrong" in site.out.read_text())
    assert process.pid in left_running(site.notes)
    process.kill()
    wait_for(lambda: left_running(site.notes) == [])


@pytest.mark.mpi_library
def test_a_rank_that_fails_ends_all(site: Site) -> None:
    process = site.begin("all_reduce", *SMALL, planted=RAISE)
    wait_for(lambda: process.poll() is not None or (site.notes / "failing-1").exists())
    errors = site.end(process)
    assert process.returncode == 1
    assert f"meshrun: [rank 1, host {HOST}, CPU] ValueError: planted" in errors
    assert errors.count("meshrun: ") == 1


# RankMismatch.


@pytest.mark.mpi_library
@pytest.mark.parametrize("operation", ["all_reduce", nightly("all_gather"), nightly("sendrecv")])
def test_wrong_data_is_named_and_status_7(site: Site, operation: str) -> None:
    process = site.begin(operation, *SMALL, "--names", "-J", "out.json", planted=BIT)
    errors = site.end(process, by_itself=True)
    assert process.returncode == 7
    assert re.search(rf"meshrun: {operation}: wrong data, in \d+ checks on single ranks", errors)
    text = site.out.read_text()
    named = re.findall(r"^#   (wrong: .* out of place): (.*)$", text, re.M)
    assert {who for who, _ in named} == {f"wrong: rank 1 (host {HOST}, CPU) out of place"}
    assert all(what.startswith("1 element, first at 7: got ") for _, what in named)
    assert all("1 bit flipped" in what for _, what in named)
    assert len(named) == len(site.rows()) == 5
    assert re.search(r"^# Out of bounds values : \d+ FAILED$", text, re.M)
    findings = json.loads((site.work / "out.json").read_text())["results"][0]["meshrun"]["out_of_place"][
        "findings"
    ]
    assert [(found["rank"], found["offset"], found["flipped_bits"]) for found in findings] == [(1, 7, 1)]


@pytest.mark.nightly
def test_too_slow_is_status_7(site: Site) -> None:
    process = site.begin("all_reduce", *SMALL, "--min-busbw", "1e6")
    errors = site.end(process, by_itself=True)
    assert process.returncode == 7
    assert re.fullmatch(
        r"meshrun: all_reduce: average bus bandwidth \S+ GB/s, below 0\.9 of 1e\+06.*", errors
    )


# Bad usage, of ranks.

REFUSED = [
    (2, "all_reduce -b foo", "'foo'"),
    (3, "hypercube", "got 3 ranks, expected a power of two. Try: -n 2"),
    nightly(2, "broadcast -r 2", "no such root: got -r 2, expected at most 1"),
    nightly(2, "all_reduce -G 1", "Try: without -G"),
    nightly(2, "all_reduce -J out.txt", "not JSON"),
    (2, "all_reduce -J gone/out.json", "cannot write gone/out.json"),
    nightly(2, "all_reduce --split FOO", "the split does not parse"),
    nightly(2, "all_reduce -b 102400G -e 102400G", "does not fit into memory"),
    nightly(2, "pingpong --pairs 0-9", "--pairs does not parse"),
    nightly(2, "scale all_reduce --split MOD2", "scale splits the ranks itself"),
]


@pytest.mark.parametrize(("ranks", "words", "says"), REFUSED, ids=lambda value: str(value)[:30])
def test_a_mistake_is_told_once(site: Site, ranks: int, words: str, says: str) -> None:
    process = site.begin(*words.split(), "--device", "cpu", ranks=ranks)
    errors = site.end(process, by_itself=True)
    assert process.returncode == 6
    assert errors.startswith("meshrun: ")
    assert errors.count("\n") == 0, errors
    assert says in errors
    assert site.out.read_text() == ""
    assert list(site.work.iterdir()) == []


# On a terminal.


def test_the_terminal_of_ranks(site: Site) -> None:
    """Colour and progress reach it through the launcher; a file that standard output is stays plain."""
    words = ("bench", "all_reduce", *SMALL)
    status, said = on_terminal(site, None, "-n", "2", *words)
    assert status == 0
    assert "\x1b[32m" in said
    assert re.findall(r"\[(\d)/5\] all_reduce", said) == ["0", "1", "2", "3", "4", "5"]
    status, said = on_terminal(site, site.out, "-n", "2", *words)
    assert status == 0
    assert "] all_reduce" in said
    assert "# nccl-tests" not in said
    assert len(site.rows()) == 5
    assert not {"\x1b", "\r"} & {*site.out.read_text()}


def on_terminal(site: Site, stdout: Path | None, *words: str) -> tuple[int, str]:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 90, 0, 0))
    with stdout.open("wb") if stdout else os.fdopen(os.dup(follower), "wb", 0) as target:
        process = subprocess.Popen(
            [*PROGRAM, *words], cwd=site.work, stdin=follower, stdout=target, stderr=follower
        )
    os.close(follower)
    said = b""
    with contextlib.suppress(OSError):  # Linux's way to say that nobody writes any more
        while chunk := os.read(leader, 1 << 16):
            said += chunk
    os.close(leader)
    return process.wait(DEADLOCK), said.decode()
