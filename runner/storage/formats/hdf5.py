"""HDF5 files, through h5py.

Outputs are contiguous datasets whose space is allocated when they are created; ranks then write their parts
at their offsets, as in any flat file. So neither a parallel HDF5 nor an h5py built for an MPI is needed. A
contiguous dataset is read the same way. A chunked one is read through h5py, by every rank itself. Deflated
chunks are decoded here, in several threads at once, the others by HDF5, in one thread of a process at a time.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import h5py
import numpy as np

from meshrun.runner.errors import RunError, UserError, first_line
from meshrun.runner.options.form import Form
from meshrun.runner.region import HostArray, Region, Shape, chunk_region, overlap, overlapping_chunks
from meshrun.runner.storage.file_errors import no_array, not_numbers, not_shared
from meshrun.runner.storage.formats.containers import copy_file, only_array, prefixes
from meshrun.runner.storage.formats.declared_form import NUMBERS
from meshrun.runner.storage.formats.flat import FlatSink, FlatSource, create_file
from meshrun.runner.storage.formats.registry import Source
from meshrun.runner.storage.formats.sliced_array import Unmapped

NAME = "data"  # of the dataset that is written, if no name is given
PAGE = 4096  # bytes: the values begin at a multiple of it, as direct I/O and maps require

# Of a source, not sent to other ranks.
OPENED = ("_dataset", "_filters", "_is_deflated", "_stored_dtype", "_expansion", "_broken_chunks")

LONGEST_INTEGER = 8  # bytes
CHECKSUM_BYTES = 4  # that fletcher32 appends
WORDS = 1 << 20  # of 16 bits, whose weighted sum an integer of 64 bits holds

# Decoded bytes per stored byte, at most, by filter.
EXPANSION = {
    h5py.h5z.FILTER_DEFLATE: 1032,  # 258 bytes in 2 bits
    h5py.h5z.FILTER_LZF: 88,  # 264 bytes in 3
    h5py.h5z.FILTER_SHUFFLE: 1,
    h5py.h5z.FILTER_FLETCHER32: 1,
}
DEFLATED = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}

with contextlib.suppress(ImportError):  # filters that HDF5 itself lacks, for files that need them
    importlib.import_module("hdf5plugin")


@dataclass
class Hdf5Source:
    """A dataset that is chunked, or is not flat for another reason."""

    path: Path
    name: str
    shape: Shape
    dtype: np.dtype[Any]
    chunks: Shape | None
    parallel: bool = True
    decoded_bytes: ClassVar[int] = 0

    @property
    def form(self) -> Form:
        return Form(self.shape, self.dtype.str)

    @property
    def array(self) -> Unmapped:
        return Unmapped(self)

    @cached_property
    def _dataset(self) -> Any:
        try:
            return h5py.File(self.path, "r")[self.name]
        except FileNotFoundError as reason:
            raise not_shared(self.path, reason) from reason
        except (OSError, KeyError) as reason:
            raise RunError(f"cannot read {self.path}:{self.name}", why=first_line(reason)) from reason

    def read(self, region: Region, target: HostArray) -> None:
        region.check(target, self.dtype)
        if region.size == 0:
            return
        chunks = overlapping_chunks(region, self.chunks) if self.chunks else ()
        try:
            if self._is_deflated:
                for place in chunks:
                    self._copy_chunk(place, region, target)
                return
            if self.chunks and self._broken_chunks:
                for place in chunks:
                    self._refuse_broken(place)
            self._fill(region, target)
        except OSError as reason:
            raise self._broken(region, reason) from reason

    def _fill(self, region: Region, target: HostArray) -> None:
        """Let HDF5 read and decode."""
        if target.ndim == 0:
            target[...] = self._dataset[()]
        elif target.flags.c_contiguous:
            self._dataset.read_direct(target, region.slices)
        else:
            cells = np.empty(region.shape, self.dtype)
            self._dataset.read_direct(cells, region.slices)
            target[...] = cells

    def _copy_chunk(self, place: Shape, region: Region, target: HostArray) -> None:
        """Copy the cells of a deflated chunk that are in `region` to their places in `target`."""
        chunk = self._chunk(place)
        part = overlap(chunk, region)
        into = target[part.slices_in(region)]
        data = self._decoded(place)
        if data is None or self._stored_dtype is None:
            self._fill(part, into)
        else:
            cells = np.frombuffer(data, self._stored_dtype).reshape(self.chunks or ())
            into[...] = cells[part.slices_in(chunk)]

    def _chunk(self, place: Shape) -> Region:
        return chunk_region(place, self.chunks or (), self.shape)

    def _refuse_broken(self, place: Shape) -> None:
        if problem := self._broken_chunks.get(self._chunk(place).start):
            raise self._chunk_error(place, *problem)

    def _chunk_error(self, place: Shape, got: str, expected: str | None = None) -> RunError:
        where = f"{self.path} is broken: chunk {place} of {self.name} cannot be read"
        return RunError(where, got=got, expected=expected)

    def _decoded(self, place: Shape) -> bytes | None:
        """Return the bytes of a deflated chunk's cells, in the file's byte order; None if only HDF5 has them.

        Raises RunError if the chunk does not hold exactly its cells: HDF5 would return what is in its memory.
        """
        self._refuse_broken(place)
        chunk, needed = self._chunk(place), self._chunk_bytes
        data: bytes
        try:
            mask, data = self._dataset.id.read_direct_chunk(chunk.start)
        except (OSError, RuntimeError, ValueError):  # not written, or HDF5 says what is wrong
            return None
        if chunk.shape != self.chunks and len(data) == needed:
            return None  # a chunk at the edge, which HDF5 can leave as it is
        for number, (code, values) in reversed([*enumerate(self._filters)]):
            if mask >> number & 1:  # not applied to this chunk
                continue
            if code == h5py.h5z.FILTER_SHUFFLE:
                if len(values) != 1 or not values[0]:
                    return None  # HDF5 refuses it
                data = _unshuffled(data, values[0])
            elif code == h5py.h5z.FILTER_FLETCHER32:
                if data[-CHECKSUM_BYTES:] not in _checksums(data[:-CHECKSUM_BYTES]):
                    raise self._chunk_error(place, "another checksum (Fletcher32) than its bytes have")
                data = data[:-CHECKSUM_BYTES]
            else:
                data = self._inflated(place, data)
        if len(data) != needed:
            got = f"more than {needed:,}" if len(data) > needed else f"{len(data):,}"
            raise self._chunk_error(place, f"{got} bytes decoded", f"{needed:,}")
        return data

    def _inflated(self, place: Shape, data: bytes) -> bytes:
        needed, stream = self._chunk_bytes, zlib.decompressobj()
        most = needed + needed // 256 + 256  # cells with a checksum, or deflated
        try:
            found: bytes = stream.decompress(data, most)
        except zlib.error as reason:
            raise self._chunk_error(place, str(reason), f"{needed:,} bytes") from reason
        if not stream.eof and len(found) < most:
            got = f"{len(found):,} bytes decoded before its stream is cut"
            raise self._chunk_error(place, got, f"{needed:,}")
        return found

    @cached_property
    def _chunk_bytes(self) -> int:
        """Bytes of a decoded chunk."""
        return math.prod(self.chunks or ()) * int(self._dataset.id.get_type().get_size())

    @cached_property
    def _broken_chunks(self) -> dict[Shape, tuple[str, str]]:
        """By the first cell of each chunk whose stored bytes are not all in the file, or cannot hold its
        cells: what it has, and needs. Found before any memory is reserved.

        One walk over all chunks: to look one up, HDF5 walks over those before it.
        """
        broken: dict[Shape, tuple[str, str]] = {}
        most, needed, held = self._expansion, self._chunk_bytes, self.path.stat().st_size

        def note(chunk: Any) -> None:
            there = max(held - chunk.byte_offset, 0)
            if chunk.size > there:
                got = f"{there:,} bytes before the file ends", f"{chunk.size:,}"
            elif most is not None and chunk.size * most < needed:
                got = (
                    f"{chunk.size:,} bytes, which hold at most {chunk.size * most:,} bytes decoded",
                    f"{needed:,}",
                )
            else:
                return
            broken[tuple(chunk.chunk_offset)] = got

        self._dataset.id.chunk_iter(note)
        return broken

    @cached_property
    def _filters(self) -> list[tuple[int, tuple[int, ...]]]:
        """The code and values of each filter, in the order in which they encode."""
        properties = self._dataset.id.get_create_plist()
        each = (properties.get_filter(number) for number in range(properties.get_nfilters()))
        return [(code, values) for code, _, values, _ in each]

    @cached_property
    def _is_deflated(self) -> bool:
        """Whether chunks are deflated, and all filters are among those that `_decoded` knows."""
        codes = {code for code, _ in self._filters}
        return codes <= DEFLATED and h5py.h5z.FILTER_DEFLATE in codes

    @cached_property
    def _stored_dtype(self) -> np.dtype[Any] | None:
        """The dtype of the file's elements; None if NumPy has none for them."""
        return self._dataset.dtype if _is_array(self._dataset) else None

    @cached_property
    def _expansion(self) -> int | None:
        """Decoded bytes of a chunk per stored byte, at most; None if a filter has no known bound."""
        codes = [code for code, _ in self._filters]
        return math.prod(EXPANSION[code] for code in codes) if EXPANSION.keys() >= {*codes} else None

    def _broken(self, region: Region, reason: OSError) -> RunError:
        """Build the error for the first chunk of `region` that cannot be decoded."""
        for part in self._dataset.iter_chunks(region.slices) if self.chunks else ():
            try:
                self._dataset[part]
            except OSError as failure:
                place = tuple(s.start // n for s, n in zip(part, self.chunks or (), strict=True))
                return self._chunk_error(place, first_line(failure))
        return RunError(f"cannot read {self.path}:{self.name}", why=first_line(reason))

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in OPENED}


def _unshuffled(data: bytes, size: int) -> bytes:
    """Return the elements, of `size` bytes, of which HDF5 stores all first bytes, then all second ones."""
    count = len(data) // size
    whole = np.frombuffer(data, np.uint8, count * size).reshape(size, count)
    cells: bytes = whole.T.tobytes()
    return cells + data[count * size :]


def _checksums(data: bytes) -> tuple[bytes, bytes]:
    """Return HDF5's checksum as it is stored, and as releases before 1.6.3 stored it on some machines.

    It consists of the sum of all words of 16 bits, and the sum of the sums up to each word, modulo 65535.
    """
    words = np.frombuffer(data + bytes(len(data) % 2), ">u2").astype(np.uint64)
    first = second = 0
    for begin in range(0, len(words), WORDS):
        part = words[begin : begin + WORDS]
        second += first * len(part) + int(part @ np.arange(len(part), 0, -1, dtype=np.uint64))
        first += int(part.sum())
    sums = [1 + (number - 1) % 0xFFFF if number else 0 for number in (first, second)]
    return struct.pack("<2H", *sums), struct.pack(">2H", *sums)


def open_source(path: Path, name: str | None, form: Form) -> Source:
    with _opened(path) as file, _readable(path):
        if name is None:
            name = only_array(path, _arrays(file), before=":/", none="no array of numbers")
        _check_links(path, file, name)
        dataset = file.get(name)
        if not isinstance(dataset, h5py.Dataset):
            raise no_array(path, name, _arrays(file))
        _check_numbers(path, name, dataset)
        _check_inside(path, dataset)
        _check_filters(path, dataset)
        dtype, offset = _dtype(dataset), _flat_offset(dataset)
        assert dtype is not None
        if offset is not None:
            return FlatSource(path, dataset.shape, dtype, offset, name=name)
        return Hdf5Source(path, name, dataset.shape, dtype.newbyteorder("="), dataset.chunks)


def names(path: Path) -> list[str]:
    """Return the names of all datasets in a file, numeric or not."""
    with _opened(path) as file, _readable(path):
        found: list[str] = []
        file.visititems(lambda name, node: found.append(name) if isinstance(node, h5py.Dataset) else None)
        return found


def is_same_dataset(path: Path, name: str, other: str) -> bool:
    """Return whether two names in a file are those of one object."""
    with _opened(path) as file:
        found = file.get(name)
        return found is not None and bool(found == file.get(other))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        file = h5py.File(path, "r")
    except OSError as reason:
        if reason.errno is not None:
            raise  # the operating system's error, not HDF5's
        raise UserError(f"{path} is not a readable HDF5 file", why=first_line(reason)) from reason
    with file:
        yield file


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Re-raise what h5py raises for a file whose header is valid and whose contents are not."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, MemoryError) as reason:
        if isinstance(reason, OSError) and reason.errno is not None:
            raise  # the operating system's error, not HDF5's
        raise UserError(f"{path} is broken", why=first_line(reason), expected="an HDF5 file") from reason


def _arrays(file: Any) -> list[str]:
    found: list[str] = []

    def look(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and _is_numbers(node):
            found.append(name)

    file.visititems(look)
    return found


def _is_numbers(dataset: Any) -> bool:
    # An empty dataspace ("null") has no shape.
    dtype = _dtype(dataset)
    return dataset.shape is not None and dtype is not None and dtype.kind in NUMBERS


def _dtype(dataset: Any) -> np.dtype[Any] | None:
    """Return NumPy's dtype that holds a dataset's elements; None if there is none.

    For integers of a size that NumPy lacks, such as 24 bits, it is that of the next larger size; HDF5 then
    converts them.
    """
    try:
        dtype: np.dtype[Any] = dataset.dtype
    except (TypeError, ValueError):
        kind = dataset.id.get_type()
        if kind.get_class() != h5py.h5t.INTEGER or kind.get_size() > LONGEST_INTEGER:
            return None
        size = 1 << (kind.get_size() - 1).bit_length()
        return np.dtype(f"{'u' if kind.get_sign() == h5py.h5t.SGN_NONE else 'i'}{size}")
    # Names of an enumeration's members are no part of the numbers, and NumPy warns that it saves none.
    return dtype if dtype.metadata is None or dtype.kind not in NUMBERS else np.dtype(dtype.str)


def _check_numbers(path: Path, name: str, dataset: Any) -> None:
    """Refuse elements that are not numbers, or are numbers that NumPy has no dtype for."""
    if _is_numbers(dataset):
        return
    dtype, size = _dtype(dataset), 8 * dataset.id.get_type().get_size()
    if dataset.shape is None:
        raise UserError(f"{path}:/{name} holds nothing", got="a null dataspace", expected="an array")
    if dtype is not None:
        raise not_numbers(f"{path}:/{name}", dtype)
    got = f"elements of {size} bits of a kind that NumPy lacks"
    raise UserError(f"{path}:/{name} does not hold numbers", got=got)


def _check_links(path: Path, file: Any, name: str) -> None:
    """Refuse a name that leads into another file."""
    for place in prefixes(name.strip("/"))[1:]:
        link = file.get(place, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise _outside(path, place, link.filename)


def _check_inside(path: Path, dataset: Any) -> None:
    """Refuse a dataset whose values are in other files: a file may name any that this user can read."""
    if dataset.file.filename != str(path):  # by way of a link
        raise _outside(path, dataset.name, dataset.file.filename)
    for other, *_ in dataset.external or ():
        raise _outside(path, dataset.name, other)
    for source in dataset.virtual_sources() if dataset.is_virtual else ():
        if source.file_name != ".":
            raise _outside(path, dataset.name, source.file_name)


def _outside(path: Path, name: str, other: str) -> UserError:
    return UserError(
        f"{path}:/{name.strip('/')} is in another file",
        got=repr(other),
        expected="values in the file itself",
        hint="h5copy -f ext, or h5repack for external storage, puts the values into one file",
    )


def _check_filters(path: Path, dataset: Any) -> None:
    properties = dataset.id.get_create_plist()
    for number in range(properties.get_nfilters()):
        code, _, _, title = properties.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            raise UserError(
                f"{path} is compressed with a filter that this HDF5 lacks",
                got=f"filter {code} ({title.decode(errors='replace')})",
                hint="pip install hdf5plugin",
            )


def _is_array(dataset: Any) -> bool:
    """Whether the file's elements are those of NumPy's dtype: they differ if some bits are unused, say."""
    is_same: bool = dataset.id.get_type() == h5py.h5t.py_create(_dtype(dataset), logical=True)
    return is_same


def _flat_offset(dataset: Any) -> int | None:
    """Return the offset of a dataset with the same layout in its file as in memory; None for others."""
    properties = dataset.id.get_create_plist()
    if properties.get_layout() != h5py.h5d.CONTIGUOUS or dataset.external:
        return None
    if not _is_array(dataset):
        return None
    offset: int | None = dataset.id.get_offset()  # None if nothing has been written yet
    return offset


class Hdf5Sink(FlatSink):
    """An array that becomes a dataset in a file."""

    @cached_property
    def offset(self) -> int:
        with h5py.File(self.partial, "r") as file:
            return file[self.name].id.get_offset() or 0

    def lay_out(self, file: BinaryIO) -> None:
        _lay_out([self], file)


def create(sinks: Sequence[Hdf5Sink]) -> None:
    """Create the file that `sinks` share: the other contents of the old one, and their datasets."""
    create_file(sinks, lambda file: _lay_out(sinks, file))


def allocated() -> Any:
    """Return the properties of a dataset whose space is allocated, and not filled, when it is created."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return properties


def _lay_out(sinks: Sequence[Hdf5Sink], file: BinaryIO) -> None:
    properties = allocated()
    old = sinks[0].path
    kept = _has_others(old, [str(sink.name) for sink in sinks])
    if kept:
        copy_file(old, file)
    with h5py.File(file, "r+" if kept else "w", alignment_threshold=1, alignment_interval=PAGE) as container:
        for sink in sinks:  # all are removed before the first is created, so that HDF5 reuses their space
            if container.get(sink.name, getlink=True) is not None:
                del container[sink.name]
        for sink in sinks:
            try:
                dataset = container.create_dataset(sink.name, sink.shape, sink.dtype, dcpl=properties)
            except ValueError as reason:  # for example if two groups are the same
                raise UserError(f"{old}:/{sink.name} cannot be created", why=first_line(reason)) from reason
            if sink.shape == ():  # h5py allocates a scalar only when it is written
                dataset[()] = 0


def kinds(path: Path, name: str) -> dict[str, str]:
    """Return the kinds of `name` and its groups, for `containers.check_array`."""
    with _opened(path) as file:
        found = {}
        for place in prefixes(name)[1:]:
            if (link := file.get(place, getlink=True)) is None:
                break
            if not isinstance(link, h5py.HardLink):
                found[place] = "link"
                break
            found[place] = "array" if isinstance(file[place], h5py.Dataset) else "group"
        return found


def _has_others(path: Path, names: Sequence[str]) -> bool:
    """Return whether a file contains more than the datasets `names` and the groups that they are in."""
    if not path.is_file():
        return False
    groups = {place for name in names for place in prefixes(name)[:-1]}
    known = {*groups, *names}
    with _opened(path) as file:
        for place in groups:
            group = file.get(f"/{place}")
            if group is not None and (
                group.attrs or any(f"{place}/{key}".lstrip("/") not in known for key in group)
            ):
                return True
    return False


def open_sink(path: Path, partial: Path, name: str | None, shape: Shape, dtype: np.dtype[Any]) -> Hdf5Sink:
    if dtype.kind not in NUMBERS:
        raise UserError("HDF5 cannot hold this result", got=f"dtype {dtype}", expected="plain numbers")
    return Hdf5Sink(path, partial, shape, dtype, name or NAME)
