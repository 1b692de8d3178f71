"""Snapshots of a flow: velocity, pressure and solid cells in a file, written by all ranks together.

Fields are computed on the device and copied to the host while the steps wait; a thread writes them while
further steps run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from meshrun.jobs.airflow.lattice import Lattice
from meshrun.jobs.airflow.moments import shown_value
from meshrun.jobs.airflow.observers.field_file import FieldFile, GridField
from meshrun.runner.arrays.load import stages
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.plan.redistribution import RedistributionPlan
from meshrun.runner.region import Array, HostArray
from meshrun.runner.steps.loop import NEVER, next_multiple
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.world.group import Group, move
from meshrun.runner.world.world import World


@dataclass(frozen=True)
class FlowFields:
    """Fields of a flow, which are computed from the inputs of a step.

    velocity: in cells a step, 0 in solid cells. pressure: less that of the air at rest, in units of the
    density * (cell / step)^2, 0 in solid cells. solid: 1 in solid cells, otherwise 0.
    """

    lattice: Lattice

    @property
    def fields(self) -> Sequence[GridField]:
        single = np.dtype(np.float32)
        return (
            GridField("velocity", single, "cells/step", self.lattice.axes),
            GridField("pressure", single, "density * (cells/step)^2"),
            GridField("solid", np.dtype(np.uint8), "1 in solid cells", steady=True),
        )

    def compute(self, name: str, cells: Sequence[Array], xp: ModuleType) -> Array:
        """Return a field of some cells on the device: (*the cells', components along the axes, if any).

        cells: of each population, then their kinds.
        """
        if name == "velocity":
            axes = range(self.lattice.axes)
            return xp.stack(
                [shown_value(self.lattice, cells, f"velocity{axis}", xp) for axis in axes], axis=-1
            )
        value = shown_value(self.lattice, cells, name, xp)
        return value.astype(np.uint8) if name == "solid" else value


@dataclass
class Snapshots:
    """Writes fields: an observer of the steps. every: steps between two snapshots; None: only one, of the
    last step, which is always written. last: the step at which the run ends at the latest. steps: of the
    snapshots written.
    """

    content: FlowFields
    path: Path
    every: int | None
    last: int
    steps: list[int] = field(default_factory=list, init=False)
    _world: World = field(init=False)
    _pool: ThreadPoolExecutor | None = field(default=None, init=False)
    _writing: list[Future[None]] = field(default_factory=list, init=False)
    _earlier: Mapping[str, Any] = field(default_factory=dict, init=False)  # of a checkpoint

    @property
    def name(self) -> str:
        return "fields"

    @property
    def unfinished(self) -> Sequence[Path]:
        return [] if self.every is None else [self._file.partial]

    def save(self) -> dict[str, Any]:
        """Have all that was written on the disk; return where it is, for `restore`."""
        self._world.collective_call(self._written)
        self._world.collective_call(self._file.sync)
        return {**self._series, "steps": self.steps}

    def restore(self, values: Any) -> None:
        self._earlier = values or {}

    def begin(self, stepper: Stepper) -> None:
        world, task = stepper.world, stepper.task
        self._world, self._partition, first = world, task.fields[0].partition, stepper.done
        count = count_snapshots(first, self.every, self.last)
        self._series: dict[str, Any] = {
            "path": str(self.path.resolve()),
            "every": self.every,
            "last": self.last,
            "run": world.run_id,
            "ranks": world.size,
            "count": count,
        }
        self._file = self._open(stepper, self._series)
        if self._earlier.get("steps") and self.every is not None:
            self._go_on(stepper, self._earlier)
        if not self.steps:
            world.on_root(self._file.create)
        if self.every is not None and first % self.every == 0 and first not in self.steps:
            self.observe(stepper)

    def _open(self, stepper: Stepper, series: Mapping[str, Any]) -> FieldFile:
        count, run_id, ranks = int(series["count"]), str(series["run"]), int(series["ranks"])
        size, fields = stepper.world.size, self.content.fields
        return FieldFile(self.path, stepper.task.shape, fields, count, size, run_id, ranks)

    def _go_on(self, stepper: Stepper, earlier: Mapping[str, Any]) -> None:
        """Go on with the unfinished file of the run that wrote the checkpoint, if it is of this series."""
        known = ("path", "every", "last")
        differs = next((name for name in known if earlier[name] != self._series[name]), None)
        file = None if differs else self._open(stepper, earlier)
        if file is not None and stepper.world.on_root(file.holds):
            self._file, self._series = file, {**earlier}
            self.steps = [int(step) for step in self._series.pop("steps")]
            return
        reason = f"{differs} was {earlier[differs]}" if differs else "its unfinished file is not there"
        stepper.world.warn(f"the fields in {self.path} begin at step {stepper.done:,}: {reason}")

    def next_step(self, done: int) -> int:
        return NEVER if self.every is None else next_multiple(done, self.every)

    def observe(self, stepper: Stepper) -> bool:
        stepper.settle()
        with stepper.phases("fields"):
            self._world.collective_call(self._written)
            for one in self.content.fields:
                if not (one.steady and self.steps):
                    self._write(stepper, one)
        self.steps.append(stepper.done)
        return False

    def end(self, stepper: Stepper) -> None:
        if stepper.done not in self.steps:
            self.observe(stepper)
        stepper.world.collective_call(self._written)
        self.abandon()
        stepper.world.collective_call(self._file.sync)
        stepper.world.on_root(lambda: self._file.complete(self.steps))

    def abandon(self) -> None:
        """End the thread, which may be writing; the run may have failed. On any rank, at any time."""
        for future in self._writing:
            future.cancel()
        if self._pool is not None:
            self._pool.shutdown()

    def _written(self) -> None:
        """Wait until the thread has written everything; raise its error."""
        writing, self._writing = self._writing, []
        for future in writing:
            future.result()

    def _write(self, stepper: Stepper, one: GridField) -> None:
        """Start writing one field, after an exchange of what other ranks write of it. Collective."""
        world, file = stepper.world, self._file
        cells = file.turned(self._partition[world.rank])
        values = file.turn(one, self._on_host(stepper, one))
        part = file.part(world.rank, cells)
        if file.is_zarr:
            regions = [file.turned(region) for region in self._partition]
            parts = [file.part(rank, region) for rank, region in enumerate(regions)]
            mine, (host, plan) = (
                values,
                (stepper.world.control, RedistributionPlan(regions, parts, world.size)),
            )
            values = np.empty((*part.shape, *mine.shape[len(part.shape) :]), mine.dtype)
            move(Group(host, host, CpuBackend()), plan, mine, values)
        number = len(self.steps)
        self._pool = self._pool or ThreadPoolExecutor(1, "fields")
        if part.size:
            self._writing.append(self._pool.submit(file.write, number, one, part, values))

    def _on_host(self, stepper: Stepper, one: GridField) -> HostArray:
        """Return a field of this rank's cells, computed on the device in parts of a few rows."""
        backend, xp = stepper.world.backend, stepper.world.xp
        own = [stepper.own(place) for place in range(len(stepper.task.fields))]
        shape = own[0].shape
        more = (one.components,) if one.components else ()
        found: HostArray = np.empty((*shape, *more), one.dtype)
        if found.size:
            for begin, end in stages(shape[0], found.nbytes):
                piece = self.content.compute(one.name, [cells[begin:end] for cells in own], xp)
                backend.download(xp.ascontiguousarray(piece), found[begin:end])
                backend.synchronize()
        return found


def count_snapshots(first: int, every: int | None, last: int) -> int:
    """Return the number of snapshots from step `first` on: at multiples of `every`, and the last step."""
    if every is None:
        return 1
    return last // every - -(-first // every) + 1 + (last % every != 0)
