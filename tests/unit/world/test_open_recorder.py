"""The recorder of a world: opened on all ranks or on none, and closed however the run ends."""

from __future__ import annotations

import errno
import itertools
import os
import re
from pathlib import Path

import pytest

from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.recorder import ring
from meshrun.runner.world import world as world_module
from meshrun.runner.world.failure import FailureHandler
from meshrun.runner.world.world import open_world


@pytest.fixture(autouse=True)
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(world_module, "file_of", lambda run, rank: ring.file_of(run, rank, tmp_path))
    return tmp_path


def test_a_recorded_world(shared_memory: Path) -> None:
    opened = open_world("cpu", record="run edges")
    opened.control.barrier()
    assert opened.arrays is opened.control
    with opened.phases("kernel"):
        pass
    (path,) = ring.files_of(opened.run_id, shared_memory)
    found = ring.read(path)
    assert found is not None
    assert (found.about["command"], found.about["rank"], found.about["size"]) == ("run edges", 0, 1)
    assert [str(one) for one in found.operations][:2] == ["barrier 1", "kernel"]
    opened.close()
    opened.recorder.close()
    assert not ring.files_of(opened.run_id, shared_memory)


def test_a_world_that_is_not_recorded(shared_memory: Path) -> None:
    opened = open_world("cpu")
    assert opened.control.trail is None
    assert not list(shared_memory.iterdir())


def test_a_failure_closes_the_recorder(shared_memory: Path) -> None:
    handler = FailureHandler()
    handler.rank = open_world("cpu", record="").own_rank
    assert list(shared_memory.iterdir())
    handler.clean_up()
    assert not list(shared_memory.iterdir())


def test_where_one_rank_has_no_memory_no_rank_records_and_one_warning_says_so(
    shared_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, allocate = itertools.count(), os.posix_fallocate

    def second_is_refused(*arguments: int) -> None:
        if next(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(*arguments)

    monkeypatch.setattr(os, "posix_fallocate", second_is_refused)
    worlds = run_ranks(3, lambda comm: open_world("cpu", control=comm, record=""))
    assert all(one.recorder is None for one in worlds)
    (warning,) = {sentence for one in worlds for sentence in one.warnings}
    assert re.search(r"\[rank \d, host .*\] no flight recorder, [^:]*: No space left on device", warning)
    assert not list(shared_memory.iterdir())
