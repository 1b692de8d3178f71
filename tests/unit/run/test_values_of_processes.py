"""Functions that name values of their process: other ones on each rank are refused, equal ones are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import UserError
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

YS, XS = np.array([2, 5, 9]), np.array([3, 3, 8])


def row(noise: Any) -> Callable[..., Any]:
    return lambda u: u + noise


def number(noise: Any) -> Callable[..., Any]:
    gain = float(noise[0])
    return lambda u: u * gain


def helper(noise: Any) -> Callable[..., Any]:
    def shaken(u: Any) -> Any:
        return u + noise

    return lambda u: shaken(u) * 2


def branch(noise: Any) -> Callable[..., Any]:
    upwards = bool(noise[0] > 0.6)
    return lambda u: u + 1 if upwards else u - 1


def at_points(noise: Any) -> Callable[..., Any]:
    def f(u: Any) -> Any:
        u[YS, XS] += noise[:3]
        return u

    return f


def points(noise: Any) -> Callable[..., Any]:
    ys = (noise[:3] * 11).astype(int)

    def f(u: Any) -> Any:
        u[ys, XS] += 1
        return u

    return f


def normalized(noise: Any) -> Callable[..., Any]:
    """Of several stages."""
    return lambda u: u / (u * noise).max()


def not_traced(noise: Any) -> Callable[..., Any]:
    return lambda u: np.where(np.isin(u, [-99.0]), u, u + noise)


WHOLE = [row, number, helper, branch, at_points, points, normalized]
BLOCKS = [row, number, helper, branch, not_traced]


def on_ranks(tmp_path: Path, declare: Any, made: Any, values: list[Any], steps: int | None) -> Any:
    np.save(tmp_path / "u.npy", np.random.default_rng(3).random((12, 13)))

    def rank(control: Any) -> Any:
        job = declare(made(values[control.rank]))
        world = open_world("cpu", control=control)
        options = Options(steps=StepOptions(steps))
        return run(job, [tmp_path / "u.npy"], [tmp_path / "o.npy"], {}, options, world=world)

    run_ranks(len(values), rank)
    return np.load(tmp_path / "o.npy")


CASES = [(meshrun.distribute, one) for one in WHOLE] + [(meshrun.map_blocks, one) for one in BLOCKS]


@pytest.mark.parametrize(("declare", "made"), CASES)
@pytest.mark.parametrize("steps", [None, 2])
def test_other_values_on_a_rank_are_refused(tmp_path: Path, declare: Any, made: Any, steps: Any) -> None:
    values = [np.random.default_rng(seed).random(13) for seed in (0, 0, 1)]
    with pytest.raises(UserError) as refused:
        on_ranks(tmp_path, declare, made, values, steps)
    assert "computes something else on rank 2 than on rank 0" in str(refused.value)
    if made is row:
        assert "noise of each process has other values" in str(refused.value)
    assert not (tmp_path / "o.npy").exists()


def test_images_of_a_folder_are_computed_by_one_function(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(4):
        np.save(tmp_path / "in" / f"{number}.npy", np.ones((12, 13)))

    def rank(control: Any) -> None:
        job = meshrun.map_blocks(row(np.random.default_rng(control.rank).random(13)))
        run(job, tmp_path / "in", tmp_path / "out", world=open_world("cpu", control=control))

    with pytest.raises(UserError, match="computes something else on rank 1 than on rank 0: noise of each"):
        run_ranks(2, rank)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("declare", "made"), CASES)
def test_equal_values_are_not(tmp_path: Path, declare: Any, made: Any) -> None:
    noise = np.random.default_rng(0).random(13)
    found = on_ranks(tmp_path, declare, made, [noise.copy() for _ in range(3)], 2)
    u = np.load(tmp_path / "u.npy")
    for _ in range(2):
        u = made(noise)(u)
    np.testing.assert_array_equal(found, u)


def reduced(noise: Any) -> Any:
    return meshrun.reduce_blocks(combine=lambda a, b: a + b)(lambda block: (block * noise[0]).sum())


def combined(noise: Any) -> Any:
    return meshrun.reduce_blocks(combine=lambda a, b: a + noise[0] * b)(lambda block: block.sum())


def finished(noise: Any) -> Any:
    def finish(total: Any) -> Any:
        return total + noise[0]

    return meshrun.reduce_blocks(combine=lambda a, b: a + b, finish=finish)(lambda block: block.sum())


def reduce_on_ranks(tmp_path: Path, made: Any, values: list[Any]) -> Any:
    np.save(tmp_path / "u.npy", np.random.default_rng(3).random((12, 13)))

    def rank(control: Any) -> Any:
        world = open_world("cpu", control=control)
        return run(made(values[control.rank]), [tmp_path / "u.npy"], [], {}, Options(), world=world)

    return run_ranks(len(values), rank)[0]["result"]


@pytest.mark.parametrize("made", [reduced, combined, finished])
def test_other_values_of_reductions_are_refused(tmp_path: Path, made: Any) -> None:
    values = [np.random.default_rng(seed).random(13) for seed in (0, 0, 1)]
    with pytest.raises(UserError) as refused:
        reduce_on_ranks(tmp_path, made, values)
    assert "computes something else on rank 2 than on rank 0" in str(refused.value)
    assert "noise of each process has other values" in str(refused.value)
    reduce_on_ranks(tmp_path, made, [values[0]] * 3)


def test_reductions_that_raise_for_a_small_array_are_not_compared(tmp_path: Path) -> None:
    def made(noise: Any) -> Any:
        def total(block: Any, *, here: Any) -> Any:
            if here.size == 1:
                raise ValueError
            return block.sum() + noise[0]

        return meshrun.reduce_blocks(combine=lambda a, b: a + b)(total)

    reduce_on_ranks(tmp_path, made, [np.array([n]) for n in range(2)])


def table(noise: Any) -> Callable[..., Any]:
    return lambda u: u * (noise * 2) + noise[0]


@pytest.mark.parametrize("made", [row, number, at_points, table])
def test_last_bits_of_numbers_are_a_warning(
    tmp_path: Path, made: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0).random(13)
    on_ranks(tmp_path, meshrun.distribute, made, [noise, np.nextafter(noise, 2)], 2)
    assert "differs in its last bits between rank 0 and rank 1" in caplog.text
    assert ("gain" if made is number else "noise") in caplog.text


@pytest.mark.parametrize("by", [1e-9, 1e-14])
def test_other_numbers_are_refused(tmp_path: Path, by: float) -> None:
    noise = np.random.default_rng(0).random(13) + 0.5
    other = noise.copy()
    other[7] += by
    with pytest.raises(UserError, match="computes something else"):
        on_ranks(tmp_path, meshrun.distribute, row, [noise, other], None)


def test_hosts_with_other_numbers_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).random(13)

    original = open_world

    def opened(device: Any, control: Any) -> Any:
        world = original(device, control=control)
        ranks = tuple(replace(one, host=f"n{number + 1}") for number, one in enumerate(world.ranks))
        return replace(world, ranks=ranks)

    monkeypatch.setitem(globals(), "open_world", opened)
    with pytest.raises(UserError, match=r"noise of each process has other values \(hosts n1 and n2\)"):
        on_ranks(tmp_path, meshrun.distribute, row, [noise, noise + 1], None)
