r"""Run flows with published figures through the job airflow, with its defaults; print a table, write JSON.

    python benchmarks/airflow_flows.py FOLDER [--cases NAME ...] [--scale F] [--device cpu|cuda] [--limit S]

Each case is a process of its own with a time limit, and leaves FOLDER/NAME.json and, of its forces,
FOLDER/NAME.csv: a case whose JSON file is there is not run again. --scale multiplies all cells of a length.
docs/airflow.md has the figures, and names the papers.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

Box = tuple[float, ...]  # width, height and depth, in lengths


@dataclass(frozen=True)
class Case:
    """A flow and what is published of it.

    shape: SHAPE, or what makes its file in a folder, from the cells of a length. reynolds: of the length.
    cells: of the length, at scale 1. box: the domain, in lengths. times: how long the flow is followed, in
    lengths over its speed. expected: ranges of figures. options: other options of the job.
    """

    shape: str | Callable[[Path, int, Box], Path]
    reynolds: float
    cells: int
    box: Box
    times: float
    expected: dict[str, tuple[float, float]]
    options: dict[str, Any] = field(default_factory=dict)


def blocks(places: Sequence[tuple[float, float]], outline: str) -> Callable[[Path, int, Box], Path]:
    """Return what writes an array of squares or circles of a length, at fractions (x, y) of the domain; an
    offset of lengths from its middle row is given by y."""

    def write(folder: Path, cells: int, box: Box) -> Path:
        width, height = (round(one * cells) for one in box)
        rows, columns = np.ogrid[:height, :width]
        solid = np.zeros((height, width), np.uint8)
        for x, y in places:
            row, column = (height - 1) / 2 + y * cells, round(x * cells) - 0.5
            far = abs(rows - row), abs(columns - column)
            if outline == "square":
                solid |= (far[0] < cells / 2) & (far[1] < cells / 2)
            else:
                solid |= far[0] ** 2 + far[1] ** 2 <= cells**2 / 4
        path = folder / "shape.npy"
        np.save(path, solid)
        return path

    return write


def ball(folder: Path, cells: int, box: Box) -> Path:
    """Write a sphere as an STL file of 20,000 triangles; return its path."""
    count = 100
    polar = np.linspace(0, math.pi, count + 1)[:, None]
    around = np.linspace(0, 2 * math.pi, count + 1)[None, :]
    points = np.stack(np.broadcast_arrays(
        np.sin(polar) * np.cos(around), np.sin(polar) * np.sin(around), np.cos(polar)
    ), -1)  # fmt: skip
    points[:, -1] = points[:, 0]
    a, b, c, d = points[:-1, :-1], points[1:, :-1], points[1:, 1:], points[:-1, 1:]
    corners = np.concatenate([np.stack(one, -2).reshape(-1, 3, 3) for one in ((a, b, c), (a, c, d))])
    facets = np.zeros(len(corners), [("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
    facets["corners"] = corners
    path = folder / "sphere.stl"
    path.write_bytes(bytes(80) + len(facets).to_bytes(4, "little") + facets.tobytes())
    return path


TUNNEL, WIDE = (48.0, 32.0), (96.0, 80.0)
DEEP = (24.0, 14.0, 14.0)
MIDDLE, IN_FRONT = {"place": "0.4,0.5"}, {"place": "0.4,0.5,0.5"}
STEADY = {"until": "steady"}
CASES = {
    "cylinder-20": Case("cylinder", 20, 16, WIDE, 400, {"drag": (2.0, 2.1)}, STEADY | MIDDLE),
    "cylinder-40": Case("cylinder", 40, 16, WIDE, 400, {"drag": (1.50, 1.60)}, STEADY | MIDDLE),
    "cylinder-100": Case(
        "cylinder", 100, 16, WIDE, 300, {"drag": (1.32, 1.35), "strouhal": (0.164, 0.168)}, MIDDLE
    ),
    "cylinder-200": Case(
        "cylinder", 200, 16, WIDE, 300, {"drag": (1.30, 1.35), "strouhal": (0.195, 0.20)}, MIDDLE
    ),
    "cylinder-100-height-32": Case("cylinder", 100, 20, TUNNEL, 250, {}),
    "cylinder-200-height-32": Case("cylinder", 200, 20, TUNNEL, 250, {}),
    "cylinder-200-cells": Case("cylinder", 200, 20, TUNNEL, 250, {}, {"surface": "cells"}),
    "cylinder-100-fast": Case("cylinder", 100, 10, TUNNEL, 250, {}),
    "cylinder-100-slow": Case("cylinder", 100, 10, TUNNEL, 250, {}, {"speed": 0.05}),
    "square-100": Case(
        blocks([(12, 0)], "square"), 100, 20, TUNNEL, 300, {"drag": (1.46, 1.49), "strouhal": (0.146, 0.149)}
    ),
    "side-by-side-100": Case(blocks([(12, -0.85), (12, 0.85)], "circle"), 100, 20, TUNNEL, 300, {}),
    "tandem-100": Case(blocks([(12, 0), (17, 0)], "circle"), 100, 20, TUNNEL, 300, {}),
    "naca-0012": Case("airfoil:0012", 500, 80, (12.0, 10.0), 60, {"drag": (0.172, 0.178)}),
    "sphere-100": Case("sphere", 100, 16, DEEP, 60, {"drag": (1.07, 1.11)}, IN_FRONT),
    "sphere-100-stl": Case(ball, 100, 16, DEEP, 60, {"drag": (1.07, 1.11)}, IN_FRONT),
    "sphere-300": Case("sphere", 300, 16, DEEP, 120, {"drag": (0.64, 0.68)}, IN_FRONT),
}


def measure(name: str, folder: Path, scale: float, device: str) -> None:
    """Run a case and write its record."""
    from meshrun.jobs.airflow.airflow import airflow

    case = CASES[name]
    cells = round(case.cells * scale)
    speed = case.options.get("speed", 0.1)
    steps = round(case.times * cells / speed)
    options: dict[str, Any] = {
        "length": float(cells),
        "size": "x".join(str(round(one * cells)) for one in case.box),
    }
    with tempfile.TemporaryDirectory() as made:
        shape = case.shape if isinstance(case.shape, str) else str(case.shape(Path(made), cells, case.box))
        if shape.endswith(".npy"):
            del options["size"]
        begin = time.perf_counter()
        record = airflow.run(
            shape,
            device=device,
            reynolds=float(case.reynolds),
            steps=steps,
            forces=folder / f"{name}.csv",
            **options,
            **case.options,
        )
        seconds = time.perf_counter() - begin
    found = {"case": name, "scale": scale, "box": case.box, "cells": cells, "seconds": seconds}
    found |= {"result": record["result"], "warnings": record["warnings"], "steps": record["steps"]["steps"]}
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1, default=str) + "\n")


def show(name: str, folder: Path) -> bool:
    """Print a case's figures beside those published; return whether all are within them."""
    found = json.loads((folder / f"{name}.json").read_text())
    result, inside = found["result"], True
    for figure, (low, high) in CASES[name].expected.items():
        value = result.get(figure)
        good = value is not None and low <= value <= high
        inside &= good
        text = "none" if value is None else f"{value:.4f}"
        print(
            f"{name:20} {figure:10} {text:>8}  {low:g} to {high:g}  {'inside' if good else 'OUTSIDE'}"
            f"  {found['cells']} cells, {found['steps']} steps, {found['seconds']:.1f} s",
            flush=True,
        )
    others = {key: value for key, value in result.items() if key not in ("cells", "reynolds", "length")}
    print(f"{'':20} {json.dumps(others)} {found['warnings'] or ''}", flush=True)
    return inside


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of a case")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)  # the process of one case
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    if chosen.inside:
        measure(chosen.cases[0], chosen.folder, chosen.scale, chosen.device)
        return
    good = True
    for name in chosen.cases:
        if not (chosen.folder / f"{name}.json").exists():
            words = [str(chosen.folder), "--cases", name, "--scale", str(chosen.scale)]
            words += ["--device", chosen.device, "--inside"]
            try:
                subprocess.run([sys.executable, __file__, *words], timeout=chosen.limit, check=True)
            except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as reason:
                print(f"{name:20} failed: {reason}", flush=True)
                good = False
                continue
        good &= show(name, chosen.folder)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
