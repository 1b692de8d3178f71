"""Copies inside the host's memory, which CPUs measure."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshrun import World
from meshrun.jobs.bench.copy import host
from meshrun.jobs.bench.copy.buffers import buffers_needed, fitting_size
from meshrun.jobs.bench.copy.cases import BY_NAME, CASES, MemoryPlace
from meshrun.jobs.bench.copy.measure import CaseResult, CopySettings
from meshrun.jobs.measure import timers
from meshrun.runner.errors import UserError

Ranks = Callable[..., list[Any]]
SETTINGS = CopySettings(size=1 << 12, copies=3, samples=4)


def measured(on_ranks: Ranks, ranks: int, settings: CopySettings = SETTINGS) -> list[CaseResult]:
    return on_ranks(ranks, lambda world: host.measure(world.control, settings, lambda where: None))


def test_every_rank_has_a_column_and_all_agree(on_ranks: Ranks) -> None:
    results = measured(on_ranks, 3)
    assert results[0] == results[1] == results[2]
    assert results[0].gpus == 3
    assert [[len(row) for row in results[0].matrix(number)] for number in (0, 1)] == [[3], [3]]
    assert all(value is not None and value > 0 for value in results[0].matrix(1)[0])
    assert [len(cell.samples) for cell in results[0].cells] == [4] * 3
    assert results[0].wrong == ()


def test_memory_in_huge_pages(on_ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(host, "huge_array", lambda size: made.append(size) or np.zeros(size, np.uint8))
    measured(on_ranks, 2)
    assert made == []
    (result, _) = measured(on_ranks, 2, replace(SETTINGS, huge_pages=True))
    assert made == [1 << 12] * 4
    assert result.wrong == ()


def test_rates_are_bytes_of_all_timed_copies(on_ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 0.5)
    monkeypatch.setattr(timers.time, "perf_counter", lambda: next(clock))
    (result,) = measured(on_ranks, 1)
    assert result.matrix(0) == [[pytest.approx(3 * 4096 / 0.5 / 1e9)]]
    assert result.matrix(1) == result.matrix(0)


def test_one_at_a_time_is_one_at_a_time(on_ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = [], []
    seconds = host._seconds

    def watched(*arguments: Any) -> float:
        running.append(1)
        most.append(len(running))
        taken = seconds(*arguments)
        running.pop()
        return taken

    monkeypatch.setattr(host, "_seconds", watched)
    measured(on_ranks, 3, CopySettings(size=1 << 20, copies=4, samples=1))
    assert most[:3] == [1, 1, 1]


def test_a_copy_that_goes_wrong_is_named(on_ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(target: Any, source: Any) -> None:
        np.copyto(target, source)
        target[801] ^= 2

    monkeypatch.setattr(host, "copy", spoiled)
    results = measured(on_ranks, 2)
    assert results[0] == results[1]
    assert len(results[0].wrong) == 16  # two ranks, four samples, alone and together
    assert results[0].wrong[0].startswith("host_local_copy, rank 0 of the host: byte 800 of the target: got ")
    assert "1 wrong element " in results[0].wrong[0]
    unchecked = CopySettings(size=1 << 12, copies=3, samples=4, check=False)
    assert measured(on_ranks, 2, unchecked)[0].wrong == ()


def test_what_cases_need() -> None:
    up, peer = BY_NAME["host_to_device_memcpy_ce"], BY_NAME["device_to_device_bidirectional_memcpy_read_ce"]
    assert buffers_needed([up], 2) == {
        MemoryPlace(kind, gpu): 1 for kind in ("host", "gpu") for gpu in range(2)
    }
    assert buffers_needed([peer], 2) == {MemoryPlace("gpu", 0): 2, MemoryPlace("gpu", 1): 2}
    # The GPU that receives from all others holds a buffer for each.
    assert buffers_needed([BY_NAME["all_to_one_write_ce"]], 4)[MemoryPlace("gpu", 3)] == 3
    # A measured buffer and two of the double size that interfere.
    assert (
        buffers_needed([BY_NAME["all_to_host_bidirectional_memcpy_ce"]], 4)[MemoryPlace("host", 1)]
        == 1 + 2 * 2
    )
    # Memory is kept from case to case: 7 for all_to_one, 2 x 2 for interference.
    assert buffers_needed(CASES, 8) == {
        MemoryPlace(kind, gpu): count for kind, count in (("gpu", 11), ("host", 5)) for gpu in range(8)
    }


def test_halved_until_it_fits() -> None:
    assert fitting_size(512, [(2, 1024.0), (1, 600.0)]) == 512
    assert fitting_size(512, [(2, 1023.0)]) == 256
    assert fitting_size(48, [(1, 47.0)]) == 16  # whole units of 16 bytes
    with pytest.raises(UserError, match="not enough memory for buffers") as refused:
        fitting_size(512, [(1, 15.0)])
    assert refused.value.everywhere


def test_the_name_of_a_world_is_not_needed(on_ranks: Ranks) -> None:
    def body(world: World) -> int:
        return host.measure(world.control.split(world.rank), SETTINGS, lambda where: None).gpus

    assert on_ranks(2, body) == [1, 1]
