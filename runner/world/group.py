"""Ranks that exchange arrays: all of a run, or those along an axis of a grid of ranks.

Arrays are NumPy's on CPU ranks and CuPy's on GPU ranks, where calls are ordered with the current stream and
return before the device is done. Arrays may have any strides: what is not C-contiguous is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

import numpy as np

from meshrun.runner.comm.api import UFUNCS, Arrays, Control, Message, Operation, Pending
from meshrun.runner.comm.checksum.checked import named
from meshrun.runner.device.api import Backend
from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import Parts, bounds, parts_of
from meshrun.runner.plan.redistribution import RedistributionPlan
from meshrun.runner.region import Array, Shape, packed


@dataclass(frozen=True)
class _Exchange:
    """Messages in flight, and what to copy when they have arrived. unpack: (from, to)."""

    messages: Pending
    unpack: Sequence[tuple[Array, Array]]

    def progress(self) -> None:
        self.messages.progress()

    def wait(self) -> None:
        self.messages.wait()
        for buffer, target in self.unpack:
            target[...] = buffer


@dataclass
class Group:
    """Ranks 0 to `size` - 1 that call the same methods; this process is `rank`.

    control: communicator for small values and host arrays. arrays: communicator for arrays of this rank's
    device. Methods marked collective are called by all ranks of the group, in the same order; they raise
    UserError on all of them if the arrays do not fit.
    """

    control: Control
    arrays: Arrays
    backend: Backend
    rank: int = field(init=False)
    size: int = field(init=False)
    _closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.rank, self.size = self.control.rank, self.control.size

    @property
    def xp(self) -> Any:
        """The array module: numpy or cupy."""
        return self.backend.xp

    def part(self, length: int, rank: int | None = None) -> slice:
        """Return a rank's part, by default this one's, of an axis of `length` cells that is split over the
        ranks: of p parts, the first length % p have one cell more."""
        if length < 0:
            raise UserError("the length of an axis is 0 or more", got=length)
        return slice(*bounds(length, self.size, self.rank if rank is None else rank))

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Send and receive arrays, as (rank, array) pairs, all at once; return when both are done.

        Messages between two ranks arrive in the order sent. The receiver's array has the shape and dtype of
        the sent one, and overlaps with none. Ranks may send to themselves.
        """
        self.start_exchange(sends, receives).wait()

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Pending:
        """Start what `exchange` does; received arrays may be read, and sent ones reused, after `wait`."""
        for peer, _ in (*sends, *receives):
            if not 0 <= peer < self.size:
                expected = f"0 to {self.size - 1}"
                raise UserError("an array for a rank that does not exist", got=peer, expected=expected)
        others = [(peer, array) for peer, array in receives if peer != self.rank and array.size]
        buffers = [array if array.flags.c_contiguous else self._empty_like(array) for _, array in others]
        pending = self.arrays.exchange(
            [(peer, packed(array)) for peer, array in sends if peer != self.rank and array.size],
            [(peer, buffer) for (peer, _), buffer in zip(others, buffers, strict=True)],
        )
        kept = [array for peer, array in sends if peer == self.rank]
        own = [array for peer, array in receives if peer == self.rank]
        if [array.shape for array in kept] != [array.shape for array in own]:
            shapes = (", ".join(str(tuple(array.shape)) for array in some) or "none" for some in (kept, own))
            raise UserError(
                f"rank {self.rank} does not receive what it sends to itself",
                got="arrays of shape {}, for arrays of shape {}".format(*shapes),
            )
        for source, target in zip(kept, own, strict=True):
            target[...] = source
        unpack = [
            (buffer, target)
            for (_, target), buffer in zip(others, buffers, strict=True)
            if buffer is not target
        ]
        return _Exchange(pending, unpack)

    def exchange_beside(
        self,
        work: Callable[[], None],
        sends: Sequence[Message],
        receives: Sequence[Message],
        started: Callable[[Pending], None] = lambda pending: None,
    ) -> None:
        """Call `work` while messages are exchanged as by `exchange`; it changes none of their arrays.

        On a GPU the messages, with their packing, are issued to a second stream after the work: they start
        when what was issued before this call is done. On a CPU they start first, and `started` gets them, so
        that the work can move them (`Pending.progress`).
        """
        if self.backend.asynchronous:
            mark = self.backend.mark()
            work()
            with self.backend.beside(mark):
                self.exchange(sends, receives)
            return
        pending = self.start_exchange(sends, receives)
        started(pending)
        work()
        pending.wait()

    def send(self, array: Array, to: int) -> None:
        """Send an array to one rank, which calls `receive`.

        Two ranks that both send before they receive may wait for each other forever; use `exchange`.
        """
        self.exchange([(to, array)], [])

    def receive(self, out: Array, source: int) -> Array:
        """Fill `out`, of the sent array's shape and dtype, with what rank `source` sends; return it."""
        self.exchange([], [(source, out)])
        return out

    def all_reduce(self, array: Array, operation: Operation = "sum") -> Array:
        """Reduce equally shaped arrays of one dtype elementwise, in place; returns `array`. Collective.

        Of numbers and bool; complex numbers have no `min` and `max`, and on GPUs no `prod`.
        """
        _check_reducible(array, operation)
        if self.size > 1:
            native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
            whole = packed(native)  # its elements are in the same order on all ranks
            self.arrays.all_reduce(whole, operation)
            if whole is not array:
                array[...] = whole
        return array

    def all_gather(self, array: Array, axis: int = 0) -> Array:
        """Return all ranks' arrays, concatenated along `axis` in rank order. Collective.

        Their lengths along `axis` may differ.
        """
        shapes = self._agreed("all_gather", array, axis)
        axis %= array.ndim
        lengths = [shape[axis] for shape in shapes]
        out = self._empty(_with(shapes[0], axis, sum(lengths)), array.dtype)
        ends = np.cumsum([0, *lengths]).tolist()
        parts = [out[_cut(axis, *ends[rank : rank + 2])] for rank in range(self.size)]
        with named(self.arrays, "all_gather"):
            self.exchange([(rank, array) for rank in range(self.size)], list(enumerate(parts)))
        return out

    def all_to_all(self, arrays: Any, out: Sequence[Array] | None = None) -> Any:
        """Send each rank an array, and return those that the ranks have sent here. Collective.

        arrays: for each rank one, of any shapes and dtypes; returns a list in rank order. Or one array whose
        first axis has an entry for each rank; returns an array of the same shape. out: what to fill and
        return; without it, the ranks exchange shapes first.
        """
        if len(arrays) != self.size:
            raise UserError("all_to_all takes an array for each rank", got=len(arrays), expected=self.size)
        if out is None and hasattr(arrays, "shape"):
            self._agreed("all_to_all", arrays, None)
            out = self._empty(tuple(arrays.shape), arrays.dtype)
        if out is None:
            sent = self.control.allgather([(tuple(one.shape), np.dtype(one.dtype)) for one in arrays])
            out = [self._empty(*one[self.rank]) for one in sent]
        ranks = range(self.size)
        with named(self.arrays, "all_to_all"):
            self.exchange(*([(rank, _view(all_, rank)) for rank in ranks] for all_ in (arrays, out)))
        return out

    def reduce_scatter(self, array: Array, operation: Operation = "sum", axis: int = 0) -> Array:
        """Reduce equally shaped arrays elementwise over all ranks; return this rank's part. Collective.

        The result is cut along `axis` as arrays are split (`bounds` in `runner.plan.grid`): of p parts of n
        elements, the first n % p have one more. The ranks' values are combined in rank order, so that the
        bits do not depend on the transport; float16 in float32, and then rounded once.
        """
        _check_reduction("reduce_scatter", array.dtype, operation)
        shapes = self._agreed("reduce_scatter", array, None)
        if not -array.ndim <= axis < array.ndim:
            raise _no_axis("reduce_scatter", axis, array)
        axis %= array.ndim
        cuts = [_cut(axis, *bounds(shapes[0][axis], self.size, rank)) for rank in range(self.size)]
        mine = array[cuts[self.rank]]
        parts = self._empty((self.size, *mine.shape), array.dtype)
        ranks = range(self.size)
        sends = [(rank, array[cuts[rank]]) for rank in ranks]
        with named(self.arrays, "reduce_scatter"):
            self.exchange(sends, [(rank, parts[rank]) for rank in ranks])
        combine = getattr(self.xp, UFUNCS[operation])
        total = parts[0].astype(np.float32 if array.dtype == np.float16 else array.dtype)
        for part in parts[1:]:
            combine(total, part, out=total)
        return total.astype(array.dtype)

    def redistribute(
        self, block: Array, from_split: int | Parts, to_split: int | Parts, shape: Shape | None = None
    ) -> Array:
        """Return this rank's block of the same whole array, split along another axis. Collective.

        block: this rank's part of an array that is split along axis `from_split` only; its other axes are
        whole. Split means cut into `size` parts by the project's rule (`bounds` in `runner.plan.grid`); parts
        may be empty. Each split may also be a partition. shape: of the whole array; without it, the ranks
        exchange the shapes of their blocks first, and check them. Two equal axes return the block itself.
        """
        if shape is not None:
            whole = shape
        elif isinstance(from_split, SupportsIndex):
            whole = self.whole_shape(block, from_split, to_split=to_split)
        else:
            whole = from_split.shape
        axes = [split for split in (from_split, to_split) if isinstance(split, SupportsIndex)]
        for axis in axes:
            if not -len(whole) <= axis < len(whole):
                raise _no_axis("redistribute", axis, block)
        if len(axes) == 2 and axes[0] % len(whole) == axes[1] % len(whole):
            return block
        before, after = (parts_of(whole, split, self.size) for split in (from_split, to_split))
        out = self._empty(after[self.rank].shape, block.dtype)
        move(self, RedistributionPlan(before, after, self.size), block, out)
        return out

    def whole_shape(self, block: Array, split: int, **arguments: Any) -> Shape:
        """Return the shape of the array whose parts along axis `split` the ranks' blocks are. Collective.

        arguments: others of the caller, which are the same on all ranks; UserError on every rank if not.
        """
        shapes = self._agreed("a split array", block, split, arguments)
        split %= block.ndim
        length = sum(shape[split] for shape in shapes)
        for rank, shape in enumerate(shapes):
            expected = _length(bounds(length, self.size, rank))
            if shape[split] != expected:
                raise UserError(
                    f"the ranks' blocks are no even split of {length} along axis {split}",
                    got=f"{shape[split]} on rank {rank}",
                    expected=expected,
                    hint="all_gather or all_to_all for parts of any length",
                    everywhere=True,
                )
        return _with(shapes[0], split, length)

    def close(self) -> None:
        """Free the communicators, the device's first. Collective."""
        if self.arrays is not self.control:
            self.arrays.close()
        self.control.close()

    def _agreed(
        self, what: str, array: Array, free: int | None, arguments: Mapping[str, Any] | None = None
    ) -> list[Shape]:
        """Return the ranks' shapes; UserError on every rank if others than axis `free`, dtypes, or arguments
        differ."""
        if free is not None and not -array.ndim <= free < array.ndim:
            raise _no_axis(what, free, array)
        mine = tuple(array.shape), np.dtype(array.dtype), arguments or {}
        known: list[tuple[Shape, Any, Mapping[str, Any]]] = self.control.allgather(mine)
        first = known[0]
        for rank, (shape, dtype, values) in enumerate(known):
            same = len(shape) == len(first[0]) and dtype == first[1]
            fits = same and (
                shape == first[0] if free is None else _with(shape, free, 0) == _with(first[0], free, 0)
            )
            if not fits:
                raise UserError(
                    f"{what}: the ranks' arrays do not fit together",
                    got=f"{first[1]} of shape {first[0]} on rank 0, {dtype} of shape {shape} on rank {rank}",
                    expected="one dtype, and equal shapes"
                    + ("" if free is None else f" but for axis {free}"),
                    everywhere=True,
                )
            for name, value in values.items():
                if value != first[2][name]:
                    raise UserError(
                        f"the ranks' {name} differ",
                        got=f"{first[2][name]!r} on rank 0, {value!r} on rank {rank}",
                        expected="the same on all ranks",
                        everywhere=True,
                    )
        return [shape for shape, *_ in known]

    def _empty(self, shape: Shape, dtype: Any) -> Array:
        return self.backend.empty(shape, np.dtype(dtype))

    def _empty_like(self, array: Array) -> Array:
        return self._empty(tuple(array.shape), array.dtype)


def move(group: Group, plan: RedistributionPlan, block: Array, out: Array) -> None:
    """Fill `out`, this rank's box after a redistribution, from `block`, its box before. Collective.

    Both may have further axes, which are whole.
    """
    sends, receives = plan.messages(group.rank)
    with named(group.arrays, "redistribute"):
        group.exchange(
            [(rank, block[cells]) for rank, cells in enumerate(sends)],
            [(rank, out[cells]) for rank, cells in enumerate(receives)],
        )


def _check_reduction(what: str, dtype: Any, operation: str) -> None:
    """Raise UserError for an operation that does not exist, or not for elements of this dtype."""
    if operation not in UFUNCS:
        raise UserError("there is no such reduction", got=repr(operation), expected=", ".join(UFUNCS))
    kind = np.dtype(dtype).kind
    if kind not in "biufc" or (kind == "c" and operation in ("min", "max")):
        raise UserError(f"{what}: {operation} is not for this dtype", got=np.dtype(dtype))


def _check_reducible(array: Any, operation: str) -> None:
    """Raise UserError unless `array` can be replaced by the reduction, whatever the transport."""
    flags = getattr(array, "flags", None)
    if flags is None or not getattr(flags, "writeable", True):  # CuPy's have no such flag
        got = type(array).__name__ if flags is None or not array.ndim else "a read-only array"
        hint = "numpy.array([value]), or a copy of the array"
        raise UserError("all_reduce replaces the elements of an array", got=got, hint=hint)
    _check_reduction("all_reduce", array.dtype, operation)


def _no_axis(what: str, axis: int, array: Array) -> UserError:
    return UserError(
        f"{what}: there is no such axis", got=axis, expected=f"an axis of shape {tuple(array.shape)}"
    )


def _with(shape: Shape, axis: int, length: int) -> Shape:
    """Return the shape with another length along an axis, which may count from the end."""
    axis %= len(shape)
    return (*shape[:axis], length, *shape[axis + 1 :])


def _length(cut: tuple[int, int]) -> int:
    return cut[1] - cut[0]


def _cut(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(start, stop))


def _view(arrays: Any, index: int) -> Array:
    """Return an entry that can be filled, also of an array with one axis."""
    return (
        arrays[index]
        if isinstance(arrays, (list, tuple))
        else arrays[index : index + 1].reshape(arrays.shape[1:])
    )
