"""The output of a run as a transaction: locked, written beside its final name, then renamed or removed.

Knows nothing of ranks, signals or how failures are reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from runner import lock
from runner.files import remove_path
from runner.storage import formats


class Observer(Protocol):
    """Who must know the state of the output, to clean up when this process is killed."""

    def note_partial(self, output: Path | None) -> None:
        """The partial output to remove; None: none."""

    def note_lock(self, output: Path) -> None:
        """The output that is locked."""

    def note_recovery_hint(self, hint: str) -> None:
        """What a failed run leaves behind, and how to continue; "": nothing."""


@dataclass
class OutputTransaction:
    """The output of one run in one process.

    observer: informed of every change; None: nobody. partial: the unfinished file or folder that `roll_back`
    removes. recovery_hint: a sentence for the user: what a run that fails from now on leaves behind, and how
    to continue; None: nothing.
    """

    observer: Observer | None = None
    partial: Path | None = field(default=None, init=False)
    recovery_hint: str | None = field(default=None, init=False)
    _unlock: Callable[[], None] | None = field(default=None, init=False)

    def lock(self, output: Path) -> None:
        """Keep other runs from writing `output` until `release`; UserError if one is writing it."""
        self._unlock = lock.hold(output)
        if self.observer is not None:
            self.observer.note_lock(output)

    def release(self) -> None:
        """Unlock the output, if it is locked."""
        unlock, self._unlock = self._unlock, None
        if unlock is not None:
            with contextlib.suppress(OSError):
                unlock()

    def track_partial(self, partial: Path) -> None:
        """Have `roll_back` remove the unfinished file or folder `partial`."""
        self._set_partial(partial)

    def forget_partial(self) -> None:
        """Have `roll_back` remove nothing: the output is committed, or a later run may resume from it."""
        self._set_partial(None)

    def set_recovery_hint(self, hint: str | None) -> None:
        """Set the sentence to print if the run fails from now on; None: nothing is left behind."""
        self.recovery_hint = hint
        if self.observer is not None:
            self.observer.note_recovery_hint(hint or "")

    def commit(self, partial: Path, output: Path) -> None:
        """Rename the finished `partial` to `output`, replacing an old one. On one rank.

        RunError where it cannot be renamed. The ranks that have tracked `partial` call `forget_partial` next.
        """
        formats.rename(partial, output)

    def roll_back(self) -> None:
        """Remove the partial output and unlock: the run has failed. May be called again, from any thread."""
        if self.partial is not None:
            remove_path(self.partial)
        self.release()

    def _set_partial(self, partial: Path | None) -> None:
        self.partial = partial
        if self.observer is not None:
            self.observer.note_partial(partial)
