"""Complex numbers on a GPU: NumPy's numbers within rounding, by one pass and by kernels of several steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.compiler.compiled import DeviceKernel
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Operand
from meshrun.runner.compiler.trace.trace import trace

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
def test_steps(kind: str, steps: int, tmp_path: Path) -> None:
    expected = numbers(kind, (96, 130))
    before, after = tmp_path / "before.npy", tmp_path / "after.npy"
    np.save(before, expected)
    for _ in range(steps):
        expected = evolve.function(expected.copy())
    evolve.run(before, after, steps=steps, device="cuda", fuse="require")
    few = 2000 * np.finfo(expected.dtype).eps
    assert np.allclose(np.load(after), expected, rtol=few, atol=few)
