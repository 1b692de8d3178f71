"""Poison, and the CPU back end's bookkeeping."""

from __future__ import annotations

import importlib
import sys
from unittest.mock import MagicMock

import numpy as np
import pytest

from runner.backend import POISON, poison
from runner.backend.cpu import CpuBackend

DTYPES = ("bool", "uint8", "uint16", "int32", "int64", "float16", "float32", "float64", "complex64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("part", [np.s_[:, :], np.s_[:, :1], np.s_[::2, 1:], np.s_[:0]])
def test_poison_reaches_every_cell_of_any_view_and_no_other(dtype: str, part: object) -> None:
    array = np.zeros((4, 3), dtype)
    poison(array[part])
    inside = np.zeros((4, 3), bool)
    inside[part] = True
    if array.dtype.kind in "fc":
        poisoned = np.isnan(array)
    else:
        poisoned = (array[..., np.newaxis].view(np.uint8) == (1 if dtype == "bool" else POISON)).all(axis=-1)
    np.testing.assert_array_equal(poisoned, inside)


def test_marks_measure_the_time_between_them() -> None:
    backend = CpuBackend()
    begin, end = backend.mark(), backend.mark()
    assert 0 <= backend.elapsed(begin, end) < 10


def test_a_copy_rate_is_positive_and_the_processor_has_a_name() -> None:
    backend = CpuBackend()
    assert backend.copy_rate() > 0
    assert backend.device.name


@pytest.mark.parametrize("available", [False, True])
def test_ranges_are_named_where_cupy_can(available: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy without NVTX has in its place a module with nothing but `available`."""
    cupy = MagicMock()
    cupy.cuda.nvtx = MagicMock(spec=["available", *(["RangePush", "RangePop"] if available else [])])
    cupy.cuda.nvtx.available = available
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.delitem(sys.modules, "runner.backend.cuda_lanes", raising=False)
    lanes = importlib.import_module("runner.backend.cuda_lanes")
    monkeypatch.delitem(sys.modules, "runner.backend.cuda_lanes")  # nobody else's: it has this CuPy
    with lanes.CudaLanes(0, MagicMock()).named("chunk 3"):
        inside = len(cupy.cuda.nvtx.method_calls)
    assert (inside, len(cupy.cuda.nvtx.method_calls)) == ((1, 2) if available else (0, 0))
