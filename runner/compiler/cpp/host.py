"""Compile a traced program for the host's processor, with the host's C++ compiler.

Libraries are kept in a folder of this user, so that a program is compiled once for each kind of processor.
A file that another user could have written is not loaded.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from meshrun.runner.compiler.cpp.source import MOST_STEPS, source
from meshrun.runner.compiler.trace.graph import SLOT, Extents, Program
from meshrun.runner.region import HostArray
from meshrun.runner.system import cached_files
from meshrun.runner.system.compiler import SECONDS, Compiler, NotCompiled

# None of these changes a bit of a result, as -ffast-math would, or -fno-trapping-math: with it, GCC 12 makes
# (double)(int64)x a trunc(x), which may be -0.0.
FLAGS = (
    "-x", "c++", "-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno",
    "-w", "-shared", "-fPIC",
    "-fno-tree-slp-vectorize", "--param", "vect-epilogues-nomask=0",  # half of the time to compile
)  # fmt: skip
MANY_STEPS = 8  # of one call; more are hardly faster, and need wider halos
SMALLEST_CACHE = 2**20  # bytes, if the system does not tell


def steps_in_cache(axes: int) -> int:
    """Return the steps of one call whose rows stay in a cache while they are computed."""
    return MANY_STEPS if axes < 3 else MANY_STEPS // 2


def library(text: str, compiler: Compiler, folder: Path | None) -> ctypes.CDLL:
    """Load the library of a source text from the folder, or compile it. Raises NotCompiled.

    folder: of compiled files; created if it is missing. If it is None or not usable, nothing is kept.
    """
    with tempfile.TemporaryDirectory(prefix="meshrun-") as temporary:
        path = Path(temporary) / "kernel.so"
        words = (text, compiler.path, compiler.version, *FLAGS)
        kept = cached_files.path_of(folder, words, ".so")
        if cached_files.read(kept) is None:
            _compile(text, compiler, path)
            kept = cached_files.keep(kept, path.read_bytes())
        return _load(kept or path)


def _compile(text: str, compiler: Compiler, path: Path) -> None:
    command = [compiler.path, *FLAGS, "-o", str(path), "-"]
    try:
        done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as reason:
        raise NotCompiled(f"{compiler.path} took more than {SECONDS} s") from reason
    except OSError as reason:
        raise NotCompiled(f"cannot run {compiler.path}: {reason.strerror}") from reason
    if done.returncode:
        first = next(
            (line for line in done.stderr.decode(errors="replace").splitlines() if "error" in line), ""
        )
        found = re.match(r"<stdin>:(\d+):", first)
        at = int(found[1]) if found else 0
        raise NotCompiled(f"{compiler.path} failed with status {done.returncode}: {first}", at)


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as reason:
        raise NotCompiled(f"cannot load {path}: {reason}") from reason


@dataclass(frozen=True)
class Copy:
    """A cell beyond the array, and the cell that it equals: indices along `axis`, from own cell 0."""

    axis: int
    target: int
    source: int


Box = tuple[tuple[int, ...], tuple[int, ...]]  # first and last + 1 cell, per axis, from the own cell 0


@dataclass(frozen=True, eq=False)
class HostProgram:
    """A compiled program. Calls release Python's lock and use one processor.

    loaded: the library; number: of the program in it.
    """

    program: Program
    loaded: ctypes.CDLL
    number: int = 0

    def run(
        self,
        blocks: Sequence[HostArray],
        outs: Sequence[HostArray],
        widths: Extents,
        first: Sequence[int] = (),
        scalars: HostArray | None = None,
    ) -> None:
        """Compute all outputs in one pass.

        blocks: of each input, with the halo `widths` per grid axis. outs: arrays of own cells to write; they
        share no memory with the blocks. All are contiguous along the last grid axis and the trailing axes.
        Of a result whose cells are added, a view of the sum's first word.
        first, scalars: as of `TaskKernel`, for a program with places or scalars.
        """
        self.bind(blocks, outs, widths, first, scalars)()

    def bind(
        self,
        blocks: Sequence[HostArray],
        outs: Sequence[HostArray],
        widths: Extents,
        first: Sequence[int] = (),
        scalars: HostArray | None = None,
    ) -> Callable[[], None]:
        """Return a call that does what `run` does. To make its arguments takes longer than a small block."""
        axes = self.program.axes
        own = outs[0].shape[:axes]
        # Of a sum, the words: as a row of cells that are contiguous.
        targets = [
            as_strided(out, (1,) * axes, (out.itemsize,) * axes) if one.combine else out
            for one, out in zip(self.program.outputs, outs, strict=True)
        ]
        starts = [_pointer(block, [low for low, _ in widths], axes) for block in blocks]
        arguments = (
            _pointers(starts), _strides(blocks, axes),
            _pointers([_pointer(out, [0] * axes, axes) for out in targets]), _strides(targets, axes),
            _integers(own), self._place(first), self._slots(scalars, 1),
        )  # fmt: skip
        kept = [*blocks, *outs, scalars]
        return functools.partial(_call, self.loaded[f"run{self.number}"], arguments, kept)

    def march(
        self,
        blocks: Sequence[HostArray],
        outs: Sequence[HostArray],
        targets: Sequence[HostArray],
        widths: Extents,
        first: Sequence[int],
        along: tuple[int, int],
        scalars: HostArray,
    ) -> None:
        """Compute boxes of cells one after the other, and write each over cells that the next one may read.

        blocks, first: of the first box, as of `run`. outs: memory for the results of one box. targets: own
        cells from the first box on, that the results are written to. along: the axis, and how many cells
        along it a box is from the one before. scalars: (boxes, slots).
        """
        axes = self.program.axes
        starts = [_pointer(block, [low for low, _ in widths], axes) for block in blocks]
        written = [[_pointer(one, [0] * axes, axes) for one in arrays] for arrays in (outs, targets)]
        if scalars.shape[1] < self.program.scalars or not scalars.flags.c_contiguous:
            raise ValueError(f"{self.program.scalars} slots are needed for each box, in rows of their own")
        self.loaded[f"march{self.number}"](
            ctypes.c_longlong(len(scalars)), *map(ctypes.c_longlong, along),
            ctypes.c_longlong(scalars.shape[1]), _pointers(starts), _strides(blocks, axes),
            _pointers(written[0]), _strides(outs, axes), _pointers(written[1]), _strides(targets, axes),
            _integers(outs[0].shape[:axes]), self._place(first), ctypes.c_void_p(scalars.ctypes.data),
        )  # fmt: skip

    def steps(
        self,
        blocks: Sequence[Sequence[HostArray]],
        firsts: Sequence[Sequence[int]],
        boxes: Sequence[Box],
        feeds: Sequence[int | None],
        copies: Sequence[Sequence[Copy]],
        widths: Extents,
        finals: Sequence[HostArray | None] = (),
        strip: int | None = None,
        first: Sequence[int] = (),
        scalars: HostArray | None = None,
        points: Sequence[ctypes.Structure] = (),
    ) -> None:
        """Take one step for each of `boxes`: the cells that the step computes.

        blocks: two padded blocks of each input, of the same layout; the first step reads the first block and
        writes the second, the next step reads the second and writes the first. An input that is not fed has
        one block, given twice. firsts: for each input, the index of its own cell 0. feeds: for each output,
        the input that it feeds. copies: for each input, the cells beyond the array to fill after each step.
        widths: halo of one step. finals: for each output that feeds nothing, an array for the last step's
        results, as large as the last box. strip: rows along axis 0 that each step computes before the next
        step computes the rows that depend on them; None: chosen by the size of the cache. first: position of
        the own cell 0 in the whole array, per axis. scalars: rows of slots, one for each step. points: sets
        of cells that each step computes after the others (`compiler.whole.point_code`).
        """
        axes, count = self.program.axes, len(boxes)
        if count > MOST_STEPS:
            raise ValueError(f"{count} steps in one call, more than {MOST_STEPS}")
        skew = max(widths[0])
        copies = [
            sorted(part, key=lambda one: (one.axis == 0, one.axis)) for part in copies
        ]  # whole rows last
        if strip is None:
            strip = strip_rows(blocks[0], widths, count)
        rows = min(lo[0] for lo, _ in boxes), max(hi[0] for _, hi in boxes)
        along = [one for part in copies for one in part if one.axis == 0]
        strip, ring = steps_order(along, rows, widths[0], count, strip)
        inputs = [
            [_pointer(block, first, axes) for block, first in zip(state, firsts, strict=True)]
            for state in blocks
        ]
        scratch, unfed, unfed_strides = _unfed(self.program, feeds, finals, boxes)
        padded = [
            edge
            for block, first in zip(blocks[0], firsts, strict=True)
            for edge in (
                [-at for at in first],
                [n - at for n, at in zip(block.shape, first, strict=False)],
            )
        ]
        self.loaded[f"steps{self.number}"](
            ctypes.c_longlong(count), ctypes.c_longlong(strip), ctypes.c_longlong(skew),
            ctypes.c_longlong(ring), _pointers(inputs[0] + inputs[1]), _strides(blocks[0], axes),
            _integers([-1 if feed is None else feed for feed in feeds]),
            _pointers(unfed), _integers(unfed_strides),
            _integers([at for box in boxes for edge in box for at in edge]),
            _integers([at for edge in padded for at in edge]), _integers([len(part) for part in copies]),
            _integers([at for part in copies for one in part for at in (one.axis, one.target, one.source)]),
            self._place(first), self._slots(scalars, count),
            ctypes.c_longlong(len(points)), (type(points[0]) * len(points))(*points) if points else None,
        )  # fmt: skip
        del scratch  # written until here

    def _place(self, first: Sequence[int]) -> ctypes.Array[ctypes.c_longlong]:
        if self.program.has_places and len(first) < self.program.axes:
            raise ValueError("a program whose cells have places, and no position of the first one")
        return _integers([*first[: self.program.axes], *[0] * (self.program.axes - len(first))])

    def _slots(self, scalars: HostArray | None, steps: int) -> ctypes.c_void_p:
        """Return the address of the scalars of so many steps."""
        needed = steps * self.program.scalars * SLOT
        if needed and (scalars is None or scalars.nbytes < needed or not scalars.flags.c_contiguous):
            raise ValueError(f"scalars of {needed} bytes are needed, one row of slots after the other")
        return ctypes.c_void_p(0 if scalars is None else scalars.ctypes.data)


def _call(function: Callable[..., None], arguments: Sequence[Any], _kept: Sequence[Any]) -> None:
    """Call a function. _kept: the arrays whose addresses the arguments have."""
    function(*arguments)


def steps_order(
    along: Sequence[Copy], rows: tuple[int, int], width: tuple[int, int], count: int, strip: int
) -> tuple[int, bool]:
    """Return the rows of a strip, and whether those beside the ends of axis 0 follow last, to close a ring.

    along: copies along axis 0. rows: first and last + 1 that are computed. width: of the halo along axis 0.
    strip: rows that fit a cache; returned unless a step needs all rows of the one before it.
    """
    first, last = rows
    skew = max(width)
    if all(_is_near(one, first, last - 1, width) for one in along):
        return strip, False
    if all(_is_around(one, last - first) for one in along) and last - first >= 2 * count * skew:
        return strip, True
    return last - first + count * skew, False


def _is_around(copy: Copy, rows: int) -> bool:
    """Return whether a copy along axis 0 is of a boundary that wraps around."""
    return abs(copy.target - copy.source) == rows


def _is_near(copy: Copy, first: int, last: int, width: tuple[int, int]) -> bool:
    """Return whether a copy along axis 0 is possible while steps follow one another at the distance of the
    wider halo: after the previous step has read the old cell, and before the next step reads the new one.

    first, last: rows that are computed.
    """
    skew = max(width)
    if copy.source > copy.target:
        return copy.source <= max(copy.target - width[1], first) + skew
    return copy.source + skew >= min(copy.target + width[0], last)


def strip_rows(blocks: Sequence[HostArray], widths: Extents, count: int) -> int:
    """Return the number of rows along axis 0 for a strip, such that the strips of all steps fit a cache."""
    skew = max(widths[0])
    rows = cache_bytes() // 2 // max(2 * sum(block.nbytes // max(len(block), 1) for block in blocks), 1)
    return max(rows - (count + 2) * skew, 4 * skew, 1)


def cache_bytes() -> int:
    """Return the size of a processor's own cache."""
    try:
        return max(os.sysconf("SC_LEVEL2_CACHE_SIZE"), SMALLEST_CACHE)
    except (OSError, ValueError):
        return SMALLEST_CACHE


def build(program: Program, compiler: Compiler, folder: Path | None) -> HostProgram:
    """Compile a program. Raises NotCompiled."""
    return HostProgram(program, library(source([program]), compiler, folder))


def _unfed(
    program: Program, feeds: Sequence[int | None], finals: Sequence[HostArray | None], boxes: Sequence[Box]
) -> tuple[list[HostArray], list[int], list[int]]:
    """Return memory, addresses of cell 0 and strides for outputs that feed nothing.

    Before the last step they write to one row, again and again; in the last step, to `finals`.
    """
    axes = program.axes
    lo, hi = min(box[0][-1] for box in boxes), max(box[1][-1] for box in boxes)
    scratch: list[HostArray] = []
    starts: list[list[int]] = [[], []]
    strides: list[list[int]] = [[], []]
    for place, (one, feed) in enumerate(zip(program.outputs, feeds, strict=True)):
        cell = one.dtype.itemsize * one.components
        row = np.empty(0 if feed is not None else (hi - lo) * one.components, one.dtype)
        scratch.append(row)
        starts[0].append(row.ctypes.data - lo * cell)
        strides[0] += [0] * (axes - 1) + [cell]
        final = finals[place] if feed is None and place < len(finals) else None
        if final is None:
            starts[1].append(starts[0][-1])
            strides[1] += [0] * (axes - 1) + [cell]
        else:
            starts[1].append(_pointer(final, [-at for at in boxes[-1][0]], axes))
            strides[1] += [*final.strides[: axes - 1], cell]
    return scratch, starts[0] + starts[1], strides[0] + strides[1]


def _pointer(array: HostArray, first: Sequence[int], axes: int) -> int:
    """Return the address of a cell. Raises ValueError if a row of the array is not contiguous."""
    wanted = array.itemsize
    for axis in reversed(range(axes - 1, array.ndim)):
        if array.strides[axis] != wanted and array.shape[axis] > 1:
            raise ValueError(f"rows of an array with strides {array.strides} are not contiguous")
        wanted *= array.shape[axis]
    strides = (*array.strides[: axes - 1], _cell(array, axes))
    return array.ctypes.data + sum(at * stride for at, stride in zip(first, strides, strict=True))


def _cell(array: HostArray, axes: int) -> int:
    """Return the bytes of a cell."""
    found: int = array.itemsize * math.prod(array.shape[axes:])
    return found


def _strides(arrays: Sequence[HostArray], axes: int) -> ctypes.Array[ctypes.c_longlong]:
    return _integers([s for one in arrays for s in (*one.strides[: axes - 1], _cell(one, axes))])


def _integers(values: Sequence[int]) -> ctypes.Array[ctypes.c_longlong]:
    return (ctypes.c_longlong * len(values))(*values)


def _pointers(values: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(values))(*values)
