"""The page in a real headless Chromium: no network, no console errors, readable on a phone and a screen."""

from __future__ import annotations

import functools
import statistics
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import made_report
import pytest

from meshrun.jobs.validate.report.formats.html import text
from meshrun.jobs.validate.report.model import Report
from meshrun.jobs.validate.report.wording import gbps, percent

pytestmark = pytest.mark.skipif(browser.PROGRAM is None, reason="no Chromium is installed")

SPOKEN = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
nightly = functools.partial(pytest.param, marks=pytest.mark.nightly)
LARGE = functools.cache(lambda: made_report.simulated(512, 307))
REPORTS = {**made_report.ALL, "large": LARGE, "crowd": made_report.crowd}
# Elements that overflow on the right without a scrolling box.
OUTSIDE = """[...document.querySelectorAll("body *")].filter((one) =>
  !one.closest(".box, details:not([open]), script") && one.getBoundingClientRect().right > innerWidth + 1
).map((one) => one.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    with browser.started(tmp_path_factory.mktemp("profile")) as one:
        yield one


def opened(tab: browser.Browser, folder: Path, page: str, width: int, dark: bool = False) -> list[Any]:
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return tab.open(path, width, dark)


def requests(events: list[Any]) -> list[str]:
    return [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]


def spoken(events: list[Any]) -> list[Any]:
    return [one["params"] for one in events if one["method"] in SPOKEN]


@pytest.mark.parametrize(
    ("name", "width"),
    [
        *((name, 390) for name in REPORTS),
        *((name, 1280) if name in ("healthy", "large") else nightly(name, 1280) for name in REPORTS),
    ],
)
def test_no_network_no_errors_no_overflow(
    tab: browser.Browser, tmp_path: Path, name: str, width: int
) -> None:
    report: Report = REPORTS[name]()
    events = opened(tab, tmp_path, text(report), width)
    assert requests(events) == [(tmp_path / "report.html").as_uri()]
    assert spoken(events) == []
    assert tab.run("innerWidth") == width
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.run(OUTSIDE) == []
    first = tab.run('document.querySelector("h1").getBoundingClientRect().bottom')
    assert 0 < first < 900, "the verdict is seen without scrolling"
    assert (
        tab.run('JSON.parse(document.getElementById("report").textContent).status') == report.verdict.status
    )


def test_what_the_other_tests_look_for_is_found(tab: browser.Browser, tmp_path: Path) -> None:
    page = text(made_report.healthy())
    policy = page.index("<meta http-equiv"), page.index(">", page.index("<meta http-equiv")) + 1
    bare = page[: policy[0]] + page[policy[1] :]
    extra = '<img src="https://example.org/a.png"><script>console.error("odd")</script>'
    extra += '<div style="width:2000px">x</div>'
    events = opened(tab, tmp_path, bare.replace("<main>", f"<main>{extra}"), 390)
    assert "https://example.org/a.png" in requests(events)
    assert any("args" in one and one["args"][0]["value"] == "odd" for one in spoken(events))
    assert tab.run("document.documentElement.scrollWidth") > 390
    assert tab.run(OUTSIDE)


def test_the_policy_holds_where_escaping_would_fail(tab: browser.Browser, tmp_path: Path) -> None:
    extra = '<img src="https://example.org/a.png"><script>window.entered = 1</script>'
    events = opened(tab, tmp_path, text(made_report.healthy()).replace("<main>", f"<main>{extra}"), 1280)
    failed = [one["params"] for one in events if one["method"] == "Network.loadingFailed"]
    assert [one["blockedReason"] for one in failed] == ["csp"]
    assert tab.run("window.entered === undefined")


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (1280, False),
        (390, True),
        nightly(1280, True),
        nightly(390, False),
    ],
)
def test_the_slow_host_of_512_is_seen(tab: browser.Browser, tmp_path: Path, width: int, dark: bool) -> None:
    opened(tab, tmp_path, text(LARGE()), width, dark)
    count = tab.run('document.querySelector("canvas").width')
    assert count == 256  # two hosts a pixel
    pixels = tab.run(
        '[...document.querySelector("canvas").getContext("2d").getImageData(0, 0, 256, 256).data].join()'
    )
    data = [int(one) for one in pixels.split(",")]
    colours = [tuple(data[at : at + 3]) for at in range(0, len(data), 4)]
    slow = colour(tab, "--heat3")
    found = [divmod(at, 256) for at, one in enumerate(colours) if one == slow]
    assert len(found) > 256
    assert {row == 153 or column == 153 for row, column in found} == {True}
    assert colours.count(colour(tab, "--heat0")) > 40_000


def colour(tab: browser.Browser, name: str) -> tuple[int, ...]:
    text = tab.run(f'getComputedStyle(document.documentElement).getPropertyValue("{name}").trim()').lstrip(
        "#"
    )
    whole = text if len(text) == 6 else "".join(2 * digit for digit in text)
    return struct.unpack("3B", bytes.fromhex(whole))


def test_a_pair_is_read_by_pointing_at_it(tab: browser.Browser, tmp_path: Path) -> None:
    report = LARGE()
    (matrix,) = report.matrices
    sender = next(row for row in range(80, 512) if matrix.rates[row][307])
    opened(tab, tmp_path, text(report), 390)
    tab.run('document.querySelector("canvas").scrollIntoView({block: "center"})')
    left, top = tab.run('(({x, y}) => [x, y])(document.querySelector("canvas").getBoundingClientRect())')
    pixel = (left + 1 + 307 // 2 + 0.5, top + 1 + sender // 2 + 0.5)  # behind the border
    tab.ask("Input.dispatchMouseEvent", type="mouseMoved", x=pixel[0], y=pixel[1])
    readout = tab.run('document.querySelector("output").textContent')
    rate, rates = matrix.rates[sender][307], [rate for row in matrix.rates for rate in row if rate]
    assert rate
    assert readout == f"h{sender} to h307: {gbps(rate)} GB/s, {percent(rate / statistics.median(rates))}"


def test_schemes_are_told_apart_and_text_can_be_read(tab: browser.Browser, tmp_path: Path) -> None:
    seen = set()
    for dark in (False, True):
        opened(tab, tmp_path, text(made_report.critical()), 1280, dark)
        card = colour(tab, "--card")
        seen.add(card)
        for name in ("--ink", "--muted", "--ok", "--warning", "--critical", "--unknown"):
            assert contrast(colour(tab, name), card) >= 4.5, name  # WCAG 2.2, level AA
        for number in range(5):
            assert contrast(colour(tab, f"--on{number}"), colour(tab, f"--heat{number}")) >= 4.5, number
        steps = [luminance(colour(tab, f"--heat{number}")) for number in range(5)]
        assert steps == sorted(steps, reverse=not dark)  # distinguishable without colour vision
    assert len(seen) == 2


def luminance(rgb: tuple[int, ...]) -> float:
    """Relative luminance (WCAG 2.2)."""
    linear = [one / 255 / 12.92 if one <= 10 else ((one / 255 + 0.055) / 1.055) ** 2.4 for one in rgb]
    return sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
