"""Copies of functions run their loops and conditions by a control object; the functions themselves do not."""

from __future__ import annotations

from typing import Any

import pytest
from both_ways import compiled

from meshrun.runner.compiler.control.plain import CONTROL, LocalState, PlainControl
from meshrun.runner.compiler.trace.outside_state import ChangesOutside
from meshrun.runner.compiler.trace.rebound import FunctionCopies
from meshrun.runner.compiler.trace.timed import StepTape


class Counting(PlainControl):
    """Counts branches, by the line of their first statements."""

    def __init__(self) -> None:
        self.lines: list[int] = []

    def branch(self, test: Any, then: Any, otherwise: Any, state: LocalState) -> None:
        self.lines.append(then.__code__.co_firstlineno)
        super().branch(test, then, otherwise, state)


TEXT = """
def helper(n):
    if n: return n + 1
class Kind:
    def get(self, n):
        if n: return n + 2
def around():
    k = 3
    def f(n):
        def inner(m):
            if m: return m + k
        if n:
            return helper(n), Kind().get(n), inner(n), max(n, 2), max([n, 9]), min(n, 1)
    return f
f = around()
"""


def test_helpers_methods_and_inner_functions_are_converted() -> None:
    function, control = compiled(TEXT), Counting()
    copied = FunctionCopies(StepTape(), control=control).of(function)
    assert copied(4) == function(4) == (5, 6, 7, 4, 9, 1)
    assert control.lines == [12, 3, 6, 11]
    assert CONTROL not in function.__globals__


def test_without_a_control_nothing_is_converted() -> None:
    function = compiled(TEXT)
    copied = FunctionCopies(StepTape()).of(function)
    assert copied.__code__ is function.__code__
    assert CONTROL not in copied.__globals__


def test_a_variable_of_a_body_is_not_a_global_of_its_name() -> None:
    function = compiled("x = 3\ndef f(n):\n    for i in range(n): x = i\n    return x\n")
    copies = FunctionCopies(StepTape(), control=PlainControl())
    assert copies.of(function)(3) == 2
    copies.check_unchanged()


def test_a_global_that_a_body_changes_is_outside() -> None:
    function = compiled("x = 3\ndef f(n):\n global x\n for i in range(n):\n  x = i\n return x\n")
    copies = FunctionCopies(StepTape(), control=PlainControl())
    copies.of(function)(3)
    with pytest.raises(ChangesOutside, match="changes x") as failure:
        copies.check_unchanged()
    assert failure.value.line == 5
