"""The job `matmul`: the product of two matrices in files, over all ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import meshrun
from meshrun.jobs.linalg.matmul import plan
from meshrun.jobs.linalg.matmul.files import Factor, Product
from meshrun.jobs.linalg.matmul.freivalds import check_product
from meshrun.jobs.linalg.matmul.plan import MatmulLayout, MatmulProblem, cut, panel_cuts
from meshrun.jobs.linalg.matmul.precision import Precision, choose
from meshrun.jobs.linalg.matmul.products import Products, open_products, share_of_cores
from meshrun.jobs.linalg.matmul.ring import multiply_ring
from meshrun.jobs.linalg.matmul.summa import Schedule, multiply_summa
from meshrun.runner.device.host_blas import adds_products
from meshrun.runner.errors import UserError
from meshrun.runner.forecast.jobs import JobForecast
from meshrun.runner.forecast.place import Place, Stage
from meshrun.runner.plan.task import ArrayType
from meshrun.runner.region import Shape
from meshrun.runner.report.record import Record
from meshrun.runner.report.units import bytes_text
from meshrun.runner.spelling import run_command
from meshrun.runner.storage.formats.registry import Source
from meshrun.runner.world.world import World

FILE_MOST = (1 << 63) - 1  # bytes


@dataclass(frozen=True)
class Shapes:
    """The shapes of a product. left, right: axis of length 1 that a factor with one axis does not have."""

    rows: int
    length: int
    columns: int
    left: int | None
    right: int | None

    @property
    def dropped(self) -> tuple[int, ...]:
        """Axes of the product that its file does not have."""
        return (*((0,) if self.left is not None else ()), *((1,) if self.right is not None else ()))

    @property
    def result(self) -> Shape:
        return tuple(n for axis, n in enumerate((self.rows, self.columns)) if axis not in self.dropped)


def shapes_of(left: Shape, right: Shape) -> Shapes:
    """Return the shapes of the product of two arrays, each of one or two axes, as numpy.matmul has them."""
    got = f"A of shape {left} and B of shape {right}"
    if not (1 <= len(left) <= 2 and 1 <= len(right) <= 2):
        raise UserError("matmul multiplies arrays of one or two axes", got=got)
    rows, length = left if len(left) == 2 else (1, left[0])
    inner, columns = right if len(right) == 2 else (right[0], 1)
    if length != inner:
        raise UserError(
            "the shapes do not multiply",
            got=got,
            expected=f"as many rows of B as A has columns, {length}",
            hint=run_command("transpose, if one factor is stored transposed") if inner in left else None,
        )
    return Shapes(rows, length, columns, None if len(left) == 2 else 0, None if len(right) == 2 else 1)


def problem_of(
    shapes: Shapes,
    precision: Precision,
    left: np.dtype[Any],
    right: np.dtype[Any],
    *,
    queued: bool,
    in_place: bool,
) -> MatmulProblem:
    """Return what the choice of the algorithm depends on. left, right: dtypes of A and B in their files.

    Raises UserError, on every rank, for a product that no file can hold.
    """
    if math.prod(shapes.result) * precision.result.itemsize > FILE_MOST:
        raise UserError(
            "the product is larger than a file can be",
            got=f"{precision.result} of shape {shapes.result}",
            expected=f"at most {FILE_MOST:,} bytes",
            everywhere=True,
        )
    of_a, of_b = (one.itemsize if precision.converts(one) else 0 for one in (left, right))
    return MatmulProblem(
        shapes.rows, shapes.length, shapes.columns, precision.stored.itemsize, precision.sums.itemsize,
        precision.result.itemsize, (of_a, of_b),
        precision.stored.itemsize if precision.rounds and not queued else 0,  # a GPU rounds in place
        queued, in_place,
    )  # fmt: skip


def _forecast(place: Place, inputs: Sequence[ArrayType], *, algorithm: str, precision: str) -> JobForecast:
    (left, of_a), (right, of_b) = ((shape, np.dtype(dtype)) for shape, dtype in inputs)
    shapes = shapes_of(left, right)
    rounding = choose(of_a, of_b, precision, gpu=place.gpu)
    in_place = not place.gpu and adds_products(rounding.sums)
    problem = problem_of(shapes, rounding, of_a, of_b, queued=place.gpu, in_place=in_place)
    layout, other = plan.choose(problem, place.ranks, place.memory, algorithm)
    operations = 2 * math.prod((problem.rows, problem.length, problem.columns))
    size = math.prod(left) * of_a.itemsize + math.prod(right) * of_b.itemsize * layout.turns  # turns read B
    stages = place.files("read", size / place.ranks)
    rate = place.products(rounding.name)
    if rate is not None:
        share = -(-operations // place.ranks)
        beside = place.ranks > 1 and place.overlaps
        stages.append(Stage("multiply", share, rate, share / rate.value, "operations", beside))
    if layout.received:
        stages.append(place.exchange(layout.received, place.ranks, layout.messages))
    stages += place.files("write", math.prod(shapes.result) * problem.result / place.ranks)
    facts = {**_facts(layout, other, rounding), "operations": operations}
    pieces = layout.panels or layout.ranks * layout.pieces * layout.turns
    return JobForecast(shapes.result, str(rounding.result), facts, layout.memory, stages, pieces)


@meshrun.job(inputs=("a", "b"), verify=check_product, forecast=_forecast)
def matmul(
    world: World,
    inputs: Sequence[Source],
    create: Any,
    memory: int,
    *,
    algorithm: Literal["auto", "ring", "summa"] = "auto",
    precision: Literal["auto", "float64", "float32", "tf32", "float16", "bfloat16"] = "auto",
) -> Record:
    """Multiply two matrices: OUTPUT is A times B, as numpy.matmul defines it.

    A and B have one or two axes. The result has the dtype that NumPy's promotion gives. Sums of float16 and
    bfloat16 are float32 and rounded once. The same number of ranks gives the same bits.

    algorithm: ring passes B round; summa is for a grid of ranks. auto: what moves fewer bytes.
    precision: to which factors are rounded. auto: the result's. tf32: float32 with 10 bits of mantissa, on
        GPUs.
    """
    left, right = inputs
    backend = world.backend
    shapes = world.collective_call(lambda: _checked(inputs))
    rounding = world.collective_call(
        lambda: choose(left.dtype, right.dtype, precision, gpu=backend.device.kind == "cuda")
    )
    queued = backend.asynchronous
    in_place = all(world.control.allgather(not queued and adds_products(rounding.sums)))  # hosts may differ
    problem = problem_of(shapes, rounding, left.dtype, right.dtype, queued=queued, in_place=in_place)
    tile = plan.chunks_of(problem, world.size)
    sink = create(shapes.result, rounding.result, tuple(
        n for axis, n in enumerate(tile) if axis not in shapes.dropped
    ))  # fmt: skip
    unit = tile if sink.chunks is not None else (1, 1)
    room = min(world.control.allgather(memory))
    layout, other = plan.choose(problem, world.size, room, algorithm, unit)
    begin = time.perf_counter()
    products = open_products(backend, rounding)
    factors = (
        Factor(left, shapes.left, products, backend, world.phases),
        Factor(right, shapes.right, products, backend, world.phases),
    )
    product = Product(sink, shapes.dropped, products, world)
    multiply = multiply_ring if layout.algorithm == "ring" else _multiply_blocks
    with share_of_cores(world):
        multiply(world, layout, problem, products, *factors, product)
    sink.sync()
    backend.synchronize()
    seconds = time.perf_counter() - begin
    files = world.phases.seconds("read") + world.phases.seconds("write")
    world.phases.add("multiply", max(seconds - files, 0.0))
    return _record(world, layout, other, problem, rounding, seconds)


def _checked(inputs: Sequence[Source]) -> Shapes:
    for source in inputs:
        if not source.parallel:
            raise UserError(
                "matmul reads its factors in parts",
                got=source.path,
                expected="files such as .npy, .zarr or .h5",
            )
    return shapes_of(inputs[0].shape, inputs[1].shape)


def _multiply_blocks(
    world: World,
    layout: MatmulLayout,
    problem: MatmulProblem,
    products: Products,
    left: Factor,
    right: Factor,
    out: Product,
) -> None:
    """Read this rank's blocks, multiply by SUMMA, and write its block of the product. Collective."""
    schedule, backend, precision = Schedule(layout.grid, layout.panels), world.backend, products.precision
    row, column = schedule.place(world.rank)
    rows = cut(problem.rows, layout.grid[0], row, layout.unit[0])
    columns = cut(problem.columns, layout.grid[1], column, layout.unit[1])
    of_a, of_b = {}, {}
    for number, span in enumerate(panel_cuts(problem.length, layout.grid, layout.panels)):
        if schedule.holder_of_a(world.rank, number) == world.rank:
            of_a[number] = backend.empty((rows[1] - rows[0], span[1] - span[0]), precision.stored)
            left.read(rows, span, of_a[number])
        if schedule.holder_of_b(world.rank, number) == world.rank:
            of_b[number] = backend.empty((span[1] - span[0], columns[1] - columns[0]), precision.stored)
            right.read(span, columns, of_b[number])
    sums = backend.empty((rows[1] - rows[0], columns[1] - columns[0]), precision.sums)
    multiply_summa(world, layout, problem.length, products, of_a, of_b, sums)
    out.put(rows, columns, sums)
    out.flush(backend.mark())


def _facts(layout: MatmulLayout, other: MatmulLayout | None, precision: Precision) -> Record:
    """Return what was chosen, and the bytes of the other algorithm."""
    against = "" if other is None else f"; {other.describe()}: {bytes_text(other.received)}"
    return {
        "algorithm": layout.describe(),
        "precision": f"factors {precision.name}, sums {precision.sums}, result {precision.result}",
        "received": f"{bytes_text(layout.received)} a rank{against}",
    }


def _record(
    world: World,
    layout: MatmulLayout,
    other: MatmulLayout | None,
    problem: MatmulProblem,
    precision: Precision,
    seconds: float,
) -> Record:
    seconds = max(world.control.allgather(seconds))
    operations = 2 * math.prod((problem.rows, problem.length, problem.columns))
    return {
        **_facts(layout, other, precision),
        "memory": f"{bytes_text(layout.memory)} a rank",
        "operations": operations,
        "seconds": seconds,
        "operations_per_second": operations / seconds if seconds else None,
    }
