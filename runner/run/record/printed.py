"""The records that Python gets of a run and of a plan: dicts that show themselves as the commands do."""

from __future__ import annotations

import html
from typing import Any

from meshrun.runner.forecast import table as plan_table
from meshrun.runner.job.signature import run_name
from meshrun.runner.report.summary import render, result_text
from meshrun.runner.spelling import python_caller


class ShownRecord(dict[str, Any]):
    """A record that notebooks show as its `str`."""

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class RunRecord(ShownRecord):
    """The record of docs/record.md. Its `str` is the summary, which notebooks show."""

    def __str__(self) -> str:
        own = self["parameters"]
        with python_caller({name: run_name(name, own) for name in own}):
            return render(self) + (result_text(self["result"]) if self["output"] is None else "")


class PlanRecord(ShownRecord):
    """The record of a forecast. Its `str` is the table of `meshrun plan`, which notebooks show."""

    def __str__(self) -> str:
        own = self["parameters"]
        with python_caller({name: run_name(name, own) for name in own}):
            return plan_table.render(self)
