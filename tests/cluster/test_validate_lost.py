"""A validation whose rank 0, on another host than the command, or whose launcher is killed: what it exits
with is what its reports say."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from mpirun_site import Site
from processes import DEADLOCK, launcher_problem, nightly, wait_for

pytestmark = pytest.mark.skipif(launcher_problem() is not None, reason=str(launcher_problem()))

STATUS = {"ok": 0, "warning": 1, "critical": 2, "unknown": 3}
LAUNCHERS = ("prterun", "mpiexec", "orterun", "mpirun")


def victims(site: Site, host: str) -> list[int]:
    """The launcher on the command's host, else the rank: the first process with the words of a rank."""
    found = site.hosts.processes(host)
    if host == "n1":
        return [pid for pid, line in found if Path(line.split()[0]).name in LAUNCHERS]
    return [pid for pid, line in found if "--expect" in line and "python" in line.split()[0]]


@pytest.mark.parametrize("host", ["n2", nightly("n1"), nightly("n3")], ids=["rank 0", "launcher", "rank 1"])
def test_the_exit_status_and_the_reports_agree(site: Site, host: str) -> None:
    file = site.notes / "page.json"
    words = ["validate", "--quick", "--rungs", "host pairs", "--soak", "1h", "--device", "cpu"]
    process = site.begin("-j", "2x1", "--hosts", "n2,n3", "--", *words, "--json", str(file))
    wait_for(lambda: process.poll() is not None or file.exists())  # written before a rung
    os.kill(min(victims(site, host)), signal.SIGKILL)
    assert process.wait(DEADLOCK) in (2, 3), site.errors
    report = json.loads(file.read_text())
    assert STATUS[report["status"]] == process.returncode
    assert report["line"] in site.out
    site.nothing_is_left()
