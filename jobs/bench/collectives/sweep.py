"""Measure all sizes of one operation in nccl-tests' order: warm-up over all, then each in both placements.

nccl-tests 2.19.6, src/common.cu, TimeTest, and the loops over types, reductions and roots in src/<op>.cu.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from jobs.bench.collectives.measure import measure
from jobs.bench.collectives.results import ResultRow
from jobs.bench.collectives.session import Bench, Point
from jobs.bench.collectives.timing import bound_call
from runner.comm.collectives.api import DATATYPES


def sweep(bench: Bench) -> Iterator[ResultRow]:
    """Yield every row of one operation as soon as it is measured; collective."""
    settings, operation = bench.settings, bench.operation
    reductions = settings.reductions if operation.reduces else ("sum",)
    roots = range(bench.group.size) if settings.root == -1 else (settings.root,)
    for name in settings.datatypes:
        for reduction in reductions:
            for root in roots if operation.rooted else (0,):
                counts = bench.counts(0, DATATYPES[name])
                yield from _sizes(bench, Point(counts, DATATYPES[name], reduction, root, False, 0))


def _sizes(bench: Bench, blank: Point) -> Iterator[ResultRow]:
    settings = bench.settings
    bench.everyone.barrier()
    bench.progress.begin(f"warm-up of {bench.operation.name} {blank.datatype.name}")
    for size in settings.warmup_sizes():
        point = at_size(bench, blank, size, in_place=False)
        calls = [bench.group.bind(bound_call(bench, point, i)) for i in range(settings.warmup_iters)]
        bench.progress.enter(1)
        bench.group.issue(calls)
        bench.group.wait()
    bench.progress.done()
    for cycle in count(1):
        for size in settings.sizes():
            placements = []
            for in_place in (False, True):
                point = at_size(bench, blank, size, in_place)
                bench.progress.begin(describe(bench, point))
                placements.append(measure(bench, point))
            yield ResultRow(
                size=point.bytes,
                count=point.counts.count,
                datatype=point.datatype.name,
                reduction=point.reduction if bench.operation.reduces else bench.operation.shows,
                root=point.root if bench.operation.rooted else -1,
                out_of_place=placements[0],
                in_place=placements[1],
                finished=time.time(),
            )
        if cycle == settings.run_cycles:  # 0: endless
            return


def at_size(bench: Bench, blank: Point, size: int, in_place: bool) -> Point:
    elements = size // blank.datatype.itemsize
    return replace(blank, counts=bench.counts(size, blank.datatype), in_place=in_place, elements=elements)


def describe(bench: Bench, point: Point) -> str:
    """Describe one measurement: operation, type, reduction, size, placement."""
    reduction = f" {point.reduction}" if bench.operation.reduces else ""
    place = "in-place" if point.in_place else "out-of-place"
    return f"{bench.operation.name} {point.datatype.name}{reduction}, {point.bytes} B, {place}"
