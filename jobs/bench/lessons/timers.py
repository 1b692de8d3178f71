"""Times of work that may be too short for one reading of a clock, and what it was measured on."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

import runner
from jobs.bench.lessons.protocol import Stage
from jobs.measure.gate import MOST, Gate
from jobs.measure.sizes import size_name

ENOUGH = 200e-6  # seconds that a sample takes at least
TURNS = 16  # of work on a GPU in a sample, at least


def nothing() -> None:
    pass


def by_clock(move: Callable[[], object], ready: Callable[[], object] = nothing) -> float:
    """Seconds that `move` takes on the host's clock; the mean of as many as a sample needs.

    ready: before each of them, not timed.
    """
    spent, turns = 0.0, 0
    while spent < ENOUGH:
        ready()
        begin = perf_counter()
        move()
        spent += perf_counter() - begin
        turns += 1
    return spent / turns


def by_marks(stage: Stage, stream: Any, issue: Callable[[int], object]) -> float:
    """Seconds that what `issue` queues takes on the GPU, one after another; the median of the samples.

    The work of a sample waits behind a gate until all of it is queued: calls take no part of its time.
    issue: called with 0, 1, 2, ... within a sample; queues one operation on `stream`, of GPU `stage.gpu`, and
    waits for nothing.
    """
    box, gate = stage.gpus, Gate(stage.gpus, stage.gpu)

    def sample(turns: int) -> float:
        with gate.closed():
            gate.hold(stage.gpu, stream)
            begin = box.mark(stream)
            for turn in range(turns):
                issue(turn)
            end = box.mark(stream)
        box.synchronize(stream)
        gate.check()
        return box.elapsed(begin, end) / turns

    try:
        gate.hold(stage.gpu, stream)  # it is open: what is launched below is loaded now
        issue(0)
        box.synchronize(stream)
        once = sample(1)
        turns = min(max(TURNS, math.ceil(ENOUGH / once)), MOST) if once > 0 else MOST
        return stage.median(lambda: sample(turns))
    finally:
        box.synchronize(stream)
        gate.release()


def device(stage: Stage) -> dict[str, Any]:
    """What was measured, for JSON."""
    if stage.box is None:
        return {"kind": "cpu", "name": stage.world.here.device.name}
    gpu = stage.box.gpus[stage.gpu]
    return {"kind": "cuda", "name": gpu.name, "uuid": gpu.uuid, "bus_id": gpu.bus_id, "cache": gpu.cache}


def name(stage: Stage) -> str:
    """What was measured, for people."""
    device = stage.world.here.device
    return device.name if stage.box is None else f"GPU {stage.gpu}, {stage.box.gpus[stage.gpu].name}"


def refuse_beyond(stage: Stage, nbytes: int) -> None:
    """Raises UserError where the host has not so much memory: the system would end somebody's process."""
    free = stage.world.backend.free_memory()
    if nbytes > free:
        raise runner.UserError(
            "there is not enough memory",
            got=f"-e {size_name(stage.maxbytes)}, which needs {size_name(nbytes)}",
            expected=f"at most {size_name(free)}, what is free",
            hint="a smaller -e",
        )
