"""What a rank has done with distributed arrays, so that ranks that do different things find out.

Each rank notes the operations that its program calls. Before ranks exchange anything for one, they compare
what they have noted: the first difference is an error on every rank, and no rank waits for another.
"""

from __future__ import annotations

import sys
import zlib
from collections import deque
from types import FrameType

from meshrun.runner.comm.api import Control
from meshrun.runner.errors import UserError

END = "the end of the world's `with` block"
MOST_KEPT = 1000  # operations, of which the first that differs can be named


class Operations:
    """The operations of this rank's program, in order. It compares them with those of other ranks."""

    def __init__(self, control: Control) -> None:
        self._control, self._count, self._digest = control, 0, 0
        self._recent: deque[tuple[str, str]] = deque(maxlen=MOST_KEPT)

    @property
    def is_needed(self) -> bool:
        """Whether there is another rank to compare with."""
        return self._control.size > 1

    def note(self, operation: str) -> None:
        """Note an operation. operation: what must be the same on every rank, such as "add of f8 (4, 4)"."""
        self._count += 1
        self._digest = zlib.crc32(operation.encode(), self._digest)
        self._recent.append((operation, callers_line()))

    def agree(self) -> None:
        """Compare with all ranks. Collective. Raises UserError on every rank if they have differed."""
        if self._control.size == 1:
            return
        known = self._control.allgather((self._count, self._digest))
        if all(one == known[0] for one in known):
            return
        first, other, rank = self._first_difference()
        raise UserError(
            "the ranks call different operations on distributed arrays",
            got=f"{first} on rank 0, {other} on rank {rank}",
            expected="the same calls in the same order on every rank",
            hint="move operations on distributed arrays out of `if world.rank == 0:`; one rank may print the "
            "numbers that they return",
            everywhere=True,
        )

    def _first_difference(self) -> tuple[str, str, int]:
        """Return the first operations that differ, of rank 0 and of another, and that one's rank."""
        every = self._control.allgather((self._count - len(self._recent), list(self._recent)))
        start = max(first for first, _ in every)
        kept = [recent[start - first :] for first, recent in every]
        for place in range(max(map(len, kept))):
            at = [recent[place] if place < len(recent) else ("no further operation", "") for recent in kept]
            for rank, (operation, line) in enumerate(at):
                if operation != at[0][0]:
                    return "".join(at[0]), operation + line, rank
        return "other operations", f"others, more than {MOST_KEPT:,} operations ago", len(kept) - 1


def callers_line() -> str:
    """Return " in FILE, line N" of the program that called meshrun; "" if there is none."""
    frame = callers_frame()
    return "" if frame is None else f" in {frame.f_code.co_filename}, line {frame.f_lineno}"


def callers_frame() -> FrameType | None:
    """Return the frame of the program that called meshrun; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in ("meshrun", "numpy", "contextlib"):
            return frame
        frame = frame.f_back
    return None
