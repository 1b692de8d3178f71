"""The record that a run returns in Python: a dict that shows itself as the command's summary."""

from __future__ import annotations

import html
from typing import Any

from runner.report.summary import render


class RunRecord(dict[str, Any]):
    """The record of docs/record.md. Its `str` is the summary, which notebooks show."""

    def __str__(self) -> str:
        lines = [render(self)]
        if isinstance(self["result"], dict) and self["output"] is None:
            lines += [f"{name}: {value}\n" for name, value in self["result"].items()]
        return "".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
