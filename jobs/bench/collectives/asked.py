"""What the command's words ask for, beyond nccl-tests' settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jobs.bench.collectives.config import Settings


@dataclass(frozen=True)
class Asked:
    """operations: in turn. names, wide: more lines, more columns. output_file: of -J. split, split_mask: as
    nccl-tests' variables say them. min_busbw, link_rate: GB/s. spread, matrix, matrix_scale: of alltoallv.
    pairs: of pingpong."""

    operations: tuple[str, ...]
    settings: Settings
    names: bool = False
    wide: bool = False
    output_file: str | None = None
    json_lines: str | None = None
    plot: str | None = None
    split: str | None = None
    split_mask: str | None = None
    min_busbw: float | None = None
    spread: float = 1.0
    matrix: Path | None = None
    matrix_scale: float = 1.0
    link_rate: float | None = None
    pairs: str = "ends"

    @property
    def wire(self) -> bool:
        """Whether the links' rates are asked for."""
        return self.wide or any((self.output_file, self.json_lines, self.plot))

    @property
    def detail(self) -> bool:
        """Whether each call's beginning is stamped, for which Python stands between the calls."""
        return self.names or self.wide or self.json_lines is not None or self.settings.per_iter_timing
