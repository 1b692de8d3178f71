"""Array files. One module a format; this registry picks by suffix. Knows nothing of ranks.

A source gives parts of an array that is on disk; a sink takes parts of one that will be. A sink
works on a file (or folder) beside the final name, which `commit` renames: a failed run leaves no
half file and no changed old one. A container holds several arrays: `file.h5:/group/name`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from runner.errors import UserError
from runner.files import exchange, is_protected, is_stream, longest_name, remove_path
from runner.region import HostArray, Region, Shape
from runner.storage.file_errors import write_error
from runner.storage.formats.containers import check_alone, check_array
from runner.storage.formats.declared_form import agree
from runner.storage.paths import BESIDE, partial_path, split, suffix

# The module of each suffix, imported when the first such file is met.
FORMATS = {
    ".npy": "npy",
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".bmp"), "image"),
    **dict.fromkeys((".tif", ".tiff"), "tiff"),
    **dict.fromkeys((".raw", ".bin", ".dat"), "raw"),
    ".zarr": "zarr",
    **dict.fromkeys((".h5", ".hdf5"), "hdf5"),
}
FOLDERS = (".zarr",)
CONTAINERS = (".zarr", ".h5", ".hdf5")
EXTRAS = {"zarr": "zarr", "h5py": "hdf5", "tifffile": "tiff"}  # package: what to install with meshrun


@dataclass(frozen=True)
class Form:
    """A file's array as described from outside: by --input-shape, --input-dtype and --input-order.

    A raw file cannot do without; what other files say of themselves must agree. order: "C", or "F"
    for a file in which the first index runs fastest; None if not given, which means "C".
    """

    shape: Shape | None = None
    dtype: str | None = None
    order: str | None = None


class Source(Protocol):
    """An array on disk, opened for reading. Pickles as a description; each rank opens the file itself.

    name: of the array in a container. form: what the file alone does not say.
    parallel: every rank may read its own part cheaply; otherwise one rank reads for all.
    chunks: the shape in which the format keeps the array; a read of less decodes the whole chunk.
    """

    path: Path
    parallel: bool

    @property
    def name(self) -> str | None: ...

    @property
    def form(self) -> Form: ...

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def chunks(self) -> Shape | None: ...

    @property
    def array(self) -> Any:
        """The whole array: an ndarray, mapped where the format allows, or an `Unmapped`."""

    def read(self, region: Region, target: HostArray) -> None:
        """Copy `region` to `target`, of that shape and `dtype`, any strides. Several threads may at once.

        The file's pages do not become this process's memory, as a map's would.
        """


class Sink(Protocol):
    """An array being written, at `partial` until it is renamed to `path`.

    parallel: every rank writes its own part; otherwise one rank writes the whole.
    lossless: what is read back equals what was written.
    chunks: regions written begin at multiples of it, and end at such or at the array's end; None: anywhere.
    threads: of this process that write at once, to be set by whoever has several.
    """

    path: Path
    partial: Path
    parallel: bool
    lossless: bool
    threads: int

    @property
    def name(self) -> str | None: ...

    @property
    def form(self) -> Form: ...

    @property
    def chunks(self) -> Shape | None: ...

    def create(self) -> None:
        """Make the file, with room for everything where that can be claimed; one rank."""

    def write(self, region: Region, array: HostArray) -> None:
        """Write `array` as `region`; every rank, several threads at once, after `create` on one.

        Also by a sink that finds `partial` as an earlier run has left it.
        """

    def sync(self) -> None:
        """Return when what this process has written is on the disk."""


@dataclass
class MemorySource:
    """An array that is in memory already, of NumPy or CuPy. It is the caller's, and stays as it is."""

    values: Any
    path: Path = Path("array in memory")
    parallel: bool = True
    name: str | None = None
    form: Form = Form()
    chunks: Shape | None = None

    @property
    def array(self) -> Any:
        if not isinstance(self.values, np.ndarray):
            return self.values.copy()  # CuPy has no read-only arrays
        view = self.values.view()
        view.flags.writeable = False
        return view

    @property
    def shape(self) -> Shape:
        return tuple(self.values.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(self.values.dtype)
        return dtype

    def read(self, region: Region, target: HostArray) -> None:
        part = self.values[region.slices]
        target[...] = part.get() if hasattr(part, "__cuda_array_interface__") else part


def open_source(path: Path, form: Form | None = None) -> Source:
    """Open an array by its file's suffix.

    UserError for a missing, unreadable or broken file, for one that contradicts `form`, and for a
    container of several arrays of which none is named.
    """
    return _open(*split(path), form or Form())


def reopen(source: Source) -> Source:
    """The same array opened anew, by the same means: nothing of `source` but its description is used."""
    if isinstance(source, MemorySource):
        return source
    return _open(source.path, source.name, source.form)


def read_back(sink: Sink) -> Source:
    """What `sink` has written, opened as any file of its format would be."""
    return _open(sink.partial, sink.name, sink.form)


def _open(path: Path, name: str | None, form: Form) -> Source:
    try:
        folder = suffix(path) in FOLDERS
        there = path.is_dir() if folder else path.is_file()
        if not there:
            kind = "a folder" if path.is_dir() else "a file" if path.is_file() else "nothing there"
            kind = "a device or a pipe" if path.exists() and kind == "nothing there" else kind
            expected = "a folder that holds arrays" if folder else "an array file"
            raise UserError(f"cannot read {path}", got=kind, expected=expected, hint=f"ls {path.parent}")
        source: Source = _format(path).open_source(path, name, form)
    except OSError as reason:
        raise UserError(f"cannot read {path}", got=reason.strerror or reason) from reason
    agree(source, form)
    return source


def open_sink(path: Path, shape: Shape, dtype: np.dtype[Any], run_id: str) -> Sink:
    """A sink for an array of `shape` and `dtype`; UserError when the format cannot hold it."""
    file, name = split(path)
    sink: Sink = _format(file).open_sink(file, partial_path(file, run_id), name, shape, dtype)
    return sink


def create(sinks: Sequence[Sink]) -> None:
    """Make the files of `sinks`, one for all that are in one container; one rank."""
    for partial in dict.fromkeys(sink.partial for sink in sinks):
        sharing = [sink for sink in sinks if sink.partial == partial]
        if suffix(partial) in CONTAINERS:
            _format(partial).create(sharing)
        else:
            sharing[0].create()


def array_at(path: Path) -> tuple[Path, str | None]:
    """Return the file of an output, and the name that its array has in there; None: the file is the array."""
    file, name = split(path)
    return (file, name or _format(file).NAME) if suffix(file) in CONTAINERS else (file, None)


def check_output(path: Path, *, alone: bool = False) -> None:
    """Refuse an output that could not be written, before any work is done.

    alone: the whole file is replaced; else other arrays of a container stay.
    """
    file, name = array_at(path)
    format = _format(file)
    check_place(file, "output", folder=suffix(file) in FOLDERS, beside=BESIDE)
    if name is not None and file.exists():
        if alone or name == "":
            check_alone(file, set(format.names(file)) - {name})
        else:
            check_array(file, name, format.kinds(file, name))


def check_place(path: Path, what: str, folder: bool = False, beside: int = 0) -> None:
    """Refuse a path at which no file could be made. what: the file's name in the sentence.

    folder: it is a folder that is made, and a file that is in its way. beside: bytes that names have more
    of files that are made next to it.
    """
    parent = path.parent
    check_name(path.name, parent, what, beside)
    if beside == 0 and is_stream(path) and os.access(path, os.W_OK):
        return
    try:
        in_the_way = path.is_file() if folder else path.is_dir()
        special = path.exists() and not path.is_file() and not path.is_dir()
        is_in_folder = parent.is_dir()
    except OSError as reason:  # a name too long, for one
        raise UserError(f"the {what}'s name cannot be used", got=reason.strerror) from reason
    if in_the_way:
        kinds = ("a folder's name", "a file") if folder else ("a file name", "a folder")
        raise UserError(f"the {what} is {kinds[1]}", got=path, expected=kinds[0])
    if special:
        raise UserError(
            f"the {what} is a named pipe, a socket or a device",
            got=path,
            expected="a folder's name" if folder else "a file name",
        )
    if not is_in_folder and parent.exists():
        raise UserError(f"the {what}'s folder is a file", got=parent, expected="a folder")
    if not is_in_folder:
        raise UserError(f"the {what}'s folder does not exist", got=parent, hint=f"mkdir -p {parent}")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"the {what}'s folder cannot be written to", got=parent, hint="another folder")
    if is_protected(path):
        mode = stat.filemode(path.stat().st_mode)
        raise UserError(
            f"the {what} is write-protected", got=f"{mode} {path}", hint=f"chmod u+w {path}, or another name"
        )


def check_name(name: str, folder: Path, what: str, beside: int) -> None:
    """Refuse a name so long that a file beside it, of a name with `beside` bytes more, could have none."""
    longest, length = longest_name(folder) - beside, len(os.fsencode(name))
    if length > longest:
        more = ", since files beside it have longer names" if beside else ""
        raise UserError(f"the {what}'s name is too long", got=f"{length} bytes", expected=f"{longest}{more}")


def commit(sink: Sink) -> None:
    """Give the finished file or folder its final name."""
    rename(sink.partial, sink.path)


def rename(partial: Path, path: Path) -> None:
    """Give the finished file or folder at `partial` the name `path`, in place of an old one."""
    old = partial.with_suffix(".replaced")
    try:
        for stray in partial.rglob("*.partial"):  # chunks that a killed writer of a folder has begun
            if stray.is_file():
                stray.unlink()
        if partial.is_dir() and path.is_dir():  # a folder cannot be renamed over another one
            remove_path(old)  # of a run that was killed while it removed it
            if exchange(partial, path):
                os.rename(partial, old)
            else:
                os.rename(path, old)
                _name(partial, path, old)
        else:
            os.replace(partial, path)
    except OSError as reason:
        raise write_error(path, reason, partial=partial) from reason
    with contextlib.suppress(OSError):
        remove_path(old)


def _name(partial: Path, path: Path, old: Path) -> None:
    """Rename `partial` to `path`, or `old` back to it."""
    try:
        os.replace(partial, path)
    except OSError:
        os.rename(old, path)
        raise


def _format(path: Path) -> Any:
    name = FORMATS.get(suffix(path))
    if name is None:
        raise UserError(
            f"unknown file format: {path}",
            got=path.suffix or "no suffix",
            expected=", ".join(FORMATS),
            hint="numpy.save for anything else",
        )
    try:
        return importlib.import_module(f"runner.storage.formats.{name}")
    except ModuleNotFoundError as reason:
        if reason.name not in EXTRAS:
            raise
        if name == "tiff":  # simple pictures need no more than Pillow
            return importlib.import_module("runner.storage.formats.image")
        raise UserError(
            f"{path} cannot be opened without the package {reason.name}",
            hint=f"pip install 'meshrun[{EXTRAS[reason.name]}]'",
        ) from reason
