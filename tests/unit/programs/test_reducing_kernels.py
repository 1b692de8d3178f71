"""Which kernels of a step also do its reductions, and which arrays are written once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshrun.runner.programs.reducing import prepared_for_kernels, reducing_kernels
from meshrun.runner.programs.stages import (
    KernelStage,
    StagedProgram,
    with_results_as_arrays,
)
from tests.facts.program_runs import planned
from tests.facts.reducing_steps import conjugate, directions

U, T = np.zeros((32, 32), np.float32), np.zeros((), np.float32)


def step_of(function: Any, arrays: Any, kind: str = "cuda") -> tuple[StagedProgram, Any]:
    """Return the stages of a step, and the reductions of this and the next step that each kernel does."""
    feeds = range(len(arrays))
    program = planned(function, arrays, [f"out{n}" for n in feeds], kind)
    program = prepared_for_kernels(with_results_as_arrays(program, feeds), feeds)
    found = reducing_kernels(program, feeds)
    return program, {number: (one.within, one.ahead) for number, one in found.items()}


def kinds(program: StagedProgram) -> str:
    """Return a letter for each stage: reduction, value or kernel."""
    return "".join(type(stage).__name__[0] for stage in program.stages)


def test_conjugate_gradients_are_two_passes() -> None:
    program, reducing = step_of(conjugate, [U, U, U, T, T])
    assert kinds(program) == "RVKRV"
    assert reducing == {2: ((3,), ())}
    assert len(program.arrays) == 5  # nothing is written between


def test_a_product_of_what_a_kernel_writes_is_made_a_step_ahead() -> None:
    program, reducing = step_of(directions, [U, U, U, T])
    assert kinds(program) == "RVRVK"
    assert reducing == {4: ((), (0,))}
    assert [one.widths for one in program.arrays[:3]] == [((2, 2), (2, 2))] * 3
    assert [one.read for one in program.arrays[:3]] == [((0, 0), (0, 0)), ((1, 1), (1, 1)), ((2, 2), (2, 2))]


@pytest.mark.parametrize("shape", [(3, 32), (32, 32)])
def test_what_is_read_around_the_ends_is_not_made_a_step_ahead(shape: tuple[int, int]) -> None:
    def periodic(u, t):
        t = np.sum(u * np.roll(u, 1, 0))
        return u / (t + 1) + np.roll(u, 1, 1), t

    u = np.zeros(shape, np.float32)
    assert step_of(periodic, [u, T])[1] == {}
    assert step_of(directions, [u, u, u, T])[1] == ({} if 3 in shape else {4: ((), (0,))})


def test_costly_cells_are_not_computed_again_a_step_ahead() -> None:
    def costly(u, t):
        t = np.sum(u[1:] * u[:-1])
        v = u / (t + 1)
        for _ in range(40):
            v = v / (v * v + 1)
        return v, t

    assert step_of(costly, [U, T])[1] == {}


def test_a_product_that_reads_many_neighbours_is_made_in_its_own_step() -> None:
    def directions_of_cubes(x, r, p, rr):
        q = 6 * p
        for axis in range(3):
            head, tail = ((slice(None),) * axis + (own,) for own in (slice(1, None), slice(-1)))
            q[head] -= p[tail]
            q[tail] -= p[head]
        alpha = rr / np.sum(p * q)
        x, r = x + alpha * p, r - alpha * q
        new = np.sum(r * r)
        return x, r, r + new / rr * p, new

    cube = np.zeros((16, 16, 16), np.float32)
    program, reducing = step_of(directions_of_cubes, [cube, cube, cube, T])
    assert kinds(program) == "RVRVK"
    assert reducing == {}  # a step ahead, the loads of 25 + 7 neighbours would take longer than the bytes


def test_a_result_that_is_read_between_stages_is_written_once() -> None:
    program, reducing = step_of(conjugate, [U, U, U, T, T], "cpu")
    assert kinds(program) == "KRVKRV"
    assert reducing == {0: ((1,), ()), 3: ((4,), ())}
    assert [one.becomes for one in program.arrays] == [*[None] * 5, 1, None]
    kernel = program.stages[3]
    assert isinstance(kernel, KernelStage)
    assert [(place.number, place.of_output) for place in kernel.writes] == [(0, True), (1, True)]


def test_a_kernel_does_no_reduction_that_reads_further() -> None:
    def beside(u, p, t):
        t += np.sum(p * np.roll(p, 1, 0))
        return u * 2 + np.roll(u, 2, 0) + p, p, t

    program, reducing = step_of(beside, [U, U, T])
    assert kinds(program) == "RVK"
    assert reducing == {}


def test_a_kernel_that_needs_a_sum_does_not_make_it() -> None:
    def scaled(u, t):
        total = np.sum(u * np.roll(u, 1, 0))
        t += np.max(u)
        return u / total + np.roll(u, 1, 0), t

    program, reducing = step_of(scaled, [U, T])
    assert kinds(program) == "RKRV"
    assert reducing == {1: ((2,), ())}


def test_sums_of_the_state_are_made_a_step_ahead() -> None:
    def mean(u, t):
        return u - np.mean(u) + np.roll(u, 1, 1), t + 1

    program, reducing = step_of(mean, [U, T])
    assert reducing == {kinds(program).index("K"): ((), (0,))}
