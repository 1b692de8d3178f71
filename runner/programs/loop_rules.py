"""How a run watches the loops that a condition ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshrun.runner.options.run_options import MOST_ITERATIONS

# The line of a loop, the iterations that it has done, and what makes a text of what its condition compares.
OnIteration = Callable[[int, int, Callable[[], str]], None]


def nothing_shown(line: int, count: int, compared: Callable[[], str]) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class LoopRules:
    """How a run watches the loops that a condition ends.

    most_iterations: of a loop. check_finite: whether a NaN in a condition ends the run. progress: called
    after each iteration of which the condition is known.
    """

    most_iterations: int = MOST_ITERATIONS
    check_finite: bool = False
    progress: OnIteration = nothing_shown


USUAL = LoopRules()
