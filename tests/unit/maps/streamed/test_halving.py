"""A chunk that does not fit a device is computed in halves, with the same bytes; a row is an error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from limited_device import LimitedBackend
from queued_device import QueuedBackend
from stream_cases import run_on

import meshrun
from meshrun.runner.device.api import Shortage, bytes_needed
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import RunError
from meshrun.runner.maps.streamed.halving import Halving, halved, pieces
from meshrun.runner.options.step_options import StepOptions

FAILING = [False]  # no variable around a function that looks at it: those make it another job
TIMES = 40  # the function allocates so many times its block


@meshrun.map_blocks(
    halo=((1, 1), (0, 0)), boundary="mirror", split_dependent=True, out=lambda shape, dtype: (shape, dtype)
)
def greedy(block: Any, *, xp: Any) -> Any:
    """Change the block in place, then need many times its memory."""
    block += 1
    scratch = xp.empty((TIMES, *block.shape), block.dtype)
    scratch[0] = block
    return scratch[0][:-2] + 2 * scratch[0][1:-1] + scratch[0][2:]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuBackend, "copy_rate", lambda self: 1e9)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    np.save(tmp_path / "in.npy", np.random.default_rng(3).random((96, 16)))
    return tmp_path / "in.npy"


def wanted(source: Path) -> Any:
    padded = np.pad(np.load(source) + 1, ((1, 1), (0, 0)), mode="reflect")
    return padded[:-2] + 2 * padded[1:-1] + padded[2:]


ROW = 16 * 8  # bytes
CHUNK = {"chunk_bytes": 26 * ROW, "static": True, "depth": 2}  # 24 rows and 2 of halo
BUFFERS = (2 + 1) * 26 * ROW + 2 * 24 * ROW  # of two chunks, and the results of two


def test_a_trial_on_a_row_that_does_not_fit_is_the_same_error(source: Path) -> None:
    job = replace(greedy, out=None)  # its results are known by a trial
    with pytest.raises(RunError, match=r"a row and what the function allocates .* bytes needed, .* Try: "):
        run_on(1, job, source, source.with_name("out.npy"), devices=[LimitedBackend(20 * ROW)], **CHUNK)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_chunk_that_does_not_fit_is_halved_and_said_once(
    source: Path, ranks: int, caplog: pytest.LogCaptureFixture
) -> None:
    limit = BUFFERS + TIMES * 9 * ROW  # not 26 rows, nor the 14 of half of them, but the 8 of a quarter
    devices: list[QueuedBackend] = [LimitedBackend(limit), *(QueuedBackend() for _ in range(ranks - 1))]
    target = source.with_name("out.npy")
    record = run_on(ranks, greedy, source, target, devices=devices, **CHUNK)
    np.testing.assert_array_equal(np.load(target), wanted(source))
    said = [one for one in record["warnings"] if "do not fit" in one]
    assert len(said) == 1
    assert said[0].startswith("rank 0, ")
    assert "greedy gets 6 rows at once instead of 24" in said[0]
    assert f"{TIMES * 14 * ROW:,} bytes needed" in said[0]
    assert f"of {limit:,} free" in said[0]
    assert caplog.text.count("gets 6 rows") == 1
    assert record["stream"]["chunks"] == 4  # as all ranks have agreed
    assert devices[0].refused == 2  # in the first call, not for every chunk


def test_the_buffers_of_fewer_chunks_do_too(source: Path) -> None:
    target = source.with_name("out.npy")
    job = meshrun.map_blocks(lambda block: block + 1)
    one = 24 * ROW
    record = run_on(1, job, source, target, devices=[LimitedBackend(2 * one)], chunk_bytes=one, depth=3)
    np.testing.assert_array_equal(np.load(target), np.load(source) + 1)
    assert any("2 of 3 chunks are in flight" in said for said in record["warnings"])


def test_a_row_that_does_not_fit_is_an_error_with_the_bytes(source: Path) -> None:
    limit = BUFFERS + TIMES * 2 * ROW  # a row with its halo takes three
    target = source.with_name("out.npy")
    with pytest.raises(RunError, match=r"a row and what the function allocates") as caught:
        run_on(1, greedy, source, target, devices=[LimitedBackend(limit)], **CHUNK)
    assert f"{TIMES * 3 * ROW:,} bytes needed" in str(caught.value)
    assert f" of {limit:,} free" in str(caught.value)
    assert "Try: --depth 1" in str(caught.value)
    assert not target.exists()


def test_one_chunk_whose_buffers_do_not_fit_is_an_error_with_the_bytes(source: Path) -> None:
    job = meshrun.map_blocks(lambda block: block[1:-1] + 1, halo=((1, 1), (0, 0)))
    with pytest.raises(RunError, match="the buffers of one chunk") as caught:
        run_on(1, job, source, source.with_name("out.npy"), devices=[LimitedBackend(20 * ROW)], **CHUNK)
    assert f"{26 * ROW:,} bytes needed, {20 * ROW:,} of {20 * ROW:,} free" in str(caught.value)


def test_an_unfinished_run_is_resumed_in_halves(source: Path) -> None:
    target = source.with_name("out.npy")
    FAILING[0] = True

    @meshrun.map_blocks(name="sometimes")
    def sometimes(block: Any, *, xp: Any, here: meshrun.BlockContext) -> Any:
        if FAILING[0] and here.offset[0] >= 72:
            raise OSError("gone")
        block *= 3  # the buffer that was read into
        xp.empty((TIMES, *block.shape), block.dtype)
        return block

    chunk = {"chunk_bytes": 24 * ROW, "static": True, "depth": 1}
    with pytest.raises(OSError, match="gone"):
        run_on(1, sometimes, source, target, devices=[QueuedBackend()], **chunk)
    FAILING[0] = False
    limit = 2 * 24 * ROW + TIMES * 7 * ROW
    record = run_on(1, sometimes, source, target, devices=[LimitedBackend(limit)], resume=True, **chunk)
    assert record["stream"]["resumed"] == 3
    assert any("gets 6 rows at once instead of 24" in said for said in record["warnings"])
    np.testing.assert_array_equal(np.load(target), np.load(source) * 3)


@pytest.mark.parametrize("short", [0, 1])
def test_a_block_that_does_not_fit_is_streamed(source: Path, short: int) -> None:
    """On all ranks, although only one of them is short of memory, and only after it has begun."""
    limit = 4 * 48 * ROW + TIMES * 20 * ROW
    devices = [LimitedBackend(limit) if rank == short else QueuedBackend() for rank in range(2)]
    target = source.with_name("out.npy")
    record = run_on(2, greedy, source, target, devices=devices)
    np.testing.assert_array_equal(np.load(target), wanted(source))
    assert record["stream"] is not None
    assert sum("streamed in chunks, because" in said for said in record["warnings"]) == 1
    assert sorted(path.name for path in source.parent.iterdir()) == ["in.npy", "out.npy"]


def test_a_block_that_cannot_be_streamed_is_an_error_with_the_bytes(tmp_path: Path) -> None:
    from PIL import Image

    Image.fromarray(np.zeros((64, 64), np.uint8)).save(tmp_path / "in.png")
    devices = [LimitedBackend(1 << 14), QueuedBackend()]
    with pytest.raises(
        RunError, match=r"the device memory of rank 0, .*bytes needed, .* of 16,384 free.*Try"
    ):
        run_on(2, greedy, tmp_path / "in.png", tmp_path / "out.npy", devices=devices)
    assert not (tmp_path / "out.npy").exists()


def test_an_image_of_a_folder_is_computed_in_halves(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        cells = np.random.default_rng(3).integers(0, 50, (64, 64), np.uint8)
        Image.fromarray(cells).save(tmp_path / "in" / f"{name}.png")
    device = LimitedBackend(3 * 66 * 64 + TIMES * 20 * 64)
    record = run_on(1, greedy, tmp_path / "in", tmp_path / "out", devices=[device])
    run_on(1, greedy, tmp_path / "in", tmp_path / "whole")
    for name in ("a.png", "b.png"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert sum(".png gets" in said for said in record["warnings"]) == 1  # of the image that comes first


def test_steps_of_a_chunk_are_taken_in_halves(source: Path) -> None:
    @meshrun.map_blocks(
        halo=((1, 1), (0, 0)),
        boundary="mirror",
        split_dependent=True,
        out=lambda shape, dtype: (shape, dtype),
    )
    def step(block: Any, *, xp: Any) -> Any:
        xp.empty((TIMES, *block.shape), block.dtype)
        return 0.25 * (block[:-2] + 2 * block[1:-1] + block[2:])

    steps = StepOptions(steps=6, steps_per_exchange=2)
    run_on(1, step, source, source.with_name("whole.npy"), steps=steps)
    device = LimitedBackend(20 * 28 * ROW + TIMES * 14 * ROW)
    target = source.with_name("out.npy")
    record = run_on(1, step, source, target, devices=[device], steps=steps, chunk_bytes=28 * ROW, depth=1)
    assert target.read_bytes() == source.with_name("whole.npy").read_bytes()
    assert sum("step gets" in said for said in record["warnings"]) == 1, record["warnings"]
    assert device.refused <= 2


def test_other_failures_are_not_halved() -> None:
    halving = Halving(LimitedBackend(1), "job", 1)
    with pytest.raises(MemoryError, match="of the host"):
        halving.compute(8, lambda: None, lambda most: exec("raise MemoryError('of the host')"))


@example(rows=3, most=1, times=1, unit=2)
@given(rows=st.integers(1, 300), most=st.integers(1, 300), times=st.integers(1, 8), unit=st.integers(1, 4))
def test_pieces_are_all_rows_in_order_and_few(rows: int, most: int, times: int, unit: int) -> None:
    least = times * unit
    most = max(most // least, 1) * least
    cut = pieces(rows, most, least, unit)
    assert [first for first, _ in cut] == [0, *(last for _, last in cut[:-1])]
    assert cut[-1][1] == rows
    assert all(first % unit == 0 and first < last for first, last in cut)
    assert all(last - first < max(most, 2 * least) + unit for first, last in cut)
    if times == 1:
        assert all(last - first <= most for first, last in cut)


@given(st.integers(1, 10**9), st.integers(1, 100))
def test_halves_end_at_the_fewest_rows(rows: int, least: int) -> None:
    count = 0
    while rows > least:
        rows, before = halved(rows, least), rows
        assert rows < before
        assert rows % least == 0
        count += 1
    assert count < 32


def test_the_bytes_are_cupys() -> None:
    said = "Out of memory allocating 1,125,899,906,842,624 bytes (allocated so far: 512 bytes)."
    assert bytes_needed(said) == 1 << 50
    assert bytes_needed("cudaErrorMemoryAllocation: out of memory") is None
    assert str(Shortage(None, 1, 2000)) == "an allocation of unknown size, 1 of 2,000 free"
