"""An array streamed over several hosts: chunks change hands across them, and outlive one that is lost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from mpirun_site import EVERYONE, Site
from processes import DEADLOCK, launcher_problem, wait_for

pytestmark = pytest.mark.skipif(launcher_problem() is not None, reason=str(launcher_problem()))

CHUNKS, ROWS, COLUMNS = 60, 4, 256
JOB = """
import os, time, meshrun
from pathlib import Path

@meshrun.map_blocks(split_dependent=True)
def twice(block, *, out, slow: str = ""):
    while Path(__file__).with_name("hold").exists():
        time.sleep(0.01)
    time.sleep(0.5 if os.uname().nodename == slow else 0.05)
    out[...] = 2 * block
"""


@pytest.fixture
def words(site: Site) -> list[str]:
    """Of a run in CHUNKS chunks."""
    (site.notes / "job.py").write_text(JOB)
    np.save(site.notes / "in.npy", np.random.default_rng(6).random((CHUNKS * ROWS, COLUMNS)))
    files = [str(site.notes / name) for name in ("in.npy", "out.npy")]
    size = ["--chunk-bytes", str(ROWS * COLUMNS * 8), "--json", str(site.notes / "record.json")]
    return ["--", "run", f"{site.notes}/job.py:twice", *files, *size, "--device", "cpu"]


def is_right(folder: Path) -> bool:
    return bool((np.load(folder / "out.npy") == 2 * np.load(folder / "in.npy")).all())


def test_chunks_of_a_slow_host_go_to_the_others(site: Site, words: list[str]) -> None:
    done = site.run("-j", "3x1", "--hosts", EVERYONE, *words, "--slow", "n3")
    assert done.returncode == 0, done.stderr
    stream = json.loads((site.notes / "record.json").read_text())["stream"]
    assert sum(stream["own"]) + sum(stream["taken_over"]) == CHUNKS
    assert stream["own"][2] < CHUNKS // 3
    assert sum(stream["taken_over"][:2]) > 0
    assert is_right(site.notes)
    site.nothing_is_left()


@pytest.mark.mpi_library
def test_a_run_goes_on_without_a_lost_host(site: Site, words: list[str]) -> None:
    """What the lost host had not synced is done again: its page cache is gone with it."""
    again = ("--on-failure", "resume", "--max-restarts", "1")
    process = site.begin("-j", "3x1", "--hosts", EVERYONE, "--host-timeout", "4", *again, *words)
    journal = site.notes / "out.npy.journal"

    def finished() -> int:
        return sum(log.read_bytes().count(b" done ") for log in journal.glob("*.log"))

    hold = site.notes / "hold"  # until the loss is noticed: nothing more is finished meanwhile
    wait_for(lambda: finished() >= 9)
    hold.touch()
    site.hosts.power_off("n3")
    wait_for(lambda: process.poll() is not None or "starting again" in site.errors)
    before = finished()
    hold.unlink()
    assert process.wait(DEADLOCK) == 0, site.errors
    assert "host n3 " in site.errors
    assert (
        "meshrun: starting again without n3, on 2 ranks of 2 hosts, continuing with what is complete "
        "(restart 1 of 1)\n"
    ) in site.errors
    record = json.loads((site.notes / "record.json").read_text())
    assert record["ranks"] == 2
    assert 0 < record["stream"]["resumed"] <= before
    assert is_right(site.notes)
    assert not journal.exists()
    site.nothing_is_left(("n1", "n2"))
