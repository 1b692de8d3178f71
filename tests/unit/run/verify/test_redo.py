"""Chunks that a verification finds wrong are computed again elsewhere, and who computed them is named."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from queued_device import QueuedBackend
from stream_cases import run_on

import meshrun
from meshrun.runner.device.api import Device
from meshrun.runner.errors import RunError
from meshrun.runner.maps.streamed.redo import Redo
from meshrun.runner.region import HostArray
from meshrun.runner.world.world import Rank

ROWS, COLUMNS = 48, 5


@meshrun.map_blocks(halo=(1, 0), split_dependent=True)
def sums(block: Any, *, out: Any, here: Any, first: int = 0, last: int = ROWS, broken: str = "1") -> None:
    """Is wrong on the ranks `broken`, in rows `first` .. `last` - 1 of the array."""
    out[...] = block[:-2] + block[1:-1] + block[2:]
    if here.host and str(here.rank) in broken:  # a verification has no host
        rows = np.arange(len(out)) + here.offset[0]
        out[(rows >= first) & (rows < last)] += 1


@meshrun.map_blocks(reference=lambda array, input_dtype: array)
def off_by_one(block: Any, *, out: Any) -> None:
    out[...] = block + 1


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.npy"
    np.save(path, np.random.default_rng(3).integers(0, 9, (ROWS, COLUMNS)).astype(np.float64))
    return path


@pytest.fixture
def expected(source: Path) -> HostArray:
    padded = np.pad(np.load(source), ((1, 1), (0, 0)), mode="edge")
    return np.asarray(padded[:-2] + padded[1:-1] + padded[2:])


def run(source: Path, ranks: int = 3, job: Any = sums, **options: Any) -> dict[str, Any]:
    """In chunks of 4 rows, each on the rank of its block."""
    options = {"verify": "full", "static": True, "chunk_bytes": 8 * COLUMNS * 6, **options}
    return run_on(ranks, job, source, source.with_name("out.npy"), **options)


@pytest.mark.parametrize("mode", ["full", "sample"])
def test_the_chunks_of_a_wrong_rank_are_computed_again_and_it_is_named(
    source: Path, expected: HostArray, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    record = run(source, verify=mode)
    np.testing.assert_array_equal(np.load(source.with_name("out.npy")), expected)
    redone = record["verify"]["redone"]
    assert [one["chunk"] for one in redone] == [4, 5, 6, 7]
    assert {one["first"].split(",")[0] for one in redone} == {"[rank 1"}
    assert {one["second"].split(",")[0] for one in redone} == {"[rank 0", "[rank 2"}
    (warning,) = caplog.messages
    assert warning in record["warnings"]
    assert re.match(r"\[rank 1, host [^]]*\] computed \d chunks? wrong, and \[rank [02], ", warning)


def test_devices_compute_chunks_again_too(source: Path, expected: HostArray) -> None:
    record = run(source, devices=[QueuedBackend() for _ in range(3)])
    np.testing.assert_array_equal(np.load(source.with_name("out.npy")), expected)
    assert {one["first"][:7] for one in record["verify"]["redone"]} == {"[rank 1"}


def test_only_what_was_wrong_is_computed_again_if_all_is_compared(source: Path, expected: HostArray) -> None:
    record = run(source, parameters={"first": 21, "last": 22})
    np.testing.assert_array_equal(np.load(source.with_name("out.npy")), expected)
    assert [one["chunk"] for one in record["verify"]["redone"]] == [5]
    (warning,) = [one for one in record["warnings"] if "wrong" in one]
    assert "computed 1 chunk wrong, and [rank " in warning
    assert "right: cell [21, 0] of chunk 5 was " in warning


def test_a_rank_that_was_wrong_computes_nothing_again_while_there_are_others() -> None:
    """Ranks 0 to 3, each with its GPU, have computed two chunks each."""
    ranks = [Rank(n, "h", "h", n, n, Device("cuda", "GPU", uuid=f"GPU-{n}")) for n in range(4)]
    control = SimpleNamespace(allgather=lambda _: [[0, 1], [2, 3], [4, 5], [6]])
    redo = Redo(cast("Any", SimpleNamespace(world=SimpleNamespace(ranks=ranks, control=control))), [0, 1], 2)

    def others(*chunks: int) -> list[int]:
        return [rank.number for rank in (redo._others(chunks) or {}).values()]

    assert others(2, 3, 6) == [0, 2, 0]  # 1 and 3 are wrong
    assert others(7) == [3]  # of an earlier run
    redo.second[0] = ranks[1]
    assert others(2, 3, 6) == [2, 2, 2]  # so was 0, before
    assert others(2, 4, 6) == [3, 1, 0]  # all are wrong: each by another than its own
    assert redo.beside([0, 2]) == {1, 2, 3}


def test_a_run_without_a_wrong_cell_computes_nothing_again(source: Path) -> None:
    record = run(source, parameters={"broken": ""})
    assert record["verify"]["redone"] == []
    assert record["verify"]["cells"] == ROWS * COLUMNS


@pytest.mark.parametrize("mode", ["full", "sample"])
def test_what_two_ranks_compute_alike_is_the_jobs_mistake(source: Path, mode: str) -> None:
    with pytest.raises(RunError, match=r"computed by \[rank \d.*\] and again by \[rank \d.*\], is wrong"):
        run(source, job=off_by_one, verify=mode)
    assert not source.with_name("out.npy").exists()


def test_without_another_device_the_run_fails_and_names_the_rank(source: Path) -> None:
    with pytest.raises(RunError, match=r"computed by \[rank 0, host [^]]*\], is wrong on disk"):
        run(source, ranks=1, parameters={"broken": "0"})


def test_ranks_on_the_same_gpu_are_no_other_device(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshrun.runner.maps.streamed import redo

    monkeypatch.setattr(redo, "_device", lambda rank: "GPU-1" if rank.number < 2 else "GPU-2")
    record = run(source)
    assert {one["second"][:7] for one in record["verify"]["redone"]} == {"[rank 2"}
    monkeypatch.setattr(redo, "_device", lambda rank: "GPU-1")
    with pytest.raises(RunError, match=r"computed by \[rank 1, host [^]]*\], is wrong on disk"):
        run(source)
