"""Sums that judge a steady state: exact, and the same for every split; and jobs that have none."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.errors import UserError
from meshrun.runner.options.step_options import Steady, parse_until
from meshrun.runner.steps.observers.steady import LARGEST, relative_change, squares


def test_a_sum_of_squares_is_exact_to_a_unit_for_each_value_and_the_same_in_any_order() -> None:
    random = np.random.default_rng(0)
    values = random.standard_normal(5000) * 10.0 ** random.uniform(-9, 0, 5000)
    exact = sum(Fraction(one) ** 2 for one in values.tolist())
    high, low, left_out = squares(values, np).tolist()
    assert left_out == 0
    assert abs(Fraction(high, 2**30) + Fraction(low, 2**60) - exact) <= 5000 * Fraction(1, 2**60)
    parts = np.sum([squares(one, np) for one in np.array_split(random.permutation(values), 7)], axis=0)
    assert parts.tolist() == [high, low, left_out]


def test_a_change_of_the_last_bit_of_one_cell_is_seen() -> None:
    changed = np.zeros((100, 100))
    changed[3, 4] = 2.0**-27  # of 0.1 in float32
    sums = np.array([[squares(changed, np), squares(np.full((100, 100), 0.1), np)]])
    assert relative_change(ThreadComm(), sums) == pytest.approx(2.0**-27 / 10)


@pytest.mark.parametrize("value", [math.nan, math.inf, math.sqrt(LARGEST)])
def test_a_value_that_is_no_flows_is_no_steady_state_on_any_rank(value: float) -> None:
    def rank(control: Control) -> float:
        values = np.full(9, 0.1)
        values[4] = value if control.rank == 1 else 0.1
        return relative_change(control, np.array([[squares(np.zeros(9), np), squares(values, np)]]))

    assert all(math.isnan(one) for one in run_ranks(3, rank))


def test_air_at_rest_is_steady() -> None:
    none = squares(np.zeros(4), np)
    assert relative_change(ThreadComm(), np.array([[none, none]])) == 0
    assert relative_change(ThreadComm(), np.array([[squares(np.full(4, 0.1), np), none]])) == math.inf


def test_what_is_parsed() -> None:
    assert parse_until("steady") == Steady(None)
    assert parse_until("steady:2e-6") == Steady(2e-6)
    assert parse_until("0") == 0.0


@pytest.mark.parametrize("options", [{}, {"chunk_bytes": 100}])
def test_a_job_that_has_no_steady_state_says_what_to_type(tmp_path: Path, options: dict[str, Any]) -> None:
    @meshrun.map_blocks
    def still(block: Any) -> Any:
        return block

    np.save(tmp_path / "a.npy", np.ones((9, 9)))
    with pytest.raises(UserError, match=r"applies to a flow.*got job still.*until=1e-6|Try: until") as found:
        still.run(tmp_path / "a.npy", tmp_path / "b.npy", steps=20, until="steady", device="cpu", **options)
    assert "job still" in str(found.value)
    assert not (tmp_path / "b.npy").exists()
