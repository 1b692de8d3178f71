"""Products of square matrices by kernels of growing reuse, beside the vendor's library."""

from __future__ import annotations

from typing import Any

from jobs.bench.lessons.matmul import freivalds
from jobs.bench.lessons.matmul.explain import Timed, paragraphs
from jobs.bench.lessons.matmul.methods import PRECISIONS, Action, OnCpu, OnGpu, Open, Precision, Shape
from jobs.bench.lessons.protocol import Chart, Lesson, Line, Ranks, Stage, Table
from jobs.bench.lessons.pseudorandom import BLOCK
from jobs.bench.lessons.timers import device, name
from jobs.measure import patterns

SUMMARY = "Matrix products, from naive to cuBLAS."
RANKS: Ranks = "one"
CPU = True
SIDES = {"cuda": 8192, "cpu": 1024}
TITLES = ("elements", "kernel", "time (ms)", "rate (TFLOP/s)", "of the best (%)", "error", "bound")


def measure(stage: Stage) -> Lesson:
    place = OnCpu(stage) if stage.box is None else OnGpu(stage)
    side = stage.options.get("side") or SIDES["cpu" if stage.box is None else "cuda"]
    timed: list[Timed] = []
    wrong: list[str] = []
    skipped: list[str] = []
    for precision in (PRECISIONS[known] for known in place.PRECISIONS):
        nbytes, free = 3 * side * side * precision.dtype.itemsize, place.free()
        if nbytes + 64 * min(side * side, BLOCK) > free:
            skipped.append(f"{precision.name} is left out: {nbytes:,} bytes, and {free:,} are free.")
            continue
        with place.matrices((side, side, side), precision) as matrices:
            timed += _timed(stage, place, (side, side, side), precision, matrices, wrong)
    return _lesson(stage, side, timed, skipped, wrong)


def _timed(
    stage: Stage,
    place: OnCpu | OnGpu,
    shape: Shape,
    precision: Precision,
    matrices: Open,
    wrong: list[str],
) -> list[Timed]:
    xp, timed = stage.world.xp, []
    bound = freivalds.bound(shape, precision)

    def afresh(action: Action) -> None:
        matrices.c.view("u1")[...] = patterns.POISON
        place.settle()
        action()
        place.settle()

    if stage.check:
        freivalds.fill(xp, matrices, shape, precision, exact=True)
        for way, action in matrices.actions.items():
            stage.progress(f"{precision.name}, {way}: checking")
            afresh(action)
            rows = freivalds.wrong_rows(xp, matrices, shape, precision)
            if rows:
                wrong.append(
                    f"{precision.name}, {way}: {rows:,} rows of integer products have wrong elements"
                )
    freivalds.fill(xp, matrices, shape, precision, exact=False)
    place.settle()
    for way, action in matrices.actions.items():
        stage.progress(f"{precision.name}, {way}")
        error = None
        if stage.check:
            afresh(action)
            error = freivalds.error(xp, matrices, shape, precision)
            if error > bound:
                wrong.append(
                    f"{precision.name}, {way}: an error of {error:.2g}, where rounding explains {bound:.2g}"
                )
        timed.append(Timed(precision.name, way, shape, place.seconds(action), error, bound))
    return timed


def _lesson(stage: Stage, side: int, timed: list[Timed], skipped: list[str], wrong: list[str]) -> Lesson:
    best: dict[str, float] = {}
    for one in timed:
        best[one.precision] = max(best.get(one.precision, 0.0), one.rate or 0.0)
    rows = tuple(
        (
            one.precision,
            one.way,
            one.seconds * 1e3,
            one.rate,
            None if not one.rate else 100 * one.rate / best[one.precision],
            one.error,
            one.bound,
        )
        for one in timed
    )
    facts: dict[str, Any] = {
        "device": device(stage),
        "samples": stage.samples,
        "measured": [
            {
                "precision": one.precision, "kernel": one.way, "shape": one.shape, "seconds": one.seconds,
                "flops": one.flops, "error": one.error, "bound": one.bound,
            }
            for one in timed
        ],
    }  # fmt: skip
    return Lesson(
        "matmul",
        f"Matrix products, {side} x {side}, random numbers; {name(stage)}",
        (Table(TITLES, rows),),
        (*paragraphs(stage, timed), *skipped),
        (_chart(timed),),
        tuple(wrong),
        facts,
    )


def _chart(timed: list[Timed]) -> Chart:
    """Bars for each kernel at each precision."""
    places = {precision: at for at, precision in enumerate(dict.fromkeys(one.precision for one in timed))}
    lines = tuple(
        Line(way, tuple((places[one.precision], one.rate) for one in timed if one.way == way))
        for way in dict.fromkeys(one.way for one in timed)
    )
    return Chart("elements", "TFLOP/s", lines, names=tuple(places))
