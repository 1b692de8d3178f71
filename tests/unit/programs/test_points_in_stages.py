"""Writes to points in functions with reductions and stages, compared with NumPy to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.facts.program_runs import plain, planned, run_program

YS, XS = np.array([0, 5, 11, 5]), np.array([0, 7, 12, 8])
V = np.array([2.0, 3.0, 5.0, 7.0])


def sources(u):
    """Points, then a reduction of all cells, those at points among them."""
    u[YS, XS] += V
    return u / (np.abs(u).max() + 1), u.max()


def by_a_value(u):
    """What is written is a value of a reduction; stages read it beside the points."""
    most = u.max()
    u[YS, XS] = most * 2
    u[1:-1] += u[2:] - u[:-2]
    u[3:5, 2] = u[YS, XS].shape[0]
    return u * 1, u.min()


def in_sweeps(u):
    """Points in each of several stages, near each other and around the ends."""
    for turn in range(3):
        around = np.roll(u, 1, axis=0) + np.roll(u, -1, axis=1) + np.sqrt(np.abs(u) + 1) + np.exp2(u / 64)
        u = u + 0.125 * np.roll(around * u + around, 1, axis=1)
        u[YS, XS] -= V * turn
    return u, (u > 1).sum()


def beside_lines(u):
    """Points beside what is reduced along an axis, which has one cell there."""
    u[YS, XS] += V
    return u - u.max(axis=0) + u.min(axis=1, keepdims=True), u.max()


@pytest.mark.parametrize("function", [sources, by_a_value, in_sweeps, beside_lines])
def test_the_bits_are_numpys(function: Any) -> None:
    u = np.random.default_rng(0).random((12, 13)) * 4
    wanted = plain(function, [u])
    program = planned(function, [u], ("out", "value"))
    assert program.reductions
    for grid in ((1, 1), (2, 1), (3, 1), (5, 1), (2, 2)):
        for one, want in zip(run_program(program, [u], grid), wanted, strict=True):
            np.testing.assert_array_equal(one, want, err_msg=str(grid))


def test_a_kernel_is_followed_by_its_points() -> None:
    u = np.random.default_rng(0).random((12, 13)) * 4
    wanted = plain(sources, [u])
    found = run_program(planned(sources, [u], ("out", "value")), [u], (2, 1), compiled=True)
    for one, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, want)


# Points in loops and branches


def in_a_while_loop(u):
    """Each iteration writes constants to points, and what it computes of a value."""
    turns = 0
    while u.max() < 40 and turns < 9:
        u[1:-1] += 0.125 * (u[2:] - u[:-2])
        u[YS, XS] += V
        u[YS, XS + 3] = V[::-1] * u.min() + turns
        turns += 1
    return u, u.sum()


def in_a_branch(u):
    v = u * 2
    if u.max() > 3:
        u[YS, XS] = v[YS, XS] + u[YS, XS] * 0.5
        u = u / u.max()
    else:
        u += v
    if u.min() < 3:  # both branches are computed
        u[YS, XS] = V
    return u, u.min()


def of_the_number(u):
    """What is written depends on the number of a counted loop, and on what is known before it."""
    most = u.max()
    for turn in range(40):
        u = 0.25 * (np.roll(u, 1, axis=0) + np.roll(u, -1, axis=1)) + np.roll(u, 1, axis=1) * 0.5
        u[YS, XS] += V * turn
        u[YS, XS + 1] += V / most
    return u, u.max()


def in_a_loop_in_a_loop(u):
    turns = 0
    while turns < 3 and u.max() < 1e6:
        u[YS, XS] += V * u.max()
        while u.min() < 0.5 + turns:
            u[YS, XS + 1] += V * u.min()
            u += 0.25
        turns += 1
    return u, u.max()


def points_before_and_after(u):
    """Lists that only a loop picks from, and lists that it has in common with what is around it."""
    u[YS, XS] += V * u.max()
    while u.max() > 4:
        u[YS, XS] *= V / u.max()
        u *= 0.5
    u[YS, XS] += V * u.max()
    return u, u.max()


LOOPS = in_a_while_loop, in_a_branch, of_the_number, in_a_loop_in_a_loop, points_before_and_after


@pytest.mark.parametrize("grid", [(1, 1), (2, 2)])
@pytest.mark.parametrize("function", LOOPS)
def test_loops_and_branches_have_the_bits_of_numpy(function: Any, grid: tuple[int, ...]) -> None:
    u = np.random.default_rng(0).random((12, 17)) * 4
    program = planned(function, [u], ("out", "value"))
    assert program.loops
    found, value = run_program(program, [u], grid)
    wanted, number = plain(function, [u])
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(value, number, rtol=1e-14)


def test_a_kernel_in_a_loop_is_followed_by_its_points() -> None:
    u = np.random.default_rng(0).random((12, 17)) * 4
    found, _ = run_program(planned(in_a_while_loop, [u], ("out", "value")), [u], (2, 1), compiled=True)
    np.testing.assert_array_equal(found, plain(in_a_while_loop, [u])[0])
