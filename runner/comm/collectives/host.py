"""What collectives in host memory share, whatever carries the bytes: memory, arithmetic, time."""

from __future__ import annotations

import dataclasses
import mmap
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from runner.comm.collectives.api import Buffer, Call, Datatype, Function, Place, premultiplier
from runner.device.api import POISON
from runner.errors import UserError
from runner.region import Array

COMBINE = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "avg": np.add,
    "mulsum": np.add,
}
# A timed loop reduces its own results again and again: they overflow, and nobody reads them.
_unheeded = np.errstate(all="ignore")


@dataclasses.dataclass(frozen=True)
class HostBuffer:
    """Page-aligned memory. array: all of it, flat uint8."""

    array: Array

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)


def allocate(nbytes: int) -> HostBuffer:
    """Page-aligned memory that is really there: every page has been written. Raises MemoryError.

    Pages that were never written are all one page of zeros, which a cache holds: reading them is no measure.
    """
    if nbytes > sys.maxsize - mmap.PAGESIZE:
        raise MemoryError(f"{nbytes} bytes are more than an address can reach")
    raw = np.empty(nbytes + mmap.PAGESIZE, np.uint8)
    raw.fill(POISON)
    begin = -raw.ctypes.data % mmap.PAGESIZE
    return HostBuffer(raw[begin : begin + nbytes])


def elements(place: Place, count: int, datatype: Datatype) -> Array:
    """`count` elements from a place on, as a flat array of their own dtype."""
    return place.bytes(count * datatype.itemsize).view(datatype.dtype)


@_unheeded
def combine(ufunc: np.ufunc, total: Array, part: Array) -> None:
    """total = ufunc(total, part), each element rounded to its own type."""
    ufunc(total, part, out=total)


@_unheeded
def _multiply(source: Array, factor: int, target: Array) -> None:
    np.multiply(source, source.dtype.type(factor), out=target)


@_unheeded
def average(total: Array, ranks: int) -> None:
    """Divide by the number of ranks in place: integers rounded down, floats to the nearest."""
    # In a wider type, because the number of ranks may be none of the type's own values.
    if total.dtype.kind in "iu":
        wide = total.dtype if total.dtype.itemsize == 8 else np.dtype(np.int64)
        np.floor_divide(total, wide.type(ranks), out=total, dtype=wide, casting="unsafe")
    else:
        wide = np.dtype(np.float32 if total.dtype == np.float32 else np.float64)
        np.divide(total, wide.type(ranks), out=total, dtype=wide, casting="unsafe")


class Scratch:
    """Memory that a call needs beside its buffers. Calls of a rank come one after another and share it."""

    def __init__(self) -> None:
        self._buffers: dict[str, HostBuffer] = {}

    def place(self, use: str, nbytes: int) -> Place:
        """At least that many bytes; the same for every call with this `use`."""
        known = self._buffers.get(use)
        if known is None or known.nbytes < nbytes:
            known = self._buffers[use] = allocate(nbytes)
        return Place(known)


def premultiplied(call: Call, rank: int, count: int, scratch: Scratch) -> tuple[list[Function], Call]:
    """For mulsum of `count` elements: the step that fills a scratch buffer, and the call that sends it."""
    if call.reduction != "mulsum":
        return [], call
    product = scratch.place("product", count * call.datatype.itemsize)
    source, target = (elements(place, count, call.datatype) for place in (call.send, product))
    fill = partial(_multiply, source, premultiplier(rank), target)
    return [fill], dataclasses.replace(call, send=product, in_place=False)


def averaged(call: Call, ranks: int) -> list[Function]:
    """For avg: the step that divides the sum in the receive buffer."""
    if call.reduction != "avg":
        return []
    return [partial(average, elements(call.recv, call.count, call.datatype), ranks)]


def copied(target: Array, source: Array) -> list[Function]:
    """The step that copies bytes, unless they are there."""
    return [] if target.ctypes.data == source.ctypes.data else [partial(np.copyto, target, source)]


def in_turn(steps: Sequence[Function]) -> Function:
    """All steps as one function; a single one stays what it is."""
    if len(steps) == 1:
        return steps[0]

    def run() -> None:
        for step in steps:
            step()

    return run


class HostMark:
    """A moment on the host's clock. seconds: of time.perf_counter, once recorded."""

    __slots__ = ("seconds",)
    seconds: float

    def record(self) -> None:
        self.seconds = time.perf_counter()


class HostMemory:
    """What `Collectives` asks for beside the calls, where the device is the host."""

    asynchronous = False
    library = 0

    def __init__(self) -> None:
        self.scratch = Scratch()

    def allocate(self, nbytes: int) -> HostBuffer:
        return allocate(nbytes)

    def register(self, buffer: Buffer, how: int) -> None:
        raise UserError(
            "host memory cannot be registered: that is a matter of NCCL and GPUs",
            got=f"-R {how}",
            hint="without -R, or with --device cuda",
            everywhere=True,
        )

    def grouped(self, calls: Sequence[Function]) -> Function:
        return in_turn(calls)

    def rehearse(self) -> None:
        pass  # each call is long over before the next begins

    def packed(self, calls: Sequence[Function]) -> Sequence[Function]:
        return calls

    def captured(self, calls: Sequence[Function]) -> Function:
        raise UserError(
            "calls in host memory cannot be captured: graphs need a GPU",
            hint="without -G, or with --device cuda",
            everywhere=True,
        )

    def marks(self, count: int) -> list[HostMark]:
        return [HostMark() for _ in range(count)]

    def elapsed(self, begin: HostMark, end: HostMark) -> float:
        return end.seconds - begin.seconds

    def passed(self, mark: HostMark) -> bool:
        return True

    def wait(self, poll: Callable[[], object] | None = None) -> None:
        pass  # a call returns when it is done
