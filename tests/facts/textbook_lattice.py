"""The lattice-Boltzmann method as textbooks write it: float64, numpy.roll, loops over velocities.

Shares nothing with jobs/airflow but the order of velocities: populations are not shifted by their weights,
pairs share no terms, and each population relaxes on its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def weight(velocity: tuple[int, ...], populations: int) -> float:
    """The weight of a velocity on D2Q9, D3Q19 or D3Q27."""
    if populations == 19:
        return {0: 12, 1: 2, 2: 1}[sum(map(abs, velocity))] / 36
    found = 1.0
    for component in velocity:  # a product of one-dimensional weights
        found *= 1 / 6 if component else 2 / 3
    return found


def equilibrium(velocities: list[tuple[int, ...]], density: Array, velocity: Array) -> list[Array]:
    """f_eq = w (rho + 3 e.u + 9/2 (e.u)^2 - 3/2 u.u)."""
    found = []
    for e in velocities:
        along = sum(component * u for component, u in zip(e, velocity, strict=True))
        length = (velocity**2).sum(axis=0)
        found.append(weight(e, len(velocities)) * (density + 3 * along + 4.5 * along**2 - 1.5 * length))
    return found


def step(
    velocities: list[tuple[int, ...]],
    f: list[Array],
    cells: Array,
    *,
    omega: float,
    omega_minus: float,
    wall: tuple[float, ...] = (),
    wind: Array | float = 1.0,
    outflow: float = 0.0,
    anchor: float = 0.0,
    les: float = 0.0,
    adapt: float = 1.0,
) -> list[Array]:
    """One step of populations after a collision: stream, collide, boundaries.

    cells: 0 fluid, 1 solid, 2 moving, 3 outflow, 4 and 7 slip before and behind the fluid along y, 5 and 8
    along z, 6 damped. wall:
    velocity of moving cells, times `wind` half way to the cell that a population goes to. adapt: rate at
    which slip cells follow the pressure on the side of the fluid.
    """
    axes, number = tuple(range(cells.ndim)), {e: n for n, e in enumerate(velocities)}
    weights = [weight(e, len(velocities)) for e in velocities]
    came = [np.roll(one, e, axes) for one, e in zip(f, velocities, strict=True)]
    density = np.sum(came, axis=0)
    velocity = np.array([sum(e[a] * one for e, one in zip(velocities, came, strict=True)) for a in axes])
    balance = equilibrium(velocities, density, velocity)
    plus: Any = omega
    if les:
        norm = np.zeros(cells.shape)
        for a in axes:
            for b in axes:
                stress = sum(
                    e[a] * e[b] * (one - other)
                    for e, one, other in zip(velocities, came, balance, strict=True)
                )
                norm += stress**2
        tau = (1 / omega + np.sqrt(1 / omega**2 + 18 * np.sqrt(2) * les**2 * np.sqrt(norm))) / 2
        plus = 1 / tau
    after = []
    for n, e in enumerate(velocities):
        back = number[tuple(-x for x in e)]
        even = (came[n] - balance[n]) + (came[back] - balance[back])
        odd = (came[n] - balance[n]) - (came[back] - balance[back])
        collided = came[n] - plus * even / 2 - omega_minus * odd / 2
        result = np.where(cells == 0, collided, came[n])
        result = np.where((cells == 1) | (cells == 2), came[back], result)
        if wall:
            push = 6 * weights[n] * sum(x * u for x, u in zip(e, wall, strict=True))
            half_way = (wind + np.roll(wind, [-x for x in e], axes)) / 2 if np.ndim(wind) else wind
            result = np.where(cells == 2, came[back] + push * half_way, result)
        result = np.where(cells == 6, balance[n], result)
        for kind, axis, sign in ((4, -2, -1), (7, -2, 1), (5, -3, -1), (8, -3, 1)):
            if (cells == kind).any():
                result = np.where(cells == kind, _slipped(velocities, came, n, axis, sign, adapt), result)
        if e[-1] < 0:
            convected = outflow * np.roll(f[n], 1, -1) + (1 - outflow) * f[n]
            result = np.where(cells == 3, convected, result)
        after.append(result)
    if anchor:
        rest = sum(w for w, e in zip(weights, velocities, strict=True) if e[-1])
        flux = sum(one for one, e in zip(after, velocities, strict=True) if e[-1]) - rest
        mass = sum(e[-1] * one for one, e in zip(after, velocities, strict=True))
        for n, e in enumerate(velocities):
            if e[-1] < 0:
                after[n] = np.where(
                    cells == 3, after[n] - weights[n] * anchor * 3 * (flux - mass**2), after[n]
                )
    return after


def _slipped(
    velocities: list[tuple[int, ...]], came: list[Array], n: int, axis: int, sign: int, adapt: float
) -> Array:
    """Population n of a wall towards which velocities have this sign: reflected, less what has changed."""
    weights = [weight(e, len(velocities)) for e in velocities]
    towards = [m for m, v in enumerate(velocities) if v[axis] == sign]
    change = sum(came[m] - weights[m] for m in towards) - (came[0] - weights[0])
    e = list(velocities[n])
    if e[axis]:
        e[axis] = sign
        absorbed = 2 / (1 + 3**-0.5) * (1 - adapt) * weights[n] / sum(weights[m] for m in towards)
        return came[velocities.index(tuple(e))] - absorbed * change
    return came[n] + adapt * change if n == 0 else came[n]
