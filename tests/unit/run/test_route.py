"""How long the route of a run is: files of runner/, changes of file, collectives (tests/facts/route.py)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from route import route_of

import meshrun
from meshrun.jobs.filters.laplacian import laplacian
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.execute import Options


@meshrun.map_blocks(halo=1, boundary="nearest")
def heat(t: Any) -> Any:
    """Take one explicit step of heat conduction."""
    return t[1:-1, 1:-1] + 0.2 * (t[2:, 1:-1] + t[:-2, 1:-1] + t[1:-1, 2:] + t[1:-1, :-2] - 4 * t[1:-1, 1:-1])


@meshrun.job
def doubled(world: Any, input: Any, create: Any) -> int:
    """Write twice the input."""
    block = meshrun.read_block(world, input)
    meshrun.write_block(world, 2 * block, create(input.shape, input.dtype))
    return int(block.size)


@dataclass(frozen=True)
class Limits:
    """Most files of runner/, changes of file and collectives."""

    files: int
    changes: int
    collectives: int


RUNS: dict[str, tuple[Any, Options, Limits]] = {
    "in memory": (laplacian, Options(device="cpu"), Limits(35, 270, 8)),
    "20 fused steps": (
        heat,
        Options(device="cpu", fuse="require", steps=StepOptions(20)),
        Limits(49, 585, 14),
    ),
    "streamed": (
        laplacian,
        Options(device="cpu", stream=StreamOptions(chunk_bytes=1 << 16)),
        Limits(56, 660, 14),
    ),
    "job": (doubled, Options(device="cpu"), Limits(27, 175, 12)),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_takes_a_short_route(name: str, tmp_path: Path) -> None:
    job, options, limits = RUNS[name]
    np.save(tmp_path / "in.npy", np.random.default_rng(0).random((96, 128), np.float32))
    # The first run imports modules, plans the task and compiles the kernel.
    _, route = (route_of(job, tmp_path / "in.npy", tmp_path / "out.npy", {}, options) for _ in range(2))
    assert len(route.files) <= limits.files, route
    assert route.changes <= limits.changes, route
    assert sum(route.collectives.values()) <= limits.collectives, route
