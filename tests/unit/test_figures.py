"""Figures in pages come from records: docs/figures.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripts import load

ROOT = Path(__file__).parents[2]
RECORD = {
    "seconds": {"one": [0.3, 0.1, 0.2], "copy": 4.0},
    "rows": [
        {"case": "heat", "ranks": 1, "rate": 2.5e9, "count": 3},
        {"case": "heat", "ranks": 2, "rate": 4.9e9, "count": 4},
    ],
}


@pytest.fixture
def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = load(ROOT / "docs" / "figures.py")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    (tmp_path / "runs.json").write_text(json.dumps(RECORD))
    return module


def marked(expression: str, figure: str) -> str:
    return f"a <!--{{{expression}}}-->{figure}<!--/-->"


def test_every_page_has_the_figures_of_its_records() -> None:
    module = load(ROOT / "docs" / "figures.py")
    found = {page.name: [*module.faults(page.read_text(), page.name)] for page in module.pages()}
    assert {name: faults for name, faults in found.items() if faults} == {}
    assert sum(len(module.MARKER.findall(page.read_text())) for page in module.pages()) > 100


@pytest.mark.parametrize(
    ("expression", "figure"),
    [
        ('runs.rows(case="heat", ranks=2).rate / 1e9:.1f', "4.9"),
        ("runs.rows(ranks=2).rate / runs.rows(ranks=1).rate:.2f", "1.96"),
        ("1e3 * median(runs.seconds.one):.0f", "200"),
        ("max(runs.rows.rate):,.0f", "4,900,000,000"),
        ("len(runs.rows):d", "2"),
        ('runs["seconds"]["one"][0]:.1f', "0.3"),
        ("runs.seconds.copy:.0f", "4"),  # not the method of a dict
        ("sum(runs.rows.count):d", "7"),  # nor of a list
        ("sum(row.count for row in runs.rows if row.ranks > 1):d", "4"),
    ],
)
def test_a_marker_has_the_figure_of_its_record(figures: Any, expression: str, figure: str) -> None:
    assert [*figures.faults(marked(expression, figure) + " GB/s\n")] == []
    ((line, fault),) = figures.faults("\n\n" + marked(expression, "5") + " GB/s\n")
    assert (line, fault) == (3, f"got 5, expected {figure}. Try: nox -s figures")
    assert figures.MARKER.sub(figures.filled, marked(expression, "5")) == marked(expression, figure)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("walks.rows:d", "no record benchmarks/results/walks.json"),
        ("runs.rows(ranks=1).speed:.1f", "no attribute 'speed'"),
        ("runs.rows.speed:d", "KeyError: 'speed'"),
        ('runs["minutes"]:.1f', "KeyError: 'minutes'"),
        ("runs.rows(ranks=3).rate:.1f", "0 rows have {'ranks': 3}, expected one"),
        ('runs.rows(case="heat").rate:.1f', "2 rows have {'case': 'heat'}, expected one"),
        ("runs.rows:.1f", "TypeError"),
        ("runs.rows(:.1f", "SyntaxError"),
        ("4:d", "it names no record"),
        ("max(4, 3):d", "it names no record"),
        ("open:d", "no record benchmarks/results/open.json"),
        ("runs.seconds.copy / 0:.1f", "ZeroDivisionError"),
    ],
)
def test_a_marker_without_a_figure_says_why_and_stays(figures: Any, expression: str, says: str) -> None:
    text = marked(expression, "1")
    ((line, fault),) = figures.faults(text)
    assert line == 1
    assert says in fault
    assert figures.MARKER.sub(figures.filled, text) == text


@pytest.mark.parametrize(
    "text",
    [
        "It makes 339 GB/s.",
        "It makes 339GB/s.",
        "It makes 3 GLUPS.",
        "It makes 3.5 billion cells per second.",
        "It takes 1.5 seconds.",
        "It is 1.5x as fast.",
        "It reaches 95 percent of the peak.",
        "It makes 3.3 TB/s on one.",
        "One computes 82 billion cells a second.",
        "It makes 96.2 Gcell/s.",
        "It makes 8 MiB/s.",
        "It makes 95 % of a copy.",
        "It makes 43\nTFLOP/s.",
        "from 34 to <!--{runs.seconds.copy:.0f}-->4<!--/--> GB/s",
        "from <!--{runs.seconds.copy:.0f}-->4<!--/--> to 34 GB/s",
        "A call takes 102 ns, here.",
        "A call takes 7 us.",
        "It takes 1.23 s.",
        "after 9.1, 0.6 and 9.6 s",
        "It takes 10.2 ms.",
        "It is 95.3 % of a copy.",
        "It is 8 times as fast.",
        "It is 4.7 times a copy's rate.",
        "The drag is 1.506.",
        "(Strouhal number 0.1997)",
        "| case | GB/s |\n| --- | --- |\n| heat | 4038 |\n",
        "| case | of a copy |\n| --- | --- |\n| heat | 504 % |\n",
        "| case | Gcell/s, 4 GPUs |\n| --- | --- |\n| heat | 1,338 |\n",
        "| flow | here |\n| --- | --- |\n| drag | cylinder 5.582 |\n",
        "| flow | time |\n| --- | --- |\n| drag | 115 ms |\n",
        "It reaches 92 %.",
        "It reaches 92% of\nthe peak.",
        "It reaches 92 per cent.",
        "It is 20% faster.",
        "It is 15 % slower, at most.",
        "within 3 %\nof NCCL",
        "It is 3 times faster.",
        "It is 2.6-fold.",
        "It is 2x faster.",
        "It is 2\u00d7 as fast.",
        "three times as fast",
        "a speedup of 2.6",
        "It takes half as long.",
        "0.92 of a copy",
        "It names 46 of the 48 faults.",
        "a factor of 2.6",
        "It takes 12 \u00b5s.",
        "It takes 12 \u03bcs.",
        "It takes 12 microseconds.",
        "It takes twelve us.",
        "It takes ~12 us.",
        "from 12-15 us",
        "from 12 \u2013 15 us",
        "It takes 12&nbsp;us.",
        "It takes **12** us.",
        "It takes 4 ms.",
        "It took 12 s.",
        "It takes up to 12 s.",
        "It takes\nabout 12 seconds.",
        "It took 3.5 minutes.",
        "It makes 12 GB per second.",
        "It makes 1.2e9 cells/s.",
        "It makes 400 Gbit/s.",
        "It makes 339 gigabytes per second.",
        "It makes 5 million messages a second.",
        "It makes 2.5 PFLOP/s.",
        "It makes `339 GB/s`.",
        "![92 % of a copy](x.png)",
        "![a plot of 339\nGB/s](x.png)",
        "a drag coefficient of 1.506",
        "St = 0.1997",
        "| case | rate |\n| --- | --- |\n| heat | 339 |\n",
        "| case | speedup |\n| --- | --- |\n| heat | **1.9** |\n",
        "| case | 4 GPUs |\n| --- | --- |\n| heat | 1200 (2) |\n",
        "| ns | case |\n| --- | --- |\n| 3 | heat |\n",
        "```console\n$ meshrun bench\n  4 of 64 MiB, 523 us a step\n```\n",
        "  ```\n  523 us a step\n  ```\n",
    ],
)
def test_a_figure_typed_in_is_found(figures: Any, text: str) -> None:
    faults = [*figures.faults(text)]
    assert len(faults) == 1, faults
    assert faults[0][1].endswith("without a record")


@pytest.mark.parametrize(
    "text",
    [
        "It waits 20 s, at most 64 KiB, 3 times.",
        "tiles of 32 x 33 cells, 512x512 pixels, columns -1..+1 x -1..+1",
        "<!--stated: data sheet-->A GPU has 450 GB/s<!--/-->.",
        "`--link-rate 50 GB/s` and [a page](page.md#takes-1.5-s)",
        "<!--stated: an example-->\n\n```text\n523 us a step, 125 Mcell/s\n```\n\n<!--/-->\n",
        "<!-- tested by noxfile.py -->\n\n```\n523 us a step\n```\n\n<!-- end -->\n",
        "```console\n$ meshrun validate --link-rate 50 GB/s\n```\n",
        "```python\nrate = 4  # 4 GB/s\n```\n",
        "| bytes a cell | ranks |\n| --- | --- |\n| 8 | 4 |\n",
        "NCCL 2.28.9, Python 3.12, Re 100, 16384 x 16384, H200",
        "| option | default |\n| --- | --- |\n| `--depth` | 3 |\n",
        "| cells | GB/s |\n| --- | --- |\n| 4038 | - |\n",
        "<!-- tested by noxfile.py -->\n| ranks | time |\n| --- | --- |\n| 1 | 2.24 ms |\n\n<!-- end -->\n",
    ],
)
def test_what_is_no_measurement_needs_no_marker(figures: Any, text: str) -> None:
    assert [*figures.faults(text)] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<!--stated: -->4 GB/s<!--/-->", "neither a marker nor a reason"),
        ("a <!--{runs.seconds.copy}-->4<!--/-->", "neither a marker nor a reason"),  # without a format
        ("a <!--{runs.seconds.copy:.0f}-->4", "neither a marker nor a reason"),
        ("a\n<!--{runs.seconds.copy:.0f}-->4<!--/--> GB/s", "turns the line into HTML"),
        ("- <!--{runs.seconds.copy:.0f}-->4<!--/--> GB/s", "turns the line into HTML"),
        ("| a | <!--{len(runs.rows) | 4:d}-->6<!--/--> |", "splits the cells"),
        ("<!-- made by nobody.py -->\n1.5 s\n<!-- end -->", "neither makes nor tests a table of page.md"),
        ("<!-- tested by noxfile.py -->\n1.5 s\n<!-- end -->", "neither makes nor tests a table of page.md"),
        ("a <!--{runs.seconds.copy:.0f}-->4 to <!--{runs.seconds.copy:.0f}-->4<!--/-->", "neither a marker"),
        (
            "a <!--{runs.seconds.copy}-->4<!--/--> b <!--{runs.seconds.copy:.0f}-->4<!--/-->",
            "neither a marker",
        ),
    ],
)
def test_a_marker_that_cannot_work_is_found(figures: Any, text: str, says: str) -> None:
    assert says in " ".join(fault for _, fault in figures.faults(text, "page.md"))
    untouched = figures.MARKER.sub(figures.filled, text)
    assert untouched == text


def test_the_command_fills_pages_and_fails_for_what_it_cannot(
    figures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "pages", lambda: [page])
    measured = tmp_path / "measured.md"  # where figures need no marker
    measured.write_text("It makes 5 GB/s.\n" + marked("runs.seconds.copy:.0f", "4") + " s\n")
    monkeypatch.setattr(figures, "BENCHMARKS", measured)
    page.write_text(marked("runs.seconds.copy:.0f", "5") + " GB/s\n")
    with pytest.raises(SystemExit, match=r"page.md:1: got 5, expected 4"):
        figures.main(["check"])
    figures.main(["fill"])
    assert page.read_text() == marked("runs.seconds.copy:.0f", "4") + " GB/s\n"
    figures.main(["check"])
    page.write_text("It makes 5 GB/s.\n")
    for mode in ("fill", "check"):
        with pytest.raises(SystemExit, match=r"page.md:1: 5 GB/s is a figure without a record"):
            figures.main([mode])
    page.write_text("It is fast.\n")
    measured.write_text("It makes 5 GB/s.\n" + marked("runs.seconds.copy:.0f", "7") + " s\n")
    with pytest.raises(SystemExit, match=r"^measured.md:2: got 7, expected 4"):
        figures.main(["check"])
    figures.main(["fill"])
    assert measured.read_text() == "It makes 5 GB/s.\n" + marked("runs.seconds.copy:.0f", "4") + " s\n"
