"""Random functions of whole arrays, as text."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

STATEMENTS = (
    "{a}[{s}] = {b}[{t}]",
    "{a}[{s}] += {b}[{t}] * 0.5",
    "{a}[{s}] = {k}",
    "{a}[{s}] = {b}[{t}] - {c}[{u}]",
    "{a} = np.where({b} > {k}, {c}, {a})",
    "{a}[{b} < {k}] = {k}",
    "{a} = np.roll({b}, {j}, axis={x})",
    "{a} = {b} + np.roll({c}, {j}, axis={x})",
    "{a}[{e}] = {b}[{f}]",
    "{a}[{i}, {i}] = {k}",
    "{a}, {b} = {b}, {a} * 1",
    "{a} = {b}.copy()",
    "{a} = np.zeros_like({b})",
    "{a} = np.pad({b}, 1, mode='reflect')[{p}]",
    "{a}[::2] = {b}[::2] * 2",
    "{a}[:, 1::3] += {b}[:, 1::3]",
)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """A function of two arrays of 11 x 9, as text."""
    lines = ["def f(u, v):", "    w = u * 2"]

    def cut(length: int, size: int) -> str:
        first = draw(st.integers(0, length - size))
        last = first + size
        return f"{first if first else ''}:{last - length if last < length and draw(st.booleans()) else last}"

    for _ in range(draw(st.integers(1, 7))):
        rows, columns = draw(st.integers(1, 11)), draw(st.integers(1, 9))
        parts = {name: f"{cut(11, rows)}, {cut(9, columns)}" for name in "stu"}
        names = {name: draw(st.sampled_from("uvw")) for name in "abc"}
        axis = draw(st.integers(0, 1))
        ends = [draw(st.integers(-9, 8)) for _ in range(2)]
        edges = [f"{end}" if axis == 0 else f":, {end}" for end in ends]
        crop = draw(st.sampled_from(["1:-1, 1:-1", ":-2, 2:", "2:, 1:-1"]))
        words = {
            "k": draw(st.sampled_from(["0", "1.5", "-2"])), "j": draw(st.integers(-12, 12)), "x": axis,
            "e": edges[0], "f": edges[1], "i": draw(st.integers(-9, 8)), "p": crop,
        }  # fmt: skip
        lines.append("    " + draw(st.sampled_from(STATEMENTS)).format(**parts, **names, **words))
    return "\n".join([*lines, "    return u, v, w", ""])


def compiled(text: str, **names: Any) -> Callable[..., Any]:
    name = f"<random {abs(hash(text))}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space: dict[str, Any] = {"np": np, **names}
    exec(compile(text, name, "exec"), space)
    function: Callable[..., Any] = space["f"]
    return function
