"""The memory that a layout says is what a run allocates."""

from __future__ import annotations

import threading
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stream_cases import run_on

from meshrun.jobs.linalg.matmul import job, plan
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.report.units import bytes_text

SHAPE = (480, 600, 720)


def multiplied(
    folder: Path, ranks: int, algorithm: str, dtypes: tuple[str, str], monkeypatch: Any, **options: Any
) -> tuple[plan.MatmulLayout, dict[str, Any]]:
    """The layout that was used, and the record."""
    for name, shape, dtype in zip("ab", (SHAPE[:2], SHAPE[1:]), dtypes, strict=True):
        np.save(folder / f"{name}.npy", np.ones(shape, dtype))
    layouts: list[plan.MatmulLayout] = []
    choose = plan.choose

    def chosen(*given: Any) -> Any:
        found = choose(*given)
        layouts.append(found[0])
        return found

    monkeypatch.setattr(plan, "choose", chosen)
    files = [folder / "a.npy", folder / "b.npy"], [folder / "c.npy"]
    record = run_on(ranks, job.matmul, *files, parameters={"algorithm": algorithm}, **options)
    assert record["result"]["memory"] == f"{bytes_text(layouts[0].memory)} a rank"
    return layouts[0], record


@pytest.mark.parametrize(
    ("algorithm", "dtypes", "options"),
    [
        ("ring", ("f4", "f4"), {}),
        ("ring", ("f4", "f8"), {}),  # A is converted
        ("ring", ("f4", "f4"), {"host_memory": 1_500_000}),  # in turns
        ("summa", ("f2", "f2"), {}),  # both are converted, and sums are rounded
        ("summa", ("i8", "i8"), {}),
    ],
)
def test_the_memory_is_what_one_rank_allocates(
    tmp_path: Path,
    algorithm: str,
    dtypes: tuple[str, str],
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that Python and NumPy allocate; reading short rows takes a buffer of 256 KiB."""
    for name in ("DEEP", "DEEP_IN_PLACE"):
        monkeypatch.setattr(plan, name, 30)  # several panels, as of large products
    measured: list[int] = []
    open_products, recorded = job.open_products, job._record

    def begins(*given: Any) -> Any:
        measured.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.reset_peak()
        return open_products(*given)

    def ends(*given: Any) -> Any:
        measured.append(tracemalloc.get_traced_memory()[1])
        return recorded(*given)

    monkeypatch.setattr(job, "open_products", begins)
    monkeypatch.setattr(job, "_record", ends)
    tracemalloc.start()
    try:
        layout, _ = multiplied(tmp_path, 1, algorithm, dtypes, monkeypatch, **options)
    finally:
        tracemalloc.stop()
    before, most = measured
    assert 0.95 * layout.memory <= most - before <= layout.memory + 400_000
    assert layout.memory <= options.get("host_memory", layout.memory)


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
@pytest.mark.parametrize(
    ("algorithm", "options"), [("ring", {}), ("ring", {"host_memory": 800_000}), ("summa", {})]
)
def test_the_memory_is_what_each_of_several_ranks_allocates(
    tmp_path: Path, ranks: int, algorithm: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the device's allocator: ranks that are threads copy their messages, which MPI's do not."""
    monkeypatch.setattr(plan, "DEEP_IN_PLACE", 30)
    allocated: Counter[int] = Counter()
    empty = CpuBackend.empty

    def counted(self: CpuBackend, shape: Any, dtype: Any) -> Any:
        array = empty(self, shape, dtype)
        allocated[threading.get_ident()] += array.nbytes
        return array

    monkeypatch.setattr(CpuBackend, "empty", counted)
    layout, _ = multiplied(tmp_path, ranks, algorithm, ("f4", "f4"), monkeypatch, **options)
    assert max(allocated.values()) == layout.memory
