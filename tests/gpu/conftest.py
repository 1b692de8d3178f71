"""Everything here needs a GPU, and says so where there is none. Ranks; what a lesson
runs on; broken kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shared_folder import shared_folder

import meshrun
from meshrun.jobs.bench.lessons.protocol import Context
from meshrun.jobs.kernels import FOLDER
from meshrun.runner.device.raw.box import open_box
from meshrun.runner.world.world import World, open_world, single_rank_world


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = missing_gpu()
    if reason:
        for item in items:
            if "gpu" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason=reason))


def missing_gpu() -> str | None:
    """Why GPU tests cannot run here; None when they can."""
    try:
        from meshrun.runner.device import cuda
    except ImportError as reason:
        return f"no CuPy: {reason}"
    return None if cuda.count() else "CuPy is here, a GPU is not"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """The world of the ranks that mpirun started."""
    opened = open_world("cuda")
    yield opened
    opened.arrays.close()


@pytest.fixture(scope="module")
def several(world: World) -> World:
    """The same, of two ranks or more."""
    if world.size == 1:
        pytest.skip("needs mpirun -n 2 or more")
    return world


@pytest.fixture
def folder(world: World) -> Iterator[Path]:
    """A folder that all of them see."""
    yield from shared_folder(world, "gpu-")


@pytest.fixture
def context() -> Iterator[Callable[..., Context]]:
    """Makes contexts on the first GPU with two samples; words: fields of the context."""
    from meshrun.runner.device.cuda import CudaBackend

    box = open_box()
    world = single_rank_world(CudaBackend(0))

    def made(**words: Any) -> Context:
        return Context(world, box, 0, samples=2, **words)

    yield made
    box.close()


@pytest.fixture
def broken(tmp_path: Path) -> Callable[..., Callable[..., None]]:
    """Compiles a kernel of jobs/kernels with one line changed: file, instance, line, what it becomes."""

    def compiled(
        file: str, instance: str, line: str, instead: str, options: tuple[str, ...] = ()
    ) -> Callable[..., None]:
        text = (FOLDER / file).read_text()
        assert text.count(line) == 1
        (tmp_path / file).write_text(text.replace(line, instead))
        return meshrun.kernel(tmp_path / file, instance, (f"-I{FOLDER}", *options))

    return compiled
