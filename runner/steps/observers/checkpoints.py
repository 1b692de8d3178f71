"""Checkpoints of a run that takes steps: when to write them, and how ranks write one together.

OUTPUT.checkpoint/step-N holds the state after step N: a file for each input that an output feeds, and
state.json with the step and the run's fingerprint. It is written under another name and renamed when all of
it is on the disk, so every step-N is complete. The newest two are kept; all are removed when the run is
complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from meshrun.runner.arrays.fingerprint import fingerprint, warn_of_unknown
from meshrun.runner.arrays.inputs import Inputs
from meshrun.runner.arrays.store import Store, open_spread, store_of
from meshrun.runner.comm.api import Control
from meshrun.runner.errors import UserError
from meshrun.runner.options.step_options import SaveInterval
from meshrun.runner.plan.task import ArrayType, Task
from meshrun.runner.region import Array, Subgrid
from meshrun.runner.spelling import option
from meshrun.runner.steps.loop import NEVER, next_multiple
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.storage.checkpoint_folder import CheckpointFolder, Colors, SavedState
from meshrun.runner.storage.formats.registry import Sink, Source, rename
from meshrun.runner.storage.paths import split
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.world.world import World


def no_more_fields(done: int) -> Mapping[str, Array]:
    """Add no fields to a checkpoint."""
    return {}


class KeepsState(Protocol):
    """An observer that a resumed run goes on with as it was at the checkpoint. Methods are collective.

    name: of its values in a checkpoint.
    """

    @property
    def name(self) -> str: ...

    def save(self) -> Any:
        """Complete what was observed so far; return plain values for JSON, on rank 0."""

    def restore(self, values: Any) -> None:
        """Take over what `save` returned, before `begin`. values: None if the checkpoint has none."""

    def abandon(self) -> None:
        """End all threads; the run has failed. On any rank, at any time."""

    @property
    def unfinished(self) -> Sequence[Path]:
        """Unfinished files that a resumed run goes on with."""


@dataclass
class Checkpoints:
    """Write the checkpoints of one run.

    interval: between two checkpoints; None: write none, only look for one to resume from. before: called on
    every rank before a checkpoint is written, to complete output that a resumed run does not write again. It
    returns, on rank 0, the colours of the pictures so far. more: called with the step; returns further fields
    to save of this rank's cells, by name, the same names on all ranks. observers: whose states are saved."""

    world: World
    task: Task
    sources: Sequence[Source]
    target: Path
    interval: SaveInterval | None
    steps: int
    inputs: Inputs
    transaction: OutputTransaction
    before: Callable[[], Colors | None] | None = None
    more: Callable[[int], Mapping[str, Array]] = no_more_fields
    observers: Sequence[KeepsState] = ()
    written: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.folder = CheckpointFolder(split(self.target)[0])

    def fingerprint(self) -> Mapping[str, object]:
        """Return the fingerprint of the run. On rank 0."""
        return fingerprint(self.world, self.task, self.sources, None, self.inputs)

    def start(self, done: int) -> None:
        """Begin the first interval."""
        self._began, self._saved_at = time.monotonic(), done

    def begin(self, stepper: Stepper) -> None:
        self.start(stepper.done)
        self._next = self._later(stepper.world.control, stepper.done, first=True)

    def next_step(self, done: int) -> int:
        return self._next

    def observe(self, stepper: Stepper) -> bool:
        assert self.interval is not None
        if stepper.done == self.steps:  # the outputs are written next
            return False
        if self._is_due():
            stepper.settle()
            quiet = stepper.world.new_phases()

            def write(number: int, sink: Sink) -> None:
                feed = stepper.feeds[number]
                assert feed is not None
                store = store_of(self.world, self.task, sink, quiet, number)
                store.put(store.region, stepper.own(feed))
                store.finish()

            with stepper.phases("checkpoint"):
                self._save(stepper.done, write)
            stepper.saved = stepper.done
        self._next = self._later(stepper.world.control, stepper.done)
        return False

    def after_pass(self, done: int, write: Callable[[int, Sink], None]) -> None:
        """Write a checkpoint of fields that are in files, if one is due. Collective.

        write: called with the number of an output that feeds an input, and the file for it.
        """
        assert self.interval is not None
        if (self.interval.steps is None or done % self.interval.steps == 0) and self._is_due():
            self._save(done, write)

    def _is_due(self) -> bool:
        """Whether the interval has passed, on rank 0's clock; of an interval of steps it has."""
        assert self.interval is not None
        seconds = self.interval.seconds
        return seconds is None or bool(
            self.world.control.broadcast(time.monotonic() - self._began >= seconds)
        )

    def end(self, stepper: Stepper) -> None:
        """Write nothing: the outputs hold the last state."""

    def remove(self) -> None:
        """Remove all checkpoints: the run is complete."""
        if self.transaction.recovery_hint is not None:
            self.transaction.set_recovery_hint(None)
        self.world.on_root(self.folder.remove)

    def distrust(self) -> None:
        """Set the failure's hint to starting again: if results are wrong, so may be checkpoints."""
        if self.transaction.recovery_hint is not None:
            self.transaction.set_recovery_hint(self.folder.discard)

    def _later(self, control: Control, done: int, *, first: bool = False) -> int:
        """Return the next step at which to save or to check the clock: the same on all ranks."""
        if self.interval is None:
            return NEVER
        if self.interval.steps is not None:
            return next_multiple(done, self.interval.steps)
        assert self.interval.seconds is not None
        passed, steps = time.monotonic() - self._began, 0 if first else done - self._saved_at
        chosen: int = control.broadcast(done + self.interval.steps_to_look(passed, steps))
        return chosen

    def _save(self, done: int, write: Callable[[int, Sink], None]) -> None:
        world, folder = self.world, self.folder
        colors = None if self.before is None else self.before()
        values = {one.name: one.save() for one in self.observers}
        place_of = world.on_root(folder.begin)

        def save(
            name: str, known: ArrayType, write: Callable[[Sink], None], subgrid: Subgrid | None = None
        ) -> None:
            sink = open_spread(place_of / f"{name}.npy", subgrid, known, world.run_id)
            world.on_root(sink.create)
            write(sink)
            world.collective_call(sink.sync)
            world.on_root(partial(rename, sink.partial, sink.path))

        fields = {field.name: field for field in self.task.fields}
        for number, name in enumerate(self.task.job.feeds):
            if name is not None:
                one = fields[name]
                save(name, (one.shape, one.dtype), partial(write, number), one.subgrid)
        for name, cells in self.more(done).items():
            save(name, (self.task.shape, cells.dtype), partial(self._store, cells))
        world.on_root(lambda: folder.commit(done, self.fingerprint(), colors, values))
        self.keep_unfinished()
        self.start(done)
        self.written += 1
        self.set_hint()

    def keep_unfinished(self) -> None:
        """Have a failure leave the observers' unfinished files, with which a resumed run goes on."""
        kept = {path.absolute() for one in self.observers for path in one.unfinished}
        if kept:
            partials = self.transaction.partials
            self.transaction.track_partial(*(path for path in partials if path not in kept))

    def _store(self, cells: Array, sink: Sink) -> None:
        """Write this rank's cells of a field that no output feeds."""
        partition, quiet = self.task.partition, self.world.new_phases()
        store = Store(self.world, sink, partition.__getitem__, (sink.shape, sink.dtype), quiet)
        store.put(partition[self.world.rank], cells)
        store.finish()

    def set_hint(self) -> None:
        """Set the hint of a failure: how to continue from the checkpoint."""
        if self.transaction.recovery_hint is None:
            self.transaction.set_recovery_hint(
                f"checkpoints are kept; continue with the same command and {option('resume', True)}"
            )


def find_state(checkpoints: Checkpoints, *, resume: bool) -> SavedState | None:
    """Return the state to continue from; None to start at the beginning. On rank 0.

    Raises UserError if there are checkpoints and the run is not resumed, if another program left them, or if
    they are not before the last step.
    """
    folder = checkpoints.folder
    state = folder.newest()
    if state is None:
        if checkpoints.interval is not None:
            folder.check_place()
        return None
    if not resume:
        raise UserError(
            f"an earlier run of {folder.output} left checkpoints, the last after step {state.step:,}",
            hint=f"the same command with {option('resume', True)}, or {folder.discard}",
        )
    folder.check(state, checkpoints.fingerprint())
    if state.step >= checkpoints.steps:
        raise UserError(
            f"the checkpoint of {folder.output} is not before the last step",
            got=option("steps", checkpoints.steps),
            expected=f"at least {state.step + 1}: the checkpoint is of step {state.step}",
        )
    return state


def restore(checkpoints: Checkpoints, state: SavedState) -> None:
    """Restore the observers from the state that the run continues from. Collective."""
    warn_of_unknown(checkpoints.world, checkpoints.task.job.name, checkpoints.inputs)
    checkpoints.set_hint()
    for observer in checkpoints.observers:
        observer.restore(state.values.get(observer.name))
