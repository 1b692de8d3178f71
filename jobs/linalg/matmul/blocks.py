"""`meshrun.matmul`: the product of arrays in memory, split by rows over the ranks."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from meshrun.jobs.linalg.matmul.gathered import multiply_gathered
from meshrun.jobs.linalg.matmul.job import shapes_of
from meshrun.jobs.linalg.matmul.plan import MatmulLayout, panel_cuts, panels_of
from meshrun.jobs.linalg.matmul.precision import choose
from meshrun.jobs.linalg.matmul.products import Products, open_products, share_of_cores
from meshrun.jobs.linalg.matmul.summa import Schedule, multiply_summa
from meshrun.runner.arrays.distributed_array import DistributedArray, array_of
from meshrun.runner.arrays.operations.split_array import SplitArray, begin, check_small
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.device.host_blas import adds_products
from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import bounds, split_along
from meshrun.runner.region import Array
from meshrun.runner.run.array_call import host_array
from meshrun.runner.run.main_program.remote_array import ranks_of
from meshrun.runner.spelling import python_caller
from meshrun.runner.world.world import World, single_rank_world

Word = Literal["auto", "float64", "float32", "tf32", "float16", "bfloat16"]


@python_caller()
def matmul(a: Any, b: Any, *, world: World | None = None, precision: Word = "auto") -> Array:
    """Multiply matrices in memory, as numpy.matmul does; return this rank's rows of the product. Collective.

    In a world of several ranks, each passes its rows of both. Of p parts of n rows, the first n % p have one
    more. Rows of B move from rank to rank while products are computed.

    Parameters
    ----------
    a, b : numpy.ndarray, cupy.ndarray or DistributedArray
        Of one or two axes; of CuPy on a GPU rank. A vector of one axis is whole on every rank.
    world : World, optional
        As `meshrun.open_world` returns it. None: this process alone. Distributed arrays know their world.
    precision : str
        To which factors are rounded before they are multiplied, as the option `precision` of
        `meshrun run matmul`. "auto": that of the result.

    Returns
    -------
    numpy.ndarray, cupy.ndarray or DistributedArray
        This rank's rows, with NumPy's dtype; a vector is whole on every rank. Of distributed arrays, the
        product is a distributed array, split by rows.

    Raises
    ------
    UserError
        On every rank, for shapes or dtypes that do not multiply.

    Examples
    --------
    >>> c = meshrun.matmul(meshrun.load(world, "a.npy"), meshrun.load(world, "b.npy"))
    """
    if (ranks := ranks_of((a, b))) is not None:
        return ranks.call(matmul, a, b, precision=precision)
    if isinstance(a, SplitArray) or isinstance(b, SplitArray):
        return _multiply_distributed(a, b, precision)
    if world is None:
        if hasattr(a, "__cuda_array_interface__") or hasattr(b, "__cuda_array_interface__"):
            from meshrun.runner.device.cuda import borrowed

            with borrowed(a) as backend:
                return _multiply(single_rank_world(backend), a, b, precision)
        world = single_rank_world(CpuBackend())
    return _multiply(world, a, b, precision)


def _multiply_distributed(a: Any, b: Any, word: Word) -> DistributedArray:
    """Return the product, split by rows, of arrays of which one at least is distributed. Collective."""
    world = next(one.world for one in (a, b) if isinstance(one, SplitArray))
    begin(world, "matmul", a, b, word)
    left = _rows(world, a) if np.ndim(a) == 2 else _whole_vector(world, a)
    product = _multiply(world, left, _rows(world, b), word)
    parts = split_along((*np.shape(a)[:-1], *np.shape(b)[1:]), 0, world.size)
    # The product with a vector on the left is whole on every rank.
    return array_of(world, parts, product if np.ndim(a) == 2 else product[parts[world.rank].slices])


def _rows(world: World, value: Any) -> Array:
    """Return this rank's rows of a matrix, or elements of a vector. Collective."""
    parts = split_along(np.shape(value), 0, world.size)
    if isinstance(value, SplitArray):
        return world.xp.ascontiguousarray(value.fetched(parts))
    check_small(value, value.shape)
    return world.xp.asarray(value[parts[world.rank].slices])


def _whole_vector(world: World, vector: Any) -> Array:
    """Return a vector that every rank has whole. Collective."""
    return world.xp.asarray(vector.gather() if isinstance(vector, SplitArray) else vector)


def _multiply(world: World, a: Any, b: Any, word: Word) -> Array:
    xp, backend = world.xp, world.backend
    a, b = (host_array(one) if xp is np else xp.asarray(one) for one in (a, b))
    kinds = world.control.allgather((a.shape, np.dtype(a.dtype), b.shape, np.dtype(b.dtype)))
    whole_a, whole_b = world.collective_call(lambda: _whole(kinds))
    shapes = world.collective_call(lambda: shapes_of(whole_a, whole_b))
    rounding = world.collective_call(
        lambda: choose(a.dtype, b.dtype, word, gpu=backend.device.kind == "cuda")
    )
    products = open_products(backend, rounding)
    left, right = a if a.ndim == 2 else a[None, :], b if b.ndim == 2 else b[:, None]
    sums = backend.empty((left.shape[0], shapes.columns), rounding.sums)
    with share_of_cores(world):
        if backend.asynchronous and world.size > 1:
            multiply_gathered(world, products, shapes.length, left, right, sums)
        else:
            _multiply_panels(world, products, shapes.length, left, right, sums)
    return products.rounded(sums).reshape(
        [n for axis, n in enumerate(sums.shape) if axis not in shapes.dropped]
    )


def _multiply_panels(
    world: World, products: Products, length: int, left: Array, right: Array, sums: Array
) -> None:
    """Fill `sums`, this rank's rows of the product, panel by panel of the length. Collective."""
    size, rank = world.size, world.rank
    left, right = products.stored(left), products.stored(right)
    in_place = all(world.control.allgather(adds_products(products.precision.sums)))
    panels = panels_of(length, size, in_place=in_place) if size > 1 else 1
    layout = MatmulLayout("summa", (size, 1), 1, 1, panels, (1, 1), 0, 0)
    first = bounds(length, size, rank)[0]
    schedule = Schedule(layout.grid, panels)
    of_a, of_b = {}, {}
    for number, (start, stop) in enumerate(panel_cuts(length, layout.grid, panels)):
        of_a[number] = left[:, start:stop]
        if schedule.holder_of_b(rank, number) == rank:
            of_b[number] = right[start - first : stop - first]
    multiply_summa(world, layout, length, products, of_a, of_b, sums)


def _whole(kinds: list[tuple[Any, ...]]) -> tuple[Any, Any]:
    """Return the shapes of the whole factors; UserError for blocks that are no even split."""
    first = kinds[0]
    shapes = []
    for number, name in ((0, "A"), (2, "B")):
        blocks = [one[number] for one in kinds]
        split = not (name == "A" and len(first[0]) == 1)
        rows = sum(block[0] if block else 0 for block in blocks) if split else first[0][0]
        for rank, (block, one) in enumerate(zip(blocks, kinds, strict=True)):
            start, stop = bounds(rows, len(kinds), rank) if split else (0, rows)
            if block != (stop - start, *first[number][1:]) or one[number + 1] != first[number + 1]:
                raise UserError(
                    f"the ranks' blocks of {name} do not fit together",
                    got=f"{one[number + 1]} of shape {block} on rank {rank}",
                    expected=f"{first[number + 1]} of shape {(stop - start, *first[number][1:])}",
                )
        shapes.append((rows, *first[number][1:]))
    return shapes[0], shapes[1]
