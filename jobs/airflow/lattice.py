"""Lattices: the discrete velocities of the populations, and what follows from them.

Weights of D2Q9, D3Q19 and D3Q27 as in Y. H. Qian, D. d'Humieres, P. Lallemand, Europhys. Lett. 17 (1992),
479-484. The velocity of sound is 1/sqrt(3) on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

Velocity = tuple[int, ...]


@dataclass(frozen=True)
class Lattice:
    """Discrete velocities and their weights.

    velocities: in cells a step, in axis order: (y, x) or (z, y, x); first 0, then pairs of opposite ones.
    weights: of the equilibrium at rest; their sum is 1.
    """

    name: str
    velocities: tuple[Velocity, ...]
    weights: tuple[float, ...]

    @property
    def axes(self) -> int:
        return len(self.velocities[0])

    @property
    def size(self) -> int:
        """Number of populations."""
        return len(self.velocities)

    @cached_property
    def opposite(self) -> tuple[int, ...]:
        """For each velocity, the number of the opposite one."""
        return tuple(self.velocities.index(tuple(-e for e in one)) for one in self.velocities)

    @cached_property
    def mirror(self) -> tuple[tuple[int, ...], ...]:
        """For each axis and velocity, the number of the velocity with that component negated."""
        return tuple(
            tuple(
                self.velocities.index(tuple(-e if at == axis else e for at, e in enumerate(one)))
                for one in self.velocities
            )
            for axis in range(self.axes)
        )

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Numbers of each velocity and its opposite, each pair once."""
        return tuple((one, other) for one, other in enumerate(self.opposite) if one < other)


def _lattice(name: str, axes: int, weights: Mapping[int, float]) -> Lattice:
    """Generate a lattice. weights: of velocities, by their length squared; no other lengths occur."""
    every = [one for one in product((1, 0, -1), repeat=axes) if sum(e * e for e in one) in weights]
    rest, half = (0,) * axes, every[: len(every) // 2]  # in the first half, no two are opposite
    velocities = [rest]
    for one in sorted(half, key=lambda one: (sum(e * e for e in one), tuple(map(abs, one)))):
        velocities += [one, tuple(-e for e in one)]
    return Lattice(name, tuple(velocities), tuple(weights[sum(e * e for e in one)] for one in velocities))


D2Q9 = _lattice("D2Q9", 2, {0: 4 / 9, 1: 1 / 9, 2: 1 / 36})
D3Q19 = _lattice("D3Q19", 3, {0: 1 / 3, 1: 1 / 18, 2: 1 / 36})
D3Q27 = _lattice("D3Q27", 3, {0: 8 / 27, 1: 2 / 27, 2: 1 / 54, 3: 1 / 216})
LATTICES = {one.name: one for one in (D2Q9, D3Q19, D3Q27)}
