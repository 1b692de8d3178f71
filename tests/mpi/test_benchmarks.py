"""Benchmarks that start on several ranks work on CPU ranks too: mpiexec -n 3 python -m pytest --with-mpi."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from meshrun.runner.system.compiler import find_compiler
from meshrun.runner.world.world import World

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

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
    options = Namespace(halo=["nccl"], overlap=["off", "on"], steps=10, rounds=1)
    rows = solver_rates.measure(world, name, shape, options)
    assert [row["overlap"] for row in rows] == ["off", "on"]
    for row in rows:
        assert row["taken"] == ("mpi" if world.size > 1 else ""), row
        assert row["microseconds_per_step"] > 0
