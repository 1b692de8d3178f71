"""Rows of the numbers of steps: what kernels read that were bound or recorded before."""

from __future__ import annotations

import numpy as np
import pytest

from meshrun.runner.compiler.trace.graph import Graph
from meshrun.runner.compiler.trace.timed import StepTape, nodes_of
from meshrun.runner.errors import UserError
from meshrun.runner.steps.step_scalars import AHEAD, StepScalars


def squares(last: int) -> StepTape:
    """The square of the step, which cannot be computed after the last one."""
    tape = StepTape()
    nodes_of(Graph(), tape.call(0, lambda step: step * step if step <= last else 1 / 0, tape.step))
    return tape


def test_a_window_holds_the_rows_of_the_next_steps() -> None:
    scalars = StepScalars(squares(1000), np, 8)
    bound, recorded = scalars.rows(0, 1), [scalars.rows(first, 2) for first in (0, 2, 4)]
    assert scalars.rows(2, 2) is recorded[1]
    for step in (0, 1, 5, AHEAD - 1, AHEAD, 3, 700):  # also back, as a run does that was resumed
        scalars.provide(step, 1, 1001)
        assert bound.tolist() == [[step * step]]
    for step in (0, 6, AHEAD - 3):
        scalars.provide(step, 6, 1001)
        assert np.concatenate(recorded).ravel().tolist() == [n * n for n in range(step, step + 6)]


def test_no_row_is_made_of_a_step_that_is_not_taken() -> None:
    scalars = StepScalars(squares(9), np, 4)
    for step in range(10):
        scalars.provide(step, 1, 10)
    with pytest.raises(UserError, match="step 10 cannot be computed"):
        scalars.provide(10, 1, 11)
