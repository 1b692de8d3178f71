"""Every kernel, in every instance a job can ask for, compiles for every architecture; no GPU needed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from measured_kernels import INSTANCES

import jobs.kernels
from jobs import convolve, elementwise, grayscale, laplacian
from jobs.bench.recipe import Kind
from jobs.dtypes import SUPPORTED, floating
from jobs.expression import FUNCTIONS, cpp, parse
from jobs.kernels import instance

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and NVRTC")

FOLDER = Path(jobs.kernels.__file__).parent
RESULTS = ("int16", "int32", "float32", "float64")
ELEMENTWISE_RESULTS = ("uint8", "uint16", "int32", "float16", "float32", "float64")
ARCHITECTURES = ("80", "90", "100")
EVERYTHING = " + ".join(
    [f"{name}({', '.join(['x'] * arguments)})" for name, (_, arguments) in FUNCTIONS.items()]
    + [
        "x ** 2 - 1.5 * x / 2 // 3 % 4 ** -x + pi",
        "(x < 1) + (x <= 1) + (x > 1) + (x >= 1) + (x == 1) + (x != 1)",
    ]
)


def instances(file: str) -> Iterator[str]:
    if file == "bench_data.cu":
        for kernel, word, kind in product(("fill", "verify"), ("u1", "u2", "u4", "u8"), Kind):
            yield instance(kernel, word, int(kind))
        return
    weights = [
        convolve.read(kernel, False) for kernel in ("1", "1e5", "0.1")
    ]  # int32, int64 and float64 sums
    for source in map(np.dtype, SUPPORTED):
        results = [source, *map(np.dtype, RESULTS)]
        if file == "laplacian.cu":
            columns = laplacian.COLUMNS[source.itemsize]
            yield from (laplacian.instance(source, result, columns, 1) for result in results)
            for few, channels in product((1, columns), (0, *laplacian.CHANNELS)):
                yield laplacian.instance(source, source, few, channels)
        elif file == "grayscale.cu":
            yield grayscale.instance(source)
        elif file == "convolve.cu":
            for kernel, result in product(weights, results):
                yield convolve.instance(source, convolve.accumulator(source, result, kernel), result)
        else:
            yield instance(file.removesuffix(".cu"), source)


def include_paths() -> list[str]:
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or []) if spec else []
    headers = [header for place in places for header in Path(place).glob("*/include/cuda_fp16.h")]
    assert headers, "nvidia-cuda-runtime, which holds cuda_fp16.h, is not installed"
    return [f"-I{headers[0].parent}", f"-I{FOLDER}"]


def compile_kernel(file: str, names: list[str], architecture: str, *options: str) -> str:
    """Compile for sm_`architecture`; the compiler's log. Asserts that it succeeds and makes each instance."""
    source = (FOLDER / file).read_bytes()
    error, program = nvrtc.nvrtcCreateProgram(source, file.encode(), 0, [], [])
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS
    for name in names:
        (error,) = nvrtc.nvrtcAddNameExpression(program, name.encode())
        assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS, name
    flags = [f"-arch=sm_{architecture}", "-std=c++17", "--fmad=false", *include_paths(), *options]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    text = log.decode().strip("\0\n ")
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS, text
    for name in names:
        error, lowered = nvrtc.nvrtcGetLoweredName(program, name.encode())
        assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS, name
        assert lowered, name
    _, size = nvrtc.nvrtcGetCUBINSize(program)
    assert size > 0
    nvrtc.nvrtcDestroyProgram(program)
    return text


# Each with the instances that a job can ask for; elementwise.cu has a test of its own.
FILES = ("laplacian.cu", "grayscale.cu", "convolve.cu", "moments.cu", "histogram.cu", "bench_data.cu")


def test_every_kernel_file_is_compiled_below() -> None:
    assert {path.name for path in FOLDER.glob("*.cu")} == {*FILES, *INSTANCES, "elementwise.cu"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("file", sorted(INSTANCES))
def test_a_measured_kernel_compiles_without_a_warning(file: str, architecture: str) -> None:
    assert compile_kernel(file, list(INSTANCES[file]), architecture) == ""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("file", FILES)
def test_kernel_compiles_without_a_warning(file: str, architecture: str) -> None:
    names = sorted(set(instances(file)))
    assert len(names) >= len(SUPPORTED)
    assert compile_kernel(file, names, architecture) == ""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_elementwise_compiles_with_every_function(kind: str, architecture: str) -> None:
    results = [np.dtype(result) for result in ELEMENTWISE_RESULTS]
    pairs = [(np.dtype(a), b) for a, b in product(SUPPORTED, results) if floating(np.dtype(a), b) == kind]
    plain = [elementwise.instance(*pair) for pair in pairs]
    assert compile_kernel("elementwise.cu", plain, architecture, "-DEXPRESSION=(x + C(1))") == ""
    option = f"-DEXPRESSION={cpp(parse(EVERYTHING), np.dtype(kind))}"
    assert compile_kernel("elementwise.cu", plain[:1], architecture, option) == ""


def test_a_kernel_with_an_error_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="undefined"):
        compile_kernel(
            "elementwise.cu", ["elementwise<float, float, float>"], "90", "-DEXPRESSION=undefined(x)"
        )
