"""Alarms for rates of all siblings far below the hardware limits."""

from __future__ import annotations

from dataclasses import replace

import made_report

from meshrun.jobs.validate.health.alarms import add_fleet_alarms
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.report.model import Report

GB = 1e9


def with_pairs(copies: float, flows: float) -> Report:
    report = made_report.healthy()
    rungs = tuple(
        replace(rung, rates={"copies": copies, "flows": flows}) if rung.name == "pairs" else rung
        for rung in report.verdict.rungs
    )
    return replace(report, verdict=replace(report.verdict, rungs=rungs))


def status_and_sentences(report: Report) -> tuple[str, list[str]]:
    verdict = add_fleet_alarms(report, Plan())
    return verdict.status, [one.sentence for one in verdict.alarms]


def test_near_the_limit_nothing_is_said() -> None:
    assert status_and_sentences(with_pairs(396 * GB, 226 * GB)) == ("ok", [])


def test_slow_links_are_told_of_copies_and_flows() -> None:
    assert status_and_sentences(with_pairs(45 * GB, 44 * GB)) == (
        "warning",
        [
            f"all GPUs alike: pairs {what} at {rate} GB/s, 10 % of what the hardware allows (18 x NVLink 4, "
            "one direction)"
            for what, rate in (("copies", "45.0"), ("flows", "44.0"))
        ],
    )


def test_good_copies_say_that_links_are_good() -> None:
    status, (sentence,) = status_and_sentences(with_pairs(396 * GB, 22 * GB))
    assert status == "warning"
    assert sentence.endswith(
        "(18 x NVLink 4, one direction); copies reach 396 GB/s, so the links are not the cause"
    )


def test_ranks_on_cpus_are_not_held_against_limits_of_gpus() -> None:
    report = with_pairs(45 * GB, 44 * GB)
    members = tuple(replace(one, kind="cpu") for one in report.members)
    assert status_and_sentences(replace(report, members=members)) == ("ok", [])


def with_copies_from_the_host(report: Report) -> Report:
    rungs = tuple(
        replace(rung, rates={"to_device": 20 * GB, "to_host": 20 * GB}) if rung.name == "host" else rung
        for rung in report.verdict.rungs
    )
    return replace(report, verdict=replace(report.verdict, rungs=rungs))


def test_gpus_of_one_host_share_its_memory() -> None:
    assert status_and_sentences(with_copies_from_the_host(made_report.healthy())) == ("ok", [])
    status, sentences = status_and_sentences(with_copies_from_the_host(made_report.one_rank()))
    assert status == "warning"
    assert [one.partition(" at ")[0] for one in sentences] == [
        "all GPUs alike: host to_device",
        "all GPUs alike: host to_host",
    ]
