"""CUDA C++ is compiled once for a user and a GPU, by options that keep NumPy's bits. CuPy is made up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

MADE = ("runner.device.nvrtc",)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    made = MagicMock()
    made.cuda.Device.return_value.compute_capability = "90"
    made.cuda.nvrtc.getVersion.return_value = (13, 0)
    made.cuda.get_cuda_path.return_value = str(tmp_path / "cuda")

    def compiled(source: str, options: Any, arch: Any, file: str, names: Any) -> Any:
        return f"binary of {source}".encode() + b"\0\1", {name: f"_Z{name}" for name in names}

    made.cuda.compiler.compile_using_nvrtc.side_effect = compiled
    for name, module in (("cupy", made), ("cupy.cuda", made.cuda)):
        monkeypatch.setitem(sys.modules, name, module)
    for name in MADE:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield made
    for name in MADE:  # nobody else's: they have this CuPy
        if sys.modules.pop(name, None) is not None:
            package, _, module = name.rpartition(".")
            delattr(sys.modules[package], module)


def test_numbers_below_the_normal_range_stay(cupy: Any, tmp_path: Path) -> None:
    """And the standard and the toolkit's headers are named."""
    headers = tmp_path / "cuda" / "include"
    headers.mkdir(parents=True)
    (headers / "cuda_fp16.h").write_text("")
    from runner.device.nvrtc import compile_kernel

    compile_kernel("text", "add", ("--fmad=false",))
    source, options, arch, _, names = cupy.cuda.compiler.compile_using_nvrtc.call_args[0]
    assert (source, arch, names) == ("text", None, ("add",))
    assert options[:2] == ("-std=c++17", "--fmad=false")
    assert f"-I{headers}" in options
    assert not any("ftz" in one or "fast" in one for one in options)


def test_a_second_process_compiles_nothing(cupy: Any, tmp_path: Path) -> None:
    from runner.device.nvrtc import compile_kernel

    function = cupy.cuda.function.Module.return_value.get_function
    for _ in range(2):
        kernel = compile_kernel("text", "add<float>", ())
        assert kernel is function.return_value
        cupy.cuda.function.Module.return_value.load.assert_called_with(b"binary of text\0\1")
        function.assert_called_with("_Zadd<float>")
    assert cupy.cuda.compiler.compile_using_nvrtc.call_count == 1
    (kept,) = (tmp_path / "meshrun").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    compile_kernel("text", "add<float>", ())
    assert cupy.cuda.compiler.compile_using_nvrtc.call_count == 2


def test_what_changes_the_binary_is_compiled_for(cupy: Any, tmp_path: Path) -> None:
    from runner.device.nvrtc import compile_kernel

    def changed() -> Iterator[None]:
        yield compile_kernel("text", "add", ("--fmad=false",))
        yield compile_kernel("text ", "add", ("--fmad=false",))
        yield compile_kernel("text", "sub", ("--fmad=false",))
        yield compile_kernel("text", "add", ("--fmad=true",))
        cupy.cuda.Device.return_value.compute_capability = "100"
        yield compile_kernel("text", "add", ("--fmad=false",))
        cupy.cuda.nvrtc.getVersion.return_value = (13, 1)
        yield compile_kernel("text", "add", ("--fmad=false",))

    for number, _ in enumerate(changed(), 1):
        assert cupy.cuda.compiler.compile_using_nvrtc.call_count == number
        assert len([*(tmp_path / "meshrun").iterdir()]) == number


def test_a_home_that_cannot_be_used_costs_only_time(
    cupy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runner.device import nvrtc

    (tmp_path / "meshrun").mkdir(mode=0o700)
    (tmp_path / "meshrun").chmod(0o777)
    for _ in range(2):
        nvrtc.compile_kernel("text", "add", ())
    assert [*(tmp_path / "meshrun").iterdir()] == []
    monkeypatch.setattr(nvrtc, "cache_folder", lambda: None)
    nvrtc.compile_kernel("text", "add", ())
    assert cupy.cuda.compiler.compile_using_nvrtc.call_count == 3


def test_a_full_disk_costs_only_time(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from runner.device import nvrtc

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(nvrtc.cached_files, "write", full)
    assert nvrtc.compile_kernel("text", "add", ())


def test_large_shared_memory_is_asked_for(cupy: Any) -> None:
    from runner.device import nvrtc

    function = cupy.cuda.function.Module.return_value.get_function.return_value
    nvrtc.compile_kernel("text", "add", (), nvrtc.SHARED_BYTES)
    cupy.cuda.driver.funcSetAttribute.assert_not_called()
    nvrtc.compile_kernel("text", "add", (), nvrtc.SHARED_BYTES + 1)
    cupy.cuda.driver.funcSetAttribute.assert_called_once_with(function.ptr, 8, nvrtc.SHARED_BYTES + 1)
