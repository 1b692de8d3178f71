"""Kernels of several time steps: compiled for blocks, and how many of which length take some steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
