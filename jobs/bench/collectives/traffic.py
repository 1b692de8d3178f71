"""Bytes between ranks in alltoallv: a pattern by distance, or a matrix from a file.

The rules, and the environment variables of the options, are those of nccl-tests 2.19.6 (src/alltoallv.cu).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.errors import UserError

ALIGNMENT = 16  # bytes


@dataclass(frozen=True)
class Traffic:
    """spread: 0.0 sends the same to all, 1.0 in proportion to the distance in rank order. matrix: bytes from
    rank i to rank j in row i, multiples of 16; overrides the pattern."""

    spread: float = 1.0
    matrix: tuple[tuple[int, ...], ...] | None = None

    def elements(self, total: int, itemsize: int, ranks: int) -> tuple[tuple[int, ...], ...]:
        """Return elements from rank i to rank j in row i, if each rank sends about `total` bytes."""
        if self.matrix is not None:
            return tuple(tuple(cell // itemsize for cell in row[:ranks]) for row in self.matrix[:ranks])
        by_distance = [self._bytes(distance, total, ranks) // itemsize for distance in range(ranks)]
        return tuple(tuple(by_distance[(j - i) % ranks] for j in range(ranks)) for i in range(ranks))

    def _bytes(self, distance: int, total: int, ranks: int) -> int:
        if ranks == 1:
            return total & ~(ALIGNMENT - 1)
        even = total / ranks
        graded = distance * total / (ranks * (ranks - 1) // 2)
        return int((1.0 - self.spread) * even + self.spread * graded) & ~(ALIGNMENT - 1)


def read_matrix(path: Path, scale: float, ranks: int) -> tuple[tuple[int, ...], ...]:
    """Read a square matrix of bytes from a text file; scale it and round down to 16. Raises UserError."""
    try:
        rows = [
            [float(word) for word in line.split()] for line in path.read_text().splitlines() if line.strip()
        ]
    except (OSError, ValueError) as reason:
        raise UserError(f"the traffic matrix {path} cannot be read", got=reason) from reason
    if not rows or any(len(row) != len(rows) for row in rows) or len(rows) < ranks:
        widths = sorted({len(row) for row in rows}) or [0]
        raise UserError(
            f"the traffic matrix {path} does not fit",
            got=f"{len(rows)} x {' or '.join(map(str, widths))}",
            expected=f"square, at least {ranks} x {ranks}",
        )
    # Written this way because comparisons with NaN are false.
    if not all(cell >= 0 and cell * scale <= 2**62 for row in rows for cell in row):
        raise UserError(f"the traffic matrix {path} holds a value that is not a number of bytes")
    return tuple(tuple(int(cell * scale) & ~(ALIGNMENT - 1) for cell in row) for row in rows)
