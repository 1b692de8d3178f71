"""One rank's part of a measurement: its samples, in step with the other ranks', and what its data shows."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import runner
from jobs.measure import check, patterns
from jobs.measure.patterns import Segment
from jobs.validate.probe import Seconds, Wrong

BYTES, FLOAT = runner.DATATYPES["uint8"], runner.DATATYPES["float"]
ENOUGH, OFTEN = 1 << 30, 16  # bytes that a sample on a GPU moves, where so many times do
LONG, MOST = 0.1, 64  # seconds of a sample on CPUs, where so many times do: several turns of a scheduler
TOO_SHORT = 0.05  # seconds of a sample: of less the kernel's count of stolen time, in 10 ms, says nothing
LEAST = 0.1  # of a sample, where all of it was stolen as far as the kernel says
CONNECTING = 60.0  # seconds more than usual that the ranks may take to connect, which many do slowly


@dataclass(frozen=True)
class Part:
    """What one rank does in a measurement.

    prepare: fills its source with the data of a seed, and poisons the place of its result. run: does it so
    often, one after another; seconds of one. check: the result, against the data of a seed. often: as a
    sample on GPUs does it.
    """

    prepare: Callable[[int], object]
    run: Callable[[int], float]
    check: Callable[[int], Wrong | None]
    often: int = 1


def often(nbytes: int) -> int:
    """How often a sample moves `nbytes` on GPUs, so that to begin and to end are no part of the figure."""
    return min(max(ENOUGH // max(nbytes, 1), 1), OFTEN)


# Of a rank without a part: at the barriers with the others, which is all that is asked of it.
IDLE = Part(lambda seed: None, lambda count: float("nan"), lambda seed: None)


def sampled(
    world: runner.World,
    trail: runner.MeasurementProgress,
    label: str,
    part: Part,
    samples: int,
    seed: int,
    grace: float = 0.0,
) -> tuple[Seconds, list[Wrong]]:
    """(2, samples), seconds and how many of these a hypervisor had the rank's processors; and what was wrong.
    Collective over all ranks, whether they have a part or not.

    All ranks begin each sample at once. Before the first there is one that is not timed: it opens connections
    and loads kernels, and may take `grace` seconds more. The data of the first and the last one, of seeds
    `seed` and `seed + 1`, is checked.
    """
    seconds, stolen, found = np.empty(samples), np.zeros(samples), []
    cuda = any(rank.device.kind == "cuda" for rank in world.ranks)
    trail.begin(label, "preparing the data")
    trail.grace = grace
    part.prepare(seed)
    world.control.barrier()
    trail.enter(1)
    part.run(part.often if cuda else 1)
    trail.done("waiting for other ranks")
    world.control.barrier()
    trail.grace = 0.0
    count = part.often if cuda else _long_enough(world, trail, part)
    cores = os.sched_getaffinity(0)
    with _uncollected():
        for number in range(samples):
            checked = {0: seed, samples - 1: seed + 1}.get(number)
            trail.begin(f"{label}, sample {number + 1}", "preparing the data")
            if checked is not None:
                part.prepare(checked)
            trail.before("at the barrier")
            world.control.barrier()
            trail.enter(1)
            before = 0.0 if cuda else runner.stolen_seconds(cores)
            seconds[number] = part.run(count)
            if not cuda and count * seconds[number] >= TOO_SHORT:
                stolen[number] = (runner.stolen_seconds(cores) - before) / count
            trail.done("checking the data" if checked is not None else "waiting for other ranks")
            if checked is not None and (wrong := part.check(checked)) is not None:
                found.append(wrong)
    return np.stack([seconds, stolen]), found


def kept(taken: Seconds) -> Seconds:
    """(rows, samples) seconds of (rows, 2, samples), as `sampled` has them: without what was stolen."""
    seconds, stolen = taken[:, 0], taken[:, 1]
    return np.asarray(np.maximum(seconds - stolen, LEAST * seconds))


def _long_enough(world: runner.World, trail: runner.MeasurementProgress, part: Part) -> int:
    """How often a sample on CPUs does it, the same on every rank: those that share a core take turns, and a
    short sample would tell whose turn it was.
    """
    trail.enter(1)
    once = part.run(1)
    trail.done("waiting for other ranks")
    slowest = max((one for one in world.control.allgather(once) if one > 0), default=1.0)
    return min(max(math.ceil(LONG / slowest), 1), MOST)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection, which would be timed."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def compared(
    what: str, rank: int, nbytes: int, memory: Any, datatype: runner.Datatype, segment: Segment
) -> Wrong | None:
    """What differs from a segment's data in `memory`, flat uint8; None where nothing does."""
    found = check.verify(memory, datatype, [segment])
    if found is None:
        return None
    whole = memory[: segment.count * datatype.itemsize]
    got = whole if isinstance(whole, np.ndarray) else whole.get()
    expected = patterns.values(datatype, segment.data, 0, segment.count).view(np.uint8)
    differing = np.flatnonzero(got != expected)
    # Memory that is wrong only now and then may be right when it is read again.
    offset, count = found.offset * datatype.itemsize, found.count * datatype.itemsize
    if differing.size:
        offset, count = int(differing[0]), int(differing.size)
    texts = (check.text(bits, datatype) for bits in (found.got_bits, found.expected_bits))
    return Wrong(what, rank, segment.source, nbytes, offset, count, *texts)
