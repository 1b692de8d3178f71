"""Linear algebra of a small matrix per cell, beside NumPy's of all cells at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from split_arrays import joined, on_ranks, same, split

from meshrun.runner.arrays.tools.small_matrices import det, eigh, inv, solve
from meshrun.runner.errors import UserError
from meshrun.runner.world.world import World


def matrices(shape: Any, dtype: str = "f8") -> Any:
    """Matrices that are well conditioned."""
    random = np.random.default_rng(0)
    cells = random.standard_normal(shape) + (1j * random.standard_normal(shape) if dtype[0] == "c" else 0)
    return (cells + 4 * np.eye(shape[-1])).astype(dtype)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16", "i4"])
@pytest.mark.parametrize("grid", [(1,), (3,), (1, 2), (2, 2)])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_each_cells_matrix_is_numpys(grid: Any, dtype: str, size: int) -> None:
    """Also on ranks without cells."""
    a, b = matrices((2, 5, size, size), dtype), matrices((2, 5, 8, 8), dtype)[..., :size, :2]
    symmetric = a + a.conj().swapaxes(-1, -2)

    def body(world: World) -> Any:
        left, right = split(world, a, grid), split(world, b, grid)
        return solve(left, right), inv(left), det(left), *eigh(split(world, symmetric, grid))

    ours = [joined([*one]) for one in zip(*on_ranks(int(np.prod(grid)), body), strict=True)]
    numpys = np.linalg.solve(a, b), np.linalg.inv(a), np.linalg.det(a), *np.linalg.eigh(symmetric)
    for mine, theirs in zip(ours, numpys, strict=True):
        same(mine, theirs)


@pytest.mark.parametrize("size", [0, 1, 4])
def test_fewer_cells_than_ranks(size: int) -> None:
    """No cells at all, too; empty matrices."""
    a = matrices((2, 3, 3))[:size] if size < 4 else np.empty((2, 0, 0))

    def body(world: World) -> Any:
        array = split(world, a, (3,))
        return inv(array), det(array), solve(array, array)

    ours = [joined([*one]) for one in zip(*on_ranks(3, body), strict=True)]
    for mine, numpys in zip(ours, (np.linalg.inv(a), np.linalg.det(a), np.linalg.solve(a, a)), strict=True):
        same(mine, numpys)


def test_a_singular_matrix_is_named_by_its_cell() -> None:
    a = matrices((4, 3, 2, 2))
    a[2, 1] = 1

    def body(world: World) -> None:
        array = split(world, a, (2,))
        for function in (inv, lambda a: solve(a, a)):
            with pytest.raises(UserError, match=r"Singular matrix: got the matrix of cell \(2, 1\)"):
                function(array)
        world.control.barrier()

    on_ranks(2, body)


def test_what_has_no_small_matrices() -> None:
    def body(world: World) -> None:
        a = split(world, matrices((4, 3, 3)), (2,))
        for call, message in (
            (lambda: inv(split(world, np.zeros((4, 3)), (2,))), "takes a square matrix per cell"),
            (lambda: det(a.redistribute(1)), "takes matrices that are not split: got parts"),
            (lambda: solve(a, split(world, np.zeros((4, 3)), (2,))), "right sides do not fit the matrices"),
            (lambda: solve(a, split(world, np.zeros((4, 2, 1)), (2,))), "right sides do not fit"),
            (lambda: eigh(a, "X"), "unknown triangle: got X"),
            (lambda: det(np.eye(2)), "takes arrays that are split over the ranks"),
        ):
            with pytest.raises(UserError, match=message):
                call()
        world.control.barrier()

    on_ranks(2, body)
