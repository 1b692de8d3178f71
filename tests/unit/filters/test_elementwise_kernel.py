"""The kernel of a formula, compiled for the host and launched by the job's GPU code path: NumPy's bits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from any_values import noise
from fused import GXX, launchers
from on_device import OnDevice

from meshrun.jobs.filters import elementwise as elementwise_module
from meshrun.jobs.filters.dtypes import SUPPORTED, floating
from meshrun.jobs.filters.elementwise import elementwise
from meshrun.jobs.filters.expression import FUNCTIONS
from meshrun.runner.compiler.cuda import fill
from meshrun.runner.compiler.cuda.single_pass import emit
from meshrun.runner.compiler.trace.graph import Operand

Array = np.ndarray[Any, Any]
EXPRESSION = "where(x > 10, x * 3.5 - 0.1, min(max(-x, floor(x / 7)), 1e30)) + abs(x) // 1.5 % -0.7"
# Elements and `--dtype`: every type of elements, and every way in which a result is stored.
EXPRESSED = (
    *((source, "float") for source in SUPPORTED),
    *((source, "same") for source in ("bool", "int8", "int16", "uint32", "uint64", "int64", "float16")),
    ("uint8", "uint8"), ("float32", "uint8"), ("int32", "int32"), ("float64", "int32"), ("float64", "int64"),
    ("float64", "uint64"), ("uint16", "float16"),
)  # fmt: skip
DIVISORS = ("0", "0.1", "(-0.1)", "3.5", "(-7)", "1e30", "(1/x)", "(x - 1)")
DIVIDED = [f"x {operator} {divisor}" for operator, divisor in product(("//", "%"), DIVISORS)]
OTHERS = ["7", "x", "2 < x < 30", "where(1 > 2, x, 3)", "where(x, 1, 0 / 0)", "pi - pi / 0"]
EVERYTHING = [f"{name}({', '.join(['x'] * arguments)})" for name, (_, arguments) in FUNCTIONS.items()]


def result_of(source: str, expression: str, dtype: str) -> np.dtype[Any]:
    assert elementwise.out is not None
    made: np.dtype[Any] = elementwise.out((1,), np.dtype(source), expression=expression, dtype=dtype)[1]
    return made


def kernel_of(source: str, result: np.dtype[Any], expression: str) -> Any:
    operands = (Operand("block0", np.dtype(source)),), (Operand("out0", result),)
    parameters = (("expression", expression),)
    return fill.kernel_of(elementwise_module._apply, *operands, ((0, 0),), parameters, 0)


@pytest.fixture(scope="module")
def on_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., None]]:
    """Have kernels run on the host. All of this module are compiled at once."""
    if GXX is None:
        pytest.skip("needs g++")
    wanted = [(source, result_of(source, EXPRESSION, dtype), EXPRESSION) for source, dtype in EXPRESSED]
    wanted += [("float32", np.dtype(np.float32), one) for one in (*DIVIDED, *OTHERS)]
    kernels = [emit(kernel_of(*one)._merged) for one in dict.fromkeys(wanted)]
    made = launchers(tmp_path_factory.mktemp("kernels"), kernels)
    by_text = {kernel.source: launch for kernel, launch in zip(kernels, made, strict=True)}

    def kernel_of_text(source: str, name: str, options: Any, shared: int = 0) -> Any:
        assert (name, options, shared) == ("single_pass", (), 0)
        return by_text[source]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            sys.modules, "meshrun.runner.device.cuda", SimpleNamespace(kernel_of_text=kernel_of_text)
        )
        yield
    fill.kernel_of.cache_clear()


def both(block: Array, expression: str, dtype: str = "float") -> None:
    """Assert that the kernel's result is NumPy's to the bit, at any alignment."""
    made = result_of(block.dtype.name, expression, dtype)
    expected = np.empty(block.shape, made)
    elementwise.function(block, out=expected, expression=expression, dtype=dtype)
    for shift in (0, 1, 3):
        source = np.empty(block.size + shift, block.dtype)[shift:].reshape(block.shape)
        source[...] = block
        out = np.full(block.size + 2 * shift, 77, made)
        inner = out[shift : shift + block.size].reshape(block.shape)
        elementwise.function(
            source.view(OnDevice), out=inner.view(OnDevice), expression=expression, dtype=dtype
        )
        np.testing.assert_array_equal(inner, expected)
        if made.kind == "f" and "min" not in expression:  # either of two zeros
            signed = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(inner)[signed], np.signbit(expected)[signed])
        assert (out[:shift] == 77).all()
        assert (out[shift + block.size :] == 77).all()


@pytest.mark.usefixtures("on_host")
@pytest.mark.parametrize(("source", "dtype"), EXPRESSED)
def test_every_type_is_numpys(source: str, dtype: str) -> None:
    for shape in ((7, 331), (41,), (5, 3, 2, 2)):
        both(noise(shape, source), EXPRESSION, dtype)


@pytest.mark.usefixtures("on_host")
@pytest.mark.parametrize("expression", [*DIVIDED, *OTHERS])
def test_division_with_remainder_constants_and_comparisons_are_numpys(expression: str) -> None:
    special = [0.0, -0.0, 1.0, -1.0, 0.1, -0.1, 3.5, -3.5, 1e-40, 1e30, -1e30, np.inf, -np.inf, np.nan]
    both(np.array(special, np.float32), expression)


@pytest.mark.usefixtures("on_host")
def test_an_array_without_elements_is_left_alone() -> None:
    out = np.empty((0, 3), np.float32).view(OnDevice)
    elementwise.function(np.empty((0, 3), np.float32).view(OnDevice), out=out, expression="x")


@pytest.mark.parametrize("source", ["float32", "float64"])
def test_the_graph_is_numpys_functions_in_one_type(source: str) -> None:
    """Whatever the elements are, what is computed in does not change from one operation to the next."""
    kind = np.dtype(source)
    program = kernel_of(source, kind, " + ".join(EVERYTHING)).program
    names = {numpys for numpys, _ in FUNCTIONS.values()} - {"clip"}
    assert {node.op for node in program.nodes} >= names - {"where"}
    allowed = {kind, np.dtype(bool)}
    assert {node.dtype for node in program.nodes} <= allowed
    (constant,) = [node for node in kernel_of(source, kind, "x * 0.1").program.nodes if node.op == "constant"]
    assert constant.value == kind.type(0.1)
    assert floating(kind, kind) == kind


def test_a_formula_with_the_most_operations_is_a_kernel() -> None:
    """Of 1000 characters, and 40 levels."""
    wide = "x + 1"
    while len(wide) < 400:
        wide = f"({wide})*({wide}/3)".replace("1", str(len(wide)), 1)
    for text in (wide, "(" * 39 + "x" + "+1)" * 39):
        assert kernel_of("float32", np.dtype(np.float32), text).program.operations > 1


def test_the_function_can_be_one_kernel_of_a_run() -> None:
    array = np.linspace(0, 9, 24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_array_equal(elementwise(array, expression="x + 1"), array + 1)


def test_nested_comparisons_do_not_double_the_source() -> None:
    expression = "x"
    while len(expression) < 110:
        expression = f"(x<{expression}<x)"
    assert len(emit(kernel_of("float32", np.dtype(np.float32), expression)._merged).source) < 100_000
