"""The rules that call a measurement slow, on figures computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meshrun.jobs.measure import outliers

SPREAD = 1.4826  # of values whose median absolute deviation is 1


def test_the_spread_is_that_of_the_good_values() -> None:
    assert outliers.spread(np.array([9.0, 10.0, 11.0, 1e6, 10.0, 9.0, 11.0])) == pytest.approx(SPREAD)
    assert outliers.spread(np.array([5.0])) == outliers.spread(np.zeros(0)) == 0


def test_faults_do_not_widen_the_fast_side() -> None:
    assert outliers.fast_spread(np.array([-1.0, -1.0, 0.0, 1.0, 50.0, 60.0])) == pytest.approx(SPREAD)
    assert outliers.fast_spread(np.array([0.0, 1.0])) == 0


def test_medians_without_what_is_missing() -> None:
    nan = math.nan
    rows = np.array([[1, 2, 3], [nan, 4, 2], [nan, nan, nan], [nan, nan, 7]])
    np.testing.assert_array_equal(outliers.row_medians(rows), [2, 3, nan, 7])
    np.testing.assert_array_equal(outliers.column_quantiles(rows, 0.5), [1, 2, 3])
    np.testing.assert_array_equal(outliers.column_quantiles(np.full((2, 1), nan), 0.5), [nan])
    values, group = np.array([5.0, 1.0, 3.0, 8.0, 6.0]), np.array([7, 2, 2, 7, 2])
    np.testing.assert_array_equal(outliers.group_medians(values, group), [3, 5])


def test_residuals_do_not_count_the_median_itself() -> None:
    found = outliers.residuals(np.array([[1.0, 2.0, 4.0], [10.0, 20.0, 40.0]]))
    np.testing.assert_allclose(found, [-math.log(2), math.log(2)] * 2)
    assert outliers.sample_noise(np.array([[1.0, 2.0]])) == 0  # too few to tell


def test_typical_is_not_biased_by_noise() -> None:
    random = np.random.default_rng(0)
    for healthy in (0.2, 0.5, 0.9):
        found = [outliers.typical(random.normal(0, 0.05, 200), healthy, 0.07) for _ in range(100)]
        assert float(np.mean(found)) == pytest.approx(0, abs=0.005)


def test_a_few_measurements_show_a_mild_loss_if_they_agree() -> None:
    random = np.random.default_rng(0)
    healthy = [random.normal(0, 0.65 * 0.07, 8) for _ in range(4000)]
    assert np.mean([outliers.is_mild(level, 0.07, 0.75) for level in healthy]) <= 0.001
    assert outliers.is_mild(random.normal(0.2, 0.035, 15), 0.07, 0.75)
    assert not outliers.is_mild(random.normal(0.2, 0.035, 7), 0.07, 0.75)


@pytest.mark.parametrize(
    ("noise", "count", "expected"), [(0.0, 5, 0.07), (0.3, 9, math.hypot(0.07, 3.5 * 1.2533 * 0.1))]
)
def test_a_median_is_slow_beyond_the_tolerance_and_its_own_error(
    noise: float, count: int, expected: float
) -> None:
    level = np.array([0.0, 0.01, -0.01, 0.9])
    found = outliers.slow_threshold(level, np.full(4, count), noise, 0.07)
    np.testing.assert_allclose(found, expected)


def test_healthy_parts_that_differ_and_are_measured_with_an_error_exceed_both_in_few_runs() -> None:
    """16 GPUs of a spread of 2 %, each the median of 30 samples with a noise of 7 %."""
    random, count, noise = np.random.default_rng(7), 30, 0.07
    error = outliers.median_error(noise, count)
    runs = [np.hypot(0.02, error) * random.standard_normal(16) for _ in range(2000)]
    over = sum(
        bool((one > outliers.slow_threshold(one, np.full(16, count), noise, 0.07)).any()) for one in runs
    )
    assert over <= 0.005 * len(runs)


def test_shares_that_differ_by_chance() -> None:
    assert outliers.shares_differ(20, 30, 2, 30)
    assert not outliers.shares_differ(10, 30, 4, 30)
    assert not outliers.shares_differ(0, 0, 4, 30)
    assert not outliers.shares_differ(5, 5, 7, 7)


def test_a_group_is_as_strict_as_its_better_half_allows() -> None:
    half_slow = np.array([-0.04, -0.04, 0.0, 0.5, 0.6, 0.7])
    assert outliers.group_threshold(half_slow, 0.07) == pytest.approx(3.5877 * 1.4826 * 0.04, rel=1e-4)
    assert outliers.group_threshold(np.zeros(4), 0.07) == 0.07


def test_single_samples_and_ratios() -> None:
    assert outliers.slow_sample_threshold(0.0, 0.07) == pytest.approx(0.105)
    assert outliers.slow_sample_threshold(0.1, 0.07) == pytest.approx(0.25)
    assert outliers.ratio_threshold(0.0, 30, 0.07) == 0.07
    assert outliers.ratio_threshold(0.3, 18, 0.07) == pytest.approx(3.5 * 1.2533 * 0.1)


def test_the_samples_needed_make_the_error_as_small_as_the_tolerance() -> None:
    count = outliers.samples_needed(0.3, 0.07)
    assert 3.5 * outliers.median_error(0.3, math.ceil(count)) == pytest.approx(0.07, rel=0.01)


def test_typical_follows_the_healthy_ones() -> None:
    values = np.array([1.0, 1.01, 0.99, 1.02, 1.7, 1.8, 1.9])
    assert outliers.typical(values, 4 / 7, 0.07) == pytest.approx(1.005)
    assert outliers.healthy_pairs(4, 1) == 0.5
    assert outliers.healthy_pairs(1, 0) == 1.0


@pytest.mark.parametrize(
    ("values", "larger_is_slower", "expected"),
    [
        ([10, 10, 8.9, 10, 2], False, [4, 2]),
        ([10, 10, 9.01, 12], False, []),
        ([10, 10, 11.1, 10, 30, 5], True, [4, 2]),
        ([1], False, []),
    ],
)
def test_figures_without_repetition(values: list[float], larger_is_slower: bool, expected: list[int]) -> None:
    assert outliers.deviating(values, larger_is_slower) == expected


def test_what_is_slow_for_some_of_the_time() -> None:
    share, count = np.array([0.0, 0.02, 0.5, 0.0]), np.array([400.0, 400.0, 400.0, 0.0])
    over = share > outliers.intermittent_threshold(share, count)
    assert over.tolist() == [False, False, True, False]
    assert outliers.is_intermittent(0.3, 0.02, partners=3, late=2)
    assert not outliers.is_intermittent(0.09, 0.02, partners=3, late=2)  # as others nearly are
    assert not outliers.is_intermittent(0.97, 0.02, partners=3, late=2)  # slow, plainly
    assert not outliers.is_intermittent(0.3, 0.02, partners=2, late=2)  # of two, either may be the one


@pytest.mark.parametrize("mean", [0.7, 3.0, 40.0])
@pytest.mark.parametrize("chance", [0.01, 1e-6])
def test_the_limit_of_a_poisson_variable_is_the_exact_one(mean: float, chance: float) -> None:
    def beyond(limit: int) -> float:
        numbers = range(limit + 1, limit + 400)
        return sum(math.exp(count * math.log(mean) - mean - math.lgamma(count + 1)) for count in numbers)

    limit = int(outliers.poisson_limit(np.array([0.0, mean]), chance)[1])
    assert beyond(limit) <= chance < beyond(limit - 1)


def healthy_shares(
    parts: int, usual: float, together: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Shares and counts of samples, of which so many are slow together, by chance."""
    count = together * random.integers(400 // together, 800 // together, parts)
    return together * random.binomial(count // together, usual) / count, count.astype(np.float64)


@pytest.mark.parametrize("parts", [16, 1024])
@pytest.mark.parametrize("usual", [0.003, 0.01, 0.03])
@pytest.mark.parametrize("together", [2, 5, 10])
def test_of_healthy_fleets_one_in_a_hundred_has_a_suspect_by_chance(
    parts: int, usual: float, together: int
) -> None:
    random, runs, raised = np.random.default_rng(parts + together), 600, 0
    for _ in range(runs):
        share, count = healthy_shares(parts, usual, together, random)
        raised += bool((share > outliers.intermittent_threshold(share, count)).any())
    assert raised <= outliers.FALSE_SUSPECTS * runs + 3 * math.sqrt(outliers.FALSE_SUSPECTS * runs)


def test_a_part_that_noise_nearly_hides_is_a_suspect() -> None:
    """Of its samples a tenth is slow; of healthy ones 2.7 %, both directions together."""
    random, runs, seen = np.random.default_rng(0), 400, 0
    for _ in range(runs):
        share, count = healthy_shares(128, 0.027, 2, random)
        share[5] = 2 * random.binomial(350, 0.1) / 700
        count[5] = 700
        seen += bool(share[5] > outliers.intermittent_threshold(share, count)[5])
    assert seen > 0.75 * runs


def test_the_slow_samples_of_one_observation() -> None:
    random = np.random.default_rng(1)
    sizes = [outliers.samples_of_one(*healthy_shares(4096, 0.03, size, random)) for size in (1, 5, 20)]
    assert sizes[0] == outliers.BOTH_WAYS
    assert sizes[1] == pytest.approx(5, rel=0.4)
    assert sizes[2] == outliers.BURST
    few = np.array([0.01, 0.02, 0.03]), np.full(3, 400.0)
    none = np.zeros(64), np.full(64, 400.0)
    assert outliers.samples_of_one(*few) == outliers.samples_of_one(*none) == outliers.BURST


def test_what_a_constant_loss_explains_makes_no_suspect() -> None:
    """Of a part that is 7 % slower, normal noise of 3 % lifts a tenth of the samples above 10.5 %."""
    random = np.random.default_rng(0)
    level = random.normal(0, 0.03, (64, 20_000))
    level[9] += 0.07
    level[10] = np.where(random.random(20_000) < 0.3, level[10] + 0.25, level[10])
    share, fast = (level > 0.105).mean(axis=1), (level < 0).mean(axis=1)
    own = outliers.share_of_constant(fast, 0.03, 0.105, 0.07)
    assert own[9] == pytest.approx(share[9], rel=0.1)
    assert own[10] < 0.01
    assert outliers.share_of_constant(np.zeros(1), 0.03, 0.105, 0.07)[0] == pytest.approx(own[9], rel=0.1)
    count = np.full(64, 800.0)
    over = np.flatnonzero(share > outliers.intermittent_threshold(share, count, own))
    assert over.tolist() == [10]
    assert (share > outliers.intermittent_threshold(share, count))[9]


def test_drift_needs_a_difference_and_a_score() -> None:
    needed = outliers.score_needed(10)
    assert needed == 4.0
    assert outliers.score_needed(25_000) == pytest.approx(5.5, abs=0.1)
    assert outliers.is_drift(90, 100, -5, needed)
    assert not outliers.is_drift(96, 100, -50, needed)
    assert not outliers.is_drift(90, 100, -3, needed)
    assert outliers.is_drift(89, 100, math.nan, needed)
    assert not outliers.is_drift(91, 100, math.nan, needed)
    assert outliers.drift_score(90, 100, 0.0, 0.0, 9) == pytest.approx(-10)  # never below 1 % a deviation


def test_limits() -> None:
    assert outliers.far_below_limit(49, 100)
    assert not outliers.far_below_limit(50, 100)
    assert outliers.is_critical(0.89, 0.9)
    assert not outliers.is_critical(0.9, 0.9)
    assert outliers.mostly_slow(3, 4, 0, 0.75)
    assert not outliers.mostly_slow(2, 4, 0, 0.75)
    assert outliers.mostly_slow(2, 4, 2, 0.75)  # what is neither slow nor healthy does not count
    assert not outliers.mostly_slow(1, 4, 3, 0.75)  # but some must be slow


@pytest.mark.parametrize("count", [16, 128, 1024])
def test_healthy_values_that_differ_exceed_their_threshold_in_few_runs(count: int) -> None:
    random = np.random.default_rng(count)
    runs = [0.03 * random.standard_normal(count) for _ in range(400)]
    raised = sum(bool((one > outliers.group_threshold(one, 0.07)).any()) for one in runs)
    assert raised <= (0.05 if count < 100 else 0.02) * len(runs)


def test_looks_until_clear_seldom_clear_a_slow_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of slow parts, at most the stated share is ever cleared; of healthy ones, nearly all."""
    monkeypatch.setattr(outliers, "FALSE_CLEARANCE", 0.05)
    random, noise, slow = np.random.default_rng(1), 0.1, 0.105
    means = np.cumsum(random.normal(0, outliers.MEDIAN_ERROR * noise, (4000, 200)), axis=1) / np.arange(
        1, 201
    )
    limit = outliers.clear_threshold(noise, np.arange(1, 201), slow)
    cleared = [(means + level < limit).any(axis=1).mean() for level in (slow, 0.0)]
    assert 0.02 < cleared[0] < 0.05
    assert cleared[1] > 0.99
    usual = outliers.samples_to_clear(noise, slow)
    assert 0.4 < (means[:, round(usual) - 1] < limit[round(usual) - 1]).mean() < 0.6
