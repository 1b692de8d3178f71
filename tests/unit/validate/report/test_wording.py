"""Figures and sentences that all formats share."""

from __future__ import annotations

import math
from dataclasses import replace

import made_report
import pytest

from jobs.validate.report.remedies import remedies
from jobs.validate.report.wording import drift_sentence, gbps, percent


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(4021.4e9, "4021"), (396.44e9, "396"), (99.96e9, "100"), (48.13e9, "48.1"), (0.0312e9, "0.0312"),
     (None, "-"), (float("nan"), "-"), (float("inf"), "-")],
)  # fmt: skip
def test_rates_have_three_digits(rate: float | None, expected: str) -> None:
    assert gbps(rate) == expected


def test_shares_are_whole_numbers() -> None:
    assert (percent(0.609), percent(1.0), percent(None), percent(float("nan"))) == ("61 %", "100 %", "-", "-")


def test_a_drift_from_too_few_runs_for_a_deviation() -> None:
    """Its score is NaN, but it is slower."""
    few = replace(made_report.DRIFTS[0], score=math.nan, runs=2)
    assert drift_sentence(few) == (
        "host c7, GPU 3: its NIC: host pairs flows at 61 % of 2 earlier runs "
        "(29.3 of 48.0 GB/s, too few for a deviation)"
    )
    report = replace(made_report.healthy(), drifts=(few,), baseline="fleet.json")
    assert [one.about for one in remedies(report)] == ["slower than earlier runs"]
