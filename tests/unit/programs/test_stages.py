"""Functions of whole arrays in stages, compared with NumPy on the whole arrays, on several grids of ranks."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun.runner.arrays import reduce
from meshrun.runner.compiler.trace.trace import NotTraceable
from meshrun.runner.compiler.whole.between import cuts
from meshrun.runner.programs import execute
from meshrun.runner.programs.stages import KernelStage, ReductionStage, StagedProgram
from tests.facts.program_runs import plain, planned, run_program

GRIDS = [(1, 1), (2, 1), (3, 1), (5, 1), (1, 3), (2, 2)]
ROUNDED = {np.dtype("f4"): 3e-5, np.dtype("f8"): 1e-12}


def field(*shape: int, dtype: Any = float, seed: int = 0) -> Any:
    values = np.random.default_rng(seed).random(shape) * 8 - 4
    return (values > 0) if np.dtype(dtype) == bool else values.astype(dtype)


def check(
    function: Callable[..., Any], *arrays: Any, names: Any = ("out",), exact: bool = True, **parameters: Any
) -> StagedProgram:
    """Compare the results with NumPy's, and those of several grids with each other, to the bit."""
    wanted = plain(function, arrays, **parameters)
    program = planned(function, arrays, names, **parameters)
    first: list[Any] = []
    for grid in GRIDS if arrays[0].ndim == 2 else [(grid[0],) for grid in GRIDS[:4]]:
        found = run_program(program, arrays, grid)
        first = first or found
        for one, other, want in zip(found, first, wanted, strict=True):
            assert (one.dtype, one.shape) == (want.dtype, want.shape)
            assert one.tobytes() == other.tobytes(), f"{grid}: {one}\n{other}"
            if exact:
                np.testing.assert_array_equal(one, want)
            else:
                rounded = ROUNDED.get(want.dtype, 0)
                np.testing.assert_allclose(one, want, rtol=rounded, atol=rounded * 8)
    return program


def unchanged(u):
    most = u.max()
    kept = most
    most += 1
    before = u[3, 4]
    u[3, 4] = 9
    return u * kept + most + before


def clipped(u):
    high = u[u > 1]
    u[u > 1] *= 2
    u[0] = u[3, 4]
    return u - high.max()


EXACT = {
    "max": np.max,
    "min of a view": lambda u: u[1:-1, ::2].min(),
    "max along an axis": lambda u: u - u.max(axis=1, keepdims=True),
    "min along the first axis": lambda u: u * u.min(axis=0),
    "any": lambda u: np.any(u > 3.9),
    "all": lambda u: (u > -4.1).all(),
    "any along an axis": lambda u: np.where((u > 3).any(axis=1, keepdims=True), 0, u),
    "count": lambda u: np.count_nonzero(u > 1),
    "count along an axis": lambda u: u * np.count_nonzero(u > 1, axis=0),
    "max of a reversed array": lambda u: u[::-1].max(),
    "max along one of two reversed axes": lambda u: u + u[::-1, ::-1].max(axis=1)[::-1, None],
    "count of a reversed part": lambda u: np.count_nonzero(u[-2:2:-1] > 1),
    "argmax": np.argmax,
    "argmin of a view": lambda u: u[2:, 3:].argmin(),
    "argmax along an axis": lambda u: u + u.argmax(axis=0),
    "argmin along the last axis": lambda u: u + u.argmin(axis=1, keepdims=True),
    "ptp": lambda u: u / np.ptp(u),
    "sum of integers": lambda u: u.astype(np.int32).sum(),
    "product of integers": lambda u: u.astype(np.int32).prod(),
    "sum of a mask": lambda u: (u > 0).sum(),
    "max of a selection": lambda u: u[u < 2].max(),
    "count of a selection": lambda u: u[u < 2].size,
    "max of absolute values of a selection": lambda u: np.abs(u[u < 2]).max(),
    "ufunc.reduce": lambda u: u - np.maximum.reduce(u, axis=1)[:, None],
    "initial and where": lambda u: np.max(u, initial=-1, where=u < 0),
    "one cell": lambda u: u - u[3, 4],
    "a cell of a result": lambda u: (u * 2)[-1, -1] * u,
    "a row of one": lambda u: u[2].max() - u[:, 3].min(),
    "out": lambda u: np.multiply(u, u.max(), out=u),
    "a number of cells": lambda u: u / u.size,
    "scalars of float32": lambda u: u.astype("f4") * u.astype("f4").max() * 0.1,
    "a scalar does not change": unchanged,
    "in a selection": clipped,
}  # fmt: skip
SUMS = {
    "sum": lambda u: u.sum(),
    "mean": lambda u: u - u.mean(),
    "mean of a view": lambda u: u[1:-1, 1:-1].mean(),
    "mean along an axis": lambda u: u - u.mean(axis=1, keepdims=True),
    "sum along the first axis": lambda u: u / (u.sum(axis=0) + 100),
    "mean of integers": lambda u: u.astype(np.int16).mean(),
    "mean of float16": lambda u: u.astype(np.float16).mean(dtype=np.float32),
    "sum in another dtype": lambda u: np.sum(u, dtype=np.float32),
    "norm": lambda u: u / np.linalg.norm(u),
    "norm along an axis": lambda u: u / np.linalg.norm(u, axis=1, keepdims=True),
    "std": lambda u: u.std(),
    "var with ddof": lambda u: np.var(u, axis=0, ddof=1) + u,
    "average": lambda u: np.average(u, weights=np.abs(u)),
    "vdot": lambda u: np.vdot(u, 2 * u),
    "product": lambda u: (1 + u / 1000).prod(),
    "mean of a selection": lambda u: u[u > 1].mean(),
    "sum of a selection": lambda u: u[u > 1].sum(),
    "std of a selection": lambda u: u[u > 1].std(),
    "add.reduce": lambda u: u + np.add.reduce(u),
    "where": lambda u: u.sum(where=u > 0) + np.mean(u, where=u > 0),
    "initial": lambda u: u.sum(initial=3.0),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_exact_reductions(name: str) -> None:
    check(EXACT[name], field(13, 11))


@pytest.mark.parametrize("name", SUMS)
def test_sums(name: str) -> None:
    check(SUMS[name], field(13, 11), exact=False)


COMPLEX = {
    "sum": lambda u: u - u.sum() / 200,
    "mean along an axis": lambda u: u - u.mean(axis=1, keepdims=True),
    "vdot": lambda u: u * np.vdot(u, np.roll(u, 1, 0)) / 100,
    "magnitude": lambda u: u / (np.abs(np.vdot(u, 1j * u)) + 1),
    "norm": lambda u: u / np.linalg.norm(u),
    "std": lambda u: u * u.std() + u.var(axis=0),
    "one cell": lambda u: u - u[3, 4] * 2,
    "in a selection": lambda u: np.where(u.real > 0.2, u, u.mean()),
    "in an exponent": lambda u: u * np.exp(1j * u.real.max()),
}


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers(name: str, dtype: str) -> None:
    u = (field(9, 8) / 4 + 1j * field(9, 8, seed=1) / 4).astype(dtype)
    wanted = plain(COMPLEX[name], [u])[0]
    program = planned(COMPLEX[name], [u], ["out"])
    parts = [run_program(program, [u], grid)[0] for grid in ((1, 1), (3, 1), (2, 2))]
    assert {one.tobytes() for one in parts} == {parts[0].tobytes()}
    assert parts[0].dtype == wanted.dtype
    np.testing.assert_allclose(parts[0], wanted, rtol=0, atol=ROUNDED[wanted.real.dtype])


def test_complex_values_are_results_and_inputs() -> None:
    def overlap(u, z):
        z = z * 1j + u.sum()
        return u * z, z

    for dtype in ("c8", "c16"):
        u, z = (field(9, 8) + 1j * field(9, 8, seed=1)).astype(dtype), np.array(0.5 - 2j, dtype)
        wanted = plain(overlap, [u, z])
        for grid in ((1, 1), (3, 1)):
            found = run_program(planned(overlap, [u, z], ["u", "z"]), [u, z], grid)
            for one, want in zip(found, wanted, strict=True):
                assert one.dtype == want.dtype
                np.testing.assert_allclose(one, want, rtol=20 * ROUNDED[want.real.dtype])


@pytest.mark.parametrize("name", ["max", "prod", "argmax", "ptp"])
def test_complex_numbers_have_no_order(name: str) -> None:
    with pytest.raises(NotTraceable, match="reduces complex numbers"):
        planned(lambda u: u * getattr(np, name)(u), [field(8, 8).astype("c8")], ["out"])


@pytest.mark.parametrize("dtype", ["bool", "i1", "u4", "i8", "f2", "f4"])
def test_dtypes(dtype: str) -> None:
    def reduced(u):
        return u.max(), u.sum(), u.mean(), u.any(), np.argmax(u), np.count_nonzero(u)

    names = ("max", "sum", "mean", "any", "argmax", "count")
    if dtype == "f2":
        ROUNDED[np.dtype("f2")] = 2e-3
    check(reduced, field(9, 10, dtype=dtype), names=names, exact=False)


def test_nan_and_ties() -> None:
    u = field(9, 8)
    u[3, 2] = u[7, 1] = 5
    check(np.argmax, u)
    u[6, 3] = u[8, 7] = np.nan
    check(lambda u: (np.argmax(u), np.argmin(u), u.max(), u.argmax(axis=0) + u), u, names=tuple("abcd"))


def test_arrays_of_one_axis_and_components() -> None:
    check(lambda u: u / np.sqrt(np.dot(u, u)), field(29), exact=False)
    check(lambda u: u - u[::3].max(), field(29))

    def velocities(u, w):
        return w - w.mean(axis=(0, 1)), w.max(), (w * w).sum(axis=-1).max() * u

    check(velocities, field(9, 10), field(9, 10, 2), names=tuple("abc"), exact=False)


def test_adaptive_step() -> None:
    def heat(u, t, *, c: float = 0.5, dx: float = 0.1):
        dt = 0.2 * dx / np.max(np.abs(u) + c)
        u[1:-1, 1:-1] += dt * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
        u[0] = 1
        u[-1] = u[-2]
        t += dt
        return u, t

    check(heat, field(12, 9, dtype="f4"), np.array(0.5), names=("u", "t"))


def test_predictor_and_corrector_with_edges_between() -> None:
    def step(u, *, dt: float = 0.1):
        guess = u.copy()
        guess[1:-1] = u[1:-1] + dt * (u[2:] - u[1:-1]) * u[1:-1]
        guess[0], guess[-1] = guess[1], 0
        new = u.copy()
        new[1:-1] = 0.5 * (u[1:-1] + guess[1:-1] + dt * (guess[1:-1] - guess[:-2]) * guess[1:-1])
        new[:, 0] = new[:, 1]
        return new, np.max(np.abs(new - u))

    check(step, field(12, 9), names=("u", "residual"))


def runge_kutta(u, *, dt: float = 0.1):
    def slope(w):
        return -0.5 * (np.roll(w, -1, 0) - np.roll(w, 1, 0)) - 0.25 * (np.roll(w, -1, 1) - np.roll(w, 1, 1))

    first = slope(u)
    second = slope(u + dt / 2 * first)
    third = slope(u + dt / 2 * second)
    return u + dt / 6 * (first + 2 * second + 2 * third + slope(u + dt * third))


def test_runge_kutta_is_cut_where_that_pays() -> None:
    program = check(runge_kutta, field(17, 15, dtype="f4"))
    assert len(program.kernels) > 1
    written = [cut for cut in program.reasons.cuts if cut.written]
    assert [cut.line for cut in written if cut.line == 0] == []
    assert written
    assert len(planned(runge_kutta, [field(17, 15, dtype="f4")], ["out"], "cuda").kernels) < len(
        program.kernels
    )


def test_sweeps_do_not_grow_without_bound() -> None:
    def sweeps(p, b):
        for _ in [None] * 12:
            q = p.copy()
            p[1:-1, 1:-1] = (q[1:-1, 2:] + q[1:-1, :-2] + q[2:, 1:-1] + q[:-2, 1:-1] - b[1:-1, 1:-1]) / 4
            p[:, -1] = p[:, -2]
            p[0], p[:, 0], p[-1] = p[1], p[:, 1], 0
        return p

    program = check(sweeps, field(14, 12), field(14, 12, seed=1))
    assert len(program.kernels) > 3


def test_bits_are_the_same_whatever_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(u):
        return runge_kutta(u) / np.linalg.norm(u)

    u = field(17, 15)
    few = run_program(planned(function, [u], ["out"], "cuda"), [u], (2, 1))
    monkeypatch.setattr(cuts, "OPERATIONS_PER_BYTE", {"cpu": {4: 0.0, 8: 0.0}})
    many = planned(function, [u], ["out"])
    assert len(many.kernels) >= 4
    assert run_program(many, [u], (3, 1))[0].tobytes() == few[0].tobytes()


STATEMENTS = (
    "{a}[{s}] = {b}[{t}]",
    "{a}[{s}] += {b}[{t}] * 0.5",
    "{a} = np.roll({b}, {j}, axis={x})",
    "{a}[1:-1, 1:-1] += 0.1 * ({b}[2:, 1:-1] - 2 * {b}[1:-1, 1:-1] + {b}[:-2, 1:-1])",
    "{a}[{e}] = {b}[{f}]",
    "{a} = {b} * 0.1 / (np.max(np.abs({c})) + 1)",
    "{a} = {b} - {c}.min(axis={x}, keepdims=True)",
    "{a}[{s}] = {b}[{t}].max()",
    "{a} += 0.001 * np.argmax({b})",
    "{a} += 0.001 * np.max({b}[-3:1:-1])",
    "{a} = {b} * {c}[{i}, {i}]",
    "{a} = np.where({b} > {c}.max() * 0.5, {a}, 1)",
    "{a}[{b} > 1] = {c}.min()",
    "{a} = np.pad({b}, 1, mode='edge')[2:, 1:-1] - {c}",
    "{a} += np.pad({b}, 2)[0, 0] + np.pad({b}, 2, mode='reflect')[1, 1]",
    "{a} = {b} + 0.01 * np.count_nonzero({c} > 0, axis=0)",
)
ADDED = (
    *STATEMENTS[:8],
    "{a} = {b} - {c}.mean()",
    "{a} = {b} / (np.linalg.norm({c}) + 1)",
    "{a} += 0.1 * {b}.mean(axis={x}, keepdims=True)",
    "{a} = {b} * 0.1 + {c}[{s}].sum() * 0.01",
)


@st.composite
def programs(draw: st.DrawFn, statements: tuple[str, ...]) -> str:
    """A function of two arrays of 11 x 9, as text."""
    lines = ["def f(u, v):", "    w = u * 2"]

    def cut(length: int, size: int) -> str:
        first = draw(st.integers(0, length - size))
        return f"{first}:{first + size}"

    for _ in range(draw(st.integers(1, 7))):
        rows, columns = draw(st.integers(1, 11)), draw(st.integers(1, 9))
        parts = {name: f"{cut(11, rows)}, {cut(9, columns)}" for name in "st"}
        names = {name: draw(st.sampled_from("uvw")) for name in "abc"}
        axis = draw(st.integers(0, 1))
        ends = [draw(st.integers(-9, 8)) for _ in range(2)]
        edges = [f"{end}" if axis == 0 else f":, {end}" for end in ends]
        words = {"j": draw(st.integers(-12, 12)), "x": axis, "e": edges[0], "f": edges[1], "i": ends[0]}
        lines.append("    " + draw(st.sampled_from(statements)).format(**parts, **names, **words))
    return "\n".join([*lines, "    return u, v, w, u.max()", ""])


def compiled(text: str) -> Callable[..., Any]:
    name = f"<staged {abs(hash(text))}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space: dict[str, Any] = {"np": np}
    exec(compile(text, name, "exec"), space)
    function: Callable[..., Any] = space["f"]
    return function


@settings(max_examples=max(settings.default.max_examples // 4, 1))
@given(programs(STATEMENTS))
def test_random_programs_are_numpys_to_the_bit(text: str) -> None:
    check(compiled(text), field(11, 9), field(11, 9, dtype="f4", seed=1), names=tuple("uvwm"))


@settings(max_examples=max(settings.default.max_examples // 4, 1))
@given(programs(ADDED))
def test_random_programs_with_sums(text: str) -> None:
    check(compiled(text), field(11, 9), field(11, 9, seed=1), names=tuple("uvwm"), exact=False)


@settings(max_examples=max(settings.default.max_examples // 8, 1))
@given(programs(STATEMENTS))
def test_random_programs_whose_arrays_are_all_written(text: str) -> None:
    before = dict(cuts.OPERATIONS_PER_BYTE)
    cuts.OPERATIONS_PER_BYTE["cpu"] = {4: 0.0, 8: 0.0}
    try:
        check(compiled(text), field(11, 9), field(11, 9, dtype="f4", seed=1), names=tuple("uvwm"))
    finally:
        cuts.OPERATIONS_PER_BYTE.update(before)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("if [u.max() > 1][0].any() and u > 1: u[0] = 1", "decides by the value of a cell"),
        ("return float(u.sum()) * u", "value of a reduction to a Python number"),
        ("return u * len(u[u > 1])", "number of cells that a condition picks"),
        ("return np.median(u) * u", r"numpy\.median"),
        ("return u + u[u > 1]", "combines cells that different conditions pick"),
        ("return u * u.max(axis=5)", "axis 5 is out of bounds"),
        ("return np.linalg.norm(u, 2) * u", "norm"),
        ("m = u.max(); m[...] = 3", "item assignment"),
        ("return np.inner(u, u)", "sums products of cells"),
    ],
)
def test_what_is_refused_has_its_line(line: str, says: str) -> None:
    function = compiled(f"def f(u):\n    pass\n    {line}\n    return u\n")
    with pytest.raises(NotTraceable, match=says) as refused:
        planned(function, [field(8, 8)], ["out"])
    assert refused.value.line == 3


@pytest.mark.parametrize("mutant", ["of blocks", "own output", "stale halo"])
def test_the_comparison_finds(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant == "of blocks":  # a tree that begins anew in each block
        nodes = reduce._nodes
        monkeypatch.setattr(
            reduce, "_nodes", lambda start, stop: ((start + a, n) for a, n in nodes(0, stop - start))
        )
        with pytest.raises(AssertionError):
            check(lambda u: np.cumprod([1.0])[0] * u.astype("f4").sum(), field(37, 31), exact=False)
        return
    if mutant == "own output":  # a stage writes the array that it reads
        bind = execute.ProgramRun._bind_cells

        def into_input(self: Any, number: int, stage: KernelStage, outs: Any) -> None:
            bind(self, number, stage, outs)
            for place in stage.writes:
                source = self.arrays[0]
                if not place.of_output and source is not None:
                    written = self.arrays[place.number].interior
                    self._add("kernel", partial(np.copyto, source.interior, written))

        monkeypatch.setattr(execute.ProgramRun, "_bind_cells", into_input)
    if mutant == "stale halo":  # what is written between stages is not exchanged
        bind_exchange = execute.ProgramRun._bind_exchange
        monkeypatch.setattr(
            execute.ProgramRun,
            "_bind_exchange",
            lambda self, read: bind_exchange(self, read) if set(read) <= {0} else None,
        )
    with pytest.raises(AssertionError):
        test_runge_kutta_is_cut_where_that_pays()


def test_what_a_stage_reduces_is_not_written() -> None:
    program = planned(lambda u: u / np.max(np.abs(u) + 1), [field(12, 9)], ["out"])
    assert [type(stage) for stage in program.stages[:1]] == [ReductionStage]
    assert program.intermediates == ()


def test_a_sweep_with_edges_is_one_stage() -> None:
    """What a sweep reads of the array before it, at the own cell and beside it, comes from one array."""

    def sweeps(u, f):
        for _ in [None] * 6:  # what goes over a list is traced item by item
            new = u.copy()
            around = (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - f[1:-1, 1:-1]) / 4
            new[1:-1, 1:-1] = u[1:-1, 1:-1] + 0.8 * (around - u[1:-1, 1:-1])
            u = new
        return u

    program = check(sweeps, field(12, 11), field(12, 11, seed=1))
    assert len(program.kernels) == len(program.intermediates) + 1 <= 6
    for stage in program.kernels:
        assert len(stage.cells.reads) <= 3  # u, f, and one more for the edges
