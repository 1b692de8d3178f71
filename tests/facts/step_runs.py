"""Runs that take steps, on ranks that are threads, and the plain NumPy loops with which they are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from queued_device import QueuedBackend

import meshrun
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

PAD: dict[str, Any] = {"reflect": "symmetric", "mirror": "reflect", "nearest": "edge", "wrap": "wrap"}
Arrays = list[np.ndarray[Any, Any]]


def stepped(
    folder: Path,
    job: Any,
    arrays: Arrays,
    steps: int,
    *,
    ranks: int = 1,
    devices: bool = False,
    parameters: dict[str, Any] | None = None,
    outputs: list[Path] | None = None,
    **options: Any,
) -> tuple[Arrays, dict[str, Any]]:
    """The outputs and the record. options: of both kinds."""
    inputs = [folder / f"in{number}.npy" for number in range(len(arrays))]
    for path, array in zip(inputs, arrays, strict=True):
        if not path.exists() or not np.array_equal(np.load(path), array):  # a file of that time stays
            np.save(path, array)
    outputs = outputs or [folder / f"out{number}.npy" for number in range(len(job.output_names))]
    of_steps = {name: options.pop(name) for name in list(options) if name in StepOptions.__dataclass_fields__}
    chosen = Options(device="cpu", steps=StepOptions(steps, **of_steps), **options)

    def rank(control: Control) -> Any:
        world = open_world("cpu", control=control)
        if devices:
            world.backend = QueuedBackend()
        return run(job, inputs, outputs, parameters or {}, chosen, world=world)

    record = run_ranks(ranks, rank, timeout=60)[0]
    return [np.load(path) for path in outputs if path.suffix == ".npy"], record


def padded(array: Any, widths: Any, boundary: str, cval: float) -> Any:
    more = [(0, 0)] * (array.ndim - len(widths))
    if boundary == "constant":
        return np.pad(array, [*widths, *more], "constant", constant_values=cval)
    return np.pad(array, [*widths, *more], PAD[boundary])


def beyond_ends(block: Any, boundary: str, widths: Any) -> Any:
    """A padded block with what a boundary says of the cells beyond the ends of its last axis."""
    low, high = widths[-1]
    own = block[..., low : block.shape[-1] - high]
    return padded(own, [*[(0, 0)] * (own.ndim - 1), (low, high)], boundary, 0)


def plain_loop(
    function: Any, arrays: Arrays, steps: int, widths: Any, boundary: str, feeds: Any, cval: float = 0.0
) -> Arrays:
    """The results after so many calls on whole padded arrays."""
    fields = list(arrays)
    results: Any = []
    for _ in range(steps):
        results = function(*(padded(field, widths, boundary, cval) for field in fields))
        results = results if isinstance(results, tuple) else (results,)
        for number, feed in enumerate(feeds):
            if feed is not None:
                fields[feed] = results[number]
    return list(results)


def weighted(widths: Any) -> Any:
    """A sum over neighbours in which no two have the same weight; exact for whole numbers modulo 2^32."""

    def function(block: Any, other: Any) -> Any:
        (low, high), (left, right) = widths
        rows, columns = block.shape[0] - low - high, block.shape[1] - left - right
        total = block[low : low + rows, left : left + columns] & np.uint32(0)
        for i in range(low + high + 1):
            for j in range(left + right + 1):
                part = (slice(i, i + rows), slice(j, j + columns))
                total += np.uint32(2 * (i * 7 + j) + 1) * block[part] + np.uint32(i + j) * other[part]
        return total, block[low : low + rows, left : left + columns] ^ np.uint32(1)

    return function


def weighted_job(function: Any, widths: Any, boundary: str, feeds: Any, *, in_place: bool) -> Any:
    """A job of `weighted`. in_place: it overwrites the blocks that it may change."""

    def job_function(block: Any, other: Any) -> Any:
        found = function(block, other)
        if in_place:
            block[...] = 0x5A5A
            if feeds[1] is not None:
                other[...] = 0x5A5A
        return found

    return meshrun.map_blocks(halo=widths, boundary=boundary, cval=9, outputs=2, feeds=feeds)(job_function)
