"""Complex numbers on a GPU: NumPy's numbers within rounding, by one pass and by kernels of several steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.compiler.cuda.steps.layout import Axis
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Operand
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.world.world import World

cupy = pytest.importorskip("cupy", reason="needs CuPy")

WIDTHS = ((1, 1), (1, 1))
OWN = (slice(1, -1), slice(1, -1))


def numbers(kind: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(kind)


def sums(a, b):
    return a[2:, 1:-1] - b[OWN].conj() + 1j


def functions(a, b):
    z, w = a[OWN], b[OWN]
    return z * w, z / w, np.exp(z), np.abs(z), np.angle(z), np.sqrt(z), z**3, np.where(z.real > w.imag, z, w)


@pytest.mark.parametrize("kind", ["c8", "c16"])
@pytest.mark.parametrize(("function", "results", "ulps"), [(sums, 1, 0), (functions, 8, 8)])
@pytest.mark.parametrize("own", [(1, 1), (7, 33), (130, 517)])
def test_one_pass(function: Any, results: int, ulps: int, kind: str, own: tuple[int, int]) -> None:
    blocks = [numbers(kind, (own[0] + 2, own[1] + 2), seed) for seed in (0, 1)]
    inputs = [Operand(f"in{n}", one.dtype) for n, one in enumerate(blocks)]
    program = trace(function, inputs, WIDTHS, {}, frozenset(), [f"r{n}" for n in range(results)])
    expected = evaluate(program, blocks, WIDTHS)
    outs = [cupy.empty(own, one.dtype) for one in program.outputs]
    kernel = DeviceKernel(program, WIDTHS)
    kernel([cupy.asarray(one) for one in blocks], outs, (0, 0))
    for out, wanted in zip(outs, expected, strict=True):
        few = ulps * np.finfo(wanted.dtype).eps
        assert (np.abs(out.get() - wanted) <= few * np.abs(wanted)).all()


@pytest.mark.parametrize("first", [0, 1, 2])
def test_cells_at_any_address(first: int) -> None:
    """A complex64 of which CuPy makes a view may begin between two multiples of 8 bytes."""
    block = numbers("c8", (9, 35))
    program = trace(
        sums, [Operand("a", block.dtype), Operand("b", block.dtype)], WIDTHS, {}, frozenset(), ["r"]
    )
    (expected,) = evaluate(program, [block, block], WIDTHS)
    memory = cupy.zeros(2 * block.size + first, "f4")
    moved = memory[first:].view("c8").reshape(block.shape)
    moved[...] = cupy.asarray(block)
    out = cupy.zeros(2 * expected.size + first, "f4")[first:].view("c8").reshape(expected.shape)
    DeviceKernel(program, WIDTHS)([moved, moved], [out], (0, 0))
    assert np.array_equal(out.get(), expected)


def pairs(u, v):
    """Turn vectors of two components, where a field says how far."""
    x, y = u[OWN][..., 0], u[OWN][..., 1]
    near = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[OWN]
    return np.stack(
        [x + 0.1 * near[..., 0] - 0.1 * v[OWN] * y, y + 0.1 * near[..., 1] + 0.1 * v[OWN] * x], -1
    )


@pytest.mark.parametrize("kind", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("columns", [96, 97, 512])
@pytest.mark.parametrize("steps", [2, 3])
def test_kernels_of_several_steps_have_the_bits_of_passes(kind: str, columns: int, steps: int) -> None:
    """Of pairs of real numbers, and of complex ones with a real field beside them."""
    real = np.zeros(0, kind).real.dtype
    trailing = () if kind[0] == "c" else (2,)
    inputs = [Operand("u", np.dtype(kind), trailing), Operand("v", real)]
    program = trace(twisted if kind[0] == "c" else pairs, inputs, WIDTHS, {}, frozenset(), ["out"])
    kernel = DeviceKernel(program, WIDTHS, feeds=[0], boundary="wrap")
    shape = (61, columns)
    start = numbers("c16", (*shape, *trailing))
    start = cupy.asarray((start if kind[0] == "c" else start.real).astype(kind))
    field = cupy.asarray(numbers("c16", shape, 1).real.astype(real))
    expected = start
    for _ in range(steps):
        padded = [
            cupy.pad(one, (*WIDTHS, *[(0, 0)] * (one.ndim - 2)), mode="wrap") for one in (expected, field)
        ]
        expected = cupy.empty_like(start)
        kernel(padded, [expected], (0, 0))
    out = cupy.empty_like(start)
    kernel.bind_steps(steps, [start, field], [out], [Axis(n, 0, n) for n in shape])()
    assert out.tobytes() == expected.tobytes()


def twisted(u, v):
    near = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[OWN]
    return u[OWN] + 0.1j * (near - v[OWN] * u[OWN])


@meshrun.distribute(feeds="psi")
def evolve(psi, *, dt: float = 0.05):
    """Take a step of the Ginzburg-Landau equation with a wall."""
    around = np.roll(psi, 1, 0) + np.roll(psi, -1, 0) + np.roll(psi, 1, 1) + np.roll(psi, -1, 1) - 4 * psi
    new = psi + dt * (psi + (1 + 0.5j) * around - (1 - 1j) * np.abs(psi) ** 2 * psi)
    new[0] = new[1]
    new.imag[:, -1] = 0
    return new


@pytest.mark.parametrize("kind", ["c8", "c16"])
@pytest.mark.parametrize("steps", [1, 7, 40])
def test_steps(world: World, folder: Path, kind: str, steps: int) -> None:
    expected = numbers(kind, (96, 130))
    before, after = folder / "before.npy", folder / "after.npy"
    world.on_root(lambda: np.save(before, expected))
    for _ in range(steps):
        expected = evolve.function(expected.copy())
    evolve.run(before, after, steps=steps, device="cuda", fuse="require")
    few = 2000 * np.finfo(expected.dtype).eps
    assert np.allclose(np.load(after), expected, rtol=few, atol=few)
