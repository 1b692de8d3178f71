"""Distributed arrays on GPUs, on one rank or several: NumPy's bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.world.world import World

SHAPE = (61, 43)


def write(u: Any) -> Any:
    """Write through views, some of which overlap with what is read."""
    u[1:-1] = (u[2:] + u[:-2]) / 2
    u[0] = 1
    u[:, -1] = u[:, -2]
    u[1:] += u[:-1]
    u[::-1, ::2] *= 0.5
    u[:, 1:] = u[:, :-1]
    return u


def mask(u: Any) -> Any:
    u[u > 0] *= 2
    u[u < -1] = 0.25
    u[u > 1] = u[u > 1] + 1
    return u


EXACT: dict[str, Callable[[Any, Any], Any]] = {
    "arithmetic": lambda u, v: u * 2 + v / 3 - abs(u),
    "compare": lambda u, v: (u > v) & ~(u == v),
    "slices": lambda u, v: u[1:-1, ::2] - v[2:, ::2],
    "write": lambda u, v: write(u),
    "mask": lambda u, v: mask(u),
    "pick": lambda u, v: u[v > 0],
    "cell": lambda u, v: u[3, -2],
    "where": lambda u, v: np.where(u > 0, u, 0),
    "clip": lambda u, v: np.clip(u, -0.5, 0.5),
    "max": lambda u, v: np.max(np.abs(u), axis=0),
    "argmax": lambda u, v: np.argmax(u),
    "roll": lambda u, v: np.roll(u, 5, 0) + np.roll(v, -3, 1),
    "turn": lambda u, v: u.T[::-1] * 2,
    "reshape": lambda u, v: u.reshape(-1)[10:90],
    "line": lambda u, v: u + np.linspace(0, 1, SHAPE[0], dtype="f4")[:, None],
    "pad": lambda u, v: np.pad(u, 2, mode="edge"),
    "out": lambda u, v: np.add(u, v, out=u, where=v > 0),
}
ROUNDED: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda u, v: np.sum(u * v, axis=0),
    "mean": lambda u, v: u.mean(axis=1, keepdims=True) * v,
    "std": lambda u, v: np.std(u),
    "norm": lambda u, v: np.linalg.norm(u),
    "vdot": np.vdot,
    "matmul": lambda u, v: u.T @ v,
    "fft": lambda u, v: np.abs(np.fft.rfftn(u)),
}


@meshrun.distribute
def cooled(u: Any, *, rate: float = 0.1) -> Any:
    new = u.copy()
    new[1:-1] += rate * (u[2:] - 2 * u[1:-1] + u[:-2])
    new[0] = new[-1] = 0
    return new


@meshrun.distribute
def scaled(u: Any) -> Any:
    return u / np.max(np.abs(u))


def host(found: Any) -> Any:
    """Return a result of any kind as an array of NumPy's."""
    found = found.gather() if hasattr(found, "gather") else found
    return found.get() if hasattr(found, "get") else np.asarray(found)


def arrays() -> list[Any]:
    return [np.random.default_rng(seed).standard_normal(SHAPE).astype("f4") for seed in (0, 1)]


@pytest.fixture
def program_world(world: World) -> Any:
    """The world of a main program with the ranks of the others."""
    with meshrun.open_world("cuda", control=world.control.split(0), oversubscribe=True) as opened:
        yield opened


@pytest.mark.parametrize("name", [*EXACT, *ROUNDED])
def test_operations(program_world: Any, name: str) -> None:
    function = EXACT.get(name) or ROUNDED[name]
    found = host(function(*map(program_world.array, arrays())))
    expected = np.asarray(function(*arrays()))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if name in EXACT:
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("job", [cooled, scaled])
def test_functions_of_whole_arrays(program_world: Any, job: Any) -> None:
    for whole in arrays():
        np.testing.assert_array_equal(host(job(program_world.array(whole))), job.function(whole.copy()))
    (whole, _) = arrays()
    steps = job.iterate(program_world.array(whole), steps=7)
    np.testing.assert_array_equal(host(steps), job.iterate(whole, steps=7))


def test_blocks_are_shared_by_dlpack(program_world: Any) -> None:
    own = program_world.xp.from_dlpack(program_world.array(arrays()[0]).local)
    u = program_world.from_local(own)
    u += 1
    assert program_world.xp.shares_memory(own, u.local)
