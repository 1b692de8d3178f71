"""Which functions a job's function reaches, and their source."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshrun.runner.compiler.lint.needs import Needs, needs_of
from meshrun.runner.compiler.lint.source import functions_of, source_of


def helper(block: Any) -> Any:
    return np.sqrt(block)


def named(block: Any) -> Any:
    return helper(block) + 1


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(block: Any) -> Any:
        return function(block)

    return call


@functools.lru_cache
def table(length: int) -> int:
    return length


def looks_up(block: Any) -> Any:
    return block + table(3)


@pytest.mark.parametrize(
    ("function", "reached"),
    [
        (named, {"named", "helper"}),
        (wrapped(named), {"named", "helper"}),
        (functools.partial(named), {"named", "helper"}),
        (looks_up, {"looks_up", "table"}),
        (lambda block: wrapped(block) * 2, {"<lambda>", "wrapped"}),
        (np.mean, set()),
    ],
    ids=["global", "wrapper", "partial", "cache", "lambda", "library"],
)
def test_functions_that_a_function_reaches(function: Any, reached: set[str]) -> None:
    assert {found.__name__ for found in functions_of(function)} == reached


def test_a_source_has_the_lines_of_the_file() -> None:
    source = source_of(helper.__code__)
    assert source is not None
    assert source.text_of(source.tree.body[0].body[0]) == "return np.sqrt(block)"  # type: ignore[attr-defined]
    assert source.first == helper.__code__.co_firstlineno


def test_what_was_typed_has_no_source() -> None:
    names: dict[str, Any] = {}
    exec("def typed(block):\n    return block[50] if block[50] else block", names)
    assert source_of(names["typed"].__code__) is None
    needs = needs_of(names["typed"], 2, {})
    assert (needs.lengths, needs.magnitudes) == ((0, 0), ())
    assert str(needs.rare) == "((0.0, 1.0), (2.0, nan), (2.0, inf))", "it may branch on any value"


def test_numbers_are_found_as_they_are_written() -> None:
    """Whether the interpreter keeps them among the constants or in the instructions."""

    def of_the_row(block: Any) -> Any:
        return block[50] if block.max() > 1000 else block

    rare = (0, 1), (1000, 2), (2, 1000, -1000)
    assert needs_of(of_the_row, 2, {}) == Needs((52, 0), (1000.0,), rare)
    assert needs_of(named, 2, {}) == Needs((0, 0))
