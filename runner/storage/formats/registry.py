"""Registry of array formats: one module per format, selected by suffix. Independent of ranks.

A source reads parts of an array on disk; a sink writes parts of a new one. A sink writes to a file or folder
under a temporary name, which `commit` renames: a failed run leaves neither an incomplete file nor a changed
old one. A container holds several arrays: `file.h5:/group/name`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.files import (
    check_exists,
    exchange,
    is_protected,
    is_stream,
    is_virtual,
    keep_mode,
    longest_name,
    no_folder,
    remove_path,
)
from meshrun.runner.options.form import NO_FORM, Form
from meshrun.runner.region import HostArray, Region, Shape, Subgrid
from meshrun.runner.spelling import option
from meshrun.runner.storage.file_errors import other_format, write_error
from meshrun.runner.storage.formats.containers import check_alone, check_array
from meshrun.runner.storage.formats.declared_form import parse_dtype
from meshrun.runner.storage.formats.sliced_array import Unmapped
from meshrun.runner.storage.paths import BESIDE, CONTAINERS, partial_path, split, suffix

# The module for each suffix; imported for the first such file.
FORMATS = {
    ".npy": "npy",
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".bmp"), "image"),
    **dict.fromkeys((".tif", ".tiff"), "tiff"),
    **dict.fromkeys((".raw", ".bin", ".dat"), "raw"),
    ".zarr": "zarr",
    **dict.fromkeys((".h5", ".hdf5"), "hdf5"),
}
FOLDERS = (".zarr",)
EXTRAS = {"zarr": "zarr", "h5py": "hdf5"}  # package: meshrun's extra that installs it
PICTURES = ("image", "tiff")  # formats whose files are told apart by their first bytes
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # how such a file begins


class Source(Protocol):
    """An array on disk, opened for reading. Pickled as a description; each rank opens the file itself.

    name: of the array in a container. form: description of the array, for reopening the file.
    parallel: every rank can read its own part; otherwise one rank reads for all. decoded_bytes: of the whole
    array, if reading a part decodes the file as a whole; else 0.
    chunks: the shape of the format's chunks; reading a part of a chunk decodes the whole chunk.
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
    def decoded_bytes(self) -> int: ...

    @property
    def array(self) -> Any:
        """The whole array: an ndarray, mapped if the format allows it, or an `Unmapped`."""

    def read(self, region: Region, target: HostArray) -> None:
        """Copy `region` to `target`, which has its shape, this `dtype` and any strides. Thread-safe.

        Unlike with a map, the file's pages do not count as this process's memory.
        """


class Sink(Protocol):
    """An array that is being written, at `partial` until it is renamed to `path`.

    parallel: every rank writes its own part; otherwise one rank writes the whole. lossless: values that are
    read back equal those written. chunks: a written region must begin at a multiple of this shape, and end at
    one or at the array's end; None: anywhere. threads: number of this process's threads that write at once;
    set by a caller with several.
    """

    path: Path
    partial: Path
    shape: Shape
    dtype: np.dtype[Any]
    threads: int

    @property
    def parallel(self) -> bool: ...

    @property
    def lossless(self) -> bool: ...

    @property
    def name(self) -> str | None: ...

    @property
    def form(self) -> Form: ...

    @property
    def chunks(self) -> Shape | None: ...

    def create(self) -> None:
        """Create the file, with its space allocated if possible. On one rank."""

    def write(self, region: Region, array: HostArray) -> None:
        """Write `array` as `region`: on any rank, in several threads at once, after `create` on one rank.

        Instead of `create`, `partial` may have been left by an earlier run.
        """

    def sync(self) -> None:
        """Wait until everything that this process has written is on the disk."""


@dataclass
class MemorySource:
    """An array in memory, of NumPy or CuPy. It belongs to the caller and is not changed."""

    values: Any
    path: Path = Path("array in memory")
    parallel: bool = True
    decoded_bytes: ClassVar[int] = 0
    name: str | None = None
    form: Form = NO_FORM
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


@dataclass
class ComputedSource:
    """An array that a function computes, part by part.

    fill: (region, array) writes the region's cells to an array of `dtype`; the same on every rank.
    description: plain values on which the cells depend, to tell one such array from another.
    """

    shape: Shape
    dtype: np.dtype[Any]
    fill: Callable[[Region, HostArray], object]
    description: Mapping[str, Any] = field(default_factory=dict)
    path: Path = Path("computed array")
    parallel: bool = True
    decoded_bytes: ClassVar[int] = 0
    name: str | None = None
    form: Form = NO_FORM
    chunks: Shape | None = None

    @property
    def array(self) -> Any:
        whole = np.empty(self.shape, self.dtype)
        self.fill(Region((0,) * len(self.shape), self.shape), whole)
        return whole

    def read(self, region: Region, target: HostArray) -> None:
        self.fill(region, target)


class SpreadSource:
    """A source as an array with a cell at each position of space: zero where the source has none.

    source: of the own cells. subgrid: where they lie. shape: of the array.
    """

    def __init__(self, source: Source, subgrid: Subgrid, shape: Shape) -> None:
        self.source, self.subgrid, self.shape = source, subgrid, shape
        self.path, self.parallel, self.name = source.path, source.parallel, source.name
        self.form, self.dtype, self.decoded_bytes = source.form, source.dtype, source.decoded_bytes
        self.chunks = None if source.chunks is None else subgrid.spread(source.chunks)

    @property
    def array(self) -> Any:
        _ = self.source.array  # opened once, not by each thread
        return Unmapped(self)

    def read(self, region: Region, target: HostArray) -> None:
        cells = self.subgrid.cells(region)
        if cells == region:
            self.source.read(region, target)
            return
        target[...] = 0
        if cells.size:
            part = np.empty(cells.shape, self.dtype)
            self.source.read(cells, part)
            target[self.subgrid.places(region)] = part


class BroadcastSource(SpreadSource):
    """A source as an array of another shape, to which it broadcasts as in NumPy.

    source: of the cells that are stored. shape: of the array.
    """

    def __init__(self, source: Source, shape: Shape) -> None:
        self.source, self.shape, self.chunks = source, shape, None
        self.path, self.parallel, self.name = source.path, source.parallel, source.name
        self.form, self.dtype, self.decoded_bytes = source.form, source.dtype, source.decoded_bytes

    def read(self, region: Region, target: HostArray) -> None:
        stored, first = self.source.shape, len(self.shape) - len(self.source.shape)
        starts, stops = region.start[first:], region.stop[first:]
        part = Region(
            tuple(a if n > 1 else 0 for a, n in zip(starts, stored, strict=True)),
            tuple(b if n > 1 else 1 for b, n in zip(stops, stored, strict=True)),
        )
        cells = np.empty(part.shape, self.dtype)
        if region.size:
            self.source.read(part, cells)
        target[...] = cells


class SpreadSink:
    """A sink as one of an array with a cell at each position of space; others than the own are not stored.

    sink: of the own cells, whose attributes it has. subgrid: where they lie. shape: of the array that is
    written.
    """

    def __init__(self, sink: Sink, subgrid: Subgrid, shape: Shape) -> None:
        self.sink, self.subgrid, self.shape, self.threads = sink, subgrid, shape, sink.threads
        self.chunks = None if sink.chunks is None else subgrid.spread(sink.chunks)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "sink" not in self.__dict__:  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.sink, name)

    def write(self, region: Region, array: HostArray) -> None:
        self.sink.threads = self.threads
        cells = self.subgrid.cells(region)
        if cells.size:
            self.sink.write(cells, np.ascontiguousarray(array[self.subgrid.places(region)]))


def decoded_bytes(path: Path) -> int:
    """Bytes of a picture that is decoded as a whole, of which less is read than by `open_source`.

    0 for other files, and for those that `open_source` will refuse.
    """
    decodes: Callable[[Path], int] | None = getattr(_format(path), "decoded_bytes", None)
    try:
        return decodes(path) if decodes else 0
    except (OSError, UserError):
        return 0


def open_source(path: Path, form: Form | None = None) -> Source:
    """Open an array by its file's suffix, and read its header.

    UserError for a missing, unreadable or broken file, for one that contradicts `form`, and for a
    container of several arrays if the path does not name one. What follows the header may be broken, which
    raises an error when it is read.
    """
    return _open(*split(path), form or NO_FORM)


def decode(source: Source) -> Source:
    """Return the source, decoded if that is done as a whole. UserError if the file is broken."""
    if source.decoded_bytes:
        try:
            _ = source.array
        except OSError as reason:
            raise UserError(f"cannot read {source.path}", why=reason.strerror or reason) from reason
    return source


def reopen(source: Source) -> Source:
    """Open and decode the same array again; only the description of `source` is used."""
    if isinstance(source, (MemorySource, ComputedSource)):
        return source
    if isinstance(source, BroadcastSource):
        return BroadcastSource(reopen(source.source), source.shape)
    if isinstance(source, SpreadSource):
        return SpreadSource(reopen(source.source), source.subgrid, source.shape)
    return decode(_open(source.path, source.name, source.form))


def own_source(source: Source) -> Source:
    """Return the source of an array's own cells."""
    return source.source if isinstance(source, SpreadSource) else source


def read_back(sink: Sink) -> Source:
    """Open the file that `sink` has written, like any file of its format, and decode it."""
    if isinstance(sink, SpreadSink):
        return SpreadSource(read_back(sink.sink), sink.subgrid, sink.shape)
    return decode(_open(sink.partial, sink.name, sink.form))


def _open(path: Path, name: str | None, form: Form) -> Source:
    try:
        ending = suffix(path)
        folder = ending in FOLDERS
        if not (path.is_dir() if folder else path.is_file()):
            check_exists(path)
            kind = "a folder" if path.is_dir() else "a file" if path.is_file() else "a device or a pipe"
            expected = "a folder that holds arrays" if folder else "an array file"
            raise UserError(f"cannot read {path}", got=kind, expected=expected)
        format = _format(path)
        if FORMATS[ending] in PICTURES:  # the content decides, not the suffix
            format = _module("tiff" if is_tiff(path) else "image")
        source: Source = format.open_source(path, name, form)
    except UserError as error:
        if error.hint is None and path.is_file():
            error.hint = other_format(path, suffix(path))
        raise
    except OSError as reason:
        raise UserError(f"cannot read {path}", why=reason.strerror or reason) from reason
    _agree(source, form)
    return source


def is_tiff(path: Path) -> bool:
    """Return whether a file begins as a TIFF."""
    with open(path, "rb") as file:
        return file.read(4) in TIFF


def _agree(source: Source, form: Form) -> None:
    """Raise UserError if a file contradicts its description, except in the byte order."""
    compared: list[tuple[str, object, object]] = []
    if form.shape is not None:
        compared.append(("shape", tuple(form.shape), source.shape))
    if form.dtype is not None:
        compared.append(("dtype", parse_dtype(form.dtype).newbyteorder("="), source.dtype))
    if form.order is not None:
        compared.append(("order", form.order, source.form.order or "C"))
    for what, expected, got in compared:
        if expected != got:
            raise UserError(
                f"{source.path} has another {what} than {option(f'input_{what}')}",
                got=f"{what} {got} in the file",
                expected=expected,
                hint=f"leave {option(f'input_{what}')} out: the file has a header",
            )


def open_sink(
    path: Path, shape: Shape, dtype: np.dtype[Any], run_id: str, chunks: Shape | None = None
) -> Sink:
    """Return a sink for an array of `shape` and `dtype`; UserError if the format cannot store it.

    chunks: shape of the chunks, if the format has any; None: as the format chooses.
    """
    file, name = split(path)
    opened: Any = _format(file).open_sink(file, partial_path(file, run_id), name, shape, dtype)
    if chunks is not None and opened.chunks is not None:
        opened.chunks = tuple(max(min(n, length), 1) for n, length in zip(chunks, shape, strict=True))
    sink: Sink = opened
    return sink


def first_serial(files: Iterable[Source | Sink]) -> Path | None:
    """Return the first file that one rank reads or writes whole; None if every rank can access its part."""
    return next((file.path for file in files if not file.parallel), None)


def create(sinks: Sequence[Sink]) -> None:
    """Create the files of `sinks`, one file for all sinks in one container. On one rank."""
    sinks = [sink.sink if isinstance(sink, SpreadSink) else sink for sink in sinks]
    for partial in dict.fromkeys(sink.partial for sink in sinks):
        sharing = [sink for sink in sinks if sink.partial == partial]
        if suffix(partial) in CONTAINERS:
            _format(partial).create(sharing)
        else:
            sharing[0].create()


def array_at(path: Path) -> tuple[Path, str | None]:
    """Return the file of an output, and the name of its array in it; None: the file is the array."""
    file, name = split(path)
    return (file, name or _format(file).NAME) if suffix(file) in CONTAINERS else (file, None)


def is_same_array(file: Path, name: str, other: str) -> bool:
    """Return whether two names in a container are those of one array, for example by a link."""
    if suffix(file) in FOLDERS:
        return (file / name).exists() and (file / name).resolve() == (file / other).resolve()
    same: bool = name == other or _format(file).is_same_dataset(file, name, other)
    return same


def check_output(path: Path, *, alone: bool = False) -> None:
    """Refuse an output that could not be written, before any work is done.

    alone: the whole file is replaced; else a container's other arrays are kept.
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
    """Refuse a path at which no file can be created. what: the file's name in the error.

    folder: a folder is created instead of a file. beside: bytes by which the names of temporary files in the
    same folder are longer.
    """
    parent = path.parent
    check_name(path.name, parent, what, beside)
    if beside == 0 and is_stream(path) and os.access(path, os.W_OK):
        return
    try:
        in_the_way = path.is_file() if folder else path.is_dir()
        special = path.exists() and not path.is_file() and not path.is_dir()
        is_in_folder = parent.is_dir()
        protected = is_in_folder and is_protected(path)
    except OSError as reason:  # for example a name that is too long, or a circle of links
        raise UserError(f"the {what}'s name cannot be used", why=reason.strerror) from reason
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
        raise no_folder(what, parent)
    if is_virtual(parent):
        raise UserError(f"no file can be created in {parent}", got=path, hint="another folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"the {what}'s folder cannot be written to", got=parent, hint="another folder")
    if protected:
        mode = stat.filemode(path.stat().st_mode)
        raise UserError(
            f"the {what} is write-protected", got=f"{mode} {path}", hint=f"chmod u+w {path}, or another name"
        )


def check_name(name: str, folder: Path, what: str, beside: int) -> None:
    """Refuse a name that is too long for a temporary file whose name has `beside` more bytes."""
    longest, length = longest_name(folder) - beside, len(os.fsencode(name))
    if length > longest:
        more = ", since files beside it have longer names" if beside else ""
        raise UserError(f"the {what}'s name is too long", got=f"{length} bytes", expected=f"{longest}{more}")


def commit(sink: Sink) -> None:
    """Rename the finished file or folder to its final name."""
    rename(sink.partial, sink.path)


def rename(partial: Path, path: Path) -> None:
    """Rename the finished file or folder `partial` to `path`, replacing an old one."""
    old = partial.with_suffix(".replaced")
    try:
        for stray in partial.rglob("*.partial"):  # unfinished chunks of a killed writer
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
            keep_mode(path, partial)
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
            hint=f"numpy.save('{path.stem}.npy', numpy.load('{path}')['NAME'])"
            if suffix(path) == ".npz"
            else "numpy.save, for arrays in other formats",
        )
    try:
        return _module(name)
    except ModuleNotFoundError as reason:
        if reason.name not in EXTRAS:
            raise
        raise UserError(
            f"{path} cannot be opened without the package {reason.name}",
            hint=f"pip install 'meshrun[{EXTRAS[reason.name]}]'",
        ) from reason


def _module(name: str) -> Any:
    return importlib.import_module(f"meshrun.runner.storage.formats.{name}")
