"""`bench memory p2p` on MPI's ranks, host memory: mpiexec -n 3 python -m pytest --with-mpi tests/mpi."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.jobs.bench.lessons.run import LessonOptions, run
from meshrun.jobs.measure.exit_codes import WrongResults
from meshrun.launch.cli.cli_context import CliContext
from meshrun.runner.errors import UserError
from meshrun.runner.system.launcher import BY_HAND
from meshrun.runner.world.failure import FailureHandler
from meshrun.runner.world.world import World

pytestmark = pytest.mark.mpi
DOOR = CliContext(BY_HAND, words=("bench", "memory", "p2p"))


@pytest.fixture
def record(folder: Path) -> Path:
    return folder / "p2p.json"


def measure(world: World, record: Path) -> Any:
    """The lesson's JSON, on every rank."""
    options = LessonOptions("p2p", 1, True, (1, 1 << 20), {}, output_file=str(record))
    run(world, FailureHandler(rank=world.own_rank), options, DOOR)
    return world.on_root(lambda: json.loads(record.read_text()))


@pytest.mark.mpi_library
def test_every_pair_is_measured_and_right(
    world: World, record: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if world.size == 1:
        with pytest.raises(UserError, match="between ranks"):
            measure(world, record)
        return
    found = measure(world, record)
    pairs = {(one["source"], one["target"]) for one in found["transfers"]}
    assert pairs == set(itertools.permutations(range(world.size), 2))
    assert [one["bytes"] for one in found["transfers"]][:11] == [4**power for power in range(11)]
    assert all(one["seconds"] > 0 for one in found["transfers"])
    assert found["mismatches"] == []
    shown = world.control.allgather(capfd.readouterr().out)
    assert "From rank 0 to rank 1" in shown[0]
    assert shown[1:] == [""] * (world.size - 1)


def test_a_message_that_loses_a_byte_is_named(
    world: World, record: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if world.size == 1:
        pytest.skip("needs two ranks")
    exchange = world.control.exchange

    class Lost:
        def __init__(self, pending: Any, receives: Any) -> None:
            self.pending, self.receives = pending, receives

        def wait(self) -> None:
            self.pending.wait()
            for _, array in self.receives:
                if isinstance(array, np.ndarray) and array.nbytes == 1 << 20:
                    array[-1] ^= 1

    def losing(sends: Any, receives: Any) -> Lost:
        return Lost(exchange(sends, receives), receives if world.rank == 1 else [])

    monkeypatch.setattr(world.control, "exchange", losing)
    with pytest.raises(
        WrongResults, match=r"MPI, rank 0 to rank 1, 1 MiB: 1 bytes wrong, .* 1048575"
    ) as caught:
        measure(world, record)
    assert caught.value.everywhere
    if world.rank == 0:
        assert len(json.loads(record.read_text())["mismatches"]) == world.size - 1
