"""The operators, indices and protocols of an array that is split over the ranks, as NumPy's arrays have them.

An operation is computed by each rank for its own cells of the result, by NumPy or CuPy: the bits are NumPy's.
The result is split as the first operand of its shape is. What a rank lacks of the other operands is sent to
it before: for shifted slices, the cells next to a cut. A slice is a view: it has its cells where the array
has them, and writes through.
"""

from __future__ import annotations

import functools
import operator
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from meshrun.runner.arrays.operations import parts as geometry
from meshrun.runner.arrays.operations.parts import Parts
from meshrun.runner.arrays.operations.table import FUNCTIONS, OTHER
from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import Partition, split_along
from meshrun.runner.region import Array, HostArray, Region, Shape, address_of, packed
from meshrun.runner.world.group import move
from meshrun.runner.world.world import World

Whole = TypeVar("Whole", bound="SplitArray")

MOST_GATHERED = 64 << 20  # bytes that np.asarray and the like gather
MOST_REPLICATED = 64 << 10  # bytes of NumPy's arrays that are operands and vary along several axes
TRUTH = "The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()"


def of_numpy(name: str) -> Callable[..., Any]:
    """Return a method of arrays that is a function of NumPy's."""

    def call(self: SplitArray, *arguments: Any, **options: Any) -> Any:
        return getattr(np, name)(self, *arguments, **options)

    call.__name__, call.__doc__ = name, f"See `numpy.{name}`. Collective."
    return call


class SplitArray(np.lib.mixins.NDArrayOperatorsMixin):
    """What a distributed array does as NumPy's arrays do.

    A subclass has `world`, `partition` and `interior`, this rank's cells, and makes arrays by `made`.
    """

    world: World
    interior: Array
    base: SplitArray | None = None  # of a view: the array whose memory it has
    writes: int = 0  # to an array that is no view, so far
    # Of what NumPy would have made as a view, and here is a copy: what it is, the array, and its writes then.
    copied: tuple[str, SplitArray, int] | None = None

    __hash__ = object.__hash__

    # What a subclass has

    @property
    def partition(self) -> Any:
        raise NotImplementedError

    def made(self: Whole, parts: Parts, own: Array) -> Whole:
        """Return a new array. own: this rank's cells."""
        raise NotImplementedError

    def written(self) -> None:
        """Note that cells have changed."""
        raise NotImplementedError

    # What it is

    @property
    def shape(self) -> Shape:
        shape: Shape = self.partition.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.interior.dtype
        return dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Cells of the whole array."""
        return int(np.prod(self.shape, dtype=object))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.size * self.dtype.itemsize

    @property
    def local(self) -> Array:
        """This rank's own cells: a NumPy or CuPy array that writes through.

        `torch.from_dlpack(u.local)`, `jax.dlpack.from_dlpack(u.local)` and `cupy.from_dlpack(u.local)` share
        its memory.
        """
        self.written()  # the caller may write to it
        return self.interior

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __repr__(self) -> str:
        own = self.partition[self.world.rank]
        where = f"rank {self.world.rank} of {self.world.size} has {own}"
        return f"<distributed array of {self.dtype}, shape {self.shape}; {where}>"

    # Values

    def gather(self) -> HostArray:
        """Return the whole array as NumPy's, on every rank. Collective."""
        self.check_readable()
        begin(self.world, "gather", self)
        cells = self.fetched(geometry.everywhere(self.shape, self.world.size))
        if not self.world.backend.asynchronous:
            return np.array(cells)
        host = np.empty(self.shape, self.dtype)
        self.world.backend.download(packed(cells), host)
        self.world.backend.synchronize()
        return host

    def _gathered(self, how: str) -> HostArray:
        """Return the whole array, unless it is large."""
        if self.nbytes > MOST_GATHERED:
            raise UserError(
                f"{how} gathers a distributed array of shape {self.shape} on every rank",
                got=f"{self.nbytes:,} bytes",
                expected=f"at most {MOST_GATHERED:,}",
                hint="world.save(path, u) for a file, u.local for this rank's cells, "
                "or u.gather() for all of them",
                everywhere=True,
            )
        return self.gather()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> HostArray:
        if copy is False:
            raise ValueError("a distributed array is gathered: np.asarray(u) makes a copy")
        whole = self._gathered("np.asarray")
        return whole if dtype is None else whole.astype(dtype)

    def tolist(self) -> Any:
        return self._gathered("tolist").tolist()

    def __reduce__(self) -> Any:
        return self._gathered("pickle").__reduce__()

    def item(self) -> Any:
        """Return the only cell as a Python number, the same on every rank. Collective."""
        if self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        if self.shape:
            return self._gathered("item").item()
        value = self.world.waited_for(self.interior)
        self.world.operations.waits.note_caller()
        return value

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(TRUTH)
        return bool(self.item())

    def __str__(self) -> str:
        return repr(self) if self.shape else str(self.item())

    def __format__(self, form: str) -> str:
        return str(self) if self.shape and not form else format(self._number(), form)

    def _number(self) -> Any:
        if self.shape:
            raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
        return self.item()

    def __float__(self) -> float:
        return float(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __complex__(self) -> complex:
        return complex(self._number())

    def __index__(self) -> int:
        return operator.index(self._number())

    def __iter__(self) -> Any:
        raise UserError(
            "a distributed array is not iterated: each row would be an operation of all ranks",
            hint="operations on whole arrays, or `for row in u.gather():`",
            everywhere=True,
        )

    # Cells of other ranks

    def own_cells(self, world: World) -> Array:
        """Return this rank's own cells, as an operand in a world."""
        self.check_world(world)
        self.check_readable()
        return self.interior

    def check_world(self, world: World) -> None:
        """Raise UserError for an array of another world."""
        if self.world is not world:
            raise UserError(
                "combines arrays of two worlds",
                got=f"runs {self.world.run_id} and {world.run_id}",
                hint="arrays that one `with meshrun.open_world()` has made; world.array(a.gather()) copies",
                everywhere=True,
            )

    def fetched(self, parts: Parts) -> Array:
        """Return this rank's cells by other parts: the array's own memory if it has them. Collective."""
        self.check_readable()
        world, mine = self.world, self.partition
        plan = geometry.plan_between(mine, parts, world.size) if mine is not parts and self.shape else None
        if plan is None:
            return self.interior
        world.operations.agree()
        out = world.backend.empty(parts[world.rank].shape, self.dtype)
        move(world, plan, self.interior, out)
        return out

    def split_as(self: Whole, parts: Parts) -> Whole:
        """Return the array with other parts: itself if it has them. Collective."""
        cells = self.fetched(parts)
        return self if cells is self.interior else self.made(parts, cells)

    def evenly_split(self: Whole) -> Whole:
        """Return the array with the parts of a partition: itself if it has such. Collective."""
        if geometry.is_even(self.partition, self.world.size):
            return self
        return self.split_as(geometry.even_parts(self.shape, self.world.size))

    # Indices

    def view(self: Whole, items: geometry.Items) -> Whole:
        """Return the view of what an index takes along each axis, which is not one cell."""
        return self._viewed(geometry.view_plan(self.partition, items, self.world.size, self.world.rank))

    def _viewed(self: Whole, plan: geometry.ViewPlan) -> Whole:
        if plan.own is None:
            return self.view_of(
                plan.parts, self.world.backend.empty((0,) * len(plan.parts.shape), self.dtype)
            )
        return self.view_of(plan.parts, self.interior[plan.own])

    def view_of(self: Whole, parts: Parts, cells: Array) -> Whole:
        """Return a view of this array. cells: some of this rank's own."""
        view = self.made(parts, cells)
        view.base, view.copied = self.root, self.copied
        return view

    @property
    def root(self) -> SplitArray:
        """The array whose memory this one has."""
        return self if self.base is None else self.base

    def as_copy(self: Whole, what: str, source: SplitArray) -> Whole:
        """Note that this is a copy of cells of `source` of which NumPy has a view; return it.

        To write to it, or to read it after the source was written, would not be what NumPy does: both fail.
        """
        self.copied = what, source.root, source.root.writes
        return self

    def check_readable(self) -> None:
        """Raise UserError for a copy of an array that was written since, whose view NumPy has."""
        if self.copied is not None and self.copied[1].writes > self.copied[2]:
            raise UserError(
                f"reads {self.copied[0]} after the array that it is a copy of was written",
                expected="NumPy's view of that array",
                hint="make it again after the write; or .copy() for an array of its own",
                everywhere=True,
            )

    def __getitem__(self, index: Any) -> Any:
        self.check_readable()
        if (mask := self._mask(index)) is not None:
            return self._picked(mask)
        plan = self._indexed(index)
        if not plan.items:
            return self
        if not plan.is_cell:
            return self._viewed(plan)
        # One cell, which its rank sends to all.
        begin(self.world, f"[{index}]", self)
        cell = self._viewed(self._as_view(plan))
        return as_number(self, cell.fetched(geometry.everywhere(cell.shape, self.world.size)))

    def __setitem__(self, index: Any, value: Any) -> None:
        self.check_writable()
        value = operand(value)
        if (mask := self._mask(index)) is not None:
            self._write_masked(mask, value)
            return
        target = self._viewed(self._as_view(self._indexed(index)))
        if self.world.operations.is_needed:
            self.world.operations.note(f"[...] = of {described(target, value)}")
        shape = np.shape(value)
        while len(shape) > target.ndim and shape[0] == 1:
            value, shape = value[0], shape[1:]
        if (
            shape not in ((), target.shape)
            and geometry.broadcast_shape([shape, target.shape]) != target.shape
        ):
            raise ValueError(f"could not broadcast input array from shape {shape} into shape {target.shape}")
        cells = cells_for(self.world, value, target.partition)
        cells = apart_from(target, value, cells)
        if self.world.xp is not np and isinstance(cells, np.ndarray):
            cells = self.world.xp.asarray(cells)
        target.interior[...] = cells
        self.note_write()

    def check_writable(self) -> None:
        """Raise UserError for an array that is a copy where NumPy has a view."""
        if self.copied is not None:
            raise UserError(
                f"writes to {self.copied[0]}, which is a copy of a distributed array",
                expected="an array of its own, or a view by slices",
                hint="slices of the array itself; or .copy() for an array of its own",
                everywhere=True,
            )

    def note_write(self) -> None:
        self.root.writes += 1
        self.written()
        self.root.written()

    def _as_view(self, plan: geometry.ViewPlan) -> geometry.ViewPlan:
        """Return a plan that takes slices: of one cell, a slice of length 1 along each axis."""
        if not plan.is_cell:
            return plan
        items = tuple(geometry.Taken(one, 1, 1) for one in plan.items if isinstance(one, int))
        return geometry.view_plan(self.partition, items, self.world.size, self.world.rank)

    def _indexed(self, index: Any) -> geometry.ViewPlan:
        """Return what an index takes; raises for one that is no index of slices and numbers."""
        world, key = self.world, geometry.index_key(index)
        if key is not None:
            return geometry.indexed(self.partition, key, world.size, world.rank)
        return geometry.view_plan(self.partition, self._items(index), world.size, world.rank)

    def _items(self, index: Any) -> geometry.Items:
        """Return what an index takes along each axis."""
        for one in index if isinstance(index, tuple) else (index,):
            is_number = (
                hasattr(one, "__index__") and not np.shape(one) and not isinstance(one, (bool, np.bool_))
            )
            if not (one is None or one is Ellipsis or isinstance(one, slice) or is_number):
                raise UserError(
                    "a distributed array takes no such index",
                    got=f"{type(one).__name__} in an index of an array of shape {self.shape}",
                    expected="slices, whole numbers, ..., None, or one mask of the array's shape",
                    hint="np.where(mask, a, b), or a function with @meshrun.distribute for points u[ys, xs]",
                    everywhere=True,
                )
        return geometry.items_of(index, self.shape)

    # Masks

    def _mask(self, index: Any) -> Any:
        """Return an index that is a mask of the array, or of its first axes; None if it is none."""
        if isinstance(index, tuple) and len(index) == 1:
            (index,) = index
        if not isinstance(index, (SplitArray, np.ndarray)) or index.dtype != bool or not index.ndim:
            return None
        if index.ndim > self.ndim:
            raise IndexError(
                f"too many indices for array: array is {self.ndim}-dimensional, but {index.ndim} were indexed"
            )
        pairs = enumerate(zip(index.shape, self.shape, strict=False))
        axis = next((number for number, (a, b) in pairs if a != b), None)
        if axis is not None:
            raise IndexError(
                f"boolean index did not match indexed array along axis {axis}; size of axis is "
                f"{self.shape[axis]} but size of corresponding boolean axis is {index.shape[axis]}"
            )
        return index

    def in_rows(self: Whole) -> Whole:
        """Return the array split along the first axis only: the ranks' cells are in C order. Collective."""
        parts = self.partition
        if isinstance(parts, Partition) and parts.grid[0] == self.world.size:
            return self
        return self.split_as(split_along(self.shape, 0, self.world.size))

    def _own_mask(self, mask: Any) -> Any:
        """Return this rank's cells of a mask of the first axes. Collective."""
        count, ranks = mask.ndim, self.world.size
        regions = [self.partition[rank] for rank in range(ranks)]
        boxes = [Region(region.start[:count], region.stop[:count]) for region in regions]
        return cells_for(self.world, mask, geometry.BoxParts(mask.shape, tuple(boxes)), on_device=True)

    def _picked(self: Whole, mask: Any) -> Whole:
        """Return the cells that a mask picks, in C order: each rank has those of its own rows. Collective."""
        begin(self.world, "[mask]", self, mask)
        rows = self.in_rows()
        cells = rows.interior[rows._own_mask(mask)]
        return self.made(self._counted(len(cells), self.shape[mask.ndim :]), cells)

    def _counted(self, count: int, rest: Shape) -> Partition:
        """Return the partition of an array of which each rank has so many rows. Collective."""
        counts = self.world.control.allgather(count)
        starts = tuple(sum(counts[:rank]) for rank in range(len(counts)))
        grid = (len(counts),) + (1,) * len(rest)
        return Partition((sum(counts), *rest), grid, starts=(starts, *((0,) for _ in rest)))

    def _write_masked(self, mask: Any, value: Any) -> None:
        """Write to the cells that a mask picks: one value, or one for each. Collective."""
        begin(self.world, "[mask] =", self, mask, value)
        if not np.ndim(value):
            self.interior[self._own_mask(mask)] = cells_for(self.world, value, self.partition)
            self.note_write()
            return
        rows = self.in_rows()
        own = rows._own_mask(mask)
        parts = self._counted(int(own.sum()), self.shape[mask.ndim :])
        shape = np.shape(value)
        if geometry.broadcast_shape([shape, parts.shape]) != parts.shape:
            raise ValueError(
                f"shape mismatch: value array of shape {shape} could not be broadcast to indexing result of "
                f"shape {parts.shape}"
            )
        rows.interior[own] = cells_for(self.world, value, parts, on_device=True)
        if rows is not self:
            self.interior[...] = rows.fetched(self.partition)
        self.note_write()

    # Protocols

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "__call__" and ufunc.signature is None:
            return elementwise(ufunc.__name__, inputs, function=ufunc, **options)
        called = ufunc if method == "__call__" else (ufunc, method)
        if called in FUNCTIONS:
            if method == "accumulate":  # NumPy's function without an axis goes along all of them
                options.setdefault("axis", 0)
            return FUNCTIONS[called](*inputs, **options)
        if method == "reduce" and "reduce" in FUNCTIONS:
            return FUNCTIONS["reduce"](ufunc, *inputs, **options)
        if method == "__call__" and OTHER in FUNCTIONS:
            return FUNCTIONS[OTHER](ufunc, inputs, options)
        raise not_for_split_arrays(f"numpy.{ufunc.__name__}{'' if method == '__call__' else '.' + method}")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in FUNCTIONS:
            return FUNCTIONS[function](*args, **kwargs)
        if OTHER in FUNCTIONS:
            return FUNCTIONS[OTHER](function, args, kwargs)
        raise not_for_split_arrays(f"{function.__module__}.{function.__name__}")

    # Methods

    def astype(self: Whole, dtype: npt.DTypeLike, copy: bool = True) -> Whole:
        """Return the array with cells of another dtype, converted as NumPy does."""
        self.check_readable()
        if not copy and self.dtype == np.dtype(dtype):
            return self
        return self._new(self.interior.astype(dtype))

    def copy(self: Whole) -> Whole:
        """Return an array of its own, split as this one."""
        self.check_readable()
        return self._new(self.interior.copy(order="C"))

    def _new(self: Whole, cells: Array) -> Whole:
        found = self.made(self.partition, cells)
        return found if geometry.is_even(self.partition, self.world.size) else found.evenly_split()

    def fill(self, value: Any) -> None:
        self[...] = value

    @property
    def T(self: Whole) -> Whole:
        return self.transpose()

    def transpose(self: Whole, *axes: Any) -> Whole:
        """Return a view with its axes in another order, by default reversed; no cell moves."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        if not order:
            order = range(self.ndim)[::-1]
        places = [operator.index(axis) for axis in order]
        if sorted(axis % max(self.ndim, 1) for axis in places) != [*range(self.ndim)]:
            raise ValueError("axes don't match array")
        turned = tuple(axis % self.ndim for axis in places)
        found = geometry.transposed(self.partition, turned, self.world.size)
        return self.view_of(found, self.interior.transpose(turned))

    @property
    def real(self: Whole) -> Whole:
        return self.view_of(self.partition, self.interior.real)

    @property
    def imag(self: Whole) -> Whole:
        return self.view_of(self.partition, self.interior.imag)

    def reshape(self, *shape: Any) -> Any:
        return np.reshape(self, shape[0] if len(shape) == 1 else shape)

    def ravel(self) -> Any:
        return np.reshape(self, -1)

    def flatten(self) -> Any:
        return np.reshape(self, -1).copy()

    conj = conjugate = of_numpy("conjugate")
    clip, round = of_numpy("clip"), of_numpy("round")
    mean, std, var, prod = of_numpy("mean"), of_numpy("std"), of_numpy("var"), of_numpy("prod")
    any, all = of_numpy("any"), of_numpy("all")
    argmax, argmin = of_numpy("argmax"), of_numpy("argmin")


def begin(world: World, name: str, *operands: Any) -> None:
    """Note an operation that exchanges, and compare with what the other ranks have called. Collective."""
    if world.operations.is_needed:
        if world.is_closed:
            raise UserError(
                "a distributed array is used after its world was closed",
                got=name,
                hint="the call inside the `with meshrun.open_world() as world:` block",
                everywhere=True,
            )
        world.operations.note(f"{name} of {described(*operands)}" if operands else name)
        world.operations.agree()


def described(*values: Any) -> str:
    """Return dtypes and shapes of operands, and the values of numbers."""
    texts = []
    for one in values:
        if isinstance(one, SplitArray):
            texts.append(f"{_named(one.dtype)} {one.shape}")
        elif isinstance(one, np.ndarray) and one.ndim:
            sum_ = zlib.crc32(np.ascontiguousarray(one).view(np.uint8).tobytes()[:MOST_REPLICATED])
            texts.append(f"{one.dtype} {one.shape} with checksum {sum_:08x}")
        elif hasattr(one, "__cuda_array_interface__"):
            texts.append(f"{one.dtype} {one.shape}")
        else:
            texts.append(repr(one))
    return ", ".join(texts)


_named = functools.lru_cache(256)(str)  # of dtypes: NumPy takes a while to put their names together


def as_number(like: SplitArray, value: Any) -> Any:
    """Return a value that every rank has: a scalar of NumPy's; on a device an array of shape ().

    CuPy's own arrays do not combine with arrays of other classes. value: of one cell.
    """
    if like.world.xp is np:
        return value.reshape(())[()]
    return like.made(geometry.even_parts((), like.world.size), value.reshape(()))


def not_for_split_arrays(name: str) -> UserError:
    return UserError(
        f"{name} does not take distributed arrays",
        hint="functions of each cell, slices and reductions; or u.gather() for an array that fits one rank",
        everywhere=True,
    )


# Operands


def operand(value: Any) -> Any:
    """Return an operand as an array or a number. Raises UserError for one that a rank cannot cut."""
    if isinstance(value, np.ndarray) and hasattr(value, "mask"):
        raise UserError("a masked array beside a distributed array", hint="value.filled(0)", everywhere=True)
    if isinstance(value, (list, tuple)):
        return np.asarray(value)
    return value


def shape_of(value: Any) -> Shape:
    """Return NumPy's shape of an array or a number."""
    if type(value) in (int, float, complex, bool):  # of which numpy.shape makes arrays
        return ()
    shape: Shape = np.shape(value)
    return shape


def check_small(value: Any, shape: Shape) -> None:
    """Raise UserError for an array of NumPy's that varies along several axes and is large."""
    if isinstance(value, SplitArray) or not np.ndim(value):
        return
    varying = sum(length > 1 for length in np.shape(value))
    line = varying <= 1 < sum(length > 1 for length in shape)
    if value.nbytes > MOST_REPLICATED and not line:
        raise UserError(
            "combines a distributed array with a large array of NumPy's, which every rank has whole",
            got=f"{value.dtype} of shape {np.shape(value)} beside shape {shape}",
            expected=f"a number, a line such as (n, 1), or at most {MOST_REPLICATED:,} bytes",
            hint="world.array(a), which splits it over the ranks, once",
            everywhere=True,
        )


def cells_for(world: World, value: Any, parts: Parts, *, on_device: bool = False) -> Any:
    """Return this rank's cells of an operand that broadcasts to an array with these parts. Collective.

    on_device: also an array of NumPy's.
    """
    if isinstance(value, SplitArray):
        value.check_world(world)
        return value.fetched(geometry.projected(parts, value.shape, world.size))
    if not shape_of(value):
        of_numpy = world.xp is not np and isinstance(value, (np.ndarray, np.generic))
        return world.xp.asarray(value) if of_numpy else value
    check_small(value, parts.shape)
    own = value[geometry.projected(parts, np.shape(value), world.size)[world.rank].slices]
    return world.xp.asarray(own) if on_device or world.xp is not np else own


def apart_from(target: SplitArray, value: Any, cells: Any) -> Any:
    """Return an operand's cells; a copy if they overlap with what is written, on a device.

    NumPy copies by itself. CuPy computes cells in any order.
    """
    if target.world.xp is np or not isinstance(value, SplitArray) or cells is not value.interior:
        return cells
    if value.root is not target.root:
        return cells
    same = address_of(cells) == address_of(target.interior) and cells.strides == target.interior.strides
    return cells if same and cells.shape == target.interior.shape else cells.copy()


def elementwise(
    name: str,
    inputs: Sequence[Any],
    *,
    function: Any = None,
    out: Any = None,
    where: Any = True,
    **options: Any,
) -> Any:
    """Return a function of each cell. Collective where operands are not cut alike.

    Parameters
    ----------
    name: of the function in the array module, such as "add".
    inputs: its operands, at least one of them distributed, or `out`.
    function: NumPy's. None: the module's, by its name.
    out: as of NumPy's universal functions: an array, or a tuple.
    where: a mask, or True.
    options: such as `dtype` and `casting`.
    """
    outs = [one for one in (out if isinstance(out, tuple) else (out,)) if one is not None]
    operands = [operand(one) for one in inputs]
    masks = [] if where is True else [operand(where)]
    every = [*operands, *masks]
    split = next(one for one in (*outs, *every) if isinstance(one, SplitArray))
    world = split.world
    if world.operations.is_needed:
        world.operations.note(f"{name} of {described(*every, *outs)}")
    sources = tuple([one.partition if isinstance(one, SplitArray) else shape_of(one) for one in every])
    result = outs[0].partition if outs and isinstance(outs[0], SplitArray) else None
    plan = geometry.operand_plan(sources, result, world.size, world.rank)
    if plan.shape is None:
        shapes = " ".join(str(np.shape(one)) for one in operands)
        raise ValueError(f"operands could not be broadcast together with shapes {shapes} ")
    for one in outs:
        _check_out(name, one, plan.shape)

    # This rank's cells of the operands, where those of the result are.
    cells = [
        one.own_cells(world) if stays else cells_for(world, one, plan.parts)
        for one, stays in zip(every, plan.stays, strict=True)
    ]
    if world.xp is not np or function is None:
        function = getattr(world.xp, name, None)
    if function is None:
        raise not_for_split_arrays(f"numpy.{name}")
    if outs:
        cells = [apart_from(outs[0], one, own) for one, own in zip(every, cells, strict=True)]
        mask = cells.pop() if masks else True
        return _compute_into(outs, plan.parts, function, cells, mask, options)
    if masks:
        mask = cells.pop()
        options |= {"where": mask} if world.xp is np else {}
    results = function(*cells, **options)
    if isinstance(results, tuple):
        return tuple(split.made(plan.parts, _of_shape(world, one, plan.own)) for one in results)
    return split.made(plan.parts, _of_shape(world, results, plan.own))


def _of_shape(world: World, cells: Any, own: Shape) -> Array:
    """Return this rank's cells of a result: on a rank without cells, operands may broadcast to some."""
    if isinstance(cells, np.ndarray) and cells.shape == own:
        return cells
    found = world.xp.asarray(cells)
    return found if found.shape == own else world.xp.broadcast_to(found, own).copy()


def _check_out(name: str, out: Any, shape: Shape) -> None:
    """Raise for an array into which a result of a shape cannot be written."""
    if not isinstance(out, SplitArray):
        raise UserError(
            f"{name} of distributed arrays writes to an array of NumPy's",
            hint="out= with a distributed array, or no out=",
            everywhere=True,
        )
    out.check_writable()
    if geometry.broadcast_shape([shape, out.shape]) != out.shape:
        raise ValueError(
            f"non-broadcastable output operand with shape {out.shape} doesn't match the broadcast shape "
            f"{shape}"
        )


def _compute_into(
    outs: Sequence[SplitArray], parts: Parts, function: Any, cells: Sequence[Any], mask: Any, options: Any
) -> Any:
    """Compute into arrays that are given. parts: of the first. cells: of the operands, by these parts."""
    xp = outs[0].world.xp
    targets = [one.fetched(parts) for one in outs]
    if xp is np:
        function(*cells, out=tuple(targets), **({} if mask is True else {"where": mask}), **options)
    elif mask is True:
        function(*cells, *targets, **options)
    else:
        results = function(*cells, **options)
        for target, one in zip(targets, results if isinstance(results, tuple) else (results,), strict=True):
            xp.copyto(target, one, casting="same_kind", where=mask)
    for one, target in zip(outs, targets, strict=True):
        if target is not one.interior:
            one.interior[...] = one.made(parts, target).fetched(one.partition)
        one.note_write()
    return outs[0] if len(outs) == 1 else tuple(outs)
