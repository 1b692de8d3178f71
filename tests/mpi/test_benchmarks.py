"""Benchmarks that start on several ranks work on CPU ranks too: mpiexec -n 3 python -m pytest --with-mpi."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from meshrun.runner.system.compiler import find_compiler
from meshrun.runner.world.world import World

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import programs
import small_collectives
import solver_rates
import solvers

BY_DAY = ("burgers", "life")
NAMES = [
    pytest.param(name, marks=[] if name in BY_DAY else [pytest.mark.nightly]) for name in solvers.SOLVERS
]

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(find_compiler() is None, reason="measures one kernel, which needs a C++ compiler"),
]


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_measured_by_messages(world: World, name: str) -> None:
    """Beside the interior or after it: the bits are the same, or `measure` ends the run."""
    shape = (24, 20, 20) if name in solvers.VOLUME_ONLY else (48, 40)
    options = Namespace(halo=["nccl"], overlap=["off", "on"], between=[0], steps=10, rounds=1)
    rows = solver_rates.measure(world, name, shape, options)
    assert [row["overlap"] for row in rows] == ["off", "on"]
    for row in rows:
        assert row["taken"] == ("mpi" if world.size > 1 else ""), row
        assert row["microseconds_per_step"] > 0


@pytest.mark.parametrize("name", ["conjugate_cube", "shallow_water"])
def test_a_program_is_measured_at_a_size_of_its_own(world: World, name: str) -> None:
    [(known, size)] = programs.cases_of([f"{name}:12"], [1024])
    row = programs.measure(world, known, size, Namespace(seconds=1e-3, rounds=1))
    assert row["size"] == 12
    assert row["microseconds"] > 0


def test_small_collectives_are_checked_before_they_are_timed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = small_collectives.works(world)
    assert {operation for operation, _, _ in works} == {"all_reduce", "all_to_all"}
    assert small_collectives.seconds(world, works[0][2], 2) > 0
    if world.size > 1:
        monkeypatch.setattr(type(world), "all_reduce", lambda world, array: array)
        with pytest.raises(SystemExit, match="all_reduce of 8 bytes"):
            small_collectives.works(world)
