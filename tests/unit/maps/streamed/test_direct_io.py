"""Chunks that go past the host's memory, between files and a device."""

from __future__ import annotations

import os
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from queued_device import QueuedBackend
from stream_cases import Case, PoisoningDevice, cases, run_on

import meshrun
from meshrun.runner.device import gds
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import RunError
from meshrun.runner.maps.streamed.direct_io import Direct


class Noted:
    """A file that a device reads and writes, which is NumPy here; notes the bytes that went each way."""

    moved: dict[str, int]  # of all files

    def __init__(self, path: Path, write: bool = False) -> None:
        self._file = os.open(path, os.O_RDWR if write else os.O_RDONLY)

    def read(self, target: Any, offset: int) -> None:
        assert os.preadv(self._file, [target], offset) == target.nbytes
        self.moved["read"] += target.nbytes

    def write(self, source: Any, offset: int) -> None:
        assert source.flags.c_contiguous
        assert os.pwrite(self._file, source, offset) == source.nbytes
        self.moved["write"] += source.nbytes

    def close(self) -> None:
        os.close(self._file)


@pytest.fixture(autouse=True, scope="module")
def direct() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshrun.runner.maps.streamed.streaming.DeviceEngine", PoisoningDevice)
        patch.setattr(
            "meshrun.runner.maps.streamed.streaming.StreamedRun._direct",
            lambda self, endpoints: Direct(endpoints),
        )
        patch.setattr("meshrun.runner.maps.streamed.direct_io.DirectFile", Noted)
        patch.setattr(CpuBackend, "copy_rate", lambda self: 1e9)
        yield


@pytest.fixture(autouse=True)
def moved() -> dict[str, int]:
    Noted.moved = {"read": 0, "write": 0}
    return Noted.moved


@given(cases())
def test_the_bytes_of_one_piece(case: Case) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        case.save(folder / "in.npy")
        run_on(1, case.job, folder / "in.npy", folder / "whole.npy")
        devices = [QueuedBackend() for _ in range(case.ranks)]
        run_on(case.ranks, case.job, folder / "in.npy", folder / "out.npy", devices=devices, **case.stream)
        assert (folder / "out.npy").read_bytes() == (folder / "whole.npy").read_bytes()


@meshrun.map_blocks(halo=((1, 1), (0, 0)))
def below(block: Any) -> Any:
    return block[2:] - block[:-2]


@pytest.mark.parametrize(
    ("array", "grid", "boundary", "read", "written"),
    [
        ("rows", None, "nearest", "all", True),
        ("rows", None, "wrap", "some", True),  # not the first and the last chunk, whose halo is elsewhere
        ("rows", "1x2", "nearest", "none", False),
        ("columns first", None, "nearest", "none", True),
        ("other byte order", None, "nearest", "none", True),
    ],
)
def test_what_lies_in_one_stretch_goes_past_the_host(
    tmp_path: Path,
    moved: dict[str, int],
    array: str,
    grid: str | None,
    boundary: Any,
    read: str,
    written: bool,
) -> None:
    values = np.arange(240, dtype=">f4" if array == "other byte order" else "f4").reshape(40, 6)
    np.save(tmp_path / "in.npy", np.asfortranarray(values) if array == "columns first" else values)
    record = run_on(
        1,
        below,
        tmp_path / "in.npy",
        tmp_path / "out.npy",
        devices=[QueuedBackend()],
        grid=grid,
        boundary=boundary,
        chunk_bytes=7 * 6 * 4,
    )
    stages = record["stream"]["limits"]["stages"]
    assert (moved["read"] > 0) is (read != "none")
    assert ("to device" in stages) is (read != "all")
    assert (moved["write"] == 240 * 4) is written
    assert ("from device" in stages) is not written
    padded = np.pad(values, ((1, 1), (0, 0)), mode={"nearest": "edge"}.get(boundary, boundary))
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), padded[2:] - padded[:-2])


# ---- kvikio, or what has its place


class Handle:
    """What kvikio opens."""

    def __init__(self, path: Path, flags: str) -> None:
        self.flags = flags

    def read(self, buffer: Any, size: int, offset: int) -> int:
        if offset == 13:
            raise RuntimeError("cuFile error 5027\nmore")
        return size - (offset == 7)

    write = read

    def close(self) -> None:
        pass


@pytest.fixture
def kvikio(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    module = types.ModuleType("kvikio")
    module.CuFile = Handle  # type: ignore[attr-defined]
    module.cufile_driver = types.SimpleNamespace(get=lambda name: name == "is_gds_available")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kvikio", module)
    gds.why_not.cache_clear()
    yield module
    gds.why_not.cache_clear()


def test_a_short_or_failed_transfer_is_an_error_that_names_the_file(kvikio: types.ModuleType) -> None:
    array = np.zeros(100, np.uint8)
    file = gds.DirectFile(Path("a.npy"), write=True)
    file.read(array, 0)
    file.write(array, 0)
    with pytest.raises(RunError, match=r"a\.npy became shorter .*got 106 bytes, expected 107"):
        file.read(array, 7)
    with pytest.raises(RunError, match=r"cannot write a\.npy .*got 99 bytes written, expected 100"):
        file.write(array, 7)
    for act in (file.read, file.write):
        with pytest.raises(RunError, match=r"a\.npy by GPUDirect Storage: cuFile error 5027$"):
            act(array, 13)


def test_where_there_is_no_gpudirect_storage_it_says_why(
    kvikio: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gds.why_not() is None
    gds.why_not.cache_clear()
    kvikio.cufile_driver.get = lambda name: False
    assert "is not available here" in str(gds.why_not())
    gds.why_not.cache_clear()
    monkeypatch.setitem(sys.modules, "kvikio", None)
    assert "no kvikio" in str(gds.why_not())
