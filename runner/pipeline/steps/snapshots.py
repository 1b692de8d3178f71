"""Snapshots of a simulation: its fields in a file, after some steps, written by all ranks together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Protocol

import numpy as np

from runner.pipeline.load import stages
from runner.pipeline.steps.loop import NEVER, next_multiple
from runner.pipeline.steps.stepper import Stepper
from runner.region import Array, HostArray, Region, overlap
from runner.storage.field_file import FieldFile, GridField


class FieldValues(Protocol):
    """Fields that are computed from the inputs of a step."""

    @property
    def fields(self) -> Sequence[GridField]: ...

    def compute(self, name: str, cells: Sequence[Array], xp: ModuleType) -> Array:
        """Return the field `name` of some cells on the device: (*the cells', components).

        cells: of each input. Components are along the axes of the arrays; a field of single values has none.
        """


@dataclass
class Snapshots:
    """Writes fields: an observer of the steps. every: steps between two snapshots; None: only one, of the
    last step, which is always written. last: the step at which the run ends at the latest. steps: of the
    snapshots written.
    """

    content: FieldValues
    path: Path
    every: int | None
    last: int
    steps: list[int] = field(default_factory=list, init=False)

    def begin(self, stepper: Stepper) -> None:
        world, task = stepper.world, stepper.task
        first = stepper.done
        count = count_snapshots(first, self.every, self.last)
        self._partition = task.fields[0].partition
        self._file = FieldFile(self.path, task.shape, self.content.fields, count, world.size, world.run_id)
        world.on_root(self._file.create)
        if self.every is not None and first % self.every == 0:
            self.observe(stepper)

    def next_step(self, done: int) -> int:
        return NEVER if self.every is None else next_multiple(done, self.every)

    def observe(self, stepper: Stepper) -> bool:
        stepper.settle()
        with stepper.phases("fields"):
            for one in self.content.fields:
                if not (one.steady and self.steps):
                    self._write(stepper, one)
        self.steps.append(stepper.done)
        return False

    def end(self, stepper: Stepper) -> None:
        if stepper.done not in self.steps:
            self.observe(stepper)
        stepper.world.collective_call(self._file.sync)
        stepper.world.on_root(lambda: self._file.complete(self.steps))

    def _write(self, stepper: Stepper, one: GridField) -> None:
        """Write one field: exchange with other ranks what they write, and write the rest. Collective."""
        world, file = stepper.world, self._file
        cells = file.turned(self._partition[world.rank])
        values = file.turn(one, self._on_host(stepper, one))
        part = file.part(world.rank, cells)
        if file.is_zarr:
            regions = [file.turned(region) for region in self._partition]
            parts = [file.part(rank, region) for rank, region in enumerate(regions)]
            values = redistribute(stepper, values, regions, parts)
        number = len(self.steps)
        world.collective_call(lambda: file.write(number, one, part, values) if part.size else None)

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


def redistribute(
    stepper: Stepper, mine: HostArray, regions: Sequence[Region], parts: Sequence[Region]
) -> HostArray:
    """Return the values of this rank's part, from the ranks that have them. Collective.

    mine: of this rank's region. regions: of a grid, that each rank has; parts: that each rank needs.
    """
    control, rank = stepper.world.control, stepper.world.rank
    more = mine.shape[len(parts[rank].shape) :]
    found: HostArray = np.empty((*parts[rank].shape, *more), mine.dtype)
    sends, receives, places = [], [], []
    for other in range(control.size):
        given, taken = overlap(regions[rank], parts[other]), overlap(regions[other], parts[rank])
        if other == rank:
            if given.size:
                found[_within(given, parts[rank])] = mine[_within(given, regions[rank])]
            continue
        if given.size:
            sends.append((other, np.ascontiguousarray(mine[_within(given, regions[rank])])))
        if taken.size:
            receives.append((other, np.empty((*taken.shape, *more), mine.dtype)))
            places.append(_within(taken, parts[rank]))
    control.exchange(sends, receives).wait()
    for place, (_, values) in zip(places, receives, strict=True):
        found[place] = values
    return found


def _within(region: Region, whole: Region) -> tuple[slice, ...]:
    ends = zip(region.start, region.stop, whole.start, strict=True)
    return tuple(slice(a - origin, b - origin) for a, b, origin in ends)
