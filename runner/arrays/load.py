"""Load this rank's blocks from files to its device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshrun.runner.arrays.block_layout import Allocator
from meshrun.runner.arrays.distributed_array import DistributedArray, empty_array
from meshrun.runner.arrays.halo.exchange import HaloPlan
from meshrun.runner.device.api import Backend
from meshrun.runner.plan.grid import Parts, parts_of
from meshrun.runner.region import Array, HostArray, Region
from meshrun.runner.report.phases import Phases
from meshrun.runner.storage.formats.registry import Source
from meshrun.runner.world.world import World

STAGE = 64 << 20  # bytes of pinned memory between a file and a GPU


def stages(rows: int, size: int) -> list[tuple[int, int]]:
    """Split `rows`, `size` bytes in total, into (first, last) pieces that pass through pinned memory."""
    step = min(max(STAGE * rows // size, 1), rows)
    return [(first, min(first + step, rows)) for first in range(0, rows, step)]


def load_arrays(
    world: World,
    sources: Sequence[Source],
    plans: Sequence[HaloPlan],
    phases: Phases,
    allocator: Allocator | None = None,
) -> list[DistributedArray]:
    """Return arrays with this rank's cells read and its halo poisoned, one for each plan. Collective.

    allocator: of the blocks; by default the back end.
    """
    arrays = []
    for source, plan in zip(sources, plans, strict=True):
        with phases("prepare"):
            array = empty_array(world, plan, source.dtype, allocator)
            plan.poison(array.block)
        _read_part(world, source, plan.partition, array.own, phases)
        arrays.append(array)
    return arrays


def read_block(world: World, source: Source, split: int | Parts = 0) -> Array:
    """Return this rank's block of an array that is split over the ranks, on its device. Collective.

    source: what a job gets as its parameter `input`. split: the axis along which to split the array, or a
    partition with a part for each rank. The block has the shape of this rank's part and the source's dtype,
    and is C-contiguous. Raises UserError for an axis that the array does not have, and RunError, on the rank
    that fails, if the file cannot be read.
    """
    partition = parts_of(source.shape, split, world.size)
    block = world.backend.empty(partition[world.rank].shape, source.dtype)
    _read_part(world, source, partition, block, world.phases)
    return block


def _read_part(world: World, source: Source, partition: Parts, core: Array, phases: Phases) -> None:
    """Fill `core`, which is on the device, with this rank's part. Collective."""
    if not source.parallel:
        scattered = _scatter(world, source, partition, phases)
        if world.backend.asynchronous:
            _upload(world.backend, scattered, core, phases)
        else:
            core[...] = scattered
    elif world.backend.asynchronous:
        _upload_file(world.backend, source, partition[world.rank], core, phases)
    else:
        with phases("read", core.nbytes):
            source.read(partition[world.rank], core)


def _scatter(world: World, source: Source, partition: Parts, phases: Phases) -> HostArray:
    """Return this rank's part of an array that only rank 0 can read."""
    control = world.control
    mine = np.empty(partition[world.rank].shape, source.dtype)
    if control.rank == 0:
        with phases("read", mine.nbytes):
            source.read(partition[0], mine)
    if control.size == 1:
        return mine
    with phases("split", mine.nbytes):
        if control.rank > 0:
            control.exchange([], [(0, mine)]).wait()
        else:
            others = range(1, control.size)
            parts = [(rank, np.ascontiguousarray(source.array[partition[rank].slices])) for rank in others]
            control.exchange(parts, []).wait()
    return mine


def _upload(backend: Backend, host: HostArray, core: Array, phases: Phases) -> None:
    """Copy to the device through a contiguous array there if `core` is not contiguous."""
    with phases("to device", host.nbytes):
        if core.flags.c_contiguous:
            backend.upload(host, core)
        else:
            staged = backend.empty(core.shape, core.dtype)
            backend.upload(host, staged)
            core[...] = staged


def _upload_file(backend: Backend, source: Source, region: Region, core: Array, phases: Phases) -> None:
    """Read and upload in pieces of rows through one pinned buffer."""
    if region.size == 0:
        return
    cuts = stages(region.shape[0], core.nbytes)
    with phases("prepare"):
        buffer = backend.host_empty((cuts[0][1], *core.shape[1:]), core.dtype)
    for first, last in cuts:
        host = buffer[: last - first]
        with phases("read", host.nbytes):
            source.read(region.rows(first, last), host)
        _upload(backend, host, core[first:last], phases)
