"""Every kind of finding has a remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import made_report

from meshrun.jobs.validate.plan import QUICK_ON_CPUS
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


def test_an_unknown_verdict_of_quick_on_cpus_names_the_command_that_takes_the_time() -> None:
    report = replace(made_report.cpu(), command="meshrun -n 8 validate --quick")
    unknown = replace(report.verdict, status="unknown", findings=(), alarms=(), not_judged=("pairs: noise",))
    (usual,) = remedies(replace(report, verdict=unknown))
    assert usual.command == "meshrun -n 8 validate --quick"
    noted = replace(unknown, not_judged=(*unknown.not_judged, QUICK_ON_CPUS))
    (longer,) = remedies(replace(report, verdict=noted))
    assert longer.command == "meshrun -n 8 validate --quick --budget 2m"
    assert remedies(replace(report, verdict=replace(noted, status="ok"))) == []


def test_advice_knows_the_bus_and_processors() -> None:
    assert "-i 0000:15:00.0" in remedies(made_report.critical())[1].advice
    (remedy,) = remedies(made_report.cpu())
    assert "nvidia" not in remedy.advice
