"""A task's kernel in NumPy, which takes several steps as a GPU's does: beyond the own cells that it is given
it reads what `axes` say lies beside them, and nothing else."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from step_runs import PAD, Arrays, beyond_ends

from meshrun.runner.compiler.compiled import Feeds
from meshrun.runner.compiler.cuda import single_pass
from meshrun.runner.compiler.cuda.beyond import NO_SIDES, Sides, cells_beyond
from meshrun.runner.compiler.cuda.steps.layout import Axis, Sending
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.passes.handed_on import without_outputs
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Extents, Program, in_order
from meshrun.runner.plan.halo import source_index


class NumpyKernel:
    """`runner.plan.task.TaskKernel` of a program.

    history: all fields after each number of steps; if given, what the steps need of the cells that `axes`
    say lie beside the own ones must be one of them. passes: own cells and steps of each call of
    `take_steps`. prepared: the numbers of steps that were announced. aligned: whether it insists on aligned
    rows. row: as of `DeviceKernel`; a single pass does not look beyond the ends either. copies: the number
    of blocks of single passes that were copied for it. bound: how often it was bound to arrays.
    """

    takes_rows = True
    first_steps = 0
    rivals = ()
    capturable = True
    sends = False
    advance: Any = DeviceKernel.advance
    _bound: Any = DeviceKernel._bound

    def __init__(
        self,
        program: Program,
        widths: Extents,
        feeds: Feeds,
        boundary: str,
        cval: float,
        most_steps: int = 3,
        history: Sequence[Arrays] = (),
        *,
        aligned: bool = True,
        row: int = 0,
    ) -> None:
        self.program, self.widths, self.feeds = program, widths, feeds
        self.boundary, self.cval = boundary, cval
        self.most_steps, self.history = most_steps, history
        self.aligned, self.row = aligned, row
        self.passes: list[tuple[tuple[int, ...], int]] = []
        self.prepared: set[int] = set()
        self.copies = self.bound = 0

    @functools.cached_property
    def finds_ends(self) -> list[int]:
        return single_pass.finds_ends(self.program, self.boundary, self.row)

    def __call__(
        self, blocks: Sequence[Any], outs: Sequence[Any], first: Sequence[int], scalars: Any = None
    ) -> None:
        self.copies += sum(one.flags.owndata for one in blocks)
        found = self.finds_ends
        blocks = [with_ends(self, one) if place in found else one for place, one in enumerate(blocks)]
        for out, result in zip(outs, evaluate(self.program, blocks, self.widths, first), strict=True):
            out[...] = result

    stores_beyond = DeviceKernel.__dict__["stores_beyond"]
    handed_on = DeviceKernel.__dict__["handed_on"]

    def without_handed_on(self) -> NumpyKernel:
        """Return the kernel of the other results; `bound` counts for it alone."""
        program, feeds = without_outputs(self.program, self.feeds, self.handed_on)
        more = {"aligned": self.aligned, "row": self.row}
        return NumpyKernel(program, self.widths, feeds, self.boundary, self.cval, self.most_steps, **more)

    def bind(
        self,
        blocks: Sequence[Any],
        outs: Sequence[Any],
        first: Sequence[int],
        scalars: Any = None,
        sides: Sides = NO_SIDES,
    ) -> Callable[[], None]:
        return functools.partial(pass_and_store, self, list(blocks), list(outs), first, scalars, sides)

    def prepare_steps(self, steps: int, arrays: Sequence[Any], *, sends: bool = False) -> None:
        assert not sends
        assert 1 <= steps <= self.most_steps
        assert len({array.strides for array in arrays if array.dtype == arrays[0].dtype}) == 1
        for array in (
            arrays if self.aligned else ()
        ):  # the rows of aligned blocks begin whole lines of a GPU's cache apart
            assert array.ndim == 1 or array.strides[-2] % 128 == 0
        self.prepared.add(steps)

    def bind_steps(self, *arguments: Any) -> Callable[[], None]:
        self.bound += 1
        return functools.partial(self.take_steps, *arguments)

    def take_steps(
        self,
        steps: int,
        inputs: Sequence[Any],
        outs: Sequence[Any],
        axes: Sequence[Axis],
        sending: Sending | None = None,
        scalars: Any = None,
    ) -> None:
        assert sending is None
        assert scalars is None
        assert steps in self.prepared
        axes = axes[: self.program.axes]
        self.passes.append((tuple(axis.own for axis in axes), steps))
        fields = [beside(own, axes).copy() for own in inputs]
        self._check(fields, axes, steps)
        first = [axis.start - axis.before for axis in axes]
        stop = [axis.start + axis.own + axis.after for axis in axes]
        for _ in range(steps):
            for number, (axis, (low, high)) in enumerate(zip(axes, self.widths, strict=True)):
                wraps = self.boundary == "wrap" and axis.own == axis.length
                ends = self.boundary != "wrap"
                before = low if wraps or (ends and first[number] == 0) else 0
                after = high if wraps or (ends and stop[number] == axis.length) else 0
                fields = [self._pad(field, number, (before, after)) for field in fields]
                first[number] += low - before
                stop[number] -= high - after
            results = evaluate(self.program, fields, self.widths)
            inner = tuple(
                slice(low, n - high) for n, (low, high) in zip(fields[0].shape, self.widths, strict=False)
            )
            fields = [field[inner] for field in fields]
            for feed, result in zip(self.feeds, results, strict=True):
                assert feed is not None
                fields[feed] = result
        own = []
        for axis, a, b in zip(axes, first, stop, strict=True):
            assert a <= axis.start, "steps need more cells than lie beside the own ones"
            assert axis.start + axis.own <= b, "steps need more cells than lie beside the own ones"
            own.append(slice(axis.start - a, axis.start - a + axis.own))
        for feed, out in zip(self.feeds, outs, strict=True):
            assert feed is not None
            out[...] = fields[feed][tuple(own)]

    def _pad(self, field: Any, axis: int, width: tuple[int, int]) -> Any:
        if width == (0, 0):
            return field
        widths = [(0, 0)] * field.ndim
        widths[axis] = width
        if self.boundary == "constant":
            return np.pad(field, widths, "constant", constant_values=self.cval)
        mode: Any = PAD[self.boundary]
        return np.pad(field, widths, mode)

    def _check(self, fields: Arrays, axes: Sequence[Axis], steps: int) -> None:
        if not self.history:
            return
        cells = np.ix_(
            *(
                np.arange(axis.start - axis.before, axis.start + axis.own + axis.after) % axis.length
                for axis in axes
            )
        )
        needed = self._needed(axes, steps)
        assert any(
            all(np.array_equal(a[i], b[cells][i]) for a, b, i in zip(fields, then, needed, strict=True))
            for then in self.history
        ), "what lies beside the own cells is not of their step"

    def _needed(self, axes: Sequence[Axis], steps: int) -> list[Any]:
        """Return which cells of each field the own cells need after so many steps, cell by cell."""
        shape = [axis.before + axis.own + axis.after for axis in axes]
        own = np.zeros(shape, bool)
        own[tuple(slice(axis.before, axis.before + axis.own) for axis in axes)] = True
        needed = [own.copy() for _ in self.program.inputs]
        for _ in range(steps):
            before = [np.zeros_like(own) for _ in needed]
            for feed, results in zip(self.feeds, self.program.results, strict=True):
                assert feed is not None
                places = np.argwhere(needed[feed])
                for node in in_order(results):
                    if node.op == "load":
                        moved = places + node.offset
                        moved = moved[((moved >= 0) & (moved < shape)).all(1)]
                        before[node.input][tuple(moved.T)] = True
            needed = before
        return needed


def beside(own: Any, axes: Sequence[Axis], writeable: bool = False) -> Any:
    """Return the own cells of a block and what lies beside them."""
    shape = list(own.shape)
    back = 0
    for number, axis in enumerate(axes):
        assert own.shape[number] == axis.own
        back += axis.before * own.strides[number]
        shape[number] += axis.before + axis.after
    base = own
    while base.base is not None:
        base = base.base
    start = own.__array_interface__["data"][0] - back
    offset = start - base.__array_interface__["data"][0]
    reach = offset + sum((n - 1) * s for n, s in zip(shape, own.strides, strict=True)) + own.itemsize
    assert offset >= 0, "cells outside of the block's memory"
    assert reach <= base.nbytes, "cells outside of the block's memory"
    flat = base.reshape(-1).view(np.uint8)[offset:]
    whole = flat[: flat.size // own.itemsize * own.itemsize].view(own.dtype)
    return as_strided(whole, shape, own.strides, writeable=writeable)


def mixed(widths: Any, fields: int = 2) -> Any:
    """A function of one or two fields in which no two neighbours have the same weight; exact modulo 2^32."""

    def function(block: Any, other: Any) -> Any:
        total = block[inner(widths)] * np.uint32(0)
        spans = [range(low + high + 1) for low, high in widths]
        for number, place in enumerate(itertools.product(*spans)):
            part = tuple(
                slice(at, at - low - high or None) for at, (low, high) in zip(place, widths, strict=True)
            )
            total = total + np.uint32(2 * number + 1) * block[part]
            if number % 2 == 0:
                total = total + np.uint32(number + 3) * other[part]
        return total, (block[inner(widths)] >> np.uint32(3)) ^ np.uint32(1)

    if fields == 2:
        return function
    return lambda block: function(block, block)[0]


def inner(widths: Any) -> tuple[slice, ...]:
    return tuple(slice(low, -high or None) for low, high in widths)


def pass_and_store(
    kernel: Any, blocks: Sequence[Any], outs: Sequence[Any], first: Sequence[int], scalars: Any, sides: Sides
) -> None:
    """Call a kernel, then store the rows beyond the ends of its results that the next pass reads."""
    kernel(blocks, outs, first, scalars)
    beyond = cells_beyond(kernel.program, kernel.feeds, kernel.boundary) if any(sides) else None
    if beyond is None:
        return
    assert kernel.stores_beyond
    for out, widths in zip(outs, beyond.widths, strict=True):
        low, high = (width if side else 0 for width, side in zip(widths, sides, strict=True))
        rows = [source_index(one, len(out), kernel.boundary) or 0 for one in range(-low, len(out) + high)]
        axes = [Axis(len(out), 0, len(out), low, high), Axis(out.shape[1], 0, out.shape[1], 0, 0)]
        beside(out, axes, writeable=True)[...] = out[rows].copy()


def with_ends(kernel: Any, block: Any) -> Any:
    """Return a copy of a padded block whose cells beyond the ends of the last axis equal own ones."""
    assert block.shape[-1] - sum(kernel.widths[-1]) == kernel.row
    return beyond_ends(block, kernel.boundary, kernel.widths)
