"""NumPy's own names of the tools, with distributed arrays and views of them, on ranks of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from split_arrays import same

from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.run.main_program.opening import open_world
from meshrun.runner.run.main_program.program_world import ProgramWorld

WHOLE = np.random.default_rng(0).integers(0, 9, (20, 12)) / 8
VIEWS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda u: u,
    "inner, every second": lambda u: u[3:-2, ::2],
    "reversed": lambda u: u[::-1],
    "row": lambda u: u[5],
    "column": lambda u: u[:, 3],
    "transposed": lambda u: u.T,
}
CALLS: dict[str, Callable[[Any], Any]] = {
    "sort": np.sort,
    "sort, all": lambda u: np.sort(u, axis=None, kind="stable"),
    "argsort": lambda u: np.argsort(u, axis=0, kind="stable"),
    "cumsum": lambda u: np.cumsum(u, axis=0),
    "cumprod": lambda u: np.cumprod(u[:1]),
    "accumulate": np.add.accumulate,
    "multiply.accumulate": lambda u: np.multiply.accumulate(u[:1]),
    "percentile": lambda u: np.percentile(u, [10, 50]),
    "quantile": lambda u: np.quantile(u, 0.3, axis=0),
    "median": np.median,
    "histogram": lambda u: np.histogram(u, 5)[0],
    "bincount": lambda u: np.bincount((u * 8).astype(int)[..., 0] if u.ndim > 1 else (u * 8).astype(int)),
    "unique": np.unique,
    "searchsorted": lambda u: np.searchsorted(np.sort(u, axis=None), [0.5, 0.25]),
}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("view", VIEWS)
def test_a_function_of_numpy_takes_views(view: str, ranks: int) -> None:
    """NumPy's bits, on each view's cells: eighths add up exactly."""

    def body(world: ProgramWorld) -> list[Any]:
        u = VIEWS[view](world.array(WHOLE))
        results = [call(u) for call in CALLS.values()]
        return [result.gather() if hasattr(result, "gather") else result for result in results]

    for results in run_ranks(ranks, lambda control: body(open_world("cpu", control=control))):
        for ours, call in zip(results, CALLS.values(), strict=True):
            same(ours, call(VIEWS[view](WHOLE)))


def test_matrices_of_cells_are_solved_by_numpys_names() -> None:
    a, b = np.random.default_rng(1).random((2, 6, 3, 3)) + np.eye(3)

    def body(world: ProgramWorld) -> list[Any]:
        left, right = world.array(a), world.array(b)
        results = [np.linalg.solve(left, right), np.linalg.inv(left), np.linalg.det(left)]
        results += np.linalg.eigh(left + left.transpose(0, 2, 1))
        return [result.gather() for result in results]

    numpys = [
        np.linalg.solve(a, b),
        np.linalg.inv(a),
        np.linalg.det(a),
        *np.linalg.eigh(a + a.transpose(0, 2, 1)),
    ]
    for results in run_ranks(2, lambda control: body(open_world("cpu", control=control))):
        for ours, theirs in zip(results, numpys, strict=True):
            same(ours, theirs)
