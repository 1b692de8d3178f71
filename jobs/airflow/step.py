"""One time step of the lattice-Boltzmann method, as a job.

The state is one array for each population: after a collision, minus its weight, so that small
differences keep their digits. A step pulls: in_i(x) = g_i(x - e_i). Then it collides, and replaces the
result in cells that are no fluid. The boundary is always "wrap": all else is made of kinds of cells.

Equilibrium: incompressible, of X. He, L.-S. Luo, J. Stat. Phys. 88 (1997), 927-944:
    g_eq_i = w_i (r + 3 e_i.j + 4.5 (e_i.j)^2 - 1.5 j.j),
with the density r = sum g_i, less 1, and the momentum j = sum e_i g_i, which is the velocity.

Collision: two relaxation times, of I. Ginzburg, F. Verhaeghe, D. d'Humieres, Communications in
Computational Physics 3 (2008), 427-478: the even part of each pair of opposite populations relaxes with
`omega`, the odd part with `omega_minus`. The kinematic viscosity is (1 / omega - 1/2) / 3.

Eddies smaller than a cell: J. Smagorinsky, Mon. Weather Rev. 91 (1963), 99-164, in the form of S. Hou,
J. Sterling, S. Chen, G. Doolen, Fields Institute Communications 6 (1996), 151-166.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from types import ModuleType
from typing import Any, Literal

import numpy as np

from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.lattice import Lattice
from meshrun.runner.errors import UserError
from meshrun.runner.job.signature import Parameter
from meshrun.runner.run.declare import DeclaredJob

Collision = Literal["trt", "bgk", "les"]
Damping = Literal["results", "factors"]
SOUND = 1 / math.sqrt(3)  # speed of sound, in cells a step
SCALE = {np.dtype(np.float32): 1.0, np.dtype(np.float16): 2.0**15}  # of stored populations, by dtype
ABSORBED = 2 / (1 + SOUND)  # part of what changes at a SLIP cell: 1 + R, where nothing of sound is reflected
# Kinds of walls without friction, before and behind the fluid, with the axis normal to them.
SLIPPING = {(Cell.SLIP, Cell.SLIP_END): -2, (Cell.SLIP_Z, Cell.SLIP_Z_END): -3}
LIMIT = 1.0  # of a population that a moving wall sends back
Values = dict[int, Any]  # by the number of a velocity


def step_job(
    lattice: Lattice,
    kinds: Collection[int],
    collision: Collision = "trt",
    storage: Any = np.float32,
    profile: bool = False,
    damping: Damping = "results",
) -> DeclaredJob[Any]:
    """Return the job of one time step.

    Its inputs are f0, f1, ... (one for each population, of dtype `storage`), `cells` (uint8, a `Cell`
    each) and, with `profile`, `wind` (float32; the velocity of MOVING cells is multiplied by it). Its
    outputs are the populations after the step, and feed the inputs. Cells of a kind that is not in `kinds`
    are computed as fluid.

    kinds: of cells that occur; others cost nothing. collision: "trt" (two relaxation times), "bgk" (one),
    or "les": as "trt", with Smagorinsky's viscosity of eddies. storage: float32, or float16 for
    populations times 2^15. It computes in float32. damping: what is chosen for DAMPED cells, with the same
    bits: "results" of a collision of their own, which a CPU leaves out of rows without such cells, or
    "factors" of one collision for all, so that a GPU needs no branch for whole columns. Raises UserError for
    what does not exist on the lattice.
    """
    occurring = frozenset(Cell(kind) for kind in kinds)
    if occurring & {Cell.SLIP_Z, Cell.SLIP_Z_END} and lattice.axes < 3:
        raise UserError("walls normal to z need three axes", got=lattice.name)
    step = _Step(lattice, occurring, collision, np.dtype(storage), damping)
    count = lattice.size

    def airflow(*blocks: Any, xp: ModuleType, **parameters: float) -> tuple[Any, ...]:
        """Take one time step of a flow. One that bursts is found by check_finite, which names the cell."""
        with np.errstate(over="ignore", invalid="ignore"):
            return step(blocks[:count], blocks[count], blocks[count + 1] if profile else None, parameters, xp)

    populations = tuple(f"f{number}" for number in range(count))
    return DeclaredJob(
        f"airflow-{lattice.name}-{collision}".lower(),
        "map",
        airflow,
        step.parameters(),
        frozenset(["xp"]),
        (*populations, "cells", *(["wind"] if profile else [])),
        output_names=tuple(f"new_{name}" for name in populations),
        feeds=populations,
        halo=1,
        boundary="wrap",
        check=step.check,
    )


@dataclass(frozen=True)
class _Step:
    lattice: Lattice
    kinds: frozenset[Cell]
    collision: Collision
    storage: np.dtype[Any]
    damping: Damping

    def parameters(self) -> tuple[Parameter, ...]:
        """Return the parameters that have an effect."""
        found = [Parameter("omega", float, None, True, "relaxation rate of even parts, 0 to 2")]
        if self.collision != "bgk":
            found.append(Parameter("omega_minus", float, None, True, "relaxation rate of odd parts, 0 to 2"))
        if self.collision == "les":
            found.append(Parameter("les", float, 0.14, False, "Smagorinsky's constant, 0.1 to 0.17"))
        if Cell.MOVING in self.kinds:
            found += [
                Parameter(f"velocity_{axis}", float, 0.0, False, "of MOVING cells, in cells a step")
                for axis in self._axis_names
            ]
        if any(self.kinds & set(kinds) for kinds in SLIPPING):
            found.append(
                Parameter("adapt", float, 1.0, False, "rate at which SLIP cells follow the pressure, 0 to 1")
            )
        if Cell.OUTFLOW in self.kinds:
            found += [
                Parameter("outflow", float, SOUND, False, "speed at which waves leave OUTFLOW cells, 0 to 1"),
                Parameter("anchor", float, 0.0, False, "rate at which the density at OUTFLOW cells nears 1"),
            ]
        return tuple(found)

    def check(self, shape: tuple[int, ...], dtype: np.dtype[Any], **parameters: float) -> None:
        """Raise UserError for populations or rates that the step is not made for."""
        if len(shape) != self.lattice.axes:
            raise UserError(f"{self.lattice.name} has {self.lattice.axes} axes", got=f"shape {shape}")
        if dtype != self.storage:
            raise UserError("populations of another dtype", got=dtype, expected=self.storage)
        for name in ("omega", "omega_minus"):
            if name in parameters and not 0 < parameters[name] < 2:
                raise UserError(
                    f"{name} is a relaxation rate", got=parameters[name], expected="above 0, below 2"
                )

    @property
    def _axis_names(self) -> str:
        return "zyx"[-self.lattice.axes :]

    def __call__(
        self, blocks: Sequence[Any], cells: Any, wind: Any, parameters: dict[str, float], xp: ModuleType
    ) -> tuple[Any, ...]:
        velocities, here = self.lattice.velocities, (0,) * self.lattice.axes
        arrived = [
            self._load(_part(block, [-e for e in one])) for block, one in zip(blocks, velocities, strict=True)
        ]
        kind_here = _part(cells, here)
        collides, damped = kind_here == int(Cell.FLUID), False
        if self._chooses_factors:
            damped = kind_here == int(Cell.DAMPED)
            collides = collides | damped
        results = collided = self._collided(arrived, parameters, xp, damped)
        for kinds, replaced in self._replaced(arrived, blocks, kind_here, wind, parameters, xp):
            is_kind = functools.reduce(operator.or_, [kind_here == int(kind) for kind in kinds])
            results = [xp.where(is_kind, new, old) for new, old in zip(replaced, results, strict=True)]
        if len(self._others) > 1:  # most cells collide: a kernel then makes one test
            results = [xp.where(~collides, new, old) for new, old in zip(results, collided, strict=True)]
        return tuple(map(self._store, results))

    @property
    def _chooses_factors(self) -> bool:
        return Cell.DAMPED in self.kinds and self.damping == "factors"

    @property
    def _others(self) -> frozenset[Cell]:
        """The kinds of cells that do not take the results of the collision."""
        return self.kinds - {Cell.FLUID, *([Cell.DAMPED] if self._chooses_factors else [])}

    # Populations are computed as they are scaled for storage. A product of two is too large by the scale, a
    # power of two: dividing by it, in a coefficient where there is one, changes no digit.

    def _load(self, stored: Any) -> Any:
        return stored if self.storage == np.float32 else stored.astype(np.float32)

    def _store(self, value: Any) -> Any:
        return value if self.storage == np.float32 else value.astype(self.storage)

    @property
    def _scale(self) -> float:
        return SCALE[self.storage]

    def _product(self, a: Any, b: Any) -> Any:
        product = a * b
        return product if self._scale == 1 else product * (1 / self._scale)

    # Collision

    def _collided(
        self, arrived: Sequence[Any], parameters: dict[str, float], xp: ModuleType, damped: Any
    ) -> list[Any]:
        """Return the populations after the collision.

        The two of a pair share their terms. The population at rest and the odd parts along axes are what the
        others leave of the density and the momentum: both are conserved but for the rounding of sums. damped:
        whether cells relax to the equilibrium: all, none, or an array of those that do.
        """
        lattice, velocities, weights = self.lattice, self.lattice.velocities, self.lattice.weights
        even = {one: arrived[one] + arrived[other] for one, other in lattice.pairs}
        odd = {one: arrived[one] - arrived[other] for one, other in lattice.pairs}
        density = _total([arrived[0], *even.values()])
        momentum = [self._moment(odd, (axis,)) for axis in range(lattice.axes)]
        squares = [j * j for j in momentum]
        omega, omega_minus = 1.0, 1.0
        if damped is not True:
            omega, omega_minus = self._rates(even, density, momentum, parameters, xp)

        def factor(slope: float, rate: Any, offset: float = 0.0) -> Any:
            """Return offset + slope * rate, with a rate of 1 where cells are damped."""
            value = offset + slope * rate if offset else slope * rate
            if isinstance(damped, bool):
                return value
            if isinstance(value, float):  # of Python: the result would be float64
                value = np.float32(value)
            return xp.where(damped, np.float32(offset + slope), value)

        base = density - (1.5 / self._scale) * _total(squares)
        distinct = dict.fromkeys(weights[one] for one in even)
        constant = {weight: factor(weight, omega) * base for weight in distinct}
        curved = {weight: factor(4.5 / self._scale * weight, omega) for weight in distinct}
        along = {one: _signed(zip(velocities[one], momentum, strict=True)) for one in odd}
        keep, keep_odd = factor(-0.5, omega, 0.5), factor(-0.5, omega_minus, 0.5)
        for one, sum_of_pair in even.items():
            weight, j = weights[one], along[one]
            even[one] = keep * sum_of_pair + (constant[weight] + curved[weight] * (j * j))
        steps = {one: sum(map(abs, velocities[one])) for one in odd}
        diagonals = [one for one in odd if steps[one] > 1]
        relaxed = {weight: factor(3 * weight, omega_minus) for weight in {weights[one] for one in diagonals}}
        diagonal = {one: keep_odd * odd[one] + relaxed[weights[one]] * along[one] for one in diagonals}
        axial = {
            one: 0.5 * along[one]
            - _signed((_dot(velocities[one], velocities[other]), value) for other, value in diagonal.items())
            for one in odd
            if steps[one] == 1
        }
        odd = axial | diagonal

        results = [density - 2 * _total(list(even.values()))] * lattice.size
        for one, other in lattice.pairs:
            results[one], results[other] = even[one] + odd[one], even[one] - odd[one]
        return results

    def _moment(self, values: Values, axes: Sequence[int]) -> Any:
        """Return the sum of values, one for each pair, times these components of its first velocity."""
        velocities = self.lattice.velocities
        return _signed(
            (math.prod(velocities[one][axis] for axis in axes), value) for one, value in values.items()
        )

    def _rates(
        self,
        even: Values,
        density: Any,
        momentum: Sequence[Any],
        parameters: dict[str, float],
        xp: ModuleType,
    ) -> tuple[Any, Any]:
        """Return the relaxation rates of even and odd parts: numbers, or one of each cell with "les".

        "les" adds a viscosity that grows with the stress beyond the equilibrium, Pi_ab = sum e_a e_b g
        - (r / 3 delta_ab + j_a j_b).
        """
        omega = parameters["omega"]
        if self.collision == "bgk":
            return omega, omega
        omega_minus = parameters["omega_minus"]
        if self.collision == "trt":
            return omega, omega_minus
        pressure, norm = density * (1 / 3), None
        for a, b in combinations_with_replacement(range(self.lattice.axes), 2):
            product = self._product(momentum[a], momentum[b])
            stress = self._moment(even, (a, b)) - (pressure + product if a == b else product)
            square = stress * stress if a == b else 2 * (stress * stress)
            norm = square if norm is None else norm + square
        tau = 1 / omega
        eddies = 18 * math.sqrt(2) * parameters["les"] ** 2 / self._scale
        local = 0.5 * tau + 0.5 * xp.sqrt(tau**2 + eddies * xp.sqrt(norm))
        return 1 / local, omega_minus

    # Cells that are no fluid

    def _replaced(
        self,
        arrived: Sequence[Any],
        blocks: Sequence[Any],
        kind_here: Any,
        wind: Any,
        parameters: dict[str, float],
        xp: ModuleType,
    ) -> Iterator[tuple[Sequence[Cell], Sequence[Any]]]:
        """Yield kinds of `_others`, and the populations of their cells after the step."""
        lattice = self.lattice
        back = [arrived[one] for one in lattice.opposite]
        if Cell.SOLID in self.kinds:
            yield [Cell.SOLID], back
        if Cell.MOVING in self.kinds:
            yield [Cell.MOVING], self._moved(back, wind, parameters, xp)
        for kinds, axis in SLIPPING.items():
            if self.kinds & set(kinds):
                yield kinds, self._slipped(arrived, axis, kind_here == int(kinds[1]), parameters, xp)
        if Cell.DAMPED in self._others:
            yield [Cell.DAMPED], self._collided(arrived, parameters, xp, damped=True)
        if Cell.OUTFLOW in self.kinds:
            yield [Cell.OUTFLOW], self._leaving(arrived, blocks, parameters)

    def _slipped(
        self, arrived: Sequence[Any], axis: int, is_end: Any, parameters: dict[str, float], xp: ModuleType
    ) -> list[Any]:
        """Return the populations of a wall without friction, which reflects a steady flow and absorbs sound.

        The sum of what arrives from the fluid, p / 2 + j / 2 with the pressure p and the momentum j towards
        the wall, is compared with its mean over time, which the population at rest holds. The wall reflects
        each population, less its share of (1 + R) times the difference: a change comes back as -R times
        itself. Sound has p = j / sqrt(3); at a right angle, it vanishes with R below. The mean follows with
        the rate `adapt`: at 1 there is no difference, and all is reflected.

        is_end: whether the wall is behind the fluid along `axis`. What it sends away from the fluid reaches
        only the wall at the other end, which takes none of it.
        """
        lattice, adapt, mirror = self.lattice, parameters["adapt"], self.lattice.mirror[axis]
        before = [number for number, one in enumerate(lattice.velocities) if one[axis] < 0]
        came = {number: xp.where(is_end, arrived[mirror[number]], arrived[number]) for number in before}
        change = _total(list(came.values())) - arrived[0]
        share = (1 - adapt) * ABSORBED / sum(lattice.weights[number] for number in before)
        results = list(arrived)
        for number, value in came.items():
            results[number] = results[mirror[number]] = value - (share * lattice.weights[number]) * change
        results[0] = arrived[0] + adapt * change
        return results

    def _moved(
        self, back: Sequence[Any], wind: Any, parameters: dict[str, float], xp: ModuleType
    ) -> list[Any]:
        """Return the populations that a moving wall sends back.

        The wall is half way to the cell that a population goes to, and so is the wind taken: that of this
        cell alone would blow diagonal populations sideways, an error of first order. What the wall sends to
        one at rest comes back, and would grow without bound: no flow reaches the limit.
        """
        velocity = [parameters[f"velocity_{axis}"] for axis in self._axis_names]
        results, most = list(back), LIMIT * self._scale
        for number, one in enumerate(self.lattice.velocities):
            gain: Any = 6 * self._scale * self.lattice.weights[number] * _dot(one, velocity)
            if any(one):
                if wind is not None:
                    here, there = (_part(wind, place) for place in ((0,) * len(one), one))
                    gain = (0.5 * gain) * (here + there)
                results[number] = xp.clip(back[number] + gain, -most, most)
        return results

    def _leaving(
        self, arrived: Sequence[Any], blocks: Sequence[Any], parameters: dict[str, float]
    ) -> list[Any]:
        """Return the populations of OUTFLOW cells.

        Those that enter the fluid again are convected from the column before, and the others leave. Sound
        is reflected least (0.2 %) at a speed of 1/sqrt(3) + that of the flow, but strong eddies then burst in
        these cells, unless DAMPED columns before them take them away. 0.2 bears them, and reflects 14 %. The
        anchor takes a part of the density away, known from the flux of momentum, r / 3 + j_x^2.
        """
        lattice, part, anchor = self.lattice, parameters["outflow"], parameters["anchor"]
        here = (0,) * lattice.axes
        before = (*here[1:], -1)
        results = list(arrived)
        entering = [number for number, one in enumerate(lattice.velocities) if one[-1] < 0]
        leaving = [number for number, one in enumerate(lattice.velocities) if one[-1] > 0]
        for number in entering:
            old, upstream = (self._load(_part(blocks[number], place)) for place in (here, before))
            results[number] = part * upstream + (1 - part) * old
        if anchor:
            out, into = (_total([results[number] for number in part]) for part in (leaving, entering))
            flux = out - into
            excess = (3 * anchor) * ((out + into) - self._product(flux, flux))
            for number in entering:
                results[number] = results[number] - lattice.weights[number] * excess
        return results


def _part(block: Any, offset: Sequence[int]) -> Any:
    """Return a block without its halo, shifted: its cell x is the block's own cell x + offset."""
    return block[tuple(slice(1 + at, at - 1 or None) for at in offset)]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _total(values: Sequence[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def _signed(terms: Iterable[tuple[float, Any]]) -> Any:
    """Return the sum of (sign, value), with signs 1, 0 and -1; not all are 0."""
    total: Any = None
    for sign, value in sorted(((s, v) for s, v in terms if s), key=lambda term: -term[0]):
        if total is None:
            total = value if sign > 0 else -value
        else:
            total = total + value if sign > 0 else total - value
    return total
