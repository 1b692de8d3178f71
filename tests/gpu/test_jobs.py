"""Each built-in job's function on a GPU against itself on NumPy: the same bits, but for library functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshrun.jobs.filters import moments, statistics
from meshrun.jobs.filters.convolve import convolve
from meshrun.jobs.filters.dtypes import SUPPORTED, is_wide
from meshrun.jobs.filters.elementwise import elementwise
from meshrun.jobs.filters.expression import FUNCTIONS
from meshrun.jobs.filters.grayscale import grayscale
from meshrun.jobs.filters.laplacian import laplacian
from meshrun.runner.device.api import poison
from meshrun.runner.job.declaration import Job
from meshrun.runner.plan.halo import normalize

cupy = pytest.importorskip("cupy", reason="needs CuPy")
Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

SHAPES: list[Shape] = [(1, 1), (1, 1031), (1031, 1), (8, 8), (37, 129), (257, 513), (64, 4096), (50, 33, 3)]


def noise(shape: Shape, dtype: str) -> Array:
    """Values over an integer type's whole range; floats over six decades, with infinities and NaN."""
    generator = np.random.default_rng([7, *shape])
    kind = np.dtype(dtype)
    if kind.kind == "b":  # any byte but 0 is true
        return generator.choice(np.array([0, 1, 255], np.uint8), shape).view(bool)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return generator.integers(limits.min, limits.max, shape, kind, endpoint=True)
    array = (generator.standard_normal(shape) * 10.0 ** generator.integers(-3, 4, shape)).astype(kind)
    if array.size > 100:
        array.flat[:: array.size // 3] = np.inf
        array.flat[1 :: array.size // 2] = np.nan
    return array


def padded_shape(job: Job, shape: Shape, parameters: dict[str, Any]) -> Shape:
    widths = normalize(job.halo_for(parameters), len(shape))
    return tuple(length + sum(width) for length, width in zip(shape, widths, strict=True))


def services(job: Job, xp: Any) -> dict[str, Any]:
    return {"xp": xp} if "xp" in job.services else {}


def on_gpu(
    job: Job, block: Array, shape: Shape, dtype: np.dtype[Any], shift: int, /, **parameters: Any
) -> Array:
    """The job's result on the GPU, in views that begin `shift` elements into their memory."""
    source = cupy.empty(block.size + shift, block.dtype)[shift:].reshape(block.shape)
    source.set(block)
    out = cupy.empty(int(np.prod(shape)) + shift, dtype)[shift:].reshape(shape)
    poison(out)
    job.function(source, out=out, **services(job, cupy), **parameters)
    return out.get()


def compare(job: Job, shape: Shape, dtype: str, /, *, divisor: int = 1, **parameters: Any) -> None:
    """GPU and NumPy to the bit, from blocks at any alignment."""
    assert job.out is not None
    block = noise(padded_shape(job, shape, parameters), dtype)
    block = block if divisor == 1 else block // block.dtype.type(divisor)
    out_shape, out_dtype = job.out(shape, block.dtype, **parameters)
    expected = np.empty(out_shape, out_dtype)
    job.function(block, out=expected, **services(job, np), **parameters)
    for shift in (0, 1, 3):
        found = on_gpu(job, block, out_shape, out_dtype, shift, **parameters)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", SUPPORTED)
@pytest.mark.parametrize("result", ["same", "int16", "int32", "int64", "float32", "float64"])
def test_laplacian(dtype: str, result: str) -> None:
    for shape in [*SHAPES, (40, 31, 4), (20, 30, 2), (9, 10, 2, 5)]:
        compare(laplacian, shape, dtype, dtype=result)
        if is_wide(np.dtype(dtype)):  # large sums that mostly are in range
            compare(laplacian, shape, dtype, divisor=20, dtype=result)


@pytest.mark.parametrize("dtype", SUPPORTED)
def test_grayscale(dtype: str) -> None:
    for shape in [(1, 1, 3), (1, 1025, 4), (257, 511, 3), (300, 256, 4)]:
        compare(grayscale, shape, dtype)
        compare(grayscale, shape, dtype, weights="0.2126 0.7152 0.0722")


@pytest.mark.parametrize("dtype", SUPPORTED)
@pytest.mark.parametrize(
    "parameters",
    [
        {"kernel": "1 2 1; 2 4 2; 1 2 1", "normalize": True},
        {"kernel": "1 0 -1; 2 0 -2; 1 0 -1", "dtype": "int16"},
        {"kernel": "0.1 0.2 0.3 0.4; 0.5 -0.6 0.7 0"},
        {"kernel": "0.1 0.2; 0.3 0.4; 0.5 0.6", "dtype": "float64"},
        {"kernel": "1e5 -3 2"},
        {"kernel": "1 2 1; 2 4 -9; 1 2 1"},  # sums of 64 bits in range
        {"kernel": "0; 0"},
    ],
    ids=lambda parameters: parameters["kernel"],
)
def test_convolve(dtype: str, parameters: dict[str, Any]) -> None:
    for shape in SHAPES:
        compare(convolve, shape, dtype, **parameters)


def test_convolve_with_a_kernel_of_three_axes(tmp_path: Any) -> None:
    kernel = str(tmp_path / "kernel.npy")
    np.save(kernel, np.random.default_rng(1).standard_normal((2, 3, 4)))
    for shape in [(1, 1, 1), (5, 17, 700), (3, 4, 5, 6)]:
        for dtype in ("int32", "float32"):
            compare(convolve, shape, dtype, kernel=kernel)


@pytest.mark.parametrize("dtype", SUPPORTED)
@pytest.mark.parametrize("result", ["float", "same", "uint8", "int32", "int64", "float16"])
def test_elementwise_without_library_functions(dtype: str, result: str) -> None:
    expression = "where(x > 10, x ** 2 * 3.5 - 0.1, min(max(-x, floor(x / 7)), 1e30)) + abs(x) // 1.5 % -0.7"
    for shape in SHAPES:
        compare(elementwise, shape, dtype, expression=expression, dtype=result)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "uint64", "float16", "float32", "float64"])
@pytest.mark.parametrize("name", [*FUNCTIONS, "**"])
def test_functions_are_within_their_bounds(name: str, dtype: str) -> None:
    arguments = FUNCTIONS[name][1] if name in FUNCTIONS else 0
    expression = f"{name}({', '.join(['x / 50', '0.7', 'x'][:arguments])})" if arguments else "abs(x) ** 1.7"
    block = noise((40, 53), dtype)
    if np.dtype(dtype).kind == "f":
        block[0] = np.linspace(-60, 60, 53)
    assert elementwise.out is not None
    assert elementwise.reference is not None
    shape, result = elementwise.out(block.shape, block.dtype, expression=expression)
    found = on_gpu(elementwise, block, shape, result, 0, expression=expression)
    expected, tolerance = elementwise.reference(block.astype(np.float64), expression=expression)
    with np.errstate(all="ignore"):
        limits = np.finfo(result)
        allowed = tolerance + limits.eps * (np.abs(expected) + tolerance) + limits.smallest_subnormal
        wide = found.astype(np.float64)
        good = (np.abs(wide - expected) <= allowed) | (expected.astype(result) == found)
        good |= np.isinf(tolerance) | (np.isnan(wide) & np.isnan(expected))
    assert good.all(), (block[~good][:3], wide[~good][:3], expected[~good][:3])


@pytest.mark.parametrize("dtype", SUPPORTED)
def test_statistics_of_a_tile(dtype: str) -> None:
    for size in (1, 100, 2**20 - 3):
        block = noise((size,), dtype)
        device = cupy.asarray(block)
        found, expected = moments.of_tile(cupy, device), moments.of_tile(np, block)
        assert found == moments.of_tile(cupy, device)  # the same bits every time
        assert found[:3] == expected[:3]
        if expected.finite:
            assert found[3:5] == expected[3:5]
            np.testing.assert_allclose(found[5:], expected[5:], rtol=1e-11, atol=1e-9 * abs(expected.high))
        for bins in (1, 64, 8190, 8191, 65536):
            arguments: dict[str, Any] = {"bins": bins, "edges": (-100.5, 201.25)}
            counts = statistics._histogram(cupy, device, **arguments)
            np.testing.assert_array_equal(counts, statistics._histogram(np, block, **arguments))


def test_a_kernel_runs_on_the_current_stream() -> None:
    """Issued to a stream that is busy, a kernel must wait for what came before it there."""
    block = np.random.default_rng(1).random((514, 514)).astype(np.float32)
    expected = np.empty((512, 512), np.float32)
    laplacian.function(block, out=expected)
    source, out = cupy.zeros(block.shape, cupy.float32), cupy.empty((512, 512), cupy.float32)
    busy, ready = cupy.ones(1 << 27, cupy.float32), cupy.asarray(block)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for _ in range(50):
            busy *= 1.000001
        cupy.copyto(source, ready)
        laplacian.function(source, out=out)
        stream.synchronize()
    np.testing.assert_array_equal(out.get(), expected)


def require(gib: float) -> None:
    cupy.get_default_memory_pool().free_all_blocks()
    free = cupy.cuda.runtime.memGetInfo()[0] / 2**30
    if free < gib:
        pytest.skip(f"needs {gib} GiB of GPU memory, {free:.1f} are free")


def hashed(shape: Shape) -> Any:
    """uint8 values that depend on the place, on the GPU, made in pieces."""
    array = cupy.empty(shape, cupy.uint8)
    flat = array.reshape(-1)
    for start in range(0, flat.size, 1 << 27):
        index = cupy.arange(start, min(start + (1 << 27), flat.size), dtype=cupy.uint64)
        index *= np.uint64(0x9E3779B97F4A7C15)
        flat[start : start + (1 << 27)] = (index >> np.uint64(40)).astype(cupy.uint8)
    return array


@pytest.mark.parametrize(
    ("job", "shape", "parameters"),
    [
        (laplacian, (46_400, 46_400), {}),
        (convolve, (46_400, 46_400), {"kernel": "1 2 1; 2 4 2; 1 2 1", "normalize": True}),
        (elementwise, (46_400, 46_400), {"expression": "255 - x", "dtype": "same"}),
        (grayscale, (2**15, 22_000, 3), {}),
        (laplacian, (2**31 + 100, 1), {}),
        (convolve, (2**31 + 100, 1), {"kernel": "1 2 4;"}),  # more rows than a grid has blocks
    ],
    ids=lambda value: value.name if isinstance(value, Job) else None,
)
def test_more_than_2_to_the_31_elements(job: Job, shape: Shape, parameters: dict[str, Any]) -> None:
    require(16)
    block = hashed(padded_shape(job, shape, parameters))
    assert block.size > 2**31
    assert job.out is not None
    out = cupy.empty(*job.out(shape, block.dtype, **parameters))
    poison(out)
    job.function(block, out=out, **services(job, cupy), **parameters)
    halo = block.shape[0] - shape[0]
    for row in (0, shape[0] // 2, shape[0] - 50):
        part = block[row : row + 50 + halo].get()
        expected = np.empty((50, *out.shape[1:]), out.dtype)
        job.function(part, out=expected, **services(job, np), **parameters)
        np.testing.assert_array_equal(out[row : row + 50].get(), expected)
