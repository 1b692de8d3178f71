"""Several time steps of blocks by one kernel, which keeps what is between two steps on chip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runner.fuse.compiled import HostKernel
from runner.fuse.step_kernel import Axis
from runner.plan.steps import step_pieces
from runner.plan.task import Task
from runner.region import Array

if TYPE_CHECKING:
    from runner.pipeline.steps.blocks import StepBlocks

Rows = tuple[int, int]


def take_rows(blocks: StepBlocks, rows: Rows, steps: int) -> None:
    """Compute some of the own rows after `steps` steps, from the blocks into the spare blocks.

    rows: first and last + 1, counted from the first own row; all of them unless axis 0 is cut. The halo must
    be valid along the cut axes, as wide as so many steps need. Only own cells are written; along an axis that
    is not cut no halo is read.
    """
    kernel: Any = blocks.task.kernel
    first, last = rows
    if first >= last or blocks.region.size == 0:
        return
    inputs = [_rows(blocks.own(place), rows) for place in range(len(blocks.layouts))]
    outs = [_rows(blocks.spare_own(feed), rows) for feed in blocks.feeds if feed is not None]
    kernel.take_steps(steps, inputs, outs, axes_of(blocks, rows))


def take_in_cache(blocks: StepBlocks, steps: int, more: int = 0) -> None:
    """Take steps on the host, from the blocks into the spare blocks; both are written in turn.

    more: steps that follow without an exchange.

    The halo must be valid: along the cut axes as wide as so many steps need, along the others of one step.
    Along these it is valid in the results, too.
    """
    task, kernel = blocks.task, blocks.task.kernel
    assert isinstance(kernel, HostKernel)
    if blocks.region.size == 0:
        return
    axes = kernel.kernel.program.axes
    own = blocks.region.start[:axes]
    boxes = []
    for remaining in reversed(range(more, more + steps)):
        (piece,) = step_pieces(task, blocks.region, remaining, blocks.cut, apart=False)
        corners = (piece.place.start[:axes], piece.place.stop[:axes])
        low, high = (tuple(a - b for a, b in zip(corner, own, strict=True)) for corner in corners)
        boxes.append((low, high))
    states = blocks.both()
    for state in states:
        for layout, block in zip(blocks.layouts, state, strict=True):
            layout.fill_outside(block)
    firsts = [[part.start for part in layout.core[:axes]] for layout in blocks.layouts]
    copies = [blocks.edge_cells(place) if place in blocks.fed else [] for place in range(len(states[0]))]
    kernel.kernel.steps(states, firsts, boxes, blocks.feeds, copies, kernel.widths)
    if steps % 2 == 0:  # the last step wrote the blocks
        blocks.swap()


def prepare(blocks: StepBlocks, steps: int) -> None:
    """Compile the kernel for so many steps of these blocks."""
    kernel = blocks.task.kernel
    if kernel is not None and blocks.region.size:
        fed = [blocks.own(place) for place in blocks.fed]
        kernel.prepare_steps(steps, [*fed, *(blocks.spare_own(place) for place in blocks.fed)])


def passes(steps: int, most: int) -> list[int]:
    """Return the steps of each of the fewest kernels: as equal as can be, as each number has a kernel."""
    count = -(-steps // most)
    return [steps // count + (number < steps % count) for number in range(count)]


def most_fused_steps(task: Task) -> int:
    """Return how many steps of the task one kernel takes; 1 if there is no such kernel."""
    if task.kernel is None or None in task.job.feeds or _mirrors_from_afar(task):
        return 1
    return task.kernel.most_steps


def _mirrors_from_afar(task: Task) -> bool:
    """Return whether cells beyond the array may equal cells that are not beside a block.

    Such a block is smaller than its halo of one step, which is wider on one side than on the other.
    """
    if task.boundary not in ("reflect", "mirror"):
        return False
    axes = zip(task.shape, task.partition.grid, task.widths, strict=True)
    return any(
        parts > 1 and low != high and length // parts < max(low, high) + (task.boundary == "mirror")
        for length, parts, (low, high) in axes
    )


def axes_of(blocks: StepBlocks, rows: Rows) -> list[Axis]:
    """Return what lies beside own rows along each of the array's axes."""
    layout, shape = blocks.layouts[0], blocks.task.shape
    found = []
    for axis, (length, is_cut, width) in enumerate(zip(shape, blocks.cut, layout.widths, strict=False)):
        start, stop = layout.region.start[axis], layout.region.stop[axis]
        before, after = width if is_cut else (0, 0)
        if blocks.task.boundary != "wrap":
            before, after = min(before, start), min(after, length - stop)
        if axis == 0 and is_cut:
            before, after = before + rows[0], after + stop - start - rows[1]
            start, stop = start + rows[0], start + rows[1]
        found.append(Axis(stop - start, start, length, before, after))
    return found


def _rows(own: Array, rows: Rows) -> Array:
    return own[rows[0] : rows[1]]
