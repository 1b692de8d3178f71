"""The output file of a job: its name, by Slurm's patterns, and where the job's own output begins in it.

The file may exist before the job, from an earlier job of the same name or, after Slurm's numbers have begun
again, of the same number. Therefore each job's script begins with a line of its own (`mark`).
"""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from meshrun.launch.slurm.queries import JobState

JOB_NAME = "meshrun"
SPECIFIER = re.compile(r"%(\d*)([A-Za-z%])")  # "%j", "%5j" (at least 5 digits), "%%"
NO_TASK = str(2**32 - 2)  # Slurm's %a in a job that is no array
CHUNK = 1 << 20  # bytes


def values_before(environment: Mapping[str, str]) -> dict[str, str]:
    """The specifiers whose values are known before a job is submitted."""
    values = {"x": environment.get("SBATCH_JOB_NAME") or JOB_NAME}  # by which sbatch replaces the script's
    with contextlib.suppress(KeyError):  # a user without a name
        values["u"] = pwd.getpwuid(os.geteuid()).pw_name
    return values


def values_of(state: JobState, before: Mapping[str, str]) -> dict[str, str]:
    """The specifiers whose values a job or task has told. before: those of `values_before`."""
    array, _, task = state.id.partition("_")
    return {**before, "x": state.name or before["x"], "j": state.number, "A": array, "a": task or NO_TASK}


def expand(pattern: str, values: Mapping[str, str], other: Callable[[str], str] = str) -> str:
    """Replace the specifiers of a file name pattern of sbatch.

    values: by letter, "j" for "%j". other: returns what replaces a specifier without a value.
    """

    def replaced(match: re.Match[str]) -> str:
        width, letter = match[1], match[2]
        if letter == "%":
            return "%"
        if letter not in values:
            return other(match[0])
        value = values[letter]
        return value.zfill(int(width)) if width and value.isdecimal() else value

    return SPECIFIER.sub(replaced, pattern)


def absolute(pattern: str, folder: str) -> str:
    """A pattern with an absolute path. folder: for a relative one; a % in its name is no specifier."""
    return os.path.join(folder.replace("%", "%%"), pattern)


def letters(pattern: str) -> set[str]:
    """The specifiers of a pattern, without "%%"."""
    return {letter for _, letter in SPECIFIER.findall(pattern)} - {"%"}


def check_output(pattern: str, values: Mapping[str, str], folder: Path) -> None:
    """UserError if Slurm could not write to the output file, or meshrun could not read it.

    values: that are known before the job is submitted. folder: the job's working directory.
    """
    from meshrun.runner.errors import UserError

    what, hint = f"--output {pattern}", "a file in a folder that exists, such as meshrun-%j.out"
    if pattern.lower() == "none":
        raise UserError(f"{what}: Slurm takes it for /dev/null, where meshrun cannot read it", hint=hint)
    parent, _, name = pattern.rpartition("/")
    if not name:
        raise UserError(f"{what} is a folder", hint=hint)
    if new := letters(parent) & {*"jAJs"}:
        raise UserError(
            f"{what}: there is no folder for a new job's %{min(new)}, and Slurm creates none", hint=hint
        )
    where = folder / expand(f"{parent}/" if parent or pattern.startswith("/") else ".", values)
    if not letters(parent) - values.keys():
        if not where.is_dir():
            raise UserError(
                f"{what}: folder {where} does not exist", hint=f"mkdir -p {shlex.quote(str(where))}"
            )
        if not letters(name) - values.keys():
            _check_file(what, where / expand(name, values), hint)


def _check_file(what: str, file: Path, hint: str) -> None:
    from meshrun.runner.errors import UserError

    if file.is_dir():
        raise UserError(f"{what} is a folder", hint=hint)
    if file.exists() and not file.is_file():
        raise UserError(f"{what} is not a regular file, and meshrun could not read it", hint=hint)
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UserError(f"{what}: you may not write to {file}", hint=hint)


@dataclass
class OutputFile:
    """The output of one job or task.

    pattern: the absolute file name, by Slurm's patterns. values: of its specifiers. mark: with which the
    job's output begins, a line. appends: Slurm appends to an old file, instead of truncating it.
    """

    pattern: str
    values: Mapping[str, str]
    mark: bytes
    appends: bool = False
    _path: str | None = field(default=None, init=False)
    _read: int = field(default=0, init=False)
    _searched: dict[str, tuple[int, int, int]] = field(default_factory=dict, init=False)

    @property
    def found(self) -> bool:
        """Whether this job's output is here."""
        return self._path is not None

    def __str__(self) -> str:
        return self._path or expand(self.pattern, self.values)

    def read(self) -> bytes:
        """The next part of what the job has written; b"" if there is no more.

        The file is opened again each time, so that a network file system updates it.
        """
        if self._path is None:
            self._find()
        if self._path is None:
            return b""
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._read)
            text = file.read(CHUNK)
            self._read += len(text)
            return text
        return b""

    def _find(self) -> None:
        # The values of others, such as %N, depend on Slurm's version: the mark decides.
        parts = expand(self.pattern, self.values, lambda _: "\0").split("\0")
        for path in filter(os.path.isfile, glob.iglob("*".join(map(glob.escape, parts)))):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                state = os.fstat(file.fileno())
                searched = (state.st_ino, state.st_size, state.st_mtime_ns)
                if self._searched.get(path) == searched:
                    continue
                start = _position(file, self.mark)
                if start is not None:
                    self._path, self._read = path, start if self.appends else 0
                    return
                self._searched[path] = searched


def _position(file: BinaryIO, mark: bytes) -> int | None:
    """Where `mark` begins in a file; None if it is not there."""
    before, passed = b"", 0
    while chunk := file.read(CHUNK):
        text = before + chunk
        if (index := text.find(mark)) >= 0:
            return passed + index
        before = text[-len(mark) :]
        passed += len(text) - len(before)
    return None
