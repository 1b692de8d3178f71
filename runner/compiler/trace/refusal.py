"""Why a function cannot be traced."""

from __future__ import annotations

from typing import Any

from meshrun.runner.region import Shape


class NotTraceable(Exception):
    """Why a function cannot become one kernel.

    line: of the user's file; 0 if unknown. hint: what to write instead. shorter: if that is the reason, by
    how many cells the result is shorter than the own cells, per grid axis; negative if it is longer. whole:
    if that is the reason, what takes all cells along grid axes, or certain ones, and these axes. tape: what
    had been computed of the step until then (`timed.StepTape`).
    """

    def __init__(
        self,
        reason: str,
        hint: str | None = None,
        shorter: Shape = (),
        whole: tuple[str, tuple[int, ...]] = ("", ()),
    ) -> None:
        super().__init__(reason)
        self.reason, self.hint, self.shorter, self.whole, self.line = reason, hint, shorter, whole, 0
        self.tape: Any = None
