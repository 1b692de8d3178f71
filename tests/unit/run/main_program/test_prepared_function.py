"""Functions of whole arrays that are called with distributed arrays, as with NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.compiler.whole import trace
from meshrun.runner.errors import RunError, UserError
from tests.unit.arrays.test_operations import RANKS, on_ranks, values

SPEED = 0.25


@meshrun.distribute
def cooled(u: Any, *, rate: float = 0.1) -> Any:
    v = u.copy()
    v[1:-1] += rate * (u[2:] - 2 * u[1:-1] + u[:-2])
    v[0] = v[-1] = 0
    return v


@meshrun.distribute
def cool(u: Any) -> None:
    u[1:-1, 1:-1] = (u[2:, 1:-1] + u[:-2, 1:-1]) / 2
    u[0] = u[-2]


@meshrun.distribute(outputs=("u", "v"))
def mixed(u: Any, v: Any) -> Any:
    """Changes one array and returns it, with a new one."""
    u[1:] += v[:-1]
    return u, np.roll(v, 1, 0) * SPEED


@meshrun.distribute(outputs=("x", "r"), series=("rho",))
def residual(x: Any, r: Any, alpha: Any) -> Any:
    r = r - alpha * x
    return x + r, r, np.max(r * r)


@meshrun.distribute(outputs=("fine", "coarse"))
def restricted(fine: Any, coarse: Any) -> Any:
    return fine * 2, coarse + fine[::2, ::2]


@meshrun.distribute
def scaled(u: Any) -> Any:
    v = u / np.max(u)
    return v - np.min(v)


@meshrun.distribute
def keeps(u: Any) -> Any:
    v = u.copy()
    u[0] = 1
    return v


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
        return
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_array_equal(found.gather() if hasattr(found, "gather") else found, expected)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("split", [0, 1])
def test_calls_compute_and_change_what_numpy_does(ranks: int, split: int) -> None:
    shape = (10, 9)
    calls: list[tuple[Any, Callable[[], tuple[Any, ...]]]] = [
        (cooled, lambda: (values(shape, "f8"),)),
        (cool, lambda: (values(shape, "f4"),)),
        (mixed, lambda: (values(shape, "f8"), values(shape, "f8", 1))),
        (residual, lambda: (values(shape, "f8"), values(shape, "f8", 1), np.float64(0.3))),
        (restricted, lambda: (values((13, 11), "f8"), values((7, 6), "f8", 1))),
        (scaled, lambda: (values(shape, "f8"),)),
    ]

    def body(world: Any) -> None:
        for job, given in calls:
            arrays = [world.array(one, split=split) if one.ndim else one for one in given()]
            wholes = [one.copy() for one in given()]
            for _ in range(3):
                found, expected = job(*arrays), job.function(*wholes)
                if expected is None:  # the array that it has changed
                    assert found is arrays[0]
                else:
                    same(found, expected)
                same(tuple(arrays), tuple(wholes))
            arrays[0] += 1
            wholes[0] += 1
            found, expected = job(arrays[0][...], *arrays[1:]), job.function(*wholes)
            same(found, wholes[0] if expected is None else expected)

    on_ranks(ranks, body)


@pytest.mark.parametrize("ranks", RANKS)
def test_steps_on_distributed_arrays(ranks: int) -> None:
    def body(world: Any) -> None:
        a, b, c = values((13, 12), "f8"), values((13, 12), "f8", 1), values((7, 6), "f8")
        u, v, w = map(world.array, (a, b, c))
        same(cooled.iterate(u, steps=5, rate=0.2), cooled.iterate(a, steps=5, rate=0.2))
        same(tuple(cooled.iterate(u, steps=5, every=2)), tuple(cooled.iterate(a, steps=5, every=2)))
        same(restricted.iterate(u, w, steps=2), restricted.iterate(a, c, steps=2))
        same(scaled.iterate(u, steps=3), scaled.iterate(a, steps=3))
        same((u, v, w), (a, b, c))

    on_ranks(ranks, body)


@meshrun.map_blocks(halo=1, boundary="nearest")
def edges(u: Any) -> Any:
    return (u[2:, 1:-1] - u[:-2, 1:-1]).astype("f4")


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("split", [0, 1])
def test_functions_of_blocks(ranks: int, split: int) -> None:
    whole = values((11, 9), "f8")

    def body(world: Any) -> None:
        u = world.array(whole, split=split)
        same(edges(u), edges(whole))
        same(edges(u[1:, ::2]), edges(np.ascontiguousarray(whole[1:, ::2])))

    on_ranks(ranks, body)


def test_a_further_call_is_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless something that the function reads has changed."""
    traced = []
    original = trace._traced

    def counted(*given: Any) -> Any:
        traced.append(1)
        return original(*given)

    monkeypatch.setattr(trace, "_traced", counted)

    def body(world: Any) -> None:
        u, v = world.array(values((10, 9), "f8")), world.array(values((10, 9), "f8", 1))
        scaled(u)
        mixed(u, v)
        first = len(traced)
        for _ in range(3):
            scaled(u)
            mixed(u, v)
            np.gradient(u) if _ == 0 else None
        assert len(traced) - first <= 3  # np.gradient's

    on_ranks(1, body)
    assert traced


def test_a_changed_global_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(world: Any) -> None:
        for speed in (0.25, 0.5, 2.0):
            world.control.barrier()
            monkeypatch.setitem(mixed.function.__globals__, "SPEED", speed)
            world.control.barrier()
            u, v = values((10, 9), "f8"), values((10, 9), "f8", 1)
            same(mixed(world.array(u), world.array(v)), mixed.function(u, v))

    on_ranks(2, body)


@meshrun.distribute
def loudest(u: Any) -> Any:
    return u - u[u > 9].max()


@meshrun.distribute
def limited(u: Any) -> Any:
    if u.max() > 0:
        raise ValueError("too high")
    return u


def test_an_error_that_a_value_decides_has_its_line() -> None:
    def body(world: Any) -> None:
        u = world.ones((9, 8))
        with pytest.raises(RunError, match=r"line \d+: job loudest takes numpy.max of .* picks none"):
            loudest(u)
        with pytest.raises(RunError, match=r"line \d+: job limited raises ValueError: too high"):
            limited(u)

    on_ranks(2, body)


def test_what_a_call_refuses() -> None:
    @meshrun.job
    def rows(world: Any) -> Any:
        return {"ranks": world.size}

    def body(world: Any) -> None:
        u = world.ones((9, 8))
        with pytest.raises(UserError, match=r"changes its input u and does not return it.*line \d+.*u.copy"):
            keeps(u)
        with pytest.raises(UserError, match="rows is not called with distributed arrays"):
            rows(u)
        with pytest.raises(UserError, match=r"numpy\.cov of distributed arrays"):
            np.cov(u)
        with pytest.raises(UserError, match="takes 1 array"):
            cool(u, u)

    for ranks in (1, 2):
        on_ranks(ranks, body)


@meshrun.distribute
def by_largest(u: Any) -> Any:
    return u / np.max(u[u > 5])


def test_a_call_that_failed_leaves_nothing_for_the_next_one() -> None:
    def body(world: Any) -> None:
        for _ in range(2):
            with pytest.raises(RunError, match=r"line \d+: job by_largest takes numpy.max of the cells"):
                by_largest(world.ones((4, 3)))
            assert float(np.max(by_largest(world.full((4, 3), 8.0)))) == 1

    on_ranks(2, body)
