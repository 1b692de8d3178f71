"""Any array in any chunks on any ranks comes out as the same bytes as in one piece on one rank."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from queued_device import QueuedBackend
from stream_cases import Case, PoisoningDevice, PoisoningHost, cases, run_on

import meshrun
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import RunError


@pytest.fixture(autouse=True, scope="module")
def poisoned_engines() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshrun.runner.maps.streamed.streaming.HostEngine", PoisoningHost)
        patch.setattr("meshrun.runner.maps.streamed.streaming.DeviceEngine", PoisoningDevice)
        patch.setattr(CpuBackend, "copy_rate", lambda self: 1e9)  # which takes longer than all the rest
        yield


def in_one_piece(case: Case, folder: Path) -> bytes:
    case.save(folder / "in.npy")
    run_on(1, case.job, folder / "in.npy", folder / "whole.npy")
    return (folder / "whole.npy").read_bytes()


@given(cases())
def test_chunks_on_cpus_give_the_bytes_of_one_piece(case: Case) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wanted = in_one_piece(case, folder)
        record = run_on(case.ranks, case.job, folder / "in.npy", folder / "out.npy", **case.stream)
        assert (folder / "out.npy").read_bytes() == wanted
        assert (
            sum(record["stream"]["own"]) + sum(record["stream"]["taken_over"]) == record["stream"]["chunks"]
        )
        assert sorted(path.name for path in folder.iterdir()) == ["in.npy", "out.npy", "whole.npy"]


@given(cases(), st.booleans())
def test_chunks_on_devices_give_the_bytes_of_one_piece(case: Case, late: bool) -> None:
    devices = [QueuedBackend(late=late) for _ in range(case.ranks)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wanted = in_one_piece(case, folder)
        source, target = folder / "in.npy", folder / "out.npy"
        run_on(case.ranks, case.job, source, target, devices=devices, **case.stream)
        assert target.read_bytes() == wanted
    for device in devices:
        assert len(device.allocated) <= 2 * case.stream["depth"], "buffers that are not used again"


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("on_devices", [False, True])
def test_an_array_that_does_not_fit_goes_through_in_chunks_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, on_devices: bool
) -> None:
    np.save(tmp_path / "in.npy", np.arange(60_000, dtype=np.float32).reshape(1000, 60))

    @meshrun.map_blocks(halo=1)
    def middle(block: Any) -> Any:
        return block[1:-1, 1:-1] * 2

    monkeypatch.setattr("meshrun.runner.run.prepare.host_memory", lambda: ranks * 4 * 60_000)
    devices = [QueuedBackend(memory=60_000) for _ in range(ranks)] if on_devices else None
    record = run_on(ranks, middle, tmp_path / "in.npy", tmp_path / "out.npy", devices=devices)
    stream = record["stream"]
    assert stream["chunks"] > 4
    limit = 48_000 if on_devices else 60_000
    padded, result = (stream["rows"] + 2) * 62 * 4, stream["rows"] * 60 * 4
    assert stream["depth"] * (2 * padded + result) <= limit, "more than each rank may have"
    np.testing.assert_array_equal(
        np.load(tmp_path / "out.npy"), 2 * np.arange(60_000, dtype=np.float32).reshape(1000, 60)
    )


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_device_compiles_before_chunks_wait_for_it(tmp_path: Path, ranks: int) -> None:
    """Every rank's first call of the function is on zeros of the first chunk's shape."""
    np.save(tmp_path / "in.npy", np.arange(1, 81, dtype=np.float32).reshape(10, 8))
    calls: dict[int, list[float]] = {}

    @meshrun.map_blocks
    def noting(block: Any) -> Any:
        if len(block) == 2:  # not the trial by which the result is known
            calls.setdefault(threading.get_ident(), []).append(float(block[0, 0]))
        return block * 2

    devices = [QueuedBackend() for _ in range(ranks)]
    run_on(ranks, noting, tmp_path / "in.npy", tmp_path / "out.npy", devices=devices, chunk_bytes=64)
    assert [numbers[0] for numbers in calls.values()] == [0] * ranks  # a simulated rank is a thread
    assert sorted(n for numbers in calls.values() for n in numbers[1:]) == [1, 17, 33, 49, 65]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), 2 * np.load(tmp_path / "in.npy"))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_grid_narrows_chunks_whatever_the_number_of_ranks(tmp_path: Path, ranks: int) -> None:
    np.save(tmp_path / "in.npy", np.arange(80, dtype=np.float32).reshape(10, 8))
    job = meshrun.map_blocks(lambda block: block * 2)
    record = run_on(ranks, job, tmp_path / "in.npy", tmp_path / "out.npy", grid="1x2", chunk_bytes=16)
    assert (record["grid"], record["stream"]["chunks"]) == ([1, 2], 20)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), 2 * np.load(tmp_path / "in.npy"))


def test_the_record_says_how_it_was_done(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.ones((50, 6), np.float32))
    job = meshrun.map_blocks(lambda block: block + 1)
    record = run_on(
        2, job, tmp_path / "in.npy", tmp_path / "out.npy", chunk_bytes=5 * 24, depth=2, static=True
    )
    stream = record["stream"]
    assert (stream["chunks"], stream["rows"], stream["depth"], stream["resumed"]) == (10, 5, 2, 0)
    assert (stream["own"], stream["taken_over"]) == ([5, 5], [0, 0])
    assert stream["limits"]["stages"].keys() == {"read", "kernel", "write"}
    assert stream["limits"]["stages"]["read"]["bytes"] == stream["limits"]["stages"]["write"]["bytes"] == 1200
    assert stream["limited_by"].startswith("limited by: ")


@pytest.mark.parametrize("proof", ["sample", "full"])
def test_a_streamed_result_is_proved(tmp_path: Path, proof: str) -> None:
    def sums(block: Any, *, wrong: int) -> Any:
        return block[:-2] + block[2:]

    @meshrun.map_blocks(halo=((1, 1), (0, 0)), reference=sums)
    def neighbours(block: Any, *, out: Any, here: meshrun.BlockContext, wrong: int = -1) -> None:
        out[...] = block[:-2] + block[2:]
        if here.offset[0] <= wrong < here.offset[0] + here.block[0]:
            out[wrong - here.offset[0]] = -1

    np.save(tmp_path / "in.npy", np.arange(300.0).reshape(50, 6))
    source, target = tmp_path / "in.npy", tmp_path / "out.npy"
    record = run_on(2, neighbours, source, target, chunk_bytes=7 * 48, verify=proof)
    assert record["verify"]["cells"] > 0
    target.unlink()
    with pytest.raises(RunError, match=r"\[31, 0\]|31"):
        run_on(2, neighbours, source, target, chunk_bytes=7 * 48, verify="full", parameters={"wrong": 31})
    assert not target.exists()
