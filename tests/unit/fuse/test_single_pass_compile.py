"""The kernel of one pass compiles for GPUs without a warning and without spilling; no GPU needed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from fused import EXAMPLES, example

from runner.fuse.graph import merge_components
from runner.fuse.single_pass import PassKernel, emit

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and NVRTC")
ARCHITECTURES = ("90", "80", "100")


def done(answer: tuple[Any, ...]) -> Any:
    """What an NVRTC call returns beside its status."""
    error, *values = answer
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS, error
    return values[0] if values else None


def log_of(kernel: PassKernel, architecture: str) -> str:
    """Compile a kernel as a device does; return what the compiler says."""
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or []) if spec else []
    header = next(header for place in places for header in Path(place).glob("*/include/cuda_fp16.h"))
    program = done(nvrtc.nvrtcCreateProgram(kernel.source.encode(), b"single_pass.cu", 0, [], []))
    done(nvrtc.nvrtcAddNameExpression(program, kernel.name.encode()))
    flags = [f"-arch=sm_{architecture}", "-std=c++17", "--fmad=false", f"-I{header.parent}"]
    flags += ["--ptxas-options=-v", *kernel.options]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    buffer = bytearray(done(nvrtc.nvrtcGetProgramLogSize(program)))
    done(nvrtc.nvrtcGetProgramLog(program, buffer))
    log = buffer.decode().strip("\0\n ")
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS, log
    done(nvrtc.nvrtcDestroyProgram(program))
    return log


# All on one architecture, each program in one dtype on the others, at night.
ONCE = [*{case[0]: case for case in EXAMPLES}.values()]
CASES: list[Any] = [(*case, ARCHITECTURES[0]) for case in EXAMPLES]
CASES += [
    pytest.param(*case, architecture, marks=pytest.mark.nightly)
    for case in ONCE
    for architecture in ARCHITECTURES[1:]
]


@pytest.mark.parametrize(("name", "dtype", "axes", "trailing", "architecture"), CASES)
def test_an_example_compiles_and_spills_nothing(
    name: str, dtype: str, axes: int, trailing: tuple[int, ...], architecture: str
) -> None:
    program, _ = merge_components(example(name, dtype, axes, trailing))
    log = log_of(emit(program), architecture)
    assert "warning" not in log
    assert re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", log) == [("0", "0")]
