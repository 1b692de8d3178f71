"""Take samples of a rank's workload, synchronized with the other ranks, and check the data."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun import World
from meshrun.jobs.measure import check, patterns
from meshrun.jobs.measure.patterns import Segment
from meshrun.jobs.measure.timers import uncollected
from meshrun.jobs.validate.probe.api import Seconds, WrongData
from meshrun.runner.comm.collectives.api import DATATYPES, Datatype
from meshrun.runner.system.counters.processor import stolen_seconds
from meshrun.runner.world.watchdog.watchdog import MeasurementProgress

BYTES, FLOAT = DATATYPES["uint8"], DATATYPES["float"]
GPU_BYTES, GPU_REPEATS = 1 << 30, 16  # bytes that a sample on a GPU moves; most repeats
# Seconds of a sample on CPUs (several turns of ranks that share a core); most repeats.
CPU_SECONDS, CPU_REPEATS = 0.1, 64
SegmentOfSeed = Callable[[int], Segment]
TOO_SHORT = 0.05  # seconds of a sample; stolen time, counted in 10 ms, is too coarse for shorter ones
LEAST_SHARE = 0.1  # share of a sample that is kept even if all of it was stolen
CONNECT_GRACE = 60.0  # additional seconds for connecting, which is slow with many ranks


@dataclass(frozen=True)
class Workload:
    """One rank's part of a measurement.

    prepare: fills the source with the data of a seed and poisons the destination. run: repeats the operation
    count times, returns the seconds of one. check: compares the result with the data of a seed. repeats:
    operations in a sample on GPUs; with `seconds`, as many as take this time on the slowest rank.
    """

    prepare: Callable[[int], object]
    run: Callable[[int], float]
    check: Callable[[int], WrongData | None]
    repeats: int = 1
    seconds: float = 0.0


def repeats_for(nbytes: int) -> int:
    """Return the repeats in a sample on GPUs of an operation on `nbytes`: enough to hide start and end."""
    return min(max(GPU_BYTES // max(nbytes, 1), 1), GPU_REPEATS)


# The workload of a rank that only takes part in the barriers.
IDLE = Workload(lambda seed: None, lambda count: float("nan"), lambda seed: None)


def sample(
    world: World,
    progress: MeasurementProgress,
    label: str,
    workload: Workload,
    samples: int,
    seed: int,
    grace: float = 0.0,
) -> tuple[Seconds, list[WrongData]]:
    """Take samples of this rank's workload; all ranks start each sample together. Collective.

    Returns (2, samples) float64: seconds, and the part of them in which a hypervisor had taken the rank's
    processors; and the wrong data found. An untimed first run opens connections and loads kernels; it may
    take `grace` additional seconds. Checks the data of the first and last sample, with `seed` and `seed + 1`.
    """
    seconds, stolen, found = np.empty(samples), np.zeros(samples), []
    cuda = any(rank.device.kind == "cuda" for rank in world.ranks)
    progress.begin(label, "preparing the data")
    progress.grace = grace
    workload.prepare(seed)
    world.control.barrier()
    progress.enter(1)
    workload.run(workload.repeats if cuda else 1)
    progress.done("waiting for other ranks")
    world.control.barrier()
    progress.grace = 0.0
    count = workload.repeats
    if not cuda:
        count = min(_repeats_in(CPU_SECONDS, world, progress, workload), CPU_REPEATS)
    elif workload.seconds:
        count = _repeats_in(workload.seconds, world, progress, workload)
    cores = os.sched_getaffinity(0)
    with uncollected():
        for number in range(samples):
            checked = {0: seed, samples - 1: seed + 1}.get(number)
            progress.begin(f"{label}, sample {number + 1}", "preparing the data")
            if checked is not None:
                workload.prepare(checked)
            progress.before("at the barrier")
            world.control.barrier()
            progress.enter(1)
            before = 0.0 if cuda else stolen_seconds(cores)
            seconds[number] = workload.run(count)
            if not cuda and count * seconds[number] >= TOO_SHORT:
                stolen[number] = (stolen_seconds(cores) - before) / count
            progress.done("checking the data" if checked is not None else "waiting for other ranks")
            if checked is not None and (wrong := workload.check(checked)) is not None:
                found.append(wrong)
    return np.stack([seconds, stolen]), found


def without_stolen(taken: Seconds) -> Seconds:
    """Subtract stolen time: (rows, 2, samples), as `sample` returns them, to (rows, samples) seconds."""
    seconds, stolen = taken[:, 0], taken[:, 1]
    return np.asarray(np.maximum(seconds - stolen, LEAST_SHARE * seconds))


def _repeats_in(seconds: float, world: World, progress: MeasurementProgress, workload: Workload) -> int:
    """Return how many repeats take `seconds` on the slowest rank; the same on every rank. Collective."""
    progress.enter(1)
    once = workload.run(1)
    progress.done("waiting for other ranks")
    slowest = max((one for one in world.control.allgather(once) if one > 0), default=1.0)
    return max(math.ceil(seconds / slowest), 1)


def checked_workload(
    world: World,
    what: str,
    datatype: Datatype,
    run: Callable[[int], float],
    out: Any,
    given: SegmentOfSeed | None,
    into: Any,
    expected: SegmentOfSeed | None,
) -> Workload:
    """Return the workload of `run`, which moves or combines `out`, filled with `given`, into `into`.

    given, expected: the segment before in `out` and after in `into`; None where this rank has no such end.
    """

    def prepare(seed: int) -> None:
        if given is not None:
            check.fill(out, datatype, [given(seed)])
        if expected is not None:
            check.poison(into)
        world.backend.synchronize()

    def checked(seed: int) -> WrongData | None:
        return expected and compare(what, world.rank, len(into), into, datatype, expected(seed))

    return Workload(prepare, run, checked, repeats_for(len(into)))


def compare(
    what: str, rank: int, nbytes: int, memory: Any, datatype: Datatype, segment: Segment
) -> WrongData | None:
    """Compare `memory`, flat uint8, with a segment's data. Returns the difference, or None."""
    found = check.verify(memory, datatype, [segment])
    if found is None:
        return None
    whole = memory[: segment.count * datatype.itemsize]
    got = whole if isinstance(whole, np.ndarray) else whole.get()
    expected = patterns.values(datatype, segment.data, 0, segment.count).view(np.uint8)
    differing = np.flatnonzero(got != expected)
    # Memory that is wrong only sometimes may be right when it is read again.
    offset, count = found.offset * datatype.itemsize, found.count * datatype.itemsize
    if differing.size:
        offset, count = int(differing[0]), int(differing.size)
    return WrongData(what, rank, segment.source, nbytes, offset, count, found.got, found.expected)
