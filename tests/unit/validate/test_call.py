"""`meshrun.validate`: a verdict for notebooks and programs."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import meshrun
from meshrun.jobs.validate import call
from meshrun.jobs.validate.cli import validate as command

FLEET = "hosts=4,gpus=8,fault=nic:h3:1:0.6"


def test_a_verdict_is_the_record_of_the_command_and_shows_its_report(tmp_path: Path) -> None:
    page = tmp_path / "a page.html"
    record = meshrun.validate(simulate=FLEET, keep_going=False, html=page)
    assert record["status"] == "critical"
    assert [finding["part"] for finding in record["findings"]] == ["host h3, GPU 1: its NIC"]
    assert json.loads(json.dumps(record)) == record
    assert record["line"] in str(record)
    assert record["line"] in record._repr_html_()
    assert "--stop-at-first" in record["command"]
    assert "<html" in page.read_text()


def test_ranks_of_this_machine_are_measured() -> None:
    record = meshrun.validate(ranks=2, device="cpu", rungs="gpu", budget="1s")
    assert len(record["members"]) == 2
    assert (record["simulated"], record["status"]) == ("", record["line"].split(":")[0].lower())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"simulat": FLEET}, "simulat.*Try: simulate="),
        ({"json": "a.json"}, "no option json"),
        ({"simulate": "hosts=x"}, "hosts of a simulated fleet"),
        ({"rungs": "gpus"}, "options: rungs: 'gpus' is not one of"),
        ({"expect_gpus": 0}, "options: expect_gpus: 0 is not in the range"),
        ({"budget": "3q"}, "options: budget: invalid duration"),
        ({"quick": 1}, "quick is wrong"),
        ({"ranks": 0}, "'ranks'"),
        ({"html": "-"}, "html is wrong"),
        ({"html": "/nowhere/page.html"}, "/nowhere"),
        ({"rates": "/nowhere/rates.json"}, "cannot read the rates"),
        ({"baseline": "/nowhere/runs.json"}, "cannot read the baseline"),
        ({"save_baseline": "runs.txt"}, "a baseline is JSON or SQLite"),
    ],
)
def test_a_mistake_is_an_error_before_anything_starts(
    options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call.subprocess, "run", lambda *_, **__: pytest.fail("started"))
    with pytest.raises(meshrun.UserError, match=words) as raised:
        meshrun.validate(**options)
    assert "--" not in str(raised.value).split("Try:")[0]


def test_a_program_of_an_mpi_launcher_is_told_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setattr(call.subprocess, "run", lambda *_, **__: pytest.fail("started"))
    with pytest.raises(meshrun.UserError, match="under the launcher"):
        meshrun.validate(simulate=FLEET)


def test_a_command_that_ends_without_a_verdict_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "PROGRAM", ("sh", "-c", "echo 'meshrun: the disk is gone' >&2; exit 3"))
    with pytest.raises(meshrun.RunError, match="without a verdict: the disk is gone"):
        meshrun.validate(simulate=FLEET)


def test_every_option_of_the_command_is_a_keyword_or_left_out_for_a_reason() -> None:
    named = {one.name for one in command.params}
    assert set(call.LEFT_OUT) - {"help"} <= named
    listed = inspect.getdoc(meshrun.validate) or ""
    assert all(f"`{name}`" in listed for name in call.LEFT_OUT if name != "help")
