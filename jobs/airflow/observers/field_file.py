"""Files of the fields of a simulation, at one step or several: VTKHDF, which is HDF5, or Zarr.

Cells are points of a regular grid, of spacing 1, with the first at 0.5 along each axis. Along the last axis x
grows with the index, in the file as in the domain. Rows, which count downwards in the domain, are turned
round, so that y points upwards; of three axes planes are turned round, too, so that no body is mirrored.

VTKHDF: https://docs.vtk.org/en/latest/vtk_file_formats/vtkhdf_file_format/index.html (ImageData, with steps).
Its arrays are contiguous, so that every rank writes its part in place.
"""

from __future__ import annotations

import glob
import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.files import remove_path
from meshrun.runner.region import HostArray, Region, Shape
from meshrun.runner.storage.file_errors import check_room, write_error
from meshrun.runner.storage.formats.containers import check_alone
from meshrun.runner.storage.formats.flat import create_file
from meshrun.runner.storage.formats.registry import EXTRAS, check_place, rename
from meshrun.runner.storage.paths import partial_path

HDF5 = (".vtkhdf", ".h5", ".hdf5")
ZARR = ".zarr"
GROUP = "VTKHDF"
POINTS = f"{GROUP}/PointData"
AXES = ("z", "y", "x")
ATTRIBUTES = {"spacing": "1 cell", "time": "steps", "origin": "the first value is at 0.5 along each axis"}


@dataclass(frozen=True)
class GridField:
    """A field. components: 0: one value for a cell; else a vector along x, y and z. steady: it does not
    change, and is written once."""

    name: str
    dtype: np.dtype[Any]
    units: str
    components: int = 0
    steady: bool = False


def check_fields(path: Path, shape: Shape, fields: Sequence[GridField], count: int) -> None:
    """Raise UserError if fields of `count` steps cannot be written to `path`."""
    suffix = path.suffix.lower()
    if suffix not in (*HDF5, ZARR):
        raise UserError(f"unknown format of fields: {path}", got=suffix, expected=", ".join((*HDF5, ZARR)))
    package = "zarr" if suffix == ZARR else "h5py"
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as reason:
        hint = f"pip install 'meshrun[{EXTRAS[package]}]'"
        raise UserError(f"{path} cannot be written without the package {package}", hint=hint) from reason
    check_place(path, "fields file", folder=suffix == ZARR, beside=32)
    if path.exists():
        _check_replaced(path, fields)
    file = FieldFile(path, shape, fields, count, 1, "")
    # A resumed run goes on with the unfinished file of the one before.
    unfinished = path.parent.glob(f".{glob.escape(path.name)}.*.partial")
    taken = sum(_bytes_on_disk(one) for one in unfinished)
    hint = "fewer steps, or another disk"
    check_room(path.parent, file.bytes, f"fields of {count:,} steps", path, hint, taken)


def _bytes_on_disk(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(one.stat().st_blocks * 512 for one in files)


def _check_replaced(path: Path, fields: Sequence[GridField]) -> None:
    """Raise UserError if an existing file holds anything but such fields."""
    names = {field.name for field in fields}
    if path.suffix.lower() == ZARR:
        from meshrun.runner.storage.formats import zarr

        check_alone(path, set(zarr.names(path)) - names - {"time", *AXES})
    else:
        from meshrun.runner.storage.formats import hdf5

        check_alone(path, {one for one in hdf5.names(path) if not one.startswith(f"{GROUP}/")})


class FieldFile:
    """A file of fields that ranks write together, under a temporary name until `complete`.

    shape: of the domain, (rows, columns) or (planes, rows, columns). count: greatest number of steps. ranks:
    that write; of a Zarr store, each has chunks of its own (`part`). created_by: number of ranks of the run
    that created it, if that was another one.
    """

    def __init__(
        self,
        path: Path,
        shape: Shape,
        fields: Sequence[GridField],
        count: int,
        ranks: int,
        run_id: str,
        created_by: int | None = None,
    ) -> None:
        self.path, self.partial = path, partial_path(path, run_id)
        self.shape, self.fields, self.count, self.ranks = shape, fields, count, ranks
        self.created_by = created_by or ranks
        self.is_zarr = path.suffix.lower() == ZARR
        self._sinks: dict[str, Any] = {field.name: self._sink(field) for field in fields}

    @property
    def bytes(self) -> int:
        """Bytes of all values, uncompressed."""
        return sum(math.prod(sink.shape) * sink.dtype.itemsize for sink in self._sinks.values())

    def components(self, field: GridField) -> int:
        """Return the components that are stored: three in a VTKHDF file, whose readers expect that."""
        return 3 if field.components and not self.is_zarr else field.components

    def part(self, rank: int, own: Region) -> Region:
        """Return the part of the grid that a rank writes. own: its cells, in the file's grid."""
        if not self.is_zarr:
            return own
        rows, length = self._rows, self.shape[0]
        chunks = -(-length // rows)
        first, last = (min(chunks * one // self.ranks * rows, length) for one in (rank, rank + 1))
        return Region((first, *(0,) * (len(self.shape) - 1)), (last, *self.shape[1:]))

    def turned(self, own: Region) -> Region:
        """Return where the file's grid has a region of the domain: see `turn`."""
        pairs = list(zip(own.start, own.stop, self.shape, strict=True))
        starts = [*(length - stop for _, stop, length in pairs[:-1]), pairs[-1][0]]
        stops = [*(length - start for start, _, length in pairs[:-1]), pairs[-1][1]]
        return Region(tuple(starts), tuple(stops))

    def turn(self, field: GridField, values: HostArray) -> HostArray:
        """Return values of a region of the domain as the file has them.

        values: of the region's shape, with an axis of components along the domain's axes if it is a vector.
        """
        axes = len(self.shape)
        found = values[(slice(None, None, -1),) * (axes - 1)]
        if field.components:
            signs = np.array([1] + [-1] * (axes - 1), values.dtype)
            found = found[..., ::-1] * signs
            missing = self.components(field) - axes
            found = np.pad(found, [(0, 0)] * axes + [(0, missing)])
        return np.ascontiguousarray(found)

    def create(self) -> None:
        """Create the file, with its space allocated if possible. On one rank."""
        sinks = list(self._sinks.values())
        if self.is_zarr:
            from meshrun.runner.storage.formats.zarr import create

            create(sinks)
        else:
            create_file(sinks, self._lay_out)

    def holds(self) -> bool:
        """Return whether the unfinished file is there, with these arrays. On one rank."""
        try:
            if self.is_zarr:
                import zarr

                group = zarr.open_group(self.partial, mode="r")
                found = {name: group[name] for name in self._sinks}
                chunks = {name: getattr(one, "chunks", None) for name, one in found.items()}
                if chunks != {name: sink.chunks for name, sink in self._sinks.items()}:
                    return False
            else:
                import h5py

                with h5py.File(self.partial, "r") as container:
                    return self._fits({name: container[f"{POINTS}/{name}"] for name in self._sinks})
        except (OSError, KeyError, ValueError):
            return False
        return self._fits(found)

    def _fits(self, found: Mapping[str, Any]) -> bool:
        return all(
            (one.shape, one.dtype) == (self._sinks[name].shape, self._sinks[name].dtype)
            for name, one in found.items()
        )

    def write(self, number: int, field: GridField, region: Region, values: HostArray) -> None:
        """Write values of `region`, a part of the file's grid, of the step `number`, counted from 0."""
        sink, more = self._sinks[field.name], values.shape[len(self.shape) :]
        start, stop = (*region.start, *(0 for _ in more)), (*region.stop, *more)
        if self._has_steps(field):
            start, stop, values = (number, *start), (number + 1, *stop), values[None]
        sink.write(Region(start, stop), values)

    def sync(self) -> None:
        """Wait until everything that this process has written is on the disk."""
        for sink in self._sinks.values():
            sink.sync()

    def complete(self, steps: Sequence[int]) -> None:
        """Add which steps were written, and rename the file to its final name. On one rank, after all."""
        try:
            if self.is_zarr:
                self._complete_zarr(steps)
            else:
                self._complete_hdf5(steps)
        except OSError as reason:
            raise write_error(self.path, reason, partial=self.partial) from reason
        rename(self.partial, self.path)

    def _has_steps(self, field: GridField) -> bool:
        """Return whether a field has an axis of steps: in a VTKHDF file, each has."""
        return not (self.is_zarr and field.steady)

    @property
    def _rows(self) -> int:
        """Rows (of three axes, planes) of a chunk of a Zarr store: at least one chunk for each rank."""
        return max(-(-self.shape[0] // self.created_by), 1)

    def _sink(self, field: GridField) -> Any:
        more = (self.components(field),) if field.components else ()
        steps = (1 if field.steady else self.count,) if self._has_steps(field) else ()
        shape = (*steps, *self.shape, *more)
        if self.is_zarr:
            from meshrun.runner.storage.formats.zarr import ZarrSink, zarr_chunks

            rows, *inner = zarr_chunks(shape[len(steps) :], field.dtype)
            if rows < self._rows:  # parts of a rank's chunk
                rows = next(n for n in range(rows, 0, -1) if self._rows % n == 0)
            dimensions = (*AXES[-len(self.shape) :], *(("component",) if more else ()))
            return ZarrSink(
                self.path,
                self.partial,
                field.name,
                shape,
                field.dtype,
                (*((1,) if steps else ()), min(rows, self._rows), *inner),
                dimensions=("time", *dimensions) if steps else dimensions,
            )
        from meshrun.runner.storage.formats.hdf5 import Hdf5Sink

        return Hdf5Sink(self.path, self.partial, shape, field.dtype, f"{POINTS}/{field.name}")

    def _lay_out(self, file: BinaryIO) -> None:
        import h5py

        with h5py.File(file, "w") as container:
            self._describe(container)
            from meshrun.runner.storage.formats.hdf5 import allocated

            for field in self.fields:
                sink = self._sinks[field.name]
                made = container.create_dataset(sink.name, sink.shape, sink.dtype, dcpl=allocated())
                made.attrs["units"] = field.units

    def _describe(self, container: Any) -> None:
        import h5py

        group = container.create_group(GROUP)
        group.attrs["Version"] = np.array([2, 2], np.int64)
        group.attrs.create("Type", b"ImageData", dtype=h5py.string_dtype("ascii", len(b"ImageData")))
        lengths = [*self.shape[::-1], 1][:3]
        group.attrs["WholeExtent"] = np.array([at for n in lengths for at in (0, n - 1)], np.int64)
        group.attrs["Origin"] = np.array([0.5, 0.5, 0.5 if len(self.shape) == 3 else 0.0])
        group.attrs["Spacing"] = np.ones(3)
        group.attrs["Direction"] = np.eye(3).ravel()

    def _complete_hdf5(self, steps: Sequence[int]) -> None:
        import h5py

        if len(steps) < self.count:
            self._shorten_hdf5(len(steps))
        with h5py.File(self.partial, "r+") as container:
            for name in ("Steps", "PointDataOffsets"):  # of a run that ended just here
                if name in container[GROUP]:
                    del container[GROUP][name]
            made = container.create_group(f"{GROUP}/Steps")
            made.attrs["NSteps"] = np.int64(len(steps))
            made["Values"] = np.array(steps, np.float64)
            for field in self.fields:
                offsets = np.zeros(len(steps), np.int64) if field.steady else np.arange(len(steps))
                made[f"PointDataOffsets/{field.name}"] = offsets

    def _shorten_hdf5(self, count: int) -> None:
        """Replace the file by one of fewer steps: the space of contiguous arrays does not shrink."""
        import h5py

        shorter = self.partial.with_name(f"{self.partial.name}.shorter")
        try:
            with h5py.File(self.partial, "r") as old, h5py.File(shorter, "w") as new:
                self._describe(new)
                for field in self.fields:
                    before = old[f"{POINTS}/{field.name}"]
                    shape = (1 if field.steady else count, *before.shape[1:])
                    after = new.create_dataset(before.name, shape, before.dtype)
                    after.attrs["units"] = field.units
                    for number in range(shape[0]):
                        after[number] = before[number]
            shorter.replace(self.partial)
        finally:
            remove_path(shorter)

    def _complete_zarr(self, steps: Sequence[int]) -> None:
        import zarr

        group = zarr.open_group(self.partial, mode="r+")
        group.attrs.update(ATTRIBUTES)
        for field in self.fields:
            array = group[field.name]
            assert isinstance(array, zarr.Array)
            array.attrs["units"] = field.units
            if not field.steady and len(steps) < self.count:
                array.resize((len(steps), *array.shape[1:]))
        axes = zip(AXES[-len(self.shape) :], self.shape, strict=True)
        coordinates = {"time": np.array(steps, np.int64), **{name: np.arange(n) + 0.5 for name, n in axes}}
        for name, values in coordinates.items():
            group.create_array(name, data=values, dimension_names=[name], overwrite=True)
