"""Every operation of operations.cuh, on every dtype, against NumPy's.

To the bit, but for three things that NumPy itself does in different ways on different processors: the sign
of a zero that is the larger or smaller one of two zeros; what a float becomes that no integer of the dtype
equals (here, finite ones wrap in integers of less than 64 bits, unless they are very large); and the last
bits of functions such as exp, for which there is a tolerance.
"""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from meshrun.runner.compiler.cpp.host import library
from meshrun.runner.compiler.operations import ctype, expression, host_operations, literal
from meshrun.runner.compiler.trace.array import UFUNCS
from meshrun.runner.compiler.trace.graph import Graph, compute
from meshrun.runner.region import HostArray
from meshrun.runner.system.compiler import Compiler

KINDS = [np.dtype(kind) for kind in ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")]
APPROXIMATE = {
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "cbrt", "sin", "cos", "tan", "arcsin", "arccos",
    "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "power", "float_power", "hypot",
    "arctan2",
}  # fmt: skip
TOLERANCE = {2: 2e-3, 4: 1e-6, 8: 1e-14}  # relative, by bytes of the float
ZEROS_ALIKE = {"maximum", "minimum", "fmax", "fmin"}


@dataclass(frozen=True)
class Case:
    op: str
    operands: tuple[np.dtype, ...]
    result: np.dtype

    def __str__(self) -> str:
        return f"{self.op} of {', '.join(map(str, self.operands))} to {self.result}"


OF_PARTS = {"conjugate"}  # of a real number it is the number; kernels have real and imaginary parts


def cases() -> list[Case]:
    found = [Case("cast", (a,), b) for a, b in itertools.permutations(KINDS, 2)]
    found += [Case("where", (np.dtype(bool), kind, kind), kind) for kind in KINDS]
    for name in sorted(UFUNCS - OF_PARTS):
        ufunc = getattr(np, name)
        for kind in KINDS:
            try:
                *operands, result = ufunc.resolve_dtypes((kind,) * ufunc.types[0].index("-") + (None,))
            except TypeError:
                continue
            if any(one != kind for one in operands) or (name == "reciprocal" and kind.kind != "f"):
                continue
            found.append(Case(name, tuple(operands), result))
    signed = np.dtype("i8"), np.dtype("u8")
    for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        found += [Case(name, pair, np.dtype(bool)) for pair in (signed, signed[::-1])]
    return found


CASES = cases()


def values(kind: np.dtype) -> HostArray:
    if kind.kind == "b":
        return np.array([0, 1, 1, 0], bool).repeat(3)
    if kind.kind == "f":
        rare = [0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3.7, -3.7, np.inf, -np.inf, np.nan, 1e-8, -7.25, 100, 255.5]
        random = np.random.default_rng(1).normal(size=15) * 5
        limits = np.finfo(kind)
        return np.array(
            [*rare, *random, limits.max, limits.min, limits.tiny, limits.smallest_subnormal], kind
        )
    limits = np.iinfo(kind)
    small = [n for n in (0, 1, -1, 2, -2, 3, -3, 5, 7, -7, 8, 31, 63, 64) if n >= limits.min]
    return np.array([*small, limits.max, limits.min, limits.max - 1, limits.min + 1], kind)


def operands(case: Case) -> list[HostArray]:
    found = [one.ravel() for one in np.meshgrid(*map(values, case.operands))]
    if case.op == "cast" and case.operands[0].kind == "f" and case.result.kind in "iu":
        limit = {8: 2.0**62}.get(case.result.itemsize, 2.0**31)
        found = [found[0][np.abs(found[0].astype(float)) < limit]]
    if case.op == "power" and case.result.kind in "iu":
        found[1] = np.abs(found[1] % 9)
    return [np.ascontiguousarray(one) for one in found]


@pytest.fixture(scope="module")
def compiled(compiler: Compiler, libraries: Path) -> ctypes.CDLL:
    text = [host_operations()]
    for number, case in enumerate(CASES):
        graph = Graph()
        loads = [graph.load(place, kind, ()) for place, kind in enumerate(case.operands)]
        node = graph.operation(case.op, case.result, loads)
        cell = expression(node, {load: f"p{place}[x]" for place, load in enumerate(loads)})
        given = "".join(f"const {ctype(kind)}* p{place}, " for place, kind in enumerate(case.operands))
        text.append(
            f'extern "C" void f{number}({given}{ctype(case.result)}* __restrict__ r, int64 n) '
            f"{{ for (int64 x = 0; x < n; ++x) r[x] = {cell}; }}"
        )
    return library("\n".join(text), compiler, libraries)


def agree(case: Case, found: HostArray, expected: HostArray) -> HostArray:
    """Return for each element whether it is what NumPy computed, by the rules above."""
    if expected.dtype.kind != "f":
        return found == expected
    if case.op in APPROXIMATE:
        return np.isclose(found, expected, rtol=TOLERANCE[found.itemsize], atol=1e-300, equal_nan=True)
    signs = True if case.op in ZEROS_ALIKE else np.signbit(found) == np.signbit(expected)
    return (found == expected) & signs | np.isnan(found) & np.isnan(expected)


def test_all_operations_are_numpys(compiled: ctypes.CDLL) -> None:
    faults = []
    for number, case in enumerate(CASES):
        given = operands(case)
        expected = compute(case.op, case.result, given)
        found = np.empty(expected.shape, case.result)
        pointers = [ctypes.c_void_p(one.ctypes.data) for one in (*given, found)]
        compiled[f"f{number}"](*pointers, ctypes.c_longlong(len(found)))
        for at in np.flatnonzero(~agree(case, found, expected))[:3]:
            faults.append(f"{case}: {[one[at] for one in given]} is {found[at]!r}, not {expected[at]!r}")
    assert not faults, "\n".join(faults)


def test_all_operations_that_are_traced_are_checked() -> None:
    assert {case.op for case in CASES} == (UFUNCS - OF_PARTS) | {"cast", "where"}


def test_the_comparison_finds_a_wrong_bit() -> None:
    one, two = np.float32([0.0, 1.0, np.nan]), np.float32([-0.0, np.nextafter(np.float32(1), 2), 1])
    assert not agree(Case("add", (), one.dtype), one, two).any()
    assert agree(Case("maximum", (), one.dtype), one, two).tolist() == [True, False, False]


def test_a_literal_has_the_constants_bits(compiler: Compiler, libraries: Path) -> None:
    constants = [value for kind in KINDS for value in values(kind)]
    lines = [
        f'extern "C" void c{number}({ctype(one.dtype)}* r) {{ *r = {literal(one, one.dtype)}; }}'
        for number, one in enumerate(constants)
    ]
    loaded = library("\n".join([host_operations(), *lines]), compiler, libraries)
    for number, one in enumerate(constants):
        found = np.empty((), one.dtype)
        loaded[f"c{number}"](ctypes.c_void_p(found.ctypes.data))
        assert found.tobytes() == one.tobytes(), one


def test_16_bit_floats_are_rounded_once(compiler: Compiler, libraries: Path) -> None:
    """All of them as float and as double; and all numbers half way between two, and those beside them."""
    kinds = {2: "Half", 4: "float", 8: "double"}
    pairs = [(2, 4), (2, 8), (4, 2), (8, 2)]
    text = [host_operations()] + [
        f'extern "C" void f{a}{b}(const {kinds[a]}* p, {kinds[b]}* __restrict__ r, int64 n) '
        f"{{ for (int64 x = 0; x < n; ++x) r[x] = numpy::cast<{kinds[b]}, {kinds[a]}>(p[x]); }}"
        for a, b in pairs
    ]
    loaded = library("\n".join(text), compiler, libraries)
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    for a, b in pairs:
        given = every
        if a > 2:
            wide = np.sort(every[np.isfinite(every)].astype(f"f{a}"))
            middle = np.concatenate([(wide[1:] + wide[:-1]) / 2, [65520, -65520]]).astype(f"f{a}")
            near = [np.nextafter(middle, end, dtype=middle.dtype) for end in (-np.inf, np.inf)]
            rare = np.array([1e-30, -1e-30, 1e30, 1e-45, 2.0**-25, np.inf, -np.inf, np.nan], middle.dtype)
            given = np.concatenate([wide, middle, *near, rare])
        found = np.empty(len(given), f"f{b}")
        with np.errstate(all="ignore"):
            expected = given.astype(found.dtype)
        loaded[f"f{a}{b}"](
            ctypes.c_void_p(given.ctypes.data),
            ctypes.c_void_p(found.ctypes.data),
            ctypes.c_longlong(len(given)),
        )
        bits = f"u{b}"
        alike = (found.view(bits) == expected.view(bits)) | np.isnan(found) & np.isnan(expected)
        assert alike.all(), (a, b, given[~alike][:5], found[~alike][:5], expected[~alike][:5])
