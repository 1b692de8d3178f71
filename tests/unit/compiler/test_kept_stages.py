"""Values that a kernel keeps for later rows: which they are, and from when to when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshrun.runner.compiler.cuda.steps import tuning
from meshrun.runner.compiler.cuda.steps.layout import Choice, Tuning
from meshrun.runner.compiler.cuda.steps.tuning import choices
from meshrun.runner.compiler.passes.kept_stages import KeptStages, kept_stages
from meshrun.runner.compiler.trace.graph import Operand, Program
from meshrun.runner.compiler.trace.trace import trace


def laplacian(u: Any) -> Any:
    return u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1]


def heat(u: Any) -> Any:
    return u[1:-1, 1:-1] + 0.1 * laplacian(u)


def potential(u: Any) -> Any:
    centre = u[1:-1, 1:-1]
    return u[2:-2, 2:-2] + 0.01 * laplacian(centre * centre * centre - centre - 0.5 * laplacian(u))


def fluxes(u: Any) -> Any:
    """A flux through the lower side of a cell is one through the upper side of the next."""
    flux = np.sqrt(abs(u[1:] - u[:-1])) * (u[1:] + u[:-1])
    return u[1:-1] - 0.1 * (flux[1:] - flux[:-1])


def thrice(u: Any) -> Any:
    """A stage of a stage: each is read in three rows."""
    for _ in range(3):
        u = u[1:-1, 1:-1] + laplacian(u) * u[1:-1, 1:-1] * 0.1
    return u


def cheap(u: Any) -> Any:
    """Sums of two cells: to compute them again costs less than to keep them."""
    pair = u[1:] + u[:-1]
    return 0.25 * (pair[1:, 1:-1] + pair[:-1, 1:-1])


def placed(u: Any, *, here: Any) -> Any:
    y, _ = here.coordinates()
    return potential(u) * np.where(y % 2 == 0, np.float32(1), np.float32(0.5))


def program(function: Callable[..., Any], width: int, *, dtype: str = "f4") -> Program:
    widths = ((width, width), (0, 0) if function is fluxes else (width, width))
    services = frozenset(["here"]) if function is placed else frozenset[str]()
    return trace(function, [Operand("u", np.dtype(dtype))], widths, {}, services, ["after"])


@pytest.mark.parametrize(
    ("function", "width", "leads", "oldest"),
    [
        (potential, 2, (1,), {(0, 0): 0, (1, 0): -1}),
        (fluxes, 1, (1,), {(0, 0): 0, (1, 0): 0}),
        (thrice, 3, (2, 1), {(0, 0): 1, (1, 0): 0, (2, 0): -1}),
    ],
)
def test_a_value_is_computed_when_its_last_row_is_at_hand(
    function: Callable[..., Any], width: int, leads: tuple[int, ...], oldest: dict[tuple[int, int], int]
) -> None:
    """And each input, and each value, is kept until its oldest row has been read."""
    kept = kept_stages(program(function, width), width)
    assert isinstance(kept, KeptStages)
    assert kept.leads == leads
    assert kept.oldest == oldest


def test_words_of_a_column_are_those_of_all_rows_that_are_kept() -> None:
    kept = [kept_stages(program(thrice, 3, dtype=kind), 3) for kind in ("f4", "f8")]
    assert [one and one.words for one in kept] == [4, 8]


def test_each_value_is_computed_once() -> None:
    whole = program(potential, 2)
    kept = kept_stages(whole, 2)
    assert kept is not None
    assert kept.program.operations < whole.operations / 3


@pytest.mark.parametrize(("function", "width"), [(heat, 1), (cheap, 1), (placed, 2)])
def test_nothing_is_kept(function: Callable[..., Any], width: int) -> None:
    """Of what a place decides, a value may be another one for each cell that reads it."""
    assert kept_stages(program(function, width), width) is None


def test_stages_are_no_reason_for_single_steps() -> None:
    best = choices(program(potential, 2), (0,), (8192, 8192))[0]
    assert best.tuning.keeps
    assert best.steps >= 3


def test_a_loop_that_fits_no_instruction_cache_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many steps, lanes of many columns, and many operations."""
    large = Choice(8, Tuning(columns=4, ahead=3, blocks=2, vectors=True, keeps=True))
    small = Choice(2, large.tuning)
    seconds = {}
    for cached in (tuning.CACHED, 10**6):
        monkeypatch.setattr(tuning, "CACHED", cached)
        seconds[cached] = [tuning.seconds_per_cell(program(thrice, 3), (0,), one) for one in (small, large)]
    (small_as_is, large_as_is), (small_cached, large_cached) = seconds.values()
    assert small_as_is == small_cached
    assert large_as_is > large_cached
