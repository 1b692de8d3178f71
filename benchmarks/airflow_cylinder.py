"""Flows around a cylinder against published figures, on one device.

    python benchmarks/airflow_cylinder.py [--device host|cuda|numpy] [--only CASE ...] [--diameters N ...]
    [--json FILE]

2D-1 and 2D-2: M. Schaefer, S. Turek, Benchmark computations of laminar flow around a cylinder (1996); their
figures with more digits from FeatFlow's benchmark pages. free: Strouhal number of a cylinder in unbounded
flow at Reynolds number 100, 0.160 to 0.170 (C. H. K. Williamson, J. Fluid Mech. 206 (1989): 0.164).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "facts"))

from flow_runs import Flow, channel, free, simulate

from meshrun.jobs.airflow.coefficients import shedding, write_csv
from meshrun.jobs.airflow.shapes.bodies import of_cells
from meshrun.runner.report.record import write_json


@dataclass(frozen=True)
class Case:
    """flow: of a diameter. times: how long it runs, in diameters by the speed. expected: name of a figure to
    its published range. diameters: in cells."""

    flow: Callable[[int], Flow]
    times: float
    expected: dict[str, tuple[float, float]]
    diameters: tuple[int, ...]


def around(value: float, part: float = 0.01) -> tuple[float, float]:
    return value * (1 - part), value * (1 + part)


CASES = {
    "2D-1": Case(
        lambda d: channel(d, 20, 0.05),
        60,
        {"drag": around(5.5795), "lift": (0.0104, 0.0110)},
        (10, 20, 40, 80),
    ),
    "2D-2": Case(
        lambda d: channel(d, 100, 0.05),
        150,
        {"greatest_drag": around(3.2274), "greatest_lift": (0.99, 1.01), "strouhal": around(0.3018)},
        (20, 40, 80),
    ),
    "free": Case(lambda d: free(d, 100, 0.1), 250, {"strouhal": (0.160, 0.170)}, (10, 20)),
}


def half_way(flow: Flow) -> Flow:
    """The same flow with the wall half way on each link, as of a picture."""
    body = flow.body
    cells = of_cells(body.name, body.shape, body.solid, body.length)
    return replace(flow, body=replace(cells, reference=body.reference))


def measure(case: Case, flow: Flow, device: str, csv: Path | None) -> dict[str, Any]:
    steps = round(case.times * flow.length_steps / 200) * 200
    every = max(2, round(flow.length_steps / 40) * 2)  # 20 samples in the time of a diameter
    begin = time.perf_counter()
    history = simulate(flow, steps, every, device)
    seconds = time.perf_counter() - begin
    if csv is not None:
        write_csv(history, csv)
    found = {"cells": list(flow.cells.shape), "steps": steps, "seconds": seconds}
    if "strouhal" in case.expected:
        return {**found, **vars(shedding(history))}
    later = history.time > 0.9 * case.times
    spread = float(history.drag[later].max() - history.drag[later].min())
    return {**found, "drag": float(history.drag[-1]), "lift": float(history.lift[-1]), "spread": spread}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["host", "cuda", "numpy"], default="host")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--diameters", nargs="+", type=int)
    parser.add_argument("--half-way", action="store_true", help="with walls half way on each link")
    parser.add_argument("--csv", type=Path, help="folder for the coefficients over time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.only:
        case = CASES[name]
        for diameter in options.diameters or case.diameters:
            flow = half_way(case.flow(diameter)) if options.half_way else case.flow(diameter)
            csv = options.csv / f"{name}-{diameter}.csv" if options.csv else None
            row = {"case": name, "diameter": diameter, **measure(case, flow, options.device, csv)}
            rows.append(row)
            if options.json:
                facts = {
                    "benchmark": "airflow_cylinder",
                    "device": options.device,
                    "half_way": options.half_way,
                }
                write_json(options.json, "benchmark", 1, {**facts, "rows": rows})
            for figure, (low, high) in case.expected.items():
                value, inside = row[figure], low <= row[figure] <= high
                extra = f" +- {row['uncertainty']:.5f}" if figure == "strouhal" else ""
                print(
                    f"{name}  {diameter:4} cells  {figure:13} {value:.5f}{extra}  {low:.4f} to {high:.4f}"
                    f"  {'inside' if inside else 'outside'}  {row['seconds']:.1f} s, {row['steps']} steps",
                    flush=True,
                )


if __name__ == "__main__":
    main()
