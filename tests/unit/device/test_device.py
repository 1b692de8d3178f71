"""Poison, and the CPU back end's bookkeeping."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import numpy as np
import over_cupy
import pytest

from meshrun.runner.device import cpu
from meshrun.runner.device.api import POISON, poison
from meshrun.runner.device.cpu import CpuBackend
from tests.facts.kept_rows import check_kept_row


def test_values_are_kept_as_they_were() -> None:
    check_kept_row(CpuBackend())


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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the host's clock show these seconds, one after another."""

    def show(*seconds: float) -> None:
        shown = iter(seconds)
        monkeypatch.setattr(cpu, "time", SimpleNamespace(perf_counter=lambda: next(shown)))

    return show


def test_marks_measure_the_time_between_them(clock: Callable[..., None]) -> None:
    clock(3.0, 5.5)
    backend = CpuBackend()
    begin, end = backend.mark(), backend.mark()
    assert backend.elapsed(begin, end) == 2.5


def test_a_copy_rate_is_what_the_quickest_of_three_reads_and_writes(clock: Callable[..., None]) -> None:
    clock(0.0, 1.0, 10.0, 10.5, 20.0, 22.0)
    assert CpuBackend().copy_rate() == 2 * (16 << 20) / 0.5


def test_the_processor_has_the_name_that_linux_gives_it() -> None:
    with open("/proc/cpuinfo") as lines:
        names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    assert CpuBackend().device.name == (names[0] if names else os.uname().machine)


@pytest.mark.parametrize("available", [False, True])
def test_ranges_are_named_where_cupy_can(available: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy without NVTX has in its place a module with nothing but `available`."""
    cupy = MagicMock()
    cupy.cuda.nvtx = MagicMock(spec=["available", *(["RangePush", "RangePop"] if available else [])])
    cupy.cuda.nvtx.available = available
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    over_cupy.forget()
    copies = importlib.import_module("meshrun.runner.device.copy_streams")
    over_cupy.forget()
    with copies.CopyStreams(0, MagicMock()).named("chunk 3"):
        inside = list(cupy.cuda.nvtx.method_calls)
    assert inside == ([call.RangePush("chunk 3")] if available else [])
    assert cupy.cuda.nvtx.method_calls == [*inside, call.RangePop()][: 2 * available]


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex128"])
@pytest.mark.parametrize("count", [2, 10, 40])
def test_arrays_begin_at_different_places_of_their_pages(count: int, dtype: str) -> None:
    backend = CpuBackend()
    arrays = [backend.empty((33, 129), np.dtype(dtype)) for _ in range(count)]
    for number, one in enumerate(arrays):
        one[...] = number
    assert all((one == number).all() and one.flags.carray for number, one in enumerate(arrays))
    places = sorted(one.ctypes.data % cpu.PAGE for one in arrays)
    gaps = np.diff([*places, places[0] + cpu.PAGE])
    assert gaps.min() >= cpu.LINE
    assert gaps.max() <= 3 * cpu.PAGE / count


def test_small_arrays_and_those_without_cells_are_made_too() -> None:
    assert [CpuBackend().empty(shape, np.dtype("f8")).shape for shape in ((0, 5), (), (3,))] == [
        (0, 5),
        (),
        (3,),
    ]
