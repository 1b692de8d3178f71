"""Give a function fewer rows of a chunk at once where a device's memory does not hold its arrays.

Chunks stay what all ranks have agreed on: what a rank reads, writes, hands over and notes in the journal.
Only the calls on one rank become smaller: no other rank needs to know of it, and a run can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from meshrun.runner.device.api import Backend, Shortage
from meshrun.runner.errors import RunError
from meshrun.runner.spelling import option

T = TypeVar("T")


@dataclass
class Halving:
    """The most rows of a call: all of a chunk, until one does not fit; then half as many, from then on.

    name, least: of what a call computes, and the fewest rows of it. rows: the most rows of a call; None:
    whole chunks. shortages: a sentence for each thing that did not fit.
    """

    backend: Backend
    name: str
    least: int
    rows: int | None = None
    shortages: list[str] = field(default_factory=list)

    def compute(self, rows: int, restore: Callable[[], None], call: Callable[[int], T]) -> T:
        """Return `call(most)` for the largest `most`, the rows of a call, for which the memory suffices.

        rows: of the chunk. restore: makes the inputs anew, which a call that failed may have changed.
        Raises RunError, with the bytes, if not even the fewest rows fit; other failures propagate.
        """
        most = rows if self.rows is None else min(self.rows, rows)
        first = most
        while True:
            try:
                found = call(most)
                break
            except BaseException as failure:  # a user's function may raise anything
                shortage = self.backend.shortage(failure)
                if shortage is None:
                    raise
            # Here, the arrays of the failed call are free: its traceback, which held them, is gone.
            if most <= self.least:
                raise does_not_fit(self._rows(most), shortage)
            most = halved(most, self.least)
            self.backend.synchronize()
            restore()
        if most < first:
            if self.rows is None:  # else it has been said
                self.shortages.append(
                    f"{self.name} gets {self._rows(most)} at once instead of {first}: "
                    f"its arrays do not fit the device memory ({shortage})"
                )
            self.rows = most
        return found

    def _rows(self, rows: int) -> str:
        return "a row" if rows == 1 else f"{rows} rows"


def halved(rows: int, least: int) -> int:
    """Return half of `rows`, as a multiple of `least`, at least `least`."""
    return max(rows // 2 // least, 1) * least


def does_not_fit(what: str, shortage: Shortage) -> RunError:
    """Build the error for a part that cannot be made smaller."""
    return RunError(
        f"{what} and what the function allocates for it do not fit the device memory",
        got=str(shortage),
        hint=f"{option('depth', 1)}, a smaller {option('device_memory')}, which leaves more to the "
        f"function, or {option('grid')}",
    )


def chunk_does_not_fit(shortage: Shortage) -> RunError:
    """Build the error for a chunk whose buffers do not fit, although they did when chunks were planned."""
    return RunError(
        "the buffers of one chunk do not fit the device memory",
        got=str(shortage),
        hint=f"a smaller {option('chunk_bytes')}, or a GPU that no other process uses",
    )


def pieces(rows: int, most: int, least: int, unit: int) -> list[tuple[int, int]]:
    """Cut `rows` rows into the fewest nearly equal (first, last) of at most `most` rows.

    unit: each but the last piece has a multiple of so many rows. least: if it is more than a unit, no piece
    is shorter, unless all rows are; pieces may then be longer than `most`, by less than `least`.
    """
    units = -(-rows // unit)
    allowed = rows // least if least > unit else units
    count = max(min(-(-units // max(most // unit, 1)), allowed), 1)
    edges = [min(units * number // count * unit, rows) for number in range(count + 1)]
    return list(pairwise(edges))
