"""What a rank has done with distributed arrays, so that ranks that do different things find out.

Each rank notes the operations that its program calls. Before ranks exchange anything for one, they compare
what they have noted: the first difference is an error on every rank, and no rank waits for another.
"""

from __future__ import annotations

import zlib
from collections import deque
from types import CodeType

import numpy as np

from meshrun.runner.comm.api import Control
from meshrun.runner.errors import UserError
from meshrun.runner.world.agreement.caller import callers_line, told_line
from meshrun.runner.world.agreement.waits import Waits

END = "the end of the world's `with` block"
MOST_KEPT = 1000  # operations, of which the first that differs can be named


class Operations:
    """The operations of this rank's program, in order. It compares them with those of other ranks.

    waits: for values, in the current run.
    """

    def __init__(self, control: Control) -> None:
        self.waits = Waits()
        self._control, self._count, self._digest = control, 0, 0
        self._recent: deque[tuple[str, CodeType | None, int]] = deque(maxlen=MOST_KEPT)
        self._extremes = np.empty(4, np.int64)

    @property
    def is_needed(self) -> bool:
        """Whether there is another rank to compare with."""
        return self._control.size > 1

    def note(self, operation: str) -> None:
        """Note an operation. operation: what must be the same on every rank, such as "add of f8 (4, 4)"."""
        self._count += 1
        self._digest = zlib.crc32(operation.encode(), self._digest)
        self._recent.append((operation, *callers_line()))

    def agree(self) -> None:
        """Compare with all ranks. Collective. Raises UserError on every rank if they have differed."""
        if self._control.size == 1:
            return
        # The largest of a number and of its negative: all ranks have the same one if these are opposite.
        self._extremes[:] = self._count, self._digest, -self._count, -self._digest
        self._control.all_reduce(self._extremes, "max")
        count, digest, least_count, least_digest = self._extremes.tolist()
        if count == -least_count and digest == -least_digest:
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
        recent = [(operation, told_line(code, line)) for operation, code, line in self._recent]
        every = self._control.allgather((self._count - len(recent), recent))
        start = max(first for first, _ in every)
        kept = [recent[start - first :] for first, recent in every]
        for place in range(max(map(len, kept))):
            at = [recent[place] if place < len(recent) else ("no further operation", "") for recent in kept]
            for rank, (operation, line) in enumerate(at):
                if operation != at[0][0]:
                    return "".join(at[0]), operation + line, rank
        return "other operations", f"others, more than {MOST_KEPT:,} operations ago", len(kept) - 1
