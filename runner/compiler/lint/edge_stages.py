"""Lines of a function that compute a stage beyond an array's edges, and lines that read it."""

from __future__ import annotations

from meshrun.runner.compiler.result_type import hide_output
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.plan.task import Task


def stage_lines(task: Task) -> list[int]:
    """Return the lines of a function that compute a stage beyond the array's edges, and those that read it.

    Cells of a first stage beyond an edge are not made by the boundary, but computed from cells that are: that
    is the user's scheme if opposite edges meet. A function that cannot be traced has none.
    """
    if (
        all(task.wraps_along(axis) for axis, width in enumerate(task.widths) if width != (0, 0))
        or max(map(max, task.widths)) < 2
    ):
        return []
    from meshrun.runner.compiler.traced import trace_of

    try:
        with hide_output(failures=False):
            stages = trace_of(task).stages
    except NotTraceable:
        return []
    return sorted({line for pair in stages for line in pair if line})
