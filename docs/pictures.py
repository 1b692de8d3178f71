"""Make the pictures of docs/gallery.md again: nox -s gallery, or python docs/pictures.py [NAME ...]

Each command stands on the page, above its picture. Pages are photographed by Chromium in light and dark.
NAME: only these pictures, or street, the film of the first page.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageSequence

from meshrun.jobs.bench.lessons import show
from meshrun.jobs.bench.lessons.coalescing.lesson import TimedAccess, charts
from meshrun.jobs.bench.lessons.coalescing.methods import Access
from meshrun.jobs.bench.lessons.protocol import Lesson, LessonTable
from meshrun.jobs.measure.plots import Sheet, from_zero, label_ticks, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TARGET = ROOT / "docs" / "images" / "gallery"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SCHEMES = {"dark": 0, "light": 1}  # Chromium's numbers of prefers-color-scheme
LARGEST = 150_000  # bytes of a picture


@dataclass(frozen=True)
class Page:
    """A part of a page to photograph. file: of a command. section: its only heading that stays; "": all."""

    file: str
    size: tuple[int, int]
    section: str = ""


PAGES = {
    "verdict": Page("verdict.html", (1000, 760)),
    "pairs": Page("verdict.html", (1000, 660), "Host pairs"),
    "curve": Page("verdict.html", (1000, 520), "Rates by size"),
    "timeline": Page("timeline.html", (1000, 480)),
    "lesson": Page("lesson.html", (1000, 640)),
    "scaling": Page("scaling.html", (1000, 640)),
}
FILMS = {"film": "film.webp"}  # whose last frame is the picture


def commands() -> list[str]:
    text = (ROOT / "docs" / "gallery.md").read_text()
    return re.findall(r"^\$ (.*)$", text, re.MULTILINE)


def run(command: str, folder: Path) -> None:
    """Run a command of the page. A verdict has an exit status of its own."""
    words = shlex.split(command)
    program = Path(sys.executable).with_name(words[0])
    done = subprocess.run([program, *words[1:]], cwd=folder, stdout=subprocess.DEVNULL, check=False)
    if done.returncode and words[1] != "validate":
        sys.exit(f"{command}: status {done.returncode}")


def only(page: str, heading: str) -> str:
    """The page with one of its sections, and no header."""
    sections = re.findall(r"<section>.*?</section>", page, re.DOTALL)
    (kept,) = [one for one in sections if re.search(rf"<h2[^>]*>{re.escape(heading)}", one)]
    hidden = "<style>header, main > * { display: none } main > .kept { display: block }</style>"
    shown = page.replace(kept, kept.replace("<section>", '<section class="kept">', 1))
    return shown.replace("</head>", f"{hidden}</head>")


def find_browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        sys.exit(f"no browser: expected one of {', '.join(BROWSERS)}")
    return found


def photograph(browser: str, page: Path, size: tuple[int, int], scheme: str, target: Path) -> None:
    """Photograph a page as a browser of this size shows it, cut to what is on it, in few colours."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    scheme_option = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
    window = f"--window-size={size[0]},{size[1]}"
    words = [browser, *options, scheme_option, window, f"--screenshot={target}", page.as_uri()]
    subprocess.run(words, capture_output=True, check=True, timeout=60)
    with Image.open(target) as picture:
        picture.convert("RGB").quantize(128).save(target, optimize=True)


def weak_scaling(target: Path) -> None:
    """Plot the recorded runs of benchmarks/weak_scaling.py: the time of a step on 1, 2 and 4 GPUs."""
    paths = sorted(RESULTS.glob("weak_scaling_*.json"))
    records = sorted((json.loads(path.read_text()) for path in paths), key=lambda one: one["ranks"])

    def fastest(overlap: bool) -> list[dict[str, float]]:
        of = ([row for row in record["rows"] if row["overlap"] == overlap] for record in records)
        return [min(rows, key=lambda row: row["seconds_median"]) for rows in of if rows]

    beside, after = fastest(True), fastest(False)  # one GPU exchanges with none
    alone = after[0]["kernel_median"]
    places = range(len(records))
    gpus = [str(record["ranks"]) for record in records]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.axhline(1e3 * alone, color="0.5", linestyle="--", label="the kernel alone, on one GPU")
        for label, marker, rows in (
            ("exchange, then kernel", "s", after),
            ("exchange beside the kernel", "o", beside),
        ):
            times = [1e3 * row["seconds_median"] for row in rows]
            axes.plot(places[-len(rows) :], times, marker=marker, label=label)
        label_ticks(axes, places, gpus)
        axes.set_xlim(-0.2, len(records) - 0.8)
        axes.set_xlabel("GPUs")
        axes.set_ylabel("ms a step")
        from_zero(axes)
        axes.grid(True, axis="y", color="0.9")
        axes.legend(loc="lower right")

    rows = [
        [ranks, f"{1e3 * row['seconds_median']:.3f}", f"{100 * alone / row['seconds_median']:.1f} %"]
        for ranks, row in zip(gpus[1:], beside, strict=True)
    ]
    (model,) = {device["name"] for record in records for device in record["devices"]}
    shape = " x ".join(map(str, records[0]["shape"]))
    title = f"Weak scaling: {shape} {records[0]['dtype']} on each {model}"
    save(draw, target, title, [Sheet(("GPUs", "ms a step", "efficiency"), rows)])


def coalescing(target: Path) -> None:
    """Plot the recorded run of `meshrun bench memory coalescing` on a GPU."""
    record = json.loads((RESULTS / "lesson_coalescing.json").read_text())
    timed = [
        TimedAccess(Access(one["stride"], one["first"], one["count"]), one["seconds"])
        for one in record["accesses"]
    ]
    strided = [one for one in timed if one.access.first == 0]
    misaligned = [one for one in timed if one.access.stride == 1]
    drawn = charts(record["grain_bytes"] // 4, strided, misaligned)
    tables = tuple(LessonTable(one["titles"], one["rows"], one["title"]) for one in record["tables"])
    show.draw(Lesson("coalescing", record["title"], tables, (), drawn), target)


# Files that are plotted from records, not by a command.
RECORDED = {"scaling.html": weak_scaling, "lesson.html": coalescing}


def street(folder: Path) -> None:
    """The film of the first page: the command of docs/airflow.md, its last 40 frames, compressed.

    The run's record becomes that of the page's figures.
    """
    text = (ROOT / "docs" / "airflow.md").read_text()
    (command,) = re.findall(r"^\$ (meshrun run airflow cylinder street.webp.*)$", text, re.MULTILINE)
    run(f"{command} --json {RESULTS / 'airflow_street.json'}", folder)
    with Image.open(folder / "street.webp") as film:
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(film)][-40:]
    target = ROOT / "docs" / "images" / "street.webp"
    frames[0].save(target, save_all=True, append_images=frames[1:], duration=50, loop=0, quality=40, method=6)


def main(names: list[str]) -> None:
    known = {"street", *PAGES, *FILMS}
    if not known.issuperset(names):
        sys.exit(f"no such picture: expected {', '.join(sorted(known))}")
    browser = "" if names == ["street"] else find_browser()
    wanted = {*names} or known - {"street"}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if "street" in wanted:
            street(folder)
        if wanted == {"street"}:
            return
        shutil.copy(ROOT / "examples" / "rocket.jpg", folder / "photo.jpg")
        for command in commands():
            run(command, folder)
        for file, plot in RECORDED.items():
            plot(folder / file)
        TARGET.mkdir(exist_ok=True)
        for name, page in PAGES.items():
            if name not in wanted:
                continue
            text = (folder / page.file).read_text()
            shown = folder / f"{name}-shown.html"
            shown.write_text(only(text, page.section) if page.section else text)
            for scheme in SCHEMES:
                photograph(browser, shown, page.size, scheme, TARGET / f"{name}-{scheme}.png")
        for name, film in FILMS.items():
            if name not in wanted:
                continue
            with Image.open(folder / film) as frames:
                frames.seek(frames.n_frames - 1)
                frames.convert("RGB").quantize(128).save(TARGET / f"{name}.png", optimize=True)
        large = [path.name for path in TARGET.iterdir() if path.stat().st_size > LARGEST]
        if large:
            sys.exit(f"larger than {LARGEST} bytes: {', '.join(large)}")


if __name__ == "__main__":
    main(sys.argv[1:])
