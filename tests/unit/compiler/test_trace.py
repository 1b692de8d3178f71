"""Functions that are traced compute the same by their trace; others are refused, with a line and a hint."""

from __future__ import annotations

import copy
import functools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from fuse_programs import cells

from meshrun.runner.compiler.trace.array import MOST_NODES
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Graph, Operand, Program
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.region import HostArray

PLANE = ((1, 1), (1, 1))
OWN = (slice(1, -1), slice(1, -1))
KEPT: list[Any] = []


def traced(
    function: Callable[..., Any],
    kind: str = "f4",
    trailing: tuple[int, ...] = (),
    results: int = 1,
    **options: Any,
) -> Program:
    names = [f"r{number}" for number in range(results)]
    inputs = [Operand("a", np.dtype(kind), trailing)]
    return trace(function, inputs, options.pop("widths", PLANE), options, frozenset(["xp"]), names)


def check(
    function: Callable[..., Any], kind: str = "f4", trailing: tuple[int, ...] = (), results: int = 1
) -> None:
    """Compare the trace with the plain function, to the bit."""
    block = cells(np.random.default_rng(7), (6, 9, *trailing), np.dtype(kind))
    with np.errstate(all="ignore"):
        plain = function(block.copy(), xp=np)
    expected: Sequence[HostArray] = plain if isinstance(plain, tuple) else (plain,)
    found = evaluate(traced(function, kind, trailing, results), [block], PLANE)
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == np.ascontiguousarray(other).tobytes() or np.array_equal(
            one, other, equal_nan=True
        )


# What is traced


def views_in_place(a, xp):
    b = a[OWN].copy()
    b[...] *= 2
    b[:] += 1
    return b


def one_component_in_place(a, xp):
    b = a[OWN].copy()
    b[..., 0] += b[..., 1]
    b[..., -1] = 3
    return b


def views_share_cells(a, xp):
    b = a[OWN].copy()
    first = b[..., 0]
    b[..., 0] += 1
    return first[..., None] + b


def a_transposed_view_is_the_same_array(a, xp):
    b = a[OWN].copy()
    across = b.T
    across += 1
    return b + across.T


def the_input_in_place(a, xp):
    a *= 2
    return a[OWN]


def copies_are_apart(a, xp):
    b = a[OWN]
    c, d, e = b.copy(), b.astype(b.dtype), xp.clip(b, None, None)
    b += 1
    return b + c + d + e


def three_in_a_row(a, xp):
    return sum(a[i : a.shape[0] - 2 + i, 1:-1] for i in range(3))


def weights(a, xp):
    kernel, total = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]]), 0
    for i in range(3):
        for j in range(3):
            total = total + kernel[i, j] * a[i : a.shape[0] - 2 + i, j : a.shape[1] - 2 + j]
    return total


def highest(a, xp):
    return xp.stack([a[:-2, 1:-1], a[2:, 1:-1], a[OWN]]).max(axis=0)


def numbers_that_do_not_fit(a, xp):
    b = a[OWN]
    return (b < 300) & (b > -1) & (b != 2**40), xp.clip(b, -5, 1000), xp.where(b > 3, b, 300)


def powers(a, xp):
    b = a[OWN]
    b **= 2
    return b, b**2, (b > 0) ** 2, b**3


def arrays_of_xp(a, xp):
    shape = a[OWN].shape
    zeros, found = xp.zeros(shape, a.dtype), xp.empty(shape, dtype="f8", order="C")
    found[...] = a[OWN]
    return zeros + xp.ones(shape, "u1") + xp.full(shape, 2.5, "f4"), found, xp.asarray(a[OWN], "f4")


def averages(a, xp):
    b = -abs(a[OWN]) * 0
    return b.sum(axis=-1), b.mean(-1), b.max(-1), xp.sum(b, axis=-1, keepdims=True)


def axes_change(a, xp):
    return xp.moveaxis(xp.swapaxes(a[OWN], 0, 1), 0, 1), xp.expand_dims(a[OWN], -1), xp.transpose(a[OWN].T)


def differences(a, xp):
    return xp.diff(a[1:-1], axis=1)[:, 1:] + np.diff(a[:, 1:-1], axis=0)[:-1]


@pytest.mark.parametrize(
    ("function", "kind", "trailing", "results"),
    [
        (views_in_place, "f4", (), 1),
        (one_component_in_place, "f8", (3,), 1),
        (views_share_cells, "i4", (3,), 1),
        (a_transposed_view_is_the_same_array, "f4", (), 1),
        (the_input_in_place, "u1", (), 1),
        (copies_are_apart, "f4", (), 1),
        (three_in_a_row, "f4", (), 1),
        (weights, "f4", (), 1),
        (highest, "f4", (), 1),
        (numbers_that_do_not_fit, "u1", (), 3),
        (numbers_that_do_not_fit, "i8", (), 3),
        (powers, "i2", (), 4),
        (arrays_of_xp, "f4", (), 3),
        (averages, "f4", (3,), 4),
        (axes_change, "f4", (), 3),
        (differences, "u1", (), 1),
    ],
)
def test_the_trace_computes_the_same(
    function: Callable[..., Any], kind: str, trailing: tuple[int, ...], results: int
) -> None:
    check(function, kind, trailing, results)


def test_what_is_no_plain_function_is_traced() -> None:
    class Doubles:
        def __call__(self, a, xp):
            return a[OWN] * 2

    assert traced(Doubles()).operations == 1
    assert traced(functools.partial(weights)).text() == traced(weights).text()
    assert trace(np.negative, [Operand("a", np.dtype("f4"))], ((0, 0),), {}).operations == 1


def test_a_long_chain_of_operations_is_no_deep_recursion() -> None:
    def chain(a, xp):
        total = a[OWN]
        for _ in range(MOST_NODES - 10):
            total = total + 1
        return total

    assert traced(chain).operations == MOST_NODES - 10


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
@pytest.mark.parametrize("halo", [0, 1, 20])
def test_a_trace_makes_no_large_arrays_and_tells_axes_apart(axes: int, halo: int) -> None:
    shapes = []

    def own(a, xp):
        shapes.append(a.shape)
        return a[(slice(halo, -halo or None),) * axes]

    program = trace(own, [Operand("a", np.dtype("f4"))], ((halo, halo),) * axes, {}, frozenset(["xp"]))
    assert program.loads[0].offset == (0,) * axes
    assert all(math.prod(shape) < 5e9 for shape in shapes)
    assert all(a % 2 != b % 2 for a, b in zip(*shapes, strict=True))
    if axes < 3:
        assert max(shapes[0]) < 1000 < min(shapes[1])


# What is refused. The line that is named ends with "# here".

WHERE, SLICES = "xp.where(condition, a, b)", "slices"


def decides(a, xp):
    if a[OWN] > 0:  # here
        return a[OWN]
    return a[OWN] * 2


def subtracts_the_mean(a, xp):
    b = a[OWN]
    return b - b.mean()  # here


def adds_all(a, xp):
    return a[OWN] / np.sum(a)  # here


def picks(a, xp):
    b = a[OWN].copy()
    b[b > 1] = 0  # here
    return b


def picks_rows(a, xp):
    return a[[0, 1]]  # here


def counts(a, xp):
    scale = a.shape[0]
    return a[OWN] * scale  # here


def is_odd(a, xp):
    if len(a) % 2:
        return a[OWN] + 1  # here
    return a[OWN] - 1


def rolls_dice(a, xp):
    return a[OWN] + random.random()  # here


def writes_a_row(a, xp):
    b = a.copy()
    b[0] = 0  # here
    return b[OWN]


def writes_the_middle(a, xp):
    b = xp.zeros_like(a)
    b[OWN] = a[OWN]  # here
    return b[OWN]


def reads_a_stale_view(a, xp):
    b = a[OWN]
    a *= 2
    return b + 1  # here


def reads_a_stale_base(a, xp):
    b = a[OWN]
    b += 1
    return a[OWN]  # here


def rolls(a, xp):
    return np.roll(a, 1, axis=0)[OWN]  # here


def iterates(a, xp):
    return sum(row for row in a)  # here


def uses_math(a, xp):
    return a[OWN] * math.floor(a[OWN])  # here


def makes_numpys_array(a, xp):
    return np.asarray(a)[OWN]  # here


def adds_numpys_array(a, xp):
    return a[OWN] + np.ones(a[OWN].shape)  # here


def takes_a_row(a, xp):
    return a[OWN] + a[0, 1:-1]  # here


def takes_few_rows(a, xp):
    return a[OWN] + a[:1, 1:-1]  # here


def skips(a, xp):
    return a[::2]  # here


def does_much(a, xp):
    total = a[OWN]
    for number in range(2 * MOST_NODES):
        total = total + number  # here
    return total


def keeps(a, xp):
    KEPT.append(a[OWN])
    return KEPT[0] + a[OWN]  # here


def is_complex(a, xp):
    return a[OWN].astype(np.clongdouble)  # here


def swaps_bytes(a, xp):
    return a[OWN].astype(">f4")  # here


def reshapes(a, xp):
    a.shape = (-1,)  # here
    return a


def raises(a, xp):
    raise KeyError("missing")  # here


def combines_axes(a, xp):
    return a[OWN] + a[OWN].T  # here


def looks_for_cells(a, xp):
    return np.where(a)  # here


def casts_with_a_signature(a, xp):
    return np.add(a[OWN], 1, signature="dd->d")  # here


@pytest.mark.parametrize(
    ("function", "reason", "hint"),
    [
        (decides, "decides by the value of a cell", WHERE),
        (subtracts_the_mean, "reduces the cells of a block", "@meshrun.reduce_blocks"),
        (adds_all, "reduces the cells of a block", "@meshrun.reduce_blocks"),
        (picks, "picks cells by a condition", WHERE),
        (picks_rows, "picks cells by an array of integers", "slices of the block"),
        (counts, "computes with the number of cells of its block", "a parameter"),
        (is_odd, "computes with the number of cells of its block", "a parameter"),
        (rolls_dice, "differs from one call to the next", "a parameter"),
        (writes_a_row, "writes a part of an array", WHERE),
        (writes_the_middle, "writes a part of an array", WHERE),
        (reads_a_stale_view, "was changed in place", "a new array"),
        (reads_a_stale_base, "was changed in place", "a new array"),
        (rolls, "uses numpy.roll", "slices of the block with its halo"),
        (iterates, "iterates over the cells", "slices instead of a loop"),
        (uses_math, "converts cells to a Python number", "xp functions"),
        (makes_numpys_array, "makes a NumPy array", "zeros_like"),
        (adds_numpys_array, "not made from the block", "xp.zeros(shape)"),
        (takes_a_row, "takes single rows or cells", SLICES),
        (takes_few_rows, "takes a few rows", "both ends"),
        (skips, "takes every 2 cells", SLICES),
        (does_much, "operations for each cell", ""),
        (keeps, "keeps an array from one call to the next", ""),
        (is_complex, "computes in complex256", ""),
        (swaps_bytes, "computes in >f4", ""),
        (reshapes, "sets .shape", ""),
        (raises, "raises KeyError: 'missing'", ""),
        (combines_axes, "raises ValueError: shape mismatch", ""),
        (looks_for_cells, "looks for cells", WHERE),
        (casts_with_a_signature, "uses signature= of numpy.add", ""),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_cannot_be_traced_is_refused_with_its_line(
    function: Callable[..., Any], reason: str, hint: str
) -> None:
    with pytest.raises(NotTraceable) as refusal:
        traced(function)
    first = function.__code__.co_firstlineno
    with open(__file__) as file:
        lines = file.read().splitlines()
    (marked,) = (n for n in range(first, first + 9) if "# here" in lines[n - 1] and all(
        not line.startswith("def") for line in lines[first : n - 1]
    ))  # fmt: skip
    assert reason in refusal.value.reason
    assert hint in (refusal.value.hint or "")
    assert refusal.value.line == marked


def test_what_is_returned_is_checked() -> None:
    def refusal(function: Callable[..., Any], results: int = 1) -> str:
        with pytest.raises(NotTraceable) as found:
            traced(function, results=results)
        return found.value.reason

    for result, shorter in ((lambda a, xp: a, (-2, -2)), (lambda a, xp: a[2:-2, 1:], (2, -1))):
        with pytest.raises(NotTraceable, match="of another size than its own cells") as found:
            traced(result)
        assert found.value.shorter == shorter
    assert "returns 1 results, not 2" in refusal(lambda a, xp: a[OWN], 2)
    assert "other axes than its block" in refusal(lambda a, xp: a[OWN].T)
    assert "does not come from its block" in refusal(lambda a, xp: None)
    assert "does not come from its block" in refusal(lambda a, xp: np.float32(1))


def test_a_function_that_asks_how_its_array_is_cut_is_refused() -> None:
    with pytest.raises(NotTraceable, match=r"uses here\.offset"):
        trace(
            lambda a, here: a + here.offset[0],
            [Operand("a", np.dtype("f4"))],
            ((0, 0),),
            {},
            frozenset(["here"]),
        )


@pytest.mark.parametrize(("kind", "trailing"), [("G", ()), (">f4", ()), ("g", ()), ("f4", (17,))])
def test_inputs_that_no_kernel_reads_are_refused(kind: str, trailing: tuple[int, ...]) -> None:
    with pytest.raises(NotTraceable):
        traced(lambda a, xp: a[OWN], kind, trailing)


def test_results_to_fill_are_whole() -> None:
    def fills(a, out, xp):
        np.multiply(a[OWN], 2, out=out)

    def fills_a_part(a, out, xp):
        out[1:] = a[OWN][1:]

    inputs, declared = [Operand("a", np.dtype("f4"))], [Operand("r", np.dtype("f4"))]
    services = frozenset(["out", "xp"])
    assert trace(fills, inputs, PLANE, {}, services, ["r"], declared).operations == 1
    with pytest.raises(NotTraceable, match="writes a part"):
        trace(fills_a_part, inputs, PLANE, {}, services, ["r"], declared)


def test_a_copied_graph_finds_its_own_nodes() -> None:
    """By its own: an address of an original's node may be that of another node later."""
    graph, kind = Graph(), np.dtype("float32")
    cell = graph.load(0, kind, (0,))
    total = graph.operation("add", kind, [cell, cell])
    graph, cell, total = copy.deepcopy((graph, cell, total))
    assert graph.operation("add", kind, [cell, cell]) is total
