"""Open files, and load this rank's blocks from them to its device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from meshrun.runner.arrays.block_layout import Allocator
from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.halo.exchange import HaloPlan
from meshrun.runner.device.api import Backend
from meshrun.runner.errors import UserError
from meshrun.runner.options.choices import Boundary
from meshrun.runner.options.form import Form
from meshrun.runner.plan.grid import Parts, parts_of, split_over
from meshrun.runner.plan.halo import check_boundary, check_widths, normalize
from meshrun.runner.plan.task import ArrayType, Task
from meshrun.runner.region import Array, HostArray, Region, Shape
from meshrun.runner.report.phases import Phases
from meshrun.runner.spelling import option
from meshrun.runner.storage.formats.registry import (
    BroadcastSource,
    Sink,
    Source,
    SpreadSource,
    decode,
    open_source,
)
from meshrun.runner.system.host_memory import host_memory
from meshrun.runner.world.world import World

STAGE = 64 << 20  # bytes of pinned memory between a file and a GPU


def stages(rows: int, size: int) -> list[tuple[int, int]]:
    """Split `rows`, `size` bytes in total, into (first, last) pieces that pass through pinned memory."""
    step = min(max(STAGE * rows // size, 1), rows)
    return [(first, min(first + step, rows)) for first in range(0, rows, step)]


def load(
    world: World,
    source: str | Path | Source,
    *,
    halo: int | Sequence[int | tuple[int, int]] = 0,
    boundary: Boundary = "reflect",
    cval: float = 0.0,
    split: int | Sequence[int] = 0,
) -> DistributedArray:
    """Return an array that is split over the ranks, read from a file. Collective.

    Each rank reads its part. The halo is not filled until `DistributedArray.exchange`.

    Parameters
    ----------
    world : World
        The ranks.
    source : str, Path or Source
        The file's path, such as "u.npy" or "fields.h5:/u", or what a job gets as its parameter `input`.
    halo : int or sequence
        Cells of other ranks around each rank's own: a number for all axes, or a number or a pair (before,
        after) for each of the first axes.
    boundary : {"reflect", "mirror", "nearest", "constant", "wrap"}
        What the cells beyond the array equal, as for `map_blocks`.
    cval : float
        Their value for "constant".
    split : int or sequence of int
        The axis to split, or the number of parts along each of the first axes, whose product is the number of
        ranks.

    Returns
    -------
    DistributedArray
        Of the file's shape and dtype.

    Raises
    ------
    UserError
        On every rank, for a file that cannot be opened as an array, and for a halo, boundary or split that
        the array cannot have.
    RunError
        On the rank that fails, if the file cannot be read.

    Examples
    --------
    >>> u = meshrun.load(world, "u.npy", halo=1, boundary="nearest")
    >>> u.exchange()
    """
    if isinstance(source, str | Path):
        path = Path(source)
        source = world.on_root(lambda: open_decoded([path])[0])
    opened = source

    def layout() -> HaloPlan:
        partition, widths = split_over(opened.shape, split, world.size), normalize(halo, len(opened.shape))
        check_boundary(boundary)
        check_widths(widths, opened.shape)
        return HaloPlan(partition, world.rank, widths, boundary, cval, padded=True)

    return load_arrays(world, [opened], [world.collective_call(layout)], world.phases)[0]


def open_decoded(
    paths: Sequence[Path], forms: Sequence[Form | None] | None = None, limit: int | None = None
) -> list[Source]:
    """Open arrays; decode those that are pictures, if the memory holds all of them.

    forms: of files without a header. limit: as of `check_decoded`.
    """
    sources = [*map(open_source, paths, forms or [None] * len(paths))]
    check_decoded(sources, limit)
    return [*map(decode, sources)]


def check_decoded(sources: Sequence[Source], limit: int | None, memory: int | None = None) -> None:
    """Raise UserError, before they are decoded, for pictures that together need more memory than there is.

    limit: bytes of host_memory; None if it is not given: all of the host's. memory: bytes of the host, 0 if
    they are not known; None: of this one, or the limit of its container or job.
    """
    pictures = [source for source in sources if source.decoded_bytes]
    needed = sum(source.decoded_bytes for source in pictures)
    names = [str(source.path) for source in pictures]
    if limit is not None and needed > limit:
        need = "needs, which is" if len(names) == 1 else "need, which are"
        raise UserError(
            f"{option('host_memory')} is less than {' and '.join(names)} {need} decoded as a whole",
            got=f"{limit:,} bytes",
            expected=f"at least {needed:,}",
        )
    if limit is not None or not needed:
        return
    memory = host_memory() if memory is None else memory
    if 0 < memory < needed:
        raise UserError(
            f"{' and '.join(names)} {'does' if len(names) == 1 else 'do'} not fit the host's memory",
            got=f"{needed:,} bytes decoded",
            expected=f"at most {memory:,}",
        )


def spread_sources(task: Task, sources: Sequence[Source]) -> list[Source]:
    """Return the sources as arrays with a cell at each position of space; those that are so stay."""
    found: list[Source] = []
    for field, source in zip(task.fields, sources, strict=True):
        if isinstance(source, SpreadSource):
            found.append(source)
        elif field.given is not None:
            found.append(BroadcastSource(source, field.shape))
        elif field.subgrid is not None:
            found.append(SpreadSource(source, field.subgrid, field.shape))
        else:
            found.append(source)
    return found


def planned_type(source: Source) -> ArrayType:
    """Return shape and dtype of an input as a task is planned for it: before it broadcasts."""
    return (source.source if isinstance(source, BroadcastSource) else source).shape, source.dtype


def stored_type(source: Source) -> ArrayType:
    """Return shape and dtype of an input as its file has it."""
    return (source.source if isinstance(source, SpreadSource) else source).shape, source.dtype


def file_chunks(sources: Sequence[Source | Sink]) -> Shape | None:
    """Return the largest chunk shape of the files; None if none is chunked."""
    shapes = [source.chunks for source in sources if source.chunks]
    return max(shapes, key=math.prod, default=None)


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
            block = plan.empty(allocator or world.backend, source.dtype)
            array = DistributedArray(plan, block, world)
            plan.poison(block)
        _read_part(world, source, plan.partition, array.interior, phases)
        arrays.append(array)
    return arrays


def read_block(world: World, source: Source, split: int | Parts = 0) -> Array:
    """Return this rank's block of an array that is split over the ranks, on its device. Collective.

    Parameters
    ----------
    world : World
        The ranks.
    source : Source
        What a job gets as its parameter `input`.
    split : int or Partition
        The axis along which to split the array, or a partition with a part for each rank.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        C-contiguous, with the shape of this rank's part and the source's dtype.

    Raises
    ------
    UserError
        For an axis that the array does not have.
    RunError
        On the rank that fails, if the file cannot be read.

    Examples
    --------
    >>> @meshrun.job
    ... def halved(world, input, create):
    ...     sink = create(input.shape, input.dtype)
    ...     meshrun.write_block(world, meshrun.read_block(world, input) / 2, sink)
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
    # A number has no rows.
    if not region.shape:
        number = np.empty((), core.dtype)
        with phases("read", number.nbytes):
            source.read(region, number)
        _upload(backend, number, core, phases)
        return
    cuts = stages(region.shape[0], core.nbytes)
    with phases("prepare"):
        buffer = backend.host_empty((cuts[0][1], *core.shape[1:]), core.dtype)
    for first, last in cuts:
        host = buffer[: last - first]
        with phases("read", host.nbytes):
            source.read(region.rows(first, last), host)
        _upload(backend, host, core[first:last], phases)
