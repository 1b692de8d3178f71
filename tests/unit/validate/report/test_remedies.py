"""Every kind of finding has a remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import made_report

from meshrun.jobs.validate.report.model import Report
from meshrun.jobs.validate.report.remedies import ADVICE, SAME, remedies
from meshrun.jobs.validate.verdict import Finding, FindingKind, Verdict


def test_every_kind_of_finding_has_its_advice_and_command() -> None:
    report = made_report.critical()
    assert set(get_args(FindingKind)) <= {*ADVICE, *SAME}
    for kind in get_args(FindingKind):
        one = replace(made_report.NIC, kind=kind, hosts=("c1", "c2"), gpus=(3, 5))
        alone = replace(report, wrong=(), changes=(), drifts=(), verdict=verdict_of(report, one))
        remedy = remedies(alone)[0]
        assert "{" not in remedy.advice
        assert remedy.command.endswith("--baseline fleet.json --rungs 'host pairs'")
        assert kind == "rail" or "c1" in remedy.advice


def verdict_of(report: Report, one: Finding) -> Verdict:
    return replace(report.verdict, findings=(one,), alarms=())


def test_advice_knows_the_bus_and_processors() -> None:
    assert "-i 0000:15:00.0" in remedies(made_report.critical())[1].advice
    (remedy,) = remedies(made_report.cpu())
    assert "nvidia" not in remedy.advice
