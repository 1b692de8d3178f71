"""Reduction over a whole array; its bits do not depend on the number of ranks.

The array is cut into tiles whose shape depends only on the array's shape. Each tile gives a small partial
result. Partial results are combined in a binary tree over the tiles' numbers (`arrays.reduce`); each rank has
a contiguous share of the tiles.
"""

from __future__ import annotations

import inspect
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.arrays.load import open_decoded
from meshrun.runner.arrays.reduce import Combine, Subtree, finish, fold
from meshrun.runner.errors import UserError
from meshrun.runner.job.block_context import BlockContext
from meshrun.runner.job.declaration import Job
from meshrun.runner.plan.grid import bounds
from meshrun.runner.region import HostArray, Region, Shape, chunk_region
from meshrun.runner.report.phases import Phases
from meshrun.runner.storage.formats.registry import Source
from meshrun.runner.world.world import World

TILE = 1 << 20  # elements of a tile
AHEAD = 3  # tiles read in advance


def tile_shape(shape: Shape, limit: int) -> Shape:
    """Return the largest box of at most `limit` elements that is contiguous in C order."""
    tile: list[int] = []
    for length in reversed(shape):
        fits = max(limit // math.prod(tile), 1)
        tile.append(max(min(length, fits), 1))
        limit = limit if length <= fits else 0
    return tuple(reversed(tile))


def row_tile(shape: Shape, limit: int) -> Shape:
    """Return a box of whole rows, of at most `limit` elements if that is one row or more."""
    rows = max(limit // max(math.prod(shape[1:]), 1), 1)
    return (max(min(rows, shape[0]), 1), *(max(length, 1) for length in shape[1:]))


def tile_region(shape: Shape, tile: Shape, number: int) -> Region:
    """Return the region of tile `number`, counted in C order."""
    counts = [-(-length // step) for length, step in zip(shape, tile, strict=True)]
    place = np.unravel_index(number, counts) if counts else ()
    return chunk_region(tuple(map(int, place)), tile, shape)


class Tiles:
    """An array in tiles that do not depend on the number of ranks; each rank has a contiguous share.

    Parameters
    ----------
    world : World
        The ranks.
    array : str, Path or Source
        A file's path, which rank 0 opens for all (collective), or an open source, such as a job's `input`.
    phases : Phases, optional
        Where times are added. None: the world's.
    tile : int
        Largest number of elements of a tile.
    whole_rows : bool
        Whether tiles are whole along all axes but the first. They are larger than `tile` if one row is.

    Attributes
    ----------
    shape : tuple of int
        Shape of the array.
    dtype : numpy.dtype
        Dtype of its elements.

    Raises
    ------
    UserError
        On every rank, for a path that cannot be opened as an array.

    Examples
    --------
    >>> with meshrun.open_world() as world:
    ...     largest = meshrun.Tiles(world, "u.npy").reduce(lambda tile: tile.max(), max)
    """

    def __init__(
        self,
        world: World,
        array: Path | str | Source,
        phases: Phases | None = None,
        tile: int = TILE,
        *,
        whole_rows: bool = False,
    ) -> None:
        self.world = world
        self.phases = phases or world.phases
        if isinstance(array, (str, Path)):
            path = Path(array)
            self.source: Source = world.on_root(lambda: open_decoded([path])[0])
        else:
            self.source = array
        self.shape, self.dtype = self.source.shape, self.source.dtype
        self._tile = row_tile(self.shape, tile) if whole_rows else tile_shape(self.shape, tile)
        steps = zip(self.shape, self._tile, strict=True)
        self._count = math.prod(-(-length // step) for length, step in steps) if 0 not in self.shape else 0
        self._first, self._stop = bounds(self._count, world.size, world.rank)
        self._received = {} if self.source.parallel else self._scatter()

    def reduce(self, function: Callable[..., Any], combine: Combine) -> Any:
        """Apply a function to every tile and combine the partial results. Collective.

        Parameters
        ----------
        function : callable
            Gets a device array of at most `tile` elements, valid only during the call. Returns a partial
            result: numbers, NumPy or CuPy arrays, or a tuple, list or dict of these. If it has a parameter
            `here`, it gets a `BlockContext`: the tile's position in the array.
        combine : callable
            (partial, partial) -> partial, on the host; the earlier tile's comes first.

        Returns
        -------
        object
            The combined result, on every rank; None if the array is empty.
        """
        placed = _names_here(function)

        def leaves() -> Iterator[Subtree]:
            for number, block in self._blocks():
                services = {"here": self._context(number)} if placed else {}
                with self.phases("kernel", block.nbytes):
                    partial = to_host(function(block, **services))
                yield Subtree(number, 1, partial)

        roots = fold(leaves(), combine)
        with self.phases("combine"):
            everyone = self.world.control.allgather(roots)
            return finish(fold((root for roots in everyone for root in roots), combine), combine)

    def _context(self, number: int) -> BlockContext:
        world, region = self.world, tile_region(self.shape, self._tile, number)
        ranks, backend = (world.rank, world.size, world.here.host), world.backend
        return BlockContext(*ranks, region.start, region.shape, self.shape, backend.stream, backend.xp)

    def _blocks(self) -> Iterator[tuple[int, Any]]:
        backend = self.world.backend
        size = math.prod(self._tile)
        device = backend.empty((size,), self.dtype) if backend.asynchronous else None
        for number, block in self._read_ahead(size):
            if device is None:
                yield number, block
                continue
            with self.phases("to device", block.nbytes):
                on_device = device[: block.size].reshape(block.shape)
                backend.upload(block, on_device)
            yield number, on_device

    def _read_ahead(self, size: int) -> Iterator[tuple[int, HostArray]]:
        """Yield this rank's tiles on the host, reading the next ones in advance."""
        numbers = range(self._first, self._stop)
        buffers = [
            self.world.backend.host_empty((size,), self.dtype) for _ in range(min(AHEAD + 1, len(numbers)))
        ]
        with ThreadPoolExecutor(AHEAD, "read") as pool:

            def begin(number: int) -> Future[tuple[HostArray, float]]:
                return pool.submit(self._read, number, buffers[number % len(buffers)])

            under_way = deque(begin(number) for number in numbers[:AHEAD])
            try:
                for number in numbers:
                    block, seconds = under_way.popleft().result()
                    self.phases.add("read", seconds, block.nbytes)
                    if number + AHEAD in numbers:
                        under_way.append(begin(number + AHEAD))
                    yield number, block
            finally:
                pool.shutdown(cancel_futures=True)

    def _read(self, number: int, buffer: HostArray) -> tuple[HostArray, float]:
        """Read a tile into `buffer`; return it and the seconds that this took."""
        region = tile_region(self.shape, self._tile, number)
        block = buffer[: region.size].reshape(region.shape)
        begin = time.perf_counter()
        if number in self._received:
            block[...] = self._received[number]
        else:
            self.source.read(region, block)
        return block, time.perf_counter() - begin

    def _scatter(self) -> dict[int, HostArray]:
        """Return this rank's tiles of an array that only rank 0 can read."""
        control = self.world.control
        with self.phases("split"):
            outgoing, incoming, mine = [], [], {}
            if control.rank == 0:
                for rank in range(1, control.size):
                    for number in range(*bounds(self._count, control.size, rank)):
                        part = tile_region(self.shape, self._tile, number)
                        outgoing.append((rank, np.ascontiguousarray(self.source.array[part.slices])))
            else:
                for number in range(self._first, self._stop):
                    mine[number] = np.empty(tile_region(self.shape, self._tile, number).shape, self.dtype)
                    incoming.append((0, mine[number]))
            control.exchange(outgoing, incoming).wait()
        return mine


def reduce_array(world: World, job: Job, parameters: dict[str, Any], tiles: Tiles) -> Any:
    """Return the result of a `reduce_blocks` job, the same on every rank. Collective."""
    check = job.check
    if check is not None:
        world.collective_call(lambda: check(tiles.shape, tiles.dtype, **parameters))
    assert job.combine is not None

    def apply(block: Any, here: BlockContext) -> Any:
        services = {"xp": world.xp, "here": here}
        wanted = {name: service for name, service in services.items() if name in job.services}
        return job.function(block, **wanted, **parameters)

    partial = tiles.reduce(apply, job.combine)
    if partial is None and 0 not in tiles.shape:
        raise UserError(
            f"job {job.name} returned nothing for a block", hint="return a partial result", everywhere=True
        )
    if partial is None:
        raise UserError(
            f"{tiles.source.path} has no values to reduce", got=f"shape {tiles.shape}", everywhere=True
        )
    return job.finish(partial, **parameters) if job.finish else partial


def _names_here(function: Callable[..., Any]) -> bool:
    try:
        return "here" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a built-in function without a signature
        return False


def to_host(partial: Any) -> Any:
    """Copy the arrays of a partial result to host memory."""
    if isinstance(partial, (tuple, list)):
        values = [to_host(value) for value in partial]
        return type(partial)(*values) if hasattr(partial, "_fields") else type(partial)(values)
    if isinstance(partial, dict):
        return {key: to_host(value) for key, value in partial.items()}
    if hasattr(partial, "__cuda_array_interface__"):
        return partial.get()
    return partial.copy() if isinstance(partial, np.ndarray) else partial
