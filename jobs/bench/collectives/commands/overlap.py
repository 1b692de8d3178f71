"""Run one operation on several communicators at once, and beside a kernel that computes.

Programs that train or simulate do both: each group of ranks has its communicator, and what is sent is to be
hidden behind what is computed. For each size, one after another:

    alone       calls on one communicator
    together    as many on every communicator, each with a stream and buffers of its own
    beside      calls on one communicator while a kernel is repeated in another stream for as long

The calls' streams have the higher priority, as those of exchanges in a run: without it, calls would wait for
the end of a kernel that fills the GPU.

What a call hides is what OSU's benchmarks call overlap (osu_util.c): of the time that the calls take alone,
the part by which they do not prolong the kernels.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from meshrun import World
from meshrun.jobs.bench.collectives.checks import PreparedCall, chosen_call, compare, prepare
from meshrun.jobs.bench.collectives.commands.run import check_files
from meshrun.jobs.bench.collectives.config import BenchOptions
from meshrun.jobs.bench.collectives.measure import at_size, describe, kinds, shown
from meshrun.jobs.bench.collectives.output import overlap as output
from meshrun.jobs.bench.collectives.output.overlap import OverlapRow
from meshrun.jobs.bench.collectives.output.screen import Screen
from meshrun.jobs.bench.collectives.session import STEADY_BYTES, Bench, Point, check_gpus, opened
from meshrun.jobs.bench.collectives.specs import bandwidths
from meshrun.jobs.bench.collectives.timing import bound_call, keep_busy
from meshrun.jobs.measure.exit_codes import WrongResults
from meshrun.jobs.measure.record_file import open_record
from meshrun.jobs.measure.timers import uncollected
from meshrun.jobs.measure.watchdog import watching
from meshrun.runner.comm.collectives.api import Function
from meshrun.runner.world.failure import FailureHandler

SHORTEST = 4e-3  # seconds of calls: many kernels, so that their last one does not matter
MOST_CALLS = 2000
FEW_LAUNCHES = 16  # to see how long a kernel takes
SIDE = 4096  # of the matrices of a product
COPIED = 256 << 20  # bytes of a copy


@dataclass(frozen=True)
class Load:
    """A kernel that is repeated. unit: of its rate. amount: that `queue` adds, in the unit times a second."""

    name: str
    unit: str
    amount: float
    queue: Function


@dataclass(frozen=True)
class Times:
    """Seconds on one rank of work that is issued at once: until all is done, of the calls, of the kernels."""

    total: float
    calls: float
    kernels: float


def run(
    world: World,
    handler: FailureHandler,
    options: BenchOptions,
    cli_context: Any,
    communicators: int,
    kernel: str,
) -> dict[str, Any]:
    """Measure all sizes; returns the completion record. Raises WrongResults after all is measured.

    communicators: 1 for none besides. kernel: a name of LOADS.
    """
    options, communicators, kernel = world.control.broadcast((options, communicators, kernel))
    screen = Screen(world.rank == 0, options, cli_context.colour, cli_context.columns)
    sentence = "overlap needs GPUs: in host memory nothing else runs until a call has returned"
    check_gpus(world, sentence, "--device cuda")
    (name,) = options.operations
    world.on_root(lambda: check_files(options))
    record_file = open_record(world, options.output_file, screen.line)
    rows: list[OverlapRow] = []
    with watching(world, handler, options.settings.timeout) as progress, ExitStack() as stack:
        sessions = [
            stack.enter_context(
                opened(world, world.control, options, name, progress, [0] * world.size, at_once=communicators)
            )
            for _ in range(communicators)
        ]
        benches = [one.bench for one in sessions]
        progress.abort = partial(abort_all, benches)
        load = LOADS[kernel](world)
        about = output.About(
            name, sessions[0].header.backend, world.size, communicators, load.name, load.unit
        )
        if sessions[0].reduced:
            screen.line(f"# Reducing maxBytes to {sessions[0].reduced} due to memory limitation\n")
        screen.line(output.header(about))

        def written() -> str:
            return json.dumps(output.document(about, rows)) + "\n"

        for row in measured(benches, load):
            rows.append(row)
            screen.line(output.row(about, row))
            record_file.write(written)
        failures = sum(world.control.allgather(sum(bench.failures for bench in benches)))
        record_file.write(written, last=True)
        screen.line(output.footer(about))
    record_file.close()
    if failures:
        raise WrongResults(f"{name}: wrong data, in {failures} checks on single ranks", everywhere=True)
    return {"command": "bench overlap", "operations": [name], "ranks": world.size}


def abort_all(benches: Sequence[Bench]) -> None:
    for bench in benches:
        bench.group.abort()


def measured(benches: Sequence[Bench], load: Load) -> Iterator[OverlapRow]:
    """Yield a row for each type, reduction, root and size; collective."""
    first = benches[0]
    for blank in kinds(first):
        for size in first.settings.sizes():
            point = at_size(first, blank, size, in_place=False)
            first.progress.begin(describe(first, point))
            yield measure(benches, load, point)


def measure(benches: Sequence[Bench], load: Load, point: Point) -> OverlapRow:
    """Measure one size in all three ways, and check the data of the last two; collective."""
    first, several = benches[0], len(benches)
    wrong = 0

    def times(some: Sequence[Bench], calls: int, launches: int) -> Times:
        found = first.everyone.allgather(timed(first, some, point, calls, load, launches))
        return Times(*(statistics.fmean(column) for column in zip(*found, strict=True)))

    def checked(some: Sequence[Bench], calls: int, launches: int) -> Times:
        nonlocal wrong
        prepared = [prepared_call(bench, point, calls) for bench in some]
        found = times(some, calls, launches)
        for bench, one in zip(some, prepared, strict=True):
            bad = None if one is None else compare(bench, point, one)
            bench.failures += bad is not None
            wrong += sum(other.count for other in first.everyone.allgather(bad) if other)
        return found

    few = first.settings.iters
    calls = more_calls(times(benches[:1], few, 0).calls, few)
    alone = times(benches[:1], calls, 0).calls
    together = checked(benches, calls, 0).calls if several > 1 else None
    launches = max(math.ceil(FEW_LAUNCHES * alone / times((), 0, FEW_LAUNCHES).kernels), 1)
    kernels = times((), 0, launches).kernels
    beside = checked(benches[:1], calls, launches)

    def busbw(seconds: float) -> float:
        return bandwidths(first.operation, point.counts, point.datatype, first.group.size, seconds / calls)[1]

    return OverlapRow(
        **shown(first, point),
        calls=calls,
        launches=launches,
        alone=alone / calls,
        alone_busbw=busbw(alone),
        together=None if together is None else together / calls,
        together_busbw=None if together is None else several * busbw(together),
        beside=beside.calls / calls,
        beside_busbw=busbw(beside.calls),
        kernel=launches * load.amount / kernels,
        kernel_beside=launches * load.amount / beside.kernels,
        hidden=hidden(alone, kernels, beside.total),
        wrong=wrong if first.settings.check else None,
    )


def more_calls(seconds: float, calls: int) -> int:
    """Return how many calls take SHORTEST, if `calls` take `seconds`; not fewer, and at most MOST_CALLS."""
    wanted = math.ceil(SHORTEST * calls / seconds) if seconds > 0 else MOST_CALLS
    return max(calls, min(wanted, MOST_CALLS))


def hidden(calls: float, kernels: float, total: float) -> float:
    """Return the share of the calls' time that is hidden: 0 if both take as long together as one after the
    other, less if they take longer. Seconds: of the calls alone, of the kernels alone, of both at once."""
    return (calls + kernels - total) / calls


def prepared_call(bench: Bench, point: Point, calls: int) -> PreparedCall | None:
    """Write the data of the call to check; None without -c."""
    if not bench.settings.check:
        return None
    bench.checks += 1
    return prepare(bench, point, bench.checks, chosen_call(bench, point, calls))


def timed(
    first: Bench, benches: Sequence[Bench], point: Point, calls: int, load: Load, launches: int
) -> tuple[float, float, float]:
    """Issue calls on each communicator in turn, and kernels evenly among them; returns `Times`, as a tuple.

    Collective. The order is the same on every rank: a call occupies its GPU until it has been called
    everywhere, and others may find no room beside it.
    """
    backend, progress = first.world.backend, first.progress
    bound = [[bench.group.bind(bound_call(bench, point, i)) for i in range(calls)] for bench in benches]
    marks = [bench.group.marks(2) for bench in benches]
    passed: list[Any] = []

    def mark() -> None:
        passed.append(backend.mark())

    plan: list[Function] = [*(begin.record for begin, _ in marks), mark]
    issued = 0
    for number in range(calls):
        while issued * calls < launches * (number + 1):
            plan.append(load.queue)
            issued += 1
        plan += [one[number] for one in bound]
    plan += [load.queue] * (launches - issued)
    plan += [mark, *(end.record for _, end in marks)]
    packed = first.group.packed(plan)
    progress.before("in the call before the timed ones")
    for bench, one in zip(benches, bound, strict=True):
        if bench.steady and point.bytes <= STEADY_BYTES:
            keep_busy(bench, one[:1])
        bench.group.issue(one[:1])
        bench.group.wait()
    load.queue()
    backend.synchronize()
    progress.before("at the barrier before the timed calls")
    with uncollected():
        first.everyone.barrier()
        progress.enter(1)
        begin = time.perf_counter()
        first.group.issue(packed)
        for bench in benches:
            bench.group.wait()
        backend.synchronize()
        total = time.perf_counter() - begin
    progress.done()
    spent = [bench.group.elapsed(*pair) for bench, pair in zip(benches, marks, strict=True)]
    return total, max(spent, default=0.0), backend.elapsed(*passed)


def product(world: World) -> Load:
    """A product of float16 matrices, on tensor cores."""
    from meshrun.runner.device.raw.blas import gemm

    draw = world.xp.random.default_rng(world.rank).standard_normal
    a, b = (draw((SIDE, SIDE), dtype=np.float32).astype(np.float16) for _ in range(2))
    c = world.backend.empty((SIDE, SIDE), np.dtype(np.float16))

    def queue() -> None:
        addresses = a.data.ptr, b.data.ptr, c.data.ptr
        gemm("float16", (SIDE, SIDE, SIDE), addresses, world.backend.stream)

    return Load("product of float16 matrices", "TFLOP/s", 2 * SIDE**3 / 1e12, queue)


def copy(world: World) -> Load:
    """A copy inside the device's memory, read plus written."""
    source, target = (world.backend.empty((COPIED,), np.dtype(np.uint8)) for _ in range(2))
    return Load("copy in device memory", "GB/s", 2 * COPIED / 1e9, partial(world.xp.copyto, target, source))


LOADS: dict[str, Callable[[World], Load]] = {"product": product, "copy": copy}
