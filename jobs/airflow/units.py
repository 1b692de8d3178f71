"""From a flow's Reynolds number to the rates of its time step, and whether the method can compute it.

A flow is known by its Reynolds number, by the cells of its length and by its speed in cells a step:
viscosity = speed * length / reynolds. A low speed is exact and slow, a high one is compressible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshrun.jobs.airflow.step import SOUND, Collision
from meshrun.runner.errors import UserError
from meshrun.runner.spelling import option

MAGIC = 3 / 16  # walls of a Poiseuille flow are then exactly half way, at every viscosity
MOST_MACH = 0.2  # the error of compressibility is about its square
# Limits of 1 / omega_minus - 1/2, as an inlet makes odd parts grow that relax slowly: the first where a
# cell's Reynolds number is small, the second where it is large; HALF: the Reynolds number half way between.
VISCOUS_ODD, STEADY_ODD, HALF = 0.5, 1 / 1.8 - 0.5, 15.0
# Speed over viscosity, in cells: beyond it, differences from cell to cell grow until the flow bursts.
# Cavities and cylinders of 16 to 64 cells do so from about 1.7 times as much on.
MOST_CELL_REYNOLDS: dict[Collision, float] = {"trt": 30.0, "bgk": 15.0}

# In cells^2 a step: beyond it, a step relaxes populations by less than float32 resolves.
MOST_VISCOSITY = 1e6


@dataclass(frozen=True)
class Flow:
    """A flow in lattice units.

    reynolds: speed * length / viscosity. length: in cells, such as a body's diameter or a chord. speed: of
    the undisturbed flow, in cells a step.
    """

    reynolds: float
    length: float
    speed: float = 0.1

    @property
    def viscosity(self) -> float:
        """Kinematic viscosity, in cells^2 a step."""
        return self.speed * self.length / self.reynolds

    @property
    def omega(self) -> float:
        """Relaxation rate of even parts."""
        return 1 / (3 * self.viscosity + 0.5)

    @property
    def omega_minus(self) -> float:
        """Relaxation rate of odd parts: (1 / omega - 1/2)(1 / omega_minus - 1/2) is 3/16 in viscous flows,
        and less where odd parts would relax too slowly. Without a jump anywhere."""
        limit = STEADY_ODD + (VISCOUS_ODD - STEADY_ODD) / (1 + (self.cell_reynolds / HALF) ** 4)
        return 1 / (min(MAGIC / (3 * self.viscosity), limit) + 0.5)

    @property
    def outflow(self) -> float:
        """Speed at which sound leaves with the flow, in cells a step."""
        return SOUND + self.speed

    @property
    def mach(self) -> float:
        """Speed over that of sound."""
        return self.speed / SOUND

    @property
    def cell_reynolds(self) -> float:
        """Reynolds number of a cell: speed over viscosity."""
        return self.speed / self.viscosity

    def check(self, collision: Collision = "trt") -> None:
        """Raise UserError if the method cannot compute this flow with this collision."""
        for name, value in (
            ("Reynolds number", self.reynolds),
            ("length", self.length),
            ("speed", self.speed),
        ):
            if not (math.isfinite(value) and value > 0):
                raise UserError(f"the {name} of a flow is a positive number", got=f"{value:g}")
        if self.mach > MOST_MACH:
            raise UserError(
                "the flow is too fast for the lattice: it would be compressible",
                got=f"{self.speed:g} cells a step, a Mach number of {self.mach:.2g}",
                expected=f"{MOST_MACH * SOUND:.3g} cells a step or less, a Mach number of {MOST_MACH:g}",
                hint="a lower speed, which takes more steps",
            )
        if self.viscosity > MOST_VISCOSITY:
            raise UserError(
                "the flow is too viscous for float32",
                got=f"a viscosity of {self.viscosity:.3g} cells^2 a step",
                expected=f"at most {MOST_VISCOSITY:g}",
                hint=f"a Reynolds number of {self.speed * self.length / MOST_VISCOSITY:.2g} or more",
            )
        most = MOST_CELL_REYNOLDS.get(collision)
        if most is not None and self.cell_reynolds > most:
            least = 3 * self.speed / most  # of 1 / omega - 1/2
            cells = math.ceil(self.reynolds / most)
            raise UserError(
                "the flow has eddies much smaller than a cell and would burst",
                got=f"omega {self.omega:.5f}, a Reynolds number of {self.cell_reynolds:.3g} for each cell",
                expected=f"omega up to {1 / (least + 0.5):.5f}, a Reynolds number of {most:g} for each cell",
                hint=f"{option('collision', 'les')}, a length of {cells} cells or more, or a Reynolds "
                "number of "
                f"{most * self.length:.4g} or less",
            )
