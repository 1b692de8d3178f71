"""Figures and sentences that all formats share."""

from __future__ import annotations

import math
from dataclasses import replace

import made_report
import pytest

from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.report.remedies import remedies
from meshrun.jobs.validate.report.wording import drift_sentence, gbps, percent, with_devices
from meshrun.jobs.validate.run.options import ValidateOptions
from meshrun.jobs.validate.run.validation import Validation
from meshrun.jobs.validate.verdict import Finding, Verdict


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


def sentences(found: Finding, nic: str = "mlx5_3 port 1") -> str:
    """As the report of a run says it."""
    members = tuple(replace(one, nic=nic) for one in made_report.members(8, 8))
    validation = Validation(ValidateOptions(Plan()), {}, members)
    (one,) = validation.report(Verdict("critical", (found,), (), ())).verdict.findings
    return one.sentence


def test_a_nic_is_named_by_its_gpu_and_its_ports() -> None:
    assert sentences(made_report.NIC).endswith("; GPU 3 is 0000:13:00.0; NIC: mlx5_3 port 1")
    assert sentences(made_report.FLAP, nic="").endswith("; GPU 1 is 0000:11:00.0")


def test_gpus_are_named_by_their_bus_ids() -> None:
    assert sentences(made_report.GPU).endswith("; GPU 5 is 0000:15:00.0")
    assert sentences(made_report.PAIR).endswith("; GPU 0 is 0000:10:00.0; GPU 6 is 0000:16:00.0")


def test_a_gpu_without_a_bus_id_is_named_by_its_uuid() -> None:
    members = tuple(replace(one, bus_id="") for one in made_report.members(8, 8))
    (one,) = with_devices(Verdict("critical", (made_report.GPU,), (), ()), members).findings
    assert one.devices == ("GPU 5 is GPU-00000021",)


def test_a_rail_and_a_model_have_no_devices() -> None:
    rail = replace(made_report.NIC, kind="rail", hosts=("c1", "c2"), gpus=(3,))
    assert with_devices(Verdict("critical", (rail,), (), ()), made_report.members(8, 8)).findings == (rail,)
    simulated = Verdict("critical", (made_report.NIC,), (), ())
    assert with_devices(simulated, made_report.members(8, 8, "simulated")) == simulated
