"""The world of a user's own main program: it makes, reads and writes distributed arrays."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from meshrun.runner.arrays import load as loading
from meshrun.runner.arrays import store
from meshrun.runner.arrays.distributed_array import DistributedArray, array_of
from meshrun.runner.arrays.operations import parts as geometry
from meshrun.runner.arrays.operations.split_array import SplitArray, begin
from meshrun.runner.arrays.tools.table import NUMPY_FUNCTIONS
from meshrun.runner.errors import UserError, tell
from meshrun.runner.plan.grid import Partition, split_over
from meshrun.runner.region import Array, HostArray, Region, Shape, packed
from meshrun.runner.report.units import counted, seconds_text
from meshrun.runner.run.main_program import numpy_functions
from meshrun.runner.run.main_program.checkpoint import end_checkpoints
from meshrun.runner.storage.formats.registry import Sink, Source
from meshrun.runner.world.agreement.operations import END
from meshrun.runner.world.agreement.waits import Waits
from meshrun.runner.world.world import World

TRACED = numpy_functions.traced_function  # what distributed arrays do with NumPy's further functions
TOOLS = NUMPY_FUNCTIONS  # sorting, statistics and scans, which enter the table, too
LOOP_WAITS = 100  # waits of a line that is in a loop
LEAST_WAITED, SHARE_WAITED = 1.0, 0.1  # seconds, and share of the program's time, of waits that are reported
NUMBERS = "biufc"  # kinds of dtypes that arrays have


class ProgramWorld(World):
    """All ranks of a program, with the arrays that are split over them; from `meshrun.open_world`.

    Every rank calls the same methods, and the same operations on distributed arrays, in the same order.

    Examples
    --------
    >>> with meshrun.open_world("cpu") as world:
    ...     u = world.zeros((512, 512))
    ...     u[0] = 1
    ...     world.save("u.npy", u)
    """

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the world, after all ranks have come to its end."""
        if failure is not None:
            end_checkpoints(self, failed=True)
            super().__exit__(kind, failure, trace)
            return
        if self.is_closed:
            return
        try:
            begin(self, END)
            end_checkpoints(self, failed=False)
            if self.rank == 0 and (told := waits_of_a_loop(self.operations.waits)):
                tell(told)
        finally:
            self.close()

    def close(self) -> None:
        self.prepared.clear()
        for loop in self.checkpoints.loops.values():
            loop.release()
        super().close()

    # Files

    def load(self, source: str | Path | Source, *, split: int | Sequence[int] = 0) -> DistributedArray:
        """Return an array read from a file; each rank reads its part. Collective.

        Parameters
        ----------
        source : str or Path
            The file, such as "u.npy" or "fields.h5:/u".
        split : int or sequence of int
            The axis to split, or the number of parts along each of the first axes.

        Raises
        ------
        UserError
            On every rank, for a file that cannot be opened as an array.
        """
        begin(self, "world.load", str(source))
        return loading.load(self, source, split=split)

    def save(self, target: str | Path | Sink, array: Any) -> None:
        """Write an array to a new file. Collective.

        The file is written under a temporary name, and renamed when it is complete.

        Parameters
        ----------
        target : str or Path
            A file that is replaced if it exists.
        array : DistributedArray
            Or a view of one, or a number.

        Raises
        ------
        UserError
            On every rank, for a format that cannot store the array.
        RunError
            On every rank, if the file cannot be written.
        """
        if not isinstance(array, SplitArray):
            array = self.full((), array, getattr(array, "dtype", None))
        begin(self, "world.save", str(target), array)
        self._check_own(array)
        if not array.interior.flags.c_contiguous:
            array = array.made(array.partition, packed(array.interior))
        store.save(self, target, array)

    def _check_own(self, array: Any) -> None:
        if array.world is not self:
            raise UserError("an array of another world", got=repr(array), everywhere=True)
        array.check_readable()

    # New arrays

    def empty(
        self, shape: int | Sequence[int], dtype: npt.DTypeLike = float, *, split: int | Sequence[int] = 0
    ) -> DistributedArray:
        """Return an array whose cells are to be filled.

        Parameters
        ----------
        shape : int or tuple of int
            Of the whole array.
        dtype : dtype
            Of its cells.
        split : int or sequence of int
            The axis to split, or the number of parts along each of the first axes.
        """
        lengths = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        parts = self._parts(tuple(map(int, lengths)), split)
        kind = checked(np.dtype(dtype))
        return array_of(self, parts, self.backend.empty(parts[self.rank].shape, kind))

    def _parts(self, shape: Shape, split: int | Sequence[int]) -> Partition:
        if min(shape, default=0) < 0:
            raise ValueError("negative dimensions are not allowed")
        return split_over(shape, split, self.size) if shape else geometry.even_parts((), self.size)

    def full(
        self,
        shape: int | Sequence[int],
        fill_value: Any,
        dtype: npt.DTypeLike | None = None,
        *,
        split: int | Sequence[int] = 0,
    ) -> DistributedArray:
        """Return an array of one value, as `numpy.full`. Other parameters are those of `empty`."""
        found = self.empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype, split=split)
        found.interior[...] = fill_value
        return found

    def zeros(
        self, shape: int | Sequence[int], dtype: npt.DTypeLike = float, *, split: int | Sequence[int] = 0
    ) -> DistributedArray:
        """Return an array of zeros. Parameters are those of `empty`."""
        return self.full(shape, 0, dtype, split=split)

    def ones(
        self, shape: int | Sequence[int], dtype: npt.DTypeLike = float, *, split: int | Sequence[int] = 0
    ) -> DistributedArray:
        """Return an array of ones. Parameters are those of `empty`."""
        return self.full(shape, 1, dtype, split=split)

    def arange(self, *bounds: Any, dtype: npt.DTypeLike | None = None) -> DistributedArray:
        """Return a line of numbers with NumPy's bits. Parameters are those of `numpy.arange`."""
        return self._cut(np.arange(*bounds, dtype=dtype))

    def linspace(
        self,
        start: float,
        stop: float,
        num: int = 50,
        endpoint: bool = True,
        dtype: npt.DTypeLike | None = None,
    ) -> DistributedArray:
        """Return a line of evenly spaced numbers with NumPy's bits, as `numpy.linspace`."""
        return self._cut(np.linspace(start, stop, num, endpoint, dtype=dtype))

    def _cut(self, whole: HostArray, split: int | Sequence[int] = 0) -> DistributedArray:
        """Return an array of which every rank has all cells."""
        kind = checked(whole.dtype)
        parts = self._parts(whole.shape, split)
        own = whole[parts[self.rank].slices].astype(kind, order="C")
        return array_of(self, parts, self.xp.asarray(own))

    # Arrays of other libraries

    def array(self, array: Any, *, split: int | Sequence[int] = 0) -> DistributedArray:
        """Return a copy of an array of NumPy's or CuPy's, split over the ranks. Collective.

        Parameters
        ----------
        array : array_like or None
            The same on every rank, which is checked; or of rank 0 alone, if all other ranks pass None.
        split : int or sequence of int
            The axis to split, or the number of parts along each of the first axes.

        Raises
        ------
        UserError
            On every rank, if the ranks pass different arrays.
        """
        begin(self, "world.array")
        whole = None if array is None else host_copy(array)
        known = self.control.allgather(None if whole is None else summary(whole))
        if all(one == known[0] for one in known[1:]) and whole is not None:
            return self._cut(whole, split)
        if known[0] is None or any(one is not None for one in known[1:]):
            other = next(rank for rank, one in enumerate(known) if one != known[0] or one is None)
            raise UserError(
                "world.array: the ranks pass different arrays",
                got=f"{told(known[0])} on rank 0, {told(known[other])} on rank {other}",
                expected="the same array on every rank, or None on every rank but 0",
                everywhere=True,
            )
        kind, shape, _ = known[0]
        parts = self._parts(shape, split)
        own = np.empty(parts[self.rank].shape, checked(np.dtype(kind)))
        if whole is None:
            self.control.exchange([], [(0, own)] if own.size else []).wait()
        else:
            pieces = [np.ascontiguousarray(whole[parts[rank].slices], own.dtype) for rank in range(self.size)]
            self.control.exchange([(n, one) for n, one in enumerate(pieces) if n and one.size], []).wait()
            own = pieces[0]
        return array_of(self, parts, self.xp.asarray(own))

    def from_local(
        self, block: Any, shape: Sequence[int] | None = None, *, split: int = 0
    ) -> DistributedArray:
        """Return the array of which each rank passes its own cells; they are not copied. Collective.

        Parameters
        ----------
        block : array
            This rank's cells: an array of NumPy, CuPy, PyTorch, JAX or any library with DLPack, on the rank's
            device. What is written to the array is written to the block.
        shape : tuple of int, optional
            Of the whole array, to be checked.
        split : int
            The axis along which the blocks follow each other in rank order. They may differ in length along
            it, and in nothing else.

        Raises
        ------
        UserError
            On every rank, for blocks that do not fit together.
        """
        begin(self, "world.from_local")
        own = self._own_memory(block)
        known = self.control.allgather((tuple(own.shape), own.dtype.str))
        axis = split % max(own.ndim, 1)
        first = known[0]
        for rank, (lengths, kind) in enumerate(known):
            alike = len(lengths) == len(first[0]) > axis and kind == first[1]
            pairs = enumerate(zip(lengths, first[0], strict=False))
            if not alike or any(a != b for number, (a, b) in pairs if number != axis):
                raise UserError(
                    "world.from_local: the ranks' blocks do not fit together",
                    got=f"{first[1]} of shape {first[0]} on rank 0, {kind} of shape {lengths} on rank {rank}",
                    expected=f"one dtype, and equal shapes but for axis {axis}",
                    everywhere=True,
                )
        ends = np.cumsum([0, *(lengths[axis] for lengths, _ in known)]).tolist()
        whole = (*own.shape[:axis], ends[-1], *own.shape[axis + 1 :])
        if shape is not None and tuple(shape) != whole:
            raise UserError(
                "world.from_local: the ranks' blocks do not make up the array",
                got=f"shape {whole}",
                expected=tuple(shape),
                everywhere=True,
            )
        boxes = []
        for begins, stops in pairwise(ends):
            start, stop = [0] * own.ndim, list(whole)
            start[axis], stop[axis] = begins, stops
            boxes.append(Region(tuple(start), tuple(stop)))
        grid = tuple(self.size if number == axis else 1 for number in range(own.ndim))
        return array_of(self, geometry.as_partition(geometry.BoxParts(whole, tuple(boxes)), grid), own)

    def _own_memory(self, block: Any) -> Array:
        """Return a block as an array of this rank's module, with the same memory where it can be written."""
        if isinstance(block, np.ndarray) or not hasattr(block, "__dlpack__"):
            own = self.xp.asarray(block)
        else:
            own = self.xp.from_dlpack(block)
        checked(np.dtype(own.dtype))
        if not getattr(own.flags, "writeable", True):
            own = own.copy()
        return own


def waits_of_a_loop(waits: Waits) -> str:
    """Return what to tell of a program in which a loop waits for values; an empty text if it costs little."""
    total = time.perf_counter() - waits.start
    line = next(iter(waits.longest), None)
    if line is None or line.times < LOOP_WAITS or waits.seconds < max(LEAST_WAITED, SHARE_WAITED * total):
        return ""
    return (
        f"the program waited for values in {seconds_text(waits.seconds)} of its {seconds_text(total)}. Line "
        f"{line.line} of {Path(line.file or '').name} waited for {counted(line.times, 'value')}, "
        f"{seconds_text(line.seconds)} in all. Try: ask for a value in every tenth iteration"
    )


def checked(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype in the machine's byte order; raise UserError for one that no array has."""
    if dtype.kind not in NUMBERS:
        raise UserError(
            "a distributed array holds numbers",
            got=dtype,
            expected="bool, integers, floats or complex numbers",
        )
    native: np.dtype[Any] = dtype.newbyteorder("=")
    return native


def host_copy(array: Any) -> HostArray:
    """Return an array of NumPy's; one of a device is copied to the host."""
    if isinstance(array, np.ndarray) and hasattr(array, "mask"):
        raise UserError("world.array: a masked array", hint="array.filled(value)")
    found: HostArray = array.get() if hasattr(array, "get") else np.asarray(array)
    checked(found.dtype)
    return found


def summary(whole: HostArray) -> tuple[str, Shape, str]:
    """Return the dtype, the shape and a checksum of the cells."""
    cells: Any = np.ascontiguousarray(whole).reshape(-1).view(np.uint8)
    return whole.dtype.str, whole.shape, hashlib.blake2b(cells, digest_size=8).hexdigest()


def told(known: tuple[str, Shape, str] | None) -> str:
    return "None" if known is None else f"{known[0]} of shape {known[1]} with checksum {known[2]}"
