"""Functions of floats on the host: within 1 ulp, special values as NumPy's, the same bits for each cell."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.compiler.cpp.host import FLAGS, HostProgram, build, library
from meshrun.runner.compiler.cpp.source import source
from meshrun.runner.compiler.operations import PERIODIC, ctype, host_operations
from meshrun.runner.compiler.trace.graph import Operand, Program
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.region import HostArray
from meshrun.runner.system.compiler import Compiler

OF_ONE = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "cbrt", "sin", "cos", "tan", "arcsin", "arccos",
    "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh",
)  # fmt: skip
OF_TWO = ("power", "arctan2", "hypot")
KINDS = (np.dtype("f4"), np.dtype("f8"))
STRIDE = 20011  # between the bit patterns of floats that are tried, a prime
CHUNK = 1 << 24  # bit patterns of the exhaustive test
HAS_LONG_DOUBLE = np.finfo(np.longdouble).nmant > np.finfo("f8").nmant + 8


@pytest.fixture(scope="module")
def compiled(compiler: Compiler, libraries: Path) -> ctypes.CDLL:
    text = [host_operations()]
    for kind in KINDS:
        c = ctype(kind)
        for name in OF_ONE:
            text.append(
                f'extern "C" void {name}_{c}(const {c}* a, {c}* __restrict__ r, int64 n) '
                f"{{ for (int64 x = 0; x < n; ++x) r[x] = numpy::{name}<{c}>(a[x]); }}"
            )
        for name in OF_TWO:
            text.append(
                f'extern "C" void {name}_{c}(const {c}* a, const {c}* b, {c}* __restrict__ r, int64 n) '
                f"{{ for (int64 x = 0; x < n; ++x) r[x] = numpy::{name}<{c}>(a[x], b[x]); }}"
            )
        for exponent in range(3, 8):
            text.append(
                f'extern "C" void whole{exponent}_{c}(const {c}* a, {c}* __restrict__ r, int64 n) '
                f"{{ for (int64 x = 0; x < n; ++x) r[x] = numpy::whole_power<{exponent}, {c}>(a[x]); }}"
            )
    return library("\n".join(text), compiler, libraries)


def computed(compiled: ctypes.CDLL, name: str, *given: HostArray) -> HostArray:
    given = tuple(np.ascontiguousarray(one) for one in given)
    result = np.empty_like(given[0])
    addresses = [ctypes.c_void_p(one.ctypes.data) for one in (*given, result)]
    compiled[f"{name}_{ctype(result.dtype)}"](*addresses, ctypes.c_longlong(result.size))
    return result


def ulps(found: HostArray, exact: HostArray) -> HostArray:
    """Return the errors in units of the last place of what the exact results round to.

    A wrong infinity, NaN or sign of a zero is infinitely wrong.
    """
    limits = np.finfo(found.dtype)
    with np.errstate(all="ignore"):
        nearest = exact.astype(found.dtype)
        unit = np.spacing(np.minimum(np.abs(nearest), np.nextafter(limits.max, 0, dtype=found.dtype)))
        error = np.abs(found.astype(exact.dtype) - exact) / unit
    error = np.where(np.isnan(error), np.inf, error)
    right = (found == nearest) & (np.signbit(found) == np.signbit(nearest))
    right |= np.isnan(found) & np.isnan(nearest)
    lost_sign = (found == 0) & (nearest == 0) & ~right
    return np.where(right, np.minimum(error, 0.5), np.where(lost_sign, np.inf, error))


def floats(patterns: HostArray) -> HostArray:
    """Return the floats of these bits."""
    return patterns.astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("name", OF_ONE)
def test_functions_of_all_floats(compiled: ctypes.CDLL, name: str) -> None:
    given = floats(np.arange(0, 2**32, STRIDE))
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(given.astype(np.float64))
    assert ulps(computed(compiled, name, given), exact).max() <= 0.51


@pytest.mark.nightly
@pytest.mark.parametrize("name", OF_ONE)
def test_functions_of_every_float(compiled: ctypes.CDLL, name: str) -> None:
    for first in range(0, 2**32, CHUNK):
        given = floats(np.arange(first, first + CHUNK))
        with np.errstate(all="ignore"):
            exact = getattr(np, name)(given.astype(np.float64))
        assert ulps(computed(compiled, name, given), exact).max() <= 0.52, f"patterns from {first}"


def doubles(name: str, count: int = 60_000) -> HostArray:
    """Return random arguments of a function: where it is steep, where it is flat, and over all exponents."""
    random = np.random.default_rng(len(name))
    exponents = random.choice([-1, 1], count) * 2.0 ** random.uniform(-1074, 1023.9, count)
    near_one = 1 + random.choice([-1, 1], count) * 2.0 ** random.uniform(-53, -1, count)
    quarters = np.arange(1, count + 1) * (np.pi / 4)
    spread = [random.uniform(-size, size, count) for size in (1, 30, 760, 1e6)]
    patterns = random.integers(0, 2**64, count, np.uint64, endpoint=False).view(np.float64)
    return np.concatenate([exponents, near_one, -near_one, quarters, patterns, *spread])


@pytest.mark.skipif(not HAS_LONG_DOUBLE, reason="no wider float to compare with")
@pytest.mark.parametrize("name", OF_ONE)
def test_functions_of_doubles(compiled: ctypes.CDLL, name: str) -> None:
    given = doubles(name)
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(given.astype(np.longdouble))
    errors = ulps(computed(compiled, name, given), exact)
    assert errors.max() <= 0.9, given[errors.argmax()]


@pytest.mark.skipif(not HAS_LONG_DOUBLE, reason="no wider float to compare with")
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", OF_TWO)
def test_functions_of_two(compiled: ctypes.CDLL, name: str, kind: np.dtype) -> None:
    random, count = np.random.default_rng(7), 100_000
    largest = np.finfo(kind).maxexp - 0.1
    bases = 2.0 ** random.uniform(-largest, largest, count) * random.choice([-1, 1], count)
    results = random.uniform(-largest * 1.05, largest, count)  # powers over the whole range, also subnormal
    with np.errstate(all="ignore"):
        pairs = [
            (np.abs(bases), results / np.log2(np.abs(bases))),
            (random.uniform(0.9, 1.1, count), random.normal(size=count) * 3000),
            (bases, random.integers(-40, 40, count)),
            (bases, bases[::-1] * random.normal(size=count)),
            (bases, bases * random.uniform(0.2, 4, count)),
        ]
        a, b = (np.concatenate(part).astype(kind) for part in zip(*pairs, strict=True))
        exact = getattr(np, name)(a.astype(np.longdouble), b.astype(np.longdouble))
    errors = ulps(computed(compiled, name, a, b), exact)
    assert errors.max() <= 0.9, (a[errors.argmax()], b[errors.argmax()])


@pytest.mark.skipif(not HAS_LONG_DOUBLE, reason="no wider float to compare with")
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("exponent", range(3, 8))
def test_whole_powers(compiled: ctypes.CDLL, exponent: int, kind: np.dtype) -> None:
    given = doubles("whole")[: 60_000 * 5]
    reach = np.finfo(kind).maxexp / exponent
    given = np.concatenate([given, 2.0 ** np.random.default_rng(1).uniform(-1.05 * reach, reach, 60_000)])
    with np.errstate(all="ignore"):
        given = np.concatenate([given, special(np.dtype("f8"))]).astype(kind)
        exact = given.astype(np.longdouble) ** exponent
    errors = ulps(computed(compiled, f"whole{exponent}", given), exact)
    assert errors.max() <= 0.9, given[errors.argmax()]


def special(kind: np.dtype) -> HostArray:
    limits = np.finfo(kind)
    sizes = [
        0, 1, 2, 3, 0.5, 0.25, 10, 1000, 8, 3.7, 1e4, 1e9, 1e30, 2.0**30, 2.0**53 - 1, 2.0**53 + 2,
        np.inf, np.nan,
        limits.max, limits.tiny, limits.smallest_subnormal, 1 + limits.eps, 1 - limits.epsneg,
    ]  # fmt: skip
    with np.errstate(over="ignore"):
        return np.array([*sizes, *(-one for one in sizes)]).astype(kind)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", [*OF_ONE, *OF_TWO])
def test_special_values_are_numpys(compiled: ctypes.CDLL, name: str, kind: np.dtype) -> None:
    """Infinities, NaNs, zeros with their signs, and subnormal numbers are NumPy's, and what is exact is."""
    values = special(kind)
    given = [one.ravel() for one in np.meshgrid(values, values)] if name in OF_TWO else [values]
    with np.errstate(all="ignore"):
        wider = [one.astype(np.float64 if kind == "f4" else np.longdouble) for one in given]
        expected = getattr(np, name)(*wider)
    errors = ulps(computed(compiled, name, *given), expected)
    assert errors.max() <= 1, [one[errors.argmax()] for one in given]


def test_the_comparison_finds_what_is_wrong() -> None:
    for kind in KINDS:
        one = kind.type(1)
        exact = np.array([1, 1, 0, np.inf, np.nan, 1], np.longdouble)
        found = np.array([np.nextafter(one, 2), 1, -0.0, one, one, np.nan], kind)
        assert ulps(found, exact).tolist() == [1, 0, np.inf, np.inf, np.inf, np.inf]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_cell_has_the_same_bits_wherever_a_loop_begins(compiled: ctypes.CDLL, kind: np.dtype) -> None:
    """In vectors, in what is left at the end of a loop, and alone."""
    given = [np.random.default_rng(seed).uniform(0.05, 0.95, 150).astype(kind) for seed in (3, 4)]
    for name in (*OF_ONE, *OF_TWO, "whole3", "whole7"):
        taken = given[: 1 + (name in OF_TWO)]
        whole = computed(compiled, name, *taken)
        for first, last in [(0, 1), (7, 8), (5, 40), (1, 150), (13, 64)]:
            part = computed(compiled, name, *(one[first:last] for one in taken))
            assert part.tobytes() == whole[first:last].tobytes(), name


# In the loops of programs


def mixed(u: Any) -> Any:
    return np.sin(u) + np.exp(u) * u**3


def program(function: Callable[..., Any], kind: np.dtype) -> Program:
    return trace(function, [Operand("u", kind)], ((0, 0),), {})


@pytest.mark.parametrize("kind", [np.dtype("f2"), *KINDS], ids=str)
def test_a_cell_has_the_same_bits_wherever_its_row_begins(compiler: Compiler, kind: np.dtype) -> None:
    """In vectors of whole segments, in the last segment, in a row shorter than one, and alone."""
    kernel = build(program(mixed, kind), compiler, None)
    field = np.random.default_rng(3).uniform(0.05, 0.95, 300).astype(kind)
    whole = run(kernel, field)
    for first, last in [(0, 1), (7, 8), (5, 40), (1, 300), (13, 64), (100, 291), (63, 191)]:
        assert run(kernel, field[first:last]).tobytes() == whole[first:last].tobytes()


def run(kernel: HostProgram, field: HostArray) -> HostArray:
    out = np.full_like(field, 77)
    kernel.run([np.ascontiguousarray(field)], [out], ((0, 0),))
    return out


@pytest.mark.parametrize("kind", [np.dtype("f2"), *KINDS], ids=str)
def test_a_number_far_from_0_changes_no_other_cell(compiler: Compiler, kind: np.dtype) -> None:
    """The sine of one that no vector computes is right, and the others keep their bits."""
    kernel = build(program(np.sin, kind), compiler, None)
    field = np.random.default_rng(3).uniform(-900, 900, 300).astype(kind)
    near = run(kernel, field)
    changed = field.copy()
    at = [3, 150, 299]
    changed[at] = {2: [60000, -65504, np.inf], 4: [2e9, -3e38, np.inf], 8: [2e9, -1.7e308, np.nan]}[
        kind.itemsize
    ]
    found = run(kernel, changed)
    others = np.delete(np.arange(300), at)
    assert found[others].tobytes() == near[others].tobytes()
    with np.errstate(all="ignore"):
        exact = np.sin(changed[at].astype(np.longdouble if kind.itemsize == 8 else np.float64))
    assert ulps(found[at], np.asarray(exact)).max() <= 1


@pytest.mark.parametrize("kind", [pytest.param(KINDS[0], marks=pytest.mark.nightly), KINDS[1]], ids=str)
def test_loops_of_functions_are_vectorised(compiler: Compiler, tmp_path: Path, kind: np.dtype) -> None:
    if "Free Software Foundation" not in subprocess.check_output([compiler.path, "--version"], text=True):
        pytest.skip("another compiler than GCC")
    functions = [getattr(np, name) for name in OF_ONE] + [lambda u: u**3, lambda u: np.hypot(u, 1 - u)]
    functions += [lambda u: np.power(u, 1 - u), lambda u: np.arctan2(u, 1 - u)]
    text = source([program(function, kind) for function in functions])
    loops = [n for n, part in enumerate(text.splitlines(), 1) if "for (int64 x = 0; x < n; ++x)" in part]
    assert len(loops) == len(functions) + len(PERIODIC)  # that of numbers far from 0 calls the C library
    command = [compiler.path, *FLAGS, "-fopt-info-vec-optimized", "-o", str(tmp_path / "a.so"), "-"]
    said = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stderr
    missed = [n for n in loops if not re.search(rf":{n}:\d+: optimized: loop vectorized", said)]
    assert missed == [loops[at + 1] for at in range(OF_ONE.index("sin"), OF_ONE.index("sin") + 6, 2)]
