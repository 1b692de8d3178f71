"""Generated kernels of complex numbers, compiled for the host: the bits of the same program of real parts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fused
import numpy as np
import pytest
from nvrtc_log import log_of

from meshrun.runner.compiler.cuda.single_pass import emit, launch_arguments
from meshrun.runner.compiler.passes.real_parts import in_real_parts
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Operand, Program, merge_components, with_units, without_units
from meshrun.runner.compiler.trace.trace import trace

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
