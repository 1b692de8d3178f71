"""What an adaptive step, and sources and receivers, cost in functions of whole arrays.

    python benchmarks/whole_costs.py [--side 2048] [--steps 100] [--rounds 5] [--device cpu] [--json FILE]
    mpirun -n 2 python benchmarks/whole_costs.py

Microseconds per step of the loop of a run, medians of rounds in which a function with it and one without take
turns. adaptive: each step is as long as a maximum over all cells allows; without: of one length. points: an
acoustic wave, of order 8 in space, with 16 sources, and 512 receivers whose values are written for each step.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import meshrun
from meshrun.runner.report.record import write_json
from meshrun.runner.world.world import open_world

# Weights by distance of a second derivative of order 8 (B. Fornberg, Mathematics of Computation 51, 1988).
EIGHTH = (-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560)
SOURCES, RECEIVERS = 16, 512


def spread_heat(u, dt):
    sides = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    new = u.copy()
    new[1:-1, 1:-1] += dt * (sides - 4 * u[1:-1, 1:-1])
    new[0], new[-1] = 1, 0
    new[:, 0], new[:, -1] = new[:, 1], new[:, -2]
    return new


@meshrun.distribute
def heat(u, *, dt: float = 0.1):
    return spread_heat(u, dt)


@meshrun.distribute
def heat_adaptive(u, *, limit: float = 0.2):
    return spread_heat(u, limit / (np.max(np.abs(u)) + 1))


def move_water(h, u, v, dt):
    u[1:] -= dt * (h[1:] - h[:-1])
    v[:, 1:] -= dt * (h[:, 1:] - h[:, :-1])
    u[0] = 0
    v[:, 0] = 0
    h[:-1] -= dt * (u[1:] - u[:-1])
    h[:, :-1] -= dt * (v[:, 1:] - v[:, :-1])
    h[-1], h[:, -1] = h[-2], h[:, -2]
    return h, u, v


@meshrun.distribute(outputs=("h", "u", "v"))
def shallow_water(h, u, v, *, dt: float = 0.3):
    return move_water(h, u, v, dt)


@meshrun.distribute(outputs=("h", "u", "v"))
def shallow_water_adaptive(h, u, v, *, courant: float = 0.3):
    return move_water(h, u, v, courant / np.sqrt(1 + np.max(h)))


def moved(now, before, speed):
    centre = now[4:-4, 4:-4]
    total = 2 * EIGHTH[0] * centre
    for far, weight in enumerate(EIGHTH[1:], 1):
        down, up = now[4 + far : (far - 4) or None, 4:-4], now[4 - far : -4 - far, 4:-4]
        right, left = now[4:-4, 4 + far : (far - 4) or None], now[4:-4, 4 - far : -4 - far]
        total = total + weight * (down + up + right + left)
    new = np.zeros_like(now)
    new[4:-4, 4:-4] = 2 * centre - before[4:-4, 4:-4] + speed[4:-4, 4:-4] * total
    return new


@meshrun.distribute(outputs=("now", "before"))
def acoustic(now, before, speed):
    return moved(now, before, speed), now


def with_points(side: int) -> Any:
    """Return the acoustic wave with sources and receivers in an array of so many rows and columns."""
    middle = np.linspace(side // 8, 7 * side // 8, SOURCES).astype(int)
    sources = np.full(SOURCES, side // 4), middle
    receivers = np.full(RECEIVERS, 16), np.linspace(8, side - 9, RECEIVERS).astype(int)

    @meshrun.distribute(outputs=("now", "before"), series=("traces",))
    def acoustic_points(now, before, speed, *, step, wavelet: meshrun.Series):
        new = moved(now, before, speed)
        new[sources] += wavelet[step]
        return new, now, new[receivers]

    return acoustic_points


acoustic_2048 = with_points(2048)  # of benchmarks/wave_peers.py


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    pairs = {
        "heat, adaptive": (heat_adaptive, heat, 1, {}),
        "shallow water, adaptive": (shallow_water_adaptive, shallow_water, 3, {}),
        "acoustic, points": (
            with_points(options.side),
            acoustic,
            3,
            {"wavelet": np.sin(0.1 * np.arange(options.steps, dtype=np.float32))},
        ),
    }
    with open_world(options.device) as world:
        where = {"ranks": world.size, "devices": world.places(), "versions": world.versions()}
        first = world.rank == 0
    rows = []
    if first:
        print(f"{'function':<26}{'with us':>12}{'without us':>12}{'quotient':>10}")
    for name, (with_it, without, count, extra) in pairs.items():
        arrays = [np.full((options.side, options.side), 0.05, np.float32) for _ in range(count)]
        times: tuple[list[float], list[float]] = [], []
        for _ in range(options.rounds + 1):
            times[0].append(seconds(with_it, arrays, options, extra))
            times[1].append(seconds(without, arrays, options, {}))
        both, alone = (1e6 * statistics.median(each[1:]) for each in times)  # the first round warms up
        rows.append({"function": name, "with_us": both, "without_us": alone, "quotient": both / alone})
        if first:
            print(f"{name:<26}{both:12.1f}{alone:12.1f}{both / alone:10.3f}", flush=True)
    if options.json and first:
        measured = {key: getattr(options, key) for key in ("side", "steps", "rounds")}
        record = {"benchmark": "whole_costs", **measured, **where, "rows": rows}
        write_json(options.json, "benchmark", 1, record)


def seconds(job: Any, arrays: list[Any], options: argparse.Namespace, extra: dict[str, Any]) -> float:
    """Return the seconds per step of a run on these arrays."""
    with tempfile.TemporaryDirectory() as folder:
        fields = [np.empty_like(one) for one, _ in zip(arrays, job.output_names, strict=False)]
        outputs = [*fields, *(str(Path(folder) / f"{name}.npy") for name in job.series)]
        record = job.run(arrays, outputs, steps=options.steps, device=options.device, fuse="require", **extra)
    return record["steps"]["seconds"] / options.steps


if __name__ == "__main__":
    main()
