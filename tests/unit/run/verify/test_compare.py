"""When a result counts as wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshrun.runner.run.verify.compare import differs, unlike


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
    assert unlike({"mean": 1.0, "none": None}, expected, {}) == ("['histogram']", "nothing", [1, 2, 3])
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


BIG = 2**53


def cells(values: list[Any], dtype: str) -> Any:
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("got", "expected", "dtype"),
    [
        (BIG, BIG + 1, "int64"),
        (2**63 - 1, 2**63 - 2, "int64"),
        (-(2**63), -(2**63) + 1, "int64"),
        (2**64 - 1, 2**64 - 2, "uint64"),
        (0, 2**64 - 1, "uint64"),
    ],
)
def test_integers_are_compared_exactly(got: int, expected: int, dtype: str) -> None:
    found = differs(cells([got, expected], dtype), cells([expected, expected], dtype), 0.0)
    assert found.tolist() == [True, False]


def test_an_integer_off_by_a_tolerance_of_integers_is_exact_too() -> None:
    got = cells([-(2**63), BIG + 3, BIG + 4, 2**63 - 1], "int64")
    expected = cells([2**63 - 1, BIG + 1, BIG + 1, 2**63 - 3], "int64")
    assert differs(got, expected, 2.5).tolist() == [True, False, True, False]
    assert differs(got, expected, np.array([np.inf, 2, 3, np.nan])).tolist() == [False, False, False, True]


def test_expected_integers_of_another_dtype_saturate_and_keep_their_sign() -> None:
    got = cells([2**63 - 1, 0, 2**63 - 2], "int64")
    assert differs(got, cells([2**64 - 1, 2**64 - 1, 2**63 - 1], "uint64"), 0.0).tolist() == [
        False,
        True,
        True,
    ]
    got = cells([0, 2**64 - 1], "uint64")
    assert differs(got, cells([-1, -1], "int64"), 0.0).tolist() == [False, True]
    assert differs(cells([255, 254], "uint8"), cells([300, 300], "int64"), 0.0).tolist() == [False, True]
    assert differs(cells([1, 0], "int32"), cells([True, True], "bool"), 0.0).tolist() == [False, True]


def test_a_float_reference_of_integers_is_as_exact_as_a_float() -> None:
    """Floats near 2^60 are 256 apart: what rounds to the reference's cannot be told from it."""
    got = cells([2**60, 2**60 + 100, 2**60 + 300, 10**10 + 1], "int64")
    expected = cells([2**60, 2**60, 2**60, 10**10], "float64")
    assert differs(got, expected, 0.0).tolist() == [False, False, True, True]


def test_an_integer_is_no_complex_number() -> None:
    assert differs(cells([3, 3], "int32"), cells([3, 3 + 1j], "complex128"), 0.0).tolist() == [False, True]


def test_truth_values_are_compared_as_such() -> None:
    got = cells([True, True, False, True], "bool")
    assert differs(got, cells([1.0, 0.5, np.nan, True], "float64"), 0.0).tolist() == [
        False,
        True,
        True,
        False,
    ]


def test_a_float_beside_expected_integers_keeps_its_fraction() -> None:
    assert differs(cells([1.5, 1.0], "float32"), cells([1, 1], "int64"), 0.0).tolist() == [True, False]


def test_a_float_is_not_rounded_to_what_is_expected_of_it() -> None:
    assert differs(cells([1 + 1e-9, 1.0], "float64"), cells([1, 1], "float32"), 0.0).tolist() == [True, False]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_nothing_finite_is_near_an_infinity(dtype: str) -> None:
    assert wrong([5.0, -np.inf, np.inf], dtype, [np.inf, np.inf, np.inf], 1.0) == [True, True, False]


def test_a_tolerance_that_is_no_number_allows_nothing() -> None:
    assert wrong([5.0], "float64", [6.0], np.nan) == [True]


def test_complex_numbers_are_compared_by_their_distance_and_infinite_ones_part_by_part() -> None:
    got = [
        1 + 1e-17j,
        3 + 4.1j,
        complex(np.nan, 1),
        complex(np.nan, 1),
        complex(np.inf, 1),
        complex(np.inf, 1),
    ]
    expected = [1, 3 + 4j, complex(np.nan, 1), complex(np.nan, 2), complex(np.inf, 1), complex(np.inf, 2)]
    found = differs(cells(got, "complex128"), cells(expected, "complex128"), 0.0)
    assert found.tolist() == [False, True, False, True, False, True]
    near = differs(cells([3 + 4.1j], "complex64"), cells([3 + 4j], "complex128"), 0.11)
    assert near.tolist() == [False]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (10**10 + 5, 10**10),
        (np.int64(BIG + 1), BIG),
        (10**30 + 1, 10**30),
        (True, False),
        (np.True_, 0),
        (10**10 + 5, 1e10),  # a float that says which integer
        (2, 2.6),
        ("yes", "no"),
        ("1", 1),
        (b"1", "1"),
        ([1, 2], [1, 2, 3]),
        ([1, [2, 3]], [1, [2]]),
        (7, [7]),
        ([7], 7),
        (7, {"a": 7}),
        ({"a": 7}, 7),
        ({"a": 1, "b": 2}, {"a": 1}),
        (np.array([1, 2]), [1, 2, 3]),
        (np.array([1, 2]), np.array([[1, 2], [1, 2]])),
        (np.array([BIG, 1]), np.array([BIG + 1, 1])),
        (np.array(["a", "b"]), np.array(["a", "c"])),
        (1.0, 1.0 + 1e-6),
        (1.0, np.nan),
        (np.inf, -np.inf),
        (1e308, np.inf),
        (1 + 2j, 1 + 3j),
        (1.0, "1.0"),
        (None, 0),
        (0.0, None),
    ],
    ids=str,
)
def test_results_that_differ(result: Any, expected: Any) -> None:
    assert unlike(result, expected, {}) is not None
    assert unlike({"name": [result]}, {"name": [expected]}, {}) is not None


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (10**30, 10**30),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.int32(3), 3),
        (3, 3.0000000001),  # an integer whose reference is a float: the nearest one
        (3.0, 3),
        (1e10 + 5, 10**10),  # a float has the tolerance of floats
        (True, np.True_),
        ("yes", "yes"),
        (np.str_("yes"), "yes"),
        ([1, 2.0], (1, 2.0)),
        (np.array([1.0, np.nan]), [1.0 + 1e-12, np.nan]),
        (np.array([1, 2]), [1, 2]),
        ({}, {}),
        ([], ()),
        (np.nan, np.nan),
        (np.inf, np.inf),
        (1 + 2j, 1 + (2 + 1e-12) * 1j),
        (np.float64(0.1), 0.1),
        (None, None),
    ],
    ids=str,
)
def test_results_that_agree(result: Any, expected: Any) -> None:
    assert unlike(result, expected, {}) is None


def test_a_name_that_nobody_expects_is_named() -> None:
    assert unlike({"a": 1, "b": 2}, {"a": 1}, {}) == ("['b']", 2, "nothing")
    assert unlike({"b": "nothing"}, {}, {}) == ("['b']", "nothing", "nothing")
    assert unlike({"x": {"a": 1}}, {"x": {"a": 1, "c": 3}}, {}) == ("['x']['c']", "nothing", 3)


def test_the_first_wrong_cell_of_an_array_is_named() -> None:
    got, expected = np.array([[1, 2], [3, 4]]), np.array([[1, 2], [5, 4]])
    assert unlike({"a": got}, {"a": expected}, {}) == ("['a'][1, 0]", 3, 5)


def test_a_tolerance_holds_for_all_that_its_name_has() -> None:
    expected = {"counts": {"low": [10, 20]}, "other": 1}
    assert unlike({"counts": {"low": [12, 19]}, "other": 1}, expected, {"counts": 2}) is None
    assert unlike({"counts": {"low": [13, 19]}, "other": 1}, expected, {"counts": 2}) is not None
    assert unlike({"counts": {"low": [10, 20]}, "other": 2}, expected, {"counts": 2}) is not None
