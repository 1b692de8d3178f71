"""The kernels' own arithmetic, compiled for the host and launched by the jobs' GPU code paths.

No GPU needed: host/cuda_fp16.h runs a grid thread by thread. Every result must be what the job's
NumPy path gives, to the bit, except for library functions.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from on_device import OnDevice

from meshrun.jobs.filters import convolve as convolve_module
from meshrun.jobs.filters import moments, statistics
from meshrun.jobs.filters.dtypes import SUPPORTED

pytestmark = pytest.mark.usefixtures("kernels_on_host")


@pytest.fixture(autouse=True)
def any_taps_by_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the kernel for many taps convolve with few, too."""
    monkeypatch.setattr(convolve_module, "MOST_TAPS", 0)


class FakeStream:
    def synchronize(self) -> None:
        pass


# As much of CuPy as the jobs ask of it, over NumPy.
FAKE_CUPY: Any = ModuleType("cupy")
FAKE_CUPY.empty, FAKE_CUPY.zeros = np.empty, np.zeros
FAKE_CUPY.asarray = FAKE_CUPY.asnumpy = np.asarray
FAKE_CUPY.cuda = SimpleNamespace(Device=lambda: SimpleNamespace(id=0), get_current_stream=FakeStream)


def noise(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    """Values all over the dtype's range, extremes included; floats with specials."""
    generator = np.random.default_rng([seed, *shape])
    kind = np.dtype(dtype)
    if kind.kind == "b":  # any byte but 0 is true
        return generator.choice(np.array([0, 1, 255], np.uint8), shape).view(bool)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        array = generator.integers(limits.min, limits.max, shape, kind, endpoint=True)
        array.flat[:: array.size // 3 or 1] = limits.max
        array.flat[1 :: array.size // 2 or 1] = limits.min
        return array
    array = (generator.standard_normal(shape) * 10.0 ** generator.integers(-3, 4, shape)).astype(kind)
    array.flat[:: array.size // 3 or 1] = np.inf
    array.flat[1 :: array.size // 2 or 1] = np.nan
    return array


def unaligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same array where the first byte is aligned to the itemsize only."""
    copy = np.empty(array.size + 1, array.dtype)[1:].reshape(array.shape)
    copy[...] = array
    return copy


def both(job: Any, block: np.ndarray[Any, Any], shape: tuple[int, ...], **parameters: Any) -> None:
    """The kernel's result, to the bit NumPy's."""
    shape, dtype = job.out(shape, block.dtype, **parameters)
    results = []
    for xp, placed in ((np, unaligned), (FAKE_CUPY, unaligned), (FAKE_CUPY, np.array)):
        out, source = placed(np.full(shape, 77, dtype)), placed(block)
        if xp is not np:
            out, source = out.view(OnDevice), source.view(OnDevice)
        job.function(source, out=out, xp=xp, **parameters)
        results.append(np.asarray(out))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
    if job.strided_out:
        halo = job.halo_for(parameters) if callable(job.halo) else job.halo
        assert_fills_apart(job, block, results[0], len(halo), **parameters)


def assert_fills_apart(
    job: Any, block: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], axes: int, **parameters: Any
) -> None:
    """The same where rows of the result are apart, as in a padded block; nothing between them changes."""
    for xp in (np, FAKE_CUPY):
        whole = np.full(
            [n + 3 for n in expected.shape[:axes]] + list(expected.shape[axes:]), 55, expected.dtype
        )
        inner, kind = (slice(2, -1),) * axes, np.ndarray if xp is np else OnDevice
        job.function(block.copy().view(kind), out=whole[inner].view(kind), xp=xp, **parameters)
        np.testing.assert_array_equal(whole[inner], expected)
        whole[inner] = 55
        assert (whole == 55).all()


@pytest.mark.parametrize(
    ("source", "kernel", "parameters"),
    [
        ("uint8", "1 2 1; 2 4 2; 1 2 1", {"normalize": True}),
        ("uint8", "1 0 -1; 2 0 -2", {"dtype": "int16"}),
        ("uint8", "0.1 0.2; 0.3 0.4", {}),
        ("uint16", "-3 1e6 2", {"dtype": "int32"}),
        ("int32", "1 2 3 4;", {}),
        ("int32", "1 1; 1 1; 1 2", {"normalize": True}),
        ("float16", "1 2 1; 2 4 2; 1 2 1", {"normalize": True}),
        ("float32", "0.1 0.2 0.3; 0 -1 1e-3", {}),
        ("float64", "0.1 0.2 0.3; 0 -1 1e-3", {"dtype": "int32"}),
        ("float32", "0 0; 0 0", {}),
        ("bool", "1 1 1; 1 0 1; 1 1 1", {}),
        ("int8", "1 -2 3", {"dtype": "int64"}),
        ("uint32", "1 2 1; 2 4 2; 1 2 1", {"normalize": True}),
        ("int64", "1 2 1; 2 4 -2; 1 2 1", {}),
        ("int64", "1 2 1; 2 4 2; 1 2 1", {"normalize": True}),
        ("int64", "3 -1e6 2", {"dtype": "float32"}),
        ("uint64", "1 2 1; 2 4 2; 1 2 1", {"normalize": True}),
        ("uint64", "-2 1 3", {}),
        ("uint64", "0.1 0.5;", {}),
    ],
)
def test_convolve(source: str, kernel: str, parameters: dict[str, Any]) -> None:
    job = convolve_module.convolve
    widths = job.halo_for({"kernel": kernel, **parameters})
    for shape in [(1, 1), (5, 7), (3, 1100), (6, 5, 3)]:
        padded = tuple(n + sum(w) for n, w in zip(shape, [*widths, (0, 0), (0, 0)], strict=False))
        both(job, noise(padded, source), shape, kernel=kernel, **parameters)


def test_convolve_with_a_kernel_of_three_axes(tmp_path: Path) -> None:
    kernel = str(tmp_path / "kernel.npy")
    np.save(kernel, np.random.default_rng(1).standard_normal((2, 3, 4)))
    for shape in [(3, 4, 5), (2, 3, 4, 2)]:
        padded = (shape[0] + 1, shape[1] + 2, shape[2] + 3, *shape[3:])
        both(convolve_module.convolve, noise(padded, "float32"), shape, kernel=kernel)


@pytest.mark.parametrize("source", SUPPORTED)
def test_moments_and_histogram(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (moments, statistics):
        monkeypatch.setattr(module, "BLOCKS", 8)  # one after another here
    for size in (1, 100, 100_003):
        block = noise((size,), source)
        host, device = moments.of_tile(np, block), moments.of_tile(FAKE_CUPY, block)
        assert device[:3] == host[:3]
        if host.finite:
            assert device[3:5] == host[3:5]
            np.testing.assert_allclose(device[5:], host[5:], rtol=1e-12, atol=1e-9 * abs(host.high))
        for bins in (1, 64, 20_000):
            arguments = {"bins": bins, "edges": (-100.5, 201.25)}
            expected = statistics._histogram(np, block, **arguments)
            np.testing.assert_array_equal(statistics._histogram(FAKE_CUPY, block, **arguments), expected)


def test_moments_of_large_close_values_keep_their_spread() -> None:
    block = 1e9 + np.random.default_rng(2).standard_normal(200_000)
    for xp in (np, FAKE_CUPY):
        found = moments.of_tile(xp, block)
        np.testing.assert_allclose(found.squares / found.finite, np.var(block - 1e9), rtol=1e-6)


def test_nothing_finite() -> None:
    block = np.array([np.nan, np.inf, -np.inf, np.nan], np.float16)
    for xp in (np, FAKE_CUPY):
        assert moments.of_tile(xp, block)[:3] == (0, 2, 2)


def test_elements_at_the_edges_of_bins_are_counted_as_numpy_does() -> None:
    arguments = {"bins": 7, "edges": (-1.3, 2.9)}
    edges = np.linspace(-1.3, 2.9, 8)
    block = np.concatenate([np.nextafter(edges, -np.inf), edges, np.nextafter(edges, np.inf)])
    expected = statistics._histogram(np, block, **arguments)
    np.testing.assert_array_equal(statistics._histogram(FAKE_CUPY, block, **arguments), expected)
    assert expected[-2:].tolist() == [1, 1]
