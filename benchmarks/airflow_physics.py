r"""Compare flows of jobs/airflow with exact solutions and with the literature; print a table, write JSON.

    python3 benchmarks/airflow_physics.py [--device cuda] [--json FILE] [NAME ...]

Each case is a function of its size, so that tests run it small. It returns the flow's figures as a dict.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.jobs.airflow import moments
from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.lattice import D2Q9, LATTICES, Lattice
from meshrun.jobs.airflow.step import SOUND, Collision, step_job
from meshrun.jobs.airflow.units import MAGIC

Array = np.ndarray[Any, Any]
# U. Ghia, K. N. Ghia, C. T. Shin, J. Comput. Phys. 48 (1982), 387-411, table I: of the vertical centreline,
# the least velocity along x over that of the lid, and its height. At Reynolds number 100 theirs is 1.4 %
# short: second-order differences (cavity_reference.py), extrapolated from 64 and 128 cells, give -0.2140
# (400: -0.3286), and so does the flow here as cells get smaller.
GHIA = {100: (-0.2109, 0.4531), 400: (-0.3273, 0.2813), 1000: (-0.3829, 0.1719)}


def magic_rates(viscosity: float, magic: float = MAGIC) -> dict[str, float]:
    """Relaxation rates of a viscosity, with (1 / omega - 1/2)(1 / omega_minus - 1/2) = magic."""
    return {"omega": 1 / (3 * viscosity + 0.5), "omega_minus": 1 / (magic / (3 * viscosity) + 0.5)}


def run(
    cells: Array,
    start: Sequence[Array],
    steps: int,
    rates: dict[str, float],
    *,
    lattice: Lattice = D2Q9,
    collision: Collision = "trt",
    wind: Array | None = None,
    every: int | None = None,
    xp: Any = np,
) -> Any:
    """Take steps from a state; return the populations, or an iterator over them, as NumPy arrays."""
    storage = start[0].dtype
    job = step_job(lattice, np.unique(cells).tolist(), collision, storage, profile=wind is not None)
    job = replace(job, fuse="require")
    given = {one.name: rates[one.name] for one in job.parameters if one.name in rates}
    arrays = [xp.asarray(one) for one in (*start, cells, *([] if wind is None else [wind]))]

    def on_host(populations: Any) -> list[Array]:
        return [one if xp is np else xp.asnumpy(one) for one in populations]

    if every is None:
        return on_host(job.iterate(*arrays, steps=steps, **given))
    return map(on_host, job.iterate(*arrays, steps=steps, every=every, **given))


def at_rest(shape: tuple[int, ...], lattice: Lattice = D2Q9) -> list[Array]:
    return [np.zeros(shape, np.float32)] * lattice.size


def channel(height: int, length: int) -> Array:
    """Walls at rest above and below `height` rows."""
    cells = np.zeros((height + 2, length), np.uint8)
    cells[0] = cells[-1] = Cell.SOLID
    return cells


def extremum(values: Array) -> tuple[float, float]:
    """The least value and its place, of the parabola through the least three."""
    n = int(values.argmin())
    a, b, c = (float(value) for value in values[n - 1 : n + 2])
    shift = (a - c) / (2 * (a - 2 * b + c))
    return b - (a - c) * shift / 4, n + shift


def cavity(
    reynolds: float, size: int, speed: float = 0.1, turnovers: float = 60, xp: Any = np
) -> dict[str, float]:
    """A box of fluid under a moving lid: the least velocity on the vertical centreline."""
    cells = np.full((size + 2, size + 2), Cell.SOLID, np.uint8)
    cells[1:-1, 1:-1], cells[-1, 1:-1] = Cell.FLUID, Cell.MOVING
    steps = int(turnovers * size / speed)
    rates = magic_rates(speed * size / reynolds) | {"velocity_x": speed}
    states = run(cells, at_rest(cells.shape), steps, rates, every=-(-steps // 2), xp=xp)
    before, after = (moments.momentum(D2Q9, state)[1][1:-1, 1:-1] / speed for state in states)
    middle = (after[:, (size - 1) // 2] + after[:, size // 2]) / 2
    least, place = extremum(middle)
    found = {"least": least, "height": (place + 0.5) / size, "change": float(abs(after - before).max())}
    if reynolds in GHIA:
        expected, height = GHIA[int(reynolds)]
        found |= {"error": least / expected - 1, "height_error": found["height"] - height}
    return found


def taylor_green(
    size: int,
    lattice: Lattice = D2Q9,
    viscosity: float = 0.02,
    speed: float = 0.02,
    drift: float = 0.0,
    xp: Any = np,
) -> dict[str, float]:
    """Four vortices that turn against each other decay: the viscosity that this shows, over that given.

    G. I. Taylor, A. E. Green, Proc. R. Soc. London A 158 (1937), 499-521. drift: speed at which they are
    carried along x.
    """
    shape = (2,) * (lattice.axes - 2) + (size, size)
    y, x = (2 * np.pi / size * np.arange(size)[one] for one in (np.s_[:, None], np.s_[None, :]))
    u, v = drift - speed * np.cos(x) * np.sin(y), speed * np.sin(x) * np.cos(y)
    excess = -0.75 * speed**2 * (np.cos(2 * x) + np.cos(2 * y))
    fields = [np.broadcast_to(one, shape) for one in (excess, v, u)]
    velocity = [np.zeros(shape)] * (lattice.axes - 2) + fields[1:]
    k = 2 * np.pi / size
    steps = round(0.5 / (2 * viscosity * k**2))  # to 0.6 of the speed
    states = run(
        np.zeros(shape, np.uint8),
        moments.equilibrium(lattice, fields[0], velocity),
        2 * steps,
        magic_rates(viscosity),
        lattice=lattice,
        every=steps,
        xp=xp,
    )
    one, other = (
        float(np.square(moments.momentum(lattice, state)[-2], dtype=float).sum()) for state in states
    )
    return {"error": float(np.log(one / other)) / (4 * viscosity * k**2 * steps) - 1}


def decaying_channel(height: int, viscosity: float = 0.1, xp: Any = np) -> dict[str, float]:
    """Flow along x, a half sine between walls, decays at viscosity (pi / height)^2."""
    cells = channel(height, 2)
    profile = np.zeros(cells.shape)
    profile[1:-1] = 0.02 * np.sin(np.pi * (np.arange(height) + 0.5) / height)[:, None]
    rate = viscosity * (np.pi / height) ** 2
    steps = round(0.5 / rate)
    start = moments.equilibrium(D2Q9, np.zeros(cells.shape), [np.zeros(cells.shape), profile])
    states = run(cells, start, 2 * steps, magic_rates(viscosity, 1 / 4), every=steps, xp=xp)
    one, other = (float((moments.momentum(D2Q9, state)[1][1:-1] * profile[1:-1]).sum()) for state in states)
    return {"error": float(np.log(one / other)) / (rate * steps) - 1}


def couette(height: int, speed: float = 0.05, xp: Any = np) -> dict[str, float]:
    """Flow between a wall at rest and a moving one."""
    cells = channel(height, 2)
    cells[-1] = Cell.MOVING
    viscosity = 0.2
    steps = round(1.5 * height**2 / viscosity)
    state = run(cells, at_rest(cells.shape), steps, magic_rates(viscosity) | {"velocity_x": speed}, xp=xp)
    expected = (np.arange(height) + 0.5) / height
    return {"error": float(abs(moments.momentum(D2Q9, state)[1][1:-1, 0] / speed - expected).max())}


def poiseuille(height: int, speed: float = 0.05, viscosity: float = 0.1, xp: Any = np) -> dict[str, float]:
    """A channel with a parabolic inlet and an outflow: profile and fall of pressure half way along it."""
    length = 4 * height
    cells, wind = channel(height, length), np.zeros((height + 2, length), np.float32)
    cells[:, 0], cells[1:-1, -1] = Cell.MOVING, Cell.OUTFLOW
    y = (np.arange(height) + 0.5) / height
    parabola = 4 * y * (1 - y)
    wind[1:-1] = parabola[:, None]
    uniform = np.zeros(cells.shape)
    uniform[1:-1] = speed * parabola[:, None]
    start = moments.equilibrium(D2Q9, np.zeros(cells.shape), [np.zeros(cells.shape), uniform])
    rates = magic_rates(viscosity) | {"velocity_x": speed, "outflow": SOUND + 2 / 3 * speed, "anchor": 0.02}
    state = run(cells, start, round(1.5 * height**2 / viscosity), rates, wind=wind, xp=xp)
    middle = length // 2
    across, along = (one[1:-1] / speed for one in moments.momentum(D2Q9, state))
    velocity = along[:, middle]
    pressure = moments.pressure(state)[1:-1].astype(float).mean(axis=0)
    slope = (pressure[middle + height // 2] - pressure[middle - height // 2]) / (height // 2 * 2)
    return {
        "error": float(abs(velocity - parabola).max()),
        "sideways": float(abs(across[:, 1:middle]).max()),
        "pressure_error": slope / (-8 * viscosity * speed / height**2) - 1,
    }


def reflection(
    width: float, outflow: float, speed: float = 0.1, anchor: float = 0.0, xp: Any = np
) -> dict[str, float]:
    """A pulse of sound leaves with the flow: what comes back, over what was sent."""
    length = 400
    cells = np.zeros((3, length), np.uint8)
    cells[:, 0], cells[:, -1] = Cell.MOVING, Cell.OUTFLOW
    pulse = np.broadcast_to(1e-3 * np.exp(-(((np.arange(length) - 200) / width) ** 2)), cells.shape)
    start = moments.equilibrium(D2Q9, pulse, [np.zeros(cells.shape), speed + SOUND * pulse])
    rates = {"omega": 1.9, "omega_minus": 1.5, "velocity_x": speed, "outflow": outflow, "anchor": anchor}
    state = run(cells, start, 550, rates, xp=xp)
    return {"reflected": float(abs(moments.excess(state)[1, 150:380]).max() / 1e-3)}


def side_reflection(adapt: float, width: float = 20, axis: int = -2, xp: Any = np) -> dict[str, float]:
    """A pulse of sound meets a wall without friction at a right angle: what comes back, over what was sent.

    axis: normal to the wall; -2 on D2Q9, -3 on D3Q19.
    """
    lattice, kinds = (D2Q9, (Cell.SLIP, Cell.SLIP_END))
    if axis == -3:
        lattice, kinds = LATTICES["D3Q19"], (Cell.SLIP_Z, Cell.SLIP_Z_END)
    shape = (400, *(4,) * (lattice.axes - 1))  # of an array whose first axis is normal to the wall
    cells = np.zeros(shape, np.uint8)
    cells[0], cells[-1] = kinds
    pulse = 1e-3 * np.exp(-(((np.arange(400) - 200) / width) ** 2))
    pulse = np.broadcast_to(pulse.reshape(-1, *(1,) * (lattice.axes - 1)), shape)
    velocity = [SOUND * pulse, *[0 * pulse] * (lattice.axes - 1)]
    start = moments.equilibrium(lattice, pulse, velocity)
    rates = {"omega": 1.9, "omega_minus": 1.5, "adapt": adapt}
    state = run(cells, start, round(300 / SOUND), rates, lattice=lattice, xp=xp)  # 100 cells back
    return {"reflected": float(abs(moments.excess(state)[150:-1]).max() / 1e-3)}


CASES: dict[str, Callable[..., dict[str, float]]] = {
    **{
        f"cavity, Reynolds number {reynolds}, {size} cells": lambda xp, reynolds=reynolds, size=size: cavity(
            reynolds, size, xp=xp
        )
        for reynolds, size in ((100, 128), (400, 128), (400, 256), (1000, 128))
    },
    **{
        f"Taylor-Green, {name}, {size} cells": lambda xp, name=name, size=size: taylor_green(
            size, LATTICES[name], xp=xp
        )
        for name, size in (("D2Q9", 64), ("D2Q9", 128), ("D3Q19", 64), ("D3Q27", 64))
    },
    "Taylor-Green, D2Q9, 128 cells, carried along": lambda xp: taylor_green(128, drift=0.05, xp=xp),
    **{
        f"decay between walls, {size} cells": lambda xp, size=size: decaying_channel(size, xp=xp)
        for size in (8, 16, 32, 64)
    },
    **{f"Couette, {size} cells": lambda xp, size=size: couette(size, xp=xp) for size in (16, 64)},
    **{f"Poiseuille, {size} cells": lambda xp, size=size: poiseuille(size, xp=xp) for size in (16, 32, 64)},
    **{
        f"sound at the outflow, pulse of {width} cells, speed {outflow:.2f}, anchor {anchor}": (
            lambda xp, width=width, outflow=outflow, anchor=anchor: reflection(
                width, outflow, anchor=anchor, xp=xp
            )
        )
        for width in (5, 20)
        for outflow, anchor in ((SOUND + 0.1, 0.0), (SOUND + 0.1, 0.01), (0.2, 0.0))
    },
    **{
        f"sound at the sides that follow with {adapt}": lambda xp, adapt=adapt: side_reflection(adapt, xp=xp)
        for adapt in (0.0, 1 / 800, 1.0)
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only cases whose name contains this")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, help="file for the results as JSON")
    chosen = parser.parse_args()
    xp: Any = np
    if chosen.device == "cuda":
        import cupy

        xp = cupy
    results = []
    for name, case in CASES.items():
        if chosen.names and not any(part in name for part in chosen.names):
            continue
        begin = time.perf_counter()
        found = case(xp=xp)
        seconds = time.perf_counter() - begin
        results.append({"case": name, **found, "seconds": seconds})
        figures = ", ".join(f"{key} {value:.5g}" for key, value in found.items())
        print(f"{name:70} {figures}  ({seconds:.1f} s)", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps({"device": chosen.device, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
