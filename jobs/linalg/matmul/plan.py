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
from itertools import pairwise
from typing import Literal

from meshrun.runner.arrays.load import stages
from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import bounds, factorizations
from meshrun.runner.report.units import bytes_text, counted
from meshrun.runner.spelling import option

WIDE = 512  # columns of a piece of B from which a product runs at its full rate
# Slabs of B's columns that are gathered. Nothing is multiplied before the first one is there, and a message
# beside a product takes multiprocessors from it, which costs about the time of one tile, however long it is.
# So slabs are twice as wide as the one before, up to a part of all columns: two of them are in memory.
FIRST_SLAB = 1024
SLAB_PART = 8
DEEP = 2048  # length of a panel from which the sums of products run at their full rate
PANELS = 4  # of each rank's block, if they are deep enough: a quarter is sent before the first step
# The same where each CPU's BLAS adds products in place, at its full rate from this length: panels arrive in
# short buffers, so that less memory is touched for the first time.
DEEP_IN_PLACE = 512
PANELS_IN_PLACE = 16
ROWS = 2048  # that a CPU multiplies between two looks at messages; fewer pack the second factor too often
TILE = 1024  # rows and columns of the chunks of an output that has chunks
RANKS_MOST = 1 << 17
Algorithm = Literal["ring", "summa"]


@dataclass(frozen=True)
class MatmulProblem:
    """rows, length, columns: of A and B. factor, sums, result: bytes of a value of the stored factors, of the
    sums and of the result. converted: bytes of a value of A and of B in their files; 0: as it is stored, and
    read straight into place. rounded: bytes of a converted value beside both. queued: whether the device
    computes while results are written. in_place: whether the ranks are CPUs whose BLAS adds products to
    sums."""

    rows: int
    length: int
    columns: int
    factor: int
    sums: int
    result: int
    converted: tuple[int, int] = (0, 0)
    rounded: int = 0
    queued: bool = False
    in_place: bool = False


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

    @property
    def messages(self) -> int:
        """Messages that each rank receives, and sends."""
        if self.algorithm == "ring":
            return self.turns * self.pieces * (self.ranks - 1)
        return sum(self.panels - self.panels // lines for lines in self.grid)

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


def panels_of(length: int, groups: int, *, in_place: bool) -> int:
    """Return into how many panels `length` is cut: as many in each of the `groups` that ranks hold."""
    deep, most = (DEEP_IN_PLACE, PANELS_IN_PLACE) if in_place else (DEEP, PANELS)
    return groups * max(min(most, length // (groups * deep)), 1)


def slab_cuts(columns: int) -> list[tuple[int, int]]:
    """Return start and stop of each slab of columns that is gathered; one without columns if there are none.

    All but the last stop are multiples of WIDE.
    """
    most = max(-(-columns // SLAB_PART // WIDE) * WIDE, FIRST_SLAB)
    cuts, start, width = list[tuple[int, int]](), 0, FIRST_SLAB
    while not cuts or start < columns:
        cuts.append((start, min(start + width, columns)))
        start, width = cuts[-1][1], min(2 * width, most)
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
    memory = problem.factor * length * (rows + len(ring_buffers(ranks, turns, pieces)) * wide)
    memory += _conversion(problem, (rows, length), (length, wide))
    memory += (problem.sums * ring_results(problem, ranks, turns, pieces) + _rounded(problem)) * rows * wide
    received = turns * problem.factor * length * (problem.columns - problem.columns // ranks)
    return MatmulLayout("ring", (ranks, 1), turns, pieces, 0, unit, received if ranks > 1 else 0, memory)


def ring_buffers(ranks: int, turns: int, pieces: int) -> list[str]:
    """Return the names of a rank's buffers for pieces of B: of the one that is multiplied, that arrives, and
    that is read for the next round."""
    arrives = ["arriving"] if ranks > 1 else []
    return ["multiplied", *arrives, *(["read"] if turns * pieces > 1 else [])]


def ring_results(problem: MatmulProblem, ranks: int, turns: int, pieces: int) -> int:
    """Return the number of a rank's buffers for parts of C: two if one is written while the next is
    computed."""
    return 2 if problem.queued and ranks * turns * pieces > 1 else 1


def _rounded(problem: MatmulProblem) -> int:
    """Return the bytes of a value of sums in the result's dtype, beside the sums."""
    return problem.result if problem.result != problem.sums else 0


def _conversion(problem: MatmulProblem, *parts: tuple[int, int]) -> int:
    """Return the bytes in which parts of A and of B, of (rows, columns), are converted, piece by piece."""
    pieces = [
        columns * stages(rows, rows * columns * read)[0][1] if read * rows * columns else 0
        for (rows, columns), read in zip(parts, problem.converted, strict=True)
    ]
    kept = sum(cells * read for cells, read in zip(pieces, problem.converted, strict=True))
    return kept + problem.rounded * max(pieces)


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
        panels = panels_of(length, groups, in_place=problem.in_place)
        deep = -(-length // panels)
        high, wide = longest(rows, down, unit[0]), longest(columns, across, unit[1])
        of_a, of_b = high * _held(length, groups, across)[0], wide * _held(length, groups, down)[0]
        arriving = 2 * deep * ((high if across > 1 else 0) + (wide if down > 1 else 0))
        memory = problem.factor * (of_a + of_b + arriving)
        memory += _conversion(problem, (high, deep), (deep, wide))
        memory += (problem.sums + _rounded(problem)) * high * wide
        if panels > 1 and not (problem.queued or problem.in_place):
            memory += problem.sums * min(high, ROWS) * wide
        received = problem.factor * _received(problem, down, across, unit)
        if memory <= room:
            yield MatmulLayout("summa", (down, across), 1, 1, panels, unit, received, memory)


def _held(length: int, groups: int, parts: int) -> list[int]:
    """Return the length of the panels that the first ... last of `parts` ranks of a row or column hold."""
    starts = [bounds(length, groups, part * (groups // parts))[0] for part in range(parts)]
    return [stop - start for start, stop in pairwise([*starts, length])]


def _received(problem: MatmulProblem, down: int, across: int, unit: tuple[int, int]) -> int:
    """Return the values of A and B that the rank with most receives, on a grid of down x across ranks."""
    length, groups = problem.length, math.lcm(down, across)

    def kinds(lines: int, cells: int, unit: int) -> set[tuple[int, int]]:
        """Return the different pairs of cells of C and of length that ranks of a line of the grid have."""
        cuts = [cut(cells, lines, line, unit) for line in range(lines)]
        held = _held(length, groups, lines)
        return {(stop - start, here) for (start, stop), here in zip(cuts, held, strict=True)}

    return max(
        (length - of_a) * high + (length - of_b) * wide
        for high, of_b in kinds(down, problem.rows, unit[0])
        for wide, of_a in kinds(across, problem.columns, unit[1])
    )


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
            f"the product does not fit the memory of {counted(ranks, 'rank')}"
            + ("" if algorithm == "auto" else f" by {option('algorithm', algorithm)}"),
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
        return f"{option('algorithm', 'ring')}, which passes pieces through"
    enough = enough_ranks(problem, room, algorithm, unit, ranks)
    return (
        f"{enough} ranks" if enough else f"more memory: {option('host_memory')} or {option('device_memory')}"
    )


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
