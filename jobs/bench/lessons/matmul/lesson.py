"""Measure products of square matrices by kernels with increasing data reuse, and by the vendor's library."""

from __future__ import annotations

from collections.abc import Sequence

from meshrun.jobs.bench.lessons.matmul import freivalds
from meshrun.jobs.bench.lessons.matmul.methods import (
    PRECISIONS,
    TILES,
    CpuProducts,
    GpuProducts,
    LessonPrecision,
    Matrices,
    ProductShape,
    TimedProduct,
)
from meshrun.jobs.bench.lessons.protocol import Chart, ChartLine, Context, Lesson, LessonTable
from meshrun.jobs.bench.lessons.pseudorandom import BLOCK
from meshrun.jobs.measure import patterns
from meshrun.jobs.measure.timers import Work

SIDES = {"cuda": 8192, "cpu": 1024}
TITLES = ("elements", "kernel", "time (ms)", "rate (TFLOP/s)", "of the best (%)", "error", "bound")


def measure(context: Context) -> Lesson:
    device = CpuProducts(context) if context.box is None else GpuProducts(context)
    side = context.options.get("side") or SIDES["cpu" if context.box is None else "cuda"]
    timed: list[TimedProduct] = []
    mismatches: list[str] = []
    skipped: list[str] = []
    for precision in (PRECISIONS[known] for known in device.PRECISIONS):
        nbytes, free = 3 * side * side * precision.dtype.itemsize, device.free()
        if nbytes + 64 * min(side * side, BLOCK) > free:
            skipped.append(f"{precision.name} is left out: it needs {nbytes:,} bytes, and {free:,} are free.")
            continue
        with device.matrices((side, side, side), precision) as matrices:
            timed += _products(context, device, (side, side, side), precision, matrices, mismatches)
    return _lesson(context, side, timed, skipped, mismatches)


def _products(
    context: Context,
    device: CpuProducts | GpuProducts,
    shape: ProductShape,
    precision: LessonPrecision,
    matrices: Matrices,
    mismatches: list[str],
) -> list[TimedProduct]:
    """Measure all methods of one precision: check each with exact factors, then time it with real ones."""
    xp, timed = context.world.xp, []
    bound = freivalds.bound(shape, precision)

    def compute(operation: Work) -> None:
        """Run the operation into poisoned memory."""
        matrices.c.view("u1")[...] = patterns.POISON
        device.settle()
        operation()
        device.settle()

    if context.check:
        freivalds.fill(xp, matrices, shape, precision, exact=True)
        for method, operation in matrices.operations.items():
            context.progress(f"{precision.name}, {method}: checking")
            compute(operation)
            rows = freivalds.wrong_rows(xp, matrices, shape, precision)
            if rows:
                rows_have = "row of integer products has" if rows == 1 else "rows of integer products have"
                mismatches.append(f"{precision.name}, {method}: {rows:,} {rows_have} wrong elements")
    freivalds.fill(xp, matrices, shape, precision, exact=False)
    device.settle()
    for method, operation in matrices.operations.items():
        context.progress(f"{precision.name}, {method}")
        error = None
        if context.check:
            compute(operation)
            error = freivalds.error(xp, matrices, shape, precision)
            if error > bound:
                mismatches.append(
                    f"{precision.name}, {method}: error {error:.2g}, and rounding explains {bound:.2g}"
                )
        timed.append(TimedProduct(precision.name, method, shape, device.seconds(operation), error, bound))
    return timed


def _lesson(
    context: Context, side: int, timed: list[TimedProduct], skipped: list[str], mismatches: list[str]
) -> Lesson:
    best: dict[str, float] = {}
    for one in timed:
        best[one.precision] = max(best.get(one.precision, 0.0), one.rate or 0.0)
    rows = tuple(
        (
            one.precision,
            one.method,
            one.seconds * 1e3,
            one.rate,
            None if not one.rate else 100 * one.rate / best[one.precision],
            one.error,
            one.bound,
        )
        for one in timed
    )
    precisions = list(best)
    lines = tuple(
        ChartLine(
            method,
            tuple((precisions.index(one.precision), one.rate) for one in timed if one.method == method),
        )
        for method in dict.fromkeys(one.method for one in timed)
    )
    return Lesson(
        "matmul",
        f"Matrix products, {side} x {side}, random numbers; {context.device_name}",
        (LessonTable(TITLES, rows),),
        (*sentences(timed), *skipped),
        (Chart("elements", "TFLOP/s", lines, names=tuple(precisions)),),
        tuple(mismatches),
        {
            "device": context.device,
            "samples": context.samples,
            "measured": [
                {
                    "precision": one.precision, "kernel": one.method, "shape": one.shape,
                    "seconds": one.seconds, "flops": one.flops, "error": one.error, "bound": one.bound,
                }
                for one in timed
            ],
        },
    )  # fmt: skip


def sentences(timed: Sequence[TimedProduct]) -> list[str]:
    rates = {(one.precision, one.method): one.rate for one in timed if one.rate}
    found = []
    for precision in ("float32", "float64"):
        blocks, whole = rates.get((precision, "blocks of 64")), rates.get((precision, "BLAS"))
        if blocks and whole:
            found.append(f"{precision}: BLAS is {whole / blocks:.2f} times as fast as in blocks of 64 x 64.")
    library = rates.get(("float32", "cuBLAS"))
    own = {method: rate for (precision, method), rate in rates.items() if precision == "float32"}
    own = {method: rate for method, rate in own.items() if method in TILES}
    if library and own:
        best = max(own, key=lambda method: own[method])
        found.append(
            f"float32: the best kernel here, {best}, reaches {100 * own[best] / library:.0f} % of cuBLAS' "
            f"{library:.3g} TFLOP/s (without TF32)."
        )
    faster = [
        f"{precision} {rates[precision, 'cuBLAS'] / library:.1f} times"
        for precision in ("tf32", "float16", "bfloat16")
        if library and (precision, "cuBLAS") in rates
    ]
    if faster:
        found.append(f"cuBLAS by precision, against its own float32: {', '.join(faster)}.")
    return found
