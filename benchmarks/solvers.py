"""Time steps of solvers that no kernel was tuned for, as plain functions in slices, and of the examples: used
by benchmarks/solver_rates.py.

Each entry of SOLVERS is a decorated job. `fields(name, shape)` makes its start: smooth waves and noise of the
dtype in DTYPES, float32 by default, for which every solver stays bounded.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

import meshrun

EXAMPLES = Path(__file__).parents[1] / "examples"

# Weights by distance of a second derivative of order 8 (B. Fornberg, Mathematics of Computation 51, 1988).
EIGHTH = (-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560)


def part(block: Any, halo: int, offsets: dict[int, int] | None = None) -> Any:
    """Return the cells of a block without its halo, shifted along some axes."""
    at = offsets or {}
    shifts = (at.get(axis, 0) for axis in range(block.ndim))
    return block[tuple(slice(halo + shift, shift - halo or None) for shift in shifts)]


def eighth_order_laplacian(block: Any) -> Any:
    """Return the sum of second derivatives along all axes; halo 4."""
    total = block.ndim * EIGHTH[0] * part(block, 4)
    for axis in range(block.ndim):
        for distance, weight in enumerate(EIGHTH[1:], 1):
            total = total + weight * (part(block, 4, {axis: distance}) + part(block, 4, {axis: -distance}))
    return total


def laplacian(block: Any) -> Any:
    """Return the sum of differences to the neighbours along all axes; one cell less on each side."""
    total = -2 * block.ndim * part(block, 1)
    for axis in range(block.ndim):
        total = total + part(block, 1, {axis: 1}) + part(block, 1, {axis: -1})
    return total


@meshrun.map_blocks(halo=1, boundary="reflect")
def heat(u):
    """Take one step of the heat equation."""
    return part(u, 1) + 0.1 * laplacian(u)


@meshrun.map_blocks(halo=4, boundary="wrap", outputs=("after", "old"), feeds=("now", "before"))
def acoustic(now, before, speed):
    """Take one step of the wave equation, of order 8 in space, with a speed of its own in each cell."""
    centre = part(now, 4)
    return 2 * centre - part(before, 4) + part(speed, 4) * eighth_order_laplacian(now), centre


@meshrun.map_blocks(halo=2, boundary="wrap")
def cahn_hilliard(c):
    """Take one step of phase separation: the chemical potential, and its Laplacian."""
    inner = part(c, 1)
    potential = inner * inner * inner - inner - 0.5 * laplacian(c)
    return part(c, 2) + 0.01 * laplacian(potential)


@meshrun.map_blocks(halo=1, boundary="wrap", outputs=("next_u", "next_v"), feeds=("u", "v"))
def gray_scott(u, v):
    """Take one step of the Gray-Scott model."""
    here_u, here_v = part(u, 1), part(v, 1)
    reaction = here_u * here_v * here_v
    return (
        here_u + 0.1 * laplacian(u) - reaction + 0.037 * (1 - here_u),
        here_v + 0.05 * laplacian(v) + reaction - 0.097 * here_v,
    )


def advected(u: Any, v: Any) -> tuple[Any, Any]:
    """Return the rates of change of two velocities by Burgers' equation; one cell less on each side."""

    def rate(w: Any) -> Any:
        along = part(w, 1, {1: 1}) - part(w, 1, {1: -1})
        across = part(w, 1, {0: 1}) - part(w, 1, {0: -1})
        return 0.1 * laplacian(w) - 0.05 * (part(u, 1) * along + part(v, 1) * across)

    return rate(u), rate(v)


@meshrun.map_blocks(halo=2, boundary="wrap", outputs=("next_u", "next_v"), feeds=("u", "v"))
def burgers(u, v):
    """Take one step of Burgers' equation by the midpoint rule, a Runge-Kutta method of two stages."""
    first_u, first_v = advected(u, v)
    second_u, second_v = advected(part(u, 1) + 0.5 * first_u, part(v, 1) + 0.5 * first_v)
    return part(u, 2) + second_u, part(v, 2) + second_v


@meshrun.map_blocks(
    halo=1, boundary="wrap", outputs=("next_h", "next_hu", "next_hv"), feeds=("h", "hu", "hv")
)
def shallow_water(h, hu, hv):
    """Take one step of the shallow water equations in conserved variables (Lax and Friedrichs)."""

    def mean(q: Any) -> Any:
        return 0.25 * (part(q, 1, {0: 1}) + part(q, 1, {0: -1}) + part(q, 1, {1: 1}) + part(q, 1, {1: -1}))

    def change(f: Any, axis: int) -> Any:
        return part(f, 1, {axis: 1}) - part(f, 1, {axis: -1})

    u, v = hu / h, hv / h
    pressure = 0.5 * h * h
    return (
        mean(h) - 0.05 * (change(hu, 1) + change(hv, 0)),
        mean(hu) - 0.05 * (change(hu * u + pressure, 1) + change(hu * v, 0)),
        mean(hv) - 0.05 * (change(hv * u, 1) + change(hv * v + pressure, 0)),
    )


@meshrun.map_blocks(
    halo=1, boundary="wrap", outputs=("next_e", "next_hx", "next_hy"), feeds=("e", "hx", "hy")
)
def maxwell(e, hx, hy):
    """Take one step of Maxwell's equations, transverse magnetic (K. S. Yee, 1966): the magnetic field, then
    the electric field from it."""
    new_hx = hx[:, :-1] - 0.5 * (e[:, 1:] - e[:, :-1])
    new_hy = hy[:-1] + 0.5 * (e[1:] - e[:-1])
    curl = new_hy[1:, 1:-1] - new_hy[:-1, 1:-1] - new_hx[1:-1, 1:] + new_hx[1:-1, :-1]
    return part(e, 1) + 0.5 * curl, new_hx[1:-1, 1:], new_hy[1:, 1:-1]


def example(name: str) -> Any:
    """Return the job of examples/NAME.py."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


SOLVERS = {
    "heat": heat,
    "acoustic": acoustic,
    "cahn-hilliard": cahn_hilliard,
    "gray-scott": gray_scott,
    "burgers": burgers,
    "shallow-water": shallow_water,
    "maxwell": maxwell,
    "wave": example("wave"),
    "life": example("life"),
    "diffusion3d": example("diffusion3d"),
}
PLANE_ONLY = ("burgers", "shallow-water", "maxwell", "wave", "life")  # solvers of two axes
VOLUME_ONLY = ("diffusion3d",)  # solvers of three axes
DTYPES = {"life": np.uint8}


def fields(name: str, shape: tuple[int, ...]) -> list[Any]:
    """Return the start of a solver: for each input a function of the cells' indices, as broadcast rows.

    Each is an array of `shape` or one that broadcasts to it, of the solver's dtype.
    """
    random = np.random.default_rng(0)
    noise = random.random((min(shape[0], 64), *shape[1:]), np.float32)
    wave = np.sin(np.arange(shape[-1], dtype=np.float32) * np.float32(2 * np.pi * 4 / shape[-1]))
    start: dict[str, list[tuple[float, float, float]]] = {  # mean, of the wave, of the noise
        "heat": [(0, 1, 0.1)],
        "acoustic": [(0, 1, 0.01), (0, 1, 0.01), (0.04, 0, 0.02)],
        "cahn-hilliard": [(0, 0.1, 0.1)],
        "gray-scott": [(0.8, 0.1, 0.1), (0.1, 0.1, 0.1)],
        "burgers": [(0, 0.5, 0.05), (0.1, 0.5, 0.05)],
        "shallow-water": [(1, 0.05, 0.01), (0, 0.05, 0.01), (0, 0.02, 0.01)],
        "maxwell": [(0, 1, 0.01), (0, 0.1, 0.01), (0, 0.1, 0.01)],
        "wave": [(0, 1, 0.01), (0, 1, 0.01)],
        "life": [(0, 0, 2)],  # of whole numbers: dead or alive
        "diffusion3d": [(0, 1, 0.1), (0.05, 0, 0.1)],
    }
    made = []
    for mean, of_wave, of_noise in start[name]:
        made.append((mean + of_wave * wave + of_noise * noise).astype(DTYPES.get(name, np.float32)))
    return made
