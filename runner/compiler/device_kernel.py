"""CUDA kernels of a program, which a task calls in place of its function."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any

import numpy as np

from meshrun.runner.compiler.cuda import pass_launch, pass_tile, shared_planes, single_pass
from meshrun.runner.compiler.cuda.beyond import MOST_BYTES, NO_SIDES, Beyond, Sides, cells_beyond
from meshrun.runner.compiler.cuda.shared_planes import SharedPlanes
from meshrun.runner.compiler.cuda.steps import kernel as step_kernel
from meshrun.runner.compiler.cuda.steps import tuning as step_tuning
from meshrun.runner.compiler.cuda.steps.layout import (
    Axis,
    Choice,
    NotFusable,
    Sending,
    StepKernel,
    Tuning,
    layout_of,
)
from meshrun.runner.compiler.cuda.steps.tuning import ChosenKernel
from meshrun.runner.compiler.operations import compiler_options, line_of
from meshrun.runner.compiler.passes.ends import ends_of, interior, with_whole_rows
from meshrun.runner.compiler.passes.handed_on import handed_on, without_outputs
from meshrun.runner.compiler.passes.real_parts import has_complex, in_real_parts, views_of_parts
from meshrun.runner.compiler.step_state import Feeds, Rows, StepState
from meshrun.runner.compiler.trace.graph import (
    Extents,
    Program,
    merge_components,
    with_units,
    without_units,
)
from meshrun.runner.device.api import Device
from meshrun.runner.region import Array, Shape, address_of
from meshrun.runner.system.cached_files import cache_folder
from meshrun.runner.system.compiler import NotCompiled

SPLIT_CELLS = 1 << 24  # of a volume of which the cells near its ends have a kernel of their own, at least
MOST_OF_TILE = 64  # cells of a tile along an axis, at most


@dataclass(frozen=True)
class PassVariant:
    """What a kernel of one pass depends on besides the shape: how the arrays lie in memory, what it stores.

    apart, wide: as of `single_pass.emit`. beyond: whether it can also store cells beyond the array. units:
    whether cells begin at multiples of their units in memory. alike: whether all arrays have an equal
    alignment. once: the cells between the array's ends, and whether the first one is at a multiple of 16
    bytes, if no cell may be computed twice: results are written over an input. part: as of
    `single_pass.emit`.
    """

    apart: bool = False
    wide: bool = False
    beyond: bool = False
    units: bool = True
    alike: bool = False
    once: tuple[Shape, bool] | None = None
    part: single_pass.Part = ""


@dataclass
class DeviceKernel:
    """CUDA kernels of a program, on the current device and stream.

    widths: of the blocks' halo, per grid axis. arithmetic: "strict" rounds as NumPy does; "fast" lets the
    compiler fuse a multiplication and an addition. feeds: for each output, the number of the input that it
    becomes in the next step, or None. boundary, cval: of the steps. choice: how many steps a kernel takes,
    and its tuning; None: as predicted. row: cells of the last axis, if all blocks have all of them and need
    no cells beyond its ends; 0: if they may be parts of it.
    """

    program: Program
    widths: Extents
    arithmetic: str = "strict"
    feeds: Feeds = ()
    boundary: str = "reflect"
    cval: float = 0.0
    choice: ChosenKernel | None = None
    row: int = 0
    takes_rows = True
    capturable = True
    _passes: dict[tuple[Any, ...], tuple[single_pass.PassKernel, Callable[..., None]]] = field(
        default_factory=dict
    )
    _steps: dict[tuple[int, bool, bool], tuple[StepKernel, Callable[..., None], int]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        # A constant boundary has one value for all elements of a cell, also for imaginary parts.
        self._takes_steps = not (has_complex(self.program) and self.boundary == "constant" and self.cval)
        self.aligned = all(one.components == 1 for one in self.program.inputs)
        self.program = in_real_parts(self.program)
        # Cells at the ends of rows are found as pairs, where a row is no row of single elements.
        merged = self.program if self.finds_ends else merge_components(self.program)[0]
        self._merged = with_whole_rows(with_units(merged))
        self._common = interior(self._merged)
        self._tile = pass_tile.choose_tile(self._common)
        self._ends = self.boundary if self.finds_ends else ""

    @functools.cached_property
    def finds_ends(self) -> list[int]:
        """The inputs of which no cell beyond the ends of the last axis needs to be in memory."""
        return single_pass.finds_ends(self.program, self.boundary, self.row)

    @functools.cached_property
    def stores_beyond(self) -> bool:
        """Whether a pass can store all cells beyond the array that the next one reads; see `TaskKernel`.

        Not if cells have places: those near the ends are computed by another part of the kernel. Not in
        volumes, except for a constant: their passes lose more time by it than a launch takes.
        """
        if None in self.feeds or self.program.axes < 2 or self.program.has_places:
            return False
        if self.boundary == "constant":
            return True
        if self.program.axes > 2:
            return False
        beside = {node.input for node in self.program.loads if node.offset[-1]} & set(self.feeds)
        return step_kernel.takes_pairs(self.program) and beside <= set(self.finds_ends)

    @functools.cached_property
    def handed_on(self) -> dict[int, int]:
        """The inputs whose next values another input has now; see `TaskKernel`."""
        return handed_on(self.program, self.feeds)

    def without_handed_on(self) -> DeviceKernel:
        """Return the kernel of the results that no input has now; see `TaskKernel`."""
        program, feeds = without_outputs(self.program, self.feeds, self.handed_on)
        return replace(self, program=program, feeds=feeds, _passes={}, _steps={})

    @functools.cached_property
    def _beyond(self) -> Beyond | None:
        return cells_beyond(self.program, self.feeds, self.boundary)

    def __call__(
        self,
        blocks: Sequence[Array],
        outs: Sequence[Array],
        first: Sequence[int],
        scalars: Array | None = None,
    ) -> None:
        self.bind(blocks, outs, first, scalars)()

    def bind(
        self,
        blocks: Sequence[Array],
        outs: Sequence[Array],
        first: Sequence[int],
        scalars: Array | None = None,
        sides: Sides = NO_SIDES,
    ) -> Callable[[], None]:
        """Return the launches of one pass; see `TaskKernel`. To make their arguments takes the host longer
        than a small block takes the device."""
        blocks, outs = views_of_parts(blocks), views_of_parts(outs)
        own = outs[0].shape[: self.program.axes]
        most = single_pass.MOST_ROWS if self._merged.axes > 1 else own[0]
        parts = []
        for box in parts_within(self.program, first, own, most):
            inner = tuple(slice(a, b) for a, b in box)
            outer = tuple(slice(a, b + sum(width)) for (a, b), width in zip(box, self.widths, strict=True))
            at = [start + a for start, (a, _) in zip(first, box, strict=False)]
            part = [block[outer] for block in blocks], [out[inner] for out in outs]
            parts.append(self._bound_pass(*part, at, scalars, sides))
        return parts[0] if len(parts) == 1 else functools.partial(_call_all, parts)

    def _bound_pass(
        self,
        blocks: Sequence[Array],
        outs: Sequence[Array],
        first: Sequence[int],
        scalars: Array | None,
        sides: Sides,
    ) -> Callable[[], None]:
        """Return the launch for cells within the array, of no more rows than one launch takes."""
        merged = self._merged
        given = (merged.inputs, blocks), (merged.outputs, outs)
        apart = not all(pass_launch.have_equal_pitches(*one, merged.axes) for one in given)
        wide = pass_launch.is_wide([*blocks, *outs])
        units = all(pass_launch.lie_in_units(*one) for pair in given for one in zip(*pair, strict=True))
        alike = pass_launch.have_equal_alignment(merged, blocks, outs, self.widths)
        places = [at % n for at, n in zip(first, self.program.lengths, strict=False)]
        once = None
        if pass_launch.is_in_place(blocks, outs, self.widths):
            own = self._lengths(outs[0].shape)
            near = pass_launch.near_ends(merged, own, places)
            strides = outs[0].strides[: merged.axes]
            begin = address_of(outs[0]) + sum(a * b for (a, _), b in zip(near, strides, strict=True))
            left = tuple(max(n - sum(cells), 0) for n, cells in zip(own, near, strict=True))
            once = left, begin % pass_tile.LARGEST_ROW == 0
        variant = PassVariant(apart, wide, any(sides), units, alike, once)
        launches = []
        for part in self._parts_of_pass(outs[0].shape, beyond=any(sides)):
            kernel, launch = self._pass(outs[0].shape, replace(variant, part=part))
            call = pass_launch.launch_arguments(kernel, blocks, outs, self.widths, places, scalars, sides)
            if call.grid != (0,):
                arguments = call.grid, call.block, call.arguments
                launches.append(functools.partial(launch, *arguments, shared_mem=kernel.shared))
        return launches[0] if len(launches) == 1 else functools.partial(_call_all, launches)

    def _parts_of_pass(self, shape: Shape, *, beyond: bool) -> Sequence[single_pass.Part]:
        """Return the parts of the cells that have kernels of their own.

        In a large volume, those near the array's ends: each is made by a thread, which waits for memory. In
        the kernel of the others, few such threads would run at once, since these need many registers and much
        shared memory. A small volume takes no longer than a second launch. beyond: whether the pass stores
        cells beyond the array.
        """
        lengths, ends = self._lengths(shape), ends_of(self._merged)
        left = [length - sum(cells) for length, cells in zip(lengths, ends, strict=True)]
        large = len(lengths) == 3 and min(left) >= MOST_OF_TILE and math.prod(lengths) >= SPLIT_CELLS
        return ("ends", "between") if large and any(map(any, ends)) and not beyond else ("",)

    def _lengths(self, shape: Shape) -> Shape:
        """Return the own cells per axis of results of a shape."""
        last = self._merged.axes - 1
        return *shape[:last], math.prod(shape[last:]) // self._merged.outputs[0].components

    def prepare(self, shape: Shape) -> None:
        """Compile the kernel of one pass for results of this shape. Raises NotCompiled."""
        operands = (*self.program.inputs, *self.program.outputs)
        small = math.prod(shape) * sum(one.dtype.itemsize for one in operands) <= MOST_BYTES
        stepped = self.row > 0 and self.most_steps == 1 and self.stores_beyond and small
        # Blocks of steps are aligned.
        variant = PassVariant(beyond=stepped and self._beyond is not None, alike=self.row > 0)
        for part in self._parts_of_pass(self._parts(shape), beyond=variant.beyond):
            self._pass(self._parts(shape), replace(variant, part=part))

    def _parts(self, shape: Shape) -> Shape:
        """Return the shape of a result with the two parts of its complex numbers."""
        return (*shape[: self.program.axes], *self.program.outputs[0].trailing)

    def _pass(self, shape: Shape, variant: PassVariant) -> tuple[single_pass.PassKernel, Callable[..., None]]:
        """Return the kernel for results of a shape, whose tile is no longer than their own cells."""
        lengths, once = self._lengths(shape), variant.once
        row, planes, tile = lengths[-1], None, self._tile
        if variant.part == "ends":
            once, tile = None, (1,) * len(lengths)
        elif pass_tile.marches(self._common):
            between = pass_tile.between_ends(self._merged, lengths)
            tile = pass_tile.choose_tile(self._common, between)
            chosen = shared_planes.choose(self._common, between)
            if variant.alike and not isinstance(chosen, str):
                planes, tile = chosen, chosen.tile
        else:  # all longer ones have the same tile
            if self.row:  # steps
                tile = pass_tile.with_fewer_columns(self._common, tile, math.prod(lengths))
            near = map(sum, ends_of(self._merged))
            tile = lengths = tuple(
                min(one, cells + ends) for one, cells, ends in zip(lengths, tile, near, strict=True)
            )
        if self._ends and row != self.row:
            raise ValueError(f"rows of {row} cells, for a kernel of {self.row}")
        in_parts = False
        march: bool | SharedPlanes | None = planes
        if once is not None:
            march = pass_tile.marches(self._common)
            whole = pass_tile.whole_tile(planes.block if planes else tile, once[0], march, once[1])
            in_parts = planes is not None and whole[1:] != planes.block[1:]
            if planes is None:
                tile = whole
            else:
                march = planes if in_parts else replace(planes, planes=whole[0])
        key = tile, march, replace(variant, alike=False, once=None), once is None
        if key not in self._passes:
            kernel = single_pass.emit(
                self._merged if variant.units else without_units(self._merged),
                tile=None if once is None or planes else tile,
                lengths=lengths,
                apart=variant.apart,
                wide=variant.wide,
                ends=self._ends,
                beyond=self._beyond if variant.beyond else None,
                march=march,
                once=in_parts,
                part=variant.part,
            )
            launch = self._compiled(kernel.source, kernel.name, kernel.shared)
            self._passes[key] = kernel, launch
        return self._passes[key]

    def _compiled(self, source: str, name: str, shared: int = 0) -> Callable[..., None]:
        from meshrun.runner.device.cuda import kernel_of_text

        try:
            return kernel_of_text(source, name, compiler_options(self.arithmetic), shared)
        except NotCompiled as reason:
            reason.line = line_of(self.program, source, reason.at)
            raise

    def choose(self, device: Device, shape: Shape, steps: int, grid: Shape = ()) -> ChosenKernel | None:
        """Return the choice with which a run of so many steps begins; None if no kernel takes several.

        shape: of a block's own cells. grid: of the blocks, whose exchanges take part of the time.
        """
        guess = self._chosen
        if guess is None:
            return None
        kernel = self.step_text(guess.steps, self._tuning(vectors=self.aligned))
        words = [device.name, device.software, self.arithmetic, str(grid), kernel.source]
        return step_tuning.chosen(self.program, self.feeds, shape, steps, words, cache_folder())

    def with_choice(self, choice: Choice) -> DeviceKernel:
        """Return the kernel that takes several steps by another choice; both have the kernels of one pass."""
        other = copy.copy(self)
        other.choice, other._steps = ChosenKernel(choice, "measured"), {}
        return other

    def step_text(self, steps: int, tuning: Tuning | None = None, *, sends: bool = False) -> StepKernel:
        """Return the text of the kernel of so many steps. Raises NotFusable.

        tuning: None: as chosen, for blocks that are read by vectors. sends: as of `prepare_steps`.
        """
        if not self._takes_steps:
            raise NotFusable("complex numbers beside a constant boundary that is not 0")
        chosen = tuning or self._tuning(vectors=self.aligned)
        return step_kernel.build(
            self.program, self.feeds, self.boundary, self.cval, steps, chosen, sends=sends
        )

    @property
    def most_steps(self) -> int:
        """Number of steps that one kernel takes fastest; 1 if no kernel takes several."""
        return self._chosen.steps if self._chosen else 1

    @property
    def rivals(self) -> Sequence[Choice]:
        """Choices that a run measures; see `TaskKernel`."""
        return () if self.choice is None else self.choice.rivals

    @functools.cached_property
    def first_steps(self) -> int:
        """Steps that are taken one by one before several by a kernel; see `TaskKernel`."""
        return layout_of(self.program, self.feeds).first_steps if self.most_steps > 1 else 0

    @property
    def _chosen(self) -> Choice | None:
        if not self._takes_steps:
            return None
        return self._predicted if self.choice is None else self.choice.choice

    @functools.cached_property
    def _predicted(self) -> Choice | None:
        return next(iter(step_tuning.choices(self.program, self.feeds)), None)

    def _tuning(self, *, vectors: bool) -> Tuning:
        chosen = self._chosen.tuning if self._chosen else step_kernel.suggested(self.program)
        return replace(chosen, vectors=vectors)

    def _takes_vectors(self, arrays: Sequence[Array]) -> bool:
        tuning, axes = self._tuning(vectors=True), self.program.axes
        return step_kernel.takes_pairs(self.program) and step_kernel.takes_vectors(arrays, tuning, axes)

    @property
    def sends(self) -> bool:
        """Whether `advance` can exchange halos."""
        return self.program.axes == 2

    def prepare_steps(self, steps: int, arrays: Sequence[Array], *, sends: bool = False) -> None:
        """Compile the kernel with which `bind_steps` takes `steps` steps over arrays laid out as `arrays`.

        sends: and exchanges halos. Raises NotCompiled.
        """
        self._step_kernel(steps, self._takes_vectors(views_of_parts(arrays)), sends)

    def advance(self, blocks: StepState, steps: int, more: int = 0, rows: Rows | None = None) -> None:
        """Take steps; see `TaskKernel`. Along an axis that is not cut no halo is read.

        The arguments of a launch take the host longer than a small block's steps: they are kept.
        """
        key = (
            steps,
            more,
            rows,
            id(blocks.scalars),
            *(id(block) for state in blocks.both() for block in state),
        )
        if key not in blocks.bound:
            blocks.bound[key] = self._bound(blocks, steps, more, rows)
        blocks.bound[key]()

    def _bound(self, blocks: StepState, steps: int, more: int, rows: Rows | None) -> Callable[[], None]:
        part = blocks.rows(more) if rows is None else rows
        if part[0] >= part[1]:
            return lambda: None
        axes = blocks.axes(part, steps + more)
        sending = blocks.sending() if rows is None else None
        arrays = blocks.inputs(part), blocks.outputs(part)
        return self.bind_steps(steps, *arrays, axes, sending, blocks.scalars)

    def bind_steps(
        self,
        steps: int,
        inputs: Sequence[Array],
        outs: Sequence[Array],
        axes: Sequence[Axis],
        sending: Sending | None = None,
        scalars: Array | None = None,
    ) -> Callable[[], None]:
        """Return what takes `steps` steps from the own cells of `inputs`, and writes the results to those of
        `outs`, whenever it is called.

        Both are views of own cells, in blocks with as many valid cells beside them as `axes` says. sending:
        how the kernel exchanges the halos of `outs`. scalars: a row of slots for each step, if the program
        takes some.
        """
        inputs, outs = views_of_parts(inputs), views_of_parts(outs)
        vectors = self._takes_vectors([*inputs, *outs])
        kernel, launch, registers = self._step_kernel(steps, vectors, sending is not None)
        axes = axes[: self.program.axes]
        call = step_kernel.arguments(kernel, inputs, outs, axes, registers, sending, scalars)
        values = tuple(map(np.int64, call.values))
        return functools.partial(launch, call.grid, call.block, values, shared_mem=call.shared)

    def _step_kernel(
        self, steps: int, vectors: bool, sends: bool
    ) -> tuple[StepKernel, Callable[..., None], int]:
        """Return the kernel, what launches it, and the registers of a thread."""
        from meshrun.runner.device.nvrtc import local_bytes_of, registers_of

        def built(tuning: Tuning) -> tuple[StepKernel, Callable[..., None], int]:
            kernel = self.step_text(steps, tuning, sends=sends)
            launch = self._compiled(kernel.source, kernel.name, kernel.shared)
            return kernel, launch, registers_of(launch)

        key = steps, vectors, sends
        if key not in self._steps:
            found = built(self._tuning(vectors=vectors))
            closer = step_kernel.one_block_more(found[0], found[2])
            if closer is not None:
                other = built(closer)
                if local_bytes_of(other[1]) <= step_kernel.FEW_BYTES:
                    found = other
            self._steps[key] = found
        return self._steps[key]


def parts_within(
    program: Program, first: Sequence[int], own: Shape, most: int
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield boxes of own cells: first and last + 1 per grid axis.

    If cells have places, a box lies between two ends of the array: what is beyond an end that wraps around is
    in another box. first: position of the first own cell. own: own cells per axis. most: rows of a box.
    """
    cuts = []
    for axis, length in enumerate(own):
        ends = {0, length}
        if program.has_places:
            whole = program.lengths[axis]
            ends |= {*range(-first[axis] % whole, length, whole)}
        if axis == 0:
            ends |= {*range(0, length, max(most, 1))}
        cuts.append([*pairwise(sorted(ends))] or [(0, 0)])
    return product(*cuts)


def _call_all(calls: Iterable[Callable[[], None]]) -> None:
    for call in calls:
        call()
