"""Streamed runs on simulated ranks, and the cases that they are tried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from queued_device import QueuedBackend, poisoned

import meshrun
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.maps.streamed.cpu_engine import HostEngine
from meshrun.runner.maps.streamed.gpu_engine import DeviceEngine
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.grid import Partition, grid_size, parse_grid
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

STREAM = {field.name for field in fields(StreamOptions)}
Record = dict[str, Any]


def run_on(
    ranks: int,
    job: Any,
    source: Path,
    target: Path | None,
    *,
    devices: list[QueuedBackend] | None = None,
    parameters: dict[str, Any] | None = None,
    **options: Any,
) -> Record:
    """The run's record. devices: of each rank, instead of its CPU. options: of both kinds of options."""
    stream = StreamOptions(**{name: options.pop(name) for name in list(options) if name in STREAM})

    def rank(control: Any) -> Record:
        world = open_world("cpu", control=control)
        if devices is not None:
            world.backend = devices[control.rank]
        chosen = Options(**options, stream=stream)
        return run(job, source, target, parameters or {}, chosen, world=world)

    return run_ranks(ranks, rank)[0]


class PoisoningHost(HostEngine):
    """Nothing is left of a chunk in the memory that the next one gets."""

    def release(self, slot: Any) -> None:
        super().release(slot)
        for memory in (*slot.sources, *slot.targets):
            poisoned(memory)


class PoisoningDevice(DeviceEngine):
    """Likewise."""

    def release(self, slot: Any) -> None:
        super().release(slot)
        for memory in (*slot.device, *slot.source, *slot.target):
            poisoned(memory)


Widths = tuple[tuple[int, int], ...]


def correlated(block: Any, widths: Widths) -> Any:
    """A sum over each cell's neighbours, each with a factor of its own; exact for small whole numbers."""
    shape = tuple(n - low - high for n, (low, high) in zip(block.shape, widths, strict=True))
    total = np.zeros(shape, block.dtype)
    for number, index in enumerate(np.ndindex(*(low + high + 1 for low, high in widths))):
        window = tuple(slice(i, i + n) for i, n in zip(index, shape, strict=True))
        total += block[window] * np.asarray(number % 5 + 1, block.dtype)
    return total


def core(block: Any, widths: Widths) -> Any:
    """A view of the block's own cells."""
    return block[tuple(slice(low, n - high) for n, (low, high) in zip(block.shape, widths, strict=True))]


RETURNED: dict[str, Callable[[Any, Widths], Any]] = {
    "the sum": correlated,
    "another dtype": lambda block, widths: correlated(block, widths).astype(np.complex128),
    "one more axis": lambda block, widths: np.stack([correlated(block, widths), core(block, widths)], -1),
    "columns first": lambda block, widths: np.asfortranarray(correlated(block, widths)),
    "a view": core,
}
# What needs a last axis that is whole in every block.
RETURNED_OF_WHOLE_ROWS: dict[str, Callable[[Any, Widths], Any]] = {
    "one axis less": lambda block, widths: correlated(block, widths).sum(axis=-1),
    "a view from behind": lambda block, widths: core(block, widths)[..., ::-1],
    "no cells": lambda block, widths: core(block, widths)[..., :0],
}
FILLED = {
    "filled": None,
    "filled, declared": lambda shape, dtype: ((*shape, 2), np.dtype(np.complex128)),
}
PLACED = "by place"  # what the function makes of `here`
KINDS = (*RETURNED, *FILLED, PLACED)


def job_of(kind: str, widths: Widths, boundary: str) -> Any:
    declare = meshrun.map_blocks(halo=widths, boundary=boundary, cval=3, out=FILLED.get(kind), name="tried")
    if kind == PLACED:

        def place(block: Any, *, here: meshrun.BlockContext) -> Any:
            assert here.block == core(block, widths).shape
            return here.uniform(seed=3) + correlated(block, widths)

        return declare(place)
    if kind in FILLED:

        def fill(block: Any, *, out: Any) -> None:
            found = correlated(block, widths)
            out[...] = found if FILLED[kind] is None else found[..., np.newaxis]

        return declare(fill)
    function = {**RETURNED, **RETURNED_OF_WHOLE_ROWS}[kind]
    return declare(lambda block: function(block, widths))


@dataclass(frozen=True)
class Case:
    shape: tuple[int, ...]
    dtype: str
    order: Any
    kind: str
    widths: Widths
    boundary: str
    ranks: int
    stream: dict[str, Any]

    @property
    def job(self) -> Any:
        return job_of(self.kind, self.widths, self.boundary)

    def save(self, path: Path) -> None:
        cells = np.arange(int(np.prod(self.shape)), dtype=np.int64)
        array = (cells * 37 % 11).reshape(self.shape).astype(self.dtype)
        np.save(path, np.asarray(array, order=self.order))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.sampled_from([0, 1, 2, 3, 5, 8, 13]) if draw(st.booleans()) else st.integers(2, 9))
                  for _ in range(ndim))  # fmt: skip
    widths = tuple(
        (draw(st.integers(0, min(n, 2))), draw(st.integers(0, min(n, 2)))) if draw(st.booleans()) else (0, 0)
        for n in shape
    )
    ranks = draw(st.integers(1, 3))
    axes = draw(st.integers(0, ndim))
    chosen = draw(st.booleans())  # by the runner, for these ranks; else any number of blocks
    grid = "x".join("0" if chosen else str(draw(st.integers(1, 3))) for _ in range(axes)) or None
    whole_rows = ndim > 1 and widths[-1] == (0, 0) and axes < ndim
    kind = draw(st.sampled_from((*KINDS, *RETURNED_OF_WHOLE_ROWS) if whole_rows else KINDS))
    dtype = draw(st.sampled_from(["u1", "i2", "f4", "f8", "c8", "?", ">f4", ">i2"]))
    stream = {
        "grid": grid,
        "chunk_bytes": draw(st.integers(0, 400)) + least_chunk(shape, widths, np.dtype(dtype), ranks, grid),
        "depth": draw(st.integers(1, 4)),
        "static": draw(st.booleans()),
    }
    order = draw(st.sampled_from("CCF"))
    return Case(shape, dtype, order, kind, widths, draw(st.sampled_from(BOUNDARIES)), ranks, stream)


def least_chunk(
    shape: tuple[int, ...], widths: Widths, dtype: np.dtype[Any], ranks: int, grid: str | None
) -> int:
    """Bytes of one row of the widest block with its halo."""
    grid = grid or "1"
    parts = parse_grid(grid, shape, grid_size(grid) or ranks)
    rows = [(1, *region.shape[1:]) for region in Partition(shape, parts)]
    padded = [[n + low + high for n, (low, high) in zip(row, widths, strict=True)] for row in rows]
    return max(*(int(np.prod(row)) * dtype.itemsize for row in padded), 1)
