"""Transposes of a matrix beside a plain copy of it, which moves as many bytes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

import runner
from jobs.bench.lessons import pseudorandom as scrambled
from jobs.bench.lessons.protocol import Chart, Lesson, Line, Ranks, Stage, Table
from jobs.bench.lessons.timers import device, name
from jobs.bench.lessons.transpose.explain import Timed, paragraphs
from jobs.bench.lessons.transpose.methods import OnCpu, OnGpu, Open, Shape
from jobs.measure import patterns

SUMMARY = "Transposes of a matrix, from naive to cuBLAS."
RANKS: Ranks = "one"
CPU = True
SHAPES = {
    "cuda": ((8192, 8192), (32768, 32768), (65536, 512), (512, 65536), (4097, 129)),
    "cpu": ((2048, 2048), (8192, 512), (512, 8192), (4097, 129)),
}
DTYPES = ("float16", "float32", "float64")


def measure(stage: Stage) -> Lesson:
    place = OnCpu(stage) if stage.box is None else OnGpu(stage)
    shapes = [parse(text) for text in stage.options.get("shapes") or ()]
    timed: list[Timed] = []
    wrong: list[str] = []
    skipped: list[str] = []
    for dtype in map(np.dtype, stage.options.get("dtypes") or DTYPES):
        for shape in shapes or SHAPES["cpu" if stage.box is None else "cuda"]:
            title = f"{dtype.name}, {shape[0]} x {shape[1]}"
            nbytes, free = shape[0] * shape[1] * dtype.itemsize, place.free()
            looking = 64 * min(shape[0] * shape[1], scrambled.BLOCK)  # at the result, a block at a time
            if 2 * nbytes + looking > free:
                skipped.append(f"{title} is left out: twice {nbytes:,} bytes, and {free:,} are free.")
                continue
            with place.matrix(shape, dtype) as matrix:
                timed.append(_timed(stage, place, title, shape, dtype, matrix, wrong))
    return _lesson(stage, place.WAYS, timed, skipped, wrong)


def parse(text: str) -> Shape:
    """ "8192x512" -> (8192, 512). Raises UserError."""
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if found is None:
        raise runner.UserError("this is no shape of a matrix", got=text, expected="such as 8192x512")
    return int(found[1]), int(found[2])


def _timed(
    stage: Stage,
    place: OnCpu | OnGpu,
    title: str,
    shape: Shape,
    dtype: np.dtype[Any],
    matrix: Open,
    wrong: list[str],
) -> Timed:
    xp = stage.world.xp
    if stage.check:
        stage.progress(f"{title}: filling")
    fill(xp, matrix.source)
    place.settle()
    seconds: dict[str, float | None] = {}
    for way, action in matrix.actions.items():
        stage.progress(f"{title}: {way}")
        if action is None:
            seconds[way] = None
            continue
        if stage.check:
            matrix.target.view(np.uint8)[...] = patterns.POISON
            place.settle()
            action()
            place.settle()
            expected = shape if way != "copy" else (shape[0] * shape[1], 1)
            count, first = differs(xp, matrix.target, expected)
            if count:
                wrong.append(f"{title}, {way}: {count:,} elements are wrong, the first at {first:,}")
        seconds[way] = place.seconds(action)
    return Timed(shape, dtype, seconds)


def fill(xp: Any, source: Any) -> None:
    """Elements that tell their places apart; source: flat, unsigned."""
    for first, index in scrambled.indices(xp, source.size):
        source[first : first + index.size] = scrambled.words(index, source.itemsize)


def differs(xp: Any, target: Any, shape: Shape) -> tuple[int, int]:
    """How many elements of `target` are not those of a filled matrix' transpose, and the first one's index.

    shape: (rows, columns) of the matrix that `fill` filled.
    """
    rows, columns = shape
    count = first = 0
    for begin, place in scrambled.indices(xp, target.size, 0):
        index = place % np.uint64(rows) * np.uint64(columns) + place // np.uint64(rows)
        wrong = target[begin : begin + place.size] != scrambled.words(index, target.itemsize)
        found = int(wrong.sum())
        if found and not count:
            first = begin + int(wrong.argmax())
        count += found
    return count, first


def _lesson(
    stage: Stage, ways: tuple[str, ...], timed: list[Timed], skipped: list[str], wrong: list[str]
) -> Lesson:
    titles = ("shape", *(f"{way} (GB/s)" for way in ways), *(f"{way} (% of copy)" for way in ways[1:]))
    tables, charts = [], []
    for dtype in dict.fromkeys(one.dtype for one in timed):
        group = [one for one in timed if one.dtype == dtype]
        rows = tuple(
            (
                f"{one.shape[0]} x {one.shape[1]}",
                *map(one.rate, ways),
                *(None if (part := one.of_copy(way)) is None else 100 * part for way in ways[1:]),
            )
            for one in group
        )
        tables.append(Table(titles, rows, dtype.name))
        lines = tuple(
            Line(way, tuple((number, one.rate(way)) for number, one in enumerate(group))) for way in ways
        )
        charts.append(Chart(f"shape, {dtype.name}", "GB/s", lines, names=tuple(str(row[0]) for row in rows)))
    if not tables:
        tables.append(Table(titles, ()))
    facts = {
        "device": device(stage),
        "samples": stage.samples,
        "measured": [
            {"dtype": one.dtype.name, "shape": one.shape, "seconds": one.seconds, "bytes": one.nbytes}
            for one in timed
        ],
    }
    return Lesson(
        "transpose",
        f"Transposes, read plus written bytes a second; {name(stage)}",
        tuple(tables),
        (*paragraphs(stage, timed), *skipped),
        tuple(charts),
        tuple(wrong),
        facts,
    )
