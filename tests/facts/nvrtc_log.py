"""What NVRTC says when it compiles a kernel; no GPU needed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from meshrun.runner.compiler.cuda.single_pass import PassKernel


def done(answer: tuple[Any, ...]) -> Any:
    """What an NVRTC call returns beside its status."""
    error, *values = answer
    assert error == type(error).NVRTC_SUCCESS, error
    return values[0] if values else None


def log_of(kernel: PassKernel, architecture: str) -> str:
    """Compile a kernel as a device does; return what the compiler says. Skip the test without NVRTC."""
    return log_of_text(kernel.source, kernel.name, ("--fmad=false",), architecture)


def log_of_text(source: str, name: str, options: Sequence[str], architecture: str) -> str:
    """As `log_of`, of the kernel `name` of a text."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and NVRTC")
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or []) if spec else []
    header = next((one for place in places for one in Path(place).glob("*/include/cuda_fp16.h")), None)
    if header is None:
        pytest.skip("needs cuda_fp16.h")
    try:
        created = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    except RuntimeError as reason:  # the library is loaded at the first call
        pytest.skip(str(reason).splitlines()[0])
    program = done(created)
    done(nvrtc.nvrtcAddNameExpression(program, name.encode()))
    flags = [f"-arch=sm_{architecture}", "-std=c++17", f"-I{header.parent}", "--ptxas-options=-v", *options]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    buffer = bytearray(done(nvrtc.nvrtcGetProgramLogSize(program)))
    done(nvrtc.nvrtcGetProgramLog(program, buffer))
    log = buffer.decode().strip("\0\n ")
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS, log
    done(nvrtc.nvrtcDestroyProgram(program))
    return log
