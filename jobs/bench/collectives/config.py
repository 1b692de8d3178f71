"""What is to be measured: nccl-tests' options under their long names, with its defaults (2.19.6)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import runner

MIB = 1 << 20
UNITS = {"": 1, "k": 1 << 10, "m": MIB, "g": 1 << 30}


@dataclass(frozen=True)
class Settings:
    """Sizes in bytes. datatypes, reductions: what -d and -o say, with `all` written out. root: -1 for all.

    timeout: seconds without progress; 0 for no limit. cta_policy: None for the library's own.
    """

    minbytes: int = 32 * MIB
    maxbytes: int = 32 * MIB
    stepbytes: int = MIB
    stepfactor: int = 1
    iters: int = 20
    warmup_iters: int = 1
    agg_iters: int = 1
    run_cycles: int = 1
    average: int = 1
    check: int = 1
    reductions: tuple[str, ...] = ("sum",)
    datatypes: tuple[str, ...] = ("float",)
    root: int = 0
    blocking: int = 0
    stream_null: bool = False
    timeout: int = 0
    cudagraph: int = 0
    report_cputime: bool = False
    report_timestamps: bool = False
    local_register: int = 0
    cta_policy: int | None = None
    memory: bool = False
    unalign: int = 0
    per_iter_timing: bool = False
    per_iter_skip: int = 0

    def sizes(self) -> Sequence[int]:
        """The sizes measured, in order."""
        if self.stepfactor == 1:
            return range(self.minbytes, self.maxbytes + 1, self.stepbytes)
        return self._growing(self.stepfactor)

    def warmup_sizes(self) -> Sequence[int]:
        """The sizes warmed up: always doubling, whatever the steps are."""
        return self._growing(2)

    def _growing(self, factor: int) -> list[int]:
        sizes, size = [], self.minbytes
        while size <= self.maxbytes:
            sizes.append(size)
            size *= factor
        return sizes


def size_text(size: int) -> str:
    """Bytes as people write them, where that is exact: "32M"."""
    unit = next((unit for unit in reversed(UNITS) if size % UNITS[unit] == 0 and size), "")
    return f"{size // UNITS[unit]}{unit.upper()}"


def parse_size(text: str) -> int:
    """Bytes of "8", "32M", "1.5g", "1e6": K, M, G are powers of 1024. Raises UserError."""
    match = re.fullmatch(r"\s*((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([kmgKMG]?)\s*", text)
    size = float(match[1]) * UNITS[match[2].lower()] if match else math.inf
    if math.isinf(size):
        raise runner.UserError(
            "a size does not parse",
            got=repr(text),
            expected="a number, or one with K, M or G (powers of 1024)",
        )
    return int(size)
