"""Fill memory with test data and verify results.

On a GPU both are kernels on the current stream. They compute the expected data instead of reading it, so they
need only a few words of memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.jobs import kernels
from meshrun.jobs.measure import patterns
from meshrun.jobs.measure.exact_reductions import largest, tolerance
from meshrun.jobs.measure.patterns import Reduced, Segment, Words
from meshrun.runner.comm.collectives.api import Datatype

THREADS, BLOCKS = 256, 1 << 14


@dataclass(frozen=True)
class DataMismatch:
    """Wrong data in a result.

    count: number of wrong elements. offset: of the first one in segment order, in elements from the start of
    the memory. got_bits, expected_bits: bits of that element. source: of its segment.
    """

    count: int
    offset: int
    got_bits: int
    expected_bits: int
    source: int | None
    datatype: Datatype

    @property
    def flipped_bits(self) -> int:
        """Number of bits of that element that differ."""
        return (self.got_bits ^ self.expected_bits).bit_count()

    @property
    def got(self) -> str:
        return text(self.got_bits, self.datatype)

    @property
    def expected(self) -> str:
        return text(self.expected_bits, self.datatype)


def poison(memory: Any) -> None:
    """Fill memory with POISON, so that unwritten bytes show. memory: as for `fill`."""
    memory[...] = patterns.POISON


def fill(memory: Any, datatype: Datatype, segments: Sequence[Segment]) -> None:
    """Write each segment's elements; memory between segments stays as it is.

    memory: contiguous flat uint8 array of NumPy or CuPy, of whole elements.
    """
    for segment in segments:
        if _on_host(memory):
            words = _words(memory, datatype, segment)
            period = patterns.values(datatype, segment.data, 0, min(segment.count, patterns.PERIOD))
            for begin in range(0, segment.count, patterns.PERIOD):
                block = words[begin : begin + patterns.PERIOD]
                block[...] = period[: block.size]
        else:
            _launch("fill", memory, datatype, segment)


def verify(memory: Any, datatype: Datatype, segments: Sequence[Segment]) -> DataMismatch | None:
    """Compare memory with the segments; returns None if they agree. Arguments as for `fill`.

    Bits are compared: -0 for +0 is wrong, and NaN is right only where it was sent. Averages of a type in
    which 1 / ranks is inexact may differ by `tolerance`, but must be finite.
    """
    compare = _compare_on_host if _on_host(memory) else _compare_on_device
    compared = compare(memory, datatype, segments)
    for segment, (wrong, first) in zip(segments, compared, strict=True):
        if wrong:
            here = (segment.start + first) * datatype.itemsize
            return DataMismatch(
                count=sum(count for count, _ in compared),
                offset=segment.start + first,
                got_bits=int.from_bytes(bytes(memory[here : here + datatype.itemsize].tolist()), "little"),
                expected_bits=int(patterns.values(datatype, segment.data, first, 1)[0]),
                source=segment.source,
                datatype=datatype,
            )
    return None


def text(bits: int, datatype: Datatype) -> str:
    """Format an element, such as "1.5 (0x3fc00000)"."""
    value = np.array([bits], f"u{datatype.itemsize}").view(datatype.dtype)[0]
    return f"{value!s} (0x{bits:0{2 * datatype.itemsize}x})"


def _on_host(memory: Any) -> bool:
    return isinstance(memory, np.ndarray)


def _bytes(memory: Any, datatype: Datatype, segment: Segment) -> Any:
    begin = segment.start * datatype.itemsize
    return memory[begin : begin + segment.count * datatype.itemsize]


def _words(memory: Words, datatype: Datatype, segment: Segment) -> Words:
    words: Words = _bytes(memory, datatype, segment).view(f"u{datatype.itemsize}")
    return words


def _tolerance(datatype: Datatype, segment: Segment) -> int:
    if not isinstance(segment.data, Reduced):
        return 0
    return tolerance(datatype, segment.data.reduction, segment.data.ranks)


def _compare_on_host(memory: Words, datatype: Datatype, segments: Sequence[Segment]) -> list[tuple[int, int]]:
    """Count each segment's wrong elements; returns (count, offset of the first in the segment) of each."""
    compared = []
    for segment in segments:
        words, allowed = _words(memory, datatype, segment), _tolerance(datatype, segment)
        expected = patterns.values(datatype, segment.data, 0, min(segment.count, patterns.PERIOD))
        count = first = 0
        for begin in range(0, segment.count, patterns.PERIOD):
            got = words[begin : begin + patterns.PERIOD]
            wrong = got != expected[: got.size]
            if allowed:
                wrong &= ~_close(got, expected[: got.size], datatype, allowed)
            if wrong.any():
                first = first if count else begin + int(wrong.argmax())
                count += int(np.count_nonzero(wrong))
        compared.append((count, first))
    return compared


def _close(got: Words, expected: Words, datatype: Datatype, allowed: int) -> Words:
    """Return a mask of elements where `got` is finite and at most `allowed` representable numbers away."""
    width = 8 * datatype.itemsize
    a, b = (patterns.ordered(bits.astype(np.uint64), width) for bits in (got, expected))
    apart = np.maximum(a, b) - np.minimum(a, b)
    finite = got & ((1 << (width - 1)) - 1) <= largest(datatype)
    near: Words = (apart <= allowed) & finite
    return near


def _compare_on_device(memory: Any, datatype: Datatype, segments: Sequence[Segment]) -> list[tuple[int, int]]:
    # NumPy dispatches this to the array's own library, CuPy.
    found = np.zeros_like(memory, np.uint64, shape=(len(segments), 2))
    for row, segment in zip(found, segments, strict=True):
        allowed = _tolerance(datatype, segment)
        limits = np.array([allowed, largest(datatype) if allowed else 0], np.uint64)
        _launch("verify", memory, datatype, segment, *limits, row)
    return [
        (wrong, segment.count - left) for segment, (wrong, left) in zip(segments, found.tolist(), strict=True)
    ]


def _launch(kernel: str, memory: Any, datatype: Datatype, segment: Segment, /, *arguments: Any) -> None:
    if not segment.count:
        return
    how, only = patterns.recipe_of(datatype, segment.data)
    seed, index = getattr(segment.data, "seed", 0), getattr(segment.data, "index", 0)
    place = (
        segment.count,
        patterns.key(seed),
        index % patterns.PERIOD,
        patterns.MASK if only is None else only,
    )
    kernels.launch(
        "bench_data.cu",
        kernels.instance(kernel, f"u{datatype.itemsize}", int(how.kind)),
        min(math.ceil(segment.count / THREADS), BLOCKS),
        THREADS,
        (_bytes(memory, datatype, segment), *np.array(place, np.uint64), *how.arguments, *arguments),
    )
