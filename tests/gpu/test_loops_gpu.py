"""Loops that end by a value, on GPUs: iterations from CUDA graphs, and the bits of one rank on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.steps.program_steps import WAITS_BETWEEN_GRAPHS
from meshrun.runner.world.world import World
from tests.facts.reducing_steps import five_points
from tests.gpu.test_programs_gpu import run_both


def relaxed(u, t, *, most: int = 100, tolerance: float = 0.0):
    """Relax until little changes."""
    change, count = np.max(np.abs(u)), 0
    while change > tolerance and count < most:
        old = u
        u = (np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1)) / 4
        u[0], u[-1] = 1, 0
        change, count = np.max(np.abs(u - old)), count + 1
    return u, t + change


def gradients(x, b, *, most: int = 100, tolerance: float = 1e-3):
    """Solve by conjugate gradients."""
    r = b - five_points(x)
    p, rr, start, iterations = r.copy(), np.sum(r * r), np.sum(b * b), 0
    while rr > tolerance * start and iterations < most:
        q = five_points(p)
        alpha = rr / np.sum(p * q)
        x, r = x + alpha * p, r - alpha * q
        new = np.sum(r * r)
        p, rr, iterations = r + new / rr * p, new, iterations + 1
    return x, r


def broken(u, t, *, most: int = 100, tolerance: float = 0.0):
    """Leave the loop in its middle, with an inner loop and a branch."""
    for _ in range(most):
        for _ in range(3):
            u = u + u.dtype.type(0.1) * (np.roll(u, 1, 0) - u)
        high = np.max(u)
        if high < tolerance:
            break
        if high > 2:
            u = u / 2
        t = t + high
    return u, t


@pytest.mark.parametrize("function", [relaxed, broken])
@pytest.mark.parametrize("most", [0, 1, 2, 3, 16, 17, 18, 41, 60])
def test_a_loop_leaves_the_iteration_that_its_count_ends(
    world: World, folder: Path, function: Any, most: int
) -> None:
    u = np.random.default_rng(0).normal(size=(257, 301)).astype("f4")
    run_both(world, folder, function, "u t", [u, np.zeros((), "f4")], 1, {"most": most})


@pytest.mark.parametrize("tolerance", [0.5, 0.1, 0.03, 0.01])
def test_a_value_ends_the_loop_in_every_step(world: World, folder: Path, tolerance: float) -> None:
    u = np.random.default_rng(0).normal(size=(257, 301)).astype("f4")
    arrays = [u, np.zeros((), "f4")]
    record = run_both(world, folder, relaxed, "u t", arrays, 3, {"tolerance": tolerance})
    assert record["steps"]["graph"] is False


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_iterations_are_graphs(world: World, folder: Path, dtype: str) -> None:
    b = np.random.default_rng(0).normal(size=(250, 301)).astype(dtype)
    record = run_both(world, folder, gradients, "x b", [b * 0, b], 2, {"tolerance": 1e-5})
    assert record["steps"]["graph_reason"] == WAITS_BETWEEN_GRAPHS
