"""The time and memory of transforms and transposes before they run, from rates of memory and links.

A rank with a block of B bytes transforms it along each axis at the rate of its memory, and sends B (1 - 1/g)
bytes to the others of a group of g ranks, in g - 1 messages. Bytes to ranks of its host and to others go
beside each other. What is done in parts (`plan.Passage`) goes beside the exchange.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrun.runner.forecast.jobs import JobForecast
from meshrun.runner.forecast.machine import Rate
from meshrun.runner.forecast.place import Place, Stage
from meshrun.runner.plan.redistribution import count_parts
from meshrun.runner.region import Shape
from meshrun.runner.system.host_memory import MMAP
from meshrun.runner.transforms.plan import Passage, Redistribution, Transform, TransformPlan, largest

# The part of the memory's rate at which an axis is transformed, reading and writing all cells once. GPU:
# cuFFT, 1024^3 complex64 on an H200 in 14.9 ms; CPU: scipy.fft, one thread, of a core's copy.
TRANSFORM_GPU, TRANSFORM_CPU = 0.72, 0.25
TRANSPOSE_GPU = 0.8  # the same of a transpose, and of packing
# The memory does not limit a CPU's transpose: NumPy moves cell by cell, in one thread, in a time that hardly
# depends on the size of a cell. A result too large for memory that the process has kept is new memory, which
# the kernel fills with zeros. Both from 2048^2 and 4096^2 in benchmarks/results/exchange_model_1.json.
TRANSPOSE_CELL = 3e-9  # seconds
NEW_MEMORY = 8e9  # bytes per second


def forecast_transform(
    place: Place,
    plan: TransformPlan,
    stored: np.dtype[Any],
    working: np.dtype[Any],
    result: np.dtype[Any],
    copies: int,
) -> JobForecast:
    """Return the forecast of a Fourier transform. stored, working, result: dtypes of the file, of what is
    transformed, and of the output. copies: of a block that fit the memory."""
    itemsize = max(working.itemsize, result.itemsize)
    splits, shape = list(plan.splits), plan.shape
    rate = place.memory_rate(TRANSFORM_GPU if place.gpu else TRANSFORM_CPU)
    stages = place.files("read", largest(plan.shape, plan.grid, splits) * stored.itemsize)
    pieces = 1

    def transform(some: Sequence[Transform], beside: bool) -> list[Stage]:
        nonlocal shape
        moved = 0
        for one in some:
            cells = max(largest(shape, plan.grid, splits), largest(one.shape, plan.grid, splits))
            moved, shape = moved + 2 * cells * itemsize * len(one.axes), one.shape
        return [Stage("transform", moved, rate, moved / rate.value, beside=beside)] if moved else []

    for step in plan.steps:
        if isinstance(step, Transform):
            stages += transform([step], False)
            continue
        stages += transform(step.before, place.overlaps)
        ranks = plan.grid[step.exchange.grid_axis]
        pieces = _parts(step, shape, splits, plan, itemsize, ranks)
        stages.append(_exchange(place, plan, step.exchange, splits, itemsize, pieces))
        splits[step.exchange.grid_axis] = step.exchange.new
        stages += transform(step.after, place.overlaps)
    stages += place.files("write", largest(plan.last_shape, plan.grid, splits) * result.itemsize)
    facts = {
        "precision": precision_text(stored, working, result),
        "decomposition": plan.name,
        "process_grid": list(plan.grid),
        "exchanges": len(plan.exchanges),
    }
    memory = copies * plan.largest_block * itemsize
    return JobForecast(plan.last_shape, str(result), facts, memory, stages, pieces)


def precision_text(stored: np.dtype[Any], working: np.dtype[Any], result: np.dtype[Any]) -> str:
    """Return how a file's numbers are converted, for records. working: dtype that is transformed."""
    real = {8: "float32", 16: "float64"}[working.itemsize] if working.kind == "c" else working.name
    same = stored.kind == "c" or stored.name == real
    return f"{stored.name}{'' if same else f' converted to {real}'}, result {result.name}"


def _exchange(
    place: Place,
    plan: TransformPlan,
    exchange: Redistribution,
    splits: Sequence[int],
    itemsize: int,
    parts: int,
) -> Stage:
    ranks = plan.grid[exchange.grid_axis]
    stride = math.prod(plan.grid[exchange.grid_axis + 1 :])
    block = largest(exchange.shape, plan.grid, splits) * itemsize
    return place.exchange(block * (1 - 1 / ranks), ranks, parts * (ranks - 1), stride)


def _parts(
    passage: Passage, shape: Shape, splits: Sequence[int], plan: TransformPlan, itemsize: int, ranks: int
) -> int:
    shared = list(shape)  # by the ranks of the group
    for axis, parts in zip(splits, plan.grid, strict=True):
        if axis != passage.exchange.old:
            shared[axis] = -(-shared[axis] // parts)
    return count_parts(
        tuple(shared), passage.exchange.old, passage.exchange.new, passage.along, ranks, itemsize
    )


def forecast_transpose(
    place: Place, shape: Shape, dtype: np.dtype[Any], order: Shape, split: int, passes: int, copies: int
) -> JobForecast:
    """Return the forecast of a transpose in so many passes. split: the axis along which the input is split.
    copies: of a block that fit the memory."""
    block = largest(shape, (place.ranks,), [split]) * dtype.itemsize
    several = place.ranks > 1 and order[0] != split
    moved = 2 * block * (2 if several and place.gpu else 1)  # packed, and transposed
    stages = place.files("read", block)
    rate = _transpose_rate(place, block // passes, dtype.itemsize)
    stages.append(Stage("transpose", moved, rate, moved / rate.value, beside=several and place.overlaps))
    pieces = count_parts(shape, split, order[0], order[0], place.ranks, max(dtype.itemsize // passes, 1))
    if several:
        messages = passes * pieces * (place.ranks - 1)
        stages.append(place.exchange(block * (1 - 1 / place.ranks), place.ranks, messages))
    stages += place.files("write", block)
    facts = {"axes": list(order), "passes": passes}
    result = tuple(shape[axis] for axis in order)
    return JobForecast(result, str(dtype), facts, copies * -(-block // passes), stages, pieces)


def _transpose_rate(place: Place, result: int, itemsize: int) -> Rate:
    """Return the bytes per second, read plus written, of a rank's transpose. result: bytes of each pass."""
    if place.gpu:
        return place.memory_rate(TRANSPOSE_GPU)
    seconds = TRANSPOSE_CELL / itemsize + (1 / NEW_MEMORY if result > MMAP else 0.0)  # of a byte
    return Rate(2 / seconds)
