"""Workloads of single ranks: copies in device memory, matrix products, copies from and to the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from meshrun.jobs.measure import check
from meshrun.jobs.measure.patterns import Copied, Segment
from meshrun.jobs.measure.timers import backend_seconds
from meshrun.jobs.validate.probe import api
from meshrun.jobs.validate.probe.api import OPERAND_BYTES, TENSOR_SAMPLE, SingleRankOp, WrongData
from meshrun.jobs.validate.probe.buffers import ProbeBuffers
from meshrun.jobs.validate.probe.sampling import BYTES, FLOAT, IDLE, Workload, checked_workload

ITEM = FLOAT.itemsize
BLOCK = 8 << 20  # elements of a product compared at a time


def workload(buffers: ProbeBuffers, what: SingleRankOp, nbytes: int) -> Workload:
    """Return this rank's workload; IDLE for host copies on a CPU. Collective."""
    if buffers.box is None and what in ("to_device", "to_host"):
        return IDLE
    return product(buffers, what, nbytes) if what in OPERAND_BYTES else copy(buffers, what, nbytes)


def copy(buffers: ProbeBuffers, what: SingleRankOp, nbytes: int) -> Workload:
    """Return the workload of a copy of `nbytes` in device memory, or to or from pinned host memory."""
    world, rank, box = buffers.world, buffers.world.rank, buffers.box
    inside = what == "memory"
    buffers.reserve(nbytes * (what != "to_device"), nbytes * (what != "to_host"), 0 if inside else nbytes)
    out, into = buffers.out.array, buffers.into.array
    queue: Callable[[], object]
    if box is None:
        queue = partial(np.copyto, into[:nbytes], out[:nbytes])
    else:
        target, source = buffers.device(buffers.into), buffers.device(buffers.out)
        if what == "to_device":
            source, out = buffers.pinned, box.host_array(buffers.pinned)
        if what == "to_host":
            target, into = buffers.pinned, box.host_array(buffers.pinned)
        queue = partial(box.copy, target, source, nbytes, world.backend.stream)

    def segment(seed: int) -> Segment:
        return Segment(0, nbytes, Copied(seed * world.size + rank, 0), rank)

    run = partial(backend_seconds, world, queue)
    return checked_workload(world, what, BYTES, run, out, segment, into[:nbytes], segment)


def product(buffers: ProbeBuffers, what: SingleRankOp, nbytes: int) -> Workload:
    """Return the workload of a product c = a b of square matrices, `nbytes` of each factor.

    what: "product", float32, or "tensor", float16 with sums and results in float32.

    a = u v', b = w z' with small integers, so c = (v' w) u z' is exact in any order of summation, as long as
    |c| and each partial sum are below 2^24: they are <= 16 n, and <= 1764 n of "tensor", whose factors have
    more bits that change, as arbitrary ones have, and so take more power.
    """
    world, rank, xp = buffers.world, buffers.world.rank, buffers.world.xp
    dtype = np.dtype(np.float16 if what == "tensor" else np.float32)
    side = api.matrix_side(nbytes, dtype.itemsize)
    size, size_of_result = side * side * dtype.itemsize, side * side * ITEM
    second = -(-size // 256) * 256  # where b begins: aligned
    buffers.reserve(second + size, size_of_result)
    out, into = buffers.out, buffers.into
    a, b = (array[:size].view(dtype).reshape(side, side) for array in (out.array, out.array[second:]))
    c = into.array[:size_of_result].view(np.float32).reshape(side, side)
    queue: Callable[[], object] = partial(multiply, a, b, out=c)
    if buffers.box is not None:
        from meshrun.runner.device.raw.blas import gemm

        addresses = out.address, out.address + second, into.address
        stream = world.backend.stream
        queue = partial(gemm, dtype.name, (side, side, side), addresses, stream, sums="float32")

    signed, positive = ([1, 2, 3, 4, 5, 6, 7], 7) if what == "tensor" else ([1, 2], 3)

    def factors(seed: int) -> tuple[Any, Any, Any, Any]:
        random = np.random.default_rng(seed * world.size + rank)
        u, z = (random.choice([-one for one in signed[::-1]] + signed, side) for _ in range(2))
        v, w = (random.integers(1, positive, side) for _ in range(2))  # so that a missing summand shows
        return u, v, w, z

    def prepare(seed: int) -> None:
        u, v, w, z = (xp.asarray(factor, dtype) for factor in factors(seed))
        xp.multiply(u[:, None], v, out=a)
        xp.multiply(w[:, None], z, out=b)
        check.poison(into.array[:size_of_result])
        world.backend.synchronize()

    def checked(seed: int) -> WrongData | None:
        u, v, w, z = factors(seed)
        scaled, across = xp.asarray(u * (v @ w), np.float32), xp.asarray(z, np.float32)
        count, offset, words = 0, 0, ("", "")
        step = max(BLOCK // side, 1) if side else 1
        for row in range(0, side, step):
            expected = (scaled[row : row + step, None] * across).ravel()
            got = c[row : row + step].ravel()
            differing = got.view(np.uint8) != expected.view(np.uint8)
            several = int(differing.sum())
            if several and not count:
                first = int(differing.argmax())
                offset = row * side * ITEM + first
                one = slice(first // ITEM, first // ITEM + 1)
                words = (text(got[one]), text(expected[one]))
            count += several
        return WrongData(what, rank, rank, nbytes, offset, count, *words) if count else None

    seconds = TENSOR_SAMPLE if what == "tensor" else 0.0
    return Workload(prepare, partial(backend_seconds, world, queue), checked, seconds=seconds)


def multiply(a: Any, b: Any, out: Any) -> None:
    """Multiply on a CPU, in float32."""
    np.matmul(a.astype(np.float32, copy=False), b.astype(np.float32, copy=False), out=out)


def text(word: Any) -> str:
    """Format a float32 array of one element."""
    return check.text(int(word.view(np.uint32)[0]), FLOAT)
