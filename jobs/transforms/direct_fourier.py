"""Fourier transforms of which the GPUs' copy engines carry finished parts to where others continue.

An array of (length, split, ...) cells is split along axis 0 or along axis 1. A transform has two stages, each
along axes that are whole: planes and then lines along axis 0, or, backwards, lines and then planes. Between
them every rank needs something of every other.

Each rank has a room, memory that all ranks can write: of its planes, where they are transformed, and of its
lines. What others need is copied from the one to the other, as rows; nothing is packed. If the room is as
large as the whole array, planes and lines have one place for each cell, so that a rank's own cells never
move. With more than two ranks that is more than a rank needs: where it would not fit, planes and lines lie
behind each other (two blocks), and a rank copies its own cells, too.

    1. An all-reduction of one word. No rank writes into a room before every rank's stream has come here: what
       read the former cells has been issued before, and is done.
    2. The first stage in parts. What a part gives to others is copied, in a stream of its own, while the next
       parts are computed.
    3. All-reductions in the copies' stream. One ends on a rank when every rank has come to it: then all
       copies that were issued before it have arrived.
    4. The second stage in parts, each after the all-reduction behind its last cells.

The links have work from the first part on, and the second stage begins before all has arrived. Forwards, the
first stage computes planes, each of which has cells of all lines: first goes what most of each rank's lines
need (EARLY), part by part, then the rest of all planes for the other lines, while the former are transformed.
Backwards in time that is the way back.

Slower: a function that cuFFT's last kernel calls for each element and that stores into other ranks' memory
(the links have nothing to do in its first kernel, and its stores wait for them), on four GPUs above all;
loading from other ranks' memory in the second stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrun.jobs import kernels
from meshrun.runner.comm.peer_memory import Unreachable
from meshrun.runner.errors import RunError, first_line
from meshrun.runner.plan.grid import bounds
from meshrun.runner.region import Array, Shape
from meshrun.runner.transforms.fourier import Execute
from meshrun.runner.transforms.peers import open_everywhere
from meshrun.runner.world.world import World

if TYPE_CHECKING:
    from meshrun.runner.comm.peer_arrays import PeerArrays, PeerCopies

MOST = 1 << 31  # that an int of CUDA does not hold
C_TYPES = {8: "float2", 16: "double2"}
PARTS = 16  # of the planes
PART_BYTES = 16 << 20  # smaller parts take longer than what is gained by them
# In larger rooms, lines are slower: they have cells in more memory than a GPU has addresses of at hand (in a
# room of 64 GiB on H200, 22 ms instead of 12).
ROOM_BYTES = 48 << 30
# By whether it is the inverse: the share of a rank's lines whose cells go with the planes' parts, and the
# number of parts of the other lines.
EARLY, LATER = (6 / 8, 5 / 8), (2, 3)

Range = tuple[int, int]  # along an axis: start, stop


@dataclass(frozen=True)
class BatchLayout:
    """A batch of complex transforms in memory, as of cuFFT's advanced layout.

    shape: of one transform; of several axes only if both strides are 1. batch: number of transforms. strides:
    elements from a cell to the next along the last axis, in the source and in the result. distance: from one
    transform to the next.
    """

    shape: Shape
    batch: int
    strides: tuple[int, int]
    distance: int


# (layout, dtype, inverse, factor): returns what transforms from one array to another, and multiplies by the
# factor. Raises Unreachable if that is not possible.
Planner = Callable[[BatchLayout, np.dtype[Any], bool, float], Execute]


@dataclass(frozen=True)
class Area:
    """Where cells lie: (i, j) of the first two axes at origin + i pitch + j inner, in elements."""

    origin: int
    pitch: int
    inner: int

    def place(self, i: int, j: int) -> int:
        return self.origin + i * self.pitch + j * self.inner


def block_areas(shape: Shape, ranks: int, rank: int) -> tuple[Area, Area]:
    """Return where cells lie in a rank's block of planes, and in its block of lines."""
    plane, inner = math.prod(shape[1:]), math.prod(shape[2:])
    (first, _), (start, stop) = (bounds(cells, ranks, rank) for cells in shape[:2])
    return Area(-first * plane, plane, inner), Area(-start * inner, (stop - start) * inner, inner)


def room_areas(shape: Shape, ranks: int, rank: int, compact: bool) -> tuple[Area, Area]:
    """Return where cells of planes lie in a rank's room, and those of lines."""
    if not compact:
        whole = Area(0, math.prod(shape[1:]), math.prod(shape[2:]))
        return whole, whole
    planes, lines = block_areas(shape, ranks, rank)
    behind = -(-shape[0] // ranks) * planes.pitch
    return planes, Area(lines.origin + behind, lines.pitch, lines.inner)


def room_cells(shape: Shape, ranks: int, compact: bool) -> int:
    """Return the elements of a room."""
    return 2 * block_cells(shape, ranks) if compact else math.prod(shape)


def block_cells(shape: Shape, ranks: int) -> int:
    """Return the elements of the largest block, of planes or of lines."""
    planes, lines = (-(-cells // ranks) for cells in shape[:2])
    return max(planes * shape[1], shape[0] * lines) * math.prod(shape[2:])


def cufft_plan(layout: BatchLayout, dtype: np.dtype[Any], inverse: bool, factor: float) -> Execute:
    """Return a plan of cuFFT (`Planner`)."""
    from meshrun.runner.device.cufft import StoreFunction, complex_plan

    store = None
    if factor != 1:
        options = (f"-DTYPE={C_TYPES[dtype.itemsize]}", f"-DFACTOR={factor!r}{'f' * (dtype.itemsize == 8)}")
        store = StoreFunction(kernels.FOLDER / "fourier_scale.cuh", "SCALE", options)
    about = (layout.shape, layout.batch, layout.strides, layout.distance)
    try:
        return complex_plan(*about, dtype, inverse, store)
    except RunError as reason:
        raise Unreachable(str(reason)) from reason
    except MemoryError as reason:
        raise Unreachable(f"cuFFT's work areas do not fit: {first_line(reason)}") from reason


def device_plan(layout: BatchLayout, dtype: np.dtype[Any], inverse: bool, factor: float) -> Execute:
    """Return a plan for long lines side by side, if the layout is that, otherwise of cuFFT (`Planner`)."""
    from meshrun.runner.device.fourier_lines import line_plan

    found = None
    if len(layout.shape) == layout.distance == factor == 1:
        found = line_plan(layout.shape[0], layout.batch, layout.strides, dtype, inverse)
    return cufft_plan(layout, dtype, inverse, factor) if found is None else found


def peer_copies(world: World) -> PeerCopies:
    """Return copies by the copy engines of this rank's GPU."""
    from meshrun.runner.comm.peer_arrays import PeerCopies

    return PeerCopies(world.arrays)


class DirectFourier:
    """Transforms of arrays of one shape and dtype. To be closed by `close`."""

    def __init__(
        self,
        world: World,
        shape: Shape,
        dtype: np.dtype[Any],
        scales: tuple[float, float],
        peers: PeerArrays,
        plan: Planner,
        copies: Callable[[World], PeerCopies],
        compact: bool,
    ) -> None:
        """Open the ranks' rooms, and make plans. Collective.

        shape: of two axes or more, with cells on every rank along the first two. scales: factors of the
        results of both directions. compact: whether rooms have two blocks instead of the whole array. Raises
        Unreachable on the ranks where it is not possible.
        """
        self._world, self._peers, self._dtype, self._shape = world, peers, dtype, shape
        ranks, rank = world.size, world.rank
        self._areas = [room_areas(shape, ranks, one, compact) for one in range(ranks)]
        self._block = block_areas(shape, ranks, rank)
        self._room, self._rooms = open_everywhere(world, peers, room_cells(shape, ranks, compact), dtype)
        self._copies, self._word = copies(world), world.xp.zeros(1, np.float32)
        targets = range(
            0 if compact else 1, ranks
        )  # from the rank itself on: each is sent to by one at a time
        self._targets = [(rank + n) % ranks for n in targets]
        block = -(-shape[0] // ranks) * self._block[0].pitch * dtype.itemsize
        self._parts = min(PARTS, max(block // PART_BYTES, 1))
        self._mine = [bounds(cells, ranks, rank) for cells in shape[:2]]
        self._plans: dict[tuple[BatchLayout, bool], Execute] = {}
        for inverse in (False, True):
            planes = [self._planes_layout(one) for one in self._planes(rank)]
            lines = [self._lines_layout(one, inverse) for one in self._lines(rank, inverse)]
            # Of the planes, which are in order in memory: in cuFFT's kernels of lines a factor takes longer.
            for layouts, factor in ((planes, scales[inverse]), (lines, 1.0)):
                for layout in layouts:
                    if layout.batch and (layout, inverse) not in self._plans:
                        self._plans[layout, inverse] = plan(layout, dtype, inverse, factor)

    def forward(self, block: Array) -> Array:
        """Return this rank's part of axis 1 of the transform. Collective.

        block: its part of axis 0, C-contiguous.
        """
        copies, rank = self._copies, self._world.rank
        lines = [self._lines(other, False) for other in range(self._world.size)]
        self._world.arrays.all_reduce(self._word, "max")
        for planes in self._planes(rank):
            self._transform_planes(planes, block, self._room)
            copies.follow()
            for other in self._targets:
                self._send(other, planes, lines[other][0], False)
        arrived = [copies.arrived()]
        for later in range(1, len(lines[rank])):
            for other in self._targets:
                self._send(other, self._mine[0], lines[other][later], False)
            arrived.append(copies.arrived())
        first, last = self._mine[1]
        result = self._world.backend.empty((self._shape[0], last - first, *self._shape[2:]), self._dtype)
        for mark, mine in zip(arrived, lines[rank], strict=True):
            copies.wait(mark)
            self._transform_lines(mine, self._room, result)
        return result

    def inverse(self, block: Array) -> Array:
        """Return this rank's part of axis 0 of the inverse transform. Collective.

        block: its part of axis 1, C-contiguous.
        """
        copies, rank = self._copies, self._world.rank
        early, *later = self._lines(rank, True)
        self._world.arrays.all_reduce(self._word, "max")
        for lines in later:
            self._transform_lines(lines, block, self._room)
            copies.follow()
            for other in self._targets:
                self._send(other, bounds(self._shape[0], self._world.size, other), lines, True)
        self._transform_lines(early, block, self._room)
        copies.follow()
        planes = [self._planes(other) for other in range(self._world.size)]
        arrived = []
        for part in range(self._parts):
            for other in self._targets:
                self._send(other, planes[other][part], early, True)
            arrived.append(copies.arrived())
        first, last = self._mine[0]
        result = self._world.backend.empty((last - first, *self._shape[1:]), self._dtype)
        for mark, mine in zip(arrived, planes[rank], strict=True):
            copies.wait(mark)
            self._transform_planes(mine, self._room, result)
        return result

    def close(self) -> None:
        """Forget the other ranks' memory. Collective."""
        self._peers.close()

    def _planes(self, rank: int) -> list[Range]:
        """Return a rank's planes in parts, as many for every rank; some may be empty."""
        return _divided(*bounds(self._shape[0], self._world.size, rank), self._parts)

    def _lines(self, rank: int, inverse: bool) -> list[Range]:
        """Return, along axis 1, a rank's lines whose cells go part by part, and the others in parts."""
        first, last = bounds(self._shape[1], self._world.size, rank)
        if self._parts == 1:
            return [(first, last)]
        cut = first + round(EARLY[inverse] * (last - first))
        return [(first, cut), *_divided(cut, last, LATER[inverse])]

    def _planes_layout(self, planes: Range) -> BatchLayout:
        return BatchLayout(self._shape[1:], planes[1] - planes[0], (1, 1), self._block[0].pitch)

    def _lines_layout(self, lines: Range, inverse: bool) -> BatchLayout:
        """Return the layout of lines out of the room into a block, or back."""
        room, block = self._areas[self._world.rank][1].pitch, self._block[1].pitch
        batch = (lines[1] - lines[0]) * self._block[1].inner
        return BatchLayout(self._shape[:1], batch, (block, room) if inverse else (room, block), 1)

    def _transform_planes(self, planes: Range, source: Array, out: Array) -> None:
        """Transform planes of a block into the room, or of the room into a block."""
        inverse = source is self._room
        self._transform(self._planes_layout(planes), inverse, (source, out), 0, (planes[0], 0))

    def _transform_lines(self, lines: Range, source: Array, out: Array) -> None:
        """Transform lines of a block into the room, or of the room into a block."""
        inverse = out is self._room
        self._transform(self._lines_layout(lines, inverse), inverse, (source, out), 1, (0, lines[0]))

    def _transform(
        self,
        layout: BatchLayout,
        inverse: bool,
        arrays: tuple[Array, Array],
        stage: int,
        first: tuple[int, int],
    ) -> None:
        """Execute a plan. arrays: source and result. stage: 0: planes, 1: lines. first: the first cell."""
        if layout.batch:
            room, block = self._areas[self._world.rank][stage], self._block[stage]
            places = [(room if array is self._room else block).place(*first) for array in arrays]
            cells = [array.reshape(-1)[place:] for array, place in zip(arrays, places, strict=True)]
            self._plans[layout, inverse](*cells)

    def _send(self, rank: int, planes: Range, lines: Range, inverse: bool) -> None:
        """Copy cells from where this room has them to where the second stage of a rank reads them."""
        rows, wide = planes[1] - planes[0], lines[1] - lines[0]
        if rows and wide:
            size, mine = self._dtype.itemsize, self._world.rank
            ends = [(rank, self._areas[rank][not inverse]), (mine, self._areas[mine][inverse])]
            target, source = (self._rooms[n] + area.place(planes[0], lines[0]) * size for n, area in ends)
            pitches = (ends[0][1].pitch * size, ends[1][1].pitch * size)
            self._copies.rows(target, source, pitches, wide * self._block[0].inner * size, rows)


def _divided(first: int, last: int, parts: int) -> list[Range]:
    cuts = [first + bounds(last - first, parts, part)[0] for part in range(parts)]
    return list(pairwise([*cuts, last]))


def is_compact(shape: Shape, ranks: int, itemsize: int, free: int) -> bool:
    """Return whether the whole array does not fit beside two blocks, or is slower. As `problem_of`."""
    whole, blocks = (cells * itemsize for cells in (math.prod(shape), 2 * block_cells(shape, ranks)))
    return whole > ROOM_BYTES or whole + blocks > free


def problem_of(shape: Shape, ranks: int, itemsize: int, free: int) -> str:
    """Return why arrays of a shape cannot be transformed so; "" if they can.

    itemsize: bytes of a cell. free: bytes of device memory, of the rank that has least.
    """
    if len(shape) > 4:
        return f"cuFFT transforms planes of three axes at most, not of {len(shape) - 1}"
    if min(shape[:2]) < ranks:
        return f"there are {min(shape[:2])} planes or rows for {ranks} ranks"
    if math.prod(shape[1:]) * itemsize >= MOST:
        return f"planes of {math.prod(shape[1:]) * itemsize:,} bytes are larger than CUDA copies in rows"
    needed = 3 * block_cells(shape, ranks) * itemsize  # messages need more than that, too
    if needed > free:
        return f"room for two blocks and a result needs {needed:,} bytes on each GPU; {free:,} are free"
    return ""
