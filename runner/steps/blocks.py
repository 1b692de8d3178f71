"""Time steps of one block between two exchanges: the calls of the job's function, and the two copies of each
field.

Each input that an output feeds has two padded blocks: a step reads one and writes its results to the other;
then the two are swapped. A cell has the same place in both. Inputs that no output feeds have one block.

In a leapfrog scheme, one field is in the next step what another is now (`TaskKernel.handed_on`). The two have
two blocks together: the spare block of each is the one that the other reads, and a pass writes one of them.

In one copy, the two blocks lie in the same memory, `rows_apart` rows from each other, and each step goes from
band to band of rows away from the block that it reads: what it overwrites, no later band reads.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from meshrun.runner.arrays.block_layout import BlockLayout, PaddedBlock
from meshrun.runner.arrays.halo import boxes as halo_boxes
from meshrun.runner.arrays.halo.boxes import HaloBox
from meshrun.runner.compiler.cpp.host import Box, Copy
from meshrun.runner.compiler.cuda.beyond import MOST_BYTES
from meshrun.runner.compiler.cuda.steps.layout import Axis, Sending
from meshrun.runner.compiler.result_type import hide_output
from meshrun.runner.device.api import poison
from meshrun.runner.errors import RunError
from meshrun.runner.job.block_context import BlockContext
from meshrun.runner.maps.in_memory import Results, check_types, slabs
from meshrun.runner.plan.halo import AxisCopy, wraps
from meshrun.runner.plan.steps import Piece, band_rows, edge_copies, read_widths, step_pieces
from meshrun.runner.plan.task import Task, TaskKernel
from meshrun.runner.region import Array, Region
from meshrun.runner.report.phases import Phases
from meshrun.runner.steps.step_scalars import StepScalars
from meshrun.runner.steps.steps_per_kernel import choose_steps
from meshrun.runner.world.world import World

if TYPE_CHECKING:
    from meshrun.runner.comm.peer_arrays import DeviceTables

Rows = tuple[int, int]  # first and last + 1
SLAB_BYTES = 4 << 20  # of which a checksum is taken at once
LONGEST_AXIS = 1 << 30  # cells of an axis beyond whose ends a pass stores cells


Block = TypeVar("Block", bound=PaddedBlock)


class StepBlocks(Generic[Block]):
    """The blocks of `region`, the own cells of every layout, for steps of `task`.

    cut: whether the region is only part of each axis: along these axes, blocks have the halo of several
    steps. feeds: for each output, the number of the input that it feeds. fed: the inputs that are fed.
    fused_steps: the most steps that one kernel takes; 1: the steps are taken one by one. layouts: one per
    input; halos beyond their filled parts are not read. arrays: the block of each input that the next step
    reads; spare: of each fed input, the one that it writes. one_copy: see above. bound: kernels of several
    steps, bound to the blocks as they lie in memory.
    """

    world: World
    task: Task
    phases: Phases
    one_copy: bool = False
    handed_on: Mapping[int, int] = MappingProxyType({})  # see above: {before: now}
    _stores_beyond = False  # whether passes themselves store the cells beyond the array
    scalars: Array | None = None  # of a kernel that takes some: see `TaskKernel`
    recorded: Any = None  # `steps.recorded`: rows of series that the steps themselves compute
    _tables: DeviceTables | None = None  # of a device whose cells beyond the array are filled by one launch

    def lay_out(self, layouts: Sequence[BlockLayout], cut: Sequence[bool]) -> None:
        """Set the place of all cells in memory. layouts: one per input."""
        task = self.task
        self.layouts = layouts
        self.cut = tuple(cut)
        self.region = self.layouts[0].region
        self.feeds = task.feed_numbers
        self.fed = sorted(place for place in self.feeds if place is not None)
        self._apart = task.kernel is None and "here" in task.job.services
        self.reads_beyond = task.boundary_read != "none" or task.by_side
        self.fused_steps = choose_steps(task, in_chunks=True).per_kernel
        self._edges = [
            edge_copies(
                replace(one, widths=widths), self.cut, layout.region, layout.filled.widths, layout.boundary
            )
            for one, widths, layout in zip(task.fields, read_widths(task, 1), layouts, strict=True)
        ]
        self.bound: dict[Any, Callable[[], None]] = {}
        self._calls: dict[Any, list[Callable[[], None]]] = {}  # single passes, bound to the blocks
        self._fills: dict[tuple[int, ...], Callable[[], None]] = {}
        self._constants: list[Array] = []
        self._pieces: dict[int, list[Piece]] = {}
        self.arrays: list[Block] = []
        self.spare: dict[int, Block] = {}
        self._later: Block | None = None  # of the first field in one copy: the block that lies behind
        self._finals: list[Array] = []  # None for an output that feeds an input
        self._scratch: dict[tuple[int, ...], list[Array]] = {}
        # Whether the function fills the spare blocks, rather than buffers that are copied to them.
        self._fills_in_place = task.fills_in_place

    def current_step(self) -> int:
        """Return the number of the step that is computed, from 0 on."""
        raise NotImplementedError

    def scalar_rows(self, most: int) -> StepScalars | None:
        """Return the numbers of the steps for the task's kernel; None if it takes none.

        most: steps of a kernel, or of a graph of kernels.
        """
        tape = self.task.job.tape
        if self.task.kernel is None or tape is None or not tape.slots:
            return None
        return StepScalars(tape, self.world.xp, most)

    @property
    def stored(self) -> list[int]:
        """The fed inputs whose spare blocks a step writes; the others are handed on."""
        return [place for place in self.fed if place not in self.handed_on]

    @property
    def first(self) -> Sequence[int]:
        """Position of the first own cell in the whole array, per axis."""
        return self.region.start

    @property
    def padded(self) -> list[Array]:
        """The block of each input that the next step reads, with its halo."""
        return [array.block for array in self.arrays]

    def own(self, place: int) -> Array:
        """Return the own cells of input `place` as they are now; a view."""
        return self.arrays[place].interior

    def both(self) -> tuple[list[Array], list[Array]]:
        """Return the block of each input that the next step reads, and the one that it writes."""
        spare = self.spare
        return (
            self.padded,
            [spare.get(place, array).block for place, array in enumerate(self.arrays)],
        )

    def rows(self, more: int) -> Rows:
        """Return the rows to compute before `more` steps, counted from the first own row; none: (0, 0)."""
        if self.region.size == 0:
            return 0, 0
        low, high = self.box(more)
        return low[0], high[0]

    def box(self, more: int) -> Box:
        """Return the cells to compute before `more` steps: first and last + 1, from the own cell 0 on."""
        (piece,) = step_pieces(self.task, self.region, more, self.cut, apart=False)
        own = self.region.start
        low, high = (
            tuple(a - b for a, b in zip(corner, own, strict=True))
            for corner in (piece.place.start, piece.place.stop)
        )
        return low, high

    def inputs(self, rows: Rows) -> list[Array]:
        """Return rows of all inputs, counted from the first own row; views."""
        return [array.block[self._core(place, rows)] for place, array in enumerate(self.arrays)]

    def outputs(self, rows: Rows) -> list[Array]:
        """Return rows of the spare block that each output writes; views."""
        return [self.spare[feed].block[self._core(feed, rows)] for feed in self.feeds if feed is not None]

    def _core(self, place: int, rows: Rows) -> tuple[slice, ...]:
        along, *others = self.layouts[place].core
        return slice(along.start + rows[0], along.start + rows[1]), *others

    def axes(self, rows: Rows, valid: int) -> list[Axis]:
        """Return what lies beside some rows along each of the array's axes.

        rows: first and last + 1, counted from the first own row; all own rows unless axis 0 is cut. valid:
        steps for which the rows' halo is wide enough. Only cells along cut axes are beside them.
        """
        layout, task = self.layouts[0], self.task
        wraps, found = task.boundary == "wrap", []
        for axis, (length, is_cut, width) in enumerate(
            zip(task.shape, self.cut, layout.widths, strict=False)
        ):
            start, stop = layout.region.start[axis], layout.region.stop[axis]
            before, after = width if is_cut else (0, 0)
            if axis == 0 and is_cut:
                (low, high), own = task.widths[0], stop - start
                before, after = min(before, valid * low), min(after, valid * high)
            if not wraps:
                before, after = min(before, start), min(after, length - stop)
            if axis == 0 and is_cut:
                before, after = before + rows[0], after + own - rows[1]
                start, stop = start + rows[0], start + rows[1]
                if wraps and stop - start == length:  # a kernel takes them for the whole array
                    before = after = 0
            found.append(Axis(stop - start, start, length, before, after))
        return found

    def sending(self) -> Sending | None:
        """Return how a kernel of several steps exchanges the spare blocks' halos; None if it does not."""
        return None

    def fill_beyond(self) -> None:
        """Give the cells beyond the array the value of a constant boundary, in all blocks."""
        for array in (*self.arrays, *self.spare.values()) if self.reads_beyond else ():
            array.layout.filled.fill_outside(array.filled)

    def set_timed_boundary(self) -> None:
        """Give the cells beyond the array their values of this step, where a table in time has them."""
        if not (self.task.by_side and self.task.has_timed_boundary):
            return
        for number, array in enumerate(self.arrays):
            _, constants = self.task.beyond(number, self.current_step())
            assert isinstance(constants, tuple)
            array.layout.set_constants(constants)
            array.layout.filled.fill_outside(array.filled)

    def first_cells(self) -> list[list[int]]:
        """Return the index of the first own cell of each input's block, per axis."""
        return [[part.start for part in layout.core] for layout in self.layouts]

    def edge_cells(self, place: int) -> list[Copy]:
        """Return which own cell each cell beyond the array equals, counted from the own cell 0."""
        layout = self.layouts[place].filled
        found = []
        for axis, copy in layout.within:
            low = layout.widths[axis][0]
            found += [
                Copy(axis, copy.target - low + n, copy.source + n * copy.step) for n in range(copy.count)
            ]
        for axis, copy in self._edges[place]:
            start = layout.region.start[axis]
            found += [
                Copy(axis, copy.target - start + n, copy.source - start + n * copy.step)
                for n in range(copy.count)
            ]
        return found

    def result(self, number: int) -> Array:
        """Return the region's part of output `number`, after the last step; a view."""
        feed = self.feeds[number]
        return self._finals[number] if feed is None else self.own(feed)

    def _unfed_results(self) -> list[Array]:
        """Return memory for the results that feed no input, and None for each other result."""
        return [
            self.world.backend.empty(self.task.output_region(self.region, number).shape, dtype)
            if feed is None
            else None
            for number, (feed, (_, dtype)) in enumerate(zip(self.feeds, self.task.known, strict=True))
        ]

    def swap(self) -> None:
        """Swap the two blocks of each field, so that the next step reads the results of the last one."""
        for place in self.fed:
            self.arrays[place], self.spare[place] = self.spare[place], self.arrays[place]

    def _pieces_of(self, remaining: int) -> list[Piece]:
        if remaining not in self._pieces:
            self._pieces[remaining] = step_pieces(
                self.task, self.region, remaining, self.cut, apart=self._apart
            )
        return self._pieces[remaining]

    def _rows(self, first: int, last: int) -> Piece:
        part = self.region.rows(first, last)
        return Piece(part, part)

    def _fill_outside(self, targets: Sequence[PaddedBlock]) -> None:
        """Fill the cells beyond the array from the new ones, in a block of each fed input."""
        if not self.reads_beyond:
            return
        if self._tables is not None and not self.task.by_side:
            key = tuple(map(id, targets))
            if key not in self._fills:
                self._fills[key] = self._fill_in_one_launch(self._tables, targets)
            self._fills[key]()
            return
        for place, target in zip(self.stored, targets, strict=True):
            layout, part = target.layout.filled, target.filled
            layout.fill_outside(part)
            for axis, copy in self._edges[place]:
                layout.copy_along(part, axis, copy, layout.widths[axis][0] - layout.region.start[axis])
            layout.fill_whole_axes(part)

    def _fill_in_one_launch(self, tables: DeviceTables, targets: Sequence[PaddedBlock]) -> Callable[[], None]:
        """Return one launch that fills the cells beyond the array in the blocks of all fed inputs."""
        boxes: list[HaloBox] = []
        cells = halo_boxes.constant_cells(
            self.world.backend,
            [target.block.dtype for target in targets],
            self.task.boundary,
            self.task.cval,
        )
        for place, target, cell in zip(self.stored, targets, cells, strict=True):
            part = target.filled
            boxes += halo_boxes.boxes_within(
                self._copies_beyond(place), part.strides, part.dtype.itemsize, tables.address(part)
            )
            slabs = [part[slab] for slab, _ in target.layout.filled.outside]
            boxes += halo_boxes.constant_boxes(slabs, tables.address(cell), tables.address)
        self._constants += cells  # the launch has their addresses
        return halo_boxes.launch(tables, tables.kernel(halo_boxes.KERNELS, "move_cells"), boxes)

    def _copies_beyond(self, place: int) -> list[list[AxisCopy]]:
        """Return for each axis the cells of input `place` within the array, then the copies of some of them
        beyond it; counted in the part of the block that is read."""
        layout, shape = self.layouts[place].filled, self.task.fields[place].shape
        found = []
        for axis, (core, length) in enumerate(zip(layout.core, layout.shape, strict=True)):
            first, last = core.start, core.stop
            if axis < len(self.cut) and self.cut[axis]:
                origin = core.start - layout.region.start[axis]  # of the array's cell 0
                first, last = (
                    (0, length)
                    if wraps(layout.boundary, axis)
                    else (max(origin, 0), min(origin + shape[axis], length))
                )
            within = [
                replace(copy, source=copy.source + core.start) for at, copy in layout.within if at == axis
            ]
            shift = core.start - layout.region.start[axis]
            edges = [
                replace(copy, target=copy.target + shift, source=copy.source + shift)
                for at, copy in self._edges[place]
                if at == axis
            ]
            found.append([AxisCopy(first, last - first, first, 1, 0), *within, *edges])
        return found

    def _compute(self, piece: Piece, keep: bool, *, copied: bool = False) -> None:
        """Compute the cells of `piece` into the spare blocks.

        keep: also compute the results that feed no input, for this rank's own cells. copied: do not change
        the blocks."""
        if self.task.kernel is not None:
            self._compute_by_kernel(piece, keep)
            return
        backend = self.world.backend
        for (first, last), windows in self._windows(piece, self._ranges(piece), copied):
            if backend.asynchronous:
                self._call(piece, first, last, windows, keep)
            else:
                with self.phases("kernel"):
                    self._call(piece, first, last, windows, keep)

    def _compute_by_kernel(self, piece: Piece, keep: bool) -> None:
        """Compute the cells of `piece` by the task's kernel, whose calls are bound to the blocks once."""
        # The work of a device is timed by the loop.
        with nullcontext() if self.world.backend.asynchronous else self.phases("kernel"):
            for call in self._calls_of(piece, keep):
                call()

    def _calls_of(self, piece: Piece, keep: bool) -> list[Callable[[], None]]:
        """Return what computes the cells of `piece` from the blocks; at first, kernels may be compiled."""
        keep = keep and None in self.feeds
        key = piece, keep, id(self.scalars), *map(id, self.arrays), *map(id, self.spare.values())
        if key not in self._calls:
            self._calls[key] = self._bound_calls(piece, keep)
        return self._calls[key]

    @cached_property
    def _pass_kernel(self) -> TaskKernel | None:
        """The kernel of single passes."""
        kernel = self.task.kernel
        return kernel.without_handed_on() if kernel is not None and self.handed_on else kernel

    def _bound_calls(self, piece: Piece, keep: bool) -> list[Callable[[], None]]:
        """Return what computes the cells of `piece` from the blocks as they lie in memory now."""
        kernel, calls = self._pass_kernel, list[Callable[[], None]]()
        assert kernel is not None
        feeds = [feed for feed in self.feeds if feed not in self.handed_on]
        for (first, last), windows in self._windows(piece, self._ranges(piece), copied=False):
            place = piece.place.rows(first, last)
            outs = self._outs(piece.region.rows(first, last), place)
            assert outs is not None
            calls.append(kernel.bind(windows, outs, place.start, self.scalars, self._sides(piece)))
            # Results in buffers of their own are copied to where they belong.
            for number, (feed, out) in enumerate(zip(feeds, outs, strict=True)):
                if feed is None and keep:
                    calls.append(partial(_assign, self._finals[number], self._inside(number, place), out))
                elif feed is not None and not self._fills_in_place:
                    calls.append(partial(_assign, self.spare[feed].block, self._at(feed, place), out))
        return calls

    def _sides(self, piece: Piece) -> tuple[bool, bool]:
        """Return whether the pass over `piece` stores the rows before the array's first one and after its
        last one: not with a constant boundary, whose cells stay as they are."""
        if not self._stores_beyond or self.task.boundary == "constant":
            return False, False
        if not self.cut[0]:
            return True, True
        if self.task.boundary == "wrap":
            return False, False
        return piece.place.start[0] == 0, piece.place.stop[0] == self.task.shape[0]

    def _can_store_beyond(self, pieces: Iterable[Piece]) -> bool:
        """Return whether single steps over these pieces need no launch to fill the cells beyond the array."""
        kernel, task = self._pass_kernel, self.task
        if kernel is None or not kernel.stores_beyond or not self._fills_in_place or self.one_copy:
            return False
        if task.boundary == "constant":
            return True
        largest = task.partition[0]
        if task.input_bytes(largest) + task.result_bytes(largest) > MOST_BYTES:
            return False
        # What equals a cell beyond an end lies in the piece at that end, which is as long as the halo.
        more = task.boundary == "mirror"
        return all(
            max(task.widths[axis]) + more <= piece.place.shape[axis] < LONGEST_AXIS
            for piece in pieces
            for axis, is_cut in enumerate(self.cut)
            if not is_cut or task.boundary != "wrap"
        )

    def _ranges(self, piece: Piece) -> list[Rows]:
        """Return the rows of each call for a piece, in order.

        A function on a CPU is called on slabs that fit a cache with its temporary arrays. A kernel has none.
        """
        rows = (0, piece.region.shape[0])
        most = band_rows(self.task, self.region) if self.one_copy else None
        if not self.world.backend.asynchronous and self.task.kernel is None:
            found = list(slabs(self.task, piece.region, rows, most))
            return found[::-1] if self._is_backwards else found
        return [rows] if most is None else self._bands(rows[1])

    def _bands(self, rows: int | None = None) -> list[Rows]:
        """Return the bands of so many rows, by default of the own ones, in order; for fields in one copy."""
        count = self.region.shape[0] if rows is None else rows
        most = band_rows(self.task, self.region)
        found = [(first, min(first + most, count)) for first in range(0, count, most)]
        return found[::-1] if self._is_backwards else found

    @property
    def _is_backwards(self) -> bool:
        """Return whether a step goes from the last row to the first: it writes behind what it reads."""
        return self.one_copy and self.arrays[self.fed[0]] is not self._later

    def _call(self, piece: Piece, first: int, last: int, windows: list[Array], keep: bool) -> None:
        place = piece.place.rows(first, last)
        region = piece.region.rows(first, last)
        outs = self._outs(region, place)
        results = self._results(region, windows, outs)
        for number, (feed, result) in enumerate(zip(self.feeds, results, strict=True)):
            if feed is None:
                if keep:
                    self._finals[number][self._inside(number, place)] = result
                continue
            if not (self._fills_in_place and outs is not None and result is outs[number]):
                self.spare[feed].block[self._at(feed, place)] = result

    def _results(self, region: Region, windows: list[Array], outs: list[Array] | None) -> Results:
        world, backend = self.world, self.world.backend
        here = BlockContext(
            world.rank, world.size, world.here.host, region.start, region.shape, self.task.shape,
            backend.stream, backend.xp, self.current_step(),
        )  # fmt: skip
        results = self.task.call(windows, here, outs)
        check_types(self.task, results)
        return results

    def _outs(self, region: Region, place: Region | None) -> list[Array] | None:
        """Return arrays for a call to fill: the cells at `place` of the spare blocks, or buffers.

        Both are poisoned before their first use.
        """
        if not self.task.fills:
            return None
        if self._fills_in_place and place is not None:
            fed = [feed for feed in self.feeds if feed is not None and feed not in self.handed_on]
            return [self.spare[feed].block[self._at(feed, place)] for feed in fed]
        if region.shape not in self._scratch:
            declared = self.task.declared(region.shape)
            assert declared is not None
            outs = [self.world.backend.empty(*one) for one in declared]
            for out in outs:
                poison(out)
            self._scratch[region.shape] = outs
        return self._scratch[region.shape]

    def _at(self, place: int, cells: Region) -> tuple[slice, ...]:
        """Return the slices of `cells` in the block of input `place`."""
        layout = self.layouts[place]
        beside = self.task.field_region(place, cells)
        return tuple(
            slice(a - origin + width, b - origin + width)
            for a, b, origin, (width, _) in zip(
                beside.start, beside.stop, layout.region.start, layout.widths, strict=True
            )
        )

    def _inside(self, number: int, cells: Region) -> tuple[slice, ...]:
        """Return the slices of `cells` in this rank's part of output `number`."""
        whole, part = (self.task.output_region(one, number) for one in (self.region, cells))
        return tuple(slice(a - o, b - o) for a, b, o in zip(part.start, part.stop, whole.start, strict=True))

    def _windows(
        self, piece: Piece, ranges: Sequence[Rows], copied: bool
    ) -> Iterator[tuple[tuple[int, int], list[Array]]]:
        """Yield ranges of the piece's rows, which follow each other, each with its windows.

        A kernel changes no window, and takes views. Those of a function are C-contiguous; it may change those
        of the inputs that are fed: rows that two windows share are saved and restored. copied: all windows of
        a function are copies.
        """
        halo = sum(self.task.widths[0])
        padded = [self._padded(place, piece.place) for place in range(len(self.arrays))]
        if self.task.kernel is not None:
            for first, last in ranges:
                yield (first, last), [block[first : last + halo] for block in padded]
            return
        kept: dict[int, Array] = {}
        for first, last in ranges:
            before, after = (last, first) if self._is_backwards else (first, last)
            for place, rows in kept.items():
                padded[place][before : before + halo] = rows
            windows = [block[first : last + halo] for block in padded]
            if halo and (first, last) != ranges[-1]:
                kept = {place: padded[place][after : after + halo].copy() for place in self.fed}
            fed = set(self.fed) if copied else set()
            yield (
                (first, last),
                [
                    window.copy(order="C") if place in fed or not window.flags.c_contiguous else window
                    for place, window in enumerate(windows)
                ],
            )

    def _padded(self, place: int, cells: Region) -> Array:
        """Return the view of `cells` with the halo of one step in the block of input `place`."""
        inside = self._at(place, cells)
        widths = self.task.fields[place].widths
        wider = (
            slice(part.start - low, part.stop + high)
            for part, (low, high) in zip(inside, widths, strict=True)
        )
        return self.arrays[place].block[tuple(wider)]

    def windows(self) -> list[Array]:
        """Return the own cells of each input with the halo of one step; views."""
        return [self._padded(place, self.region) for place in range(len(self.arrays))]

    def _try_a_row(self) -> None:
        """Call the function on a copy of the last row: its kernels are compiled before the first step.

        Raises RunError if it changes an input that no output feeds, which all further steps need.
        """
        if self.region.size == 0:
            return
        rows = self.region.shape[0]
        row = self._rows(rows - 1, rows)
        windows = [self._padded(place, row.place).copy(order="C") for place in range(len(self.arrays))]
        before = {place: w.copy() for place, w in enumerate(windows) if place not in self.fed}
        with hide_output(), np.errstate(all="ignore"):
            self._results(row.region, windows, self._outs(row.region, None))
        for place, old in before.items():
            if not bool((old.view(np.uint8) == windows[place].view(np.uint8)).all()):
                raise self._changed(place)

    def _changed(self, place: int) -> RunError:
        name = self.task.fields[place].name
        return RunError(
            f"job {self.task.job.name} changes its input {name}, which all further steps need",
            expected=f"no change, or an output that feeds {name}",
            hint=f"work on {name}.copy(), or name {name} in feeds=",
        )

    def note_inputs_that_stay(self) -> None:
        """Remember what is in the inputs that no output feeds, for `check_inputs_that_stay`."""
        called = self.task.kernel is None and not self.world.backend.asynchronous and self.region.size > 0
        stay = [place for place in range(len(self.arrays)) if place not in self.fed] if called else []
        self._stay = {place: _checksum(self._staying(place)) for place in stay}

    def _staying(self, place: int) -> Array:
        """Return the cells of an input that steps leave as they are: not those of a table in time."""
        timed = self.task.by_side and self.task.has_timed_boundary
        return self.own(place) if timed else self.arrays[place].block

    def check_inputs_that_stay(self) -> None:
        """Raise RunError if a function that is called on a CPU has changed an input that no output feeds.

        A function may do so for some values only, which `_try_a_row` did not see.
        """
        for place, before in self._stay.items():
            if _checksum(self._staying(place)) != before:
                raise self._changed(place)


def _assign(target: Array, place: tuple[slice, ...], cells: Array) -> None:
    target[place] = cells


def _checksum(block: Array) -> int:
    """Return a checksum of an array's bytes, of which at most some rows are copied at a time."""
    rows, total = max(SLAB_BYTES // max(block[:1].nbytes, 1), 1), 0
    for first in range(0, len(block), rows):
        slab = np.ascontiguousarray(block[first : first + rows])
        total = zlib.crc32(slab.reshape(-1).view(np.uint8).data, total)
    return total
