"""Costly values are computed once for each cell, however many cells read them, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshrun.runner.compiler.cpp import source as host_source
from meshrun.runner.compiler.cpp.host import HostProgram, library
from meshrun.runner.compiler.passes.kept_rows import KeptRows, is_costly, kept_rows
from meshrun.runner.compiler.trace.graph import Operand, Program
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.system.compiler import Compiler

HALO = 2


def crystal(a: Any) -> Any:
    """Angles of slopes at four neighbours, and functions of them."""
    x, y = a[1:-1, 2:] - a[1:-1, :-2], a[2:, 1:-1] - a[:-2, 1:-1]
    angle = np.arctan2(y, x)
    up, side = np.cos(6 * angle) * y, np.sin(6 * angle) * x
    return up[2:, 1:-1] - up[:-2, 1:-1] + side[1:-1, 2:] - side[1:-1, :-2]


def nested(a: Any) -> Any:
    """Values of values at neighbours; some arguments of the sine are far from 0."""
    inner = np.exp(a)
    outer = np.sin(1e6 * (inner[1:-1, 2:] - inner[:-2, 1:-1]))
    return outer[1:-1, 2:] + outer[2:, 1:-1] * inner[2:-2, 2:-2]


def along_a_row(a: Any) -> Any:
    logarithm = np.log(a + 2)
    return logarithm[4:] - logarithm[:-4] + logarithm[2:-2]


def in_planes(a: Any) -> Any:
    root = np.cbrt(a)
    inner = root[2:-2, 2:-2, 2:-2]
    return (
        inner + root[:-4, 2:-2, 2:-2] + root[2:-2, 3:-1, 2:-2] + root[2:-2, 1:-3, 2:-2] + root[2:-2, 2:-2, 4:]
    )


FUNCTIONS = {1: [along_a_row], 2: [crystal, nested], 3: [in_planes]}


def traced(function: Callable[..., Any], axes: int = 2, kind: str = "f4", trailing: Any = ()) -> Program:
    return trace(function, [Operand("a", np.dtype(kind), trailing)], ((HALO, HALO),) * axes, {}, names=["b"])


def costly(program: Program) -> list[str]:
    return sorted(node.op for node in program.nodes if is_costly(node))


def names(kept: list[KeptRows]) -> list[list[str]]:
    return [costly(one.program) for one in kept]


def test_each_costly_value_is_computed_once() -> None:
    program, kept = kept_rows(traced(crystal))
    assert costly(program) == []
    assert sorted(names(kept)) == [["arctan2"], ["cos"], ["sin"]]
    program, kept = kept_rows(traced(nested))
    assert (costly(program), names(kept)) == ([], [["exp"], ["sin"]])


def test_a_value_that_one_other_needs_has_no_row() -> None:
    def both(a: Any) -> Any:
        angle = np.exp(a)
        wave = np.sin(angle) / 2
        other = np.cos(angle)
        return wave[2:-2, 3:-1] - wave[2:-2, 1:-3] + other[2:-2, 3:-1] - other[2:-2, 1:-3]

    program, kept = kept_rows(traced(both))
    assert (costly(program), names(kept)) == ([], [["cos", "exp", "sin"]])
    assert (kept[0].rows, kept[0].columns[1] - kept[0].columns[0]) == ((0, 0), 2)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: np.sin(a[2:-2, 2:-2]) + a[2:-2, 3:-1],
        lambda a: np.sin(a[2:-2, 3:-1]) * np.cos(a[2:-2, 2:-2]),
        lambda a: a[2:-2, 3:-1] ** 3 + a[2:-2, 2:-2] ** 3,  # products
    ],
)
def test_what_is_read_once_or_costs_little_stays(function: Callable[..., Any]) -> None:
    program = traced(function)
    changed, kept = kept_rows(program)
    assert not kept
    assert costly(changed) == costly(program)


def test_other_planes_are_computed_for_each_plane() -> None:
    program, kept = kept_rows(traced(in_planes, 3))
    assert (costly(program), names(kept)) == (["cbrt"], [["cbrt"]])  # that of the plane before
    assert (kept[0].rows[1] - kept[0].rows[0], kept[0].columns[1] - kept[0].columns[0]) == (2, 2)


def test_bits_are_those_of_the_cells_own_value(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of all lengths, more than one call, components, strides with padding, and halos that are NaN."""
    programs = [traced(function, axes) for axes, each in FUNCTIONS.items() for function in each]
    programs += [traced(nested, 2, "f8"), traced(crystal, 2, "f4", (3,)), traced(along_a_row, 1, "f8")]
    monkeypatch.setattr(host_source, "CELLS_KEPT", 40)
    text = host_source.source(programs)
    monkeypatch.setattr(host_source, "kept_rows", lambda program: (program, []))
    plain = host_source.source(programs)
    assert "struct Held {};" in plain
    assert "struct Held {};" not in text
    loaded, expected = library(text, compiler, None), library(plain, compiler, None)
    rng = np.random.default_rng(1)
    for number, program in enumerate(programs):
        for lengths in ((1, 1, 1), (2, 1, 33), (3, 7, 97), (2, 5, 130)):
            own = lengths[-program.axes :]
            operand = program.inputs[0]
            padded = [n + 2 * HALO + 3 for n in own]
            block = rng.uniform(-1, 1, (*padded, *operand.trailing)).astype(operand.dtype)
            block[(0,) * program.axes] = np.nan
            block = block[tuple(slice(n + 2 * HALO) for n in own)]
            outs = [np.full((*own, *operand.trailing), 7, operand.dtype) for _ in range(2)]
            for out, one in zip(outs, (loaded, expected), strict=True):
                HostProgram(program, one, number).run([block], [out], ((HALO, HALO),) * program.axes)
            assert outs[0].tobytes() == outs[1].tobytes(), (number, own)
