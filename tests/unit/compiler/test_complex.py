"""Complex numbers: traces compute NumPy's bits by NumPy; kernels of their parts agree within rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvrtc_log import log_of

import meshrun
from meshrun.runner.compiler.cpp.host import build
from meshrun.runner.compiler.cuda.single_pass import emit
from meshrun.runner.compiler.cuda.steps.layout import NotFusable
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.operations import inexact_operations
from meshrun.runner.compiler.passes.real_parts import has_complex, in_real_parts, views_of_parts
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Operand, Program, merge_components
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.region import HostArray
from meshrun.runner.system.compiler import Compiler

WIDTHS = ((1, 1), (1, 1))
OWN = (slice(1, -1), slice(1, -1))


def numbers(dtype: str, shape: Sequence[int] = (9, 12), seed: int = 0) -> HostArray:
    rng = np.random.default_rng(seed)
    parts: HostArray = rng.normal(size=(*shape, 2)) * 2
    if np.dtype(dtype).kind != "c":
        return parts[..., 0].astype(dtype)
    return (parts[..., 0] + 1j * parts[..., 1]).astype(dtype)


def traced(function: Callable[..., Any], blocks: Sequence[HostArray], results: int = 1) -> Program:
    inputs = [Operand(f"in{n}", one.dtype, one.shape[2:]) for n, one in enumerate(blocks)]
    return trace(function, inputs, WIDTHS, {}, frozenset(), [f"r{n}" for n in range(results)])


def plain(function: Callable[..., Any], blocks: Sequence[HostArray]) -> list[HostArray]:
    with np.errstate(all="ignore"):
        results = function(*(one.copy() for one in blocks))
    return list(results) if isinstance(results, tuple) else [results]


def assert_close(found: HostArray, expected: HostArray, ulps: float) -> None:
    """Compare within so many units in the last place of the largest magnitude of a cell."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind not in "fc":
        assert np.array_equal(found, expected)
        return
    known = np.isfinite(expected)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    error = np.abs(found[known].astype("c16") - expected[known])
    few = ulps * np.finfo(expected.dtype).eps
    assert (error <= few * np.maximum(np.abs(expected[known]), np.finfo(expected.dtype).tiny)).all()


def sums(a, b):
    return a[OWN] - b[OWN] + 1j - (-a[2:, 1:-1]) + b[OWN].conj()


def parts(a, b):
    c = a[OWN].copy()
    c.real += b[OWN].imag
    c.imag[...] = a[OWN].real * 2
    return c, c.real, np.imag(c)


def choices(a, b):
    return np.where(a[OWN] == b[OWN], 1 + 2j, np.where(a[OWN].real > 0, a[OWN], 0)), a[OWN] < b[OWN]


def casts(a, b):
    return a[OWN].real.astype(a.dtype) + 2, a[OWN].astype(bool), a[OWN].imag + 1j


def products(a, b):
    return a[OWN] * b[OWN] + 0.5 * a[OWN], a[OWN] / b[OWN], 1j * a[OWN], a[OWN] / 3


def powers(a, b):
    return a[OWN] ** 2, a[OWN] ** 3, a[OWN] ** -1, a[OWN] ** -4, a[OWN] ** 0


def functions(a, b):
    z = a[OWN]
    return np.exp(z), np.abs(z), np.angle(z), np.sqrt(z), np.log(z), np.sin(z), np.cosh(z)


def schroedinger(psi, v):
    around = psi[2:, 1:-1] + psi[:-2, 1:-1] + psi[1:-1, 2:] + psi[1:-1, :-2] - 4 * psi[OWN]
    return psi[OWN] + 0.01j * (0.5 * around - v[OWN].real * psi[OWN])


EXACT = [(sums, 1), (parts, 3), (choices, 2), (casts, 3)]
ROUNDED = [(products, 4, 4), (powers, 5, 16), (functions, 7, 8), (schroedinger, 1, 8)]


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize(("function", "results"), EXACT)
def test_what_has_numpys_bits_has_them_in_kernels_too(
    function: Callable[..., Any], results: int, dtype: str, compiler: Compiler, tmp_path: Path
) -> None:
    blocks = [numbers(dtype), numbers(dtype, seed=1)]
    program = traced(function, blocks, results)
    assert inexact_operations(program.nodes) == []
    expected = plain(function, blocks)
    for found in (evaluate(program, blocks, WIDTHS), by_loops(program, blocks, compiler, tmp_path)):
        for one, other in zip(found, expected, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert one.tobytes() == np.ascontiguousarray(other).tobytes()


def by_loops(
    program: Program, blocks: Sequence[HostArray], compiler: Compiler, folder: Path
) -> list[HostArray]:
    kernel = build(in_real_parts(program), compiler, folder)
    outs = [np.empty((7, 10, *one.trailing), one.dtype) for one in program.outputs]
    kernel.run(blocks, outs, WIDTHS)
    return outs


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize(("function", "results", "ulps"), ROUNDED)
def test_what_is_rounded_differs_in_last_bits_only(
    function: Callable[..., Any], results: int, ulps: int, dtype: str, compiler: Compiler, tmp_path: Path
) -> None:
    blocks = [numbers(dtype), numbers(dtype, seed=1)]
    program = traced(function, blocks, results)
    assert inexact_operations(program.nodes)
    expected = plain(function, blocks)
    for found in (evaluate(program, blocks, WIDTHS), by_loops(program, blocks, compiler, tmp_path)):
        for one, other in zip(found, expected, strict=True):
            assert_close(one, np.ascontiguousarray(other), ulps)


def test_magnitudes_are_computed_in_vectors(compiler: Compiler, tmp_path: Path) -> None:
    """With the bits of NumPy's hypot of floats, which is the library's."""
    bits = np.random.default_rng(0).integers(0, 2**32, (2, 400, 300), np.uint32)
    a, b = bits.view("f4")
    with np.errstate(all="ignore"):
        b[::2] = np.nextafter(a[::2], np.float32(0))
    a[:7, :7], b[:7, :7] = np.meshgrid(np.array(SPECIAL, "f4"), np.array(SPECIAL, "f4"))
    inputs = [Operand(name, a.dtype) for name in "ab"]
    program = trace(np.hypot, inputs, ((0, 0), (0, 0)), {}, frozenset(), ["size"])
    out = np.empty_like(a)
    build(program, compiler, tmp_path).run([a, b], [out], ((0, 0), (0, 0)))
    with np.errstate(all="ignore"):
        assert np.array_equal(out, np.hypot(a, b), equal_nan=True)
    (library,) = tmp_path.rglob("*.so")
    assert b"hypotf" not in library.read_bytes()


SPECIAL = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize(
    "function",
    [
        lambda z, w: (z == w, z != w, z < w, z <= w, z > w, z >= w),
        lambda z, w: (np.isnan(z), np.isinf(z), np.isfinite(z), ~z.astype(bool), np.abs(z), np.conj(z)),
        lambda z, w: (z + w, z - w, -z, np.logical_and(z, w), np.logical_or(z, w), np.logical_xor(z, w)),
        lambda z, w: (np.sqrt(z), z / w, np.logical_not(z), z * 1, z.real, z.imag),
        lambda z, w: (z / w.real, w.imag / z, z * w.imag, z / 2, 1j * z, z / -0.0),
    ],
    ids=["comparisons", "tests", "sums", "quotients", "of real numbers"],
)
def test_zeros_infinities_and_nan_are_numpys(function: Callable[..., Any]) -> None:
    real, imag = np.meshgrid(SPECIAL, SPECIAL)
    z = np.empty((7, 7), "c16")
    z.real, z.imag = real, imag
    blocks = [np.pad(one, 1, mode="wrap") for one in (z, z[::-1].T.copy())]
    program = traced(lambda a, b: function(a[OWN], b[OWN]), blocks, 6)
    expected = plain(lambda a, b: function(a[OWN], b[OWN]), blocks)
    found = evaluate(in_real_parts(program), views_of_parts(blocks), WIDTHS)
    for one, other in zip(found, expected, strict=True):
        cells = one if other.dtype.kind != "c" else np.ascontiguousarray(one).view("c16")[..., 0]
        finite = np.isfinite(other)
        assert np.array_equal(np.isfinite(cells), finite)
        assert np.allclose(cells[finite], other[finite], rtol=1e-15)


TERMS = (
    "{a} + {b}", "{a} - {b}", "{a} * {b}", "-{a}", "{a}.conj()", "np.conj({a})", "1j * {a}", "{a} * 0.5",
    "np.where({a}.real > {b}.imag, {a}, {b})", "{a}.real + 1j * {b}.imag", "np.abs({a}) * {b}", "{a} ** 2",
    "np.exp(1j * {a}.real)", "{a} / (2 + np.abs({b}))", "{a} + {b}.real", "{a}.imag * {b}",
)  # fmt: skip


@settings(max_examples=30)
@given(st.data())
def test_random_programs(data: st.DataObject) -> None:
    names = ["x[1:-1, 1:-1]", "y[1:-1, :-2]", "x[2:, 1:-1]", "f[1:-1, 1:-1]"]
    lines = []
    for number in range(data.draw(st.integers(1, 5))):
        a, b = (data.draw(st.sampled_from(names)) for _ in "ab")
        lines.append(f"    t{number} = {data.draw(st.sampled_from(TERMS)).format(a=a, b=b)}")
        names.append(f"t{number}")
    space: dict[str, Any] = {"np": np}
    exec("\n".join(["def g(x, y, f):", *lines, f"    return {names[-1]} + 0 * x[1:-1, 1:-1]"]), space)
    kind = data.draw(st.sampled_from(["c8", "c16"]))
    blocks = [numbers(kind), numbers(kind, seed=1), numbers("f4", seed=2)]
    program = traced(space["g"], blocks)
    (expected,) = plain(space["g"], blocks)
    scale = float(np.abs(expected).max()) + 100
    few = 64 * scale * np.finfo(expected.dtype).eps
    (found,) = evaluate(program, blocks, WIDTHS)
    assert found.dtype == expected.dtype
    assert np.allclose(found, expected, rtol=0, atol=few)
    if not inexact_operations(program.nodes):
        assert found.tobytes() == np.ascontiguousarray(expected).tobytes()
    (pairs,) = evaluate(in_real_parts(program), views_of_parts(blocks), WIDTHS)
    cells = np.ascontiguousarray(pairs).view(expected.dtype)[..., 0]
    assert np.allclose(cells, expected, rtol=0, atol=few)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("function", [schroedinger, functions])
def test_kernels_compile_for_gpus(function: Callable[..., Any], dtype: str) -> None:
    results = 1 if function is schroedinger else 7
    program = in_real_parts(traced(function, [numbers(dtype), numbers(dtype)], results))
    assert not has_complex(program)
    assert "warning" not in log_of(emit(merge_components(program)[0]), "90")


def test_steps_of_complex_numbers_are_one_kernel() -> None:
    program = traced(schroedinger, [numbers("c8"), numbers("c8")])
    kernel = DeviceKernel(program, WIDTHS, feeds=[0], boundary="wrap")
    log_of(kernel.step_text(2), "90")
    other = DeviceKernel(program, WIDTHS, feeds=[0], boundary="constant", cval=1.0)
    assert other.most_steps == 1
    with pytest.raises(NotFusable, match="constant boundary"):
        other.step_text(2)


def test_a_function_without_a_kernel_is_refused_with_its_line() -> None:
    def tangent(a):
        return np.tan(a[OWN])

    program = traced(tangent, [numbers("c8")])
    with pytest.raises(NotTraceable, match=r"numpy\.tan of complex numbers") as refused:
        in_real_parts(program)
    assert refused.value.line == tangent.__code__.co_firstlineno + 1


@meshrun.map_blocks(halo=1, boundary="wrap", feeds="psi")
def evolve(psi, *, dt: float = 0.01):
    """Take a step of free particles."""
    return schroedinger(psi, psi * 0) * (1 + 0 * dt)


@pytest.mark.parametrize("fuse", ["off", "require"])
def test_steps_and_calls_agree(fuse: Any, tmp_path: Path) -> None:
    psi = numbers("c16", (24, 20))
    expected = psi
    for _ in range(5):
        expected = schroedinger(np.pad(expected, 1, mode="wrap"), np.zeros((26, 22), "c16"))
    before, after = tmp_path / "before.npy", tmp_path / "after.npy"
    np.save(before, psi)
    evolve.run(before, after, steps=5, fuse=fuse)
    assert_close(np.load(after), expected, 64)
