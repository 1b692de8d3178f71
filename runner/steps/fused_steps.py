"""How many time steps of blocks one kernel takes, and what lies beside the rows that it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshrun.runner.compiler.cuda.steps.layout import Axis
from meshrun.runner.plan.steps import read_widths
from meshrun.runner.plan.task import Task
from meshrun.runner.system.compiler import NotCompiled

if TYPE_CHECKING:
    from meshrun.runner.steps.blocks import StepBlocks

Rows = tuple[int, int]


def prepare(blocks: StepBlocks[Any], steps: int) -> NotCompiled | None:
    """Compile the kernel for so many steps of these blocks; return why it does not compile."""
    kernel = blocks.task.kernel
    if kernel is None or blocks.region.size == 0:
        return None
    arrays = [state[place].interior for state in (blocks.arrays, blocks.spare) for place in blocks.fed]
    try:
        kernel.prepare_steps(steps, arrays, sends=blocks.sending() is not None)
    except NotCompiled as reason:
        return reason
    return None


def passes(steps: int, most: int) -> dict[int, int]:
    """Return the steps of the fewest kernels, the longest first, and how many kernels take so many.

    They are as equal as can be, as each number has a kernel.
    """
    count = -(-steps // most)
    few, more = divmod(steps, max(count, 1))
    found = {few + 1: more, few: count - more}
    return {taken: kernels for taken, kernels in found.items() if kernels}


def most_fused_steps(task: Task) -> int:
    """Return how many steps of the task one kernel takes; 1 if there is no such kernel."""
    return 1 if task.kernel is None or not takes_several(task) else task.kernel.most_steps


def takes_several(task: Task) -> bool:
    """Return whether a kernel can take several steps of the task."""
    return None not in task.job.feeds and not _mirrors_from_afar(task)


def fuses_bands(task: Task) -> bool:
    """Return whether a kernel can take several steps of a band: its halo must be as wide as these steps."""
    kernel, grid = task.kernel, task.partition.grid
    return kernel is not None and kernel.takes_rows and len(grid) > 1 and grid[0] > 1


def _mirrors_from_afar(task: Task) -> bool:
    """Return whether cells beyond the array may equal cells that are not beside a block.

    Such a block is smaller than its halo of one step, which is wider, or is filled further, on one side than
    on the other.
    """
    if task.boundary not in ("reflect", "mirror"):
        return False
    return any(
        parts > 1 and low != high and length // parts < max(low, high) + (task.boundary == "mirror")
        for widths in (task.widths, *read_widths(task, 1))
        for length, parts, (low, high) in zip(task.shape, task.partition.grid, widths, strict=False)
    )


def axes_of(blocks: StepBlocks[Any], rows: Rows, valid: int) -> list[Axis]:
    """Return what lies beside some rows along each of the array's axes.

    rows: first and last + 1, counted from the first own row; all own rows unless axis 0 is cut. valid: steps
    for which the rows' halo is wide enough. Only cells along cut axes are beside them.
    """
    layout, task = blocks.layouts[0], blocks.task
    wraps, found = task.boundary == "wrap", []
    for axis, (length, is_cut, width) in enumerate(zip(task.shape, blocks.cut, layout.widths, strict=False)):
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
