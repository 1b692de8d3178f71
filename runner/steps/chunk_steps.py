"""Several time steps on one chunk of a streamed array: a wide halo instead of exchanges."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from meshrun.runner.arrays.block_layout import BlockLayout, PaddedBlock
from meshrun.runner.arrays.finite import NotFinite, not_finite
from meshrun.runner.compiler.decide import not_compiled
from meshrun.runner.device.api import poison
from meshrun.runner.plan.task import Task
from meshrun.runner.region import Array, Region
from meshrun.runner.steps.blocks import StepBlocks
from meshrun.runner.steps.fused_steps import passes, prepare
from meshrun.runner.steps.loop import largest_change
from meshrun.runner.system.compiler import NotCompiled
from meshrun.runner.world.world import World


class ChunkSteps(StepBlocks[PaddedBlock]):
    """Take `wide.steps` steps of `task` on chunks, which were read with the halo of `wide`.

    observed: the fed inputs of whose cells in each chunk to note the largest change in the last step, in
    `changes`; by name.
    finite: after how many of the steps, 0 or all, to look for cells of fed inputs that are not finite; the
    first ones are in `wrong`, by this number.
    must_fuse: fail if a kernel of several steps does not compile, instead of taking single steps
    (`single_reason`: why). done: steps before the first of them.
    """

    def __init__(
        self,
        world: World,
        task: Task,
        wide: Task,
        *,
        observed: Collection[str] = (),
        finite: Collection[int] = (),
        must_fuse: bool = False,
        done: int = 0,
    ) -> None:
        self._step = self._done = done
        self.world, self.task, self.wide, self._observed = world, task, wide, observed
        self._must_fuse, self.single_reason = must_fuse, ""
        self.changes: list[float] = []
        self._finite, self.wrong = finite, dict[int, NotFinite]()
        self.phases = world.new_phases()  # not reported: the engine records the chunk's time
        self._memory: dict[int, Array] = {}
        self._scalar_rows = self.scalar_rows(wide.steps)

    def take(self, region: Region, blocks: Sequence[Array]) -> list[Array]:
        """Take the steps of a chunk; return its results, views that are valid until the next call.

        region: the chunk, in the first input's indices. blocks: padded with the wide halo; they are changed.
        """
        task = self.task
        layouts = []
        for place, one in enumerate(self.wide.fields):
            part, cut = task.field_region(place, region), _cut(len(one.shape))
            layouts.append(BlockLayout(part, one.shape, cut, one.widths, *task.beyond(place)))
        self.lay_out(layouts, _cut(len(task.shape)))
        self.arrays = [PaddedBlock(*one) for one in zip(layouts, blocks, strict=True)]
        self.note_inputs_that_stay()
        self._look(region, 0)
        self.spare = {
            place: PaddedBlock(layouts[place], self._like(place, blocks[place])) for place in self.fed
        }
        self._finals = self._unfed_results()
        single = self.fused_steps == 1 or self.single_reason
        advance = self._one_by_one if single else self._several
        before: list[Array] = []
        looked_at = [place for place in self.fed if self.task.fields[place].name in self._observed]
        if looked_at:
            advance(self.wide.steps, 1)
            before = [self.own(place).copy() for place in looked_at]
            advance(1, 0)
        else:
            advance(self.wide.steps, 0)
        self.changes += [
            largest_change(self.own(place), old) for place, old in zip(looked_at, before, strict=True)
        ]
        self.check_inputs_that_stay()
        self._look(region, self.wide.steps)
        return [self.result(number) for number in range(len(self.feeds))]

    def current_step(self) -> int:
        """Return the number of the step that is computed, from 0 on."""
        return self._step

    def _look(self, region: Region, steps: int) -> None:
        """Look for cells of a chunk that are not finite after so many steps, if that is wanted."""
        for place in self.fed if steps in self._finite and steps not in self.wrong else ():
            start = self.task.field_region(place, region).start
            found = not_finite(self.world.xp, self.task.fields[place].name, self.own(place), start)
            if found is not None:
                self.wrong.setdefault(steps, found)

    def _one_by_one(self, first: int, last: int) -> None:
        """Take steps: `first` are to be taken before, `last` after them."""
        for remaining in reversed(range(last, first)):
            self._begin_steps(remaining + 1, 1)
            pieces = self._pieces_of(remaining)
            for piece in pieces:
                self._compute(piece, remaining == 0, copied=len(pieces) > 1)
            if remaining:
                self._fill_outside([self.spare[place] for place in self.fed])
            self.swap()

    def _several(self, first: int, last: int) -> None:
        """Take the same steps, several by one kernel. Rows begin at any address: aligning them is a copy."""
        kernel, cycles = self.task.kernel, passes(first - last, self.fused_steps)
        assert kernel is not None
        for steps in cycles:
            failure = prepare(self, steps)
            if failure is not None:
                self._take_single_steps(failure)
                return self._one_by_one(first, last)
        left = first
        for steps, kernels in cycles.items():
            for _ in range(kernels):
                self._begin_steps(left, steps)
                left -= steps
                kernel.advance(self, steps, left)
                self.swap()
        return None

    def _begin_steps(self, left: int, steps: int) -> None:
        """Note the number of the next step, and have kernels read those of so many. left: all to take."""
        last = self._done + self.wide.steps
        self._step = last - left
        if self._scalar_rows is not None:
            self._scalar_rows.provide(self._step, steps, last)
            self.scalars = self._scalar_rows.rows(0, steps)
        self.set_timed_boundary()

    def _take_single_steps(self, failure: NotCompiled) -> None:
        if self._must_fuse:
            raise not_compiled(self.task, failure.reason, failure.line)
        self.single_reason = failure.reason
        self._fill_outside([self.arrays[place] for place in self.fed])

    def _like(self, place: int, block: Array) -> Array:
        """Return poisoned memory for the next step of a block; the same for all chunks."""
        if place not in self._memory or self._memory[place].size < block.size:
            self._memory[place] = self.world.backend.empty((block.size,), block.dtype)
        spare = self._memory[place][: block.size].reshape(block.shape)
        poison(spare)
        return spare


def _cut(axes: int) -> list[bool]:
    """Return whether chunks are only part of each axis."""
    return [axis == 0 for axis in range(axes)]
