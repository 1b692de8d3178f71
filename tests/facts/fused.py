"""Programs to fuse: traced examples; their blocks and outputs; and their kernels, run on the host."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runner.fuse.graph import Extents, Operand, Program
from runner.fuse.single_pass import PassKernel, launch_arguments
from runner.fuse.trace import trace
from runner.job.discover import find

ROOT = Path(__file__).parents[2]
SHIM = ROOT / "tests" / "unit" / "fuse" / "host"
GXX = shutil.which("g++")
FLAGS = (
    "-std=c++17",
    "-O0",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-shared",
    "-fPIC",
    "-w",
    f"-I{SHIM}",
)
Array = np.ndarray[Any, Any]
Run = Callable[[PassKernel, Sequence[Any], Sequence[Any], Extents], None]


# Programs


def edges(block: Any, *, gain: float = 1.0) -> Any:
    """Return what the README's example does."""
    block = block.astype("float32")
    down, right = block[2:, 1:-1] - block[:-2, 1:-1], block[1:-1, 2:] - block[1:-1, :-2]
    return gain * (down**2 + right**2) ** 0.5


def axpy(x: Any, y: Any) -> Any:
    return 3 * x + y


def grayscale(block: Any) -> Any:
    """Return one component of three."""
    weighted = block.astype("float32")
    return (0.299 * weighted[..., 0] + 0.587 * weighted[..., 1] + 0.114 * weighted[..., 2]).astype("uint8")


def example(name: str, dtype: str, axes: int = 2, trailing: tuple[int, ...] = ()) -> Program:
    """Trace `edges`, `axpy`, `grayscale`, or one of the examples, with the halo that it needs."""
    kind, own = np.dtype(dtype), {"edges": edges, "axpy": axpy, "grayscale": grayscale}
    if name in own:
        arrays = ("x", "y") if name == "axpy" else ("block",)
        inputs = [Operand(one, kind, trailing) for one in arrays]
        return trace(own[name], inputs, halo(name, axes), {}, frozenset(), ("output",))
    job = find(f"{ROOT}/examples/{name}.py:{name}")
    inputs = [Operand(one, kind, trailing) for one in job.arrays]
    return trace(job.function, inputs, halo(name, axes), job.complete({}), job.services, job.output_names)


def halo(name: str, axes: int) -> Extents:
    width = 0 if name in ("axpy", "blend", "grayscale") else 1
    return ((width, width),) * axes


EXAMPLES = [
    ("edges", "float32", 2, ()), ("edges", "uint8", 2, ()), ("edges", "uint8", 2, (3,)),
    ("edges", "float16", 2, ()), ("heat", "float32", 2, ()), ("heat", "float64", 2, ()),
    ("heat", "float16", 2, ()), ("heat", "uint16", 2, ()), ("heat", "float32", 2, (3,)),
    ("life", "uint8", 2, ()), ("life", "uint16", 2, ()), ("life", "bool", 2, ()),
    ("gray_scott", "float32", 2, ()), ("gray_scott", "float64", 2, ()), ("wave", "float32", 2, ()),
    ("wave", "float64", 2, ()), ("diffusion3d", "float32", 3, ()), ("diffusion3d", "float64", 3, ()),
    ("axpy", "float32", 1, ()), ("axpy", "float64", 2, ()), ("axpy", "uint8", 4, ()),
    ("axpy", "int64", 2, ()), ("axpy", "uint32", 1, ()), ("blend", "uint8", 2, (3,)),
    ("grayscale", "uint8", 2, (3,)),
]  # fmt: skip


def widths_of(program: Program) -> Extents:
    """Return the narrowest halo for all inputs."""
    each = [program.footprint(number) for number in range(len(program.inputs))]
    return tuple(
        (max(one[axis][0] for one in each), max(one[axis][1] for one in each)) for axis in range(program.axes)
    )


# Arrays


def noise(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    """Return integers of the whole range and small ones; floats, some of which are not finite."""
    generator, kind = np.random.default_rng([seed, *shape]), np.dtype(dtype)
    if kind.kind == "b":
        return generator.integers(0, 2, shape).astype(bool)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        wide = generator.integers(limits.min, limits.max, shape, kind, endpoint=True)
        return np.where(generator.random(shape) < 0.5, wide, generator.integers(0, 5, shape).astype(kind))
    array = (generator.standard_normal(shape) * 4).astype(kind)
    array[generator.random(shape) < 0.02] = np.inf
    array[generator.random(shape) < 0.02] = np.nan
    return array


def view(shape: tuple[int, ...], dtype: Any, axes: int, xp: Any = np, odd: int = 0) -> Any:
    """Return a view of a larger array: rows `odd` cells longer, that begin `odd` elements into the memory."""
    grid = tuple(n + odd for n in shape[:axes])
    trailing = shape[axes:]
    size = int(np.prod(grid + trailing, dtype=np.int64))
    memory = xp.zeros(size + odd, dtype)[odd:].reshape(grid + trailing)
    return memory[tuple(slice(0, n) for n in shape[:axes])]


def cases(program: Program, own: tuple[int, ...], odd: int, xp: Any = np) -> tuple[list[Any], list[Any]]:
    """Return blocks with noise and outputs with a pattern, at addresses and pitches shifted by `odd`."""
    blocks, outs = [], []
    grid = tuple(n + a + b for n, (a, b) in zip(own, widths_of(program), strict=True))
    for number, one in enumerate(program.inputs):
        block = view(grid + one.trailing, one.dtype, program.axes, xp, odd)
        values = noise(block.shape, one.dtype, number)
        block[...] = values if xp is np else xp.asarray(values)
        blocks.append(block)
    for one in program.outputs:
        out = view(own + one.trailing, one.dtype, program.axes, xp, odd and odd + 1)
        out[...] = 1
        outs.append(out)
    return blocks, outs


def same(found: Array, expected: Array) -> None:
    """Assert the same bits; one NaN is as good as another."""
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    if found.dtype.kind == "f":
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(expected)[number])


# Kernels on the host


def host(folder: Path, kernels: Sequence[PassKernel]) -> list[Run]:
    """Compile kernels with g++, in one library; return for each a function that runs all its threads."""
    assert GXX is not None
    headers, *_ = kernels[0].source.partition("__global__")
    parts = ['#include "cuda.h"', headers]
    for number, kernel in enumerate(kernels):
        _, _, body = kernel.source.partition("__global__")
        parts += [
            f"namespace kernel{number} {{ __global__{body} }}",
            f'extern "C" void run{number}(unsigned grid, unsigned x, unsigned y, void** arguments) '
            f"{{ launch(kernel{number}::{kernel.name}, grid, x, y, arguments); }}",
        ]
    (folder / "kernels.cpp").write_text("\n".join(parts))
    made = folder / "kernels.so"
    subprocess.run([GXX, *FLAGS, str(folder / "kernels.cpp"), "-o", str(made)], check=True)
    library = ctypes.CDLL(str(made))

    def runner(number: int) -> Run:
        def run(kernel: PassKernel, blocks: Sequence[Any], outs: Sequence[Any], widths: Extents) -> None:
            launch = launch_arguments(kernel, blocks, outs, widths)
            pointers = [np.array(one) for one in launch.arguments]
            array = (ctypes.c_void_p * len(pointers))(*[one.ctypes.data for one in pointers])
            library[f"run{number}"](*launch.grid, *launch.block, array)

        return run

    return [runner(number) for number in range(len(kernels))]


def shapes(axes: int) -> list[tuple[int, ...]]:
    """Return own cells smaller than a tile, odd, and larger than a block along the last axis."""
    short = [(1, 2, 3, 5), (3, 1, 9, 17), (2, 3, 5, 301)]
    return [one[-axes:] for one in short]
