"""A small campaign over fleets that know nothing of the search; benchmarks/validate_simulated.py is the large
one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import load

campaign = load(Path(__file__).parents[4] / "benchmarks" / "validate_simulated.py")

# Fleets whose fault no measurement can show, by the seed.
BLIND = {2: [20_000, 20_004, 20_017, 20_018], 4: [], 16: []}


@pytest.mark.parametrize("hosts", [2, 4, pytest.param(16, marks=pytest.mark.nightly)])
def test_single_faults_are_named(hosts: int) -> None:
    runs = [campaign.run("one", hosts, 8, 20_000 + seed) for seed in range(20)]
    assert [one.seed for one in runs if one.blind] == BLIND[hosts]
    assert [(one.faults, one.said) for one in runs if not one.right and not one.blind] == []


@pytest.mark.parametrize("hosts", [2, 4, pytest.param(16, marks=pytest.mark.nightly)])
def test_healthy_fleets_are_not_blamed(hosts: int) -> None:
    runs = [campaign.run("healthy", hosts, 8, 20_000 + seed) for seed in range(20)]
    assert [one.said for one in runs if one.extra] == []


@pytest.mark.nightly
def test_two_faults_are_both_named() -> None:
    runs = [campaign.run("two", 16, 8, 20_000 + seed) for seed in range(20)]
    assert [one.seed for one in runs if one.blind] == [20_015]
    assert [(one.faults, one.said) for one in runs if not one.right and not one.blind] == []
