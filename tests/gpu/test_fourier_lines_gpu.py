"""Long lines side by side, by a kernel instead of cuFFT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshrun

cupy = pytest.importorskip("cupy", reason="needs CuPy")

from meshrun.runner.device.fourier_lines import line_plan  # noqa: E402


def noise(shape: tuple[int, ...], dtype: str = "complex64") -> Any:
    random = np.random.default_rng(shape)
    return cupy.asarray((random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(dtype))


def expected(source: Any, inverse: bool) -> Any:
    work = cupy.fft.ifft if inverse else cupy.fft.fft
    return work(source.astype("complex128"), axis=0, norm="forward" if inverse else "backward")


@pytest.mark.parametrize("length", [2048, 4096])
@pytest.mark.parametrize("lines", [1, 13, 4096])
@pytest.mark.parametrize("inverse", [False, True])
def test_it_is_the_transform(length: int, lines: int, inverse: bool) -> None:
    source, out = noise((length, lines + 3)), cupy.zeros((length, lines + 4), "complex64")
    plan = line_plan(length, lines, (lines + 3, lines + 4), source.dtype, inverse)
    assert plan is not None
    plan(source, out)
    assert not out[:, lines:].any()
    right = expected(source[:, :lines], inverse)
    assert float(cupy.linalg.norm(out[:, :lines] - right)) < 1.5e-7 * float(cupy.linalg.norm(right))
    in_place = source.copy()
    again = line_plan(length, lines, (lines + 3, lines + 3), source.dtype, inverse)
    assert again is not None
    again(in_place, in_place)
    assert bool((in_place[:, :lines] == out[:, :lines]).all())
    assert bool((in_place[:, lines:] == source[:, lines:]).all())


def test_other_lines_are_left_to_cufft() -> None:
    single, double = np.dtype("complex64"), np.dtype("complex128")
    assert line_plan(2048, 8, (8, 8), double, False) is None
    assert line_plan(1024, 8, (8, 8), single, False) is None
    assert line_plan(2047, 8, (8, 8), single, False) is None


@pytest.mark.parametrize("shape", [(2048, 6, 5), (4096, 7)])
@pytest.mark.parametrize("norm", ["backward", "ortho"])
def test_meshrun_fft_takes_them(shape: tuple[int, ...], norm: Any) -> None:
    block = noise(shape)
    given = block.copy()
    for work, name in ((meshrun.fft, "fftn"), (meshrun.ifft, "ifftn")):
        right = getattr(cupy.fft, name)(block.astype("complex128"), norm=norm)
        found = work(block, norm=norm)
        assert found.dtype == "complex64"
        assert float(cupy.linalg.norm(found - right)) < 4e-7 * float(cupy.linalg.norm(right))
        assert bool((block == given).all())
