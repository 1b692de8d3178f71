"""Results that are no fields: a row for each step, or every so many steps, to files that rank 0 writes.

A row belongs to the step that returned it. What a field has at points after the step is read of that field;
the rest is computed of the blocks that the step reads. Rows stay on the device until there are some; then
each rank sends its points' to rank 0. With a row for each step, kernels compute it with the step
(`steps.recorded`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.compiler.compiled import HostKernel, compile_points
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.whole.point_code import PointSet, is_computable
from meshrun.runner.compiler.whole.point_kernel import PointKernel, PointValues
from meshrun.runner.compiler.whole.point_pass import Blocks, SeriesPass
from meshrun.runner.errors import RunError
from meshrun.runner.plan.task import ArrayType, Task
from meshrun.runner.region import Array, HostArray, Region
from meshrun.runner.steps.loop import NEVER, next_multiple
from meshrun.runner.steps.program_steps import ProgramStepper
from meshrun.runner.steps.recorded import RecordedSeries
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.storage.series_file import SeriesFile
from meshrun.runner.world.world import World

MOST_WAITING = 256  # rows on the device


@dataclass
class SeriesRows:
    """Writes the series of a task, on every rank: an observer of steps. Methods are collective.

    paths: of each series. every: steps between two rows. last: the step at which the run ends at the latest,
    which has a row.
    """

    world: World
    task: Task
    paths: Sequence[Path]
    every: int = 1
    last: int = 1
    name: str = "series"
    _next: tuple[int, list[Array]] | None = field(default=None, init=False)  # step, and its row
    _waiting: list[tuple[int, list[Array]]] = field(default_factory=list, init=False)
    _earlier: Any = field(default=None, init=False)
    _stepper: Stepper | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        assert isinstance(self.task.job.series_pass, SeriesPass)
        self.series = self.task.job.series_pass
        of_each = zip(self.paths, self.series.names, self.series.types, strict=False)
        self._fed = self.series.fed(self.task.feed_numbers)
        self.files = [SeriesFile(path, name, *known) for path, name, known in of_each]
        cells = self.series.recorded(self._fed)
        outputs = [same if fed else None for same, fed in zip(self.series.same_as, self._fed, strict=True)]
        self._by_steps, self._flushed = False, 0  # steps whose rows have been sent
        arithmetic = str(getattr(self.task.kernel, "arithmetic", "strict"))
        self._values = [PointValues(one, arithmetic) for one in self.series.cells]
        self._sets = [PointSet(*one, series=True) for one in zip(cells, outputs, strict=True)]

    @property
    def unfinished(self) -> Sequence[Path]:
        return [file.partial for file in self.files]

    @property
    def types(self) -> list[ArrayType]:
        """Shape and dtype of each file. On rank 0."""
        pairs = zip(self.files, self.series.types, strict=True)
        return [((file.rows, *shape), dtype) for file, (shape, dtype) in pairs]

    def one_by_one(self, *, one_copy: bool) -> bool:
        """Return whether no kernel may take several steps. one_copy: the fields are in memory once."""
        on_device = self.world.backend.asynchronous
        return on_device if self._is_by_steps(one_copy) else self.series.reads_halo(after=True)

    def _is_by_steps(self, one_copy: bool) -> bool:
        """Return whether kernels compute a row with each step (`steps.recorded`): what it reads stays."""
        kernel = self.task.kernel
        possible = isinstance(kernel, HostKernel | DeviceKernel | PointKernel) and is_computable(self._sets)
        return self.every == 1 and not one_copy and possible

    # As an observer of steps

    def begin(self, stepper: Stepper) -> None:
        self._stepper, self._flushed = stepper, stepper.done
        self._by_steps = self._is_by_steps(stepper.one_copy)
        self.open()
        if isinstance(stepper, ProgramStepper):
            return
        if not self._by_steps:
            self._prepare_next(stepper)
        elif stepper.region.size:
            arithmetic = str(getattr(self.task.kernel, "arithmetic", "strict"))
            code = compile_points(self._sets, arithmetic if self.world.backend.asynchronous else "")
            stepper.recorded = RecordedSeries(stepper, self._sets, code, MOST_WAITING, stepper.done)

    def next_step(self, done: int) -> int:
        if self._by_steps:
            return self._flushed + MOST_WAITING
        if isinstance(self._stepper, ProgramStepper):
            return min(next_multiple(done, self.every), max(self.last, done + 1))
        after = min(next_multiple(done + 1, self.every), max(self.last, done + 2))
        before = after - 1 if after <= self.last else NEVER
        waits = self._next is not None and self._next[0] > done
        return min(before, self._next[0]) if self._next is not None and waits and any(self._fed) else before

    def observe(self, stepper: Stepper) -> bool:
        if self._by_steps:
            self._flush()
        elif isinstance(stepper, ProgramStepper):
            self.add_row_of_stages(stepper)
        else:
            self._prepare_next(stepper)
        return False

    def end(self, stepper: Stepper) -> None:
        self._take_next(stepper)
        self.finish()

    def save(self) -> list[dict[str, int]]:
        """Have all rows so far on the disk; return how many there are, for `restore`."""
        assert self._stepper is not None
        self._take_next(self._stepper)
        self._flush()
        self.world.on_root(self._sync)
        return [{"rows": file.rows, "checksum": file.checksum} for file in self.files]

    def restore(self, values: Any) -> None:
        self._earlier = values

    def abandon(self) -> None:
        """Close the files; the run has failed."""
        for file in self.files:
            file.close()

    # In one pass, and within the above

    def open(self) -> None:
        """Begin the files, or go on with those of an earlier run."""
        self.world.on_root(self._open)

    def take(
        self,
        arrays: Sequence[Array],
        region: Region,
        cut: Sequence[bool],
        but: Sequence[bool] = (),
        step: int = 0,
    ) -> list[Array]:
        """Return a row: (components, own points) of each series.

        arrays: of each input the cells of `region`, this rank's own, with the halo of one step. cut: whether
        it is only part of each axis. but: whether a series is left out. step: number of the step, from 0 on.
        """
        axes = self.series.axes
        first, last = region.start[:axes], region.stop[:axes]
        whole = tuple(not part for part in cut[:axes])
        blocks = Blocks(self.world.xp, arrays, self.task.widths[:axes], first, last, whole)
        left_out = [*but] or [False] * len(self.series.names)
        tape = self.task.job.tape
        slots = self.world.xp.asarray(tape.row(step)) if tape is not None and tape.slots else None
        kernel = self.task.kernel
        if self.world.backend.asynchronous and isinstance(kernel, DeviceKernel | PointKernel):
            return [None if one else self._values[n].compute(blocks, slots) for n, one in enumerate(left_out)]
        return [None if one else self.series.compute(n, blocks, slots) for n, one in enumerate(left_out)]

    def row_of(self, number: int, values: Array) -> Array:
        """Return a row of a series whose points are all this rank's."""
        return self.series.rows(number, values[None])[0]

    def add(self, step: int, row: list[Array]) -> None:
        self._waiting.append((step, row))
        if len(self._waiting) >= MOST_WAITING:
            self._flush()

    def add_row_of_stages(self, stepper: ProgramStepper) -> None:
        """Add the row of the last step of a program in stages."""
        self.add(stepper.done, self.row_of_stages(stepper))

    def row_of_stages(self, stepper: ProgramStepper) -> list[Array]:
        """Return the row of the last step of a program in stages. Collective."""
        owned = [len(self._owned(number, self.world.rank)) for number in range(len(self.series.series))]
        pairs = enumerate(zip(self.series.series, owned, strict=True))
        return [stepper.series(number, one.nodes, own) for number, (one, own) in pairs]

    def finish(self) -> None:
        """Write all rows."""
        self._flush()
        self.world.on_root(self._sync)
        self.world.on_root(self.abandon)

    def _open(self) -> None:
        for file, known in zip(self.files, self._earlier or [None] * len(self.files), strict=True):
            if known is None:
                file.create()
                continue
            reason = file.resume(int(known["rows"]), int(known["checksum"]))
            if reason is not None:
                raise RunError(
                    f"the series {file.name} cannot go on from the checkpoint: {reason}",
                    hint=f"the file of the run that wrote the checkpoint, {file.partial}, or start again",
                )

    def _sync(self) -> None:
        for file in self.files:
            file.sync()

    def _prepare_next(self, stepper: Stepper) -> None:
        """Compute the row of the next step, if it has one."""
        self._take_next(stepper)
        step = stepper.done + 1
        if step > self.last or (step % self.every and step != self.last):
            return
        row: list[Array] = []
        if stepper.region.size:
            computed = not all(self._fed)
            windows = stepper.windows() if computed else []
            row = self.take(windows, stepper.region, stepper.cut, self._fed, stepper.done)
        self._next = step, row

    def _take_next(self, stepper: Stepper) -> None:
        """Keep the row of the next step, if it has been taken."""
        if self._next is None or self._next[0] > stepper.done:
            return
        (step, row), self._next = self._next, None
        start, stop = (side[: self.series.axes] for side in (stepper.region.start, stepper.region.stop))
        for number, fed in enumerate(self._fed if row else ()):
            same = self.series.same_as[number]
            place = self.task.feed_numbers[same] if same is not None else None
            if fed and place is not None:
                row[number] = self.series.gather(number, stepper.own(place), start, stop, self.world.xp)
        self.add(step, row)

    def _flush(self) -> None:
        """Send the rows that wait to rank 0, which writes them."""
        if self._by_steps:
            assert self._stepper is not None
            self._flush_recorded(self._stepper)
            return
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        steps = [step for step, _ in waiting]
        for number, file in enumerate(self.files):
            mine = self._on_host([row[number] for _, row in waiting if row])
            rows = self._gathered(number, mine, len(steps))
            self.world.on_root(partial(self._append, file, number, steps, rows))

    def _flush_recorded(self, stepper: Stepper) -> None:
        """Send the rows of the steps since the last time to rank 0, which writes them."""
        steps, self._flushed = [*range(self._flushed + 1, stepper.done + 1)], stepper.done
        if not steps:
            return
        for number, file in enumerate(self.files):
            mine = np.empty((0, 0, 0)) if stepper.recorded is None else stepper.recorded.taken(number)
            rows = self._gathered(number, mine, len(steps))
            self.world.on_root(partial(self._append, file, number, steps, rows))
        if stepper.recorded is not None:
            stepper.recorded.restart()

    def _append(self, file: SeriesFile, number: int, steps: list[int], values: HostArray) -> None:
        file.append(steps, self.series.rows(number, values))

    def _on_host(self, rows: list[Array]) -> HostArray:
        """Return rows of (components, own points) as one array."""
        if not rows:
            return np.empty((0, 0, 0))
        stacked = self.world.xp.stack(rows)
        found: HostArray = stacked.get() if hasattr(stacked, "get") else stacked
        return found

    def _gathered(self, number: int, mine: HostArray, rows: int) -> HostArray:
        """Return (rows, components, points) on rank 0."""
        control, series, dtype = self.world.control, self.series, self.series.types[number][1]
        owned = [self._owned(number, rank) for rank in range(control.size)]
        if control.rank:
            control.exchange([(0, np.ascontiguousarray(mine))] if len(owned[control.rank]) else [], []).wait()
            return mine
        components, points = len(series.cells[number].nodes), len(series.cells[number].positions)
        parts = {
            rank: np.empty((rows, components, len(numbers)), dtype)
            for rank, numbers in enumerate(owned)
            if rank and len(numbers)
        }
        control.exchange([], list(parts.items())).wait()
        whole = np.empty((rows, components, points), dtype)
        for rank, part in {0: mine, **parts}.items():
            if len(owned[rank]):
                whole[:, :, owned[rank]] = part
        return whole

    def _owned(self, number: int, rank: int) -> HostArray:
        region, axes = self.task.partition[rank], self.series.axes
        return self.series.owned(number, region.start[:axes], region.stop[:axes])
