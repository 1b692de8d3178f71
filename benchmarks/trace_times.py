"""Times of the host: to trace and plan a function of about 100 lines, and to call a function again.

    python benchmarks/trace_times.py [--side 512] [--calls 2000] [--rounds 15] [--json FILE]

trace: call the function with stand-ins. plan: choose what stages write, their order and halos. Both without
compiling kernels. A call: of 32 x 32 float32 cells in this process, on one rank, for the second time; beside
it, the same function as NumPy runs it.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import spread

import meshrun
from meshrun.runner.compiler.inferred_halo import with_inferred_halo
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.plan.task import plan_task
from meshrun.runner.programs.stages import plan_program
from meshrun.runner.report.record import write_json


def flux_x(h, hu, hv, g):
    u = hu / h
    return hu, hu * u + 0.5 * g * h * h, hv * u


def flux_y(h, hu, hv, g):
    v = hv / h
    return hv, hu * v, hv * v + 0.5 * g * h * h


def edges(h, hu, hv):
    # The surface is level at the walls.
    h[0, :] = h[1, :]
    h[-1, :] = h[-2, :]
    h[:, 0] = h[:, 1]
    h[:, -1] = h[:, -2]
    # Nothing flows through walls, and they do not slow the flow along them.
    hu[:, 0] = -hu[:, 1]
    hu[:, -1] = -hu[:, -2]
    hu[0, :] = hu[1, :]
    hu[-1, :] = hu[-2, :]
    hv[0, :] = -hv[1, :]
    hv[-1, :] = -hv[-2, :]
    hv[:, 0] = hv[:, 1]
    hv[:, -1] = hv[:, -2]


def half_x(q, flux, dt, dx):
    return 0.5 * (q[:, 1:] + q[:, :-1]) - 0.5 * dt / dx * (flux[:, 1:] - flux[:, :-1])


def half_y(q, flux, dt, dy):
    return 0.5 * (q[1:, :] + q[:-1, :]) - 0.5 * dt / dy * (flux[1:, :] - flux[:-1, :])


def friction(h, hu, hv, dt, drag):
    speed = np.sqrt((hu / h) ** 2 + (hv / h) ** 2)
    slow = 1.0 / (1.0 + dt * drag * speed / h)
    hu *= slow
    hv *= slow


def turn(hu, hv, dt, rotation):
    old = hu.copy()
    hu += dt * rotation * hv
    hv -= dt * rotation * old


def slope(h, hu, hv, bed, dt, dx, dy, g):
    hu[1:-1, 1:-1] -= dt * g * h[1:-1, 1:-1] * (bed[1:-1, 2:] - bed[1:-1, :-2]) / (2 * dx)
    hv[1:-1, 1:-1] -= dt * g * h[1:-1, 1:-1] * (bed[2:, 1:-1] - bed[:-2, 1:-1]) / (2 * dy)


def smooth(q, nu):
    q[1:-1, 1:-1] += nu * (q[2:, 1:-1] + q[:-2, 1:-1] + q[1:-1, 2:] + q[1:-1, :-2] - 4 * q[1:-1, 1:-1])


def dry_cells(h, hu, hv, dry):
    wet = h > dry
    hu[~wet] = 0
    hv[~wet] = 0
    h[...] = np.maximum(h, dry)


@meshrun.distribute(outputs=("h", "hu", "hv"))
def shallow_water(
    h,
    hu,
    hv,
    bed,
    *,
    dt: float = 0.01,
    dx: float = 1.0,
    dy: float = 1.0,
    g: float = 9.81,
    drag: float = 1e-3,
    rotation: float = 1e-2,
    nu: float = 0.01,
    dry: float = 1e-3,
):
    """Take a step of two stages (Lax and Wendroff), with a bed, friction, rotation and walls."""
    edges(h, hu, hv)
    # Half a step along each axis
    fx = flux_x(h, hu, hv, g)
    hx, hux, hvx = half_x(h, fx[0], dt, dx), half_x(hu, fx[1], dt, dx), half_x(hv, fx[2], dt, dx)
    fy = flux_y(h, hu, hv, g)
    hy, huy, hvy = half_y(h, fy[0], dt, dy), half_y(hu, fy[1], dt, dy), half_y(hv, fy[2], dt, dy)
    # The whole step, with the fluxes of the half
    gx, gy = flux_x(hx, hux, hvx, g), flux_y(hy, huy, hvy, g)
    for q, a, b in zip((h, hu, hv), gx, gy, strict=True):
        across = (a[1:-1, 1:] - a[1:-1, :-1]) / dx
        down = (b[1:, 1:-1] - b[:-1, 1:-1]) / dy
        q[1:-1, 1:-1] -= dt * (across + down)
    slope(h, hu, hv, bed, dt, dx, dy, g)
    friction(h, hu, hv, dt, drag)
    turn(hu, hv, dt, rotation)
    for q in (h, hu, hv):
        smooth(q, nu)
    dry_cells(h, hu, hv, dry)
    edges(h, hu, hv)
    return h, hu, hv


@meshrun.distribute
def heat(u, *, rate: float = 0.1):
    new = u.copy()
    new[1:-1, 1:-1] += rate * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    return new


@meshrun.map_blocks(halo=1, boundary="nearest")
def heat_blocks(u, *, rate: float = 0.1):
    sides = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    return u[1:-1, 1:-1] + rate * (sides - 4 * u[1:-1, 1:-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=512, help="cells of an axis of the planned function")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()

    planning = [planned(options.side) for _ in range(options.rounds + 1)]
    first, later = planning[0], list(zip(*planning[1:], strict=True))
    stages = {
        name: spread(times) for name, times in zip(("trace_ms", "plan_ms", "both_ms"), later, strict=True)
    }
    print(f"{'function':<22}{'':>10}{'median':>10}{'min':>10}{'max':>10}")
    for name, times in stages.items():
        print(
            f"{'shallow water':<22}{name:>10}"
            + "".join(f"{times[k]:10.1f}" for k in ("median", "min", "max"))
        )

    u = np.random.default_rng(0).random((32, 32), np.float32)
    functions: dict[str, Callable[[], Any]] = {
        "NumPy alone": lambda: heat.function(u),
        "distribute": lambda: heat(u),
        "map_blocks": lambda: heat_blocks(u),
    }
    calls = {name: called(function, options.calls) for name, function in functions.items()}
    for name, times in calls.items():
        print(f"{name:<22}{'call_us':>10}" + "".join(f"{times[k]:10.1f}" for k in ("median", "min", "max")))

    if options.json:
        record = {
            "benchmark": "trace_times",
            "machine": f"{CpuBackend().device.name}, {os.cpu_count()} CPUs, {platform.platform()}",
            "versions": {
                "python": platform.python_version(),
                "numpy": np.__version__,
                "meshrun": version("meshrun"),
            },
            "side": options.side,
            "calls": options.calls,
            "rounds": options.rounds,
            "first_ms": first[-1],
            **stages,
            "call_us": calls,
        }
        write_json(options.json, "benchmark", 1, record)


def planned(side: int) -> tuple[float, float, float]:
    """Return the milliseconds to trace the function, to plan it, and for both."""
    types, parameters = [((side, side), np.dtype(np.float64))] * 4, shallow_water.complete({})
    begin = time.perf_counter()
    job = with_inferred_halo(shallow_water, types, parameters)
    traced = time.perf_counter()
    plan_task(job, parameters, types, 1)
    plan_program(job.program)
    end = time.perf_counter()
    return 1e3 * (traced - begin), 1e3 * (end - traced), 1e3 * (end - begin)


def called(function: Callable[[], Any], calls: int) -> dict[str, float]:
    """Return the microseconds of a call after the first two."""
    times = []
    for _ in range(calls + 2):
        begin = time.perf_counter()
        function()
        times.append(1e6 * (time.perf_counter() - begin))
    return spread(times[2:])


if __name__ == "__main__":
    main()
