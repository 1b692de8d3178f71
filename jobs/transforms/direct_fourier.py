"""Fourier transforms of which each GPU stores results straight into the memory of those that continue.

An array of (length, split, ...) cells is split along axis 0 or along axis 1. A transform has two stages, each
along axes that are whole: planes and then lines along axis 0, or, backwards, lines and then planes. Between
them every rank needs something of every other. Here cuFFT's last kernel of the first stage calls a function
for each element (jobs/kernels/fourier_stores.cuh), which stores it where the second stage will read it:
nothing is packed or copied, and a transform is two calls of cuFFT.

    1. An all-reduction of one word. No rank stores before every rank's stream has come here: what read the
       former results has been issued before, and is done.
    2. The first stage, which stores into the memory of all ranks.
    3. An all-reduction. It ends on a rank when every rank has come here: after all stores.
    4. The second stage, from there into a new array.

Slower on H100s: the first stage in parts, of which some or all are copied by the copy engines beside the next
part; and loading from other ranks' memory in the second stage, as cuFFT loads through a function element by
element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jobs import kernels
from jobs.transforms.direct import PeerBlocks, open_everywhere
from runner.comm.peer_memory import Unreachable
from runner.errors import RunError
from runner.plan.grid import bounds
from runner.region import Array, Shape
from runner.world.world import World

MOST = 1 << 31  # that an int of CUDA does not hold
C_TYPES = {8: "float2", 16: "double2"}

Stage = Literal["planes", "lines"]
Execute = Callable[[Array, Array], None]


@dataclass(frozen=True)
class BatchLayout:
    """A batch of complex transforms in memory, as of cuFFT's advanced layout.

    shape: of one transform; of several axes only if stride is 1. batch: number of transforms. stride:
    elements from a cell to the next along the last axis. distance: from one transform to the next.
    """

    shape: Shape
    batch: int
    stride: int
    distance: int


@dataclass(frozen=True)
class Places:
    """Where fourier_stores.cuh stores elements.

    function: "STORE_PLANES" or "STORE_LINES". constants: its macros. targets: the ranks' addresses, on the
    device.
    """

    function: str
    constants: dict[str, str]
    targets: Array


# (layout, dtype, inverse, places): returns what transforms from one array to another. places: where results
# are stored; the second array is scratch memory then. Raises Unreachable if that is not possible.
Planner = Callable[[BatchLayout, np.dtype[Any], bool, Places | None], Execute]


def cufft_plan(layout: BatchLayout, dtype: np.dtype[Any], inverse: bool, places: Places | None) -> Execute:
    """Return a plan of cuFFT (`Planner`)."""
    from runner.device.cufft import StoreFunction, complex_plan

    store = None
    if places is not None:
        options = tuple(f"-D{name}={value}" for name, value in places.constants.items())
        path = kernels.FOLDER / "fourier_stores.cuh"
        store = StoreFunction(path, places.function, options, places.targets)
    try:
        return complex_plan(layout.shape, layout.batch, layout.stride, layout.distance, dtype, inverse, store)
    except RunError as reason:
        raise Unreachable(str(reason)) from reason


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
    ) -> None:
        """Open the ranks' memory, and make plans. Collective.

        shape: of two axes or more, with cells on every rank along the first two. scales: factors of the
        results of both directions. Raises Unreachable on the ranks where it is not possible.
        """
        self._world, self._peers, self._dtype = world, peers, dtype
        size, rank = world.size, world.rank
        inner = math.prod(shape[2:])
        rows, columns = (bounds(n, size, rank) for n in shape[:2])
        self._mine: dict[Stage, Shape] = {
            "planes": (rows[1] - rows[0], *shape[1:]),
            "lines": (shape[0], columns[1] - columns[0], *shape[2:]),
        }
        # Every rank has room for the elements of rank 0, which has most.
        most = max(-(-shape[0] // size) * shape[1], shape[0] * -(-shape[1] // size)) * inner
        self._received, targets = open_everywhere(world, peers, most, dtype)
        self._targets = world.xp.asarray(np.array(targets, np.uint64))
        self._word = world.xp.zeros(1, np.float32)
        lines = self._mine["lines"][1] * inner
        layouts: dict[Stage, BatchLayout] = {
            "planes": BatchLayout(shape[1:], self._mine["planes"][0], 1, shape[1] * inner),
            "lines": BatchLayout(shape[:1], lines, lines, 1),
        }
        offset = "unsigned" if most < 2 * MOST else "unsigned long long"
        numbers = {
            "LENGTH": f"{shape[0]}u", "SPLIT": f"{shape[1]}u", "INNER": f"{inner}u", "RANKS": f"{size}u",
            "RANK": f"{rank}u", "INDEX": offset, "TYPE": C_TYPES[dtype.itemsize],
        }  # fmt: skip
        self._first, self._last = dict[Stage, Execute](), dict[Stage, Execute]()
        stages: tuple[Stage, Stage] = ("planes", "lines")  # of which the first one begins forwards
        for stage, scale in zip(stages, scales, strict=True):
            constants = {**numbers, "SCALE": f"{scale!r}{'f' if dtype.itemsize == 8 else ''}"}
            places = Places(f"STORE_{stage.upper()}", constants, self._targets)
            self._first[stage] = plan(layouts[stage], dtype, stage == "lines", places)
            self._last[stage] = plan(layouts[stage], dtype, stage == "planes", None)

    def forward(self, block: Array) -> Array:
        """Return this rank's part of axis 1 of the transform. Collective.

        block: its part of axis 0, C-contiguous.
        """
        return self._transform("planes", "lines", block)

    def inverse(self, block: Array) -> Array:
        """Return this rank's part of axis 0 of the inverse transform. Collective.

        block: its part of axis 1, C-contiguous.
        """
        return self._transform("lines", "planes", block)

    def _transform(self, first: Stage, last: Stage, block: Array) -> Array:
        scratch = self._world.backend.empty(block.shape, self._dtype)  # for what is between cuFFT's kernels
        self._world.arrays.all_reduce(self._word, "max")
        self._first[first](block, scratch)
        self._world.arrays.all_reduce(self._word, "max")
        result = self._world.backend.empty(self._mine[last], self._dtype)
        self._last[last](self._received, result)
        return result

    def close(self) -> None:
        """Forget the other ranks' memory. Collective."""
        self._peers.close()


def problem_of(shape: Shape, ranks: int) -> str:
    """Return why arrays of a shape cannot be transformed so; "" if they can."""
    if len(shape) > 4:
        return f"cuFFT transforms planes of three axes at most, not of {len(shape) - 1}"
    if min(shape[:2]) < ranks:
        return f"there are {min(shape[:2])} planes or rows for {ranks} ranks"
    if math.prod(shape[1:]) >= MOST:
        return "planes have more elements than cuFFT's plans count"
    return ""
