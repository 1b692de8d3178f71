"""Drains for a report between hosts, by a scontrol that plays what Slurm would say."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from meshrun.launch.slurm.drain import main

SCONTROL = """#!/bin/sh
printf '%s|' "$@" >>"$PLAYED/calls"; echo >>"$PLAYED/calls"
case $1 in
    show) [ -e "$PLAYED/$3" ] || { echo "Node $3 not found" >&2; exit 1; }; cat "$PLAYED/$3" ;;
    update) [ ! -e "$PLAYED/refusal" ] || { cat "$PLAYED/refusal" >&2; exit 1; } ;;
esac
"""
NIC = "host c7, GPU 3: its NIC at 61 % of its siblings"


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "scontrol"
    program.write_text(SCONTROL)
    program.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    monkeypatch.setenv("PLAYED", str(tmp_path))
    for node in ("c6", "c7", "c8"):
        (tmp_path / node).write_text(f"NodeName={node} Arch=x86_64\n   State=IDLE ThreadsPerCore=1\n")
    return tmp_path


def finding(sentence: str, *hosts: str, instead: tuple[str, ...] = ()) -> dict[str, object]:
    return {"hosts": hosts, "sentence": sentence, "instead": instead}


def report(folder: Path, *findings: dict[str, object], status: str = "critical") -> str:
    path = folder / "report.json"
    path.write_text(json.dumps({"status": status, "findings": findings}))
    return str(path)


def updates(folder: Path) -> list[str]:
    calls = folder / "calls"
    return (
        [line for line in calls.read_text().splitlines() if line.startswith("update")]
        if calls.exists()
        else []
    )


def test_a_node_is_drained_with_its_part(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = finding("host c7: another", "c7.cluster")
    assert main([report(played, finding(NIC, "c7.cluster"), again)]) == 0
    assert updates(played) == [f"update|nodename=c7|state=drain|reason=meshrun: between hosts: {NIC}|"]
    assert capsys.readouterr().out == f"meshrun: c7 is drained: {NIC}\n"


def test_a_dry_run_drains_nothing(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([report(played, finding("a `b` $(c) é", "c7")), "--dry-run"]) == 0
    assert updates(played) == []
    assert "reason='meshrun: between hosts: a ?b? ?(c) ?'" in capsys.readouterr().out


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN*", "FAIL"])
def test_a_node_out_of_service_stays_as_it_is(played: Path, state: str) -> None:
    (played / "c7").write_text(f"NodeName=c7\n   State={state} X=1\n   Reason=disk, ask Ada\n")
    assert main([report(played, finding(NIC, "c7"))]) == 0
    assert updates(played) == []


@pytest.mark.parametrize(
    "each", [finding("link", "c7", "c8"), finding("rail 3"), finding("x", "c7", instead=("c8",))]
)
def test_what_names_no_single_node_drains_none(
    played: Path, capsys: pytest.CaptureFixture[str], each: dict[str, object]
) -> None:
    assert main([report(played, each)]) == 0
    assert updates(played) == []
    assert "no single node, so none is drained" in capsys.readouterr().out


@pytest.mark.parametrize("status", ["ok", "warning", "unknown"])
def test_only_a_critical_verdict_drains(played: Path, status: str) -> None:
    assert main([report(played, finding(NIC, "c7"), status=status)]) == 0
    assert updates(played) == []


def test_many_nodes_are_a_fault_of_something_else(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = report(played, *(finding(NIC, node) for node in ("c6", "c7", "c8")))
    assert main([path, "--most", "2"]) == 2
    assert updates(played) == []
    assert "3 nodes are critical, more than --most 2" in capsys.readouterr().err
    assert main([path]) == 0
    assert len(updates(played)) == 3


def test_one_refusal_does_not_keep_the_others(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([report(played, finding(NIC, "c9"), finding(NIC, "c7"))]) == 1
    assert len(updates(played)) == 1
    assert "cannot drain c9: scontrol show: Node c9 not found" in capsys.readouterr().err
    (played / "refusal").write_text("Access denied")
    assert main([report(played, finding(NIC, "c8"))]) == 1
    assert "Access denied" in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"status": "critical", "findings": [{}]}'])
def test_what_is_no_report_drains_nothing(played: Path, text: str | None) -> None:
    if text is not None:
        (played / "report.json").write_text(text)
    assert main([str(played / "report.json")]) == 2
    assert updates(played) == []


def test_without_slurm(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (played / "scontrol").unlink()
    assert main([report(played, finding(NIC, "c7"))]) == 1
    assert "cannot drain c7: scontrol show: " in capsys.readouterr().err
