"""Linear algebra of a small matrix per cell: arrays of shape (n, m, k, k) that are split over the cells.

Each rank computes its cells by itself, in one call of NumPy or CuPy for all matrices.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.tools.cells import made_of, refuse, taken
from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import Partition
from meshrun.runner.region import Array, Shape


def solve(a: DistributedArray, b: DistributedArray) -> DistributedArray:
    """Return x with a @ x = b, for the matrix of each cell. Collective.

    Parameters
    ----------
    a : DistributedArray
        Of shape (..., k, k), split along the axes before the last two.
    b : DistributedArray
        Of shape (..., k, j), whose cells are split as those of `a`.

    Returns
    -------
    DistributedArray
        Of the shape of `b`.

    Raises
    ------
    UserError
        On every rank, if matrices are not square or are split, if the shapes do not fit, and, on CPUs, if a
        matrix is singular. CuPy returns infinities or NaNs for it.

    Examples
    --------
    >>> x = meshrun.solve(a, b)  # a: (n, m, 3, 3), b: (n, m, 3, 1)
    """
    a, b = _matrices("solve", a), taken("solve", b)
    if (
        len(b.shape) != len(a.shape)
        or b.shape[-2] != a.shape[-1]
        or _leading(b.partition, b.shape[-2:]) != _leading(a.partition, b.shape[-2:])
    ):
        raise UserError(
            "solve: the right sides do not fit the matrices",
            got=f"shape {b.shape} in parts {b.partition.grid}, beside {a.shape} in parts {a.partition.grid}",
            expected=f"shape {(*a.shape[:-1], 'j')}, split as the matrices".replace("'", ""),
            hint="b.reshape(..., k, 1) for one right side per cell",
            everywhere=True,
        )
    (x,) = _computed("solve", a, b)
    return made_of(a.world, b.partition, x)


def inv(a: DistributedArray) -> DistributedArray:
    """Return the inverse of the matrix of each cell. Collective.

    Parameters
    ----------
    a : DistributedArray
        Of shape (..., k, k), split along the axes before the last two.

    Returns
    -------
    DistributedArray
        Of the shape of `a`.

    Raises
    ------
    UserError
        On every rank, as by `solve`.

    Examples
    --------
    >>> inverse = meshrun.inv(metric)  # metric: (n, m, 2, 2)
    """
    a = _matrices("inv", a)
    (inverse,) = _computed("inv", a)
    return made_of(a.world, a.partition, inverse)


def det(a: DistributedArray) -> DistributedArray:
    """Return the determinant of the matrix of each cell, of shape (...). Collective.

    Parameters
    ----------
    a : DistributedArray
        Of shape (..., k, k), split along the axes before the last two.

    Returns
    -------
    DistributedArray
        Of shape (...).

    Raises
    ------
    UserError
        On every rank, if matrices are not square or are split.

    Examples
    --------
    >>> volume = meshrun.det(jacobian)  # jacobian: (n, m, 3, 3)
    """
    a = _matrices("det", a)
    (determinant,) = _computed("det", a)
    return made_of(a.world, _leading(a.partition, ()), determinant)


def eigh(a: DistributedArray, UPLO: str = "L") -> tuple[DistributedArray, DistributedArray]:
    """Return eigenvalues and eigenvectors of the symmetric or Hermitian matrix of each cell. Collective.

    Parameters
    ----------
    a : DistributedArray
        Of shape (..., k, k), split along the axes before the last two.
    UPLO : {"L", "U"}
        Which triangle is read.

    Returns
    -------
    values, vectors : DistributedArray
        Of shape (..., k), in ascending order, and (..., k, k): vectors are columns.

    Raises
    ------
    UserError
        On every rank, if matrices are not square or are split.

    Examples
    --------
    >>> stretch, axes = meshrun.eigh(strain)  # strain: (n, m, 3, 3)
    """
    a = _matrices("eigh", a)
    if UPLO not in ("L", "U"):
        raise UserError("eigh: unknown triangle", got=UPLO, expected="L or U", everywhere=True)
    values, vectors = _computed("eigh", a, triangle=(UPLO,))
    world = a.world
    return made_of(world, _leading(a.partition, a.shape[-1:]), values), made_of(world, a.partition, vectors)


def _matrices(function: str, array: object) -> DistributedArray:
    """Return an argument that has matrices; UserError unless they are square, and whole."""
    a = taken(function, array)
    if len(a.shape) < 2 or a.shape[-1] != a.shape[-2]:
        raise UserError(
            f"{function} takes a square matrix per cell",
            got=f"shape {a.shape}",
            expected="(..., k, k)",
            everywhere=True,
        )
    if a.partition.grid[-2:] != (1, 1):
        raise UserError(
            f"{function} takes matrices that are not split",
            got=f"parts {a.partition.grid} of shape {a.shape}",
            hint="array.redistribute(0)" if len(a.shape) > 2 else "numpy.linalg for one matrix",
            everywhere=True,
        )
    return a


def _computed(
    function: str, a: DistributedArray, *others: DistributedArray, triangle: tuple[str, ...] = ()
) -> tuple[Array, ...]:
    """Return what a function of numpy.linalg returns of all own cells; an error is every rank's. Collective.

    others: further operands. triangle: the last argument, if there is one.
    """
    xp, operands = a.world.xp, [array.interior for array in (a, *others)]
    cells = operands[0].shape[:-2]

    def of(matrices: Sequence[Array]) -> tuple[Array, ...]:
        result = getattr(xp.linalg, function)(*matrices, *triangle)
        return tuple(result) if isinstance(result, tuple) else (result,)

    def computed() -> tuple[Array, ...]:
        try:
            if 0 not in cells:
                return of(operands)
            # Not all libraries take no matrices: the shapes and dtypes are those of one.
            single = [
                xp.eye(a.shape[-1], dtype=a.dtype),
                *(xp.zeros(b.shape[-2:], b.dtype) for b in operands[1:]),
            ]
            return tuple(xp.empty((*cells, *result.shape), result.dtype) for result in of(single))
        except np.linalg.LinAlgError as failure:
            for cell in np.ndindex(*cells):
                try:
                    of([matrices[cell] for matrices in operands])
                except np.linalg.LinAlgError:
                    where = tuple(i + start for i, start in zip(cell, a.region.start, strict=False))
                    raise UserError(f"{function}: {failure}", got=f"the matrix of cell {where}") from failure
            raise
        except TypeError as failure:
            raise refuse(function, failure) from failure

    return a.world.collective_call(computed)


def _leading(partition: Partition, last: Shape) -> Partition:
    """Return the partition of the cells of matrices, with other last axes than the two of a matrix."""
    kept = len(partition.shape) - 2
    return Partition(
        (*partition.shape[:kept], *last),
        (*partition.grid[:kept], *(1,) * len(last)),
        units=partition.units[:kept],
        starts=(*partition.starts[:kept], *((0,),) * len(last)) if partition.starts else (),
    )
