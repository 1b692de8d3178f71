"""What a block's function is told of its place, and the random numbers that belong to its cells."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy  # which loads `stats` when a test needs it: a second for each process that collects
from hypothesis import given
from hypothesis import strategies as st

import meshrun
from meshrun.runner.errors import UserError
from meshrun.runner.job import philox

CELLS = 1 << 18
RARE = 1e-4  # a true hypothesis would be refused at one seed in ten thousand; the seeds here are fixed


def place(
    shape: tuple[int, ...], offset: tuple[int, ...] | None = None, block: Any = None
) -> meshrun.BlockContext:
    return meshrun.BlockContext(0, 1, "", offset or (0,) * len(shape), block or shape, shape, None, np)


def line(cells: int = CELLS) -> meshrun.BlockContext:
    return place((cells,))


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # kat_vectors of Random123, philox4x64 with 10 rounds
        (
            (0, 0, 0, 0),
            (0, 0),
            (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B),
        ),
        (
            (2**64 - 1,) * 4,
            (2**64 - 1,) * 2,
            (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0),
        ),
        (
            (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
            (0x452821E638D01377, 0xBE5466CF34E90C6C),
            (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
        ),
    ],
)
def test_the_generators_published_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    words = philox.encrypt(np, [np.array([word], np.uint64) for word in counter], key)
    assert tuple(int(word[0]) for word in words) == expected


def test_uniform_is_what_numpy_makes_of_the_seed() -> None:
    wanted = np.random.Generator(np.random.Philox(key=7)).random((61, 43))
    np.testing.assert_array_equal(place((61, 43)).uniform(7), wanted)


@given(st.data())
def test_a_cells_number_depends_on_its_place_alone(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    offset = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    block = tuple(data.draw(st.integers(0, n - first)) for n, first in zip(shape, offset, strict=True))
    part = tuple(slice(a, a + n) for a, n in zip(offset, block, strict=True))
    whole, here = place(shape), place(shape, offset, block)
    np.testing.assert_array_equal(here.uniform(5), whole.uniform(5)[part])
    np.testing.assert_array_equal(here.normal(5), whole.normal(5)[part])
    # Either way to make them, a few cells at a time.
    runs = philox.runs(offset, block, shape)
    np.testing.assert_array_equal(
        philox.by_arithmetic(np, (5, 0), *runs, most=8).reshape(block), here.uniform(5)
    )
    np.testing.assert_array_equal(philox.by_numpy((5, 0), *runs).reshape(block), here.uniform(5))


def test_cells_of_an_array_that_no_memory_holds() -> None:
    here = place((2**31, 2**30), (2**31 - 1, 2**30 - 5), (1, 5))
    generator = np.random.Philox(key=3, counter=(2**61 - 8) // 4)
    wanted = (generator.random_raw(8)[3:] >> 11) * 2.0**-53
    np.testing.assert_array_equal(here.uniform(3), [wanted])
    runs = philox.runs(here.offset, here.block, here.shape)
    np.testing.assert_array_equal(philox.by_numpy((3, 0), *runs), [wanted])


def test_the_first_cell_is_not_zero() -> None:
    first = [line(1).uniform(seed)[0] for seed in range(100)]
    assert min(first) > 0
    assert len(set(first)) == 100


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "one", None])
@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_a_seed_that_is_none_is_refused(seed: Any, kind: str) -> None:
    with pytest.raises(UserError, match="the seed of random numbers must be an unsigned 64-bit integer"):
        getattr(line(3), kind)(seed)


def test_seeds_may_be_numpys() -> None:
    np.testing.assert_array_equal(line(3).uniform(np.uint64(2**64 - 1)), line(3).uniform(2**64 - 1))


# ---- statistics: each refuses a generator that lacks one property of independent random numbers


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_uniform_fills_the_unit_interval_evenly(seed: int) -> None:
    values = line().uniform(seed)
    assert 0 <= values.min() < values.max() < 1
    assert scipy.stats.kstest(values, "uniform").pvalue > RARE
    assert scipy.stats.chisquare(np.bincount((values * 1024).astype(int), minlength=1024)).pvalue > RARE
    # The lowest bits too, of 53.
    low = (values * 2.0**53).astype(np.uint64) & np.uint64(255)
    assert scipy.stats.chisquare(np.bincount(low.astype(int), minlength=256)).pvalue > RARE


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_normal_has_the_bell_curve(seed: int) -> None:
    values = line().normal(seed)
    assert np.isfinite(values).all()
    assert scipy.stats.kstest(values, "norm").pvalue > RARE
    assert scipy.stats.normaltest(values).pvalue > RARE  # skew and tails
    assert abs(values.mean()) < 4 / math.sqrt(CELLS)
    assert abs(values.var() - 1) < 4 * math.sqrt(2 / CELLS)


def pairs_are_even(one: Any, other: Any) -> bool:
    """Whether pairs of uniform numbers fill the unit square evenly: more than a correlation of 0."""
    cell = (one * 16).astype(int) * 16 + (other * 16).astype(int)
    return bool(scipy.stats.chisquare(np.bincount(cell.reshape(-1), minlength=256)).pvalue > RARE)


def unit(normal: Any) -> Any:
    return scipy.stats.norm.cdf(normal)


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_neighbouring_cells_are_independent(kind: str) -> None:
    values = getattr(place((512, 512)), kind)(11)
    values = unit(values) if kind == "normal" else values
    for lag in (1, 2, 3, 4, 5, 8):
        assert pairs_are_even(values[:, :-lag], values[:, lag:])
    for lag in (1, 2, 4):
        assert pairs_are_even(values[:-lag], values[lag:])


@pytest.mark.parametrize("seeds", [(0, 1), (0, 2), (1, 2), (1, 3), (5, 5 + 2**32), (0, 2**63), (3, 6)])
def test_two_seeds_are_independent(seeds: tuple[int, int]) -> None:
    one, other = (line().uniform(seed) for seed in seeds)
    assert pairs_are_even(one, other)
    assert pairs_are_even(one[:-1], other[1:])
    assert pairs_are_even(unit(line().normal(seeds[0])), unit(line().normal(seeds[1])))


@pytest.mark.parametrize("seeds", [(0, 0), (0, 1), (1, 0), (1, 2), (1, 3), (4, 2)])
def test_uniform_and_normal_are_independent(seeds: tuple[int, int]) -> None:
    """Of one seed, of others, and of the sign and size of a normal number apart."""
    uniform, normal = line().uniform(seeds[0]), line().normal(seeds[1])
    assert pairs_are_even(uniform, unit(normal))
    assert pairs_are_even(uniform, 2 * unit(np.abs(normal)) - 1)


def test_the_largest_uniform_numbers_make_finite_normal_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for extreme in (0.0, 1 - 2.0**-53):
        monkeypatch.setattr(philox, "fractions", lambda *arguments, v=extreme: np.full(3, v))
        assert np.isfinite(line(3).normal()).all()
