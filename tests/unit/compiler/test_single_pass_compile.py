"""The kernel of one pass compiles for GPUs without a warning and without spilling; no GPU needed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from fused import EXAMPLES, example
from nvrtc_log import log_of
from whole_functions import cube, field, heat, runge_kutta, traced

from meshrun.jobs.filters.elementwise import _apply
from meshrun.jobs.filters.expression import FUNCTIONS
from meshrun.runner.compiler.cuda.fill import kernel_of
from meshrun.runner.compiler.cuda.single_pass import ENDS_THREADS, emit
from meshrun.runner.compiler.passes.ends import interior
from meshrun.runner.compiler.passes.real_parts import in_real_parts
from meshrun.runner.compiler.trace.graph import Operand, merge_components, with_units
from meshrun.runner.compiler.whole.spaces.parts import SpectralProgram
from meshrun.runner.compiler.whole.trace import WholeInput, trace_whole
from meshrun.runner.programs.cells import LevelCells, kernels_of
from meshrun.runner.programs.stages import plan_program
from tests.facts.program_runs import planned
from tests.unit.programs.test_levels import two_grids
from tests.unit.programs.test_spectral import vorticity

ARCHITECTURES = ("90", "80", "100")


# All on one architecture, each program in one dtype on the others, at night.
ONCE = [*{case[0]: case for case in EXAMPLES}.values()]
CASES: list[Any] = [(*case, ARCHITECTURES[0]) for case in EXAMPLES]
CASES += [
    pytest.param(*case, architecture, marks=pytest.mark.nightly)
    for case in ONCE
    for architecture in ARCHITECTURES[1:]
]


def check_log(log: str) -> None:
    """Check that the compiler warned of nothing, and spilled nothing."""
    assert "warning" not in log
    assert re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", log) == [("0", "0")]


@pytest.mark.parametrize(("name", "dtype", "axes", "trailing", "architecture"), CASES)
def test_an_example_compiles_and_spills_nothing(
    name: str, dtype: str, axes: int, trailing: tuple[int, ...], architecture: str
) -> None:
    program, _ = merge_components(example(name, dtype, axes, trailing))
    check_log(log_of(emit(program), architecture))


@pytest.mark.parametrize("planes", [32, 16])
def test_marches_through_small_volumes_compile_and_spill_nothing(planes: int) -> None:
    kernel = emit(example("diffusion3d", "float32", 3), lengths=(planes, 128, 128))
    assert kernel.tile[1:] == ((2, 1) if planes == 32 else (1, 1))
    check_log(log_of(kernel, ARCHITECTURES[0]))


@pytest.mark.parametrize("boundary", ["reflect", "wrap"])
@pytest.mark.parametrize(
    ("name", "dtype", "axes"),
    [
        ("heat", "float64", 2),
        ("diffusion3d", "float32", 3),
        ("lattice", "float32", 3),
        ("lattice", "float16", 3),
        ("heat", "float16", 2),
        ("life", "uint8", 2),
    ],
)
def test_a_kernel_that_finds_the_ends_of_rows_compiles_and_spills_nothing(
    name: str, dtype: str, axes: int, boundary: str
) -> None:
    check_log(log_of(emit(example(name, dtype, axes), ends=boundary), ARCHITECTURES[0]))


EVERYTHING = " + ".join(
    [f"{name}({', '.join(['x'] * arguments)})" for name, (_, arguments) in FUNCTIONS.items()]
    + [
        "x ** 2 - 1.5 * x / 2 // 3 % 4 ** -x + pi",
        "(x < 1) + (x <= 1) + (x > 1) + (x >= 1) + (x == 1) + (x != 1)",
    ]
)


@pytest.mark.parametrize(
    "architecture",
    [ARCHITECTURES[0], *(pytest.param(a, marks=pytest.mark.nightly) for a in ARCHITECTURES[1:])],
)
@pytest.mark.parametrize(("source", "result"), [("float32", "float16"), ("float64", "uint64")])
def test_a_formula_with_every_function_compiles(source: str, result: str, architecture: str) -> None:
    inputs, outputs = (Operand("block0", np.dtype(source)),), (Operand("out0", np.dtype(result)),)
    kernel = kernel_of(_apply, inputs, outputs, ((0, 0),), (("expression", EVERYTHING),), 0)
    log_of(emit(kernel.program), architecture)


MORE_REGISTERS = 16  # of the cells near the ends, where the interior needs few


@pytest.mark.parametrize(
    ("function", "shape", "dtype"),
    [(heat, (512, 512), "f4"), (runge_kutta, (512, 512), "f8"), (cube, (128, 128, 128), "f4")],
)
def test_cells_near_the_ends_cost_the_interior_no_registers(
    function: Any, shape: tuple[int, ...], dtype: str
) -> None:
    program = traced(function, [field(*shape, dtype=dtype)], ("out",)).program
    registers = []
    for one in (program, interior(program)):
        log = log_of(emit(one), ARCHITECTURES[0])
        assert "warning" not in log
        assert set(re.findall(r"(\d+) bytes spill stores", log)) == {"0"}
        registers += map(int, re.findall(r"Used (\d+) registers", log))
    assert registers[0] <= max(registers[1] + MORE_REGISTERS, 32)


def closed_cube(u):
    """A cube through whose faces nothing flows: 27 kinds of cells."""
    new = u.copy()
    sides = u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1] + u[1:-1, 2:, 1:-1]
    new[1:-1, 1:-1, 1:-1] += 0.1 * (sides + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:] - 6 * u[1:-1, 1:-1, 1:-1])
    new[0], new[-1] = new[1], new[-2]
    new[:, 0], new[:, -1] = new[:, 1], new[:, -2]
    new[:, :, 0], new[:, :, -1] = new[:, :, 1], new[:, :, -2]
    return new


def test_many_kinds_of_ends_leave_a_processor_its_threads() -> None:
    """They may spill registers: they are few."""
    kernel = emit(traced(closed_cube, [field(64, 64, 64, dtype="f4")], ("out",)).program)
    (registers,) = map(int, re.findall(r"Used (\d+) registers", log_of(kernel, ARCHITECTURES[0])))
    assert registers * ENDS_THREADS <= 1 << 16


def test_kernels_between_levels_compile() -> None:
    """Those that read and write neighbours in a row as components."""
    arrays = [np.random.default_rng(0).random((21, 17), dtype=np.float32) for _ in range(2)]
    stages = planned(two_grids, arrays, ("u",), kind="cuda").kernels
    between = [stage.cells for stage in stages if isinstance(stage.cells, LevelCells)]
    programs = [one.program.program for cells in between for one in kernels_of(cells)]
    assert any(one.components > 1 for program in programs for one in (*program.inputs, *program.outputs))
    for program in {one.text(): one for one in programs}.values():
        assert "warning" not in log_of(emit(merge_components(program)[0]), ARCHITECTURES[0])


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.nightly)])
def test_the_parts_of_a_spectral_solver_compile(dtype: str) -> None:
    inputs = [WholeInput("w", (64, 48), np.dtype(dtype))]
    program = trace_whole(vorticity, inputs, {}, kind="cuda")
    assert isinstance(program, SpectralProgram)
    kernels = [
        cells.program.program
        for part in program.parts
        for stage in plan_program(part.program).kernels
        for cells in kernels_of(stage.cells)
    ]
    assert len(kernels) == len(program.parts)
    made = {
        one.source: one
        for one in (emit(with_units(merge_components(in_real_parts(each))[0])) for each in kernels)
    }
    for kernel in made.values():
        check_log(log_of(kernel, ARCHITECTURES[0]))
