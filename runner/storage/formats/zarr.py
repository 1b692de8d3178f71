"""Zarr stores, versions 2 and 3, in folders: each chunk (or shard of chunks) is a file.

Ranks read and write different chunks at once. A missing chunk reads as the fill value, as the format
specifies; a broken chunk is an error. Outputs have version 3 (or the version of the store that they are added
to) with Zarr's default compression, and contain every chunk, so that a lost chunk is detected.
"""

from __future__ import annotations

import json
import lzma
import math
import os
import struct
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Literal

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype

from meshrun.runner.errors import RunError, UserError, first_line
from meshrun.runner.options.form import Form
from meshrun.runner.region import HostArray, Region, Shape, chunk_region, overlapping_chunks
from meshrun.runner.storage.file_errors import no_array, not_numbers, not_shared, write_error
from meshrun.runner.storage.formats.containers import link_folder, only_array, prefixes
from meshrun.runner.storage.formats.declared_form import NUMBERS
from meshrun.runner.storage.formats.sliced_array import Unmapped
from meshrun.runner.storage.paths import NODES

NAME = ""  # the array at the store's root
LONGEST_FLOAT = 64  # bits of a float that the format has a name for
CHUNK = 16 << 20  # bytes: large enough for a disk and a network, small enough for a rank's memory
CACHED = ("_stored", "_compression", "_decoded")  # of a source, not sent to other ranks
ZSTD = b"\x28\xb5\x2f\xfd"  # begins a frame of Zstandard
HEADER = 18  # bytes of the longest header that `_promised` reads
METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")  # all files but chunks
# Exceptions of Zarr's codecs for data that they cannot decode.
UNDECODED = (OSError, ValueError, RuntimeError, EOFError, TypeError, zlib.error, lzma.LZMAError)
UNDESCRIBED = (*UNDECODED, KeyError, AttributeError)  # and for metadata that is not JSON or not Zarr's


@dataclass
class ZarrSource:
    """An array in a Zarr store. chunks: shape of its shards, if it has any, else of its chunks."""

    path: Path
    name: str | None
    shape: Shape
    dtype: np.dtype[Any]
    chunks: Shape
    parallel: bool = True
    decoded_bytes: ClassVar[int] = 0

    @property
    def form(self) -> Form:
        return Form(self.shape, self.dtype.str)

    @property
    def array(self) -> Unmapped:
        return Unmapped(self)

    @cached_property
    def _stored(self) -> zarr.Array[Any]:
        try:
            return zarr.open_array(self.path, path=self.name or "", mode="r")
        except FileNotFoundError as reason:
            raise not_shared(self.path, reason) from reason

    def read(self, region: Region, target: HostArray) -> None:
        region.check(target, self.dtype)
        if region.size == 0:
            return
        for place in overlapping_chunks(region, self.chunks):
            self._look_at(place)
        try:
            self._fill(region, target)
        except UNDECODED as reason:
            raise self._name_broken(region, reason) from reason

    def _fill(self, region: Region, target: HostArray) -> None:
        buffer = default_buffer_prototype().nd_buffer.from_numpy_array(target)
        self._stored.get_basic_selection(region.slices, out=buffer)

    def _look_at(self, place: Shape) -> None:
        """Refuse a chunk's file that Zarr would treat as missing, or would read beyond its end."""
        file = self._file(place)
        try:
            size = file.stat().st_size
            if file.is_dir() or size == 0:
                raise self._broken(place, "a folder" if file.is_dir() else "an empty file")
            if self._compression is None:
                return
            with file.open("rb") as opened:
                header = opened.read(HEADER)
            if self._compression == "Blosc":
                ends = struct.unpack_from("<I", header, 12)[0] if len(header) >= 16 else None
                if ends != size:  # its decoder does not check it
                    raise self._broken(place, f"{size:,} bytes", f"{ends or 16:,}")
            promised = _promised(self._compression, header)
            if self._decoded is not None and promised not in (None, self._decoded):  # it would be reserved
                raise self._broken(place, f"{promised:,} bytes promised", f"{self._decoded:,} in a chunk")
        except FileNotFoundError:
            return  # never written: reads as the fill value
        except OSError as reason:
            raise self._broken(place, reason.strerror) from reason

    @cached_property
    def _compression(self) -> str | None:
        """The compression of a chunk's file, if the file begins with sizes: "Blosc" or "Zstd"."""
        codecs = self._stored.compressors
        if self._stored.shards is not None or not codecs:
            return None
        name = type(codecs[-1]).__name__
        return next((kind for kind in ("Blosc", "Zstd") if name.startswith(kind)), None)

    @cached_property
    def _decoded(self) -> int | None:
        """Bytes of a decompressed chunk; None if other codecs may change their number."""
        stored = self._stored
        if stored.filters or len(stored.compressors) != 1:
            return None
        return math.prod(self.chunks) * self.dtype.itemsize

    def _file(self, place: Shape) -> Path:
        key: str = self._stored.metadata.encode_chunk_key(place)
        return self.path / (self.name or "") / key

    def _name_broken(self, region: Region, reason: BaseException) -> RunError:
        """Build the error for the first chunk of `region` that cannot be decoded."""
        for place in overlapping_chunks(region, self.chunks):
            part = chunk_region(place, self.chunks, self.shape)
            try:
                self._fill(part, np.empty(part.shape, self.dtype))
            except UNDECODED as failure:
                return self._broken(place, f"{type(failure).__name__}: {failure}")
        return RunError(f"cannot read {self.path}", why=reason)

    def _broken(self, place: Shape, got: object, expected: object = None) -> RunError:
        key = self._file(place).relative_to(self.path)
        return RunError(f"{self.path} is broken: chunk {key} cannot be read", got=got, expected=expected)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in CACHED}


def _promised(compression: str, header: bytes) -> int | None:
    """Return the decompressed bytes that a chunk's header states; None if it states none.

    Zstandard's frame header: a magic number, flags, then a window size and a dictionary's number, which may
    be absent, and the content size in 0, 1, 2, 4 or 8 bytes.
    """
    if compression == "Blosc":
        return int.from_bytes(header[4:8], "little")
    if len(header) < 5 or header[:4] != ZSTD:
        return None
    flags = header[4]
    single = flags >> 5 & 1
    length = (single, 2, 4, 8)[flags >> 6]
    begin = 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
    stated = int.from_bytes(header[begin : begin + length], "little")
    return stated + 256 * (length == 2) if length else None


def open_source(path: Path, name: str | None, form: Form) -> ZarrSource:
    if name is None:
        name = only_array(path, names(path)) or None
    try:
        stored = zarr.open_array(path, path=name or "", mode="r")
        chunks = stored.shards or stored.chunks
    except UNDESCRIBED as reason:
        found = names(path)
        if (name or NAME) not in found:
            raise no_array(path, name or NAME, found) from reason
        raise UserError(f"{path} is not a readable Zarr array", why=first_line(reason)) from reason
    dtype = np.dtype(stored.dtype)
    if dtype.kind not in NUMBERS:
        raise not_numbers(path, dtype)
    shape = tuple(int(n) for n in stored.shape)
    if any(n < 1 <= length for n, length in zip(chunks, shape, strict=True)):
        raise UserError(f"{path} is not a readable Zarr array", got=f"chunks of {chunks}")
    return ZarrSource(path, name, shape, dtype.newbyteorder("="), tuple(max(int(n), 1) for n in chunks))


def names(path: Path) -> list[str]:
    """Return the names of the arrays in a store, "" for one at its root. UserError if there is no store."""
    _check_store(path)
    try:
        root = zarr.open(path, mode="r")
        if isinstance(root, zarr.Array):
            return [NAME]
        members = root.members(max_depth=None)
        return sorted(name for name, member in members if isinstance(member, zarr.Array))
    except UNDESCRIBED as reason:
        raise UserError(f"{path} is not a readable Zarr store", why=first_line(reason)) from reason


def _check_store(path: Path) -> None:
    if not any((path / node).is_file() for node in NODES):
        raise UserError(f"{path} is not a Zarr store", expected=f"a folder with {' or '.join(NODES)}")


@dataclass
class ZarrSink:
    """An array that becomes a Zarr store. `partial` is a folder. dimensions: names of the axes, which
    version 3 stores."""

    path: Path
    partial: Path
    name: str | None
    shape: Shape
    dtype: np.dtype[Any]
    chunks: Shape
    parallel: ClassVar[bool] = True
    lossless: ClassVar[bool] = True
    threads: int = 1
    dimensions: tuple[str, ...] | None = None
    _written: SimpleQueue[Path] = field(default_factory=SimpleQueue, init=False, repr=False)

    @property
    def form(self) -> Form:
        return Form(self.shape, self.dtype.str)

    def create(self) -> None:
        create([self])

    @cached_property
    def _stored(self) -> zarr.Array[Any]:
        try:
            # Else Zarr omits chunks that contain only the fill value.
            with zarr.config.set({"array.write_empty_chunks": True}):
                return zarr.open_array(self.partial, path=self.name or "", mode="r+")
        except FileNotFoundError as reason:  # rank 0 created it; this host may not have the folder
            raise not_shared(self.path, reason) from reason

    def write(self, region: Region, array: HostArray) -> None:
        region.check(array, self.dtype)
        if not _aligned(region, self.chunks, self.shape):
            raise ValueError(f"region {region} cuts chunks of {self.chunks} that other ranks may write")
        if array.size == 0:
            return
        try:
            self._stored[region.slices] = array
        except OSError as reason:
            raise write_error(
                self.path, reason, array.nbytes, "for this part, uncompressed", self.partial
            ) from reason
        folder = self.partial / (self.name or "")
        for place in overlapping_chunks(region, self.chunks):
            self._written.put(folder / self._stored.metadata.encode_chunk_key(place))

    def sync(self) -> None:
        folders = {self.partial, self.partial.parent}
        try:
            while True:
                file = self._written.get_nowait()
                _sync(file)
                folders.update(folder for folder in file.parents if self.partial in folder.parents)
        except Empty:
            for folder in folders:
                _sync(folder)
        except OSError as reason:
            raise write_error(self.path, reason, partial=self.partial) from reason

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_stored", "_written")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _written=SimpleQueue())


def create(sinks: Sequence[ZarrSink]) -> None:
    """Create the store that `sinks` share: the other contents of the old one, and their arrays."""
    path, partial = sinks[0].path, sinks[0].partial
    folders = [partial / (sink.name or "") for sink in sinks]
    made = [partial]
    version: Literal[2, 3] = 3
    try:
        partial.mkdir()  # an existing folder would be another run's
        if path.is_dir() and partial not in folders:
            made = link_folder(path, partial, METADATA, [path / (sink.name or "") for sink in sinks])
            version = 3 if (partial / "zarr.json").exists() else 2
        groups = sorted({place for sink in sinks for place in prefixes(sink.name or "")[:-1]})
        # Each is opened as a separate store: in one store, Zarr would create parent groups by hard links.
        for place in groups:
            if not any((partial / place / node).exists() for node in NODES):
                zarr.create_group(partial / place, zarr_format=version)
        for sink, folder in zip(sinks, folders, strict=True):
            zarr.create_array(
                folder,
                shape=sink.shape,
                dtype=sink.dtype,
                chunks=sink.chunks,
                zarr_format=version,
                dimension_names=sink.dimensions if version == 3 else None,
            )
        for place in groups:
            _consolidate_again(partial, place)
    except OSError as reason:
        raise write_error(path, reason) from reason
    above = {one for folder in folders for one in (folder, *folder.parents) if one.is_relative_to(partial)}
    described = (one / node for one in above for node in METADATA if (one / node).exists())
    for new in {*made, *described} - {partial}:
        sinks[0]._written.put(new)


def _consolidate_again(store: Path, place: str) -> None:
    """Update a group's consolidated metadata, if it has any."""
    group = zarr.open_group(store, path=place, mode="r")
    if group.metadata.consolidated_metadata is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the specification of version 3 does not include it
            zarr.consolidate_metadata(store, path=place, zarr_format=group.metadata.zarr_format)


def kinds(path: Path, name: str) -> dict[str, str]:
    """Return the kinds of `name` and its groups, for `containers.check_array`."""
    _check_store(path)
    found = {}
    for place in prefixes(name):
        folder = path / place
        if place and folder.is_symlink():
            found[place] = "link"
            break
        if not folder.exists():
            break
        found[place] = "array" if _is_array(folder) else "group"
    return found


def _is_array(folder: Path) -> bool:
    description = folder / "zarr.json"
    try:
        if description.exists():
            return bool(json.loads(description.read_bytes())["node_type"] == "array")
    except UNDESCRIBED as reason:
        raise UserError(f"{description} is broken", why=first_line(reason)) from reason
    return (folder / ".zarray").exists()


def open_sink(path: Path, partial: Path, name: str | None, shape: Shape, dtype: np.dtype[Any]) -> ZarrSink:
    if dtype.kind not in NUMBERS:
        raise UserError("Zarr cannot hold this result", got=f"dtype {dtype}", expected="plain numbers")
    if dtype.kind in "fc" and np.finfo(dtype).bits > LONGEST_FLOAT:
        raise UserError(
            "Zarr cannot hold this result",
            got=f"dtype {dtype}",
            expected=f"floats of {LONGEST_FLOAT} bits or less",
            hint="an output that ends in .npy, which stores any array",
        )
    if {"..", *METADATA} & set((name or "").split("/")):
        raise UserError(f"{name} cannot be the name of a Zarr array", hint="another name")
    return ZarrSink(path, partial, name, shape, dtype, zarr_chunks(shape, dtype))


def zarr_chunks(shape: Shape, dtype: np.dtype[Any]) -> Shape:
    """Return chunks of at most 16 MiB: whole trailing axes while they fit, then part of one axis."""
    room, chunks = max(CHUNK // dtype.itemsize, 1), []
    for length in reversed(shape):
        chunks.append(max(min(length, room), 1))
        room //= chunks[-1]
    return tuple(reversed(chunks))


def _aligned(region: Region, chunks: Shape, shape: Shape) -> bool:
    ends = zip(region.start, region.stop, chunks, shape, strict=True)
    return all(start % n == 0 and (stop % n == 0 or stop == length) for start, stop, n, length in ends)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
