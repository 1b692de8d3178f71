"""Lines of a function that compute a stage beyond an array's edges, and lines that read it."""

from __future__ import annotations

from meshrun.runner.compiler.result_type import hide_output
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.plan.task import Task


def axes_with_edges(task: Task) -> tuple[int, ...]:
    """Return the axes whose edges do not meet, of a function of blocks that may have stages; else none."""
    is_map = task.job.kind == "map" and not task.job.whole
    if not is_map or max(map(max, task.widths)) < 2:
        return ()
    widths = enumerate(task.widths)
    return tuple(axis for axis, width in widths if width != (0, 0) and not task.wraps_along(axis))


def stage_lines(task: Task) -> list[int] | None:
    """Return the lines of a function that compute a stage beyond the array's edges, and those that read it.

    Cells of a first stage beyond an edge are not made by the boundary, but computed from cells that are: that
    is the user's scheme if opposite edges meet. None for a function that cannot be traced.
    """
    if not axes_with_edges(task):
        return []
    from meshrun.runner.compiler.traced import trace_of

    try:
        with hide_output(failures=False):
            stages = trace_of(task).stages
    except NotTraceable:
        return None
    return sorted({line for pair in stages for line in pair if line})
