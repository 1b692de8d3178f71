"""The output of a run as a transaction: locked, written under a temporary name, then renamed or removed.

Independent of ranks, signals and the reporting of failures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from meshrun.runner import lock
from meshrun.runner.files import remove_path
from meshrun.runner.storage.formats import registry


class Observer(Protocol):
    """Gets the state of the outputs, to clean up if this process is killed."""

    def note_partial(self, *outputs: Path) -> None:
        """Record the partial outputs to remove."""

    def note_lock(self, *outputs: Path) -> None:
        """Record the outputs that are locked."""

    def note_recovery_hint(self, hint: str) -> None:
        """Record what a failed run leaves behind and how to continue; "": nothing."""

    def note_kept(self) -> None:
        """Record that files stay if the run fails."""


@dataclass
class OutputTransaction:
    """The outputs of one run in one process.

    observer: gets every change, if any. partials: the unfinished files and folders that `roll_back` removes.
    recovery_hint: a sentence for the user: what a run that fails from now on leaves behind, and how to
    continue; None: nothing.
    """

    observer: Observer | None = None
    partials: tuple[Path, ...] = field(default=(), init=False)
    recovery_hint: str | None = field(default=None, init=False)
    _unlock: dict[Path, Callable[[], None]] = field(default_factory=dict, init=False)  # by output

    def lock(self, *outputs: Path) -> None:
        """Keep other runs from writing `outputs`, too, until `release`; UserError if one is writing any."""
        for output in outputs:
            if output not in self._unlock:
                self._unlock[output] = lock.hold(output)
        if self.observer is not None:
            self.observer.note_lock(*self._unlock)

    def release(self) -> None:
        """Unlock the outputs, if they are locked."""
        held, self._unlock = self._unlock, {}
        for unlock in held.values():
            with contextlib.suppress(OSError):
                unlock()

    def track_partial(self, *partials: Path) -> None:
        """Have `roll_back` remove the unfinished files and folders `partials`, and no others."""
        self._set_partials(partials)

    def forget_partial(self) -> None:
        """Have `roll_back` remove nothing: the outputs are committed, or a later run may resume from them."""
        self._set_partials(())

    def set_recovery_hint(self, hint: str | None) -> None:
        """Set the sentence to print if the run fails from now on; None: nothing is left behind."""
        self.recovery_hint = hint
        if self.observer is not None:
            self.observer.note_recovery_hint(hint or "")

    def keep_files(self, hint: str = "") -> None:
        """Report that files stay if the run fails, such as frames: started again, it is resumed.

        hint: how to continue, printed after a failure that no rank can report.
        """
        if self.observer is not None:
            self.observer.note_kept()
            if hint:
                self.observer.note_recovery_hint(hint)

    def commit(self, partial: Path, output: Path) -> None:
        """Rename the finished `partial` to `output`, replacing an old one. On one rank.

        RunError if it cannot be renamed. The ranks that track `partial` call `forget_partial` next.
        """
        registry.rename(partial, output)

    def remove_partials(self) -> None:
        """Remove the unfinished files and folders that were not renamed."""
        for partial in self.partials:
            remove_path(partial)

    def roll_back(self) -> None:
        """Remove partial outputs and unlock: the run has failed. May be called again, from any thread."""
        self.remove_partials()
        self.release()

    def _set_partials(self, partials: tuple[Path, ...]) -> None:
        # Outputs in one container share one. A job's function may change this process's folder.
        partials = tuple(dict.fromkeys(partial.absolute() for partial in partials))
        self.partials = partials
        if self.observer is not None:
            self.observer.note_partial(*partials)
