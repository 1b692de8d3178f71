"""Hosts with another number of parts than their siblings, or than stated, are named in every report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from toy_fleet import ToyFleet

from meshrun.jobs.validate.health.uneven_hosts import HostParts, compare_hosts, count_parts, uneven_alarm
from meshrun.jobs.validate.ladder.ladder import climb_ladder
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.probe.api import RankPlace
from meshrun.jobs.validate.report.remedies import UNEVEN
from meshrun.jobs.validate.verdict import HostPart, UnevenHost
from meshrun.launch.cli.main import main


def hosts(counts: Sequence[int], model: str = "H200") -> list[HostParts]:
    return [HostParts(f"{model}-{number}", model, {"GPU": count}) for number, count in enumerate(counts)]


def named(counts: Sequence[int], expected: int | None = None) -> list[tuple[str, int, int]]:
    uneven, _ = compare_hosts(hosts(counts), expected)
    return [(one.host.removeprefix("H200-"), one.count, one.usual) for one in uneven]


@pytest.mark.parametrize(
    ("counts", "odd"),
    [
        ((8, 7, 8, 8), [("1", 7, 8)]),
        ((8, 9, 8, 8), [("1", 9, 8)]),
        ((8, 8, 4), [("2", 4, 8)]),
        ((4, 8, 8, 8, 2), [("0", 4, 8), ("4", 2, 8)]),
        ((8, 8, 8), []),
        ((8,), []),
        ((8, 8, 4, 4), []),
        ((8, 7), []),
        ((8, 8, 4, 2), []),
    ],
)
def test_a_host_is_odd_where_most_have_another_number(
    counts: tuple[int, ...], odd: list[tuple[str, int, int]]
) -> None:
    assert named(counts) == odd
    _, notes = compare_hosts(hosts(counts))
    assert bool(notes) == (not odd and len(set(counts)) > 1)


def test_numbers_without_a_majority_are_listed_with_their_hosts() -> None:
    _, (note,) = compare_hosts(hosts((8, 8, 4, 4)))
    assert "(8 GPUs: H200-0, H200-1; 4 GPUs: H200-2, H200-3)" in note
    assert "--expect-gpus" in note


def test_many_hosts_without_a_majority_are_one_line() -> None:
    _, (note,) = compare_hosts(hosts([8] * 200 + [4] * 200))
    assert "H200-7 and 192 more" in note
    assert len(note) < 400


def test_hosts_of_another_model_are_no_siblings() -> None:
    assert compare_hosts([*hosts((8, 8, 8, 8)), *hosts((4, 4), "A100")]) == ((), [])


@pytest.mark.parametrize(
    ("counts", "expected", "odd"),
    [
        ((8, 7, 8, 8), 8, [("1", 7, 8)]),
        ((7, 7, 7, 8), 8, [("0", 7, 8), ("1", 7, 8), ("2", 7, 8)]),
        ((4, 4), 8, [("0", 4, 8), ("1", 4, 8)]),
        ((9,), 8, [("0", 9, 8)]),
        ((8, 8), 8, []),
    ],
)
def test_a_stated_number_counts_instead_of_that_of_the_others(
    counts: tuple[int, ...], expected: int, odd: list[tuple[str, int, int]]
) -> None:
    assert named(counts, expected) == odd
    assert compare_hosts(hosts(counts), expected)[1] == []


def place(rank: int, host: int, number: int, nic: str = "", nvlinks: int | None = 18) -> RankPlace:
    return RankPlace(rank, host, number, number, "H200", nic, nvlinks=nvlinks)


def fleet(dead_nic: bool = False, dead_links: int = 0, missing: bool = False) -> list[RankPlace]:
    """Three hosts of four GPUs, the last of which may miss something."""
    places = []
    for host in range(3):
        for number in range(3 if missing and host == 2 else 4):
            odd = host == 2 and number == 3
            port = 2 if odd and dead_nic else number
            places.append(
                place(len(places), host, number, f"mlx5_{port} port 1", 18 - dead_links if odd else 18)
            )
    return places


@pytest.mark.parametrize(
    ("places", "odd"),
    [
        (fleet(), []),
        (fleet(dead_nic=True), [UnevenHost("c", "NIC", 3, 4, 2)]),
        (fleet(dead_links=1), [UnevenHost("c", "NVLink", 71, 72, 2)]),
        (fleet(dead_nic=True, dead_links=2),
         [UnevenHost("c", "NIC", 3, 4, 2), UnevenHost("c", "NVLink", 70, 72, 2)]),
        (fleet(missing=True), [UnevenHost("c", "GPU", 3, 4, 2)]),  # not its NIC and NVLinks again
    ],
)  # fmt: skip
def test_nics_and_nvlinks_are_compared_between_hosts_with_as_many_gpus(
    places: list[RankPlace], odd: list[UnevenHost]
) -> None:
    uneven, notes = compare_hosts(count_parts(places, ("a", "b", "c"), "GPU"))
    assert (list(uneven), notes) == (odd, [])


def test_ranks_that_share_a_gpu_count_once_and_a_nic_with_two_ports_twice() -> None:
    places = [place(0, 0, 0, "mlx5_0 port 1, mlx5_1 port 1"), place(1, 0, 0), place(2, 0, 1)]
    (parts,) = count_parts(places, ("a",), "GPU")
    assert parts.counts == {"GPU": 2, "NIC": 2, "NVLink": 36}


def test_unknown_nvlinks_are_not_compared() -> None:
    places = [place(0, 0, 0), place(1, 1, 0, nvlinks=None), place(2, 2, 0)]
    uneven, _ = compare_hosts(count_parts(places, ("a", "b", "c"), "GPU"))
    assert uneven == ()


def test_hosts_with_ranks_on_cpus_have_no_gpus() -> None:
    places = [RankPlace(rank, host, 0, None, "EPYC") for rank, host in enumerate((0, 0, 1, 2, 2))]
    parts = count_parts(places, ("a", "b", "c"), "CPU")
    assert compare_hosts(parts)[0] == (UnevenHost("b", "rank", 1, 2, 2),)
    uneven, _ = compare_hosts(parts, 2)
    assert [(one.host, one.part, one.count) for one in uneven[:3]] == [(name, "GPU", 0) for name in "abc"]
    alarm = uneven_alarm(uneven[0], "CPU")
    assert alarm.status == "critical"
    assert "its ranks run on CPUs" in alarm.sentence


@pytest.mark.parametrize(
    ("expected", "status", "sentence"),
    [
        (None, "warning", "host n1 has 1 GPU; 2 other hosts of its kind have 2"),
        (2, "critical", "host n1 has 1 GPU; --expect-gpus expects 2"),
    ],
)
def test_the_verdict_of_a_healthy_fleet_names_the_odd_host(
    expected: int | None, status: str, sentence: str
) -> None:
    plan = replace(Plan(), expected_gpus=expected, rungs=("gpu",))
    verdict = climb_ladder(ToyFleet([2, 1, 2]), plan)
    assert verdict.status == status
    assert verdict.line == f"{status}: {sentence}"


def test_every_report_names_the_odd_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / f"a.{name}" for name in ("json", "html", "junit", "prometheus")}
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    rehearsal = ["validate", "--simulate", "gpus=4/3/4/4", "--quick", "--rungs", "gpu"]
    assert main([*rehearsal, *words]) == 1
    sentence = "host h1 has 3 GPUs; 3 other hosts of its kind have 4"
    terminal = capsys.readouterr().out
    assert terminal.startswith(f"WARNING: {sentence}\n")
    assert "nvidia-smi -L" in terminal
    for name in ("html", "junit"):
        assert files[name].read_text().count(sentence) > 1, name
    record = json.loads(files["json"].read_text())
    assert [one["sentence"] for one in record["alarms"]] == [sentence]
    assert record["uneven_hosts"] == [{"host": "h1", "part": "GPU", "count": 3, "usual": 4, "siblings": 3}]
    metrics = files["prometheus"].read_text()
    assert 'meshrun_validate_uneven_host_parts{host="h1",part="GPU",usual="4"} 3.0' in metrics
    assert 'meshrun_validate_alarms{status="warning"} 1.0' in metrics
    assert main([*rehearsal, "--nagios", "--expect-gpus", "4"]) == 2
    line = capsys.readouterr().out
    assert line.startswith("MESHRUN CRITICAL - host h1 has 3 GPUs; --expect-gpus expects 4 | ")


def test_every_part_has_its_advice() -> None:
    assert {*UNEVEN} == {*get_args(HostPart)}
