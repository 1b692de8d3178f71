"""The kernel of long lines side by side: compiled for GPUs, and launched on the host."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvrtc_log import log_of_text

from meshrun.runner.device.api import HEADERS

KERNEL = HEADERS / "fourier_lines.cu"
SHIM = Path(__file__).parents[1] / "compiler" / "host" / "warps.h"
LENGTHS = {2048: 8, 4096: 4}
SHARED = "extern __shared__ __align__(16) char memory[];"
PRELUDE = f"""#include "{SHIM}"
#define __device__
#define __forceinline__ inline
#define __align__(n) alignas(n)
"""
Array = np.ndarray[Any, Any]


def compiled(folder: Path, unguarded: str = "") -> ctypes.CDLL:
    """Every instance as run_LENGTH_inverse(blocks, out, source, pitches, lines, roots). unguarded: what is
    once in the kernel before a barrier, which is left out."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    text = KERNEL.read_text()
    changes = [(SHARED, "char* const memory = emulated::shared();")]
    if unguarded:
        changes.append((unguarded + "    __syncthreads();", unguarded))
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    parameters = (
        "unsigned blocks, Complex* out, Complex* source, long long* pitches, unsigned lines, Complex* roots"
    )
    for length, across in LENGTHS.items():
        for inverse in (0, 1):
            call = f"fourier_lines<{length}, {across}, {2 * inverse - 1}>"
            text += f"""
extern "C" void run_{length}_{inverse}({parameters}) {{
    static unsigned n;
    static Complex *to, *from, *w;
    static long long* steps;
    n = lines, to = out, from = source, w = roots, steps = pitches;
    const unsigned grid[] = {{blocks, 1, 1}};
    emulated::launch([] {{ {call}(to, from, steps[1], steps[0], n, w); }}, grid, 1024, 8 * 8 * 8 * 257);
}}
"""
    path = folder / "lines.cpp"
    path.write_text(PRELUDE + text)
    library = path.with_suffix(".so")
    subprocess.run(
        ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", str(path), "-o", str(library)], check=True
    )
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("lines"))


def transformed(library: ctypes.CDLL, source: Array, out: Array, lines: int, inverse: bool) -> None:
    """Transform the first lines of an array of (length, pitch) elements."""
    length = len(source)
    roots = np.exp((2 if inverse else -2) * np.pi * 1j * np.arange(length) / length).astype("c8")
    pitches = (ctypes.c_longlong * 2)(source.shape[1], out.shape[1])
    run: Callable[..., None] = library[f"run_{length}_{int(inverse)}"]
    pointers = [ctypes.c_void_p(one.ctypes.data) for one in (out, source, roots)]
    run(-(-lines // LENGTHS[length]), *pointers[:2], pitches, lines, pointers[2])


def noise(length: int, pitch: int) -> Array:
    real, imaginary = np.random.default_rng([length, pitch]).standard_normal((2, length, pitch))
    return (real + 1j * imaginary).astype("c8")


def check(library: ctypes.CDLL, length: int, lines: int, inverse: bool) -> None:
    source, out = noise(length, lines + 5), np.full((length, lines + 3), 7, "c8")
    given = source.copy()
    transformed(library, source, out, lines, inverse)
    assert np.array_equal(source, given)
    assert (out[:, lines:] == 7).all()
    work = np.fft.ifft if inverse else np.fft.fft
    expected = work(source[:, :lines].astype("c16"), axis=0, norm="forward" if inverse else "backward")
    error = np.linalg.norm(out[:, :lines] - expected, axis=0) / np.linalg.norm(expected, axis=0)
    assert error.max() < 2e-7


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("lines", [1, 3, 17])
def test_it_is_the_transform(library: ctypes.CDLL, length: int, lines: int, inverse: bool) -> None:
    check(library, length, lines, inverse)


@pytest.mark.parametrize("length", LENGTHS)
def test_the_result_may_take_the_place_of_the_lines(library: ctypes.CDLL, length: int) -> None:
    source = noise(length, 9)
    out = np.empty_like(source)
    transformed(library, source, out, 9, False)
    transformed(library, source, source, 9, False)
    assert np.array_equal(source, out)


@pytest.mark.parametrize(
    "after",
    ["* roots[thread * k];\n", "x[n] = some[n * LAST * LINES];\n", "* roots[16 * rest * k];\n"],
)
def test_a_missing_barrier_is_noticed(after: str, tmp_path: Path) -> None:
    library = compiled(tmp_path, after)
    with pytest.raises(AssertionError, match="2e-07"):
        check(library, 2048, 8, False)


@pytest.mark.parametrize("architecture", ["80", "90", "100"])
@pytest.mark.parametrize("length", LENGTHS)
def test_it_compiles_without_a_warning_and_spills_nothing(length: int, architecture: str) -> None:
    for sign in (-1, 1):
        name = f"fourier_lines<{length}, {LENGTHS[length]}, {sign}>"
        log = log_of_text(KERNEL.read_text(), name, ("--fmad=true",), architecture)
        assert "warning" not in log
        assert "0 bytes spill stores, 0 bytes spill loads" in log
