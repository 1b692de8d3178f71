"""What tests on ranks share: a communicator and the world of all ranks, and a folder that all see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from shared_folder import shared_folder

from meshrun.runner.comm.mpi import MpiComm
from meshrun.runner.world.world import World, open_world


@pytest.fixture(scope="module")
def comm() -> Iterator[MpiComm]:
    made = MpiComm()
    yield made
    made.close()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    opened = open_world("cpu", control=MpiComm())
    yield opened
    opened.close()


@pytest.fixture
def folder(world: World) -> Iterator[Path]:
    """A folder that all ranks see."""
    yield from shared_folder(world, "mpi-")
