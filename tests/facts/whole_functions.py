"""Functions of whole arrays: some that are written, and random ones; and how they are traced."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from meshrun.runner.compiler.whole.trace import WholeInput, WholeProgram, trace_whole

Arrays = Sequence[np.ndarray[Any, Any]]


def traced(
    function: Callable[..., Any], arrays: Arrays, names: Sequence[str], axes: Any = None, **parameters: Any
) -> WholeProgram:
    inputs = [WholeInput(f"in{number}", one.shape, one.dtype) for number, one in enumerate(arrays)]
    return trace_whole(function, inputs, parameters, names, axes)


def field(*shape: int, dtype: Any = float, seed: int = 0) -> Any:
    values = np.random.default_rng(seed).random(shape) * 8 - 4
    return (values > 0) if np.dtype(dtype) == bool else values.astype(dtype)


def heat(u, *, rate=0.1):
    new = u.copy()
    new[1:-1, 1:-1] += rate * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    new[0] = 1
    new[-1] = 0
    new[:, 0] = new[:, 1]
    new[:, -1] = new[:, -2]
    return new


def periodic_by_hand(u):
    u[0], u[-1] = u[-2], u[1]
    u[:, 0] = u[:, -2]
    u[:, -1] = u[:, 1]
    v = np.zeros_like(u)
    v[1:-1, 1:-1] = 0.25 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2])
    return v


def cube(u):
    """Heat in a cube with faces written by index, and a source in its middle."""
    new = u.copy()
    sides = u[2:, 1:-1, 1:-1] + u[:-2, 1:-1, 1:-1] + u[1:-1, 2:, 1:-1] + u[1:-1, :-2, 1:-1]
    sides = sides + u[1:-1, 1:-1, 2:] + u[1:-1, 1:-1, :-2]
    new[1:-1, 1:-1, 1:-1] += 0.1 * (sides - 6 * u[1:-1, 1:-1, 1:-1])
    new[0], new[-1] = 1, new[-2]
    new[:, 0] = new[:, 1]
    new[..., -1] = 2
    new[6, 5, 4] += 3
    return new


def life(cells):
    shifts = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]
    count = sum(np.roll(np.roll(cells, a, 0), b, 1) for a, b in shifts)
    return ((count == 3) | ((cells == 1) & (count == 2))).astype(cells.dtype)


def red_then_black(u):
    for first in (1, 2):
        u[1:-1, first:-1:2] = 0.25 * (
            u[:-2, first:-1:2] + u[2:, first:-1:2] + u[1:-1, first - 1 : -2 : 2] + u[1:-1, first + 1 :: 2]
        )


def masked(u):
    u[u > 2] = 0
    v = np.where(u < -2, u * 2, u)
    v[3, 4] = 7
    v[5:9, 2:4] *= 3
    return v


def coordinates(u):
    n, m = u.shape
    x, y = np.linspace(0, 1, n), np.arange(m) * 0.5
    grid, _ = np.meshgrid(x, y, indexing="ij")
    down, across = np.indices(u.shape)
    return u * grid + x[:, None] - y[None, :] + np.arange(0.5, 0.5 + 0.25 * m, 0.25)[:m] + down * across


def runge_kutta(u, *, dt=0.1):
    def slope(w):
        change = np.zeros_like(w)
        change[1:-1] = w[2:] - 2 * w[1:-1] + w[:-2]
        change[0], change[-1] = change[1], 0
        return change

    first = slope(u)
    return u + dt * slope(u + dt * first / 2)


def wave(u, before):
    around = np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - 4 * u
    return 2 * u - before + 0.1 * around, u


def differences(u):
    change = np.zeros(u.shape, u.dtype)
    change[:-1] += np.diff(u, axis=0)
    change[:, 1:] -= np.diff(u, axis=1)
    return np.concatenate([change[:1], change[1:] * 2], axis=0)


def views(u):
    v = u[1:]
    w = v[:, 2:-1]
    w[...] = 5
    w[0] += u[0, 2:-1]
    v.T[3] = 1
    return u * 1


def overlapping(u):
    u[1:] += u[:-1]
    u[:, :-2] = u[:, 2:]
    np.multiply(u, 2, out=u, where=u > 0)


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
