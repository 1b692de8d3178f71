"""Transforms of lines by NumPy, in place of cuFFT's plans, and what a transform of an array is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from meshrun.runner.transforms.plan import Real


def by_numpy(patch: pytest.MonkeyPatch, before: Callable[[], None] = lambda: None) -> None:
    """Let NumPy transform in place of cuFFT. before: is called before each batch."""

    def batches(*layout: Any) -> Callable[[Any, Any], None]:
        execute = line_batches(*layout)

        def call(source: Any, out: Any) -> None:
            before()
            execute(source, out)

        return call

    for name, made in (("cufft", {"line_batches": batches}), ("fourier_lines", {"line_plan": nothing})):
        patch.setitem(sys.modules, f"meshrun.runner.device.{name}", SimpleNamespace(**made))


def operand_and_result(shape: Any, axes: Any, real: Real, dtype: str) -> tuple[Any, Any, int]:
    rng = np.random.default_rng(0)
    cells = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    length = shape[axes[-1]]
    if real == "forward":
        return cells.real.astype(dtype), np.fft.rfftn(cells.real, axes=axes), length // 2 + 1
    if real == "inverse":
        lengths = [shape[axis] for axis in axes]
        lengths[-1] = max(2 * (length - 1), 1)
        back = np.fft.irfftn(cells, lengths, axes=axes, norm="forward")
        return cells.astype(np.result_type(dtype, "c8")), back, lengths[-1]
    return cells.astype(np.result_type(dtype, "c8")), np.fft.fftn(cells, axes=axes), 0


def line_batches(
    length: int, cells: Any, strides: Any, batch: int, distances: Any, dtypes: Any, inverse: bool
) -> Any:
    """As of runner.device.cufft, by NumPy; a source of half a spectrum is spoilt, as cuFFT may do."""

    def execute(source: Any, out: Any) -> None:
        lines = [
            as_strided(array, (batch, n), (distance * array.itemsize, stride * array.itemsize))
            for array, n, stride, distance in zip((source, out), cells, strides, distances, strict=True)
        ]
        assert (source.dtype, out.dtype) == dtypes
        given = lines[0].copy()
        if dtypes[1].kind == "f":
            lines[0][...] = np.nan
            lines[1][...] = np.fft.irfft(given, length, axis=1, norm="forward")
        elif dtypes[0].kind == "f":
            lines[1][...] = np.fft.rfft(given, axis=1)
        else:
            lines[1][...] = (
                np.fft.ifft(given, axis=1, norm="forward") if inverse else np.fft.fft(given, axis=1)
            )

    return execute


def nothing(*arguments: Any) -> None:
    """As line_plan of runner.device.fourier_lines, where cuFFT is to be taken."""
