"""The page as text: whole, self-contained, and nothing in a report can break out of it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import made_report
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.jobs.validate.report.formats.html import PAGE, TITLES, colour_step, round_step, text
from meshrun.jobs.validate.report.formats.json import read
from meshrun.jobs.validate.report.model import RateCurve, RateMatrix, Report
from meshrun.jobs.validate.report.wording import MOST, printable

VOID = {"meta", "br", "line", "polyline"}
HOSTILE = "</script><script>alert(1)</script><!-- & \"'\u2028{{report}} ]]>"


class Read(HTMLParser):
    """Checks nesting; records elements in order and the text of each kind of element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {}
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.inside.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.inside[tag][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.tags if name == tag]


def sections(report: Report, *titles: str) -> str:
    """Return the sections with these titles, without no-break spaces; "" if the page has none."""
    found = re.findall(r"<section>\n<h2>(.*?)</h2>\n(.*?)</section>", text(report), re.S)
    return "".join(inside for title, inside in found if title in titles).replace("\xa0", " ")


def heat_maps(report: Report) -> str:
    return sections(report, *TITLES.values()).replace("&nbsp;", " ")


def curves(report: Report) -> str:
    return sections(report, "Rates by size")


def embedded(page: str) -> Any:
    (found,) = re.findall(r'<script type="application/json" id="report">(.*?)</script>', page, re.S)
    return json.loads(found)


@pytest.mark.parametrize("name", made_report.ALL)
def test_every_report_is_a_whole_page(name: str) -> None:
    report = made_report.ALL[name]()
    page = text(report)
    found = Read(page)
    assert found.all("html") == [{"lang": "en"}]
    assert len(found.inside["h1"]) == 1
    assert len(found.inside["caption"]) == len(found.all("table"))
    headings = [int(tag[1]) for tag, _ in found.tags if re.fullmatch("h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in pairwise(headings))
    assert "{{" not in page.split("<script")[0]
    assert found.inside["title"][0].startswith(f"meshrun validate: {report.verdict.status.upper()}")


@pytest.mark.parametrize("name", [name for name in made_report.ALL if name != "unknown"])
def test_the_whole_report_is_in_the_page(name: str) -> None:
    report = made_report.ALL[name]()
    assert read(embedded(text(report))) == report


def test_nothing_is_loaded_and_no_other_script_may_run() -> None:
    found = Read(text(made_report.critical()))
    assert not any({"src", "href"} & set(attributes) for _, attributes in found.tags)
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
    (policy,) = [one["content"] for one in found.all("meta") if "http-equiv" in one]
    script = found.inside["script"][-1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def odd_everywhere(odd: str) -> Report:
    """Return a report with `odd` in all text from outside."""
    report = made_report.critical()
    found = tuple(replace(one, hosts=(odd,), instead=(odd,)) for one in report.verdict.findings)
    alarms = tuple(replace(one, sentence=odd) for one in report.verdict.alarms)
    rungs = tuple(replace(one, why=odd, rates={odd: 1e9}) for one in report.verdict.rungs)
    large = RateMatrix("host pairs", "flows", odd, (odd,) * 17, ((1e9,) * 17,) * 17)
    small = RateMatrix("pairs", "flows", odd, (odd,) * 2, ((None, 1e9), (1e9, None)))
    return replace(
        report,
        verdict=replace(report.verdict, findings=found, alarms=alarms, rungs=rungs, not_judged=(odd,)),
        members=tuple(replace(one, host=odd, device=odd, uuid=odd, bus_id=odd) for one in report.members),
        command=odd, started=odd, simulated=odd, baseline=odd, changed=(odd,), ended=odd,
        environment={odd: odd},
        limits=tuple(replace(one, assumption=odd, what=odd) for one in report.limits),
        changes=tuple(
            replace(one, host=odd, part=odd, counter=odd, after=odd, meaning=odd) for one in report.changes
        ),
        wrong=tuple(replace(one, got=odd) for one in report.wrong),
        drifts=tuple(replace(one, part=odd, what=odd) for one in report.drifts),
        matrices=(large, small),
        curves=(RateCurve("all", odd, ((1024, 1e9), (2048, 2e9)), 3e9),),
    )  # fmt: skip


def shape(report: Report) -> list[tuple[str, list[str]]]:
    return [(tag, sorted(attributes)) for tag, attributes in Read(text(report)).tags]


@given(st.text(min_size=1))
def test_no_text_changes_the_page(odd: str) -> None:
    assert shape(odd_everywhere(odd)) == shape(odd_everywhere("c1"))


@pytest.mark.parametrize("odd", [HOSTILE, "\ud800", "\x00\x1b", "<&\"']]>", "名前", "{{style}}", "a\nb"])
def test_hostile_text_is_only_text(odd: str) -> None:
    report = odd_everywhere(odd)
    page = text(report)
    page.encode("utf-8")
    assert shape(report) == shape(odd_everywhere("c1"))
    assert read(embedded(page)) == report
    assert f"host {printable(odd)}, GPU 5" in Read(page).inside["h3"]


def test_many_findings_are_cut_and_counted() -> None:
    page = text(made_report.crowd())
    assert page.count('<div class="row">') == MOST
    assert f"... and {4096 - MOST} more" in page
    assert "... and 32704 more" in page  # ranks
    assert len(page.split('<script type="application/json"')[0]) < 100_000


def test_unknown_has_its_sign_and_dashes() -> None:
    page = text(made_report.unknown())
    assert '<header class="unknown">' in page
    rows = re.findall(r'<tr><th scope="row">all</th>.*?</tr>', page)
    assert [re.sub("<.*?>", " ", row).split()[2:7] for row in rows] == [["ring", "-", "-", "GB/s", "-"]]


# Heat maps.


@pytest.mark.parametrize(
    ("share", "number"), [(2.0, 0), (0.95, 0), (0.949, 1), (0.9, 1), (0.75, 2), (0.5, 3), (0.49, 4), (0.0, 4)]
)
def test_colours_by_the_share_of_the_usual_rate(share: float, number: int) -> None:
    assert colour_step(100 * share, 100) == number


def test_the_slow_pair_is_marked_and_told_in_numbers() -> None:
    page = heat_maps(made_report.critical())
    cells = re.findall(r'<td class="h3" title="(GPU 0 to GPU 6|GPU 6 to GPU 0): (.*?)"', page)
    assert [found for found, _ in cells] == ["GPU 0 to GPU 6", "GPU 6 to GPU 0"]
    assert all(re.fullmatch(r"2(18|20) GB/s, 5[56] %", listed) for _, listed in cells)


def test_matrices_with_slow_pairs_come_first_and_good_ones_are_folded() -> None:
    page = heat_maps(made_report.critical())
    titles = re.findall(r"<caption>(.*?)</caption>|<summary>(.*?)</summary>", page)
    shown = [caption or f"({fold})" for caption, fold in titles]
    assert shown[:2] == ["host c4, GPU to GPU", "(7 more, no pair below 90 %)"]
    assert shown[9:11] == ["host to host, rail 3", "(7 more, no pair below 90 %)"]


def test_what_was_not_measured_is_no_slow_pair() -> None:
    none = RateMatrix("pairs", "flows", "none", ("a", "b"), ((None, None), (float("nan"), None)))
    assert heat_maps(replace(made_report.healthy(), matrices=(none,))) == ""
    some = RateMatrix("pairs", "flows", "some", ("a", "b"), ((None, 1e9), (float("nan"), None)))
    page = heat_maps(replace(made_report.healthy(), matrices=(some,)))
    assert page.count('<td class="hn">-</td>') == 3


def test_a_large_matrix_is_a_canvas_with_its_slowest_pairs_in_words() -> None:
    page = heat_maps(made_report.simulated(512, 307))
    assert page.count("<canvas") == 1
    assert len(page) < 5000
    listed = re.findall(r"<li>(\w+) to (\w+): ([\d.]+) GB/s, 6[01] %</li>", page)
    assert len(listed) == 5
    assert all("h307" in pair[:2] for pair in listed)


# Curves.


def test_a_curve_has_its_points_and_its_limit() -> None:
    page = curves(made_report.healthy())
    assert page.count("<svg") == 4
    assert page.count('class="limit"') == 3
    assert "<title>1 GiB: 395 GB/s</title>" in page
    places = [float(y) for y in re.findall(r'cy="([\d.]+)"', page)]
    assert min(places) >= 12
    assert max(places) <= 172


@pytest.mark.parametrize("points", [(), ((0, 1.0),), ((1024, float("nan")),)])
def test_no_points_no_curve(points: tuple[tuple[int, float], ...]) -> None:
    assert curves(replace(made_report.healthy(), curves=(RateCurve("all", "ring", points),))) == ""


@pytest.mark.parametrize("points", [((1024, 0.0),), ((1024, 1.0), (1024, 2.0)), ((1, 1e-3), (1 << 40, 1e15))])
def test_odd_curves_are_drawn(points: tuple[tuple[int, float], ...]) -> None:
    page = curves(replace(made_report.healthy(), curves=(RateCurve("all", "ring", points),)))
    assert page.count("<circle") == len(points)
    assert "nan" not in page


def test_readings_during_a_load_are_a_table() -> None:
    page = text(made_report.critical())
    row = re.search(r'<tr><th scope="row">c3, GPU 2</th>(.*)</tr>', page)
    assert row is not None
    assert re.findall(r'<td class="number">([^<]*)</td>', row[1]) == [
        "512",
        "540",
        "1211",
        "1140",
        "88",
        "95",
    ]
    assert "Load on tensor cores" not in text(made_report.healthy())


def test_a_curves_rates_and_sizes_are_named() -> None:
    points = tuple((1 << power, power * 10e9) for power in range(20, 31))  # 1 MiB at 200 GB/s to 1 GiB at 300
    page = curves(replace(made_report.healthy(), curves=(RateCurve("all", "ring", points),)))
    assert re.findall(r'text-anchor="end">([^<]*)', page) == ["0", "100", "200", "300"]
    sizes = re.findall(r'text-anchor="middle">([^<]*)', page)
    assert sizes == ["1 MiB", "8 MiB", "64 MiB", "512 MiB"]


@pytest.mark.parametrize(
    ("least", "found"), [(1.0, 1.0), (1.1, 2.0), (2.1, 5.0), (123e9, 200e9), (0.06, 0.1)]
)
def test_round_steps(least: float, found: float) -> None:
    assert round_step(least) == pytest.approx(found)


def test_the_pages_files_are_part_of_the_package() -> None:
    templates = {"page.html", "elements.html", "heat_maps.html", "curves.html"}
    assert {path.name for path in PAGE.iterdir()} == templates | {"style.css", "heat.js"}
