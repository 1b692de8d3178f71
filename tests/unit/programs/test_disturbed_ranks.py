"""Programs on ranks that come late to messages and conditions, or have a NaN: all take the same path."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.comm.threads import ThreadHub, run_ranks
from meshrun.runner.programs import looping
from meshrun.runner.programs.looping import LoopRun
from tests.facts.program_runs import plain, planned, run_program
from tests.unit.programs.test_levels import cycle, levels_run

PAUSES = (0, 0, 0, 0.0005, 0.003)  # seconds


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each message and each collective, each rank sleeps for times of its own."""
    chances = [random.Random(rank) for rank in range(5)]
    for name in ("post", "gather"):
        original = getattr(ThreadHub, name)

        def late(hub: ThreadHub, rank: int, *given: Any, original: Any = original) -> Any:
            time.sleep(chances[rank].choice(PAUSES))
            return original(hub, rank, *given)

        monkeypatch.setattr(ThreadHub, name, late)


def solved(u: Any, f: Any) -> Any:
    """A loop in a loop, with a condition in the inner one, and their counts."""
    change, outer, inner = np.max(u), 0, 0
    while change > 0.05 and outer < 20:
        before = u.copy()
        while np.max(np.abs(u)) > 1 and inner < 40:
            u = u * 0.75 + 0.01 * np.roll(u, 1, 0)
            inner += 1
        for _ in range(6):
            u[1:-1] = (u[2:] + u[:-2] - 0.1 * f[1:-1]) / 2
        change = np.max(np.abs(u - before))
        if change > 3:
            u = u * 0.5
        outer += 1
    return u + outer, f + inner


def fields(*shape: int) -> list[Any]:
    return [np.random.default_rng(seed).random(shape) * 8 - 4 for seed in (0, 1)]


@pytest.mark.usefixtures("delays")
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_loop_with_values(ranks: int) -> None:
    arrays = fields(13, 6)
    program = planned(solved, arrays, ("u", "f"))
    for one, want in zip(run_program(program, arrays, (ranks, 1)), plain(solved, arrays), strict=True):
        assert one.tobytes() == want.tobytes()


@pytest.mark.usefixtures("delays")
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_v_cycle(ranks: int) -> None:
    """Also with levels that have fewer rows than there are ranks."""
    arrays = fields(17, 9)
    program = planned(cycle, arrays, ("u",))
    (wanted,) = plain(cycle, arrays)
    (found,) = levels_run(program, arrays, (ranks, 1), split=True)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.usefixtures("delays")
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("row", [0, 12])
def test_a_nan_on_one_rank(ranks: int, row: int) -> None:
    """It comes to every rank with the maximum, which is no larger than anything."""
    arrays = fields(13, 6)
    arrays[0][row, 2] = np.nan
    wanted = plain(solved, arrays)
    program = planned(solved, arrays, ("u", "f"))
    for one, want in zip(run_program(program, arrays, (ranks, 1)), wanted, strict=True):
        np.testing.assert_array_equal(one, want)


@pytest.mark.usefixtures("delays")
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("nan", [False, True])
def test_distributed_arrays_in_a_program_of_the_user(ranks: int, nan: bool) -> None:
    """Each rank takes the same conditions as NumPy with the whole array does."""
    whole = fields(13, 6)[0]

    def body(u: Any) -> tuple[Any, list[bool]]:
        taken = []
        while (wanted := bool(np.max(np.abs(u)) > 0.3)) and len(taken) < 60:
            u[1:-1] = (u[2:] + u[:-2]) * 0.45
            u = np.roll(u, 1, axis=0) * 0.9
            taken.append(wanted)
            if nan and len(taken) == 5:
                u[12, 0] = np.nan
            if np.min(u) < -1:
                u += 0.125
                taken.append(False)
        return u, taken

    def rank(control: Any) -> Any:
        with meshrun.open_world("cpu", control=control) as world:
            array = world.zeros(whole.shape)
            array[...] = whole
            found, taken = body(array)
            return np.asarray(found), taken

    with np.errstate(invalid="ignore"):
        wanted, path = body(whole.copy())
        found = run_ranks(ranks, rank)
    assert 3 < len(path) < 60
    for one, taken in found:
        assert taken == path
        np.testing.assert_array_equal(one, wanted)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_fails_at_a_condition_ends_the_others(
    victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays, iterate = fields(13, 6), LoopRun._iterate
    program = planned(solved, arrays, ("u", "f"))

    def failing(loop: LoopRun, count: int) -> None:
        if loop.run.world.rank == victim and count == 1:
            raise RuntimeError("this rank fails")
        iterate(loop, count)

    monkeypatch.setattr(looping.LoopRun, "_iterate", failing)
    with pytest.raises(RuntimeError, match="this rank fails"):
        run_program(program, arrays, (3, 1))
