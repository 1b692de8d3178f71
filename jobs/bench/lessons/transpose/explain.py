"""What the lesson `transpose` says about its figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.bench.lessons.protocol import Stage, rate


@dataclass(frozen=True)
class Timed:
    """seconds: by way, None where there is no such way. shape: (rows, columns) of the matrix."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    seconds: dict[str, float | None]

    @property
    def nbytes(self) -> int:
        """Read plus written."""
        return 2 * self.shape[0] * self.shape[1] * self.dtype.itemsize

    def rate(self, way: str) -> float | None:
        """GB/s."""
        seconds = self.seconds[way]
        return None if seconds is None else rate(self.nbytes, seconds)

    def of_copy(self, way: str) -> float | None:
        """The share of a plain copy's rate."""
        own, copy = self.rate(way), self.rate("copy")
        return own / copy if own is not None and copy else None

    def __str__(self) -> str:
        return f"{self.dtype.name}, {self.shape[0]} x {self.shape[1]}"

    @property
    def aligned(self) -> bool:
        """Whether every row of it and of its transpose can begin at a multiple of 16 bytes."""
        return all(length * self.dtype.itemsize % 16 == 0 for length in self.shape)


def paragraphs(stage: Stage, timed: Sequence[Timed]) -> list[str]:
    """About the largest matrix, then about all."""
    if not timed:
        return []
    largest = max(timed, key=lambda one: one.nbytes)
    own = {
        way: share for way in largest.seconds if way != "copy" and (share := largest.of_copy(way)) is not None
    }
    said = []
    if own:
        best = max(own, key=lambda way: own[way])
        shares = ", ".join(f"{way} {100 * share:.0f} %" for way, share in own.items())
        said.append(
            f"A transpose moves the bytes of a copy, so a copy is the measure: of its "
            f"{largest.rate('copy'):.0f} GB/s ({largest}) there remain, {shares}. The best here is {best}."
        )
    if stage.box is None:
        return said + _on_cpu(timed)
    said += _on_gpu(timed)
    cache = stage.box.gpus[stage.gpu].cache
    small = [str(one) for one in timed if one.nbytes <= cache]
    if small:
        said.append(
            f"{'; '.join(small)}: matrix and result fit the L2 cache of {cache >> 20} MiB, so these rates, "
            "of a copy too, are of the cache and of starting a kernel, not of the memory."
        )
    if any("cuBLAS geam" in one.seconds and one.seconds["cuBLAS geam"] is None for one in timed):
        said.append("cuBLAS has no geam for float16.")
    return said


def _gain(timed: Sequence[Timed], before: str, after: str) -> float | None:
    """How many times the one way's rate is the other's: the median of all matrices."""
    gains = [b / a for one in timed if (a := one.rate(before)) and (b := one.rate(after))]
    return statistics.median(gains) if gains else None


def _on_cpu(timed: Sequence[Timed]) -> list[str]:
    gain = _gain(timed, "strided", "blocked")
    if gain is None:
        return []
    return [
        "Of a matrix and its transpose, only one can be gone through along its rows: along the columns of "
        "the other, each element is in another cache line, whose next element is needed a row later. In "
        "blocks of 128 x 128 these lines are few enough to stay in the cache until then. Here the rate in "
        f"blocks is {gain:.2f} times the strided one (median of all matrices)."
    ]


def _on_gpu(timed: Sequence[Timed]) -> list[str]:
    said = []
    if (tile := _gain(timed, "naive", "tiled")) is not None:
        said.append(
            "The naive kernel reads 32 elements of a row at a time and writes each to another row: single "
            "elements, where the memory moves sectors of 32 bytes. A tile in shared memory makes its stores "
            "as wide as its loads; the tile's rows are 33 elements apart, so that a column's 32 elements lie "
            f"in 32 different banks. Its rate is {tile:.2f} times the naive one (median of all matrices)."
        )
    wide = [one for one in timed if one.aligned]
    if (vectors := _gain(wide, "tiled", "vectorised")) is not None:
        said.append(
            "The vectorised kernel moves 16 bytes an access, all loads of a thread under way at once, and "
            "has a swizzle in place of the 33rd column. Its rate is "
            f"{vectors:.2f} times the tile's (median of the matrices whose rows and columns are multiples of "
            "16 bytes; of others it moves single elements)."
        )
    return said
