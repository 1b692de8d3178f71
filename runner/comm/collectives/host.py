"""Memory, arithmetic and timing shared by the collectives in host memory."""

from __future__ import annotations

import dataclasses
import mmap
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np

from meshrun.runner.comm.api import UFUNCS
from meshrun.runner.comm.collectives.api import Buffer, Call, Datatype, Function, Pointer, premultiplier
from meshrun.runner.device.api import POISON
from meshrun.runner.errors import UserError
from meshrun.runner.region import Array, address_of
from meshrun.runner.spelling import option

COMBINE = {**{name: getattr(np, ufunc) for name, ufunc in UFUNCS.items()}, "avg": np.add, "mulsum": np.add}
# A timed loop reduces its own results repeatedly: they overflow, and are never read.
_ignore_overflow = np.errstate(all="ignore")


@dataclasses.dataclass(frozen=True)
class AlignedBuffer:
    """Page-aligned memory. array: all of it, flat uint8."""

    array: Array

    @property
    def address(self) -> int:
        return address_of(self.array)

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)


def allocate(nbytes: int) -> AlignedBuffer:
    """Page-aligned memory with every page written. Raises MemoryError.

    Unwritten pages all map to one page of zeros, which stays in the cache: reading them measures nothing.
    """
    if nbytes > sys.maxsize - mmap.PAGESIZE:
        raise MemoryError(f"{nbytes} bytes exceed the address space")
    raw = np.empty(nbytes + mmap.PAGESIZE, np.uint8)
    raw.fill(POISON)
    begin = -raw.ctypes.data % mmap.PAGESIZE
    return AlignedBuffer(raw[begin : begin + nbytes])


def elements(pointer: Pointer, count: int, datatype: Datatype) -> Array:
    """`count` elements starting at `pointer`, as a flat array of their own dtype."""
    return pointer.bytes(count * datatype.itemsize).view(datatype.dtype)


@_ignore_overflow
def combine(ufunc: np.ufunc, total: Array, part: Array) -> None:
    """total = ufunc(total, part), each element rounded to its own type."""
    ufunc(total, part, out=total)


@_ignore_overflow
def _multiply(source: Array, factor: int, target: Array) -> None:
    np.multiply(source, source.dtype.type(factor), out=target)


@_ignore_overflow
def average(total: Array, ranks: int) -> None:
    """Divide in place by the number of ranks: integers rounded down, floats to the nearest."""
    # In a wider type, which can represent the number of ranks.
    if total.dtype.kind in "iu":
        wide = total.dtype if total.dtype.itemsize == 8 else np.dtype(np.int64)
        np.floor_divide(total, wide.type(ranks), out=total, dtype=wide, casting="unsafe")
    else:
        wide = np.dtype(np.float32 if total.dtype == np.float32 else np.float64)
        np.divide(total, wide.type(ranks), out=total, dtype=wide, casting="unsafe")


class Scratch:
    """Scratch memory, shared by all calls of a rank, which run one after another."""

    def __init__(self, allocate: Callable[[int], AlignedBuffer] = allocate) -> None:
        self._allocate = allocate
        self._buffers: dict[str, AlignedBuffer] = {}

    def pointer(self, use: str, nbytes: int) -> Pointer:
        """At least `nbytes` bytes; the same memory for every call with this `use`."""
        known = self._buffers.get(use)
        if known is None or known.nbytes < nbytes:
            known = self._buffers[use] = self._allocate(nbytes)
        return Pointer(known)


def premultiplied(call: Call, rank: int, count: int, scratch: Scratch) -> tuple[list[Function], Call]:
    """For mulsum: the step that writes the scaled elements to scratch, and the call that sends them from
    there."""
    if call.reduction != "mulsum":
        return [], call
    product = scratch.pointer("product", count * call.datatype.itemsize)
    source, target = (elements(pointer, count, call.datatype) for pointer in (call.send, product))
    fill = partial(_multiply, source, premultiplier(rank), target)
    return [fill], dataclasses.replace(call, send=product, in_place=False)


def averaged(call: Call, ranks: int) -> list[Function]:
    """For avg: the step that divides the sums in the receive buffer."""
    if call.reduction != "avg":
        return []
    return [partial(average, elements(call.recv, call.count, call.datatype), ranks)]


def copied(target: Array, source: Array) -> list[Function]:
    """The step that copies bytes; none if source and target are the same memory."""
    return [] if address_of(target) == address_of(source) else [partial(np.copyto, target, source)]


def in_turn(steps: Sequence[Function]) -> Function:
    """All steps as one function; a single step is returned unchanged."""
    if len(steps) == 1:
        return steps[0]

    def run() -> None:
        for step in steps:
            step()

    return run


class HostMark:
    """A time of the host's clock. seconds: of time.perf_counter, once recorded."""

    __slots__ = ("seconds",)
    seconds: float

    def record(self) -> None:
        self.seconds = time.perf_counter()


class HostMemory:
    """The part of `Collectives` that is alike for all calls in host memory.

    The method `_NAME` of a subclass returns the steps of the operation NAME.
    """

    asynchronous = False
    library = 0

    def __init__(self) -> None:
        self.scratch = Scratch()

    def allocate(self, nbytes: int) -> AlignedBuffer:
        return allocate(nbytes)

    def register(self, buffer: Buffer, how: int) -> None:
        raise UserError(
            "host memory cannot be registered: registration needs NCCL and GPUs",
            got=f"-R {how}",
            hint=f"without -R, or with {option('device', 'cuda')}",
            everywhere=True,
        )

    def bind(self, call: Call) -> Function:
        steps: list[Function] = getattr(self, f"_{call.operation}")(call)
        return in_turn(steps)

    def grouped(self, calls: Sequence[Function]) -> Function:
        return in_turn(calls)

    def warm_up(self) -> None:
        pass  # calls are synchronous

    def packed(self, calls: Sequence[Function]) -> Sequence[Function]:
        return calls

    def captured(self, calls: Sequence[Function]) -> Function:
        raise UserError(
            "calls in host memory cannot be captured: graphs need a GPU",
            hint=f"without -G, or with {option('device', 'cuda')}",
            everywhere=True,
        )

    def marks(self, count: int) -> list[HostMark]:
        return [HostMark() for _ in range(count)]

    def elapsed(self, begin: HostMark, end: HostMark) -> float:
        return end.seconds - begin.seconds

    def passed(self, mark: HostMark) -> bool:
        return True

    def observed(self) -> nullcontext[None]:
        return nullcontext()

    def wait(self, poll: Callable[[], object] | None = None) -> None:
        pass  # a call returns when it is done
