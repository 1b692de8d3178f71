"""`meshrun -n N validate` with ranks that die, hang or carry wrong data: named, and the report is written."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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

HOST = os.uname().nodename
ALLOWED = 3  # seconds without progress: -T
PROMISE = ALLOWED + 10  # seconds from a fault to the end of the command
VICTIM = 1
CPU = ("--quick", "--device", "cpu", "-J", "out.json")

# The command, with what a test plants in it; run instead of it as every rank. `measure` is a rank's part of
# one measurement; `fault` comes on the victim alone, in measurement number `nth` of operation `what`: in run
# number `at` of it. The first opens connections, the second finds how long one takes, the third is timed.
# Noise makes nothing longer.
PLANTED = f"""
import os, signal, sys, time
sys.path.append({str(Path(local.__file__).parents[2])!r})
from pathlib import Path
from meshrun.jobs.measure import check
from meshrun.jobs.validate.localize import retest
from meshrun.jobs.validate import plan
from meshrun.jobs.validate.probe import rank_probe as ranks
retest.HIDDEN = plan.CPU_SPAN = 0.0
plan.QUICK_CPU_SECONDS = 600.0
notes = Path(os.environ[{MARK!r}])
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
measure, verify, calls = ranks.sample, check.verify, 0
def disturbed(world, progress, label, workload, *rest):
    global calls
    calls += label.startswith({{what!r}})
    if calls == {{nth}}:
        workload = type(workload)(
            workload.prepare, faulted(workload.run), workload.check, workload.repeats
        )
    return measure(world, progress, label, workload, *rest)
ranks.sample = disturbed
def faulted(run):
    runs = 0
    def faulty(count):
        nonlocal runs
        runs += 1
        if runs == {{at}}:
            (notes / f"inside-{{{{rank}}}}").touch()
            if rank == {{victim}}:
                {{fault}}
        return run(count)
    return faulty
"""
# One bit of what the victim got, wherever it is from.
FLIPPED = """
def flipped(memory, datatype, segments):
    if rank == {victim}:
        memory[7 * datatype.itemsize] ^= 1
    return verify(memory, datatype, segments)
check.verify = flipped
"""
# Every sample of every rank took the same time, whoever else uses this machine; that of none stays none.
EVEN = """
def even(*words):
    taken, wrong = disturbed(*words)
    taken[0] += 0.01 - taken[0]
    taken[1] = 0.0
    return taken, wrong
ranks.sample = even
"""
MAIN = """
from meshrun.launch.cli.main import main
sys.exit(main())
"""

pytestmark = pytest.mark.skipif(launcher_problem() is not None, reason=str(launcher_problem()))


class Site(Place):
    def begin(
        self,
        *words: str,
        fault: str = "pass",
        what: str = "flows",
        nth: int = 2,
        at: int = 3,
        victim: int = VICTIM,
        more: str = "",
    ) -> subprocess.Popen[str]:
        """Three ranks; the fault is a Python statement."""
        script = self.notes / "planted.py"
        planted = PLANTED.format(what=what, nth=nth, at=at, victim=victim, fault=fault) + more.format(
            victim=victim
        )
        script.write_text(planted + MAIN)
        starter = (
            f"import sys; sys.path.append({str(Path(local.__file__).parents[2])!r}); "
            "from functools import partial; from meshrun.launch.cli.plugins import conclude; "
            "from meshrun.launch.supervise.supervisor import Supervision; "
            f"from meshrun.launch.mpi.local import start; words = {['validate', *words]!r}; "
            f"program = (sys.executable, {str(script)!r}); "
            "sys.exit(start(3, words, Supervision(conclude=partial(conclude, words)), program=program))"
        )
        return self._begin([sys.executable, "-c", starter])

    def run(self, *words: str) -> tuple[int, str]:
        """The command as it is typed: its exit status and stderr."""
        process = self._begin([*PROGRAM, *words])
        errors = self.end(process)
        return process.returncode, errors

    def _begin(self, command: list[str]) -> subprocess.Popen[str]:
        with (self.notes / "stdout").open("w") as out:
            return self.start(command, out)

    @property
    def answer(self) -> str:
        """What the command has said on standard output."""
        return (self.notes / "stdout").read_text()

    def inside(self, process: subprocess.Popen[str], rank: int = VICTIM) -> float:
        """Wait until the rank is in the measurement; when the command has to have ended."""
        wait_for(lambda: process.poll() is not None or (self.notes / f"inside-{rank}").exists())
        return time.monotonic() + promised(PROMISE, self.begun)

    def end(self, process: subprocess.Popen[str]) -> str:
        """Its stderr, when it leaves no process and no file behind."""
        _, errors = process.communicate(timeout=DEADLOCK)
        wait_for(lambda: left_running(self.notes) == [])
        assert list(self.temporary.iterdir()) == []
        assert "Traceback" not in errors
        return "\n".join(own_lines(errors))

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.work / "out.json").read_text())
        return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with place_below(tmp_path, Site) as made:
        yield made


def rungs(report: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["result"] for one in report["rungs"]}


@pytest.mark.mpi_library
@pytest.mark.parametrize(
    ("what", "nth", "rung"),
    [nightly("product", 1, "gpu"), ("flows", 2, "pairs"), nightly("rings", 2, "node")],
)
def test_a_rank_that_dies_is_named(site: Site, what: str, nth: int, rung: str) -> None:
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    process = site.begin(*CPU, "--keep-going", what=what, nth=nth, fault=kill)
    deadline = site.inside(process)
    errors = site.end(process)
    assert time.monotonic() < deadline
    assert process.returncode == 2, errors
    # MPICH's launcher kills the others at once, and may name one of them.
    victim = "[012]" if mpi_launcher.find().vendor == "MPICH" else VICTIM
    ended = rf"\[rank {victim}, host {HOST}\] killed by signal 9 \(SIGKILL\)"
    assert re.search(ended, errors)
    report = site.report
    assert report["status"] == "critical"
    assert re.match(ended, report["ended"])
    assert report["line"].startswith(f"CRITICAL: {report['ended']}")
    assert site.answer.startswith(f"{report['line']}\n3 ranks on 1 host")
    assert rungs(report)[rung] == "not measured"
    assert [one["rank"] for one in report["members"]] == [0, 1, 2]


def test_a_monitor_is_told_of_a_rank_that_dies(site: Site) -> None:
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    process = site.begin(*CPU, "--nagios", "--rungs", "gpu,all", what="product", nth=1, fault=kill)
    site.end(process)
    assert process.returncode == 2
    assert re.fullmatch(rf"MESHRUN CRITICAL - .*rank \d, host {HOST}.* \| findings=0;.*\n", site.answer)


FROZEN = "os.kill(os.getpid(), signal.SIGSTOP)"


@pytest.mark.parametrize(("fault", "at"), [nightly(FROZEN, 1), (FROZEN, 3), nightly("time.sleep(600)", 3)])
def test_a_rank_that_hangs_is_named(site: Site, fault: str, at: int) -> None:
    process = site.begin(*CPU, "--keep-going", "-T", str(ALLOWED), what="rings", fault=fault, at=at)
    deadline = site.inside(process)
    errors = site.end(process)
    assert time.monotonic() < deadline
    assert process.returncode == 2, errors
    assert re.search(r"stuck: rings \d+ \w+, round \d+", errors)
    assert f"rank {VICTIM}, host {HOST}, CPU" in errors
    report = site.report
    assert report["status"] == "critical"
    assert f"no progress for {ALLOWED} s" in report["ended"]
    assert f"rank {VICTIM}, host {HOST}, CPU" in report["ended"]
    assert "stuck" in report["line"]
    assert site.answer.startswith(f"{report['line']}\n3 ranks on 1 host")
    assert rungs(report)["pairs"] != "not measured"
    assert rungs(report)["node"] == "not measured"


def test_rank_0_hangs(site: Site) -> None:
    """It has the report; the others end by themselves."""
    process = site.begin(*CPU, "--keep-going", "-T", str(ALLOWED), fault=FROZEN, victim=0)
    deadline = site.inside(process, rank=0)
    errors = site.end(process)
    assert time.monotonic() < deadline
    assert process.returncode == 2, errors
    assert "rank 0 does not answer: frozen or gone" in errors
    assert re.match("CRITICAL: .*rank 0 does not answer: frozen or gone", site.answer)
    assert site.report["line"] == site.answer.partition("\n")[0]


def test_a_rank_that_raises_is_named(site: Site) -> None:
    """It is a fault of the software: no verdict on the machine."""
    process = site.begin(*CPU, "--keep-going", fault="raise ValueError('planted')")
    errors = site.end(process)
    assert process.returncode == 3, errors
    assert f"[rank {VICTIM}, host {HOST}, CPU] ValueError: planted" in errors
    assert site.answer.startswith(f"UNKNOWN: [rank {VICTIM}, host {HOST}, CPU] ValueError: planted")
    assert site.report["line"] == site.answer.partition("\n")[0]


def test_wrong_data_is_named(site: Site) -> None:
    """Of a pair: who has it, and from whom."""
    process = site.begin(*CPU, "--rungs", "pairs", more=FLIPPED)
    errors = site.end(process)
    assert process.returncode == 2, errors
    assert "wrong data from rank" in errors
    report = site.report
    assert report["status"] == "critical"
    assert {one["rank"] for one in report["wrong"]} == {VICTIM}
    assert {one["source"] for one in report["wrong"]} == {0, 2}
    assert {(one["what"], one["offset"], one["count"]) for one in report["wrong"]} == {("flows", 7, 1)}
    assert report["alarms"][0]["sentence"].startswith(
        f"rank {VICTIM} (host {HOST}, CPU {VICTIM}): wrong data"
    )
    assert rungs(report)["pairs"] == "broken"
    assert report["command"].startswith("meshrun -n 3 validate --quick --device cpu")


def test_wrong_data_of_a_rank_alone_ends_the_climb(site: Site) -> None:
    process = site.begin(*CPU, "--rungs", "gpu,all", "--stop-at-first", more=FLIPPED)
    errors = site.end(process)
    assert process.returncode == 2, errors
    report = site.report
    assert {(one["what"], one["rank"], one["source"]) for one in report["wrong"]} == {("memory", 1, 1)}
    assert rungs(report)["gpu"] == "broken"
    assert rungs(report)["all"] == "not measured"


@pytest.mark.parametrize(
    ("timeout", "number"),
    [
        pytest.param("0", signal.SIGTERM, marks=pytest.mark.mpi_library),
        ("30", signal.SIGINT),
        nightly("0", signal.SIGINT),
        nightly("30", signal.SIGTERM),
    ],
)
def test_an_interrupted_run_is_unknown(site: Site, number: signal.Signals, timeout: str) -> None:
    process = site.begin(*CPU, "--keep-going", "-T", timeout, more=EVEN)
    site.inside(process)
    process.send_signal(number)
    errors = site.end(process)
    assert process.returncode == 128 + number
    assert errors == f"meshrun: interrupted by {number.name}: every rank has ended"
    report = site.report
    assert report["status"] == "unknown"
    assert report["ended"] == ""
    assert f"interrupted by {number.name}: every rank has ended" in report["not_judged"]
    assert site.answer.startswith(f"{report['line']}\n3 ranks on 1 host")
    if report["status"] == "unknown":
        assert report["line"] == f"UNKNOWN: interrupted by {number.name}: every rank has ended"
    assert rungs(report)["all"] == "not measured"


REFUSED = [
    nightly(["--rungs", "gpu,moon"], "'moon' is not one of gpu, host, pairs"),
    nightly(["--budget", "soon"], "invalid duration"),
    (["-J", "gone/out.json"], "gone"),
    nightly(["--baseline", "none.json"], "none.json"),
    (["--frobnicate"], "--frobnicate"),
]


@pytest.mark.parametrize(("words", "says"), REFUSED, ids=lambda value: str(value)[:30])
def test_bad_words_are_unknown(site: Site, words: list[str], says: str) -> None:
    status, errors = site.run("-n", "2", "validate", "--device", "cpu", *words)
    assert status == 3, errors
    assert says in errors
    assert re.match(rf"UNKNOWN: .*{re.escape(says)}", site.answer)
    assert list(site.work.iterdir()) == []


def test_ranks_of_a_rehearsal(site: Site) -> None:
    status, errors = site.run("-n", "2", "validate", "--simulate", "hosts=2,gpus=2")
    assert status == 3
    assert "`meshrun validate --simulate` starts no ranks; remove -n" in errors
    assert re.match(r"UNKNOWN: .*starts no ranks", site.answer)
