"""Statistics against NumPy, on data that breaks careless sums, whatever the cut into tiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshrun.jobs.filters.dtypes import SUPPORTED
from meshrun.jobs.filters.statistics import statistics
from meshrun.runner.errors import UserError

Array = np.ndarray[Any, Any]
WORLD = SimpleNamespace(backend=SimpleNamespace(xp=np))


class FakeTiles:
    """An array in memory in tiles of 1000 elements, combined in order."""

    size = 1000

    def __init__(self, world: Any, array: Array) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def reduce(self, function: Callable[[Array], Any], combine: Callable[[Any, Any], Any]) -> Any:
        result = None
        flat = self.array.reshape(-1)
        for start in range(0, flat.size, self.size):
            part = function(flat[start : start + self.size])
            result = part if result is None else combine(result, part)
        return result


@pytest.fixture(autouse=True)
def _fake_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshrun.runner.maps.reduce.Tiles", FakeTiles)


def run(array: Array, **parameters: Any) -> dict[str, Any]:
    """The job's result; asserts that its reference agrees and that the whole fits together."""
    found: dict[str, Any] = statistics.function(WORLD, array, **parameters)
    assert statistics.reference is not None
    expected, absolute = statistics.reference(array, **parameters)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name in absolute and value is not None:
            assert found[name] == pytest.approx(value, rel=1e-9, abs=absolute[name]), name
        else:
            assert found[name] == value, name
            assert type(found[name]) is type(value), name
    assert sum(found["histogram"]) + found["below"] + found["above"] in (found["count"], 0)
    assert found["count"] + found["nan"] + found["infinite"] == array.size
    return found


@pytest.mark.parametrize("dtype", SUPPORTED)
def test_is_numpys(dtype: str) -> None:
    generator = np.random.default_rng(1)
    array = (generator.random((61, 83)) * (120 if dtype == "int8" else 200)).astype(dtype)
    array.flat[0] = 0
    found = run(array, bins=50, low=0, high=200)
    assert found["count"] == array.size
    assert (found["min"], found["max"]) == (array.min(), array.max())
    assert isinstance(found["min"], float if np.dtype(dtype).kind == "f" else int)
    assert found["mean"] == pytest.approx(np.mean(array, dtype=np.float64), rel=1e-12)
    assert found["std"] == pytest.approx(np.std(array, dtype=np.float64), rel=1e-12)
    assert found["histogram"] == np.histogram(array + 0, 50, (0, 200))[0].tolist()


def test_the_default_range_is_the_datas() -> None:
    array = np.random.default_rng(2).standard_normal(5000)
    found = run(array)
    assert (found["low"], found["high"]) == (array.min(), array.max())
    assert found["histogram"] == np.histogram(array, 64)[0].tolist()
    assert found["below"] == found["above"] == 0


def test_a_large_offset_leaves_the_spread() -> None:
    """The textbook formula, mean of squares minus square of mean, gives 0 or a negative number here."""
    noise = np.random.default_rng(3).standard_normal(50_000)
    exact = np.std((1e9 + noise) - 1e9)
    assert run(1e9 + noise)["std"] == pytest.approx(exact, rel=1e-9)
    assert run(np.full(5000, 0.1))["std"] < 1e-16


def test_tiles_far_apart_from_each_other() -> None:
    array = np.repeat([1e12, -1e12, 3.0], 1000)
    found = run(array)
    assert found["mean"] == pytest.approx(1.0, rel=1e-3)
    assert found["std"] == pytest.approx(np.std(array), rel=1e-12)


def test_nan_and_infinities_are_counted_apart() -> None:
    array = np.arange(10_000, dtype=np.float32)
    array[[3, 17, 9_999]] = np.nan
    array[[5, 6]] = np.inf, -np.inf
    finite = array[np.isfinite(array)].astype(np.float64)
    found = run(array)
    assert (found["count"], found["nan"], found["infinite"]) == (9995, 3, 2)
    assert (found["min"], found["max"]) == (0.0, 9998.0)
    assert found["mean"] == pytest.approx(finite.mean(), rel=1e-12)
    assert found["std"] == pytest.approx(finite.std(), rel=1e-12)


def test_a_tile_without_a_finite_element() -> None:
    array = np.r_[np.full(1000, np.nan), np.full(1000, 7.0), np.full(1000, np.inf)]
    found = run(array)
    assert (found["mean"], found["std"], found["min"], found["max"]) == (7.0, 0.0, 7.0, 7.0)


def test_nothing_finite() -> None:
    found = run(np.full(2500, np.nan, np.float16), bins=3)
    assert found["count"] == 0
    assert [found[name] for name in ("min", "max", "mean", "std", "low", "high")] == [None] * 6
    assert found["histogram"] == [0, 0, 0]
    assert run(np.full(5, np.inf), low=0, high=1)["low"] == 0


@pytest.mark.parametrize("dtype", [name for name in SUPPORTED if "int" in name])
def test_extremes_of_integers(dtype: str) -> None:
    limits = np.iinfo(dtype)
    array = np.repeat(np.array([limits.min, limits.max], dtype), [1500, 1501])
    found = run(array, bins=2)
    assert (found["min"], found["max"]) == (limits.min, limits.max)
    assert found["histogram"] == [1500, 1501]
    assert found["mean"] == pytest.approx(np.mean(array, dtype=np.longdouble), rel=1e-12)


def test_times_in_nanoseconds_have_exact_extremes() -> None:
    first = 1_700_000_000_000_000_001
    array = first + np.random.default_rng(5).permutation(5000)
    found = run(array, bins=2)
    assert (found["min"], found["max"]) == (first, first + 4999)
    assert sum(found["histogram"]) == 5000
    close = run(np.array([2**60, 2**60 + 1]))  # one float64
    assert (close["min"], close["max"], close["std"]) == (2**60, 2**60 + 1, 0.0)
    assert close["low"] < 2**60 < close["high"]


def test_bool_counts_as_0_and_1() -> None:
    found = run(np.arange(3000) % 3 == 0, bins=2)
    assert (found["min"], found["max"], found["mean"]) == (0, 1, pytest.approx(1 / 3))
    assert found["histogram"] == [2000, 1000]


def test_edges_of_bins() -> None:
    array = np.array([-1e9, -0.001, 0, 0.999, 1, 2, 3.999, 4, 4.001, 1e9, np.nan])
    found = run(array, bins=4, low=0, high=4)
    assert found["histogram"] == [2, 1, 1, 2]  # 4 itself is in the last bin
    assert (found["below"], found["above"]) == (2, 2)


def test_a_single_value() -> None:
    found = run(np.full(10, 7, np.uint8), bins=4)
    assert (found["low"], found["high"]) == (6.5, 7.5)
    assert found["histogram"] == [0, 0, 10, 0]
    found = run(np.array([1e300]), bins=4)
    assert sum(found["histogram"]) == 1
    assert found["low"] < 1e300 < found["high"]


def test_zero_dimensional_and_many_axes() -> None:
    one = run(np.array(2.5))
    assert (one["count"], one["min"], one["max"], one["mean"], one["std"]) == (1, 2.5, 2.5, 2.5, 0.0)
    array = np.random.default_rng(5).random((3, 4, 5, 6))
    many, flat = run(array), run(array.reshape(-1))
    assert many == flat
    assert (many["count"], many["mean"]) == (360, pytest.approx(array.mean()))


@pytest.mark.parametrize("size", [1, 7, 999, 5001])
def test_the_cut_changes_last_bits_only(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    array = np.random.default_rng(6).standard_normal(5001) + 1e6
    whole = run(array)
    monkeypatch.setattr(FakeTiles, "size", size)
    found = run(array)
    assert found["histogram"] == whole["histogram"]
    assert found["std"] == pytest.approx(whole["std"], rel=1e-9)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"bins": 0}, "so many bins"),
        ({"bins": 65537}, "so many bins"),
        ({"low": math.nan}, "--low is no finite number"),
        ({"high": math.inf}, "--high is no finite number"),
        ({"low": 2.0, "high": 1.0}, "range is empty"),
        ({"low": 1.0, "high": 1.0}, "range is empty"),
        ({"low": -1e308, "high": 1e308}, "too wide"),
        ({"low": 500.0}, "range is empty"),  # above all there is
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        statistics.function(WORLD, np.arange(300, dtype=np.int32), **parameters)
    assert caught.value.everywhere


def test_an_empty_array_gets_a_sentence() -> None:
    with pytest.raises(UserError, match="without elements has no statistics"):
        statistics.function(WORLD, np.empty((0, 4), np.float32))


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(UserError, match="cannot work on elements of this type"):
        statistics.function(WORLD, np.arange(3, dtype=np.complex64))


def test_the_command_line_sees_its_options() -> None:
    assert [option.name for option in statistics.parameters] == ["bins", "low", "high"]
    assert all(option.help for option in statistics.parameters)
    assert [option.type for option in statistics.parameters] == [int, float, float]
