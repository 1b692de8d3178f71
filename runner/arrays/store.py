"""Choose the files of results, and store what a device has computed in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.load import stages
from meshrun.runner.comm.api import Control
from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import Parts, parts_of
from meshrun.runner.plan.task import ArrayType, Task
from meshrun.runner.region import Array, HostArray, Region, Shape, Subgrid, packed
from meshrun.runner.report.phases import Phases
from meshrun.runner.storage.formats.registry import Sink, SpreadSink, check_output, create, open_sink
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.world.world import World


class Store:
    """Store this rank's part of an array that is split over the ranks, piece by piece.

    part: returns a rank's region of the array. known: its shape and dtype.

    Pieces are written at once if the sink accepts any region. If not (images, chunked formats), they are
    kept until the end, when rank 0 gathers and writes them.
    """

    def __init__(
        self, world: World, sink: Sink, part: Callable[[int], Region], known: ArrayType, phases: Phases
    ) -> None:
        self.world, self.sink, self.phases = world, sink, phases
        self.shape, dtype = known
        self.part, self.region = part, part(world.rank)
        anywhere = sink.parallel and sink.chunks is None
        self._kept = None if anywhere else np.empty(self.region.shape, dtype)
        self._buffer: HostArray | None = None

    def put(self, region: Region, result: Array) -> None:
        """Store `result`, a device array, as `region` of the output."""
        if result.size == 0:
            return
        if not self.shape and self.world.rank and self._kept is None:
            return  # a value, which rank 0 writes
        if not self.region.shape:
            self._keep(region, self._download(result) if self.world.backend.asynchronous else result)
            return
        if not self.world.backend.asynchronous:
            self._keep(region, result)
            return
        for first, last in stages(region.shape[0], result.nbytes):
            self._keep(region.rows(first, last), self._download(result[first:last]))

    def finish(self) -> None:
        """Wait until the file is complete. Collective."""
        if self._kept is not None:
            self._gather(self._kept)
        # Another host may read the file, or this one may fail.
        if len(self.world.hosts) > 1 and (self.sink.parallel or self.world.rank == 0):
            with self.phases("write"):
                self.sink.sync()
        self.world.control.barrier()

    def _keep(self, region: Region, host: HostArray) -> None:
        with self.phases("write", host.nbytes):
            if self._kept is None:
                self.sink.write(region, host)
            else:
                inside = [
                    slice(a - o, b - o)
                    for a, b, o in zip(region.start, region.stop, self.region.start, strict=True)
                ]
                self._kept[tuple(inside)] = host

    def _download(self, piece: Array) -> HostArray:
        with self.phases("from device", piece.nbytes):
            if self._buffer is None or self._buffer.size < piece.size:
                self._buffer = self.world.backend.host_empty((piece.size,), np.dtype(piece.dtype))
            host: HostArray = self._buffer[: piece.size].reshape(piece.shape)
            self.world.backend.download(packed(piece), host)
        return host

    def _gather(self, mine: HostArray) -> None:
        whole: HostArray | None = mine
        if self.world.size > 1:
            regions = [self.part(rank) for rank in range(self.world.size)]
            with self.phases("gather", mine.nbytes):
                whole = gather(self.world.control, mine, regions, self.shape)
        if whole is not None:
            with self.phases("write", whole.nbytes):
                self.sink.write(Region((0,) * whole.ndim, whole.shape), whole)


def open_sinks(task: Task, targets: Sequence[Path], run_id: str) -> list[Sink]:
    """Return a sink for each result of a task, which are known."""
    pairs = zip(targets, task.known, strict=False)  # the last targets may be of series
    if task.job.sizes is None:
        return [open_sink(target, *known, run_id) for target, known in pairs]
    return [
        open_spread(target, task.subgrid(number), known, run_id)
        for number, (target, known) in enumerate(pairs)
    ]


def open_spread(path: Path, subgrid: Subgrid | None, known: ArrayType, run_id: str) -> Sink:
    """Return a sink for an array of `known` shape and dtype, which stores the cells of a subgrid.

    subgrid: None: all.
    """
    shape, dtype = known
    if subgrid is None:
        return open_sink(path, shape, dtype, run_id)
    return cast(Sink, SpreadSink(open_sink(path, subgrid.shape, dtype, run_id), subgrid, shape))


def store_of(world: World, task: Task, sink: Sink, phases: Phases, number: int) -> Store:
    """Return what stores this rank's part of a task's output `number`."""

    def part(rank: int) -> Region:
        return task.output_region(task.partition[rank], number)

    return Store(world, sink, part, task.known[number], phases)


def write_block(world: World, block: Array, sink: Sink, split: int | Parts = 0) -> None:
    """Write this rank's block of an array that is split over the ranks. Collective.

    Parameters
    ----------
    world : World
        The ranks.
    block : numpy.ndarray or cupy.ndarray
        This rank's part, of CuPy on a GPU rank, with the sink's dtype.
    sink : Sink
        Of the whole array, from a job's parameter `create`.
    split : int or Partition
        The axis along which the array is split, or its partition with a part for each rank.

    Raises
    ------
    UserError
        For an axis that the array does not have and, on every rank, for a block of another shape or dtype.
    RunError
        If the file cannot be written.

    Examples
    --------
    >>> meshrun.write_block(world, block, create(input.shape, block.dtype))
    """
    partition = parts_of(sink.shape, split, world.size)
    part = partition[world.rank]
    world.collective_call(lambda: _check_block(block, part, sink))
    store = Store(world, sink, partition.__getitem__, (sink.shape, sink.dtype), world.phases)
    world.collective_call(lambda: store.put(part, block))
    store.finish()
    world.collective_call(sink.sync)


def save(world: World, target: str | Path | Sink, array: DistributedArray) -> None:
    """Write an array that is split over the ranks. Collective.

    Parameters
    ----------
    world : World
        The ranks.
    target : str, Path or Sink
        The path of a new file, or what a job's parameter `create` has returned. A file is written under a
        temporary name and renamed when it is complete; a file of that name is replaced then.
    array : DistributedArray
        From `load`, or made from such an array.

    Raises
    ------
    UserError
        On every rank, for a format that cannot store the array, or a sink of another shape or dtype.
    RunError
        On every rank, if the file cannot be written.

    Examples
    --------
    >>> meshrun.save(world, "u.npy", u)
    """
    if not isinstance(target, str | Path):
        write_block(world, array.interior, target, array.partition)
        return
    path, transaction = Path(target), OutputTransaction()

    def created() -> Sink:
        check_output(path, alone=True)
        sink = open_sink(path, array.shape, array.dtype, world.run_id)
        transaction.lock(sink.path)
        transaction.track_partial(sink.partial)
        create([sink])
        return sink

    try:
        sink = world.on_root(created)
        write_block(world, array.interior, sink, array.partition)
        world.on_root(lambda: transaction.commit(sink.partial, sink.path))
        transaction.forget_partial()
    finally:
        transaction.roll_back()


def _check_block(block: Array, part: Region, sink: Sink) -> None:
    if not hasattr(block, "shape") or not hasattr(block, "dtype"):
        raise UserError("a block is not an array", got=type(block).__name__, hint="world.xp.asarray(block)")
    if tuple(block.shape) != part.shape or np.dtype(block.dtype) != sink.dtype:
        raise UserError(
            f"a block does not fit its part {part} of {sink.path}",
            got=f"{block.dtype} of shape {tuple(block.shape)}",
            expected=f"{sink.dtype} of shape {part.shape}",
        )


def gather(control: Control, mine: HostArray, regions: Sequence[Region], shape: Shape) -> HostArray | None:
    """Return the array of `shape` that the ranks' parts fill, on rank 0; None on other ranks. Collective.

    regions: of each rank's part.
    """
    if control.rank > 0:
        control.exchange([(0, mine)] if mine.size else [], []).wait()
        return None
    if control.size == 1:
        return mine
    parts = [mine, *(np.empty(region.shape, mine.dtype) for region in regions[1:])]
    control.exchange([], [(rank, part) for rank, part in enumerate(parts) if rank and part.size]).wait()
    whole = np.empty(shape, mine.dtype)
    for region, part in zip(regions, parts, strict=True):
        whole[region.slices] = part
    return whole
