"""Workloads of single ranks: copies in device memory, matrix products, copies from and to the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from jobs.measure import check
from jobs.measure.patterns import Copied, Segment
from jobs.measure.timers import backend_seconds
from jobs.validate.probe import api
from jobs.validate.probe.api import SingleRankOp, WrongData
from jobs.validate.probe.buffers import ProbeBuffers
from jobs.validate.probe.sampling import BYTES, FLOAT, IDLE, Workload, checked_workload

ITEM = FLOAT.itemsize
BLOCK = 8 << 20  # elements of a product compared at a time


def workload(buffers: ProbeBuffers, what: SingleRankOp, nbytes: int) -> Workload:
    """Return this rank's workload; IDLE for host copies on a CPU. Collective."""
    if buffers.box is None and what in ("to_device", "to_host"):
        return IDLE
    return product(buffers, nbytes) if what == "product" else copy(buffers, what, nbytes)


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


def product(buffers: ProbeBuffers, nbytes: int) -> Workload:
    """Return the workload of a product c = a b of square float32 matrices, `nbytes` each.

    a = u v', b = w z' with small integers, so c = (v' w) u z' is exact in any order of summation: |c| and
    each partial sum are <= 16 n.
    """
    world, rank, xp = buffers.world, buffers.world.rank, buffers.world.xp
    side = api.matrix_side(nbytes)
    size = side * side * ITEM
    second = -(-size // 256) * 256  # where b begins: aligned
    buffers.reserve(second + size, size)
    out, into = buffers.out, buffers.into
    a, b, c = (
        array[:size].view(np.float32).reshape(side, side)
        for array in (out.array, out.array[second:], into.array)
    )
    queue: Callable[[], object] = partial(np.matmul, a, b, out=c)
    if buffers.box is not None:
        from runner.device.raw.blas import gemm

        addresses = out.address, out.address + second, into.address
        queue = partial(gemm, "float32", side, side, side, *addresses, world.backend.stream)

    def factors(seed: int) -> tuple[Any, Any, Any, Any]:
        random = np.random.default_rng(seed * world.size + rank)
        u, z = (random.choice([-2, -1, 1, 2], side) for _ in range(2))
        v, w = (random.integers(1, 3, side) for _ in range(2))  # positive, so that a missing summand shows
        return u, v, w, z

    def prepare(seed: int) -> None:
        u, v, w, z = (xp.asarray(factor, np.float32) for factor in factors(seed))
        xp.multiply(u[:, None], v, out=a)
        xp.multiply(w[:, None], z, out=b)
        check.poison(into.array[:size])
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
        return WrongData("product", rank, rank, nbytes, offset, count, *words) if count else None

    return Workload(prepare, partial(backend_seconds, world, queue), checked)


def text(word: Any) -> str:
    """Format a float32 array of one element."""
    return check.text(int(word.view(np.uint32)[0]), FLOAT)
