"""One rank's part of a measurement: its samples, in step with the other ranks', and what its data shows."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import runner
from jobs.bench import check, data
from jobs.bench.data import Segment
from jobs.validate.probe import Seconds, Wrong

BYTES, FLOAT = runner.DATATYPES["uint8"], runner.DATATYPES["float"]
ENOUGH, MOST = 1 << 30, 16  # bytes that a sample on a GPU moves, where so many times do
CONNECTING = 60.0  # seconds more than usual that the ranks may take to connect, which many do slowly


@dataclass(frozen=True)
class Part:
    """What one rank does in a measurement.

    prepare: fills its source with the data of a seed, and poisons the place of its result. run: does it once;
    seconds. check: the result, against the data of a seed.
    """

    prepare: Callable[[int], object]
    run: Callable[[], float]
    check: Callable[[int], Wrong | None]


def repeats(world: runner.World, nbytes: int) -> int:
    """How often a sample does its operation, one after another; the same on every rank.

    On GPUs often enough that to begin and to end are no part of the figure, which is a mean then.
    """
    cuda = any(rank.device.kind == "cuda" for rank in world.ranks)
    return min(max(ENOUGH // max(nbytes, 1), 1), MOST) if cuda else 1


# Of a rank without a part: at the barriers with the others, which is all that is asked of it.
IDLE = Part(lambda seed: None, lambda: float("nan"), lambda seed: None)


def sampled(
    world: runner.World, trail: runner.Progress, label: str, part: Part, samples: int, seed: int
) -> tuple[Seconds, list[Wrong]]:
    """(samples,) seconds, and what was wrong; collective over all ranks, whether they have a part or not.

    All ranks begin each sample at once. Before the first there is one that is not timed: it opens connections
    and loads kernels. The data of the first and the last one, of seeds `seed` and `seed + 1`, is checked.
    """
    seconds, found = np.empty(samples), []
    trail.begin(label, "preparing the data")
    trail.grace = CONNECTING
    part.prepare(seed)
    world.control.barrier()
    trail.enter(1)
    part.run()
    trail.done("waiting for other ranks")
    world.control.barrier()
    trail.grace = 0.0
    with _uncollected():
        for number in range(samples):
            checked = {0: seed, samples - 1: seed + 1}.get(number)
            trail.begin(f"{label}, sample {number + 1}", "preparing the data")
            if checked is not None:
                part.prepare(checked)
            trail.before("at the barrier")
            world.control.barrier()
            trail.enter(1)
            seconds[number] = part.run()
            trail.done("checking the data" if checked is not None else "waiting for other ranks")
            if checked is not None and (wrong := part.check(checked)) is not None:
                found.append(wrong)
    return seconds, found


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
    expected = data.values(datatype, segment.data, 0, segment.count).view(np.uint8)
    differing = np.flatnonzero(got != expected)
    # Memory that is wrong only now and then may be right when it is read again.
    offset, count = found.offset * datatype.itemsize, found.count * datatype.itemsize
    if differing.size:
        offset, count = int(differing[0]), int(differing.size)
    texts = (check.text(bits, datatype) for bits in (found.got_bits, found.expected_bits))
    return Wrong(what, rank, segment.source, nbytes, offset, count, *texts)
