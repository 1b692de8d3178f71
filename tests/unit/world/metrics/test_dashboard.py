"""The dashboard and the page name the metrics and labels that are served, and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path

from meshrun.runner.world.metrics import families as module
from meshrun.runner.world.metrics.families import METRICS

DOCS = next(folder for folder in Path(__file__).parents if (folder / "docs").is_dir()) / "docs"
NAMES = {f"meshrun_{name}{'_total' if kind == 'counter' else ''}" for name, (kind, _) in METRICS.items()}
SCRAPED = {"job", "instance"}  # labels that Prometheus adds


def labels_of(page: str) -> dict[str, set[str]]:
    """Return the labels of each metric in the table of the page."""
    rows = re.findall(r"^\| `(meshrun_\w+)` \| (.*?) \|", page, re.MULTILINE)
    return {name: {*re.findall(r"`(\w+)`", labels)} for name, labels in rows}


def test_the_page_has_every_metric_with_its_labels() -> None:
    page = (DOCS / "metrics.md").read_text()
    assert labels_of(page).keys() == NAMES
    source = Path(module.__file__).read_text()
    for name, (kind, what) in METRICS.items():
        full = f"meshrun_{name}{'_total' if kind == 'counter' else ''}"
        assert what in page
        for call in re.findall(rf'table.add\("{name}", (.*)\)', source):
            assert {*re.findall(r"(\w+)=", call)} == labels_of(page)[full], name


def test_the_dashboard_asks_for_metrics_and_labels_that_are_served() -> None:
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    known = labels_of((DOCS / "metrics.md").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for text in expressions for name in re.findall(r"meshrun_\w+", text)}
    assert asked <= NAMES
    counters = [(text, name) for text in expressions for name in re.findall(r"meshrun_\w+_total", text)]
    assert all(f"rate({name}" in text or "planned" in text for text, name in counters)
    for text in expressions:
        served = {
            "run",
            "host",
            *(label for name in re.findall(r"meshrun_\w+", text) for label in known[name]),
        }
        used = {
            *re.findall(r"[{,](\w+)[=!]", text),
            *(label for by in re.findall(r"by \(([\w, ]+)\)", text) for label in by.split(", ")),
        }
        assert used
        assert used <= served | SCRAPED, text
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    used = {*re.findall(r"\$\{?(\w+)", json.dumps(dashboard))} - {"__rate_interval"}
    assert used == variables
