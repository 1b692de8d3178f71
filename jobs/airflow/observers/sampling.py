"""Forces on the body during a run: links of each rank, their slots before each step, and samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.jobs.airflow import links
from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.moments import pressure
from meshrun.jobs.airflow.shapes.parts import SeparateBodies
from meshrun.jobs.airflow.step import SCALE
from meshrun.jobs.airflow.tunnel import Tunnel
from meshrun.runner.region import Array, HostArray
from meshrun.runner.steps.loop import next_multiple
from meshrun.runner.steps.stepper import Stepper

INLET = 1  # column of the first fluid cells
PENDING = 256  # samples that wait on the device


@dataclass
class BodyLinks:
    """This rank's links, and the kernels' table of the populations for each of their two blocks.

    parts: of the body, if it has several.
    """

    stepper: Stepper
    tunnel: Tunnel
    parts: SeparateBodies | None = None
    _tables: dict[int, Array] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        plan, body, self.lattice = self.stepper.plans[0], self.tunnel.body, self.tunnel.lattice
        kinds = _on_host(self.stepper, self.stepper.padded[self.lattice.size])
        block = self.stepper.padded[0]
        found = links.find_links(
            body,
            plan.region,
            self.lattice,
            [low for low, _ in plan.widths],
            kinds == int(Cell.FLUID),
            [step // block.itemsize for step in block.strides],
        )
        xp = self.stepper.world.xp
        self.links, self._of_parts = found.on(xp), [found.on(xp)]
        # On the host: the first divisions of CuPy in a process take 0.2 s.
        self._beside = tuple(map(xp.asarray, found.cells(found.near)))
        if self.parts is not None:
            origin = np.subtract(plan.region.start, [low for low, _ in plan.widths])
            solid = np.stack(found.cells(found.solid), 1)
            part = self.parts.of((solid + origin) % body.shape)
            self._of_parts = [found.chosen(part == one).on(xp) for one in range(len(self.parts.places))]

    def set_slots(self, blocks: Sequence[Array]) -> None:
        """Set what the fluid will pull from the body. blocks: padded, of all inputs."""
        populations = blocks[: self.lattice.size]
        links.set_slots(populations, self.links, self.stepper.world.xp, self._table(populations))

    def momentum(self, blocks: Sequence[Array]) -> Array:
        """Return what the fluid gives each part of the body in a step on this rank: (parts, axes + 1), see
        `links.momentum`."""
        populations = blocks[: self.lattice.size]
        xp, table, scale = self.stepper.world.xp, self._table(populations), 1 / SCALE[self.tunnel.storage]
        found = [links.momentum(populations, one, self.lattice, xp, scale, table) for one in self._of_parts]
        return found[0][None] if len(found) == 1 else xp.stack(found)

    def cells_beside(self, blocks: Sequence[Array]) -> list[Array]:
        """Return the populations of the fluid cells of this rank that touch the body, once for each link."""
        return [one[self._beside] for one in blocks[: self.lattice.size]]

    def _table(self, populations: Sequence[Array]) -> Array | None:
        """Return the table of these blocks; it stays in place, as CUDA graphs repeat its address."""
        if self.stepper.world.xp is np:
            return None
        key = populations[0].data.ptr
        if key not in self._tables:
            self._tables[key] = links.addresses(self.stepper.world.xp, populations)
        return self._tables[key]


@dataclass(frozen=True)
class SurfacePressure:
    """Pressures after the last step, less that of the air at rest, in density * (cells / step)^2.

    free_stream: mean over the first column of fluid cells behind the inlet. greatest, least: of the fluid
    cells that touch the body.
    """

    free_stream: float
    greatest: float
    least: float

    def coefficients(self, speed: float) -> tuple[float, float]:
        """Return the greatest and the least pressure coefficient. speed: of the free stream."""
        return (
            2 * (self.greatest - self.free_stream) / speed**2,
            2 * (self.least - self.free_stream) / speed**2,
        )


@dataclass
class ForceSamples:
    """Samples the force on the body: an observer of the steps, whose samples are part of checkpoints.

    every: steps between two samples.
    last: step of the run, which is not sampled, as no halos are exchanged after it. interpolated: whether the
    slots of the links are set before each step. parts: of the body, if it has several. steps: of each sample.
    """

    tunnel: Tunnel
    every: int
    last: int
    interpolated: bool
    parts: SeparateBodies | None = None
    steps: list[int] = field(default_factory=list, init=False)
    pressure: SurfacePressure | None = field(default=None, init=False)
    _pending: list[Array] = field(default_factory=list, init=False)  # of this rank, on its device
    _momentum: list[HostArray] = field(default_factory=list, init=False)  # of all ranks
    _stepper: Stepper = field(init=False)
    _earlier: dict[str, Any] | None = field(default=None, init=False)  # of the checkpoint; None: not resumed

    @property
    def name(self) -> str:
        return "forces"

    @property
    def unfinished(self) -> Sequence[Path]:
        return []

    def save(self) -> dict[str, Any]:
        """Return the samples so far, for `restore`."""
        self._add_up()
        return {
            "every": self.every,
            "steps": self.steps,
            "momentum": [one.tolist() for one in self._momentum],
        }

    def restore(self, values: Any) -> None:
        self._earlier = values or {}

    def abandon(self) -> None:
        """There is no thread to end."""

    def open(self, stepper: Stepper) -> Callable[[Sequence[Array]], None]:
        """Find the links of this rank; return what to call before each step."""
        with stepper.phases("prepare"):  # which is no part of the loop's time
            self._links = BodyLinks(stepper, self.tunnel, self.parts)
            self._links.momentum(stepper.padded)  # its kernel is compiled before the first step
            if self.interpolated:
                self._links.set_slots(stepper.padded)
        return self._links.set_slots

    def begin(self, stepper: Stepper) -> None:
        self._stepper = stepper
        if not self.interpolated:
            self.open(stepper)
        if self._earlier is None:
            return
        before = self._earlier.get("every")
        if before == self.every:
            self.steps = [int(step) for step in self._earlier["steps"]]
            self._momentum = [np.array(one, np.int64) for one in self._earlier["momentum"]]
        else:
            reason = (
                f"they were sampled every {before} steps before" if before else "no earlier ones are known"
            )
            stepper.world.warn(f"the forces begin at step {stepper.done:,}: {reason}")

    def next_step(self, done: int) -> int:
        return next_multiple(done, self.every)

    def observe(self, stepper: Stepper) -> bool:
        if stepper.done == self.last:
            return False
        blocks = stepper.padded
        if self.interpolated:
            self._links.set_slots(blocks)
        self.steps.append(stepper.done)
        self._pending.append(self._links.momentum(blocks))
        if len(self._pending) == PENDING:
            self._add_up()
        return False

    def end(self, stepper: Stepper) -> None:
        self._add_up()
        self.pressure = self._measure_pressure(stepper)

    def _measure_pressure(self, stepper: Stepper) -> SurfacePressure | None:
        """Return the pressures on all ranks; None if one is not finite. Collective."""
        plan, blocks = stepper.plans[0], stepper.padded
        inner = tuple(
            slice(low, low + length) for (low, _), length in zip(plan.widths, plan.region.shape, strict=True)
        )
        column = np.zeros(0)
        if plan.region.start[-1] <= INLET < plan.region.stop[-1]:
            place = (*inner[:-1], inner[-1].start + INLET - plan.region.start[-1])
            # On the host: the first sums of CuPy in a process take longer than these few cells.
            *populations, kinds = (
                _on_host(stepper, one[place]) for one in blocks[: self.tunnel.lattice.size + 1]
            )
            column = pressure(populations)[kinds == int(Cell.FLUID)]
        near = [_on_host(stepper, one) for one in self._links.cells_beside(blocks)]
        beside = pressure(near) if len(near[0]) else np.zeros(0)
        # Whole numbers add up to the same on any ranks.
        total = int(np.rint(column.astype(float) * links.UNIT).sum()) if np.isfinite(column).all() else None
        own = (
            total,
            len(column),
            *((float(beside.max()), float(beside.min())) if len(beside) else (None, None)),
        )
        totals, counts, greatest, least = zip(*stepper.world.control.allgather(own), strict=True)
        highest, lowest = ([one for one in values if one is not None] for values in (greatest, least))
        if None in totals or not sum(counts) or not highest or not np.isfinite([*highest, *lowest]).all():
            return None
        return SurfacePressure(sum(totals) / links.UNIT / sum(counts), max(highest), min(lowest))

    def _add_up(self) -> None:
        """Add up the pending samples of all ranks."""
        world = self._stepper.world
        if self._pending:
            own = _on_host(self._stepper, world.xp.stack(self._pending))
            self._momentum += list(np.sum(world.control.allgather(own), axis=0))
            self._pending = []

    @property
    def forces(self) -> HostArray:
        """Force of each sample along each axis, (samples, axes), in lattice units; after the last step."""
        found = [links.force(one.sum(0)) for one in self._momentum]
        return np.array(found).reshape(-1, self.tunnel.lattice.axes)

    def forces_on(self, part: int) -> HostArray:
        """Return the same of one part of the body."""
        found = [links.force(one[part]) for one in self._momentum]
        return np.array(found).reshape(-1, self.tunnel.lattice.axes)


def _on_host(stepper: Stepper, values: Array) -> HostArray:
    """Return the values in host memory, after the work that computes them."""
    backend = stepper.world.backend
    found = np.empty(values.shape, values.dtype)
    backend.download(backend.xp.ascontiguousarray(values), found)
    backend.synchronize()
    return found
