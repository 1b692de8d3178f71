"""An option is one row: the command, keywords, signatures and docstrings follow from it."""

from __future__ import annotations

import inspect
import string
import typing
from collections.abc import Sequence
from dataclasses import make_dataclass
from typing import Any

import click
import pytest

import meshrun
from meshrun.launch.cli.job_command import click_option
from meshrun.runner.errors import UserError
from meshrun.runner.options import run_options, table
from meshrun.runner.options.plan_options import plan_keywords, plan_rows
from meshrun.runner.options.run_options import RANKS, Options, run_rows
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.options.table import OptionRow, row
from meshrun.runner.options.values import CountValue
from meshrun.runner.run.signatures import PlanCall, RunCall

RUN, PLAN = [*run_rows(), RANKS], plan_keywords()


@meshrun.map_blocks
def same(block: Any, *, rate: float = 1.0) -> Any:
    return block


def keywords(signature: Any) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(signature.__call__).parameters.values()
    return {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(("rows", "signature"), [(RUN, RunCall), (PLAN, PlanCall)])
def test_a_signature_has_the_names_defaults_and_types_of_the_table(
    rows: Sequence[OptionRow], signature: Any
) -> None:
    written = keywords(signature)
    assert [*written] == [name for row in rows for name in row.names]
    scope = {"PlanRecord": Any, "RunRecord": Any}
    types = typing.get_type_hints(signature.__call__, localns=scope)
    for entry in rows:
        allowed: Any = entry.values.python
        if getattr(entry.values, "flags", False):
            allowed = allowed | bool
        if entry.default is None and not entry.required and allowed is not Any:
            allowed = allowed | None
        for name in entry.names:
            assert types[name] == allowed, name
            assert written[name].default == (inspect.Parameter.empty if entry.required else entry.default), (
                name
            )


@pytest.mark.parametrize("options", [Options, StepOptions, StreamOptions])
def test_a_field_without_a_value_has_the_default_of_its_row(options: Any) -> None:
    for name, entry in table.rows(options).items():
        assert getattr(options(), name) == entry.default
    assert table.first_given(options()) is None


@pytest.mark.parametrize("entry", run_rows(), ids=lambda entry: entry.name)
def test_the_command_has_the_same_default(entry: OptionRow) -> None:
    command = click.Command("run", params=[click_option(entry, {})])
    assert command.make_context("run", []).params == {entry.name: entry.default}


def test_a_docstring_describes_each_keyword_and_spells_options_for_python() -> None:
    for method, rows in ((same.run, RUN), (same.plan, PLAN)):
        text = inspect.getdoc(method) or ""
        assert "--" not in text.replace("-" * len("Parameters"), "")
        for entry in rows:
            assert f"\n{', '.join(entry.names)}: " in text
    assert "boundary='constant'" in (inspect.getdoc(same.run) or "")


def test_a_new_row_is_an_option_a_keyword_and_a_line_of_the_docstring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One row in one class: no other file of the product is touched, but the signature for type checkers."""
    added = row(CountValue(9), "Warm up N times, unless {resume:True}.", metavar="N", default_text="0")
    wider = make_dataclass("StreamOptions", [("warm_up", int, added)], bases=(StreamOptions,), frozen=True)
    monkeypatch.setattr(run_options, "StreamOptions", wider)
    entry = next(entry for entry in run_rows() if entry.name == "warm_up")

    option = click_option(entry, {})
    assert (option.opts, option.metavar) == (["--warm-up"], "N")
    assert option.help == "Warm up N times, unless --resume.  [default: 0]"
    assert click.Command("run", params=[option]).make_context("run", ["--warm-up", "3"]).params == {
        "warm_up": 3
    }

    assert "\nwarm_up: Warm up N times, unless resume=True. Default: 0." in table.described([entry])
    read = table.read_keywords(run_rows(), {"warm_up": 3})
    options = run_options.run_options(read)
    assert (options.stream.warm_up, options.stream.named) == (3, "--warm-up")  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="Invalid value for '--warm-up': 10 is not in the range 1<=x<=9"):
        table.read_keywords(run_rows(), {"warm_up": 10})
    assert [*keywords(RunCall)] != [name for entry in [*run_rows(), RANKS] for name in entry.names]


def test_help_texts_name_options_that_exist() -> None:
    names = {name for entry in (*RUN, *plan_rows()) for name in entry.names}
    named = {
        name
        for entry in (*RUN, *plan_rows())
        for _, name, _, _ in string.Formatter().parse(entry.help)
        if name
    }
    assert named
    assert named <= names


def test_a_job_is_called_with_its_own_parameters() -> None:
    assert str(inspect.signature(same)) == "(block, /, *, rate: float = 1.0)"
    assert str(inspect.signature(same.run)).startswith(
        "(input: Any, output: Any = None, *, device: DeviceChoice = 'auto', "
    )
