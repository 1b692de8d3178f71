"""Contributions combine to `reduced` with the type's own arithmetic, in any order."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshrun.jobs.measure import patterns
from meshrun.jobs.measure.exact_reductions import MAX_CONTRIBUTORS, bias, largest, recipe, tolerance
from meshrun.runner.comm.collectives.api import DATATYPES, REDUCTIONS, Datatype, premultiplier

ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs ml_dtypes, the arithmetic of bfloat16 and fp8")

Array = np.ndarray[Any, Any]
Combine = Callable[[Array, Array], Array]

RANKS = (1, 2, 3, 4, 5, 7, 8, 9, 64, 100, 300)
COUNT = 256
ALL = [pytest.param(datatype, id=name) for name, datatype in DATATYPES.items()]
FLOATING = [pytest.param(datatype, id=name) for name, datatype in DATATYPES.items() if datatype.floating]


def copied(datatype: Datatype, seed: int, index: int, count: int) -> Array:
    return patterns.values(datatype, patterns.Copied(seed, index), 0, count)


def contributed(
    datatype: Datatype, reduction: str, ranks: int, rank: int, seed: int, index: int, count: int
) -> Array:
    return patterns.values(datatype, patterns.Contributed(seed, index, reduction, ranks, rank), 0, count)


def reduced(datatype: Datatype, reduction: str, ranks: int, seed: int, index: int, count: int) -> Array:
    return patterns.values(datatype, patterns.Reduced(seed, index, reduction, ranks), 0, count)


def dtype(datatype: Datatype) -> np.dtype[Any]:
    return np.dtype(getattr(np, datatype.numpy, None) or getattr(ml_dtypes, datatype.numpy))


def inputs(datatype: Datatype, reduction: str, ranks: int, seed: int = 11, index: int = 77) -> list[Array]:
    """Every rank's contribution, as values of the type."""
    return [
        contributed(datatype, reduction, ranks, rank, seed, index, COUNT).view(dtype(datatype))
        for rank in range(ranks)
    ]


def expected(datatype: Datatype, reduction: str, ranks: int, seed: int = 11, index: int = 77) -> Array:
    return reduced(datatype, reduction, ranks, seed, index, COUNT)


def combiner(datatype: Datatype, reduction: str) -> Combine:
    """One step of a reduction, rounded to the type; asserts that floats stay zero or normal."""
    steps = {"prod": np.multiply, "min": np.minimum, "max": np.maximum}
    step = steps.get(reduction, np.add)

    def combine(a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            result = step(a, b)
        assert result.dtype == a.dtype
        if datatype.floating:
            assert_zero_or_normal(result, datatype)
        return result

    return combine


def assert_zero_or_normal(array: Array, datatype: Datatype) -> None:
    """No subnormal, infinity, NaN or -0."""
    bits = array.view(f"u{datatype.itemsize}")
    magnitude = bits & ((1 << (8 * datatype.itemsize - 1)) - 1)
    assert np.all((bits == 0) | ((magnitude >= 1 << datatype.mantissa) & (magnitude <= largest(datatype))))


def in_order(parts: list[Array], combine: Combine) -> Array:
    total = parts[0]
    for part in parts[1:]:
        total = combine(total, part)
    return total


def as_tree(parts: list[Array], combine: Combine) -> Array:
    """Neighbours in pairs, again and again: a binary tree."""
    while len(parts) > 1:
        pairs = itertools.zip_longest(parts[::2], parts[1::2])
        parts = [a if b is None else combine(a, b) for a, b in pairs]
    return parts[0]


def in_pieces(parts: list[Array], combine: Combine) -> Array:
    """Four chains, combined from the last to the first: ranks in hosts."""
    chains = [in_order(parts[first::4], combine) for first in range(min(4, len(parts)))]
    return in_order(chains[::-1], combine)


def combinations(parts: list[Array], combine: Combine) -> list[Array]:
    generator = np.random.default_rng(5)
    totals = []
    for shape in (in_order, as_tree, in_pieces, in_order, as_tree):
        totals.append(shape(parts, combine))
        parts = [parts[i] for i in generator.permutation(len(parts))]
    return totals


def assert_bits(values: Array, bits: Array) -> None:
    np.testing.assert_array_equal(values.view(bits.dtype), bits)


@pytest.mark.parametrize("datatype", ALL)
@pytest.mark.parametrize("reduction", ["sum", "prod", "min", "max", "mulsum"])
def test_any_order_gives_the_result_to_the_bit(datatype: Datatype, reduction: str) -> None:
    for ranks in RANKS:
        parts = inputs(datatype, reduction, ranks)
        if datatype.floating:
            for part in parts:
                assert_zero_or_normal(part, datatype)
        if reduction == "mulsum":
            with np.errstate(over="ignore"):
                parts = [part * part.dtype.type(premultiplier(rank)) for rank, part in enumerate(parts)]
        for total in combinations(parts, combiner(datatype, reduction)):
            assert_bits(total, expected(datatype, reduction, ranks))


@pytest.mark.parametrize("datatype", [p for p in ALL if not p.values[0].floating])
def test_an_average_of_integers_is_their_sum_without_overflow_over_the_ranks(datatype: Datatype) -> None:
    for ranks in RANKS:
        parts = inputs(datatype, "avg", ranks)
        exact = sum(part.astype(object) for part in parts)
        assert exact.max() < 1 << (8 * datatype.itemsize - 1)
        assert min(part.min() for part in parts) >= 0
        for total in combinations(parts, combiner(datatype, "avg")):
            assert_bits((total.astype(object) // ranks).astype(total.dtype), expected(datatype, "avg", ranks))


def is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


@pytest.mark.parametrize("datatype", FLOATING)
def test_an_average_of_floats_is_exact_multiplied_first_as_nccl_does(datatype: Datatype) -> None:
    kind = dtype(datatype).type
    for ranks in (*RANKS, 16, 128, 512):
        # NCCL: 1.0 / nRanks in double, float(...) but for doubles, then the type.
        factor = kind(1.0 / ranks) if datatype.itemsize == 8 else kind(np.float32(1.0 / ranks))
        parts = [part * factor for part in inputs(datatype, "avg", ranks)]
        for total in combinations(parts, combiner(datatype, "avg")):
            assert_bits(total, expected(datatype, "avg", ranks))


@pytest.mark.parametrize("datatype", FLOATING)
def test_an_average_of_floats_is_exact_divided_last(datatype: Datatype) -> None:
    exactly = 0
    for ranks in (*RANKS, 16, 128, 512):
        for total in combinations(inputs(datatype, "avg", ranks), combiner(datatype, "avg")):
            wide = np.float64 if datatype.itemsize == 8 else np.float32
            mean = (total.astype(wide) / wide(ranks)).astype(total.dtype)
            bits = expected(datatype, "avg", ranks)
            apart = np.abs(mean.view(bits.dtype).astype(np.int64) - bits.astype(np.int64))
            assert apart.max() <= tolerance(datatype, "avg", ranks)
        exactly += tolerance(datatype, "avg", ranks) == 0
    assert exactly == len(RANKS) + 3 - (datatype.name == "f8e4m3")  # 300 ranks; 1 / 100 happens to fit


def test_tolerance_is_what_a_subnormal_reciprocal_loses() -> None:
    for datatype, reduction, ranks in itertools.product(DATATYPES.values(), REDUCTIONS, range(1, 65)):
        assert tolerance(datatype, reduction, ranks) == 0
    # 1 / 300 = 1.7067 * 2^-9: 2 * 2^-9 with f8e4m3's spacing there, 1.75 * 2^-9 with 3 bits of mantissa.
    assert tolerance(DATATYPES["f8e4m3"], "avg", 300) == 2
    assert tolerance(DATATYPES["f8e4m3"], "avg", 256) == 0
    assert tolerance(DATATYPES["f8e4m3"], "sum", 300) == 0


def test_where_the_reciprocal_is_zero_so_are_the_data() -> None:
    datatype = DATATYPES["f8e4m3"]
    assert ml_dtypes.float8_e4m3fn(1 / 1024) == 0
    assert not contributed(datatype, "avg", 1024, 3, 1, 0, COUNT).any()
    assert not reduced(datatype, "avg", 1024, 1, 0, COUNT).any()


@pytest.mark.parametrize("datatype", FLOATING)
@pytest.mark.parametrize("reduction", ["sum", "mulsum", "avg"])
def test_a_sum_of_nothing_or_of_opposites_is_plus_zero(datatype: Datatype, reduction: str) -> None:
    top = 1 << (8 * datatype.itemsize - 1)
    for ranks in RANKS:
        for part in inputs(datatype, reduction, ranks):
            assert not np.any(part.view(f"u{datatype.itemsize}") == top)
        assert not np.any(expected(datatype, reduction, ranks) == top)
    one, zero = dtype(datatype).type(1), dtype(datatype).type(0)
    for total in (zero + zero, one + -one, -one + one, zero + one + -one, -one + zero + one):
        assert not np.signbit(np.float32(total))


@pytest.mark.parametrize("datatype", FLOATING)
def test_sums_do_cancel(datatype: Datatype) -> None:
    results = np.concatenate([expected(datatype, "sum", 4, seed=seed) for seed in range(16)])
    assert np.any(results == 0) or datatype.mantissa > 10
    signs = results >> (8 * datatype.itemsize - 1)
    assert 0.3 < signs.mean() < 0.7


@pytest.mark.parametrize("datatype", ALL)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_every_contribution_counts(datatype: Datatype, reduction: str) -> None:
    """Without the contribution of any one rank, some elements differ."""
    # Seven bits of sum, averaged over many ranks, are next to nothing.
    few = reduction == "avg" and not datatype.floating and datatype.itemsize == 1
    ranks = 8 if few else 70
    seeds = range(16 if datatype.itemsize == 1 else 4)
    totals = [inputs(datatype, reduction, ranks, seed) for seed in seeds]
    results = [expected(datatype, reduction, ranks, seed) for seed in seeds]
    for lost in (0, 1, 5, ranks - 1):
        wrong = 0
        for parts, result in zip(totals, results, strict=True):
            rest = parts[:lost] + parts[lost + 1 :]
            if reduction == "mulsum":
                weights = [premultiplier(rank) for rank in range(ranks) if rank != lost]
                with np.errstate(over="ignore"):
                    rest = [p * p.dtype.type(w) for p, w in zip(rest, weights, strict=True)]
            if reduction == "avg" and datatype.floating:
                rest = [part * part.dtype.type(1 / ranks) for part in rest]
            with np.errstate(all="ignore"):
                total = in_order(rest, combiner_without_checks(reduction))
            if reduction == "avg" and not datatype.floating:
                total = total // ranks
            wrong += np.count_nonzero(total.view(result.dtype) != result)
        assert wrong > 0, lost


def combiner_without_checks(reduction: str) -> Combine:
    return {"prod": np.multiply, "min": np.minimum, "max": np.maximum}.get(reduction, np.add)


@pytest.mark.parametrize("datatype", ALL)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_result_takes_a_bounded_number_of_draws(datatype: Datatype, reduction: str) -> None:
    for ranks in (1, 63, 64, 65, 10_000):
        assert recipe(datatype, reduction, ranks).window <= min(ranks, MAX_CONTRIBUTORS)


@pytest.mark.parametrize("datatype", FLOATING)
def test_extremes_are_normal_numbers_of_both_signs(datatype: Datatype) -> None:
    for reduction in ("min", "max"):
        values = np.concatenate(inputs(datatype, reduction, 8)).astype(np.float64)
        assert np.all(values != 0)
        assert 0.4 < np.mean(values < 0) < 0.6


def test_the_layout_of_every_float_is_the_one_of_its_arithmetic() -> None:
    for datatype in DATATYPES.values():
        if datatype.floating:
            info = ml_dtypes.finfo(dtype(datatype))
            assert (info.nmant, info.nexp) == (datatype.mantissa, datatype.exponent)
            assert int(np.array(info.max).view(f"u{datatype.itemsize}")) == largest(datatype)
            one = np.ones(1, dtype(datatype)).view(f"u{datatype.itemsize}")[0]
            assert one == bias(datatype) << datatype.mantissa


@pytest.mark.parametrize("datatype", ALL)
def test_data_repeat_after_a_prime_period_only(datatype: Datatype) -> None:
    assert all(patterns.PERIOD % factor for factor in range(2, int(patterns.PERIOD**0.5) + 1))
    whole = copied(datatype, 3, 0, 2 * patterns.PERIOD + 10)
    np.testing.assert_array_equal(whole[patterns.PERIOD :], whole[: patterns.PERIOD + 10])
    for index in (1, 999, patterns.PERIOD - 1, patterns.PERIOD, 5 * patterns.PERIOD + 7, 2**40):
        begin = index % patterns.PERIOD
        np.testing.assert_array_equal(copied(datatype, 3, index, 2000), whole[begin : begin + 2000])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_an_element_does_not_depend_on_where_a_segment_begins(reduction: str) -> None:
    datatype = DATATYPES["bfloat16"]
    whole = reduced(datatype, reduction, 5, 9, patterns.PERIOD - 40_000, 80_000)
    for begin, count in ((0, 1), (12_345, 40_000), (39_990, 30), (79_999, 1), (40, 0)):
        piece = reduced(datatype, reduction, 5, 9, patterns.PERIOD - 40_000 + begin, count)
        np.testing.assert_array_equal(piece, whole[begin : begin + count])


def test_bits_are_random_between_elements_seeds_and_ranks() -> None:
    """Of unrelated words every bit differs half the time: within 6 standard deviations."""
    count, datatype = 100_000, DATATYPES["uint64"]
    base = copied(datatype, 1, 0, count)
    others = [
        copied(datatype, 2, 0, count),
        copied(datatype, -1, 0, count),
        copied(datatype, 1 + 2**32, 0, count),
        copied(datatype, 1, 1, count),
        copied(datatype, 1, 4096, count),
    ]
    first = contributed(datatype, "sum", 9, 0, 1, 0, count)
    pairs = [(base, other) for other in others]
    pairs += [(first, contributed(datatype, "sum", 9, rank, 1, 0, count)) for rank in range(1, 9)]
    pairs += [(base, first)]
    for a, b in pairs:
        differing = np.unpackbits((a ^ b).view(np.uint8)).reshape(count, 64)
        assert np.all(np.abs(differing.mean(0) - 0.5) < 6 * 0.5 / count**0.5)


def test_untouched_memory_is_poison() -> None:
    np.testing.assert_array_equal(
        patterns.values(DATATYPES["half"], patterns.Untouched(), 5, 3), [0xA5A5] * 3
    )


def test_the_bits_are_the_same_on_every_machine() -> None:
    """Computed with Python's integers, independently of the code under test."""
    mask = 2**64 - 1

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        return x ^ x >> 31

    assert mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF  # splitmix64's first output for seed 0
    datatype = DATATYPES["uint32"]
    element = mix(mix(42) + 1000)
    assert copied(datatype, 42, 1000, 1)[0] == element & 0xFFFFFFFF
    x = (element + 3 * 0x9E3779B97F4A7C15) & mask
    x = (x ^ x >> 32) * 0xBF58476D1CE4E5B9 & mask
    assert contributed(datatype, "sum", 4, 3, 42, 1000, 1)[0] == (x ^ x >> 32) & 0xFFFFFFFF
