"""A convolution kernel as the user gives it: a text such as "1 2 1; 2 4 2; 1 2 1", or a .npy file."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.spelling import option

EXACT = 2**53  # float64 holds every whole number up to here


@dataclass(frozen=True, eq=False)
class Weights:
    """values: float64, read-only, in the orientation given. divisor: of the sum of products."""

    values: np.ndarray[Any, Any]
    divisor: float

    @property
    def widths(self) -> list[tuple[int, int]]:
        """Cells before and after a result that it takes, per axis: as scipy.ndimage at origin 0."""
        return [(size - 1 - size // 2, size // 2) for size in self.values.shape]

    @property
    def whole(self) -> bool:
        return bool(np.all(self.values == np.rint(self.values)))

    @property
    def total(self) -> float:
        """Sum of the absolute weights."""
        return float(np.abs(self.values).sum())

    @property
    def taps(self) -> list[tuple[tuple[int, ...], float]]:
        """(place in the padded neighbourhood, weight) in C order; weights of 0 left out, unless all are."""
        flipped = np.flip(self.values)
        places = [place for place in np.ndindex(flipped.shape) if flipped[place] != 0]
        return [(place, float(flipped[place])) for place in places or [(0,) * flipped.ndim]]


def read(kernel: str, normalize: bool) -> Weights:
    """The weights that `kernel` says; divided by their sum when `normalize`."""
    changed = 0
    if kernel.endswith(".npy"):
        try:
            changed = Path(kernel).stat().st_mtime_ns
        except OSError as reason:
            raise _unusable(kernel, f"{reason.strerror}") from reason
    return _read(kernel, normalize, changed)


@functools.lru_cache
def _read(kernel: str, normalize: bool, changed: int) -> Weights:
    values = _load(kernel) if kernel.endswith(".npy") else _parse(kernel)
    if values.size == 0 or values.ndim == 0:
        raise _unusable(kernel, "no numbers")
    if not np.isfinite(values).all():
        raise _unusable(kernel, "a weight that is no finite number")
    values.setflags(write=False)
    total = float(values.sum()) if normalize else 1.0
    if total == 0:
        raise UserError("the kernel's weights sum to 0 and cannot be normalized", got=repr(kernel))
    return Weights(values, total)


def _parse(text: str) -> np.ndarray[Any, Any]:
    """Rows end with ";", numbers with spaces or commas; a text without ";" is a kernel of one axis."""
    rows = [row.replace(",", " ").split() for row in text.strip().removesuffix(";").split(";")]
    try:
        numbers = [[float(word) for word in row] for row in rows]
    except ValueError as reason:
        raise _unusable(text, str(reason)) from reason
    if len({len(row) for row in numbers}) != 1:
        raise _unusable(text, "rows of different lengths")
    return np.array(numbers if ";" in text else numbers[0], np.float64)


def _load(path: str) -> np.ndarray[Any, Any]:
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as reason:
        raise _unusable(path, str(reason)) from reason
    if not isinstance(values, np.ndarray):
        values.close()
        raise _unusable(path, "several arrays (.npz)")
    if values.dtype.kind not in "biuf":
        raise _unusable(path, f"elements of type {values.dtype}")
    return np.array(values, np.float64, order="C")


def _unusable(kernel: str, why: str) -> UserError:
    return UserError(
        f"the kernel {kernel!r} cannot be used",
        why=why,
        expected="numbers in rows, or a .npy file of real numbers",
        hint=option("kernel", "1 2 1; 2 4 2; 1 2 1"),
    )
