"""The folder of a run's checkpoints on disk. Independent of ranks."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from meshrun.runner import files
from meshrun.runner.errors import UserError
from meshrun.runner.storage.file_errors import write_error
from meshrun.runner.storage.formats.registry import Source, open_source
from meshrun.runner.storage.journal import check_same, start_over

KEPT = 2  # complete checkpoints that are kept
STATE = "state.json"
ENDED = "ended"  # a file: the program that wrote the checkpoints has come to its end
PARTIAL = ".next.partial"  # the checkpoint that is being written
NAME = re.compile(r"step-([0-9]{1,18})")


@dataclass(frozen=True)
class Colors:
    """The range of colours of a run's pictures. field: the input that they show."""

    field: str
    low: float
    high: float


@dataclass(frozen=True)
class SavedState:
    """A complete checkpoint. fields: by input name. colors: None for a run without pictures so far. values:
    plain values of observers, by their names."""

    step: int
    fingerprint: dict[str, Any]
    fields: dict[str, Source]
    colors: Colors | None = None
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointFolder:
    """The checkpoints of `output`. One process calls the methods; they raise RunError if the disk fails.

    keep: number of complete checkpoints that are kept.
    """

    output: Path
    keep: int = KEPT

    @property
    def path(self) -> Path:
        return self.output.with_name(f"{self.output.name}.checkpoint")

    @property
    def discard(self) -> str:
        """How to discard all checkpoints, for a hint."""
        return start_over(self.path)

    @property
    def partial(self) -> Path:
        """The checkpoint that is being written, to remove if the run fails."""
        return self.path / PARTIAL

    def check_place(self) -> None:
        """Raise an error if no checkpoint can be made."""
        try:
            self.path.mkdir(exist_ok=True)
            files.check_own(self.path, True, self.discard)
            self.begin().rmdir()
            self._remove_empty()
        except OSError as reason:
            raise write_error(self.path, reason) from reason

    def newest(self) -> SavedState | None:
        """Return the newest complete checkpoint; None if there is none.

        UserError if the folder is not of a run of this user, or if no checkpoint is readable.
        """
        if not self.path.exists() and not self.path.is_symlink():
            return None
        files.check_own(self.path, True, self.discard)
        for folder in reversed(self._complete()):
            try:
                found = json.loads((folder / STATE).read_bytes())
                fields = {name: open_source(folder / f"{name}.npy") for name in found["fields"]}
                colors = None if found.get("colors") is None else Colors(**found["colors"])
                values = dict(found.get("values", {}))
                return SavedState(int(found["step"]), dict(found["fingerprint"]), fields, colors, values)
            except (
                OSError,
                ValueError,
                LookupError,
                TypeError,
                AttributeError,
                OverflowError,
                RecursionError,
                UserError,
            ):
                continue  # damaged since it was written: an older one may be readable
        if self._complete():
            raise UserError(f"no checkpoint in {self.path} is readable", hint=self.discard)
        return None

    def begin(self) -> Path:
        """Make the folder of a new checkpoint, under a temporary name, and return it."""
        try:
            self.path.mkdir(exist_ok=True)
            if self.partial.exists():  # of a run that was killed
                shutil.rmtree(self.partial)
            self.partial.mkdir()
        except OSError as reason:
            raise write_error(self.path, reason) from reason
        return self.partial

    def commit(
        self,
        step: int,
        fingerprint: Mapping[str, Any],
        colors: Colors | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        """Complete the checkpoint begun last, and remove those that are too old."""
        fields = sorted(path.stem for path in self.partial.glob("*.npy"))
        state = {
            "step": step,
            "fields": fields,
            "fingerprint": fingerprint,
            "colors": None if colors is None else asdict(colors),
            "values": {**values} if values else {},
        }
        text = json.dumps(state, indent=1)
        final = self.path / f"step-{step}"
        try:
            files.write_file(self.partial / STATE, text, durable=True)
            if final.exists():  # damaged: a complete one would have been resumed
                shutil.rmtree(final)
            self.partial.rename(final)
            files.sync_folder(self.path)
            found = self._complete()
            place = found.index(final) + 1
            # Later ones are damaged, see above.
            for old in (*found[place:], *found[: max(place - self.keep, 0)]):
                shutil.rmtree(old)
        except OSError as reason:
            raise write_error(final, reason) from reason

    @property
    def has_ended(self) -> bool:
        """Whether the program that wrote the checkpoints has come to its end."""
        return (self.path / ENDED).exists()

    def note_end(self) -> None:
        """Note that the program has come to its end, if there are checkpoints."""
        try:
            if self.path.exists() and self._complete():
                (self.path / ENDED).touch()
        except OSError as reason:
            raise write_error(self.path / ENDED, reason) from reason

    def go_on(self) -> None:
        """Note that a program that has come to its end is continued."""
        try:
            (self.path / ENDED).unlink(missing_ok=True)
        except OSError as reason:
            raise write_error(self.path / ENDED, reason) from reason

    def remove(self) -> None:
        """Remove all checkpoints, and the folder unless it has other contents."""
        if self.path.exists():
            for path in (*self._complete(), self.partial, self.path / ENDED):
                files.remove_path(path)
            self._remove_empty()

    def check(self, state: SavedState, wanted: Mapping[str, Any]) -> None:
        """Raise UserError unless the checkpoint's fingerprint is the one wanted."""
        plain = json.loads(json.dumps(wanted))
        check_same(f"{self.output}, its checkpoint", state.fingerprint, plain, self.discard)

    def _remove_empty(self) -> None:
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def _complete(self) -> list[Path]:
        """Return the complete checkpoints, oldest first."""
        found = [
            (int(match[1]), path) for path in self.path.iterdir() if (match := NAME.fullmatch(path.name))
        ]
        return [path for _, path in sorted(found)]
