"""Measure transposes of a matrix, and a plain copy, which moves the same number of bytes."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrun.jobs.bench.lessons import pseudorandom
from meshrun.jobs.bench.lessons.protocol import Chart, ChartLine, Context, Lesson, LessonTable
from meshrun.jobs.bench.lessons.transpose.methods import (
    CpuTransposes,
    GpuTransposes,
    MatrixPair,
    MatrixShape,
    TimedTranspose,
)
from meshrun.jobs.measure import patterns
from meshrun.runner.errors import UserError

SHAPES = {
    "cuda": ((8192, 8192), (32768, 32768), (65536, 512), (512, 65536), (4097, 129)),
    "cpu": ((2048, 2048), (8192, 512), (512, 8192), (4097, 129)),
}
DTYPES = ("float16", "float32", "float64")


def measure(context: Context) -> Lesson:
    device = CpuTransposes(context) if context.box is None else GpuTransposes(context)
    shapes = [parse(text) for text in context.options.get("shapes") or ()]
    timed: list[TimedTranspose] = []
    mismatches: list[str] = []
    skipped: list[str] = []
    for dtype in map(np.dtype, context.options.get("dtypes") or DTYPES):
        for shape in shapes or SHAPES["cpu" if context.box is None else "cuda"]:
            title = f"{dtype.name}, {shape[0]} x {shape[1]}"
            nbytes, free = shape[0] * shape[1] * dtype.itemsize, device.free()
            check_bytes = 64 * min(shape[0] * shape[1], pseudorandom.BLOCK)
            if 2 * nbytes + check_bytes > free:
                skipped.append(
                    f"{title} is left out: it needs twice {nbytes:,} bytes, and {free:,} are free."
                )
                continue
            with device.matrix(shape, dtype) as matrix:
                seconds = _seconds(context, device, title, shape, matrix, mismatches)
            timed.append(TimedTranspose(shape, dtype, seconds))
    return _lesson(context, device.METHODS, timed, skipped, mismatches)


def parse(text: str) -> MatrixShape:
    """Parse a shape: "8192x512" -> (8192, 512). Raises UserError."""
    found = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})", text)
    if found is None:
        raise UserError("not a matrix shape", got=repr(text), expected="such as 8192x512")
    return int(found[1]), int(found[2])


def _seconds(
    context: Context,
    device: CpuTransposes | GpuTransposes,
    title: str,
    shape: MatrixShape,
    matrix: MatrixPair,
    mismatches: list[str],
) -> dict[str, float | None]:
    """Measure seconds by method; each is checked before it is timed."""
    xp = context.world.xp
    if context.check:
        context.progress(f"{title}: filling")
    pseudorandom.fill(xp, matrix.source)
    device.settle()
    seconds: dict[str, float | None] = {}
    for method, operation in matrix.operations.items():
        context.progress(f"{title}: {method}")
        if operation is None:
            seconds[method] = None
            continue
        if context.check:
            matrix.target.view(np.uint8)[...] = patterns.POISON
            device.settle()
            operation()
            device.settle()
            expected = shape if method != "copy" else (shape[0] * shape[1], 1)
            count, first = count_mismatches(xp, matrix.target, expected)
            if count:
                elements_are = "element is" if count == 1 else "elements are"
                mismatches.append(
                    f"{title}, {method}: {count:,} {elements_are} wrong, the first at {first:,}"
                )
        seconds[method] = device.seconds(operation)
    return seconds


def count_mismatches(xp: Any, target: Any, shape: MatrixShape) -> tuple[int, int]:
    """Count the elements that differ from the transpose of a filled matrix; also return the first's index.

    shape: (rows, columns) of the matrix.
    """
    rows, columns = map(np.uint64, shape)
    return pseudorandom.count_mismatches(xp, target, lambda place: place % rows * columns + place // rows)


def _lesson(
    context: Context,
    methods: tuple[str, ...],
    timed: list[TimedTranspose],
    skipped: list[str],
    mismatches: list[str],
) -> Lesson:
    titles = (
        "shape",
        *(f"{method} (GB/s)" for method in methods),
        *(f"{method} (% of copy)" for method in methods[1:]),
    )
    tables, charts = [], []
    for dtype in dict.fromkeys(one.dtype for one in timed):
        group = [one for one in timed if one.dtype == dtype]
        names = tuple(f"{one.shape[0]} x {one.shape[1]}" for one in group)
        rows = tuple(
            (
                name,
                *map(one.rate, methods),
                *(None if (part := one.of_copy(method)) is None else 100 * part for method in methods[1:]),
            )
            for name, one in zip(names, group, strict=True)
        )
        tables.append(LessonTable(titles, rows, dtype.name))
        lines = tuple(
            ChartLine(method, tuple(enumerate(one.rate(method) for one in group))) for method in methods
        )
        charts.append(Chart(f"shape, {dtype.name}", "GB/s", lines, names=names))
    cache = 0 if context.box is None else context.box.gpus[context.gpu].cache
    return Lesson(
        "transpose",
        f"Transposes, read plus written bytes a second; {context.device_name}",
        tuple(tables) or (LessonTable(titles, ()),),
        (*sentences(timed, cache), *skipped),
        tuple(charts),
        tuple(mismatches),
        {
            "device": context.device,
            "samples": context.samples,
            "measured": [
                {"dtype": one.dtype.name, "shape": one.shape, "seconds": one.seconds, "bytes": one.nbytes}
                for one in timed
            ],
        },
    )


def sentences(timed: Sequence[TimedTranspose], cache: int) -> list[str]:
    """Explain the rates. cache: bytes of the GPU's L2 cache, 0 on a CPU."""
    if not timed:
        return []
    found = []
    largest = max(timed, key=lambda one: one.nbytes)
    shares = {
        method: share
        for method in largest.seconds
        if method != "copy" and (share := largest.of_copy(method)) is not None
    }
    if shares:
        best = max(shares, key=lambda method: shares[method])
        found.append(
            f"Largest matrix ({largest}): {best} is best, at {100 * shares[best]:.0f} % of a copy's "
            f"{largest.rate('copy'):.0f} GB/s."
        )
    found += gain(timed, "strided", "blocked")
    found += gain(timed, "naive", "tiled")
    found += gain([one for one in timed if one.aligned], "tiled", "vectorised")
    small = [str(one) for one in timed if one.nbytes <= cache]
    if small:
        found.append(f"Matrix and result fit in the L2 cache of {cache >> 20} MiB: {'; '.join(small)}.")
    return found


def gain(timed: Sequence[TimedTranspose], before: str, after: str) -> list[str]:
    """Compare the second method with the first: median speed-up over all matrices."""
    gains = [
        b / a
        for one in timed
        if {before, after} <= one.seconds.keys() and (a := one.rate(before)) and (b := one.rate(after))
    ]
    if not gains:
        return []
    return [f"{after.capitalize()} is {statistics.median(gains):.2f} times as fast as {before} (median)."]
