"""Along which axis each part of a function with Fourier transforms is split: chosen without arrays.

A transform leaves its result split along another axis than its operand. A part works on results where they
are, and the inverse transform brings them back: nothing is redistributed between two parts that agree. The
choice depends on shapes alone, not on the number of ranks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from meshrun.runner.compiler.whole.spaces.parts import (
    LoopStep,
    ProductStep,
    SharedPlace,
    SpacePart,
    SpectralProgram,
    TransformStep,
)
from meshrun.runner.region import Shape
from meshrun.runner.transforms.plan import Real
from meshrun.runner.transforms.split import SplitTransform, best_split

REAL: dict[str, Real] = {"complex": "", "forward": "forward", "inverse": "inverse"}


@dataclass(frozen=True)
class Layouts:
    """parts: of each part, by number of the step, the axis along which it is split. transforms: of each
    transform, by number of the step, how it is carried out. arrays: of each shared array, by number, the axis
    along which it is written."""

    parts: dict[int, int]
    transforms: dict[int, SplitTransform]
    arrays: dict[int, int]

    def moves(self, program: SpectralProgram) -> list[tuple[int, SharedPlace]]:
        """Return what a step reads that is split along another axis: number of the step, and the array."""
        found = []
        for number, step in enumerate(program.steps):
            if isinstance(step, SpacePart):
                for place, one in zip(step.reads, step.program.inputs, strict=False):
                    split = 0 if place.of_function else self.arrays.get(place.number)
                    if one.shape and split != self.parts[number]:
                        found.append((number, place))
            elif isinstance(step, LoopStep):
                continue
            elif isinstance(step, ProductStep):
                found += [(number, SharedPlace(one)) for one in step.sources if self.arrays[one]]
            elif self.arrays[step.source] != self.transforms[number].split:
                found.append((number, SharedPlace(step.source)))
        return found


def plan_layouts(program: SpectralProgram) -> Layouts:
    """Return the axes along which parts and arrays are split. The function's arrays are along axis 0."""
    layouts = Layouts({}, {}, {})
    readers = {step.source: step for step in program.transforms[::-1]}
    for number, step in enumerate(program.steps):
        if isinstance(step, LoopStep):
            for one in step.state:
                layouts.arrays[one.found] = 0 if one.initial is None else layouts.arrays.get(one.initial, 0)
            continue
        if isinstance(step, TransformStep):
            split = layouts.arrays[step.source]
            layouts.transforms[number] = _transform(program, step, split)
            layouts.arrays[step.target] = layouts.transforms[number].result_split
            continue
        if isinstance(step, ProductStep):
            layouts.arrays[step.target] = 0
            continue
        # Where the results are that it reads; or where the transforms of what it writes begin.
        shared = [place.number for place in step.reads if not place.of_function]
        reads = Counter(layouts.arrays[one] for one in shared if one in layouts.arrays)
        following = [
            readers[one.number] for one in step.writes if not one.of_function and one.number in readers
        ]
        if reads:
            split = reads.most_common(1)[0][0]
        elif following:
            first = _transform(program, following[0], 0)
            split = best_split(first.shape, first.axes, first.real, first.inverse, first.length)
        else:
            split = 0
        layouts.parts[number] = split
        for place in step.writes:
            if not place.of_function and program.shared[place.number].shape:
                layouts.arrays[place.number] = split
    return layouts


def _transform(program: SpectralProgram, step: TransformStep, split: int) -> SplitTransform:
    one, shape = step.transform, program.shared[step.source].shape
    return SplitTransform(shape, one.axes, REAL[one.kind], one.inverse, one.length, split)


def slab_grid(shape: Shape, split: int, ranks: int) -> Shape:
    """Return the number of blocks along each axis."""
    return tuple(ranks if axis == split else 1 for axis in range(len(shape)))
