"""A Fourier transform of an array that is split along one axis: the same bits on any number of ranks.

Axes are transformed one after the other, in an order that depends on the shape and the split alone. An array
of one axis is transformed as a matrix (`line`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from meshrun.runner.region import Array, Shape
from meshrun.runner.transforms.fourier import Local, carry_out
from meshrun.runner.transforms.line import LINE_EXCHANGES, transform_line
from meshrun.runner.transforms.plan import Real, Redistribution, Transform, TransformPlan, stages_of
from meshrun.runner.world.world import World


@dataclass(frozen=True)
class SplitTransform:
    """A transform without factors.

    shape: of the operand. axes: with `real`, the last one is that of the half. length: of the result along
    that axis, if `real`. split: axis along which the operand is split.
    """

    shape: Shape
    axes: Shape
    real: Real
    inverse: bool
    length: int
    split: int

    @cached_property
    def _stages(self) -> tuple[Transform | Redistribution, ...]:
        """The stages on several ranks; none for an array of one axis."""
        plan = stages_of(self.shape, self.axes, (2,), (self.split,), self.real, self.length)
        stages: list[Transform | Redistribution] = []
        for stage in () if plan is None else plan.stages:
            if isinstance(stage, Redistribution):
                stages.append(stage)
            else:
                stages += [replace(stage, axes=(axis,)) for axis in stage.axes]
        return tuple(stages)

    @property
    def result_shape(self) -> Shape:
        if not self.real:
            return self.shape
        return tuple(self.length if axis == self.axes[-1] else n for axis, n in enumerate(self.shape))

    @cached_property
    def result_split(self) -> int:
        moves = [stage.new for stage in self._stages if isinstance(stage, Redistribution)]
        return moves[-1] if moves else self.split

    @property
    def exchanges(self) -> int:
        """Number of redistributions between several ranks."""
        if not self._stages:
            return LINE_EXCHANGES
        return sum(isinstance(stage, Redistribution) for stage in self._stages)

    def carry_out(self, world: World, block: Array) -> Array:
        """Return this rank's block of the result. Collective. block: of the operand; not changed."""
        norm = "forward" if self.inverse else "backward"
        local = Local(world.xp, self.inverse, self.real, norm, self.length, world.cores)
        if not self._stages:
            return transform_line(world, local, block, self.shape[0], self.length)
        return carry_out(self.plan(world.size), [world], local, block)

    def plan(self, ranks: int) -> TransformPlan:
        """Return the stages on so many ranks; of an array of more than one axis."""
        stages = self._stages
        if ranks == 1:
            stages = tuple(one for one in stages if isinstance(one, Transform))
        return TransformPlan(self.shape, (ranks,), (self.split,), stages)


def best_split(shape: Shape, axes: Sequence[int], real: Real, inverse: bool, length: int) -> int:
    """Return the axis along which an operand is split for the fewest exchanges; of equals, the first."""
    splits = [SplitTransform(shape, tuple(axes), real, inverse, length, axis) for axis in range(len(shape))]
    return min(splits, key=lambda one: one.exchanges).split
