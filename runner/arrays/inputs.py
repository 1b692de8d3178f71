"""Input files of a run: detect files that change while they are read.

Each host compares the files' states before any rank reads and after all ranks have read: its first rank
checks folders, every rank checks plain files. So hosts may have their own copies, and a change that the file
server's client on one host has not seen yet is detected by another host.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from meshrun.runner.compiler.function_key import Captured
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.world.world import World


class State(NamedTuple):
    """Properties that change when a file or a folder of files does. files: their number; 0 if there are none.

    changed: time of the last change of contents. touched: time of the last change of contents, name, owner
    or permissions; no program can set it back. Both in nanoseconds since 1970.
    """

    size: int
    changed: int
    files: int
    touched: int

    def __str__(self) -> str:
        if self.files == 0:
            return "no file"
        files = f" in {self.files} files" if self.files != 1 else ""
        touched = "" if self.touched == self.changed else f", its status {_when(self.touched)}"
        return f"{self.size:,} bytes{files}, changed {_when(self.changed)} UTC{touched}"


def _when(nanoseconds: int) -> str:
    seconds, fraction = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}.{fraction:09d}"


def state_of(path: Path) -> State:
    """Return the state of a file or folder, which changes when its contents do."""
    if path.is_file():
        return _sum([_status(path)])
    found = []
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                found.append(os.stat(os.path.join(folder, name)))
            except FileNotFoundError:  # removed at this moment
                continue
    return _sum(found)


def _status(path: Path) -> os.stat_result:
    """Return the status of the opened file: on NFS, stat(2) uses a cache and open(2) queries the server."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        return path.stat()
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _sum(found: list[os.stat_result]) -> State:
    return State(
        sum(one.st_size for one in found),
        max((one.st_mtime_ns for one in found), default=0),
        len(found),
        max((one.st_ctime_ns for one in found), default=0),
    )


@dataclass(frozen=True)
class Inputs:
    """The input files of a run and their states.

    paths: by `input_key` or a parameter's name. states: before the first read, as seen by this rank, for the
    files that it checks; on rank 0 for all. containers: the same for old files to which outputs are added, as
    seen by rank 0. captured: by the job's function, before its first call; on rank 0 only."""

    paths: Mapping[str, Path] = field(default_factory=dict)
    states: Mapping[str, State] = field(default_factory=dict)
    containers: Mapping[Path, State] = field(default_factory=dict)
    linked: Collection[Path] = ()  # folders whose files get hard links during the run
    captured: Captured = field(default_factory=Captured)

    def seen_by(self, world: World) -> Inputs:
        """Return the inputs with their states as seen by this rank, before it reads. On any rank but 0."""
        return replace(self, states=_states(self.paths, self.linked, folders=world.here.local == 0))

    def check(self, world: World, hint: str | None = None) -> None:
        """Raise RunError on every rank if a file has changed. Collective.

        To be called after a barrier: no rank may still be reading while another one checks.
        """
        if self.paths:
            world.collective_call(lambda: self._check(hint))

    def _check(self, hint: str | None) -> None:
        for name, before in self.states.items():
            if (after := _seen(self.paths[name], linked=self.linked)) != before:
                raise RunError(
                    f"{self.paths[name]} changed while it was read",
                    got=after,
                    expected=before,
                    hint=hint or "run again when no other process writes it",
                )

    def changed_container(self) -> Path | None:
        """Return a container that has changed since the run began; None: none has. On rank 0."""
        for path, before in self.containers.items():
            if state_of(path)[:3] != before[:3]:  # hard links change the other properties
                return path
        return None

    @property
    def of_parameters(self) -> dict[str, Any]:
        """Return the files given as parameters, as plain values, for a journal. On rank 0."""
        return {
            name: {
                "path": str(self.paths[name].resolve()),
                "bytes": state.size,
                "changed_ns": state.changed,
                "files": state.files,
            }
            for name, state in self.states.items()
            if not _is_input(name)
        }


def input_key(number: int) -> str:
    """Return the key of input `number` in `Inputs`; no parameter has such a name."""
    return f"input {number + 1}"


def _is_input(key: str) -> bool:
    return key.startswith("input ")


def note(paths: Mapping[str, Path], containers: Sequence[Path], captured: Captured) -> Inputs:
    """Record the states of files as seen by rank 0, before anything is read.

    paths, captured: of `Inputs`. containers: the files to which outputs are added.
    """
    linked = {path.resolve() for path in containers if path.is_dir()}
    olds = {path: state_of(path) for path in containers}
    return Inputs(paths, _states(paths, linked), olds, linked, captured)


def _states(paths: Mapping[str, Path], linked: Collection[Path], *, folders: bool = True) -> dict[str, State]:
    """Return the states of the files that this rank checks. folders: whether it also checks folders."""
    states = {}
    for name, path in paths.items():
        state = _seen(path, folders, linked=linked)
        if state is not None and (state.files or _is_input(name)):
            states[name] = state
    return states


def _seen(path: Path, folders: bool = True, *, linked: Collection[Path]) -> State | None:
    """Return the state; None for a folder that this rank does not check. linked: see `Inputs`."""
    try:
        if path.is_dir() and not folders:
            return None
        state = state_of(path)
        return state._replace(touched=state.changed) if path.resolve() in linked else state
    except OSError as reason:
        raise UserError(f"cannot read {path}", why=reason.strerror or reason) from reason
