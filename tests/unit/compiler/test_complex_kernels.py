"""Generated kernels of complex numbers, compiled for the host: the bits of the same program of real parts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fused
import numpy as np
import pytest
from nvrtc_log import log_of, log_of_text
from step_parts import Part, compare
from whole_kernels import compile_loops, compile_texts, halo_of

from meshrun.runner.compiler.cuda.beyond import cells_beyond
from meshrun.runner.compiler.cuda.pass_launch import launch_arguments
from meshrun.runner.compiler.cuda.single_pass import emit, finds_ends
from meshrun.runner.compiler.cuda.steps.kernel import FEW_BYTES, build
from meshrun.runner.compiler.cuda.steps.layout import Tuning
from meshrun.runner.compiler.cuda.steps.tuning import choices
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.passes.real_parts import in_real_parts, views_of_parts
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Operand, Program, merge_components, with_units, without_units
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.options.choices import BOUNDARIES

INNER = slice(1, -1)


def around(psi: Any) -> Any:
    """Sum the neighbours along all axes."""
    total = 0 * psi[(INNER,) * psi.ndim]
    for axis in range(psi.ndim):
        for part in (slice(2, None), slice(None, -2)):
            total = total + psi[tuple(part if one == axis else INNER for one in range(psi.ndim))]
    return total


def schroedinger(psi: Any, potential: Any) -> Any:
    own = (INNER,) * psi.ndim
    return psi[own] + 0.01j * (0.5 * (around(psi) - 4 * psi[own]) - potential[own] * psi[own])


def ginzburg_landau(psi: Any, potential: Any) -> Any:
    own = psi[(INNER,) * psi.ndim]
    square = own.real**2 + own.imag**2
    return own + 0.02 * (own + (1 + 0.5j) * (around(psi) - 4 * own) - (1 - 1.2j) * square * own)


def whole_real(psi: Any, potential: Any) -> Any:
    """Treat both parts alike."""
    own = (INNER,) * psi.ndim
    return psi[own] + 0.1 * (around(psi) - 4 * psi[own])


def parts_beside(psi: Any, potential: Any) -> Any:
    """Read one part of neighbours along a row."""
    left, right = ((INNER,) * (psi.ndim - 1) + (part,) for part in (slice(None, -2), slice(2, None)))
    up, down = ((part, *(INNER,) * (psi.ndim - 1)) for part in (slice(None, -2), slice(2, None)))
    return psi[up] - psi[down] + 1j * psi[left].imag + psi[right].real + potential[left]


def parts(psi: Any, potential: Any) -> Any:
    """Read one part of some cells, both of others."""
    own = (INNER,) * psi.ndim
    before = (slice(None, -2),) + (INNER,) * (psi.ndim - 1)
    return psi[before].real + 1j * psi[own].imag, psi[own].conj()


def trailing(vector: Any) -> Any:
    """Turn vectors of several components around."""
    own = vector[1:-1, 1:-1]
    return own[..., ::-1] + 2 * vector[2:, 1:-1] - vector[1:-1, :-2]


def program_of(function: Callable[..., Any], dtype: str, axes: int) -> Program:
    kind = np.dtype(dtype)
    inputs = [Operand("psi", kind), Operand("potential", np.zeros(0, kind).real.dtype)]
    names = ["a", "b"][: 2 if function is parts else 1]
    return in_real_parts(trace(function, inputs, ((1, 1),) * axes, {}, frozenset(), names))


def of_vectors(components: int, dtype: str) -> Program:
    inputs = [Operand("vector", np.dtype(dtype), (components,))]
    return trace(trailing, inputs, ((1, 1), (1, 1)), {}, frozenset(), ["a"])


CASES = [
    (schroedinger, "c8", 1), (schroedinger, "c8", 2), (schroedinger, "c16", 2), (schroedinger, "c8", 3),
    (ginzburg_landau, "c8", 2), (ginzburg_landau, "c16", 3), (parts, "c8", 2), (parts, "c16", 3),
]  # fmt: skip
PROGRAMS = [program_of(*one) for one in CASES]
BESIDE = program_of(parts_beside, "c8", 2)
PROGRAMS += [
    of_vectors(2, "f4"),
    of_vectors(3, "f4"),
    of_vectors(4, "f4"),
    of_vectors(6, "i4"),
    of_vectors(2, "f8"),
]


def arrays_of(operands: Sequence[Operand], own: tuple[int, ...], halo: int, odd: int) -> list[Any]:
    """Return noise for each operand: views, `odd` units into memory, of rows `odd` cells longer."""
    found = []
    for number, one in enumerate(operands):
        grid = tuple(n + 2 * halo + odd for n in own)
        size = math.prod((*grid, *one.trailing))
        memory = np.zeros(size + odd * one.unit, one.dtype)[odd * one.unit :].reshape(*grid, *one.trailing)
        memory[...] = fused.noise(memory.shape, one.dtype, number)
        found.append(memory[tuple(slice(0, n + 2 * halo) for n in own)])
    return found


@pytest.mark.skipif(fused.GXX is None, reason="needs g++")
def test_units_give_the_bits_of_single_elements(tmp_path: Path) -> None:
    cases = [(one, own) for one in PROGRAMS for own in fused.shapes(one.axes)]
    kernels = [emit(with_units(one), lengths=own) for one, own in cases]
    for (program, own), kernel, run in zip(cases, kernels, fused.host(tmp_path, kernels), strict=True):
        for odd in (0, 1, 2):  # rows that begin at vectors, only at units, and at either
            blocks = arrays_of(kernel.program.inputs, own, 1, odd)
            outs = arrays_of(kernel.program.outputs, own, 0, odd)
            widths = ((1, 1),) * program.axes
            for out in outs:
                out.base[...], out[...] = 7, 1
            run(kernel, blocks, outs, widths)
            for out, expected in zip(outs, evaluate(program, blocks, widths), strict=True):
                fused.same(out, expected)
                out[...] = 7
                assert (out.base == 7).all()


@pytest.mark.parametrize(
    "program", PROGRAMS[:9], ids=[f"{f.__name__}-{d}-{n}" for f, d, n in CASES] + ["vectors"]
)
def test_a_unit_is_one_access(program: Program) -> None:
    alone, united = emit(without_units(program)), emit(with_units(program))
    assert "fetch_unit" not in alone.source.partition("__global__")[2]
    body = united.source.partition("__global__")[2]
    unit = program.inputs[0].dtype.itemsize * 2
    assert unit * len(re.findall(r"auto (next_)?u\d", body)) > 4 * len(re.findall(r"__ldg", body))
    assert "store_elements" not in body
    assert united.description.load_instructions < alone.description.load_instructions or unit == 16


PADS: dict[str, Any] = {"reflect": "symmetric", "mirror": "reflect", "nearest": "edge", "wrap": "wrap"}


@pytest.mark.skipif(fused.GXX is None, reason="needs g++")
def test_a_pass_finds_the_ends_of_rows_and_stores_rows_beyond_others(tmp_path: Path) -> None:
    """No cell beyond the ends of rows is in memory; those beyond other ends are there for the next pass."""
    cases = [
        (program, boundary, own[-program.axes :])
        for program in (PROGRAMS[1], PROGRAMS[2], PROGRAMS[3], PROGRAMS[5], BESIDE)
        for boundary in PADS
        for own in ((3, 5, 3), (4, 9, 35))
    ]
    kernels = []
    for program, boundary, own in cases:
        united = with_units(program)
        assert finds_ends(united, boundary, own[-1]) == [0, 1][: 1 + (program is BESIDE)]
        beyond = cells_beyond(united, [0], boundary)
        assert (beyond is None) == (program.axes != 2)
        kernels.append(emit(united, lengths=own, ends=boundary, beyond=beyond))
    launches = fused.launchers(tmp_path, kernels)
    for (program, boundary, own), kernel, launch in zip(cases, kernels, launches, strict=True):
        widths, mode, last = ((1, 1),) * program.axes, PADS[boundary], (slice(None),) * (program.axes - 1)
        arrays = arrays_of(program.inputs, own, 0, 0)
        blocks = [np.pad(one, (*widths, *[(0, 0)] * (one.ndim - program.axes)), mode) for one in arrays]
        (wanted,) = evaluate(program, blocks, widths)
        blocks[0][(*last, 0)] = blocks[0][(*last, -1)] = 99
        memory = np.full([*(n + 2 for n in own), 2], 77, wanted.dtype)
        out = memory[(slice(1, -1),) * program.axes]
        stores = program.axes == 2
        call = launch_arguments(kernel, blocks, [out], widths, sides=(stores, stores))
        launch(call.grid, call.block, call.arguments)
        expected = np.full_like(memory, 77)
        rows = slice(None) if stores else slice(1, -1)
        beside = [(1, 1) if stores else (0, 0), *[(0, 0)] * program.axes]
        expected[(rows, *[slice(1, -1)] * (program.axes - 1))] = np.pad(wanted, beside, mode)
        fused.same(memory, expected)


@pytest.mark.parametrize("boundary", ["wrap", "constant", "none"])
@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("function", [schroedinger, whole_real])
def test_the_kernel_that_is_prepared_is_the_one_that_is_launched(
    function: Callable[..., Any], dtype: str, boundary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For results of complex numbers, by their shape."""
    compiled: list[str] = []

    def compile_source(kernel: DeviceKernel, source: str, *others: Any) -> Callable[..., None]:
        compiled.append(source.partition("__global__")[2])
        return lambda *launch: None

    monkeypatch.setattr(DeviceKernel, "_compiled", compile_source)
    monkeypatch.setattr(DeviceKernel, "most_steps", 1)
    inputs = [Operand("psi", np.dtype(dtype)), Operand("potential", np.zeros(0, dtype).real.dtype)]
    program = trace(function, inputs, ((1, 1), (1, 1)), {}, frozenset(), ["out"])
    kernel = DeviceKernel(program, ((1, 1), (1, 1)), feeds=(0,), boundary=boundary, row=70)
    kernel.prepare((11, 70))
    blocks, out = [np.zeros((13, 72), one.dtype) for one in inputs], np.zeros((11, 70), dtype)
    kernel.bind(blocks, [out], (0, 0), sides=(boundary == "wrap",) * 2)
    assert len(compiled) == 1


def test_arrays_that_begin_between_units_are_refused() -> None:
    kernel = emit(with_units(PROGRAMS[1]))
    blocks, outs = fused.cases(kernel.program, (9, 17), 0)
    launch_arguments(kernel, blocks, outs, ((1, 1), (1, 1)))
    blocks, outs = fused.cases(kernel.program, (9, 17), 1)
    with pytest.raises(ValueError, match="begin at multiples"):
        launch_arguments(kernel, blocks, outs, ((1, 1), (1, 1)))


@pytest.mark.parametrize("architecture", ["80", "90", "100"])
@pytest.mark.parametrize("number", [1, 3, 4])
def test_no_register_is_spilled(number: int, architecture: str) -> None:
    log = log_of(emit(with_units(merge_components(PROGRAMS[number])[0])), architecture)
    assert "warning" not in log
    assert re.findall(r"(\d+) bytes spill", log) == ["0", "0"]


# Kernels of several steps


def second_order(psi: Any, before: Any, forcing: Any) -> Any:
    """Take a step in the middle of two: two complex fields change, a complex and a shifted one do not."""
    own = (INNER,) * psi.ndim
    left = (INNER,) * (psi.ndim - 1) + (slice(None, -2),)
    return before[own] + 0.1j * (around(psi) - 4 * psi[own]) + forcing[left] * psi[own], psi[own]


def mixed(psi: Any, level: Any) -> Any:
    """Change a complex and a real field."""
    own = (INNER,) * psi.ndim
    return (psi[own] + 0.1 * level[own] * around(psi)).astype(psi.dtype), 0.5 * level[own] + 0.1 * psi[
        own
    ].imag


@dataclass(frozen=True)
class Stepped:
    """A function whose results feed its first inputs. dtypes: of its inputs."""

    function: Callable[..., Any]
    dtypes: tuple[str, ...]
    axes: int = 2
    results: int = 1

    def program(self) -> Program:
        inputs = [Operand(f"in{n}", np.dtype(kind)) for n, kind in enumerate(self.dtypes)]
        names = [f"out{n}" for n in range(self.results)]
        return in_real_parts(trace(self.function, inputs, ((1, 1),) * self.axes, {}, frozenset(), names))


STEPPED = {
    "schroedinger": Stepped(schroedinger, ("c8", "f4")),
    "schroedinger c16": Stepped(schroedinger, ("c16", "f8")),
    "ginzburg_landau": Stepped(ginzburg_landau, ("c8", "f4")),
    "second_order": Stepped(second_order, ("c8", "c8", "c8"), results=2),
    "mixed": Stepped(mixed, ("c8", "f4"), results=2),
    "mixed f8": Stepped(mixed, ("c8", "f8"), results=2),
    "line": Stepped(schroedinger, ("c8", "f4"), axes=1),
    "cube": Stepped(schroedinger, ("c8", "f4"), axes=3),
    "cube c16": Stepped(ginzburg_landau, ("c16", "f8"), axes=3),
}


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def after_steps(program: Program, arrays: Sequence[Any], boundary: str, steps: int) -> list[Any]:
    """Return the arrays after so many steps of `evaluate`; beyond a constant boundary they are 0."""
    mode = {"nearest": "edge", "reflect": "symmetric", "mirror": "reflect"}.get(boundary, boundary)
    now = list(arrays)
    for _ in range(steps):
        around_all = [((1, 1),) * program.axes + ((0, 0),) * (one.ndim - program.axes) for one in now]
        padded = [np.pad(one, width, mode=mode) for one, width in zip(now, around_all, strict=True)]
        now[: len(program.outputs)] = evaluate(program, padded, ((1, 1),) * program.axes)
    return now


@pytest.mark.skipif(fused.GXX is None, reason="needs g++")
@pytest.mark.parametrize(
    ("name", "boundary", "vectors"),
    [  # a boundary of each program by day, in turn; without vectors, of two programs
        pytest.param(
            *one, marks=[] if number % 5 == number // 5 % 5 and number < 55 else [pytest.mark.nightly]
        )
        for number, one in enumerate(
            (name, boundary, vectors)
            for vectors in (True, False)
            for name in STEPPED
            for boundary in BOUNDARIES
        )
    ],
)
def test_steps_have_the_bits_of_single_ones(name: str, boundary: str, vectors: bool, libraries: Path) -> None:
    program = STEPPED[name].program()
    feeds, steps = tuple(range(len(program.outputs))), 2 if name == "schroedinger c16" else 3
    if program.axes == 3:
        tuning, shapes = Tuning(2, 2, 6, 2, rows=7, vectors=vectors), [(3, 7, 9), (9, 15, 132)]
    else:
        tuning = Tuning(4 if name in ("mixed", "schroedinger c16") else 2, 1, 2, 3, rows=9, vectors=vectors)
        shapes = [(7, 9), (23, 132)]
    kernel = build(program, feeds, boundary, 0, steps, tuning)
    assert ("X(0, 1, " in kernel.source) == vectors
    parts = [Part(3, 9), Part(5, 16), Part(30, 330)]
    for lengths, part in [*((one, None) for one in shapes), ((12, 21, 360), parts)]:
        shape = lengths[-program.axes :]
        arrays = [fused.noise((*shape, *one.trailing), one.dtype, n) for n, one in enumerate(program.inputs)]
        arrays = [np.where(np.isfinite(one), one, 1).astype(one.dtype) for one in arrays]
        wanted = after_steps(program, arrays, boundary, steps)[: len(feeds)]
        halo = [(1, 1)] * program.axes
        given = part and part[-program.axes :]
        compare(libraries, kernel, arrays, wanted, halo, boundary == "wrap", given, aligned=vectors)


# Bytes of the fastest kernels, as measured on H200s, and of one that was not.
MOST_SPILLED = {"ginzburg_landau": FEW_BYTES, "schroedinger c16": 160, "cube": 8}


@pytest.mark.parametrize(
    "architecture", ["90", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("80", "100"))]
)
@pytest.mark.parametrize("name", ["schroedinger", "ginzburg_landau", "schroedinger c16", "cube"])
def test_kernels_of_several_steps_keep_all_in_registers(name: str, architecture: str) -> None:
    program = STEPPED[name].program()
    if program.axes == 3 and architecture == "80":
        pytest.skip("kernels over three axes need compute capability 9.0")
    choice = choices(program, (0,))[0]
    kernel = build(program, (0,), "wrap", 0, choice.steps, replace(choice.tuning, vectors=True))
    log = log_of_text(kernel.source, kernel.name, ("--fmad=false",), architecture)
    (spilled,) = map(int, re.findall(r"(\d+) bytes spill stores", log))
    assert spilled <= MOST_SPILLED.get(name, 0)


# Random programs

TERMS = (
    "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} * {b}.conj()", "1j * {a}", "{a} * 0.5", "(0.5 - 0.25j) * {a}",
    "np.where({a}.real > {b}.imag, {a}, {b})", "{a}.real + 1j * {b}.imag", "np.abs({a}) ** 2 * {b}",
    "{a} / (2 + np.abs({b}) ** 2)", "f * {a}", "{a} / 4", "np.abs({a}) * {b}", "{a}.imag * {b}", "{a} ** 2",
)  # fmt: skip
SHIFTS = ("1:-1, 1:-1", ":-2, 1:-1", "2:, 1:-1", "1:-1, :-2", "1:-1, 2:", ":-2, 2:")


def random_function(seed: int) -> Callable[..., Any]:
    """Return a function of a complex and a real field whose results stay small."""
    rng = np.random.default_rng(seed)
    names = [f"z[{one}]" for one in rng.permutation(SHIFTS)[: rng.integers(2, 6)]]
    lines = []
    for number in range(rng.integers(2, 6)):
        a, b = rng.choice(names, 2)
        lines.append(f"    t{number} = {str(rng.choice(TERMS)).format(a=a, b=b)}")
        names.append(f"t{number}")
    space: dict[str, Any] = {"np": np}
    text = ["def g(z, level):", "    f = level[1:-1, 1:-1]", *lines]
    text.append(f"    return (0.5 * z[1:-1, 1:-1] + 0.25 * {names[-1]}).astype(z.dtype)")
    exec("\n".join(text), space)
    function: Callable[..., Any] = space["g"]
    return function


def random_case(seed: int, shape: tuple[int, int]) -> tuple[Callable[..., Any], Program, Any, Any]:
    """Return a function, its program of complex numbers, and arrays."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(("c8", "c16")[seed % 2])
    z = (rng.uniform(-1, 1, shape) + 1j * rng.uniform(-1, 1, shape)).astype(kind)
    level = rng.uniform(-1, 1, shape).astype(z.real.dtype)
    function, inputs = random_function(seed), [Operand("z", kind), Operand("level", level.dtype)]
    return function, trace(function, inputs, ((1, 1),) * 2, {}, frozenset(), ["out"]), z, level


def check_close(found: Any, expected: Any, steps: int = 1) -> None:
    few = 64 * steps * float(np.finfo(expected.dtype).eps) * max(float(np.abs(expected).max()), 1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=few)


@pytest.mark.skipif(fused.GXX is None, reason="needs g++")
def test_random_programs_in_kernels(tmp_path: Path) -> None:
    """As C++ and as CUDA, against NumPy's complex numbers."""
    cases = [random_case(seed, (11, 37)) for seed in range(16)]
    programs = [program for _, program, *_ in cases]
    loops, texts = compile_loops(tmp_path, programs), compile_texts(tmp_path, programs)
    for (function, program, z, level), *runs in zip(cases, loops, texts, strict=True):
        expected = function(z, level)
        # A block has the halo that is read: cells are numbered from one cell before the first own one.
        sides = zip(halo_of(program), z.shape, strict=True)
        part = tuple(slice(1 - low, length - 1 + high) for (low, high), length in sides)
        for run in runs:
            out = np.empty_like(expected)
            run([z[part], level[part]], [out], (0, 0))
            check_close(out, expected)


@pytest.mark.skipif(fused.GXX is None, reason="needs g++")
@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(3, 24))]
)
def test_random_programs_of_several_steps(seed: int, libraries: Path) -> None:
    function, program, z, level = random_case(seed, (19, 132))
    real, steps = in_real_parts(program), 3
    boundary = list(PADS)[seed % 4]
    kernel = build(real, (0,), boundary, 0, steps, Tuning(4 - seed % 2 * 2, 1, 2, 3, rows=9, vectors=True))
    parts = views_of_parts([z, level])
    (wanted,) = after_steps(real, parts, boundary, steps)[:1]
    compare(libraries, kernel, parts, [wanted], [(1, 1)] * 2, boundary == "wrap", aligned=True)
    now = z
    for _ in range(steps):
        now = function(*(np.pad(one, 1, PADS[boundary]) for one in (now, level)))
    check_close(np.ascontiguousarray(wanted).view(z.dtype)[..., 0], now, steps)
