"""`meshrun.FourierPlan`: Fourier transforms of many arrays of one shape that is split over the ranks."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from meshrun.jobs.transforms.direct_fourier import (
    DirectFourier,
    Planner,
    block_cells,
    device_plan,
    is_compact,
    peer_copies,
    problem_of,
)
from meshrun.runner.errors import UserError
from meshrun.runner.region import Array, Shape
from meshrun.runner.spelling import python_caller
from meshrun.runner.transforms.fourier import Local, Norm, carry_out, check_norm
from meshrun.runner.transforms.peers import find_peers, opened
from meshrun.runner.transforms.plan import Redistribution, Transform, TransformPlan
from meshrun.runner.world.world import World

if TYPE_CHECKING:
    from meshrun.runner.comm.peer_arrays import PeerArrays, PeerCopies

Exchange = Literal["auto", "direct", "messages"]
EXCHANGES = get_args(Exchange)
MEASURED = 2  # transforms in each direction of each exchange, after a first one
# Blocks that a measurement needs: source and result, and what messages are packed into and received in, with
# cuFFT's work areas.
MEMORY = {"direct": 2, "messages": 5}


class FourierPlan:
    """Discrete Fourier transforms along all axes of complex arrays of one shape, as numpy.fft.fftn and ifftn.

    `forward` takes this rank's part of an array that is split along axis 0 and returns its part of the
    result, which is split along axis 1; `inverse` goes back. Each redistributes once, where `meshrun.fft`
    with `keep_order` does so twice. Close the plan on every rank, with `close` or a `with` statement.

    Parameters
    ----------
    world : World
        The ranks.
    shape : sequence of int
        Shape of the whole array, of two axes or more, none empty.
    dtype : dtype
        complex64 or complex128.
    norm : {"backward", "forward", "ortho"}
        Which direction is divided by the number of cells, as of `meshrun.fft`.
    exchange : {"auto", "direct", "messages"}
        How the ranks redistribute. "direct": the GPUs' copy engines send finished parts while later parts are
        still being transformed. Each GPU then keeps room for the whole array or, if that does not fit, for
        two blocks. "messages": in parts, as `meshrun.fft` does. "auto": if both are possible, the faster of
        two transforms that are measured here.

    Attributes
    ----------
    exchange : str
        "direct", "messages" or, of a single rank, "none".
    reason : str
        Why the exchange is not direct, or "".
    seconds : dict
        Seconds of a transform and its inverse, by exchange, if both were measured.

    Raises
    ------
    UserError
        On every rank, for other arguments, and for a direct exchange that is not possible.

    Examples
    --------
    >>> with meshrun.FourierPlan(world, (1024, 1024, 1024), np.complex64) as plan:
    ...     spectrum = plan.forward(block)
    ...     block = plan.inverse(spectrum * filter)
    """

    @python_caller()
    def __init__(
        self,
        world: World,
        shape: Sequence[int],
        dtype: Any = np.complex64,
        *,
        norm: Norm = "backward",
        exchange: Exchange = "auto",
    ) -> None:
        """Plan transforms of arrays of `shape`. Collective."""
        self._world, self._norm, self._closed = world, norm, False
        self.shape, self.dtype = world.collective_call(lambda: _checked(shape, dtype, norm, exchange))
        _agreed(world.control.allgather((self.shape, self.dtype, norm, exchange)))
        self._direct: DirectFourier | None = None
        self.exchange, self.reason, self.seconds = "none", "", dict[str, float]()
        if world.size == 1:
            return
        self.exchange, self.reason = "messages", 'exchange="messages"'
        if exchange == "messages":
            return
        auto, measured = exchange == "auto", dict[str, float]()
        scales = _scales(self.shape, norm)
        measure = partial(self._measure, "messages", measured) if auto else None
        found = open_direct_fourier(world, self.shape, self.dtype, scales, before=measure)
        if not isinstance(found, str):
            self.exchange, self.reason, self._direct = "direct", "", found
            if measured:
                self._measure("direct", measured)
                self._keep_the_faster(found, measured)
        elif auto:
            self.reason = found
        else:
            raise UserError(
                "a direct exchange of transforms is not possible here",
                got=found,
                expected="GPUs of one host that reach each other's memory and have room for the array",
                hint='exchange="auto"',
                everywhere=True,
            )

    def _measure(self, exchange: str, measured: dict[str, float]) -> None:
        """Add the seconds of a transform and its inverse, if the memory is enough for them. Collective.

        Messages are measured before there is a room for the direct exchange: both need much of the memory.
        """
        world = self._world
        needed = MEMORY[exchange] * block_cells(self.shape, world.size) * self.dtype.itemsize
        if _free_memory(world) <= needed:
            return
        total = 0.0
        for split in (0, 1):
            block = world.backend.empty(self._block_shape(split), self.dtype)
            block.fill(1)
            total += min([self._seconds(block, split) for _ in range(MEASURED + 1)][1:])
            del block  # before there is another one
        measured[exchange] = total

    def _seconds(self, block: Array, split: int) -> float:
        """Return the seconds of a transform, of the slowest rank. Collective."""
        world = self._world
        world.backend.synchronize()
        world.control.barrier()
        begin = time.perf_counter()
        self._transformed(block, split)
        world.backend.synchronize()
        seconds: list[float] = world.control.allgather(time.perf_counter() - begin)
        return max(seconds)

    def _keep_the_faster(self, direct: DirectFourier, measured: dict[str, float]) -> None:
        """Keep the exchange that took less time, the direct one if it was not measured. Collective."""
        if "direct" not in measured:
            return
        self.seconds = measured
        direct_ms, messages_ms = (1e3 * self.seconds[one] for one in EXCHANGES[1:])
        if direct_ms > messages_ms:
            direct.close()
            self._direct, self.exchange = None, "messages"
            self.reason = f"messages are faster: {messages_ms:.3g} ms there and back, direct {direct_ms:.3g}"

    def forward(self, block: Array) -> Array:
        """Return this rank's part, along axis 1, of the transform, in the plan's dtype. Collective.

        Parameters
        ----------
        block : numpy.ndarray or cupy.ndarray
            This rank's part along axis 0 (`world.part(shape[0])`), of the plan's dtype. Not changed.

        Raises
        ------
        UserError
            On every rank, for another shape or dtype, and if the plan is closed.
        """
        return self._transformed(block, 0)

    def inverse(self, block: Array) -> Array:
        """Return this rank's part, along axis 0, of the inverse transform, in the plan's dtype. Collective.

        Parameters
        ----------
        block : numpy.ndarray or cupy.ndarray
            This rank's part along axis 1 (`world.part(shape[1])`), of the plan's dtype. Not changed.

        Raises
        ------
        UserError
            On every rank, for another shape or dtype, and if the plan is closed.
        """
        return self._transformed(block, 1)

    def _transformed(self, block: Array, split: int) -> Array:
        if self._closed:
            raise UserError("the Fourier plan is closed", hint="transform inside its `with` statement")
        world = self._world
        world.collective_call(lambda: self._check(block, split))  # a rank that goes on alone waits for ever
        if self._direct is not None:
            block = world.xp.ascontiguousarray(block)
            return self._direct.inverse(block) if split else self._direct.forward(block)
        local = Local(world.xp, bool(split), "", self._norm, 0, world.cores)
        return carry_out(_stages(self.shape, world.size, split), [world], local, block)

    def _check(self, block: Array, split: int) -> None:
        """Raise UserError for a block that is not of the plan."""
        expected = self._block_shape(split)
        if tuple(block.shape) != expected or np.dtype(block.dtype) != self.dtype:
            raise UserError(
                f"rank {self._world.rank}: the block does not fit the plan",
                got=f"{block.dtype} of shape {tuple(block.shape)}",
                expected=f"{self.dtype} of shape {expected}",
            )

    def _block_shape(self, split: int) -> Shape:
        """Return the shape of this rank's part of an array that is split along an axis."""
        part = self._world.part(self.shape[split])
        return (*self.shape[:split], part.stop - part.start, *self.shape[split + 1 :])

    def close(self) -> None:
        """Give the memory back; nothing can be transformed later. Collective."""
        self._closed = True
        if self._direct is not None:
            self._direct.close()
            self._direct = None

    def __enter__(self) -> FourierPlan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:  # else other ranks may not come here
            self.close()


def open_direct_fourier(
    world: World,
    shape: Shape,
    dtype: np.dtype[Any],
    scales: tuple[float, float],
    peers: PeerArrays | None = None,
    plan: Planner = device_plan,
    copies: Callable[[World], PeerCopies] = peer_copies,
    compact: bool | None = None,
    before: Callable[[], None] | None = None,
) -> DirectFourier | str:
    """Return what transforms by copies into other ranks' memory, or why it cannot; the same on every rank.

    Collective. peers, plan, copies: instead of the GPUs' memory, of cuFFT and of the copy engines. compact:
    whether rooms have two blocks instead of the whole array; None: where that does not fit. before: called
    when nothing is known that speaks against it, before any room takes memory.
    """
    free = _free_memory(world)
    problem = problem_of(shape, world.size, dtype.itemsize, free)
    if problem:
        return problem
    memory = find_peers(world) if peers is None else peers
    if isinstance(memory, str):
        return memory
    if before is not None:
        before()
        free = _free_memory(world)  # less than before: messages keep some
        problem = problem_of(shape, world.size, dtype.itemsize, free)
        if problem:
            memory.close()
            return problem
    if compact is None:
        compact = is_compact(shape, world.size, dtype.itemsize, free)
    return opened(
        world, memory, lambda: DirectFourier(world, shape, dtype, scales, memory, plan, copies, compact)
    )


def _free_memory(world: World) -> int:
    """Return the bytes that are free when none are kept, of the rank that has least. Collective."""
    world.backend.release_memory()
    return int(min(world.control.allgather(world.backend.free_memory())))


def _checked(shape: Sequence[int], dtype: Any, norm: str, exchange: str) -> tuple[Shape, np.dtype[Any]]:
    """Return the plan's shape and dtype; UserError for others."""
    check_norm(norm)
    if exchange not in EXCHANGES:
        raise UserError("unknown exchange of a Fourier plan", got=exchange, expected=" or ".join(EXCHANGES))
    try:
        lengths = tuple(map(operator.index, shape))
    except TypeError:
        lengths = ()
    if len(lengths) < 2 or min(lengths) < 1:
        raise UserError(
            "a Fourier plan needs two axes or more, with cells along each",
            got=f"shape {shape}",
            hint="meshrun.fft takes others",
        )
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = None
    if kind not in (np.complex64, np.complex128):
        raise UserError(
            "a Fourier plan transforms complex numbers",
            got=dtype,
            expected="complex64 or complex128",
            hint="meshrun.fft takes others",
        )
    return lengths, kind


def _agreed(plans: Sequence[tuple[Shape, np.dtype[Any], str, str]]) -> None:
    """UserError, on every rank, unless all ranks ask for the same."""
    other = next((rank for rank, plan in enumerate(plans) if plan != plans[0]), None)
    if other is not None:
        shown = ["{1} of shape {0}, {2}, {3}".format(*plans[rank]) for rank in (other, 0)]
        raise UserError(
            "the ranks plan different transforms",
            got=f"{shown[0]} on rank {other}",
            expected=f"{shown[1]}, as on rank 0",
        )


def _scales(shape: Shape, norm: str) -> tuple[float, float]:
    """Return the factors of the transform and of its inverse."""
    cells = math.prod(shape)
    if norm == "ortho":
        return 1 / math.sqrt(cells), 1 / math.sqrt(cells)
    return (1.0, 1 / cells) if norm == "backward" else (1 / cells, 1.0)


def _stages(shape: Shape, ranks: int, split: int) -> TransformPlan:
    """Return the stages of a transform of an array that is split along axis 0, or of one along axis 1."""
    axes = tuple(range(len(shape)))
    if ranks == 1:
        return TransformPlan(shape, (1,), (split,), (Transform(axes, shape),))
    planes, lines = Transform(axes[1:], shape), Transform((0,), shape)
    first, last = (planes, lines) if split == 0 else (lines, planes)
    return TransformPlan(shape, (ranks,), (split,), (first, Redistribution(0, split, 1 - split, shape), last))
