"""An array larger than the device memory that it may have: the same bytes as in one piece."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.execute import Options, run

ROWS, COLUMNS = 2000, 1024


@meshrun.map_blocks(halo=((2, 1), (1, 3)))
def spread(block: Any, *, out: Any) -> None:
    """Every neighbour with a weight of its own."""
    out[...] = 0
    for i in range(4):
        for j in range(5):
            out[...] += (3 * i + j + 1) * block[i : i + out.shape[0], j : j + out.shape[1]]


@meshrun.map_blocks(halo=((1, 1), (0, 0)))
def middle(block: Any) -> Any:
    return block[1:-1]  # a view of the padded block, which the next chunk overwrites


@meshrun.map_blocks()
def scaled(block: Any, *, xp: Any) -> Any:
    return (block * 2 + 1).astype(xp.float64)


@pytest.fixture(params=["memory", "disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """On a file system in memory, whose pages a device may write to, and on another one."""
    if request.param == "disk":
        yield tmp_path
        return
    shared = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield shared
    shutil.rmtree(shared)


def make_input(folder: Path) -> Path:
    path = folder / "in.npy"
    np.save(path, np.random.default_rng(5).standard_normal((ROWS, COLUMNS)).astype(np.float32))
    return path


@pytest.mark.parametrize("job", [spread, middle, scaled], ids=lambda job: job.name)
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_fifty_chunks_give_the_same_bytes(folder: Path, job: Any, boundary: str) -> None:
    source = make_input(folder)
    options = Options(device="cuda", boundary=boundary, cval=0.5 if boundary == "constant" else None)
    run(job, source, folder / "whole.npy", {}, options)
    row = COLUMNS * 4
    cap = StreamOptions(device_memory=(2 * (ROWS // 50 + 6) + 2 * (ROWS // 50)) * row * 3)
    record = run(
        job,
        source,
        folder / "chunks.npy",
        {},
        Options(device="cuda", boundary=boundary, cval=0.5 if boundary == "constant" else None, stream=cap),
    )
    assert record["stream"]["chunks"] >= 25
    assert (folder / "whole.npy").read_bytes() == (folder / "chunks.npy").read_bytes()


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("chunk", [60_000, 500_000])
def test_any_depth_and_chunk(folder: Path, depth: int, chunk: int) -> None:
    source = make_input(folder)
    run(spread, source, folder / "whole.npy", {}, Options(device="cuda"))
    stream = StreamOptions(chunk_bytes=chunk, depth=depth)
    record = run(spread, source, folder / "chunks.npy", {}, Options(device="cuda", stream=stream))
    assert (folder / "whole.npy").read_bytes() == (folder / "chunks.npy").read_bytes()
    stages = record["stream"]["limits"]["stages"]
    assert set(stages) == {"read", "to device", "kernel", "from device", "write"}
    assert stages["from device"]["bytes"] == ROWS * COLUMNS * 4


def test_a_run_that_stopped_goes_on(tmp_path: Path) -> None:
    source, calls = make_input(tmp_path), tmp_path / "calls"

    @meshrun.map_blocks(halo=1, fuse="off", split_dependent=True)  # it counts its calls, where no run looks
    def fragile(block: Any, *, out: Any) -> None:
        with calls.open("ab") as file:
            file.write(b"x")
        if calls.stat().st_size == 20:
            raise ValueError("the twentieth")
        out[...] = block[1:-1, 1:-1] * 3

    first = StreamOptions(chunk_bytes=200_000)
    with pytest.raises(ValueError, match="twentieth"):
        run(fragile, source, tmp_path / "out.npy", {}, Options(device="cuda", stream=first))
    again = StreamOptions(chunk_bytes=200_000, resume=True)
    record = run(fragile, source, tmp_path / "out.npy", {}, Options(device="cuda", stream=again))
    assert record["stream"]["resumed"] > 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), np.load(source) * np.float32(3))
