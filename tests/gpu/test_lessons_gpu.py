"""The kernels of the lessons `transfer`, `coalescing` and `streams` on a GPU, and the lessons themselves.

Each kernel goes through one check against NumPy, which must fail for the same kernel with one line changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import meshrun.jobs.kernels
from meshrun.jobs.bench.lessons import show
from meshrun.jobs.bench.lessons.coalescing import lesson as coalescing
from meshrun.jobs.bench.lessons.protocol import Context
from meshrun.jobs.bench.lessons.streams import lesson as streams
from meshrun.jobs.bench.lessons.transfer import lesson as transfer
from meshrun.jobs.bench.lessons.transfer.methods import DIRECTIONS, METHODS
from meshrun.jobs.kernels import instance

cupy = pytest.importorskip("cupy", reason="needs CuPy")

COUNTS = (1, 31, 33, 4097 * 129)
POISON = 0xA5A5A5A5
THREADS = 64
Launch = Callable[..., None]


def random_words(count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng().integers(0, 2**32, count, dtype=np.uint32)


def check_touch(launch: Launch) -> None:
    for nbytes in (*COUNTS, 15, 16, 17):
        source = np.random.default_rng().integers(0, 256, nbytes, dtype=np.uint8)
        target = cupy.full(nbytes + 32, 0xA5, cupy.uint8)
        for blocks in (1, 7):  # fewer threads than vectors, mostly
            target[...] = 0xA5
            launch((blocks,), (THREADS,), (cupy.asarray(source), target, np.uint64(nbytes)))
            np.testing.assert_array_equal(target[:nbytes].get(), source)
            assert (target[nbytes:] == 0xA5).all()


def check_strided(launch: Launch) -> None:
    for count in COUNTS:
        for stride, first in ((1, 0), (1, 1), (2, 5), (3, 0), (33, 32), (64, 7)):
            source = random_words(first + (count - 1) * stride + 1)
            target = cupy.full(count + 32, POISON, cupy.uint32)
            words = np.array([count, stride, first], np.uint64)
            blocks = math.ceil(count / (THREADS * 8))
            launch((blocks,), (THREADS,), (cupy.asarray(source), target, *words))
            np.testing.assert_array_equal(target[:count].get(), source[first::stride])
            assert (target[count:] == POISON).all()


def check_affine(launch: Launch) -> None:
    for count in COUNTS:
        for rounds in (0, 1, 2, 37):
            before = random_words(count + 32)
            words = cupy.asarray(before)
            numbers = np.array([1664525, 1013904223, rounds], np.uint32)
            launch((7,), (THREADS,), (words, np.uint64(count), *numbers))
            expected = before[:count].copy()
            for _ in range(rounds):
                expected = expected * numbers[0] + numbers[1]
            np.testing.assert_array_equal(words[:count].get(), expected)
            np.testing.assert_array_equal(words[count:].get(), before[count:])


# file, instance, check, and lines with what makes them wrong
KERNELS = [
    ("touch.cu", "touch", check_touch, [
        ("if (last < nbytes) target[last] = source[last];", ""),  # skips the last bytes
        ("to[i] = from[i];", "to[i] = from[i / 2 * 2];"),
        ("i < whole; i += step", "i < whole; i += 2 * step"),
        ("whole = nbytes / sizeof(uint4)", "whole = nbytes / sizeof(uint4) + 1"),
    ]),
    ("strided.cu", instance("strided", 8), check_strided, [
        ("if (begin + i < count) target[i]", "if (begin + i + 1 < count) target[i]"),  # not the last
        ("source += first + begin * stride;", "source += begin * stride;"),
        ("const u64 step = blockDim.x * stride;", "const u64 step = blockDim.x;"),
        ("target[k * static_cast<u64>(blockDim.x)] = element[k];",
         "target[k * static_cast<u64>(blockDim.x)] = element[0];"),  # a stale value
    ]),
    ("affine.cu", "affine", check_affine, [
        ("i < count; i += step", "i + 1 < count; i += step"),
        ("round < rounds", "round <= rounds"),
        ("words[i] = x;", "words[i ^ 1] = x;"),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("file", "name", "check"), [kernel[:3] for kernel in KERNELS])
def test_a_kernel_is_right(file: str, name: str, check: Callable[[Launch], None]) -> None:
    check(meshrun.jobs.kernels.load(file, name))


@pytest.mark.parametrize(
    ("file", "name", "check", "line", "instead"),
    [(*kernel[:3], *change) for kernel in KERNELS for change in kernel[3]],
)
def test_a_broken_kernel_is_found(
    broken: Callable[..., Launch],
    file: str,
    name: str,
    check: Callable[[Launch], None],
    line: str,
    instead: str,
) -> None:
    run = broken(file, name, line, instead)
    with pytest.raises(AssertionError):
        check(run)


@pytest.mark.parametrize("size", [1, 4097, 1 << 22])
def test_every_method_of_a_transfer_is_right(context: Callable[..., Context], size: int) -> None:
    lesson = transfer.measure(context(minbytes=size, maxbytes=size))
    assert lesson.mismatches == ()
    for direction in DIRECTIONS:
        assert all(lesson.facts["seconds"][direction][method][0] > 0 for method in METHODS)
    assert "write-combined" in show.text(lesson)


@pytest.mark.parametrize("size", [1, 4097, 1 << 22])
def test_the_driver_knows_where_memory_was_prefetched_to(context: Callable[..., Context], size: int) -> None:
    box = context().required_box
    whole, stream = box.allocate("managed", size, 0), box.stream(0)
    part = replace(whole, nbytes=max(size // 2, 1))
    box.host_array(whole)[:] = 1
    assert not box.prefetched(whole)
    assert not box.prefetched(whole, host=True)
    for host in (False, True, False):
        box.prefetch(part, stream, host=host)
        assert box.prefetched(part, host=host)
        assert not box.prefetched(part, host=not host)
    if size > 1 << 20:
        assert not box.prefetched(whole)
    box.prefetch(whole, stream)
    assert box.prefetched(whole)
    box.synchronize(stream)


@pytest.mark.parametrize("nbytes", [4096, 100_003, 1 << 26])
def test_every_stride_is_right(context: Callable[..., Context], nbytes: int) -> None:
    lesson = coalescing.measure(context(maxbytes=nbytes))
    assert lesson.mismatches == ()
    assert all(one["seconds"] > 0 for one in lesson.facts["accesses"])


@pytest.mark.parametrize(("nbytes", "chunks"), [(4096, 1), (1 << 20, 3), (1 << 24, 16)])
def test_every_chunk_is_right(context: Callable[..., Context], nbytes: int, chunks: int) -> None:
    lesson = streams.measure(context(maxbytes=nbytes, options={"chunks": chunks}))
    assert lesson.mismatches == ()
    assert len(lesson.facts["chunk_bytes"]) == chunks
    for one in lesson.facts["variants"]:
        assert all(span["end"] >= span["begin"] >= 0 for span in one["spans"])
