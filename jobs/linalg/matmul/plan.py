"""How a product is split over ranks: grids, pieces, bytes and memory, and the choice of the algorithm.

Pure arithmetic. C (rows, columns) is A (rows, length) times B (length, columns).

ring: each rank holds rows of A and C. B's columns are cut into pieces, which the ranks pass on in a ring:
each rank multiplies its rows of A with every piece. What does not fit the memory is passed through in several
turns: of rows of A, each with all of B, and of pieces of B.

summa: the ranks are a grid; each holds one block of A, B and C. The length is cut into panels; for each, the
ranks of a row of the grid get the panel of A that one of them holds, the ranks of a column the panel of B. In
a step, each rank needs another panel, so that each sends and receives one panel of A and one of B (a shifted
SUMMA: R. van de Geijn and J. Watts, "SUMMA: scalable universal matrix multiplication algorithm", Concurrency
9, 1997; the shift is L. E. Cannon's, 1969).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from runner.errors import UserError
from runner.plan.grid import bounds, factorizations
from runner.report.units import bytes_text

WIDE = 512  # columns of a piece of B from which a product runs at its full rate
DEEP = 2048  # length of a panel from which the sums of products run at their full rate
PANELS = (
    4  # of each rank's block, where they are deep enough: a quarter of a block is sent before the first step
)
TILE = 1024  # rows and columns of the chunks of an output that has chunks
RANKS_MOST = 1 << 17
Algorithm = Literal["ring", "summa"]


@dataclass(frozen=True)
class MatmulProblem:
    """rows, length, columns: of A and B. factor, sums, result: bytes of a value of the stored factors, of the
    sums and of the result. read: bytes of a value of A and B as they are read."""

    rows: int
    length: int
    columns: int
    factor: int
    sums: int
    result: int
    read: int


@dataclass(frozen=True)
class MatmulLayout:
    """One way to multiply on `grid[0] * grid[1]` ranks.

    turns: parts of each rank's rows of A, multiplied one after the other. pieces: of each rank's columns of
    B, likewise (ring). panels: of the length (summa). unit: rows and columns of which parts of C are
    multiples. received: bytes that the rank with most receives. memory: bytes of arrays on that rank.
    """

    algorithm: Algorithm
    grid: tuple[int, int]
    turns: int
    pieces: int
    panels: int
    unit: tuple[int, int]
    received: int
    memory: int

    @property
    def ranks(self) -> int:
        return self.grid[0] * self.grid[1]

    def describe(self) -> str:
        """Return the algorithm in a few words."""
        across = "x".join(map(str, self.grid))
        if self.algorithm == "summa":
            return f"summa on {across} ranks, {self.panels} panels"
        turns = "" if self.turns == 1 else f", rows of A in {self.turns} turns"
        return f"ring of {self.ranks}, B in {self.ranks * self.pieces} pieces{turns}"


def cut(length: int, parts: int, index: int, unit: int = 1) -> tuple[int, int]:
    """Return start and stop of part `index` of `length`; all but the last stop are multiples of `unit`."""
    start, stop = bounds(-(-length // unit), parts, index)
    return min(start * unit, length), min(stop * unit, length)


def longest(length: int, parts: int, unit: int = 1) -> int:
    """Return the length of the longest part of `cut`."""
    return max(cut(length, parts, 0, unit)[1], 0)


def panel_cuts(length: int, grid: tuple[int, int], panels: int) -> list[tuple[int, int]]:
    """Return start and stop of each panel. The panels of a rank's part of the length are whole."""
    groups = math.lcm(*grid)
    cuts = []
    for group in range(groups):
        start, stop = bounds(length, groups, group)
        inside = (bounds(stop - start, panels // groups, index) for index in range(panels // groups))
        cuts += [(start + first, start + last) for first, last in inside]
    return cuts


def chunks_of(problem: MatmulProblem, ranks: int) -> tuple[int, int]:
    """Return the shape of the chunks of an output that has chunks, so that each rank can write whole ones."""
    rows = min(TILE, max(-(-problem.rows // ranks), 1))
    return rows, max(min(TILE, problem.columns), 1)


def _ring(problem: MatmulProblem, ranks: int, turns: int, pieces: int, unit: tuple[int, int]) -> MatmulLayout:
    mine = longest(problem.rows, ranks, unit[0])
    rows = longest(mine, turns, unit[0])
    wide = longest(problem.columns, ranks * pieces, unit[1])
    length = problem.length
    piece, buffers = length * wide, 2 if ranks > 1 or pieces * turns > 1 else 1
    staging = (problem.read if problem.read != problem.factor else 0) * max(rows * length, piece)
    memory = problem.factor * (rows * length + (buffers + 1) * piece) + staging
    memory += 2 * (problem.sums + (problem.result if problem.result != problem.sums else 0)) * rows * wide
    received = turns * problem.factor * length * (problem.columns - problem.columns // ranks)
    return MatmulLayout("ring", (ranks, 1), turns, pieces, 0, unit, received if ranks > 1 else 0, memory)


def ring(problem: MatmulProblem, ranks: int, room: int, unit: tuple[int, int]) -> MatmulLayout | None:
    """Return the ring with the fewest turns that fits `room` bytes on each rank; None if none does.

    Pieces are narrower than WIDE only where more turns do not help.
    """
    widest = max(-(-problem.columns // unit[1] // ranks), 1)
    deepest = max(-(-problem.rows // unit[0] // ranks), 1)
    best: tuple[int, MatmulLayout] | None = None
    for turns in _doubling(deepest):
        layouts = (_ring(problem, ranks, turns, pieces, unit) for pieces in _doubling(widest))
        layout = next((one for one in layouts if one.memory <= room), None)
        if layout is None:
            continue
        wide = longest(problem.columns, ranks * layout.pieces, unit[1])
        if best is None or wide > best[0]:
            best = wide, layout
        if wide >= min(WIDE, problem.columns // ranks):
            break
    return None if best is None else best[1]


def _doubling(most: int) -> Iterator[int]:
    number = 1
    while number < most:
        yield number
        number *= 2
    yield most


def summas(problem: MatmulProblem, ranks: int, room: int, unit: tuple[int, int]) -> Iterator[MatmulLayout]:
    """Yield the grids of ranks whose blocks fit `room` bytes on each rank."""
    rows, length, columns = problem.rows, problem.length, problem.columns
    for down, across in factorizations(ranks, 2):
        groups = math.lcm(down, across)
        panels = groups * max(min(PANELS, length // (groups * DEEP)), 1)
        deep = -(-length // panels)
        high, wide = longest(rows, down, unit[0]), longest(columns, across, unit[1])
        of_a, of_b = high * -(-length // across), wide * -(-length // down)
        staging = max(of_a, of_b) * problem.read if problem.read != problem.factor else 0
        memory = problem.factor * (of_a + of_b + 2 * deep * (high + wide)) + staging
        memory += (problem.sums + (problem.result if problem.result != problem.sums else 0)) * high * wide
        received = problem.factor * ((length - length // across) * high + (length - length // down) * wide)
        if memory <= room:
            yield MatmulLayout("summa", (down, across), 1, 1, panels, unit, received, memory)


def candidates(problem: MatmulProblem, ranks: int, room: int, unit: tuple[int, int]) -> list[MatmulLayout]:
    """Return the ring and the best grid for `ranks` ranks with `room` bytes each, best first.

    Best is what receives the fewest bytes; of equals the ring, whose sums are not split.
    """
    one = ring(problem, ranks, room, unit)
    grids = sorted(summas(problem, ranks, room, unit), key=lambda layout: (layout.received, layout.grid))
    found = [layout for layout in (one, *grids[:1]) if layout is not None]
    return sorted(found, key=lambda layout: (layout.received, layout.algorithm))


def choose(
    problem: MatmulProblem, ranks: int, room: int, algorithm: str, unit: tuple[int, int] = (1, 1)
) -> tuple[MatmulLayout, MatmulLayout | None]:
    """Return the layout to use, and the best one of the other algorithm, if that fits.

    room: bytes of arrays that each rank may have. algorithm: auto, ring or summa. Raises UserError, with how
    many ranks would do, if no layout fits.
    """
    found = candidates(problem, ranks, room, unit)
    wanted = [layout for layout in found if algorithm in ("auto", layout.algorithm)]
    if not wanted:
        raise UserError(
            f"the product does not fit the memory of {ranks} rank{'s' if ranks > 1 else ''}"
            + ("" if algorithm == "auto" else f" by --algorithm {algorithm}"),
            got=f"{bytes_text(_least(problem, ranks, algorithm, unit))} of arrays on a rank",
            expected=f"at most {bytes_text(room)}",
            hint=_remedy(problem, ranks, room, algorithm, unit),
            everywhere=True,
        )
    other = next((layout for layout in found if layout.algorithm != wanted[0].algorithm), None)
    return wanted[0], other


def _least(problem: MatmulProblem, ranks: int, algorithm: str, unit: tuple[int, int]) -> int:
    """Return the least bytes of a rank's arrays."""
    unlimited = 1 << 100
    found = [layout.memory for layout in summas(problem, ranks, unlimited, unit) if algorithm != "ring"]
    if algorithm != "summa":
        turns = max(-(-problem.rows // unit[0] // ranks), 1)
        pieces = max(-(-problem.columns // unit[1] // ranks), 1)
        found.append(_ring(problem, ranks, turns, pieces, unit).memory)
    return min(found)


def _remedy(problem: MatmulProblem, ranks: int, room: int, algorithm: str, unit: tuple[int, int]) -> str:
    """Return how many ranks would do, or another way."""
    if algorithm == "summa" and ring(problem, ranks, room, unit):
        return "--algorithm ring, which passes pieces through"
    enough = enough_ranks(problem, room, algorithm, unit, ranks)
    return f"{enough} ranks" if enough else "more memory: --host-memory or --device-memory"


def enough_ranks(
    problem: MatmulProblem, room: int, algorithm: str = "auto", unit: tuple[int, int] = (1, 1), least: int = 1
) -> int | None:
    """Return a number of ranks, `least` times a power of two, whose memory is enough; None if none is."""
    ranks = least
    while ranks <= RANKS_MOST:
        if any(algorithm in ("auto", one.algorithm) for one in candidates(problem, ranks, room, unit)):
            return ranks
        ranks *= 2
    return None
