"""Fourier transforms of which the GPUs' copy engines carry finished parts to where others continue.

An array of (length, split, ...) cells is split along axis 0 or along axis 1. A transform has two stages, each
along axes that are whole: planes and then lines along axis 0, or, backwards, lines and then planes. Between
them every rank needs something of every other.

Each rank has room for the whole array, and uses that of its planes and its lines. A cell has the same place
in all rooms: the first stage writes where the second one reads, so that a rank's own cells never move, and
what others need is copied to the same place of their rooms. Nothing is packed.

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
from typing import Any, Protocol

import numpy as np

from jobs import kernels
from jobs.transforms.direct import PeerBlocks, open_everywhere
from runner.comm.peer_memory import Unreachable
from runner.device.api import Mark
from runner.errors import RunError
from runner.plan.grid import bounds
from runner.region import Array, Shape
from runner.world.world import World

MOST = 1 << 31  # that an int of CUDA does not hold
C_TYPES = {8: "float2", 16: "double2"}
PARTS = 16  # of the planes
PART_BYTES = 16 << 20  # smaller parts take longer than what is gained by them
# By whether it is the inverse: the share of a rank's lines whose cells go with the planes' parts, and the
# number of parts of the other lines.
EARLY, LATER = (6 / 8, 5 / 8), (2, 3)

Range = tuple[int, int]  # along an axis: start, stop
Execute = Callable[[Array, Array], None]


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


class RankCopies(Protocol):
    """Copies to other ranks beside the computation; of GPUs, `runner.comm.peer_arrays.PeerCopies`."""

    def follow(self) -> None:
        """Let later copies wait for all that has been issued so far."""

    def rows(self, target: int, source: int, pitch: int, width: int, rows: int) -> None:
        """Copy `rows` rows of `width` bytes. target, source: addresses; pitch: bytes between rows in both."""

    def arrived(self) -> Mark:
        """Return a mark that is passed after all copies so far of all ranks. Collective."""

    def wait(self, mark: Mark) -> None:
        """Let later work, but for copies, wait for `mark`."""


def cufft_plan(layout: BatchLayout, dtype: np.dtype[Any], inverse: bool, factor: float) -> Execute:
    """Return a plan of cuFFT (`Planner`)."""
    from runner.device.cufft import StoreFunction, complex_plan

    store = None
    if factor != 1:
        options = (f"-DTYPE={C_TYPES[dtype.itemsize]}", f"-DFACTOR={factor!r}{'f' * (dtype.itemsize == 8)}")
        store = StoreFunction(kernels.FOLDER / "fourier_scale.cuh", "SCALE", options)
    about = (layout.shape, layout.batch, layout.strides, layout.distance)
    try:
        return complex_plan(*about, dtype, inverse, store)
    except RunError as reason:
        raise Unreachable(str(reason)) from reason


def peer_copies(world: World) -> RankCopies:
    """Return copies by the copy engines of this rank's GPU."""
    from runner.comm.peer_arrays import PeerCopies

    return PeerCopies(world.arrays)


class DirectFourier:
    """Transforms of arrays of one shape and dtype. To be closed by `close`."""

    def __init__(
        self,
        world: World,
        shape: Shape,
        dtype: np.dtype[Any],
        scales: tuple[float, float],
        peers: PeerBlocks,
        plan: Planner,
        copies: Callable[[World], RankCopies],
    ) -> None:
        """Open the ranks' rooms, and make plans. Collective.

        shape: of two axes or more, with cells on every rank along the first two. scales: factors of the
        results of both directions. Raises Unreachable on the ranks where it is not possible.
        """
        self._world, self._peers, self._dtype, self._shape = world, peers, dtype, shape
        self._plane, self._inner = math.prod(shape[1:]), math.prod(shape[2:])
        self._room, self._rooms = open_everywhere(world, peers, math.prod(shape), dtype)
        self._copies, self._word = copies(world), world.xp.zeros(1, np.float32)
        self._others = [(world.rank + n) % world.size for n in range(1, world.size)]  # each is sent to by one
        block = -(-shape[0] // world.size) * self._plane * dtype.itemsize
        self._parts = min(PARTS, max(block // PART_BYTES, 1))
        self._mine = [bounds(cells, world.size, world.rank) for cells in shape[:2]]
        self._plans: dict[tuple[BatchLayout, bool], Execute] = {}
        for inverse in (False, True):
            planes = [self._planes_layout(one) for one in self._planes(world.rank)]
            lines = [self._lines_layout(one, inverse) for one in self._lines(world.rank, inverse)]
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
            for other in self._others:
                self._send(other, planes, lines[other][0])
        arrived = [copies.arrived()]
        for later in range(1, len(lines[rank])):
            for other in self._others:
                self._send(other, self._mine[0], lines[other][later])
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
            for other in self._others:
                self._send(other, bounds(self._shape[0], self._world.size, other), lines)
        self._transform_lines(early, block, self._room)
        copies.follow()
        planes = [self._planes(other) for other in range(self._world.size)]
        arrived = []
        for part in range(self._parts):
            for other in self._others:
                self._send(other, planes[other][part], early)
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
        return BatchLayout(self._shape[1:], planes[1] - planes[0], (1, 1), self._plane)

    def _lines_layout(self, lines: Range, inverse: bool) -> BatchLayout:
        """Return the layout of lines out of the room into a block, or back."""
        wide = (self._mine[1][1] - self._mine[1][0]) * self._inner
        strides = (wide, self._plane) if inverse else (self._plane, wide)
        return BatchLayout(self._shape[:1], (lines[1] - lines[0]) * self._inner, strides, 1)

    def _transform_planes(self, planes: Range, source: Array, out: Array) -> None:
        """Transform planes of a block into the room, or of the room into a block."""
        first, start = planes[0], self._mine[0][0]
        layout = self._planes_layout(planes)
        self._transform(layout, source is self._room, source, out, first * self._plane, start * self._plane)

    def _transform_lines(self, lines: Range, source: Array, out: Array) -> None:
        """Transform lines of a block into the room, or of the room into a block."""
        inverse, first, start = out is self._room, lines[0], self._mine[1][0]
        layout = self._lines_layout(lines, inverse)
        self._transform(layout, inverse, source, out, first * self._inner, start * self._inner)

    def _transform(
        self, layout: BatchLayout, inverse: bool, source: Array, out: Array, place: int, start: int
    ) -> None:
        """Execute a plan. place: of the first cell in the room; start: of a block's first cell there."""
        if layout.batch:
            cells = [
                array.reshape(-1)[place if array is self._room else place - start :]
                for array in (source, out)
            ]
            self._plans[layout, inverse](*cells)

    def _send(self, rank: int, planes: Range, lines: Range) -> None:
        """Copy cells of this room to the same place of another rank's."""
        rows, wide = planes[1] - planes[0], lines[1] - lines[0]
        if rows and wide:
            size = self._dtype.itemsize
            place = (planes[0] * self._plane + lines[0] * self._inner) * size
            source, target = (self._rooms[one] + place for one in (self._world.rank, rank))
            self._copies.rows(target, source, self._plane * size, wide * self._inner * size, rows)


def _divided(first: int, last: int, parts: int) -> list[Range]:
    cuts = [first + bounds(last - first, parts, part)[0] for part in range(parts)]
    return list(pairwise([*cuts, last]))


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
    needed = (shape[0] + 2 * -(-shape[0] // ranks)) * math.prod(shape[1:]) * itemsize
    if needed > free:
        return f"the whole array and two blocks need {needed:,} bytes on each GPU; {free:,} are free"
    return ""
