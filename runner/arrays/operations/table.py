"""Which functions of NumPy take distributed arrays, and what computes each.

FUNCTIONS: a function such as `numpy.roll`, or a pair (ufunc, "accumulate"), and what is called in its place,
with the same arguments. Modules add theirs when they are imported, by `implements`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

FUNCTIONS: dict[Any, Callable[..., Any]] = {}
OTHER = "any other function"  # the key of what is called for a function that has no entry of its own


def implements(*functions: Any) -> Callable[[Function], Function]:
    """Enter the decorated function in the table, for these of NumPy's."""

    def enter(function: Function) -> Function:
        FUNCTIONS.update(dict.fromkeys(functions, function))
        return function

    return enter
