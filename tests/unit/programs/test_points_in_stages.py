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
