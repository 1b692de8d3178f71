"""Plots with matplotlib: files in .html, .svg and .png, and the axes that all plots share.

matplotlib is an extra (`meshrun[plot]`) and is imported on first use. Figures are built without
pyplot, so that no display is needed and no global state is left behind. The same values give the same bytes.
"""

from __future__ import annotations

import importlib
import io
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from meshrun.runner.errors import UserError
from meshrun.runner.files import write_file
from meshrun.runner.system.launcher import environment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Tick = TypeVar("Tick", int, float)

SUFFIXES = (".html", ".png", ".svg")
TICKS = 9  # labels on an axis, about
# Of lines and bars: M. Okabe and K. Ito's, which people with any kind of colour blindness can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
WIDTH = 110  # characters of a title's line
PAGE = Path(__file__).with_name("page.html")


def check(target: str | Path) -> None:
    """Raise UserError if `save` would, before anything is measured: for an unknown suffix, without
    matplotlib, or for a date that it cannot read.
    """
    suffix = Path(target).suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError("the suffix of the plot's file is unknown", got=target, expected=" ".join(SUFFIXES))
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as reason:
        raise UserError(
            "plots need matplotlib", why=str(reason), hint="pip install 'meshrun[plot]'"
        ) from reason
    date = environment().get("SOURCE_DATE_EPOCH")
    if date and suffix != ".png":  # matplotlib reads it to lay out an SVG, which keeps no date here
        try:
            datetime.fromtimestamp(int(date), timezone.utc)
        except (ValueError, OverflowError, OSError) as reason:
            what = "the variable SOURCE_DATE_EPOCH is no date"
            raise UserError(what, got=repr(date), expected="seconds since 1970") from reason


def from_zero(axes: Axes) -> None:
    """Start the vertical axis at 0."""
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])


def logarithmic_axis(axes: Axes, places: Sequence[Tick], name: Callable[[Tick], str], label: str) -> None:
    """Make the horizontal axis logarithmic, with some of the measured places as its labels."""
    axes.set_xscale("log", base=2)
    ticks = spaced_ticks(places)
    label_ticks(axes, ticks, [name(place) for place in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(label)
    axes.grid(True, color="0.9")


def spaced_ticks(places: Sequence[Tick]) -> list[Tick]:
    """Choose the places on a logarithmic axis whose labels do not touch; powers of two have priority."""
    if len(places) < 2:
        return list(places)
    least = 0.99 * math.log2(places[-1] / places[0]) / (TICKS - 0.5)
    found: list[Tick] = []
    for place in sorted(places, key=lambda one: (not math.log2(one).is_integer(), one)):
        if all(abs(math.log2(place / other)) >= least for other in found):
            found.append(place)
    return sorted(found)


def label_ticks(axes: Axes, places: Sequence[float], words: Sequence[str]) -> None:
    """Label these places of the horizontal axis; long labels are rotated."""
    rotation: dict[str, Any] = {"rotation": 45, "ha": "right"} if max(map(len, words), default=0) > 3 else {}
    axes.set_xticks(places, words, **rotation)


@dataclass(frozen=True)
class Sheet:
    """A table below a plot. caption: empty if there is only one table."""

    titles: Sequence[str]
    rows: Iterable[Iterable[str]]
    caption: str = ""


def save(draw: Callable[[Figure], None], target: Path, title: str, sheets: Iterable[Sheet]) -> None:
    """Write the figure that `draw` fills; in .html with the sheets below it.

    The title is part of the image, in .html above it. Raises UserError for other suffixes than
    .html, .png and .svg, without matplotlib, for a wrong date, or if the file cannot be written.
    """
    from jinja2 import Environment
    from markupsafe import Markup

    check(target)
    suffix = target.suffix.lower()
    image = _render(draw, "" if suffix == ".html" else title, "png" if suffix == ".png" else "svg")
    if suffix == ".html":
        drawing = image.decode()
        svg = drawing[drawing.index("<svg") :].strip()  # without the XML prologue
        templates = Environment(autoescape=True, keep_trailing_newline=True)
        page = templates.from_string(PAGE.read_text(encoding="utf-8"))
        image = page.render(title=title, figure=Markup(svg), sheets=sheets).encode()
    try:
        write_file(target, image)
    except OSError as reason:
        raise UserError(f"cannot write {target}", why=reason.strerror or reason) from reason


def _render(draw: Callable[[Figure], None], title: str, form: str) -> bytes:
    from cycler import cycler
    from matplotlib import style
    from matplotlib.figure import Figure

    nothing = {"Software": None} if form == "png" else dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # Matplotlib's defaults, not the user's matplotlibrc; without IDs and dates that differ between runs.
    settings = {"svg.hashsalt": "meshrun", "svg.fonttype": "none", "text.parse_math": False}
    settings["axes.prop_cycle"] = cycler(color=COLOURS)
    with style.context(["default", settings]):
        figure = Figure(figsize=(11, 4.5), layout="constrained")
        draw(figure)
        if title:
            figure.suptitle(textwrap.fill(title, WIDTH))
        stream = io.BytesIO()
        figure.savefig(stream, format=form, dpi=150, metadata=nothing)
    return stream.getvalue()
