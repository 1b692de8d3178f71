"""The memory of a function with Fourier transforms: its parts, the arrays between them, and transforms."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import Extents
from meshrun.runner.compiler.whole.spaces.parts import (
    ProductStep,
    SharedPlace,
    SpacePart,
    SpectralProgram,
    TransformStep,
)
from meshrun.runner.programs.memory import bytes_of_array, program_bytes
from meshrun.runner.programs.reducing import prepared_for_kernels
from meshrun.runner.programs.spectral.layouts import Layouts, plan_layouts
from meshrun.runner.programs.spectral.lifetimes import exchanged_states, lifetimes_of
from meshrun.runner.programs.stages import StagedProgram, plan_program
from meshrun.runner.region import Shape
from meshrun.runner.transforms.device import changes_of
from meshrun.runner.transforms.fourier import result_type
from meshrun.runner.transforms.rooms import SETS

# Blocks that a transform takes besides its operand and its result: before and after its axes and exchanges
# on a CPU; of a plan of cuFFT on a GPU, and of a copy that an inverse transform may change.
TEMPORARIES = {"cpu": 3, "cuda": 2}
MESSAGES = 2  # copies of what is exchanged, where GPUs do not reach each other's memory


@dataclass(frozen=True, eq=False)
class SpectralMemory:
    """The memory of a function with Fourier transforms. feeds, kind: as of `memory.StageMemory`."""

    program: SpectralProgram
    feeds: Sequence[int | None]
    kind: str = "cpu"

    @cached_property
    def _layouts(self) -> Layouts:
        return plan_layouts(self.program)

    @cached_property
    def _parts(self) -> dict[int, tuple[SpacePart, StagedProgram]]:
        """The parts and their stages, by number of the step."""
        parts = {n: one for n, one in enumerate(self.program.steps) if isinstance(one, SpacePart)}
        staged = {number: plan_program(part.program) for number, part in parts.items()}
        if self.kind == "cuda":
            staged = {number: prepared_for_kernels(one) for number, one in staged.items()}
        return {number: (parts[number], staged[number]) for number in parts}

    def nbytes(self, cells: Shape) -> int:
        """Return the bytes of a rank. cells: lengths of its block along the axes of space, at least."""
        cells = cells[: len(self.program.space)]
        ranks = -(-math.prod(self.program.space) // max(math.prod(cells), 1))
        total = self._bytes_of_fields(cells) + self._bytes_of_transforms(ranks)

        # The parts, with the arrays of constants that they use and results that are split otherwise.
        for number, (part, staged) in self._parts.items():
            split = self._layouts.parts[number]
            own = slab(part.program.space, split, ranks)
            total += program_bytes(staged, own, ranks, self.kind)
            constants = staged.arrays[len(part.reads) : len(part.program.inputs)]
            total += sum(bytes_of_array(staged, one, own) for one in constants)
            if split or part.program.space != self.program.space:
                for place, output in zip(part.writes, part.program.outputs, strict=True):
                    if place.of_function and output.shape:
                        inner = output.shape[len(own) :]
                        total += math.prod((*own, *inner)) * output.dtype.itemsize

        return total + self._bytes_between(ranks)

    def _bytes_between(self, ranks: int) -> int:
        """Return the bytes of the arrays between parts, each as it is split.

        Arrays of one layout share a block where they are not needed at the same time, as in a run.
        """
        program, total = self.program, 0
        lifetimes = lifetimes_of(program, exchanged_states(program))
        whole = range(len(program.steps))
        held = [
            (whole if place.of_function else lifetimes[place.number], place, split)
            for place, split in self._held()
        ]
        blocks: list[tuple[Hashable, list[range]]] = []
        for needed, place, split in sorted(held, key=lambda one: (one[0].start, one[1].number, one[2])):
            one = (program.inputs if place.of_function else program.shared)[place.number]
            if not one.shape:
                continue
            nbytes = self._bytes_of(place, one.shape, one.dtype, slab(one.shape, split, ranks))
            layout = one.shape, one.dtype, split, nbytes
            for known, users in blocks:
                if known == layout and all(
                    needed.stop <= other.start or other.stop <= needed.start for other in users
                ):
                    users.append(needed)
                    break
            else:
                blocks.append((layout, [needed]))
                total += nbytes
        return total

    def _bytes_of_fields(self, cells: Shape) -> int:
        """Return the bytes of the inputs, twice where a result becomes them, and of the other results."""
        total, space = 0, len(cells)
        for number, one in enumerate(self.program.inputs):
            if one.shape:
                own = (*cells, *one.shape[space:])
                nbytes = self._bytes_of(SharedPlace(number, True), one.shape, one.dtype, own)
                total += (1 + (number in self.feeds)) * nbytes
        for output, feed in zip(self.program.outputs, self.feeds, strict=False):
            if feed is None and output.shape:
                total += math.prod((*cells, *output.shape[space:])) * output.dtype.itemsize
        return total

    def _bytes_of(self, place: SharedPlace, shape: Shape, dtype: np.dtype[Any], own: Shape) -> int:
        """Return the bytes of a block with the halos that parts read. own: lengths without them."""
        widths: list[Extents] = [
            staged.arrays[part.reads.index(place)].widths
            for part, staged in self._parts.values()
            if place in part.reads and shape
        ]
        padded = list(own)
        for axis in range(len(own)):
            low = max((one[axis][0] for one in widths if axis < len(one)), default=0)
            high = max((one[axis][1] for one in widths if axis < len(one)), default=0)
            padded[axis] += low + high
        return math.prod(padded) * dtype.itemsize

    def _held(self) -> set[tuple[SharedPlace, int]]:
        """Return the arrays that the run has besides inputs and results, each with the axis that is split."""
        layouts, program = self._layouts, self.program
        found = {(SharedPlace(number), split) for number, split in layouts.arrays.items()}
        for number, place in layouts.moves(program):
            step = program.steps[number]
            split = 0
            if isinstance(step, SpacePart):
                split = layouts.parts[number]
            elif isinstance(step, TransformStep):
                split = layouts.transforms[number].split
            found.add((place, split))
        return found

    def _bytes_of_transforms(self, ranks: int) -> int:
        """Return the most bytes that a transform or a product takes besides its operand and its result."""
        most = rooms = messages = count = 0
        for number, step in enumerate(self.program.steps):
            if isinstance(step, ProductStep):
                blocks = [self.program.shared[one] for one in (*step.sources, step.target)]
                most = max(most, sum(math.prod(one.shape) * one.dtype.itemsize for one in blocks) // ranks)
            if not isinstance(step, TransformStep):
                continue
            transform, source = self._layouts.transforms[number], self.program.shared[step.source]
            kind = result_type(source.dtype, "") if source.dtype.kind == "f" else source.dtype
            block = -(-max(math.prod(transform.shape), math.prod(transform.result_shape)) // ranks)
            most = max(most, TEMPORARIES[self.kind] * block * kind.itemsize)
            # GPUs have the blocks of their exchanges in memory that they keep.
            if self.kind == "cuda" and ranks > 1 and len(transform.shape) > 1:
                changes = changes_of(transform, source.dtype, ranks, followed=True)
                count = max(count, len(changes))
                rooms = max([rooms, *(one.nbytes for one in changes)])
                messages = max(messages, MESSAGES * rooms)
        return most + SETS * count * rooms + messages


def slab(shape: Shape, split: int, ranks: int) -> Shape:
    """Return the lengths of the largest block of an array that is split along one axis."""
    return tuple(-(-n // ranks) if axis == split else n for axis, n in enumerate(shape))
