"""A report as JSON: a round trip loses nothing, and no value breaks a reader."""

from __future__ import annotations

import json
import math
import types
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import made_report
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.jobs.validate.report.formats.json import document, read, text
from meshrun.jobs.validate.report.model import SCHEMA, RateMatrix, Report
from meshrun.jobs.validate.verdict import Finding
from meshrun.runner.errors import UserError

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2),
)
SIMPLE = {float: NUMBERS, int: st.integers(), str: st.text(max_size=8), types.NoneType: st.none(), Any: JSON}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, without numbers that JSON cannot write."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is RateMatrix:
        return matrices()
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        if kind is Finding:  # any kind has as many hosts and GPUs as its name needs
            hints |= {"hosts": tuple[str, str], "gpus": tuple[int, int]}
        return st.builds(kind, **{name: values(hint) for name, hint in hints.items()})
    if origin is tuple:
        if inner[1:] == (...,):
            return st.lists(values(inner[0]), max_size=2).map(tuple)
        return st.tuples(*map(values, inner))
    if origin is dict:
        return st.dictionaries(values(inner[0]), values(inner[1]), max_size=2)
    if origin is Literal:
        return st.sampled_from(inner)
    return SIMPLE[kind] if kind in SIMPLE else st.one_of(*map(values, inner))


@st.composite
def matrices(draw: st.DrawFn) -> RateMatrix:
    labels = draw(st.lists(st.text(), max_size=2).map(tuple))
    row = st.tuples(*[st.none() | NUMBERS for _ in labels])
    return RateMatrix("pairs", "flows", draw(st.text()), labels, tuple(draw(row) for _ in labels))


@given(values(Report))
def test_what_is_written_is_read_again(report: Report) -> None:
    written = text(report)
    assert json.loads(written) == document(report)
    assert read(json.loads(written)) == report


@pytest.mark.parametrize("name", [name for name in made_report.ALL if name != "unknown"])
def test_made_reports_are_read_again(name: str) -> None:
    report = made_report.ALL[name]()
    assert read(json.loads(text(report))) == report


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_cannot_write_are_null(number: float) -> None:
    report = made_report.critical()
    rung = replace(report.verdict.rungs[0], rates={"memory": number}, seconds=number)
    change = replace(report.changes[0], before=number)
    matrix = replace(report.matrices[0], rates=((number, 1.0), (2.0, None)), labels=("a", "b"))
    odd = replace(
        report,
        verdict=replace(report.verdict, rungs=(rung,)),
        changes=(change,),
        matrices=(matrix,),
        limits=(replace(report.limits[0], rate=number),),
        environment={"deep": [number, {"x": number}]},
    )
    written = json.loads(text(odd), parse_constant=pytest.fail)
    assert written["rungs"][0]["rates"] == {"memory": None}
    assert written["matrices"][0]["cells"] == [[0, 1, 1.0], [1, 0, 2.0]]
    assert written["environment"] == {"deep": [None, {"x": None}]}
    again = read(written)
    assert math.isnan(again.verdict.rungs[0].rates["memory"])
    assert again.changes[0].before != again.changes[0].before
    assert again.limits[0].rate is None
    assert again.matrices[0].rates == ((None, 1.0), (2.0, None))
    assert document(again) == written


def test_keys_that_programs_read() -> None:
    found = document(made_report.critical())
    first = ["schema", "kind", "version", "status", "line", "findings", "rungs", "not_judged"]
    assert list(found)[:8] == first
    assert [found[key] for key in first[:3]] == [SCHEMA, "validate", SCHEMA]
    assert found["findings"][2]["part"] == "host c7, GPU 3: its NIC"
    assert {one.name for one in fields(Report)} - {"verdict"} <= set(found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": SCHEMA + 1}, f"schema {SCHEMA + 1}"),
        ({"findings": [{"kind": "nic"}]}, "findings[0].hosts is missing"),
        ({"status": "fine"}, "status: got 'fine'"),
        ({"seconds": "long"}, "seconds: got 'long'"),
        ({"seconds": True}, "seconds: got True"),
        ({"wrong": [{"what": "flows"}]}, "wrong[0].rank is missing"),
        ({"members": 3}, "members: got 3"),
        ({"matrices": [{"rung": "pairs", "title": "", "labels": [], "cells": [[0, 0, 1.0]]}]}, "matrices[0]"),
        ({"curves": [{"rung": "all", "title": "", "points": [[1]]}]}, "curves[0].points[0]"),
    ],
)
def test_another_document_is_refused_by_the_name_of_what_is_odd(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        read({**document(made_report.healthy()), **change})
    assert message in str(refused.value)


def test_what_is_no_document() -> None:
    for odd in ([], "x", {}):
        with pytest.raises(UserError, match="schema"):
            read(odd)  # type: ignore[arg-type]
