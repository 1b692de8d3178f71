"""Kernels of several time steps: compiled for blocks, and what lies beside the rows that they compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshrun.runner.compiler.cuda.steps.layout import Axis
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
