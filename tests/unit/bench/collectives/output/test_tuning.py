"""What a sweep over tunings says of noise, of true differences, and of what to set."""

from __future__ import annotations

import numpy as np
import pytest

from meshrun.jobs.bench.collectives.output.reader import RowKey
from meshrun.jobs.bench.collectives.output.tuning import OWN, TuningVerdict, advice, judge, name, variables
from meshrun.runner.comm.collectives.api import NcclTuning

OTHERS = [NcclTuning(f"Algorithm{number}", "LL") for number in range(10)]


def drawn(seed: int, noise: float, fast: float = 1.0, rounds: int = 4) -> dict[NcclTuning, list[float]]:
    """Times of 11 tunings: log-normal noise, drift from round to round, and one that is faster."""
    generator = np.random.default_rng(seed)
    drift = 1 + 0.2 * generator.random(rounds)
    return {
        tuning: list(
            drift * np.exp(noise * generator.standard_normal(rounds)) / (fast if tuning == OTHERS[3] else 1)
        )
        for tuning in (OWN, *OTHERS)
    }


@pytest.mark.parametrize(("noise", "rounds"), [(0.02, 3), (0.001, 4), (0.3, 8)])
def test_noise_is_rarely_told_as_a_gain(noise: float, rounds: int) -> None:
    """In less than one of 100 rows, and the drift that all share does not hide a gain."""
    told = sum(judge(drawn(seed, noise, rounds=rounds)).best is not None for seed in range(600))
    assert told <= 6


def test_a_true_gain_is_told() -> None:
    found = [judge(drawn(seed, 0.02, fast=1.15)) for seed in range(100)]
    gains = [verdict.faster[OTHERS[3]] for verdict in found if verdict.best == OTHERS[3]]
    assert len(gains) >= 98
    assert np.median(gains) == pytest.approx(0.15, abs=0.01)


def test_what_is_slower_is_known() -> None:
    assert judge(drawn(1, 0.01, fast=0.5)).slower == {OTHERS[3]}


def test_alone_nothing_is_told() -> None:
    assert judge({OWN: [1.0, 1.1, 1.2]}).best is None


def rows(*verdicts: TuningVerdict) -> dict[RowKey, TuningVerdict]:
    return {
        RowKey(1024 << number, 256 << number, "float", "sum", -1): one for number, one in enumerate(verdicts)
    }


TREE, RING = NcclTuning("allreduce:Tree", "allreduce:LL"), NcclTuning(channels=8)
NOTHING = TuningVerdict(0.02)


def test_nothing_to_set() -> None:
    assert advice(rows(NOTHING, TuningVerdict(0.051))) == [
        "Set nothing: no setting is faster than NCCL's own choice beyond noise (2 to 5.1 %)"
    ]


def test_the_setting_that_gains_most_and_is_never_slower_is_for_all_sizes() -> None:
    """Also where it is not the fastest."""
    both = TuningVerdict(0.02, {TREE: 0.3, RING: 0.1})
    assert advice(rows(both, TuningVerdict(0.02, {TREE: 0.25}), NOTHING)) == [
        "To set: NCCL_ALGO=allreduce:Tree NCCL_PROTO=allreduce:LL: faster by 25 to 30 % in 2 of 3 rows, "
        "slower in none beyond noise"
    ]
    assert advice(rows(both, both, TuningVerdict(0.02, {}, frozenset({TREE})))) == [
        "To set: NCCL_MIN_CTAS=8 NCCL_MAX_CTAS=8: faster by 10 % in 2 of 3 rows, slower in none beyond noise"
    ]


def test_settings_by_size_where_each_is_slower_somewhere() -> None:
    tree = TuningVerdict(0.02, {TREE: 0.1}, frozenset({RING}))
    ring = TuningVerdict(0.02, {RING: 0.1}, frozenset({TREE}))
    assert advice(rows(tree, tree, NOTHING, ring))[1:3] == [
        "  1 KiB to 2 KiB: NCCL_ALGO=allreduce:Tree NCCL_PROTO=allreduce:LL",
        "  8 KiB: NCCL_MIN_CTAS=8 NCCL_MAX_CTAS=8",
    ]


def test_names_and_variables() -> None:
    assert name(OWN) == "NCCL's choice"
    assert name(TREE) == "Tree/LL"
    assert name(NcclTuning("Ring", "Simple", 4)) == "Ring/Simple/4 channels"
    assert variables(NcclTuning("Ring", "Simple", 4)) == (
        "NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_MIN_CTAS=4 NCCL_MAX_CTAS=4"
    )
