"""Several steps of functions of whole arrays in one kernel, on one rank or several: NumPy's bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.declare import distribute
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import World

STEPS = 19


def held(u):
    """Heat in a plate with edges that are held."""
    new = u.copy()
    sides = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    new[1:-1, 1:-1] += 0.2 * (sides - 4 * u[1:-1, 1:-1])
    new[0], new[-1] = 1, 0
    new[:, 0] = 0.5
    return new


def closed(u):
    """No flow through the edges: they read two cells away."""
    new = held(u)
    new[0], new[-1] = new[1], new[-2]
    new[:, 0], new[:, -1] = new[:, 1], new[:, -2]
    return new


def rolled(u):
    """An edge between two stages that are shifted around the ends, and a slope."""
    new = u + 0.2 * (np.roll(u, 1, 0) - np.roll(u, -1, 1))
    new[0] = np.linspace(0, 1, u.shape[1], dtype=u.dtype)
    return new - 0.1 * np.roll(new, 1, 0)


def by_hand(u):
    new = held(u)
    new[0], new[-1] = new[-2], new[1]
    new[:, 0] = new[:, -2]
    new[:, -1] = new[:, 1]
    return new


def striped(u):
    new = u.copy()
    new[1:-1:2, 1:-1] = 0.25 * u[1:-1:2, 1:-1] + 0.5 * u[1:-1:2, 2:]
    new[20:30, 40:90] -= 1
    return new


def rod(u):
    new = u.copy()
    new[1:-1] += 0.25 * (u[2:] - 2 * u[1:-1] + u[:-2])
    new[0], new[-1] = 1, new[-2]
    return new


def cube(u):
    new = u.copy()
    own = u[1:-1, 1:-1, 1:-1]
    sides = u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1] + u[1:-1, 2:, 1:-1]
    new[1:-1, 1:-1, 1:-1] += 0.1 * (sides + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:] - 6 * own)
    new[0], new[-1] = 1, 0
    new[:, 0], new[:, -1] = 0.5, 0.25
    new[:, :, 0] = new[:, :, 1]
    new[:, :, -1] = new[:, :, -2]
    return new


def closed_cube(u):
    new = cube(u)
    new[0], new[-1] = new[1], new[-2]
    new[:, 0], new[:, -1] = new[:, 1], new[:, -2]
    return new


def hand_cube(u):
    new = cube(u)
    new[0], new[-1] = new[-2], new[1]
    new[:, 0], new[:, -1] = new[:, -2], new[:, 1]
    new[:, :, 0], new[:, :, -1] = new[:, :, -2], new[:, :, 1]
    return new


def channel(u):
    """Opposite columns meet, two of them; nothing flows through the first and last row."""
    new = u.copy()
    new[1:-1, 2:-2] += 0.1 * (u[2:, 2:-2] - u[1:-1, :-4] + u[1:-1, 4:])
    new[:, :2], new[:, -2:] = new[:, -4:-2], new[:, 2:4]
    new[0], new[-1] = new[1], new[-2]
    return new


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        *((function, (1027, 640)) for function in (held, closed, rolled, by_hand, striped)),
        *((function, (301, 1111)) for function in (held, closed, rolled, by_hand, striped)),
        (rod, (100_003,)),
        (cube, (50, 203, 192)),
        (cube, (37, 41, 130)),
        (closed_cube, (64, 100, 192)),
        (closed_cube, (41, 203, 130)),
        (hand_cube, (64, 100, 192)),
        (channel, (1027, 640)),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_are_those_of_the_function(
    world: World, folder: Path, function: Callable[..., Any], shape: tuple[int, ...], dtype: str
) -> None:
    field = np.random.default_rng(1).random(shape).astype(dtype)
    before, after = folder / "before.npy", folder / "after.npy"
    world.on_root(lambda: np.save(before, field))
    options = Options(device="cuda", fuse="require", steps=StepOptions(STEPS))
    record = run(distribute(function), [before], [after], {}, options, world=world)
    assert record["devices"][0]["kind"] == "cuda"
    if world.rank == 0:
        for _ in range(STEPS):
            field = function(field)
        assert np.load(after).tobytes() == field.tobytes()
