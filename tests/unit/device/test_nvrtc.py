"""What is compiled for a GPU and kept, against a made-up CuPy."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import over_cupy
import pytest

from meshrun.runner.system import cached_files
from meshrun.runner.system.compiler import NotCompiled


class Cupy:
    """Stands in for CuPy: `compiled` lists what was compiled, `loaded` the binaries that were loaded."""

    def __init__(self) -> None:
        self.compiled: list[tuple[str, tuple[str, ...]]] = []
        self.loaded: list[bytes] = []
        self.cupy = MagicMock()
        cuda = self.cupy.cuda
        cuda.Device.return_value.compute_capability = "90"
        cuda.get_cuda_path.return_value = None
        cuda.nvrtc.getVersion.return_value = (13, 0)
        cuda.compiler.compile_using_nvrtc.side_effect = self._compile
        cuda.function.Module.side_effect = self._module
        cuda.driver.funcGetAttribute.side_effect = lambda attribute, kernel: {3: 16, 4: 40}[attribute]

    def _compile(self, source: str, options: Any, _: Any, __: str, names: tuple[str]) -> Any:
        self.compiled.append((source, options))
        return b"binary\0of " + source.encode(), {names[0]: f"mangled_{names[0]}"}

    def _module(self) -> Any:
        module = MagicMock()
        module.load.side_effect = self.loaded.append
        module.get_function.side_effect = lambda name: MagicMock(ptr=7, of=name)
        return module


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cupy]:
    made = Cupy()
    monkeypatch.setitem(sys.modules, "cupy", made.cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", made.cupy.cuda)
    over_cupy.forget()
    yield made
    over_cupy.forget()


@pytest.fixture
def nvrtc(cupy: Cupy) -> ModuleType:
    return importlib.import_module("meshrun.runner.device.nvrtc")


def test_a_kernel_is_compiled_once_for_each_text_and_option(
    cupy: Cupy, nvrtc: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nvrtc, "cache_folder", lambda: tmp_path / "meshrun")
    for _ in range(2):
        kernel = nvrtc.compile_kernel("text", "add<float>", ("--fmad=false",))
        assert kernel.of == "mangled_add<float>"
    assert len(cupy.compiled) == 1
    assert cupy.loaded == [b"binary\0of text"] * 2
    nvrtc.compile_kernel("text", "add<float>", ("--fmad=true",))
    nvrtc.compile_kernel("other text", "add<float>", ("--fmad=false",))
    cupy.cupy.cuda.Device.return_value.compute_capability = "100"
    nvrtc.compile_kernel("text", "add<float>", ("--fmad=false",))
    assert len(cupy.compiled) == 4
    assert not any("ftz=true" in option for _, options in cupy.compiled for option in options)


def test_a_kernel_that_is_cut_short_is_compiled_anew(
    cupy: Cupy, nvrtc: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nvrtc, "cache_folder", lambda: tmp_path / "meshrun")
    nvrtc.compile_kernel("text", "add", ())
    (kept,) = (tmp_path / "meshrun").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    nvrtc.compile_kernel("text", "add", ())
    nvrtc.compile_kernel("text", "add", ())
    assert len(cupy.compiled) == 2
    assert cupy.loaded == [b"binary\0of text"] * 3


@pytest.mark.parametrize("folder", [None, "file", "full"])
def test_a_kernel_that_cannot_be_kept_is_compiled_all_the_same(
    cupy: Cupy, nvrtc: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str | None
) -> None:
    place = tmp_path / "meshrun"
    if folder == "file":
        place.write_text("no folder")
    if folder == "full":
        monkeypatch.setattr(cached_files, "write", MagicMock(side_effect=OSError(28, "No space left")))
    monkeypatch.setattr(nvrtc, "cache_folder", lambda: None if folder is None else place)
    assert nvrtc.compile_kernel("text", "add", ()).of == "mangled_add"
    assert cupy.loaded == [b"binary\0of text"]


def test_more_shared_memory_than_usual_is_asked_for(
    cupy: Cupy, nvrtc: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "cache_folder", lambda: None)
    ask = cupy.cupy.cuda.driver.funcSetAttribute
    nvrtc.compile_kernel("text", "add", (), 48 << 10)
    assert not ask.called
    nvrtc.compile_kernel("text", "add", (), 64 << 10)
    ask.assert_called_once_with(7, 8, 64 << 10)


def test_registers_and_local_memory_are_told_apart(cupy: Cupy, nvrtc: Any) -> None:
    kernel = MagicMock(ptr=7)
    assert (nvrtc.registers_of(kernel), nvrtc.local_bytes_of(kernel)) == (40, 16)


LOG = """kernel.cu(12): warning #177-D: variable "x" was declared but never referenced

kernel.cu(34): error: identifier "roots" is undefined
1 error detected in the compilation of "kernel.cu".
"""


class CompileException(Exception):
    """As CuPy's."""


@pytest.mark.parametrize(
    ("failure", "reason", "at"),
    [
        (CompileException(LOG), 'CUDA\'s compiler fails: identifier "roots" is undefined', 34),
        (CompileException("kernel.cu(7): catastrophic error: out of memory"), "fails: out of memory", 7),
        (CompileException("ptxas fatal: too much\nmore"), "fails: ptxas fatal: too much", 0),
        (RuntimeError("CUDA_ERROR_INVALID_IMAGE: device kernel image\nmore"), "CUDA refuses the kernel", 0),
    ],
)
def test_what_the_compiler_says_of_a_generated_text_is_one_sentence(
    cupy: Cupy, nvrtc: Any, monkeypatch: pytest.MonkeyPatch, failure: Exception, reason: str, at: int
) -> None:
    """Its first error, without the warnings before it and the lines after it."""
    monkeypatch.setattr(nvrtc, "cache_folder", lambda: None)
    cupy.cupy.cuda.compiler.CompileException = CompileException
    cupy.cupy.cuda.compiler.compile_using_nvrtc.side_effect = failure
    cupy.cupy.cuda.runtime.getDevice.return_value = 0
    cuda = importlib.import_module("meshrun.runner.device.cuda")
    with pytest.raises(NotCompiled) as raised:
        cuda.kernel_of_text("text", "add")
    assert reason in raised.value.reason
    assert "\n" not in str(raised.value)
    assert raised.value.at == at
    with pytest.raises(type(failure)):  # a kernel of the user's own: with all that the compiler says
        cuda.kernel(Path(__file__), "add")
