"""The files of a validation, during the run and at its end."""

from __future__ import annotations

import json
import os
from pathlib import Path

from made_report import healthy, unknown
from toy_fleet import ToyFleet

from meshrun.jobs.validate.ladder.ladder import Ladder
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.report.model import HardwareLimit
from meshrun.jobs.validate.run.options import ValidateOptions
from meshrun.jobs.validate.run.outputs import Outputs, write_files
from meshrun.jobs.validate.run.validation import Validation


def all_of(folder: Path) -> Outputs:
    return Outputs(*(str(folder / name) for name in ("a.json", "a.html", "a.xml", "a.prom")))


def test_what_is_read_at_any_time_is_written_at_the_end(tmp_path: Path) -> None:
    write_files(unknown(), all_of(tmp_path), last=False)
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "a.html", "a.xml"}
    write_files(healthy(), all_of(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "a.html", "a.xml", "a.prom"}
    assert json.loads((tmp_path / "a.json").read_text())["status"] == "ok"


def test_a_stream_gets_the_last_report_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_files(unknown(), Outputs(json=str(pipe)), last=False)
        write_files(healthy(), Outputs(json=str(pipe)))
        assert json.loads(os.read(reader, 1 << 20))["status"] == "ok"
    finally:
        os.close(reader)


def test_before_a_rung_nothing_of_it_is_known() -> None:
    """An interim report does not change the verdict."""
    validation = Validation(ValidateOptions(Plan()), {})
    validation.ladder = Ladder(ToyFleet([2, 2, 2]), Plan())
    validation.ladder.measure_rung("gpu")
    for _ in range(2):
        report = validation.interim_report("host")
        assert report.verdict.status == "unknown"
        assert report.verdict.not_judged.count("the run ended while host was measured") == 1
        assert [rung.result for rung in report.verdict.rungs[:2]] == ["ok", "not measured"]
    assert validation.ladder.verdict().status == "ok"


def test_curves_have_the_limit_of_their_rung() -> None:
    limits = (HardwareLimit("node", "ring", 450e9, "NVLink"), HardwareLimit("all", "ring", None, "not known"))
    validation = Validation(ValidateOptions(Plan()), {}, limits=limits)
    validation.ladder = Ladder(ToyFleet([2, 2]), Plan())
    report = validation.report(validation.ladder.climb())
    assert [(one.rung, one.limit) for one in report.curves] == [("node", 450e9), ("all", None)]


def test_standard_output_is_no_file(tmp_path: Path) -> None:
    outputs = Outputs(json="-", html=str(tmp_path / "a.html"))
    assert {*outputs.named()} == {"html"}
    assert outputs.on_stdout == "json"
    assert outputs.without_files() == Outputs(json="-")
    assert Outputs(html="a.html").without_files() == Outputs()
