"""Plots: their contents, self-contained pages, and the same bytes for the same values."""

from __future__ import annotations

import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from meshrun.jobs.bench.collectives.output.plots import (
    BandwidthLimit,
    PlotPoint,
    PlotSeries,
    Scaled,
    plot,
    plot_scaling,
    series,
)
from meshrun.jobs.bench.collectives.output.reader import BenchRecord, Figures, RowKey
from meshrun.jobs.measure.plots import COLOURS, check, spaced_ticks
from meshrun.runner.errors import UserError
from meshrun.runner.report.units import size_name

pytest.importorskip("matplotlib")

POINTS = tuple(PlotPoint(8 << i, 10.0 * 2**i, 3.0 * i) for i in range(12))
LINES = [PlotSeries("a <b> & $c_d$", POINTS, POINTS[1:]), PlotSeries("other", POINTS[:4], ())]
LIMITS = [BandwidthLimit("NVLink", 450.0)]


class Page(HTMLParser):
    """Collect the tags, references and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.cells: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open = tag
        names = ("src", "href", "xlink:href", "data", "action")
        self.references += [value or "" for name, value in attributes if name in names]

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.setdefault(self._open, []).append(data)


def drawn(tmp_path: Path, name: str = "plot.html") -> Path:
    target = tmp_path / name
    plot(LINES, target, "all_reduce <4 ranks>", LIMITS)
    return target


def test_a_page_refers_to_nothing_outside_itself(tmp_path: Path) -> None:
    text = drawn(tmp_path).read_text()
    page = Page(text)
    assert all(reference.startswith("#") for reference in page.references)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert "@import" not in text
    assert re.findall(r"url\((?!#)", text) == []


def test_a_page_has_the_figure_the_title_and_the_numbers(tmp_path: Path) -> None:
    page = Page(drawn(tmp_path).read_text())
    assert page.texts["title"][0] == page.texts["h1"][0] == "all_reduce <4 ranks>"
    assert page.tags.count("svg") == page.tags.count("table") == 1
    cells = page.texts["td"]
    assert cells[:5] == ["a <b> & $c_d$", "out of place", "8 B", "10.00", "0"]
    assert cells[-3:] == ["limit", "NVLink", "450"]
    assert page.tags.count("tr") == 1 + len(POINTS) + len(POINTS[1:]) + 4 + 1


@pytest.mark.parametrize(("name", "drawn_in"), [("plot.html", 0), ("plot.svg", 1)])
def test_a_title_is_shown_once(tmp_path: Path, name: str, drawn_in: int) -> None:
    text = drawn(tmp_path, name).read_text()
    image = text[text.index("<svg") : text.index("</svg>")]
    assert image.count("all_reduce") == drawn_in


def test_a_page_fits_a_phone(tmp_path: Path) -> None:
    text = drawn(tmp_path).read_text()
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert re.search(r"div \{[^}]*overflow-x: auto", text)
    assert len(re.findall(r'<div tabindex="0">\s*<(?:svg|table)', text)) == 2


def test_labels_of_an_axis_do_not_touch() -> None:
    """Sizes of several operations are nearly the same."""
    assert spaced_ticks([4080, 4096, 16368, 16384, 65520, 65536]) == [4096, 16384, 65536]
    assert spaced_ticks([8 << i for i in range(12)]) == [8 << i for i in range(0, 12, 2)]
    assert spaced_ticks([2, 3, 4, 6]) == [2, 3, 4, 6]
    assert spaced_ticks([3]) == [3]


def test_more_records_than_colours_differ_by_their_markers(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    lines = [PlotSeries(f"r{number}", POINTS, ()) for number in range(12)]
    looks: list[tuple[object, object]] = []
    kept = Figure.legend

    def legend(self: Figure, handles: list[Any], *rest: Any, **more: Any) -> Any:
        looks.extend((one.get_color(), one.get_marker()) for one in handles)
        return kept(self, handles, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "legend", legend)
        plot(lines, tmp_path / "many.svg")
    assert len(looks) == len(set(looks)) == 12


def test_axes_are_labelled(tmp_path: Path) -> None:
    root = ElementTree.fromstring(drawn(tmp_path, "plot.svg").read_text())
    words = {"".join(element.itertext()).strip() for element in root.iter() if element.tag.endswith("}text")}
    assert {"time (us)", "bus bandwidth (GB/s)", "size", "8 B", "2 KiB", "100", "1000"} <= words
    assert {"a <b> & $c_d$, out of place", "a <b> & $c_d$, in place", "NVLink, 450 GB/s"} <= words
    assert "other, out of place" in words
    assert "other, in place" not in words  # it has none


def test_placements_differ_by_dashes_and_records_by_colour(tmp_path: Path) -> None:
    text = drawn(tmp_path, "plot.svg").read_text()
    lines = set(re.findall(r'style="fill: none; (stroke-dasharray: [\d.,]+; )?[^"]*stroke: (#\w+)', text))
    colours = {*COLOURS[:2]}
    assert {colour for dash, colour in lines if not dash} >= colours
    assert {colour for dash, colour in lines if dash} & colours == {COLOURS[0]}


@pytest.mark.parametrize("name", ["plot.html", "plot.svg", "plot.png"])
def test_the_same_values_give_the_same_bytes(tmp_path: Path, name: str) -> None:
    first = drawn(tmp_path, name).read_bytes()
    assert drawn(tmp_path, name).read_bytes() == first
    plot([PlotSeries("x", POINTS[:3], ())], tmp_path / name)
    assert (tmp_path / name).read_bytes() != first


def test_a_png_is_an_image(tmp_path: Path) -> None:
    with Image.open(drawn(tmp_path, "plot.PNG")) as image:
        assert image.format == "PNG"
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 3


def test_nothing_global_is_left_behind(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    drawn(tmp_path)
    assert dict(matplotlib.rcParams) == before


def test_what_a_logarithm_cannot_show_is_left_to_the_table(tmp_path: Path) -> None:
    points = (
        PlotPoint(0, 5.0, 0.0),
        PlotPoint(8, 0.0, 0.0),
        PlotPoint(16, math.nan, 0.0),
        PlotPoint(32, 6.0, 0.0),
    )
    plot([PlotSeries("a", points, ())], tmp_path / "plot.html")
    page = Page((tmp_path / "plot.html").read_text())
    assert page.texts["td"][2::5] == ["0 B", "8 B", "16 B", "32 B"]
    assert "8 B" not in page.texts["text"]
    assert "32 B" in page.texts["text"]


def test_a_record_becomes_a_line_for_each_kind() -> None:
    def measured(time: float) -> dict[str, tuple[Figures, ...]]:
        return {"out_of_place": tuple(Figures(t, 1.0, 2.0 * t, 0) for t in (time, 3 * time, 2 * time))}

    rows = {
        RowKey(16, 4, "float", "sum", -1): measured(2.0),
        RowKey(8, 2, "float", "sum", -1): measured(1.0),
        RowKey(8, 4, "half", "sum", 1): measured(5.0),
    }
    first, second = series(BenchRecord("/some/where/run.json", rows))
    assert first == PlotSeries("run.json float sum", (PlotPoint(8, 2.0, 4.0), PlotPoint(16, 4.0, 8.0)), ())
    assert second == PlotSeries("run.json half sum root 1", (PlotPoint(8, 10.0, 20.0),), ())
    (only,) = series(BenchRecord("x", {RowKey(8, 2, "float", "sum", -1): measured(1.0)}), "mine")
    assert only.label == "mine"


@pytest.mark.parametrize("name", ["scale.html", "scale.svg", "scale.png"])
def test_scaling(tmp_path: Path, name: str) -> None:
    points = [Scaled(1, None), Scaled(2, 300.0, 1.0, 310.0), Scaled(4, 280.0, 0.93333)]
    plot_scaling(points, tmp_path / name, "all_reduce, 1 GiB")
    assert (tmp_path / name).stat().st_size > 0
    if name.endswith("html"):
        page = Page((tmp_path / name).read_text())
        assert page.texts["td"] == ["1", "-", "-", "-", "2", "300", "310", "1", "4", "280", "-", "0.9333"]
        axes = {"number of ranks", "bandwidth (GB/s)", "efficiency (1: as on the fewest ranks)"}
        assert axes | {"bus bandwidth", "wire"} <= set(page.texts["text"])


@pytest.mark.parametrize(
    ("size", "name"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (3 << 19, "1.5 MiB"),
        (8 << 30, "8 GiB"),
        (1 << 40, "1 TiB"),
    ],
)
def test_sizes_have_binary_names(size: int, name: str) -> None:
    assert size_name(size) == name


@pytest.mark.parametrize("name", ["plot.pdf", "plot", "plot.html.gz"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    for refuse in (lambda: check(name), lambda: plot(LINES, tmp_path / name)):
        with pytest.raises(UserError, match=r"is unknown.*expected \.html \.png \.svg"):
            refuse()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*: No such file or directory"):
        plot(LINES, tmp_path / "missing" / "plot.svg")


@pytest.mark.parametrize("date", ["abc", "1e9", "9" * 30])
def test_a_date_that_matplotlib_cannot_read_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, date: str
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", date)
    for name in ("plot.svg", "plot.html"):
        with pytest.raises(UserError, match=f"SOURCE_DATE_EPOCH.*got '{date}', expected seconds since 1970"):
            drawn(tmp_path, name)
    drawn(tmp_path, "plot.png")  # has no date


@pytest.mark.parametrize("date", ["", "0", "1700000000"])
def test_a_date_does_not_change_a_plot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, date: str) -> None:
    expected = drawn(tmp_path, "plot.svg").read_bytes()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", date)
    assert drawn(tmp_path, "plot.svg").read_bytes() == expected


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == "matplotlib":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    check_and_plot = (lambda: check("plot.svg"), lambda: plot(LINES, tmp_path / "plot.svg"))
    for refuse in check_and_plot:
        with pytest.raises(UserError, match=r"Try: pip install 'meshrun\[plot\]'"):
            refuse()
