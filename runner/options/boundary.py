"""Boundaries that differ by input, axis and side as texts: in a command, in records, in a declared job.

    nearest                     all inputs, axes and sides
    wrap,nearest                all inputs: axis 0, axis 1
    p=wrap,0.0:nearest;q=wrap   input p: axis 0; before and after axis 1. Input q
    u=inflow:nearest            before axis 0, the value of the parameter `inflow`; of a table, the step's row

In Python, `{"p": ("wrap", (0.0, "nearest")), "q": "wrap"}`. `spelled` returns the text.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Mapping
from typing import Any

from meshrun.runner.errors import UserError
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.spelling import option

NUMBER = re.compile(r"[-+]?(\d|\.\d|inf$|nan$)")  # how a number begins
Words = tuple[list[tuple[str, ...]], bool]  # of each axis, before and after or both; whether of all axes


def spelled(boundary: Any) -> str:
    """Return a boundary of a decorator or a keyword as text. Raises UserError for what is none."""
    if isinstance(boundary, str):
        return boundary
    if isinstance(boundary, Mapping):
        if not boundary or not all(isinstance(name, str) and name.isidentifier() for name in boundary):
            raise malformed(boundary)
        return ";".join(f"{name}={_spelled_axes(axes, boundary)}" for name, axes in boundary.items())
    return _spelled_axes(boundary, boundary)


def _spelled_axes(axes: Any, boundary: Any) -> str:
    """Return the rules of one input as text. boundary: the whole, for messages."""
    if not isinstance(axes, (tuple, list)):
        return _spelled_side(axes, boundary)
    found = []
    for axis in axes:
        sides = axis if isinstance(axis, (tuple, list)) else (axis,)
        if len(sides) not in (1, 2) or (len(sides) == 1 and sides is axis):
            raise malformed(boundary)
        found.append(":".join(_spelled_side(side, boundary) for side in sides))
    if not found:
        raise malformed(boundary)
    alone = len(found) == 1 and ":" not in found[0]
    return f"{found[0]}," if alone else ",".join(found)


def _spelled_side(side: Any, boundary: Any) -> str:
    if isinstance(side, str) and (side.isidentifier() or NUMBER.match(side)):
        return side
    if isinstance(side, bool) or not isinstance(side, numbers.Real):
        raise malformed(boundary)
    return repr(int(side) if isinstance(side, numbers.Integral) else float(side))


def malformed(boundary: Any) -> UserError:
    return UserError(
        f"{option('boundary')} is not readable",
        got=boundary if isinstance(boundary, str) else repr(boundary),
        expected=f"one of {', '.join(BOUNDARIES)}; a number or a parameter's name for a constant; for each "
        "axis one of these or a pair, before and after; or that for each input",
        hint=option("boundary", "p=wrap,0.0:nearest;q=nearest")
        if isinstance(boundary, str)
        else 'boundary={"p": ("wrap", (0.0, "nearest")), "q": "nearest"}',
    )


def parsed(text: str) -> dict[str, Words]:
    """Return the words of each input, or of all inputs by the name "". Raises UserError for other texts."""
    found: dict[str, Words] = {}
    for part in text.split(";"):
        name, equals, axes = (word.strip() for word in part.rpartition("="))
        words = axes[:-1] if axes.endswith(",") else axes
        sides = [tuple(side.strip() for side in axis.split(":")) for axis in words.split(",")]
        readable = all(
            len(axis) < 3 and all(side.isidentifier() or NUMBER.match(side) for side in axis)
            for axis in sides
        )
        if not readable or name in found or bool(equals) != name.isidentifier():
            raise malformed(text)
        found[name] = sides, len(sides) == 1 and len(sides[0]) == 1 and not axes.endswith(",")
    if "" in found and len(found) > 1:
        raise malformed(text)
    return found
