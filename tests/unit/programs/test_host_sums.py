"""Sums that kernels of CPUs make while they compute the cells: rounded once, on any number of ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from meshrun.runner.programs.execute import ProgramRun
from meshrun.runner.programs.stages import ValueStage
from tests.facts.program_runs import planned, run_program


def dot_inside(a, b):
    """The sum of products of a part of the cells, which the kernel of no array computes."""
    inner = tuple(slice(1, None) for _ in a.shape)
    return a / np.sum((a * b)[inner]), np.sum(a * b)


# A row of one sum's part, and rows that are computed in parts; lengths that fill no vector.
@pytest.mark.parametrize("shape", [(9001,), (3, 4611), (700, 13), (5, 6, 257)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kind", ["near", "far apart", "infinite", "nan"])
def test_a_kernel_adds_what_it_computes(
    shape: Sequence[int], dtype: str, kind: str, monkeypatch: Any
) -> None:
    noise = np.random.default_rng(len(shape))
    a = noise.normal(size=shape).astype(dtype)
    b = noise.normal(size=shape).astype(dtype)
    if kind == "far apart":
        b *= (10.0 ** noise.integers(-30, 30, shape)).astype(dtype)
    elif kind != "near":
        b.flat[-1] = np.inf if kind == "infinite" else np.nan
        a.flat[-1] = 1
    # No cells are computed first and added afterwards.
    monkeypatch.setattr(ProgramRun, "_exact_sum", None)
    cells = a * b
    total = cells.flat[-1] if kind in ("infinite", "nan") else a.dtype.type(math.fsum(cells.ravel().tolist()))
    for ranks in (1, 3):
        program = planned(dot_inside, [a, b], ["c", "total"])
        _, found = run_program(program, [a, b], (ranks, *(1,) * (len(shape) - 1)), compiled=True)
        assert np.array_equal(found, total, equal_nan=True)


def conjugate_iteration(x: Any, r: Any, p: Any, rr: Any) -> Any:
    q = 4 * p
    q[1:] -= p[:-1]
    q[:-1] -= p[1:]
    q[:, 1:] -= p[:, :-1]
    q[:, :-1] -= p[:, 1:]
    alpha = rr / np.sum(p * q)
    x, r = x + alpha * p, r - alpha * q
    new = np.sum(r * r)
    return x, r, r + new / rr * p, new


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_product_that_three_stages_need_is_written_once_on_a_processor(kind: str) -> None:
    arrays = [np.random.default_rng(n).random((9, 12)).astype(np.float32) for n in range(3)]
    given = [*arrays, np.array(27, np.float32)]
    program = planned(conjugate_iteration, given, ["x", "r", "p", "rr"], kind)
    stages = [one for one in program.stages if not isinstance(one, ValueStage)]
    beside = [any(any(map(any, each)) for each in one.cells.footprints) for one in stages]
    assert sum(beside) == (1 if kind == "cpu" else 3)
    # The bits of the cells do not depend on it, nor on the ranks.
    if kind == "cpu":
        found = [run_program(program, given, grid) for grid in ((1, 1), (2, 1), (3, 1))]
        want = conjugate_iteration(*(one.copy() for one in given))
        for results in found:
            for one, first, other in zip(results, found[0], want, strict=True):
                np.testing.assert_array_equal(one, first)
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
