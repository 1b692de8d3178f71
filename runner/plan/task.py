"""Task: one map job planned for its arrays, with their partition, halo and result types."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.job.block_context import BlockContext
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.series import Parameters, Series
from meshrun.runner.job.signature import STEP
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.plan.beyond import (
    Rules,
    check_boundary,
    constants_of,
    modes_of,
    repeated_along,
    rules_of,
    rules_text,
    uniform,
)
from meshrun.runner.plan.grid import Partition, parse_grid
from meshrun.runner.plan.halo import Constants, Modes, Widths, check_widths, normalize, wraps
from meshrun.runner.region import Array, Region, Shape, Subgrid
from meshrun.runner.report.units import counted
from meshrun.runner.spelling import option

WIDEST_HINT = 16  # cells of a halo that a result may lack
NUMBERS = "biufc"  # kinds of dtypes
MANY = 1 << 30  # times as many cells: one more or less does not show in a factor
DENOMINATOR_MOST = 10_000  # of a factor
ArrayType = tuple[Shape, np.dtype[Any]]


@dataclass(frozen=True)
class Field:
    """One input array of a task.

    widths: its halo per axis; axes that other inputs do not have get none. subgrid: of its own cells, if
    `shape` is that of an array with a cell at each position of space. rules: of the cells beyond each end of
    each axis, if the task's boundary is not one for all. given: the shape that the function gets, of an input
    that broadcasts to `shape` as in NumPy; None: `shape` itself. every: positions from one cell to the next,
    per axis, of an array that has only those in memory; (): it has all.
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    partition: Partition
    widths: Widths
    subgrid: Subgrid | None = None
    rules: Rules = ()
    given: Shape | None = None
    every: Shape = ()

    @property
    def repeated(self) -> tuple[int, ...]:
        """The axes along which all cells are the one that the function gets."""
        if self.given is None:
            return ()
        lengths = (1,) * (len(self.shape) - len(self.given)) + self.given
        return tuple(axis for axis, n in enumerate(lengths) if n == 1)

    def as_given(self, block: Array) -> Array:
        """Return a block of `shape` as the function gets it: one cell along axes that are repeated."""
        if self.given is None:
            return block
        part = tuple(slice(1) if axis in self.repeated else slice(None) for axis in range(len(self.shape)))
        return block[part].reshape(block[part].shape[len(self.shape) - len(self.given) :])

    @property
    def stored(self) -> Shape:
        """The shape of the array's own cells, as a file has it."""
        if self.given is not None:
            return self.given
        return self.shape if self.subgrid is None else self.subgrid.shape

    def padded(self, cells: Shape) -> Shape:
        return tuple(n + sum(width) for n, width in zip(cells, self.widths, strict=True))


class TaskKernel(Protocol):
    """Computes what a job's function returns, to the bit."""

    @property
    def most_steps(self) -> int:
        """The most steps of one call of `advance`; 1 if it takes none."""

    @property
    def rivals(self) -> Sequence[Any]:
        """Choices of kernels of several steps that a run measures, of this one first: `cuda.steps.layout`."""

    @property
    def first_steps(self) -> int:
        """How many steps are taken one by one before `advance` takes several: it computes cells at the ends
        as copies of others, which they are from then on."""

    @property
    def aligned(self) -> bool:
        """Whether steps are faster on blocks whose rows begin at multiples of a line or sector of a cache."""

    @property
    def takes_rows(self) -> bool:
        """Whether `advance` can compute some of the rows, and leaves what it reads as it is."""

    @property
    def finds_ends(self) -> Sequence[int]:
        """The inputs of whose padded blocks no cell beyond the ends of the last axis is read: the own cells
        that they equal are. Not if blocks may be parts of that axis."""

    def __call__(
        self,
        blocks: Sequence[Array],
        outs: Sequence[Array],
        first: Sequence[int],
        scalars: Array | None = None,
    ) -> None:
        """Fill `outs`, one per result, from padded blocks; rows of either may be apart in memory.

        Parameters
        ----------
        first: position in the whole array of the first own cell of the blocks, per axis. Before the array's
            first cell it is negative.
        scalars: the numbers of this step, in slots of 8 bytes on the kernel's device, for a kernel that takes
            some: scalar n, of a dtype, is the first bytes of slot n.
        """

    def bind(
        self,
        blocks: Sequence[Array],
        outs: Sequence[Array],
        first: Sequence[int],
        scalars: Array | None = None,
        sides: tuple[bool, bool] = (False, False),
    ) -> Callable[[], None]:
        """Return what does the same as a call with these arrays, whenever it is called.

        sides: whether it also stores the rows before the first one and after the last one of `outs` that
        equal own ones, as far as the next pass reads them. Only if it `stores_beyond`, and `outs` have more
        rows than the halo.
        """

    @property
    def stores_beyond(self) -> bool:
        """Whether the next pass reads no other cells beyond the array than `bind` can store, or than a
        constant boundary has, which no pass changes."""

    @property
    def handed_on(self) -> Mapping[int, int]:
        """The inputs whose next values another input has now: {before: now}.

        `before` is read by the result that becomes `now` alone, at the own cell: a pass may write over it.
        """

    def without_handed_on(self) -> TaskKernel:
        """Return the kernel of single passes that leaves out what becomes the inputs of `handed_on`."""

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph may have what `bind` returns."""

    @property
    def sends(self) -> bool:
        """Whether `advance` can exchange the halos of what it writes: `cuda.steps.layout.Sending`."""

    def prepare_steps(self, steps: int, arrays: Sequence[Array], *, sends: bool = False) -> None:
        """Compile what `advance` needs for so many steps of own cells in arrays laid out like these.

        sends: and for an exchange of halos.
        """

    def advance(self, blocks: Any, steps: int, more: int = 0, rows: tuple[int, int] | None = None) -> None:
        """Take `steps` steps from the blocks into the spare blocks, after which `more` follow.

        blocks: `runner.compiler.compiled.StepState`. rows: first and last + 1 to compute, counted from the
        first own row; None: those that the steps to follow need.
        """


@dataclass(frozen=True)
class Task:
    """One map job, its parameters, and its input arrays with their partition.

    results: shape and dtype of each output array; None until they are known. steps: taken on each chunk.
    kernel: is called in place of the function; the results are known then. reads: for each output, how far
    from the own cell the kernel reads each input; None: as far as the halo, for all that is known. compiled:
    whether the stages of a job's program become kernels.
    `shape`, `dtype`, `partition` and `widths` are those of the first input that has axes, and a cell at each
    position, in whose indices regions and the block context are given. An input or a result without axes is a
    value, which every rank has.
    boundary: of all inputs, axes and sides; if fields have rules, of a kernel's blocks: "wrap" if ends of
    some axis meet, else "constant". The kernel has the rules in itself.
    """

    job: Job
    parameters: dict[str, Any]
    fields: tuple[Field, ...]
    boundary: str
    cval: float
    results: tuple[ArrayType, ...] | None = None
    steps: int = 1
    kernel: TaskKernel | None = None
    reads: tuple[tuple[Widths, ...], ...] | None = None
    compiled: bool = False

    @cached_property
    def first(self) -> int:
        """The number of the first input that has axes, and a cell at each position."""
        return next(number for number, field in enumerate(self.fields) if field.shape and not field.every)

    @cached_property
    def shape(self) -> Shape:
        return self.fields[self.first].shape

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return self.fields[self.first].dtype

    @cached_property
    def partition(self) -> Partition:
        return self.fields[self.first].partition

    @cached_property
    def widths(self) -> Widths:
        return self.fields[self.first].widths

    @property
    def fills_in_place(self) -> bool:
        """Whether a step's results are written where the next step reads them, not to other buffers."""
        return self.fills and self.strided_out and None not in self.feed_numbers

    @property
    def described_parameters(self) -> Parameters:
        """The parameters for a record, tables in time as what they are."""
        return self.job.described(self.parameters)

    @property
    def known(self) -> tuple[ArrayType, ...]:
        """The `results`, which must be known."""
        assert self.results is not None
        return self.results

    def subgrid(self, number: int) -> Subgrid | None:
        """Return the subgrid of the own cells of output `number`; None if it has no others in memory."""
        sizes = self.job.sizes
        return None if sizes is None else sizes.outputs[number].in_memory(sizes.space)

    @property
    def stored(self) -> tuple[ArrayType, ...]:
        """The shape of each result's own cells, as a file has it, and its dtype."""
        subgrids = (self.subgrid(number) for number in range(len(self.known)))
        return tuple(
            (shape if subgrid is None else subgrid.shape, dtype)
            for subgrid, (shape, dtype) in zip(subgrids, self.known, strict=True)
        )

    @property
    def feed_numbers(self) -> list[int | None]:
        """For each output, the number of the input that it becomes in the next step; None: of none."""
        names = [field.name for field in self.fields]
        return [None if name is None else names.index(name) for name in self.job.feeds]

    @cached_property
    def cut_axes(self) -> tuple[bool, ...]:
        """Whether each axis may be computed in parts: axis 0, split axes and axes with a halo."""
        parted = (
            axis == 0 or parts > 1 or width != (0, 0)
            for axis, (parts, width) in enumerate(zip(self.partition.grid, self.widths, strict=True))
        )
        return tuple(parted)

    @property
    def fills(self) -> bool:
        """Whether the results are filled in arrays of the runner's, instead of being returned."""
        return self.kernel is not None or "out" in self.job.services

    @property
    def strided_out(self) -> bool:
        """Whether the results that are filled may have their rows apart in memory."""
        return self.kernel is not None or self.job.strided_out

    @property
    def boundary_read(self) -> str:
        """The boundary of the cells beyond the array that a kernel reads; "none" if it uses none: a function
        of whole arrays has values of its own at the ends, or wraps around them, and so has the kernel of one
        with a boundary for each side."""
        placed = self.job.whole or bool(self.declared_boundary)
        return self.boundary if self.boundary == "wrap" or not placed else "none"

    @cached_property
    def declared_boundary(self) -> str:
        """The boundary as text, if it is not one for all inputs, axes and sides; else ""."""
        return ";".join(f"{one.name}={rules_text(one.rules)}" for one in self.fields if one.rules)

    @property
    def by_side(self) -> bool:
        """Whether cells beyond the array follow the fields' rules: a kernel reads none of them."""
        return bool(self.declared_boundary) and self.kernel is None

    @property
    def mirrors(self) -> bool:
        """Whether cells beyond the array equal some that lie one cell further from the end."""
        if not self.by_side:
            return self.boundary == "mirror"
        return any(side.mode == "mirror" for field in self.fields for axis in field.rules for side in axis)

    @property
    def has_timed_boundary(self) -> bool:
        """Whether cells beyond the array have values of the step, from a table in time."""
        return any(
            isinstance(side.value, str) for field in self.fields for axis in field.rules for side in axis
        )

    def beyond(self, number: int, step: int = 0) -> tuple[str | Modes, float | Constants]:
        """Return the boundary of the blocks of input `number` and its constant, of all sides or of each."""
        rules = self.fields[number].rules
        if not self.by_side:
            return self.boundary, self.cval
        return modes_of(rules), constants_of(rules, self.parameters, step)

    def wraps_in_part(self, axis: int) -> bool:
        """Return whether the ends of an axis meet for some inputs, and for others do not."""
        fields = [field for field in self.fields if axis < len(field.shape)]
        return len({wraps(modes_of(field.rules), axis) for field in fields}) > 1

    def wraps_along(self, axis: int) -> bool:
        """Return whether blocks go on beyond the array along an axis, where its ends meet for all inputs."""
        if not self.by_side:
            return self.boundary == "wrap"
        return all(wraps(modes_of(field.rules), axis) for field in self.fields if axis < len(field.shape))

    @property
    def has_halo(self) -> bool:
        return any(width != (0, 0) for width in self.widths)

    @cached_property
    def leading(self) -> int:
        """Number of leading axes that inputs and results share: up to the last cut axis.

        Along them a result is as long as the inputs, or longer or shorter by a factor.
        """
        return max(axis + 1 for axis, cut in enumerate(self.cut_axes) if cut)

    @cached_property
    def units(self) -> Shape:
        """Per leading axis, the fewest cells whose results are whole cells of every output.

        Blocks, chunks and calls hold multiples of them: 2 where a result is half as long.
        """
        shapes = [shape for shape, _ in self.results or () if shape and self.job.sizes is None]
        return tuple(
            max(math.lcm(*(length // max(math.gcd(length, shape[axis]), 1) for shape in shapes)), 1)
            for axis, length in enumerate(self.shape[: self.leading])
        )

    def field_region(self, number: int, region: Region) -> Region:
        """Return the region of input `number` beside `region`, which is in the first input's indices."""
        field = self.fields[number]
        if field.every:
            return _every(region, field.shape, field.every)
        return region if number == self.first else self._beside(region, field.shape)

    def output_region(self, region: Region, number: int = 0) -> Region:
        """Return the region of output `number` that holds the result for `region` of the first input."""
        shape, sizes = self.known[number][0], self.job.sizes
        if sizes is not None and sizes.outputs[number].packed:
            return _every(region, shape, sizes.outputs[number].every)
        return self._beside(region, shape)

    def output_rows(self, rows: tuple[int, int], number: int) -> slice:
        """Return where the result for some rows is in a block's. rows: counted from the block's first."""
        first, last = (self.scaled((row,), self.known[number][0])[0] for row in rows)
        return slice(first, last)

    def scaled(self, cells: Shape, shape: Shape) -> Shape:
        """Return places or lengths along leading axes of the inputs as those of an array of `shape`."""
        if 0 not in shape and shape[: self.leading] == self.shape[: self.leading]:
            return cells[: self.leading]
        axes = zip(cells[: self.leading], shape, self.shape, strict=False)
        return tuple(n * other // max(length, 1) for n, other, length in axes)

    def _beside(self, region: Region, shape: Shape) -> Region:
        if shape == self.shape and len(shape) == self.leading and 0 not in shape:
            return region
        tail = shape[self.leading :]
        return Region(
            self.scaled(region.start, shape) + (0,) * len(tail), self.scaled(region.stop, shape) + tail
        )

    def input_bytes(self, region: Region) -> int:
        """Return the bytes of all inputs in a region."""
        return sum(
            math.prod(self.field_region(number, region).shape) * field.dtype.itemsize
            for number, field in enumerate(self.fields)
        )

    def padded_bytes(self, region: Region) -> int:
        """Return the bytes of all inputs in a region with its halo."""
        return sum(
            math.prod(field.padded(self.field_region(number, region).shape)) * field.dtype.itemsize
            for number, field in enumerate(self.fields)
        )

    def result_bytes(self, region: Region) -> int:
        """Return the bytes of all results for a region; unknown ones are assumed to equal the first input."""
        types = self.results or ((self.shape, self.dtype),) * len(self.job.output_names)
        nbytes = 0
        for shape, dtype in types:
            start, stop = self.scaled(region.start, shape), self.scaled(region.stop, shape)
            lengths = [b - a for a, b in zip(start, stop, strict=True)]
            nbytes += math.prod(lengths) * math.prod(shape[self.leading :]) * dtype.itemsize
        return nbytes

    def declared(self, shape: Shape) -> tuple[ArrayType, ...] | None:
        """Return shape and dtype of each result for own cells of `shape`; None if only a call can tell."""
        job = self.job
        if self.kernel is not None:
            leading = shape[: self.leading]
            return tuple((leading + known[self.leading :], dtype) for known, dtype in self.known)
        if job.out is not None:
            if self.results is not None and shape == self.shape:
                return self.results
            found = job.out(shape, self.dtype, **self.parameters)
            try:
                pairs = [found] if len(job.output_names) == 1 else found
                return tuple((tuple(shape), np.dtype(dtype).newbyteorder("=")) for shape, dtype in pairs)
            except (TypeError, ValueError):
                raise UserError(
                    f"job {job.name}: out did not return {_pairs(len(job.output_names))}", got=repr(found)
                ) from None
        if not self.fills:
            return None
        return tuple(self._like_input(name, shape) for name in job.feeds or (None,))

    def filled(self, cells: Shape) -> tuple[ArrayType, ...] | None:
        """Return shape and dtype of each result that is filled, for own cells of shape `cells`.

        None for a job that returns its results.
        """
        return self.declared(cells) if self.fills else None

    def _like_input(self, name: str | None, shape: Shape) -> ArrayType:
        """Return shape and dtype of a result that is filled and not declared: as the input that it feeds."""
        number = next((n for n, field in enumerate(self.fields) if field.name == name), 0)
        field = self.fields[number]
        return shape[: self.leading] + (field.shape if number else shape)[self.leading :], field.dtype

    def with_results(self, types: Sequence[ArrayType]) -> Task:
        """Return the task with its results known; for equal types the same one, with all that it has derived.

        types: per result, the lengths of its axes after the `leading` ones, and its dtype."""
        known = self._with_results
        if (key := tuple(types)) not in known:
            leading = self.shape[: self.leading]
            known[key] = replace(self, results=tuple((leading + tail, dtype) for tail, dtype in types))
        return known[key]

    @cached_property
    def _with_results(self) -> dict[tuple[ArrayType, ...], Task]:
        return {}

    def with_grid(self, grid: Shape) -> Task:
        """Return the task with another partition. grid: one number per axis of the first input."""
        fields = []
        for field in self.fields:
            partition = Partition(field.shape, _grid_of(grid, len(field.shape)))
            if field.every:
                partition = _coarse(Partition(self.shape, _grid_of(grid, len(self.shape))), field)
            fields.append(replace(field, partition=partition))
        return replace(self, fields=tuple(fields)).in_units()

    def in_units(self) -> Task:
        """Return the task with its blocks cut at multiples of `units`."""
        if all(unit == 1 for unit in self.units):
            return self
        cut = (replace(field.partition, units=self.units) for field in self.fields)
        pairs = zip(self.fields, cut, strict=True)
        return replace(self, fields=tuple(replace(field, partition=partition) for field, partition in pairs))

    def call(
        self, blocks: Sequence[Array], here: BlockContext, outs: Sequence[Array] | None
    ) -> tuple[Array, ...]:
        """Call the job on padded blocks; return its results, checked (RunError for a wrong type or shape)."""
        if self.kernel is not None:
            assert outs is not None
            tape = self.job.tape
            scalars = here.xp.asarray(tape.row(here.step)) if tape is not None and tape.slots else None
            self.kernel(blocks, outs, here.offset, scalars)
            return tuple(outs)
        results = self.returned(blocks, here, outs)
        declared = self.declared(here.block) or (None,) * len(results)
        for number, (result, expected) in enumerate(zip(results, declared, strict=True)):
            self._check(result, here, None if expected is None else expected[0], number)
        return results

    def returned(
        self, blocks: Sequence[Array], here: BlockContext, outs: Sequence[Array] | None
    ) -> tuple[Any, ...]:
        """Call the job's function on padded blocks; return as many results as are declared, unchecked."""
        out = None if outs is None else outs[0] if len(outs) == 1 else tuple(outs)
        services = {"out": out, "xp": here.xp, "here": here, STEP: here.step}
        wanted = {name: services[name] for name in self.job.services}
        given = (field.as_given(block) for field, block in zip(self.fields, blocks, strict=True))
        returned = self.job.function(*given, **wanted, **self.parameters)
        if returned is None and outs is not None:
            returned = tuple(outs)
        return tuple(map(in_own_byte_order, self._separate(returned)))

    def _separate(self, returned: Any) -> tuple[Array, ...]:
        """Return the results as a tuple of as many as are declared."""
        names = self.job.output_names
        if len(names) == 1:
            return returned if isinstance(returned, tuple) and len(returned) == 1 else (returned,)
        if isinstance(returned, (tuple, list)) and len(returned) == len(names):
            return tuple(returned)
        count = len(returned) if isinstance(returned, (tuple, list)) else 1
        raise RunError(
            f"job {self.job.name} did not return {len(names)} results",
            got=f"{count} ({type(returned).__name__})",
            expected=f"a tuple: {', '.join(names)}",
        )

    def _check(self, result: Any, here: BlockContext, declared: Shape | None, number: int) -> None:
        leading = self.scaled(here.block, self.results[number][0] if self.results else self.shape)
        name, outputs = self.job.name, self.job.output_names
        which = f" for {outputs[number]}" if len(outputs) > 1 else ""
        if not isinstance(result, here.xp.ndarray):
            several = isinstance(result, (tuple, list))
            raise RunError(
                f"job {name} did not return an array{which}",
                got=f"{len(result)} results" if several else type(result).__name__,
                expected=f"a {here.xp.__name__} array of shape {declared or here.block}",
                hint=f"outputs={len(result)} in the decorator"
                if several
                else "return the result, or fill the parameter `out`",
            )
        if result.dtype.kind not in NUMBERS:
            raise RunError(
                f"job {name} did not return numbers{which}",
                got=f"dtype {result.dtype}",
                expected="a numeric dtype",
            )
        check_unmasked(f"job {name} returned a masked array{which}", result)
        if declared is not None and tuple(result.shape) != declared:
            raise RunError(
                f"job {name} returned a block of the wrong shape{which}", got=result.shape, expected=declared
            )
        if tuple(result.shape[: self.leading]) != leading:
            raise RunError(
                f"job {name} returned a block of the wrong shape{which}",
                got=result.shape,
                expected=f"{leading} first: the block without its halo",
                hint=self._shape_hint(tuple(result.shape[: self.leading]), leading),
            )

    def _shape_hint(self, got: Shape, expected: Shape) -> str:
        """Return what the decorator may lack, for a result of another shape."""
        halo = self.job.halo
        kept = self._axes_with_halo(got, expected)
        if kept:
            axes = f"ax{'e' if len(kept) > 1 else 'i'}s {' and '.join(map(str, kept))}"
            widths = [(0, 0) if axis in kept else width for axis, width in enumerate(self.widths)]
            while len(widths) > 1 and widths[-1] == (0, 0):
                widths.pop()
            fewer = tuple(low if low == high else (low, high) for low, high in widths)
            return (
                f"halo={fewer} in the decorator: the result keeps the halo along {axes}, so the function "
                "seems to need none there; or slices along all axes that have one"
            )
        if isinstance(halo, int) and halo and len(self.shape) > 2:
            return f"halo=({halo}, {halo}): one number is for every axis, channels too"
        missing = [b - a for a, b in zip(got, expected, strict=False)]
        if len(got) == len(expected) and min(missing) >= 0 and max(missing) <= 2 * WIDEST_HINT:
            sums = [sum(width) + n for width, n in zip(self.widths, missing, strict=False)]
            return f"{halo_hint(sums)}, if it needs so many neighbours"
        return "out=(shape, dtype) -> (shape, dtype) in the decorator, if that is meant"

    def _axes_with_halo(self, got: Shape, expected: Shape) -> list[int]:
        """Return the axes along which a result is as long as its block with the halo; none if it has other
        lengths along others."""
        more = [a - b for a, b in zip(got, expected, strict=False)]
        kept = [axis for axis, n in enumerate(more) if n and n == sum(self.widths[axis])]
        same = len(got) == len(expected) and all(n == 0 or axis in kept for axis, n in enumerate(more))
        return kept if same else []


def in_own_byte_order(result: Any) -> Any:
    """Return a result in the machine's byte order, in which outputs are written."""
    if not isinstance(result, np.ndarray) or result.dtype.isnative:
        return result
    return result.astype(result.dtype.newbyteorder("="))


def masked_cells(array: Any) -> int:
    """Return the number of an array's masked cells.

    Masked arrays are made by numpy.ma, which takes 20 ms to import: without it there are none.
    """
    masked = sys.modules.get("numpy.ma")
    if masked is None or not hasattr(masked, "is_masked"):  # another thread may be importing it
        return 0
    return int(masked.getmaskarray(array).sum()) if masked.is_masked(array) else 0


def check_unmasked(what: str, result: Any) -> None:
    """Raise RunError for a result with masked cells: outputs have no mask. what: what is wrong then."""
    if count := masked_cells(result):
        raise RunError(
            f"{what}, and outputs have no mask",
            got=counted(count, "masked cell"),
            hint="return result.filled(value)",
        )


def _pairs(outputs: int) -> str:
    each = "a shape and a dtype, such as (shape, 'float32')"
    return each if outputs == 1 else f"{outputs} pairs, for each output {each}"


def check_numbers(name: str, inputs: int, dtype: np.dtype[Any]) -> None:
    """Raise UserError for an input whose dtype is none of numbers. inputs: of the job."""
    if dtype.kind not in NUMBERS:
        which = f"the input {name}" if inputs > 1 else "the input"
        raise UserError(f"{which} holds no numbers", got=f"dtype {dtype}", expected="a numeric dtype")


def halo_hint(needed: Sequence[int]) -> str:
    """Return the halo to declare. needed: cells before and after the own ones together, per axis.

    An odd number is on one side: behind the own cells or, as the second halo has it, before them.
    """
    behind = tuple(n // 2 if n % 2 == 0 else (0, n) for n in needed)
    before = tuple(n // 2 if n % 2 == 0 else (n, 0) for n in needed)
    halos = dict.fromkeys((f"halo={behind}", f"halo={before}"))
    return f"{' or '.join(halos)} in the decorator"


def plan_task(
    job: Job,
    parameters: dict[str, Any],
    inputs: Sequence[ArrayType],
    ranks: int,
    *,
    grid: str | None = None,
    boundary: str | None = None,
    cval: float | None = None,
) -> Task:
    """Check the inputs against the job and partition them; raises UserError if they do not fit.

    inputs: shape and dtype of each array, in the order of the job's parameters.
    """
    inputs = job.with_constants(inputs) if job.constants else inputs
    for name, (shape, dtype) in zip(job.arrays, inputs, strict=True):
        which = f"the input {name}" if len(inputs) > 1 else "the input"
        if not shape and job.program is None and (job.whole or not any(one for one, _ in inputs)):
            raise UserError(
                f"{which} is a scalar",
                got="no axes",
                expected="an array",
                hint="numpy.save of array.reshape(1)",
            )
        check_numbers(name, len(inputs), dtype)
    inputs, subgrids, every = _in_memory(job, inputs)
    given: list[Shape | None] = [None] * len(inputs)
    target = _broadcast_to(job, parameters, [one for one, _ in inputs], grid)
    if target is not None:
        given = [None if one == target else one for one, _ in inputs]
        inputs = [(target, of_one) for _, of_one in inputs]
    shape, dtype = next(one for one, step in zip(inputs, every, strict=True) if one[0] and not step)
    has_tables = any(isinstance(value, Series) for value in parameters.values())
    parameters = job.arguments(parameters) if has_tables else parameters
    if job.check is not None:
        job.check(shape, dtype, **parameters)
    chosen = job.boundary if boundary is None else boundary
    check_boundary(job, chosen)
    if job.whole and (boundary is not None or cval is not None):
        raise UserError(
            f"{option('boundary')} and {option('cval')} do not apply to functions of whole arrays",
            got=f"job {job.name}",
            expected="the function itself, which says what cells at the array's ends are",
        )
    if cval is not None and "constant" not in re.split("[,:;=]", chosen):
        raise UserError(
            f"{option('cval')} does not apply: it is the constant of {option('boundary', 'constant')}",
            got=f"{option('cval', cval)} and the boundary {chosen}",
            hint=option("boundary", "constant"),
        )
    common = min(len(one) for one, _ in inputs if one)
    widths = normalize(job.halo_for(parameters), common)
    check_widths(widths, shape[:common])
    parts = (ranks, *(1,) * (len(shape) - 1)) if grid is None else parse_grid(grid, shape, ranks)
    constant = job.cval if cval is None else cval
    fields = []
    columns = job.arrays, inputs, subgrids, given, every
    for name, (one, of_one), subgrid, own, steps in zip(*columns, strict=True):
        wide = _coarse_widths(widths + ((0, 0),) * (len(one) - common) if one else (), steps)
        by_side = chosen not in BOUNDARIES or target is not None
        rules = rules_of(job, chosen, constant, name, wide, parameters) if by_side else ()
        partition = Partition(one, _grid_of(parts, len(one)))
        field = Field(name, one, of_one, partition, wide, subgrid, rules, own, steps)
        if steps:
            field = replace(field, partition=_coarse(Partition(shape, _grid_of(parts, len(shape))), field))
        fields.append(replace(field, rules=repeated_along(field.repeated, rules)))
    task = _with_boundary(Task(job, parameters, tuple(fields), chosen, constant))
    _check_same_grid(task)
    declared = task.declared(shape)
    if declared is None:
        return task
    for number, (result, _) in enumerate(declared):
        if job.sizes is None and (result or job.program is None):
            _check_factors(task, number, result)
    task = replace(task, results=declared).in_units()
    _check_units(task)
    return task


def _in_memory(
    job: Job, inputs: Sequence[ArrayType]
) -> tuple[list[ArrayType], list[Subgrid | None], list[Shape]]:
    """Return the inputs as they lie in memory: shapes and dtypes, own cells' subgrids, and `Field.every`."""
    if job.sizes is None:
        return list(inputs), [None] * len(inputs), [()] * len(inputs)
    space = job.sizes.space
    pairs = zip(job.sizes.inputs, inputs, strict=True)
    return (
        [(one.in_space(space) if shape else (), dtype) for one, (shape, dtype) in pairs],
        [one.in_memory(space) for one in job.sizes.inputs],
        [one.every if one.packed else () for one in job.sizes.inputs],
    )


def _coarse_widths(widths: Widths, every: Shape) -> Widths:
    """Return the halo of a coarse input in cells of its own. widths: in positions."""
    coarse = ((-(-low // n), -(-high // n)) for (low, high), n in zip(widths, every, strict=False))
    return (*coarse, *widths[len(every) :])


def _broadcast_to(
    job: Job, parameters: dict[str, Any], shapes: Sequence[Shape], grid: str | None
) -> Shape | None:
    """Return the shape to which the inputs broadcast as in NumPy; None if they share the axes that are cut.

    None also for shapes that do not broadcast.
    """
    if job.whole or job.kind != "map" or len(set(shapes)) == 1:
        return None
    common = min(map(len, shapes))
    try:
        target = np.broadcast_shapes(*shapes)
        widths = normalize(job.halo_for(parameters), len(target))
    except (ValueError, UserError):
        return None
    cut = (
        len(target)
        if grid is not None
        else max(axis + 1 for axis, width in enumerate(widths) if axis == 0 or width != (0, 0))
    )
    shared = common >= cut and all(one[:cut] == shapes[0][:cut] for one in shapes)
    return None if shared else target


def _with_boundary(task: Task) -> Task:
    """Return the task with its boundary in the simplest form. Raises UserError if a constant does not fit."""
    if any(field.rules for field in task.fields):
        rules = [field.rules for field in task.fields]
        side = uniform(rules, [field.widths for field in task.fields])
        if side is None:
            for field in task.fields:
                for value in {side.value for axis in field.rules for side in axis if side.mode == "constant"}:
                    _check_constant(task.parameters[value] if isinstance(value, str) else value, field.dtype)
            meets = any(one.mode == "wrap" for field in rules for axis in field for one in axis)
            return replace(task, boundary="wrap" if meets else "constant", cval=0.0)
        assert not isinstance(side.value, str)
        fields = tuple(replace(field, rules=()) for field in task.fields)
        task = replace(task, boundary=side.mode, cval=side.value, fields=fields)
    for field in task.fields if task.boundary == "constant" else ():
        _check_constant(task.cval, field.dtype)
    return task


def _every(region: Region, shape: Shape, every: Shape) -> Region:
    """Return the cells at some positions, of an array of `shape` that has one `every` so many."""
    start = [min(-(-n // step), most) for n, step, most in zip(region.start, every, shape, strict=False)]
    stop = [min(-(-n // step), most) for n, step, most in zip(region.stop, every, shape, strict=False)]
    rest = shape[len(every) :]
    return Region((*start, *(0 for _ in rest)), (*stop, *rest))


def _coarse(partition: Partition, field: Field) -> Partition:
    """Return the partition of a coarse input, of which each cell is on the rank of its position."""
    axes = len(field.every)
    space = Partition(partition.shape[:axes], partition.grid[:axes], partition.units[:axes])
    coarse = replace(space.of_size(field.shape[:axes], field.every), empty_halos=True)
    return coarse.with_axes(field.shape[axes:])


def _grid_of(grid: Shape, ndim: int) -> Shape:
    """Return `grid` for an array of `ndim` axes."""
    return (*grid, *(1,) * ndim)[:ndim]


def _check_same_grid(task: Task) -> None:
    """Raise UserError if inputs differ along an axis along which they are cut."""
    first, shared = task.fields[task.first], task.leading
    for field in task.fields:
        if field.shape and not field.every and field.shape[:shared] != first.shape[:shared]:
            axes = f"the first {shared} axes" if shared > 1 else "the first axis"
            raise UserError(
                f"job {task.job.name}: its inputs have different shapes",
                got=", ".join(f"{one.name} {'x'.join(map(str, one.shape))}" for one in task.fields),
                expected=f"the same lengths along {axes}, along which arrays are cut",
                hint="a shape that broadcasts as in NumPy, with lengths of 1",
            )


def _check_factors(task: Task, number: int, result: Shape) -> None:
    """Raise UserError if output `number`, of shape `result`, differs along a cut axis by no fixed factor."""
    if len(result) < task.leading:
        raise _changes_a_cut_axis(task, result)
    for axis, (length, found) in enumerate(zip(task.shape[: task.leading], result, strict=False)):
        if length == found:
            continue
        factor = _factor(task, number, axis)
        if factor is None:
            raise _changes_a_cut_axis(task, result)
        if length % factor.denominator:
            name = task.job.output_names[number]
            factors = (_factor(task, other, axis) for other in range(len(task.job.output_names)))
            unit = math.lcm(*(one.denominator for one in factors if one is not None))
            raise UserError(
                f"job {task.job.name}: its {_what(task.job.output_names, name)} has {factor} of the input's "
                f"length along axis {axis}, along which the array is cut, and that length does not divide",
                got=length,
                expected=f"a multiple of {unit}, such as {(length // unit + 1) * unit}",
                hint=None if axis < _always_cut(task) else _uncut(_always_cut(task)),
            )


def _factor(task: Task, number: int, axis: int) -> Fraction | None:
    """Return result length / input length along `axis`; None if it is not the same for all lengths.

    Only lengths that divide count: whether others are rounded up or down does not matter.
    """

    def declared(length: int) -> int:
        found = task.declared((*task.shape[:axis], length, *task.shape[axis + 1 :]))
        assert found is not None
        return found[number][0][axis]

    try:
        long = MANY * task.shape[axis]
        factor = Fraction(declared(long), long).limit_denominator(DENOMINATOR_MOST)
        unit = factor.denominator
        several = task.shape[axis] // unit
        tried = [unit * many for many in (1, max(several, 1), several + 1)]
        return factor if factor > 0 and all(declared(n) == n * factor for n in tried) else None
    except (UserError, ArithmeticError, LookupError, TypeError, ValueError):  # of a shape not the input's
        return None


def _check_units(task: Task) -> None:
    """Raise UserError if a block of one unit of each axis would give results of another shape."""
    known = [shape for shape, _ in task.known if shape]
    if (
        0 in task.shape
        or task.job.sizes is not None
        or all(shape[: task.leading] == task.shape[: task.leading] for shape in known)
    ):
        return
    block = task.units + task.shape[task.leading :]
    for (whole, _), (shape, _) in zip(task.known, task.declared(block) or (), strict=True):
        if shape[: task.leading] != task.scaled(block, whole):
            raise _changes_a_cut_axis(task, whole)


def _changes_a_cut_axis(task: Task, result: Shape) -> UserError:
    always = _always_cut(task)
    axes = f"lengths along the first {always} axes" if always > 1 else "length along the first axis"
    hint = f"a result with the input's {axes}, which every {option('grid')} cuts, or a fixed "
    hint += "multiple or part of it"
    if result[:always] == task.shape[:always]:
        hint = _uncut(always)
    return UserError(
        f"job {task.job.name}: the result changes an axis along which the array is cut",
        got=f"{result} from {task.shape}",
        expected=f"the first {f'{task.leading} axes' if task.leading > 1 else 'axis'} unchanged, or longer "
        "or shorter by a factor that is the same for all lengths",
        hint=hint,
    )


def _always_cut(task: Task) -> int:
    """Return the number of leading axes that every grid cuts: axis 0, and up to the last with a halo."""
    return max((axis + 1 for axis, width in enumerate(task.widths) if width != (0, 0)), default=1)


def _uncut(always: int) -> str:
    return f"{option('grid', 'x'.join('0' * always))}, which cuts no other axis"


def _check_constant(cval: Any, dtype: np.dtype[Any]) -> None:
    """Raise UserError if the constant beyond an array, or one of a table in time, does not fit a dtype."""
    for value in np.asarray(cval).ravel().tolist():
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            if not (float(value).is_integer() and limits.min <= value <= limits.max):
                raise UserError(
                    f"{option('cval')} does not fit the input's dtype",
                    got=value,
                    expected=f"a whole number from {limits.min} to {limits.max} ({dtype})",
                )
        elif math.isfinite(value):
            with np.errstate(over="ignore"):
                stored = dtype.type(value)
            if not np.isfinite(stored):
                raise UserError(
                    f"{option('cval')} does not fit the input's dtype",
                    got=value,
                    expected=f"a magnitude of {np.finfo(dtype).max} or less ({dtype}), or inf",
                )


def check_feeds(task: Task) -> None:
    """Raise UserError if an output cannot become the input that it feeds, or none feeds any."""
    job = task.job
    if not any(job.feeds):
        raise UserError(
            f"job {job.name} cannot take steps: none of its outputs feeds an input",
            expected="feeds= in its decorator",
        )
    fields = {field.name: field for field in task.fields}
    in_memory = [shape for shape, _ in task.known]
    for output, name, (shape, dtype), whole in zip(
        job.output_names, job.feeds, task.stored, in_memory, strict=True
    ):
        if name is None:
            if whole and job.sizes is None and whole[: task.leading] != task.shape[: task.leading]:
                raise UserError(
                    f"job {job.name} cannot take steps: its {_what(job.output_names, output)} has other "
                    "lengths along the axes along which arrays are cut",
                    got="x".join(map(str, shape)),
                    expected=f"{'x'.join(map(str, task.shape[: task.leading]))} first",
                    hint=f"one pass, no {option('steps')}",
                )
            continue
        field = fields[name]
        if (shape, dtype) != (field.stored, field.dtype):
            if shape != field.stored:
                hint = f"one pass, no {option('steps')}"
            elif dtype.kind == "c" != field.dtype.kind:  # a cast would drop the imaginary parts
                hint = f"an input {name} of {dtype}"
            else:
                hint = f"return result.astype({field.dtype})"
            raise UserError(
                f"job {job.name} cannot take steps: its {_what(job.output_names, output)} cannot become its "
                f"input {name}",
                got=f"{dtype} of shape {'x'.join(map(str, shape))}",
                expected=f"{field.dtype} of shape {'x'.join(map(str, field.stored))}",
                hint=hint,
            )


def _what(names: Sequence[str], name: str) -> str:
    return "result" if len(names) == 1 else f"result {name}"
