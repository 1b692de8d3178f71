"""When a result counts as wrong."""

from __future__ import annotations

import numpy as np
import pytest

from runner.compare import differs, unlike


def wrong(got: list[float], dtype: str, expected: list[float], tolerance: float = 0.0) -> list[bool]:
    return differs(np.array(got, dtype), np.array(expected), tolerance).tolist()


def test_integers_are_rounded_half_to_even_and_saturate() -> None:
    assert wrong([2, 4, 255, 0, 3], "uint8", [2.5, 3.5, 300, -7, 2.5]) == [False] * 4 + [True]


def test_nan_as_an_integer_is_zero() -> None:
    assert wrong([0, 1], "int16", [np.nan, np.nan]) == [False, True]


def test_an_integer_may_be_off_by_its_tolerance() -> None:
    assert wrong([2, 3, 1, 4], "int32", [2.5] * 4, 0.1) == [False, False, True, True]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_may_be_one_unit_in_the_last_place_off(dtype: str) -> None:
    step = float(np.finfo(dtype).eps)
    assert wrong([1 + step, 1 + 4 * step], dtype, [1.0, 1.0]) == [False, True]


def test_nan_and_infinities_equal_themselves_alone() -> None:
    expected = [np.nan, np.inf, -np.inf, 1e300, 1.0, np.nan]
    got = [np.nan, np.inf, -np.inf, np.inf, np.nan, 1.0]
    assert wrong(got, "float32", expected) == [False, False, False, False, True, True]


def test_an_infinite_tolerance_allows_anything() -> None:
    assert not differs(np.array([np.nan, 5.0]), np.array([1.0, 1.0]), np.array([np.inf, np.inf])).any()


def test_results_are_compared_name_by_name() -> None:
    expected = {"mean": 1.0, "histogram": [1, 2, 3], "none": None}
    assert unlike({"mean": 1.0 + 1e-12, "histogram": [1, 2, 3], "none": None}, expected, {}) is None
    assert unlike({**expected, "histogram": [1, 2, 4]}, expected, {}) == ("['histogram'][2]", 4, 3)
    assert unlike({**expected, "none": 0}, expected, {}) == ("['none']", 0, None)
    assert unlike({"mean": 1.0}, expected, {}) == ("['histogram']", None, [1, 2, 3])
    assert unlike({**expected, "mean": 1.1}, expected, {"mean": 0.2}) is None
    assert unlike({**expected, "histogram": [1, 2]}, expected, {}) == ("['histogram']", [1, 2], [1, 2, 3])


def test_a_result_that_is_not_a_number_equals_itself_alone() -> None:
    nan = float("nan")
    assert unlike({"mean": nan, "max": [nan, 1.0]}, {"mean": nan, "max": [nan, 1.0]}, {}) is None
    assert unlike({"mean": 1.0}, {"mean": nan}, {}) is not None
    assert unlike({"mean": nan}, {"mean": 1.0}, {}) is not None


def test_what_the_tolerance_reaches_may_round_to_infinity() -> None:
    # 1e30 is within the tolerance and is infinite as float16; within 10 of 3 nothing is.
    assert wrong([np.inf, -np.inf, 5e4], "float16", [3.0] * 3, 1e30) == [False] * 3
    assert wrong([np.inf, -np.inf], "float16", [3.0] * 2, 10.0) == [True, True]
    assert wrong([np.inf, -np.inf], "float16", [6e4] * 2, 1e4) == [False, True]
