"""Programs to fuse: traced examples; their blocks and outputs; and their kernels, run on the host."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.compiler.cuda.pass_launch import launch_arguments
from meshrun.runner.compiler.cuda.single_pass import PassKernel
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Extents, Graph, Node, Operand, Program
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.job.discover import find

ROOT = Path(__file__).parents[2]
SHIM = ROOT / "tests" / "unit" / "compiler" / "host"
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
F4, U1, BOOL = np.dtype("f4"), np.dtype("u1"), np.dtype(bool)
Array = np.ndarray[Any, Any]
Launch = Callable[..., None]  # of a grid, a block, arguments and bytes of shared memory
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


def seven_point(field: Any, *, rate: float = 0.1) -> Any:
    """Return one step of heat in a cube."""
    centre = field[1:-1, 1:-1, 1:-1]
    sides = field[:-2, 1:-1, 1:-1] + field[2:, 1:-1, 1:-1] + field[1:-1, :-2, 1:-1]
    sides = sides + field[1:-1, 2:, 1:-1] + field[1:-1, 1:-1, :-2] + field[1:-1, 1:-1, 2:]
    return centre + rate * (sides - 6 * centre)


def velocities(axes: int) -> list[tuple[int, ...]]:
    """Return those of D2Q9 or D3Q19, in cells a step: at rest, along an axis, then along two."""
    every = itertools.product((0, 1, -1), repeat=axes)
    return sorted((one for one in every if sum(map(abs, one)) < 3), key=lambda one: sum(map(abs, one)))


def lattice(*arrays: Any, xp: Any, rate: float = 1.2) -> Any:
    """Return one step of a lattice-Boltzmann method with walls that send back.

    Bhatnagar, Gross and Krook's collision with the incompressible equilibrium of X. He, L.-S. Luo, J. Stat.
    Phys. 88 (1997), 927-944. arrays: for each velocity, what moves with it, and a mask that is 1 in walls.
    Computes in float32.
    """
    (*fields, wall), own = arrays, slice(1, -1)
    wall = wall[(own,) * wall.ndim] == 1
    moves = velocities(wall.ndim)
    came = [
        field[tuple(slice(1 - one, -1 - one or None) for one in move)].astype("float32")
        for field, move in zip(fields, moves, strict=True)
    ]
    density = sum(came[1:], came[0])
    speed = []  # three times that
    for axis in range(wall.ndim):
        ahead = [one for one, move in zip(came, moves, strict=True) if move[axis] > 0]
        behind = [one for one, move in zip(came, moves, strict=True) if move[axis] < 0]
        speed.append((sum(ahead[1:], ahead[0]) - sum(behind[1:], behind[0])) * 3)
    least = density - sum((one * one for one in speed[1:]), speed[0] * speed[0]) * (1 / 6)
    weights = {2: (4 / 9, 1 / 9, 1 / 36), 3: (1 / 3, 1 / 18, 1 / 36)}[wall.ndim]
    scales = [rate * one for one in weights]
    results = []
    for one, move in zip(came, moves, strict=True):
        back = came[moves.index(tuple(-each for each in move))]
        part = (1 - rate) * one + _equilibrium(move, scales, least, speed)
        results.append(xp.where(wall, back, part).astype(fields[0].dtype))
    return tuple(results)


def _equilibrium(move: tuple[int, ...], scales: list[float], least: Any, speed: list[Any]) -> Any:
    """Return what `lattice` relaxes to, times the rate."""
    axes = [axis for axis, one in enumerate(move) if one]
    scale = scales[len(axes)]
    if not axes:
        return scale * least
    sign = move[axes[0]]
    along = speed[axes[0]]
    for axis in axes[1:]:
        along = along + speed[axis] if move[axis] == sign else along - speed[axis]
    even, odd = scale * (least + 0.5 * (along * along)), scale * along
    return even + odd if sign > 0 else even - odd


def traced_lattice(dtype: str, axes: int) -> Program:
    """Trace `lattice` with fields of a dtype, of D2Q9 or D3Q19."""
    names = [f"f{number}" for number in range(len(velocities(axes)))]
    inputs = [*(Operand(one, np.dtype(dtype)) for one in names), Operand("wall", np.dtype(np.uint8))]
    return trace(lattice, inputs, halo("lattice", axes), {}, frozenset({"xp"}), names)


def example(name: str, dtype: str, axes: int = 2, trailing: tuple[int, ...] = ()) -> Program:
    """Trace one of the functions above, or one of the examples, with the halo that it needs."""
    if name == "lattice":
        return traced_lattice(dtype, axes)
    kind = np.dtype(dtype)
    own = {"edges": edges, "axpy": axpy, "grayscale": grayscale, "seven_point": seven_point}
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


def masked(shared: bool = False, divisions: int = 7) -> Program:
    """where(kind == 1, divisions, a + 1); with `shared`, the divisions are a result, too."""
    graph = Graph()
    a, kind = graph.load(0, F4, (0,)), graph.load(1, U1, (0,))
    costly: Node = a
    for factor in range(3, 3 + divisions):
        costly = graph.operation("divide", F4, [costly, graph.constant(factor, F4)])
    cheap = graph.operation("add", F4, [a, graph.constant(1, F4)])
    condition = graph.operation("equal", BOOL, [kind, graph.constant(1, U1)])
    chosen = graph.operation("where", F4, [condition, costly, cheap])
    results = ((chosen,), (costly,)) if shared else ((chosen,),)
    outputs = tuple(Operand(f"b{number}", F4) for number in range(len(results)))
    return Program(1, (Operand("a", F4), Operand("kind", U1)), outputs, results, graph)


EXAMPLES = [
    ("edges", "float32", 2, ()), ("edges", "uint8", 2, ()), ("edges", "uint8", 2, (3,)),
    ("edges", "float16", 2, ()), ("heat", "float32", 2, ()), ("heat", "float64", 2, ()),
    ("heat", "float16", 2, ()), ("heat", "uint16", 2, ()), ("heat", "float32", 2, (3,)),
    ("life", "uint8", 2, ()), ("life", "uint16", 2, ()), ("life", "bool", 2, ()),
    ("gray_scott", "float32", 2, ()), ("gray_scott", "float64", 2, ()), ("wave", "float32", 2, ()),
    ("wave", "float64", 2, ()), ("diffusion3d", "float32", 3, ()), ("diffusion3d", "float64", 3, ()),
    ("axpy", "float32", 1, ()), ("axpy", "float64", 2, ()), ("axpy", "uint8", 4, ()),
    ("axpy", "int64", 2, ()), ("axpy", "uint32", 1, ()), ("blend", "uint8", 2, (3,)),
    ("grayscale", "uint8", 2, (3,)), ("seven_point", "float32", 3, ()), ("lattice", "float32", 2, ()),
    ("lattice", "float16", 2, ()), ("lattice", "float16", 3, ()),
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


def launchers(folder: Path, kernels: Sequence[PassKernel]) -> list[Launch]:
    """Compile kernels with g++, in one library; return for each what runs all its threads."""
    assert GXX is not None
    headers, *_ = kernels[0].source.partition("__global__")
    together = [kernel for kernel in kernels if getattr(kernel, "planes", None)]
    if together:
        headers, *_ = together[0].source.partition("__global__")
    parts = [f'#include "{"blocks.h" if together else "cuda.h"}"', headers]
    for number, kernel in enumerate(kernels):
        _, _, body = kernel.source.partition("__global__")
        launched = f"launch(kernel{number}::{kernel.name}, grid, x, y, arguments)"
        if kernel in together:
            launched = f"run_blocks<kernel{number}::{kernel.name}>(grid, x * y, {kernel.shared}, arguments)"
        parts += [
            f"namespace kernel{number} {{ __global__{body} }}",
            f'extern "C" void run{number}(unsigned grid, unsigned x, unsigned y, void** arguments) '
            f"{{ {launched}; }}",
        ]
    (folder / "kernels.cpp").write_text("\n".join(parts))
    made = folder / "kernels.so"
    subprocess.run([GXX, *FLAGS, str(folder / "kernels.cpp"), "-o", str(made)], check=True)
    library = ctypes.CDLL(str(made))

    def launcher(number: int) -> Launch:
        def launch(
            grid: tuple[int], block: tuple[int, int], arguments: Sequence[np.generic], shared_mem: int = 0
        ) -> None:
            pointers = [np.array(one) for one in arguments]
            array = (ctypes.c_void_p * len(pointers))(*[one.ctypes.data for one in pointers])
            library[f"run{number}"](*grid, *block, array)

        return launch

    return [launcher(number) for number in range(len(kernels))]


def host(folder: Path, kernels: Sequence[PassKernel]) -> list[Run]:
    """Compile kernels with g++; return for each a function that computes its results."""

    def runner(launch: Launch) -> Run:
        def run(kernel: PassKernel, blocks: Sequence[Any], outs: Sequence[Any], widths: Extents) -> None:
            call = launch_arguments(kernel, blocks, outs, widths)
            launch(call.grid, call.block, call.arguments)

        return run

    return [runner(launch) for launch in launchers(folder, kernels)]


def check_in_memory(program: Program, run: Run, kernel: PassKernel, own: tuple[int, ...], odd: int) -> None:
    """Compare all outputs of own cells, and that nothing else is written."""
    blocks, outs = cases(program, own, odd)
    widths = widths_of(program)
    around = [out.base.copy() if out.base is not None else out.copy() for out in outs]
    run(kernel, blocks, outs, widths)
    for out, expected, before in zip(outs, evaluate(program, blocks, widths), around, strict=True):
        same(out, expected)
        out[...] = 1
        np.testing.assert_array_equal(out.base if out.base is not None else out, before)


def shapes(axes: int) -> list[tuple[int, ...]]:
    """Return own cells smaller than a tile, odd, and larger than a block along the last axis."""
    short = [(1, 2, 3, 5), (3, 1, 9, 17), (2, 3, 5, 301)]
    return [one[-axes:] for one in short]
