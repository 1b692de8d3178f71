"""A world of ranks that a program starts itself, as a notebook does: it works as in a program of ranks."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.run.main_program import rank_processes
from meshrun.runner.run.main_program.rank_processes import ProcessWorld
from tests.unit.arrays.test_operations import values

pytest.importorskip("mpi4py", reason="ranks need MPI")


@meshrun.distribute
def cool(u: Any, *, rate: float = 0.25) -> Any:
    u[1:-1] += rate * (u[2:] - 2 * u[1:-1] + u[:-2])
    return u


@pytest.fixture(scope="module")
def world() -> Iterator[Any]:
    with meshrun.open_world("cpu", ranks=2) as opened:
        yield opened


def test_a_program_means_what_it_means_in_numpy(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = values((9, 6), "f8")
    np.save(tmp_path / "u.npy", whole)
    u, a = world.load(tmp_path / "u.npy"), whole.copy()
    same = u

    def change(x: Any) -> Any:
        x[2:4] = 1
        x[x > 3] *= 0.5
        x += np.sum(x)
        x[1:-1] += x[2:] - x[:-2]
        return x

    u, a = change(u), change(a)
    assert u is same
    np.testing.assert_allclose(u.gather(), a, rtol=1e-13)
    u[...] = world.array(a)
    for of_array in (
        lambda x: np.sqrt(np.abs(x)).T[::-1, 1:],
        lambda x: x.mean(axis=0),
        lambda x: np.sort(x, axis=None),
        lambda x: np.where(x > 1, x, -x).reshape(6, 9),
        np.fft.fft2,
        lambda x: x @ x.T,
        meshrun.fft,
        meshrun.transpose,
        lambda x: np.stack([x, x])[1],
        lambda x: np.add.accumulate(x, axis=0),
    ):
        found = of_array(u)
        assert isinstance(found, type(u))
        expected = of_array(a)
        assert (found.shape, found.dtype, len(found)) == (expected.shape, expected.dtype, len(expected))
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-10, atol=1e-10)
    assert (bool(np.all(u <= a.max())), float(np.max(u)), f"{np.max(u):.3f}") == (
        True,
        a.max(),
        f"{a.max():.3f}",
    )
    monkeypatch.chdir(tmp_path)  # ranks follow
    world.save("out.npy", u[::2])
    np.testing.assert_array_equal(np.load("out.npy"), a[::2])


def test_functions_and_their_steps(world: Any) -> None:
    whole = values((9, 6), "f8")
    u = world.array(whole)
    expected = cool.function(whole.copy(), rate=0.125)
    assert cool(u, rate=0.125) is u
    np.testing.assert_array_equal(u.gather(), expected)
    np.testing.assert_array_equal(cool.iterate(u, steps=3).gather(), cool.iterate(expected, steps=3))
    two, three = cool.iterate(u, steps=3, every=2)
    np.testing.assert_array_equal(two.gather(), cool.iterate(expected, steps=2))
    np.testing.assert_array_equal(three.gather(), cool.iterate(expected, steps=3))


def test_what_a_cell_of_a_notebook_defines(world: Any) -> None:
    names: dict[str, Any] = {"meshrun": meshrun, "np": np, "factor": 2.0, "__name__": "__main__"}
    exec("def twice(u):\n    return factor * u\n", names)
    twice = meshrun.distribute(names["twice"])
    u = world.ones((4, 3))
    assert float(np.sum(twice(u))) == 24
    names["factor"] = 3.0
    assert float(np.sum(twice(u))) == 36


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda world, u: u.local, UserError, "of one rank.*gather"),
        (lambda world, u: world.from_local(np.ones(3)), UserError, "of one rank.*mpirun"),
        (lambda world, u: meshrun.save(world, "a.npy", u), UserError, "of one rank"),
        (lambda world, u: u[9], IndexError, "out of bounds"),
        (lambda world, u: u + np.ones((3, 3)), ValueError, "broadcast"),
        (lambda world, u: list(u), UserError, "not iterated"),
        (lambda world, u: u.nothing, AttributeError, "no attribute"),
        (lambda world, u: world.nothing, AttributeError, "no attribute"),
        (lambda world, u: world.load("missing.npy"), UserError, "does not exist"),
        (lambda world, u: meshrun.sort(u), UserError, r"np\.sort"),
        (lambda world, u: np.asarray(world.zeros((3000, 3000))), UserError, "gathers"),
        (lambda world, u: np.apply_along_axis(lambda x: x, 0, u), UserError, "cannot be sent"),
    ],
)
def test_errors_leave_the_world_open(world: Any, call: Any, kind: Any, message: str) -> None:
    u = world.ones((4, 3))
    with pytest.raises(kind, match=message):
        call(world, u)
    assert float(np.sum(u)) == 12


def test_arrays_are_freed(world: Any) -> None:
    u = world.ones(5)
    gc.collect()
    np.sum(u)
    before = len(world._objects)
    for _ in range(20):
        u = u + 1
    gc.collect()
    assert len(world._objects) <= before + 1


def test_a_call_that_is_interrupted(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    u = world.ones(5)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rank_processes, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            u += 1
    assert float(np.sum(u)) == 10


def test_a_loop_is_saved_and_restored(tmp_path: Path) -> None:
    def program(opened: Any, stop: int) -> Any:
        u, step = opened.linspace(0, 1, 9), 0
        while step < stop:
            u, step = meshrun.checkpoint(tmp_path / "heat", u=u, step=step, every=2)
            u, step = cool(u), step + 1
        return u.gather()

    expected = np.linspace(0, 1, 9)
    for _ in range(7):
        expected = cool(expected)

    def failing() -> None:
        with meshrun.open_world("cpu", ranks=2) as opened:
            program(opened, 6)
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert (tmp_path / "heat.checkpoint" / "step-4").exists()
    with meshrun.open_world("cpu", ranks=2, resume=True) as opened:
        np.testing.assert_array_equal(program(opened, 7), expected)
        # A rank that is killed ends the world, with an error.
        os.kill(opened.call(os.getpid), signal.SIGKILL)
        with pytest.raises(RunError):
            opened.zeros(3)
        with pytest.raises(UserError, match="closed"):
            opened.zeros(3)


def test_one_rank_is_this_process() -> None:
    with meshrun.open_world("cpu", ranks=1) as opened:
        assert not isinstance(opened, ProcessWorld)
    with pytest.raises(UserError, match="ranks"):
        meshrun.open_world(ranks=0)
