"""Ends that are copies of other cells: found in random functions, and in kernels of several steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import host_steps
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from step_parts import Part, compare
from whole_functions import compiled

from meshrun.runner.compiler.cuda.steps.kernel import build
from meshrun.runner.compiler.cuda.steps.layout import NotFusable, Tuning, layout_of
from meshrun.runner.compiler.passes import copied_ends as copied_ends_pass
from meshrun.runner.compiler.passes.copied_ends import CopiedEnds, copied_ends_of
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Program
from meshrun.runner.compiler.whole.trace import WholeInput, trace_whole

SHAPES = {1: (23,), 2: (14, 17), 3: (11, 12, 13)}
ENDS = {  # what is written to a cell at an end: of the low end with one cell beside the others, then with two
    "held": "u[{at}]", "constant": "{value}", "filled": "new[{beside}]", "old": "u[{beside}]",
    "other end": "new[{opposite}]", "same end": "new[{far}]",
}  # fmt: skip


def ends_text(draw: st.DrawFn, axes: int, width: int) -> list[str]:
    """Draw statements that write the cells at the ends, axis by axis or in any order."""
    alike, statements = draw(st.sampled_from([*ENDS, ""])), []
    faces = draw(st.integers(0, 3)) == 0  # whether some statements leave corners out
    for axis in range(axes):
        kind_of_axis = draw(st.sampled_from(["filled", "other end", "other end", ""])) or alike
        for side in (0, 1):
            kind = kind_of_axis or draw(st.sampled_from(list(ENDS)))
            for cell in range(width):
                place = {
                    "at": cell if side == 0 else -1 - cell,
                    "beside": width if side == 0 else -1 - width,
                    "opposite": cell - 2 * width if side == 0 else 2 * width - 1 - cell,
                    "far": -1 if side == 0 else 0,
                }
                whole = not faces or draw(st.booleans())
                others = [":" if whole else f"{width}:-{width}"] * axes

                def index(position: int, axis: int = axis, others: Sequence[str] = others) -> str:
                    return ", ".join([*others[:axis], str(position), *others[axis + 1 :]])

                given = {name: index(position) for name, position in place.items()}
                value = ENDS[kind].format(**given, value=draw(st.sampled_from(["0", "1.5"])))
                statements.append(f"    new[{given['at']}] = {value}")
    return draw(st.permutations(statements)) if draw(st.booleans()) else statements


@st.composite
def edge_functions(draw: st.DrawFn, axes: int) -> str:
    """A function of one field, or of two of which one is the other's last step."""
    width, second = draw(st.integers(1, 2 if axes < 3 else 1)), draw(st.integers(0, 3)) == 0
    reach = draw(st.integers(1, width))

    def cells(axis: int = 0, shift: int = 0) -> str:
        ranges = [(width, -width)] * axes
        ranges[axis] = (width + shift, shift - width)
        return ", ".join(f"{a}:{b or ''}" for a, b in ranges)

    terms = [f"{draw(st.integers(1, 4))} * u[{cells()}]"]
    for axis in range(axes):
        for shift in draw(st.sets(st.sampled_from([-reach, -1, 1, reach]), min_size=1)):
            terms.append(f"{draw(st.integers(-3, 3)) or 2} * u[{cells(axis, shift)}]")
    lines = [f"def f(u{', before' if second else ''}):", "    new = u.copy()"]
    lines.append(f"    new[{cells()}] = {' + '.join(terms)}{f' - before[{cells()}]' if second else ''}")
    lines += ends_text(draw, axes, width)
    return "\n".join([*lines, f"    return new{', u' if second else ''}", ""])


def traced(function: Callable[..., Any], fields: Sequence[Any]) -> tuple[Program, bool]:
    """Return the program, and whether it reads around the ends."""
    inputs = [WholeInput(f"in{n}", one.shape, one.dtype) for n, one in enumerate(fields)]
    whole = trace_whole(function, inputs, {}, [f"out{n}" for n in range(len(fields))])
    return whole.program, any(whole.wraps)


def fields_of(function: Callable[..., Any], shape: Sequence[int], dtype: str = "i4") -> list[Any]:
    rng = np.random.default_rng(1)
    return [rng.integers(-99, 99, shape).astype(dtype) for _ in range(function.__code__.co_argcount)]


def step(function: Callable[..., Any], fields: Sequence[Any]) -> list[Any]:
    found = function(*(one.copy() for one in fields))
    return list(found) if isinstance(found, tuple) else [found]


def step_of(copied: CopiedEnds, fields: Sequence[Any]) -> list[Any]:
    """Take a step as a kernel does: all cells by one program, from places that repeat or are filled."""
    program, shape = copied.program, fields[0].shape
    reads = [program.footprint(number) for number in range(len(fields))]
    widths = tuple(
        (max(one[axis][0] for one in reads), max(one[axis][1] for one in reads))
        for axis in range(program.axes)
    )
    blocks = list(fields)
    for axis, (low, high) in enumerate(widths):
        places = np.arange(-low, shape[axis] + high)
        outside = (places < 0) | (places >= shape[axis])
        places[outside] %= shape[axis] - copied.repeats[axis]
        blocks = [one.take(places, axis) for one in blocks]
    results = list(evaluate(program, blocks, widths, (0,) * program.axes))
    for axis, (low, high) in enumerate(copied.filled):
        places = np.clip(np.arange(shape[axis]), low, shape[axis] - 1 - high)
        results = [one.take(places, axis) for one in results]
    return results


@pytest.mark.parametrize("axes", [1, 2, 3])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_cells_are_computed_as_the_function_does(axes: int, data: st.DataObject) -> None:
    function = compiled(data.draw(edge_functions(axes)))
    fields = fields_of(function, SHAPES[axes])
    program, _ = traced(function, fields)
    copied = copied_ends_of(program, range(len(fields)))
    for _ in range(copied.first_steps):
        fields = step(function, fields)
    for _ in range(2):
        wanted = step(function, fields)
        for one, other in zip(step_of(copied, fields), wanted, strict=True):
            np.testing.assert_array_equal(one, other)
        fields = wanted


def found(text: str, axes: int) -> CopiedEnds:
    function = compiled("def f(u):\n    new = u.copy()\n" + text + "    return new\n")
    program, _ = traced(function, fields_of(function, SHAPES[axes]))
    return copied_ends_of(program, [0])


INNER = "    new[1:-1, 1:-1] += u[2:, 1:-1] - u[:-2, 1:-1] + u[1:-1, 2:] - 2 * u[1:-1, :-2]\n"
SPACE = "    new[1:-1, 1:-1, 1:-1] += u[2:, 1:-1, 1:-1] - u[1:-1, :-2, 1:-1] + u[1:-1, 1:-1, :-2]\n"
ROWS = "    new[0], new[-1] = new[-2], new[1]\n"
COLUMNS = "    new[:, 0], new[:, -1] = new[:, -2], new[:, 1]\n"


def test_ends_that_meet_are_found() -> None:
    for text in (INNER + ROWS + COLUMNS, INNER + COLUMNS + ROWS):
        both = found(text, 2)
        assert (both.repeats, both.first_steps, both.program.has_places) == ((2, 2), 1, False)
    assert found(INNER + ROWS, 2).repeats == (2, 0)


@pytest.mark.parametrize(
    "text",
    [
        INNER + "    new[0], new[-1] = new[-2], u[1]\n" + COLUMNS,  # one step late
        INNER + "    new[0], new[-1] = new[-1], new[0]\n",  # they change places
        INNER + "    new[0], new[-1] = new[-2], 1 * new[1] + 0 * u[1]\n",  # -0 and infinities differ
        INNER + "    new[0], new[-1] = new[-3], new[1]\n",
        INNER + "    new[0], new[-1] = new[-2], new[2]\n",
        INNER + "    new[0, 1:], new[-1] = new[-2, 1:], new[1]\n",  # a corner keeps its value
    ],
)
def test_ends_that_do_not_meet_are_not_found(text: str) -> None:
    assert found(text, 2).repeats[0] == 0


def test_ends_that_are_filled_are_found_in_any_order() -> None:
    faces = ["    new[{}] = new[{}]\n".format(", ".join([":"] * n + [a]), ", ".join([":"] * n + [b]))
             for n in range(3) for a, b in (("0", "1"), ("-1", "-2"))]  # fmt: skip
    for order in (faces, faces[::-1], faces[::2] + faces[1::2]):
        closed = found(SPACE + "".join(order), 3)
        assert (closed.filled, closed.program.has_places) == (((1, 1),) * 3, False)
    one = found(SPACE + faces[3], 3)
    assert one.filled == ((0, 0), (0, 1), (0, 0))
    corner = found(SPACE + faces[0].replace("0]", "0, 1:]").replace("1]", "1, 1:]"), 3)
    assert corner.filled == ((0, 0),) * 3


@pytest.mark.parametrize("mutant", ["corners", "a step late"])
def test_the_comparison_finds(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells at corners that are not looked at, and cells that are not equal yet."""
    if mutant == "corners":
        beside = copied_ends_pass._boxes_beside
        monkeypatch.setattr(copied_ends_pass, "_boxes_beside", lambda *given: list(beside(*given))[:1])
        text = INNER + "    new[0, 1:-1], new[-1, 1:-1] = new[-2, 1:-1], new[1, 1:-1]\n    new[:, 0] = 0\n"
        text += "    new[-1, -1] = 5\n"
    else:
        first_steps = copied_ends_pass._Cells.first_steps
        monkeypatch.setattr(
            copied_ends_pass._Cells, "first_steps", lambda *given: None if first_steps(*given) is None else 0
        )
        text = INNER + ROWS
    function = compiled("def f(u):\n    new = u.copy()\n" + text + "    return new\n")
    fields = fields_of(function, SHAPES[2])
    copied = copied_ends_of(traced(function, fields)[0], [0])
    assert any(copied.repeats)
    for _ in range(copied.first_steps):
        fields = step(function, fields)
    second = step(function, step(function, fields))
    assert not np.array_equal(step_of(copied, step_of(copied, fields))[0], second[0])


TUNINGS = {2: [Tuning(2, 1, 1, 1, rows=5), Tuning(4, 1, 1, 3, rows=6, vectors=True)],
           3: [Tuning(1, 3, 4, 1, rows=5), Tuning(2, 2, 6, 2, rows=4, vectors=True)]}  # fmt: skip
CUT = {
    2: [None, [Part(0, 13), Part(0, 140)], [Part(13, 27), Part(0, 140)]],
    3: [None, [Part(0, 8), Part(0, 9), Part(0, 52)], [Part(8, 17), Part(9, 19), Part(0, 52)]],
}
WHOLE = {2: (27, 140), 3: (17, 19, 52)}


@pytest.mark.skipif(host_steps.GXX is None, reason="needs g++")
@pytest.mark.parametrize("axes", [2, 3])
@settings(max_examples=max(settings.default.max_examples // 25, 2), deadline=None)
@given(data=st.data())
def test_kernels_of_several_steps(axes: int, data: st.DataObject, libraries: Path) -> None:
    function = compiled(data.draw(edge_functions(axes)))
    fields = fields_of(function, WHOLE[axes])
    program, wraps = traced(function, fields)
    feeds, tuning = tuple(range(len(fields))), data.draw(st.sampled_from(TUNINGS[axes]))
    try:
        kernel = build(program, feeds, "wrap" if wraps else "none", 0, data.draw(st.integers(2, 3)), tuning)
        layout = layout_of(program, feeds)
    except NotFusable:
        return
    for _ in range(layout.first_steps):
        fields = step(function, fields)
    wanted = fields
    for _ in range(kernel.steps):
        wanted = step(function, wanted)
    reads = [program.footprint(number) for number in feeds]
    halo = [(max(one[a][0] for one in reads), max(one[a][1] for one in reads)) for a in range(axes)]
    for part in CUT[axes]:
        compare(libraries, kernel, fields, wanted, halo, wraps, part, aligned=tuning.vectors)
