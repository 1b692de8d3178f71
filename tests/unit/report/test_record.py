"""The envelope of records, and what JSON has no number for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from runner.errors import RunError
from runner.report.record import envelope, json_text, plain, write_json


def test_the_envelope_comes_first() -> None:
    assert list(envelope("rates", 2, {"a": 1}).items()) == [
        ("schema", 2),
        ("kind", "rates"),
        ("version", 2),
        ("a", 1),
    ]


def test_a_format_that_had_such_a_key_before_keeps_it() -> None:
    record = envelope("bench", 3, {"version": "2.18.3", "schema": "meshrun.validate"})
    assert record == {"schema": "meshrun.validate", "kind": "bench", "version": "2.18.3"}


def test_an_envelope_again_changes_nothing() -> None:
    once = envelope("run", 1, {"job": "edges"})
    assert envelope("run", 1, once) == once


def test_nan_and_infinities_are_null() -> None:
    odd = {"a": float("nan"), "b": [np.float32("inf"), np.array([1.0, -np.inf])], "c": complex(0, np.inf)}
    text = json_text("test", 1, odd)
    found = json.loads(text, parse_constant=pytest.fail)
    assert (found["a"], found["b"], found["c"]) == (None, [None, [1.0, None]], [0.0, None])
    assert text.endswith("}\n")


def test_parameters_and_results_have_texts_for_them() -> None:
    assert plain({"cval": float("nan"), "gain": (np.inf, 1j * np.inf)})["cval"] == "nan"
    assert plain((np.inf, -np.inf, 1.5, True, None, Path("a"))) == ["inf", "-inf", 1.5, True, None, "a"]


def test_a_record_is_written_whole(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", "test", 1, {"rows": np.arange(3)})
    assert json.loads((tmp_path / "a.json").read_text()) == {
        "schema": 1,
        "kind": "test",
        "version": 1,
        "rows": [0, 1, 2],
    }


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot write the record"):
        write_json(tmp_path / "no" / "a.json", "test", 1, {})
