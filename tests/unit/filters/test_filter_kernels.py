"""The kernels that are made of the filters' NumPy functions: the bits of these functions, in every dtype.

What is traced is evaluated by NumPy; some kernels are compiled for the host and launched by the jobs' GPU
code paths. tests/unit/fuse has the kernels' own tests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from any_values import noise
from fused import GXX, launchers
from on_device import OnDevice

from meshrun.jobs.filters import convolve as convolve_module
from meshrun.jobs.filters.convolve import convolve
from meshrun.jobs.filters.dtypes import SUPPORTED, is_wide
from meshrun.jobs.filters.grayscale import grayscale
from meshrun.jobs.filters.laplacian import laplacian
from meshrun.jobs.filters.weights import read
from meshrun.runner.compiler import device_kernel
from meshrun.runner.compiler.cuda import fill
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Operand
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.plan.halo import normalize
from meshrun.runner.system.compiler import NotCompiled

Array = np.ndarray[Any, Any]
FILTERED = (
    *((source, "same") for source in SUPPORTED),
    ("uint8", "int16"), ("uint32", "int64"), ("int32", "float32"), ("int64", "int16"), ("int64", "float64"),
    ("uint64", "float32"), ("uint64", "int64"), ("float16", "float32"), ("float32", "int64"),
    ("float64", "int16"),
)  # fmt: skip
KERNELS: list[dict[str, Any]] = [
    {"kernel": "1 2 1; 2 4 2; 1 2 1", "normalize": True},
    {"kernel": "0.5 0 -2 3"},
    {"kernel": "1 0; -1 2; 3 0"},
    {"kernel": "0; 0"},
]


def case(job: Any, shape: tuple[int, ...], source: str, **parameters: Any) -> tuple[Array, Array]:
    """Return a block, and what NumPy makes of it."""
    padded = [
        n + sum(width)
        for n, width in zip(shape, normalize(job.halo_for(parameters), len(shape)), strict=True)
    ]
    block = noise(tuple(padded), source)
    out = np.empty(*job.out(shape, block.dtype, **parameters))
    services = {"xp": np} if "xp" in job.services else {}
    job.function(block, out=out, **services, **parameters)
    return block, out


@pytest.fixture
def by_numpy(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have NumPy evaluate what is traced. Returns the programs, in the order of their calls."""
    programs = []

    def call(kernel: device_kernel.DeviceKernel, blocks: Any, outs: Any, first: Any) -> None:
        programs.append(kernel.program)
        plain = [np.asarray(block) for block in blocks]
        for out, result in zip(outs, evaluate(kernel.program, plain, kernel.widths), strict=True):
            out[...] = result

    monkeypatch.setattr(device_kernel.DeviceKernel, "__call__", call)
    return programs


def same_on_device(
    job: Any, shape: tuple[int, ...], source: str, divisor: int = 1, **parameters: Any
) -> None:
    block, expected = case(job, shape, source, **parameters)
    services = {"xp": ModuleType("cupy")} if "xp" in job.services else {}
    if divisor > 1:  # large sums that mostly are in range
        block = block // block.dtype.type(divisor)
        plain = {"xp": np} if "xp" in job.services else {}
        job.function(block, out=expected, **plain, **parameters)
    halo = job.halo_for(parameters)  # rows apart, as in a padded block
    axes = len(halo) if isinstance(halo, (tuple, list)) else 0
    beside = [n + 3 if axis < axes else n for axis, n in enumerate(expected.shape)]
    whole = np.full(beside, 55, expected.dtype)
    strided = whole[(slice(2, -1),) * axes]
    packed = np.full(expected.shape, 55, expected.dtype)
    for out in (packed, strided) if job.strided_out else (packed,):
        job.function(block.view(OnDevice), out=out.view(OnDevice), **services, **parameters)
        np.testing.assert_array_equal(out, expected)
    strided[...] = 55
    assert (whole == 55).all()


@pytest.mark.parametrize(("source", "result"), FILTERED)
def test_laplacian_is_numpys(by_numpy: list[Any], source: str, result: str) -> None:
    for shape in [(1, 1), (9, 13), (5, 8, 3), (4, 3, 20), (3, 2, 2, 9)]:
        same_on_device(laplacian, shape, source, dtype=result)
        if is_wide(np.dtype(source)):
            same_on_device(laplacian, shape, source, divisor=20, dtype=result)
    assert {program.axes for program in by_numpy} == {2, 3, 4}


@pytest.mark.parametrize("source", SUPPORTED)
@pytest.mark.parametrize("weights", ["0.299 0.587 0.114", "1 0 0", "1 2 5"])
def test_grayscale_is_numpys(by_numpy: list[Any], source: str, weights: str) -> None:
    for shape in [(9, 13, 3), (4, 5, 4)]:
        same_on_device(grayscale, shape, source, weights=weights)
    assert by_numpy


@pytest.mark.parametrize(("source", "result"), FILTERED)
@pytest.mark.parametrize("parameters", KERNELS, ids=lambda one: one["kernel"])
def test_convolve_is_numpys(by_numpy: list[Any], source: str, result: str, parameters: Any) -> None:
    if source in ("uint64", "int64", "uint32", "int32") and "1 2 1" in parameters["kernel"]:
        parameters = parameters | {"normalize": False}
    for shape in [(1, 1), (9, 13), (5, 8, 3), (4, 3, 20)]:
        same_on_device(convolve, shape, source, dtype=result, **parameters)
    assert by_numpy


def test_a_kernel_of_three_axes_and_one_that_changes_its_file(by_numpy: list[Any], tmp_path: Path) -> None:
    kernel = str(tmp_path / "kernel.npy")
    for seed in (1, 2):
        np.save(kernel, np.random.default_rng(seed).standard_normal((2, 3, 4)).repeat(seed, 0))
        for shape in [(1, 1, 1), (3, 4, 5), (3, 4, 5, 6)]:
            same_on_device(convolve, shape, "float32", kernel=kernel)


def test_kernels_of_many_taps_read_them_from_memory(
    by_numpy: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = []
    monkeypatch.setattr(convolve_module, "_by_table", lambda *given: tables.append(given[2]))
    block = np.zeros((40, 40), np.float32).view(OnDevice)
    for side in (15, 16):
        text = "; ".join([" ".join(["1"] * side)] * side)
        out = np.empty((40 - side + 1,) * 2, np.float32).view(OnDevice)
        convolve.function(block, out=out, xp=ModuleType("cupy"), kernel=text)
    assert len(by_numpy) == 1
    assert [len(weights.taps) for weights in tables] == [256]
    wide = fill.kernel_of.__wrapped__  # of 64-bit integers, whose taps take the most operations
    weights = read("; ".join([" ".join(["1"] * 15)] * 15), False)
    operands = [(Operand(name, np.dtype(np.int64)),) for name in ("block0", "out0")]
    kernel = wide(convolve_module._filter, *operands, tuple(weights.widths), (("weights", weights),), 0)
    assert kernel.program.operations > 4 * 225


def test_a_kernel_of_four_axes_is_refused_on_a_gpu(tmp_path: Path) -> None:
    kernel = str(tmp_path / "kernel.npy")
    np.save(kernel, np.ones((1, 1, 1, 2)))
    block, out = np.ones((2, 2, 2, 2), np.float32), np.empty((2, 2, 2, 1), np.float32)
    with pytest.raises(UserError, match="--device cpu"):
        convolve.function(block.view(OnDevice), out=out.view(OnDevice), xp=ModuleType("cupy"), kernel=kernel)


# Some kernels on the host


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """Have kernels run on the host. Returns their texts."""
    if GXX is None:
        pytest.skip("needs g++")
    texts: list[str] = []

    def kernel_of_text(source: str, name: str, options: Any, shared: int = 0) -> Callable[..., None]:
        texts.append(source)
        kernel: Any = SimpleNamespace(source=source, name=name)
        return launchers(tmp_path, [kernel])[0]

    monkeypatch.setitem(
        sys.modules, "meshrun.runner.device.cuda", SimpleNamespace(kernel_of_text=kernel_of_text)
    )
    fill.kernel_of.cache_clear()
    yield texts
    fill.kernel_of.cache_clear()


@pytest.mark.parametrize(
    ("job", "shape", "source", "parameters"),
    [
        (laplacian, (37, 129), "uint8", {"dtype": "same"}),
        (laplacian, (37, 41, 3), "uint8", {"dtype": "int16"}),
        (laplacian, (20, 41), "uint64", {"dtype": "same"}),
        (laplacian, (20, 41), "int64", {"dtype": "int16"}),
        (laplacian, (20, 41), "float32", {"dtype": "int64"}),
        (laplacian, (20, 41), "float16", {}),
        (grayscale, (20, 41, 3), "uint8", {}),
        (grayscale, (20, 41, 4), "int64", {}),
        (convolve, (20, 41), "uint8", {"kernel": "1 2 1; 2 4 2; 1 2 1", "normalize": True}),
        (convolve, (20, 41), "float64", {"kernel": "0.5 1 -2 3;", "dtype": "int16"}),
    ],
)
def test_some_kernels_on_the_host(
    on_host: list[str], job: Any, shape: tuple[int, ...], source: str, parameters: dict[str, Any]
) -> None:
    same_on_device(job, shape, source, **parameters)
    assert len(on_host) == 1


def test_a_kernel_that_does_not_compile_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> Any:
        raise NotCompiled("CUDA's compiler fails: it is tired")

    monkeypatch.setitem(sys.modules, "meshrun.runner.device.cuda", SimpleNamespace(kernel_of_text=refuse))
    fill.kernel_of.cache_clear()
    block, out = np.zeros((5, 6), np.float32), np.zeros((3, 4), np.float32)
    with pytest.raises(RunError, match=r"it is tired\. Try: --device cpu"):
        laplacian.function(block.view(OnDevice), out=out.view(OnDevice))
    fill.kernel_of.cache_clear()
