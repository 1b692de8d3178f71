"""Array files. One module a format; this registry picks by suffix. Knows nothing of ranks.

A source gives parts of an array that is on disk; a sink takes parts of one that will be. A sink
works on a file beside the final name, which `commit` renames: a failed run leaves no half file
and no changed old one.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from runner.errors import RunError, UserError
from runner.partition import Region, Shape

HostArray = np.ndarray[Any, Any]
# The module of each suffix, imported when the first such file is met.
FORMATS = {".npy": "npy", **dict.fromkeys((".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp"), "image")}


class Source(Protocol):
    """An array on disk, opened for reading.

    parallel: every rank may read its own part cheaply; otherwise one rank reads for all.
    """

    path: Path
    parallel: bool

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def array(self) -> HostArray:
        """The whole array, lazily where the format allows."""

    def read(self, region: Region, target: HostArray) -> None:
        """Copy `region` to `target`, of that shape, in native byte order."""


class Sink(Protocol):
    """An array file being written, at `partial` until it is renamed to `path`.

    parallel: every rank writes its own part; otherwise one rank writes the whole.
    lossless: what is read back equals what was written.
    """

    path: Path
    partial: Path
    parallel: bool
    lossless: bool

    def create(self) -> None:
        """Make the file with room for everything; one rank."""

    def write(self, region: Region, array: HostArray) -> None:
        """Write `array` as `region`; every rank, after `create` on one."""


@dataclass
class MemorySource:
    """An array that is in memory already, of NumPy or CuPy."""

    array: Any
    path: Path = Path("array in memory")
    parallel: bool = True

    @property
    def shape(self) -> Shape:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(self.array.dtype)
        return dtype

    def read(self, region: Region, target: HostArray) -> None:
        part = self.array[region.slices]
        target[...] = part.get() if hasattr(part, "__cuda_array_interface__") else part


def open_source(path: Path) -> Source:
    """Open an array file by its suffix. UserError for a missing, unreadable or broken file."""
    try:
        if not path.is_file():
            kind = "a folder" if path.is_dir() else "nothing there"
            raise UserError(
                f"cannot read {path}", got=kind, expected="an array file", hint=f"ls {path.parent}"
            )
        source: Source = _format(path).open_source(path)
        return source
    except OSError as reason:
        raise UserError(f"cannot read {path}", got=reason.strerror or reason) from reason


def open_sink(path: Path, shape: Shape, dtype: np.dtype[Any], nonce: str) -> Sink:
    """A sink for an array of `shape` and `dtype`; UserError when the format cannot hold it."""
    sink: Sink = _format(path).open_sink(path, partial_path(path, nonce), shape, dtype)
    return sink


def read_back(sink: Sink) -> Source:
    """What `sink` has written, opened as any file of its format would be."""
    source: Source = _format(sink.path).open_source(sink.partial)
    return source


def partial_path(path: Path, nonce: str) -> Path:
    """Where the file is until it is complete: beside its final name, so that the rename is atomic."""
    return path.with_name(f".{path.name}.{nonce}.partial")


def check_output(path: Path) -> None:
    """Refuse an output that could not be written, before any work is done."""
    _format(path)
    check_place(path, "output")


def check_place(path: Path, what: str) -> None:
    """Refuse a path at which no file could be made. what: the file's name in the sentence."""
    folder = path.parent
    try:
        is_folder, is_in_folder = path.is_dir(), folder.is_dir()
    except OSError as reason:  # a name too long, for one
        raise UserError(f"the {what}'s name cannot be used", got=reason.strerror) from reason
    if is_folder:
        raise UserError(f"the {what} is a folder", got=path, expected="a file name")
    if not is_in_folder:
        raise UserError(f"the {what}'s folder does not exist", got=folder, hint=f"mkdir -p {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"the {what}'s folder cannot be written to", got=folder, hint="another folder")


def commit(sink: Sink) -> None:
    """Give the finished file its final name."""
    try:
        os.replace(sink.partial, sink.path)
    except OSError as reason:
        raise write_error(sink.path, reason) from reason


def write_error(path: Path, reason: OSError, needed: int | None = None) -> RunError:
    """The sentence for a failed write: a full disk is the common one."""
    detail = reason.strerror or str(reason)
    try:
        disk = os.statvfs(path.parent)
        free = disk.f_bavail * disk.f_frsize
    except OSError:
        return RunError(f"cannot write {path}", got=detail)
    expected = None if needed is None else f"{needed:,} bytes"
    return RunError(
        f"cannot write {path}",
        got=f"{detail}, {free:,} bytes free there",
        expected=expected,
        hint="an output on another disk",
    )


def not_shared(path: Path, reason: OSError) -> RunError:
    """The sentence for a file that rank 0 has and this rank has not."""
    return RunError(
        f"rank 0 has {path}, this rank cannot open it",
        got=reason.strerror or reason,
        hint="a file system that all hosts share, with the same path on each",
    )


def _format(path: Path) -> Any:
    name = FORMATS.get(path.suffix.lower())
    if name is None:
        raise UserError(
            f"unknown file format: {path}",
            got=path.suffix or "no suffix",
            expected=", ".join(FORMATS),
            hint="numpy.save for anything else",
        )
    return importlib.import_module(f"runner.storage.{name}")
