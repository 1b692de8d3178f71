"""Files read and written by kvikio itself: through its own fallback where there is no GPUDirect Storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.device import gds
from meshrun.runner.errors import RunError
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.execute import Options, run

kvikio = pytest.importorskip("kvikio")


@meshrun.map_blocks(halo=((1, 1), (0, 0)))
def rows(block: Any, *, out: Any) -> None:
    out[...] = block[:-2] + 2 * block[1:-1] + 4 * block[2:]


@pytest.mark.parametrize("columns", [1024, 1021])
@pytest.mark.parametrize("suffix", [".npy", ".raw"])
def test_the_same_bytes_as_through_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int, suffix: str
) -> None:
    array = np.random.default_rng(3).integers(0, 1 << 20, (3000, columns)).astype(np.float32)
    source = tmp_path / "in.npy"
    np.save(source, array)
    chunks = StreamOptions(chunk_bytes=1 << 20)
    usual = run(rows, source, tmp_path / "usual.npy", {}, Options(device="cuda", stream=chunks))
    assert not usual["stream"]["direct"]
    monkeypatch.setattr(gds, "why_not", lambda: None)
    target = tmp_path / f"direct{suffix}"
    record = run(rows, source, target, {}, Options(device="cuda", stream=chunks))
    assert record["stream"]["direct"]
    assert record["stream"]["chunks"] > 5
    found = np.load(target) if suffix == ".npy" else np.fromfile(target, np.float32).reshape(3000, columns)
    padded = np.pad(array, ((1, 1), (0, 0)), mode="symmetric")
    expected = padded[:-2] + 2 * padded[1:-1] + 4 * padded[2:]
    np.testing.assert_array_equal(found, expected)


def test_an_error_of_the_disk_is_told(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"x" * 100)
    cupy = pytest.importorskip("cupy")
    file = gds.DirectFile(path)
    with pytest.raises(RunError, match="short"):
        file.read(cupy.zeros(200, cupy.uint8), 0)
    file.close()
