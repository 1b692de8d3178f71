"""Functions of whole arrays with loops, conditions and values, as text that a random generator chooses.

They have nested loops and sweeps, `break`, `continue`, `else`, early `return`, values of one loop in another,
helpers, arrays of shape (), edges, single cells, points and masks. Every loop ends.
"""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from typing import Any

import numpy as np

FIELDS = "uvw"

# Statements by the kind of the fields' dtype. {a}, {b}, {c}: fields. {x}: an axis. {n}: a small number.
ANY = (
    "{a}, {b} = {b}, {a}",
    "{a} = {b}.copy()",
    "{a} = {a} + {b}",
    "{a} -= {b}",
    "{a} = np.roll({b}, {n}, axis={x}) + {c}",
    "{a}[0] = {b}[-1]",
    "{a}[:, -1] = {a}[:, -2]",
    "{a}[1:-1] += {b}[2:]",
    "{a}[-1], {a}[0] = {b}[-2], {b}[1]",
    "{a}[2, 3] = {b}[1, 1]",
    "{a} = np.where({b} == {c}, {a}, {b})",
    "{a} = np.zeros_like({b})",
    "k += {n}",
    "k = k * 2 % 7",
    "{a} = {b} + k",
    "{a} = {b} * {n}",
)
REAL = (
    "s = s * 0.5 + np.max({a}) * 0.25",
    "s = np.max({a}) - np.min({b})",
    "s = {a}[2, 1] * 1.0",
    "r = min(s, np.max({a}))",
    "r = s if np.min({a}) < r else r * 0.5",
    "{a} = {b} * s",
    "{a} = {a} / (1 + np.abs({b}).max())",
    "{a} = np.where({b} > r, {a} * 0.5, {c})",
    "{a}[{b} > 1] = 0.5",
    "{a}[1:-1] = ({b}[2:] + {b}[:-2]) / 2",
    "{a}[2, 3] += s",
    "{a}[ys, xs] += r",
    "t = t + np.max({a})",
    "t = t * 0.5",
    "s = t + {n}",
    "n = np.count_nonzero({a} > 1)",
    "{a} = {a} * 0.5 + n",
    "{a} = relaxed({b}, s)",
    "{a}, s = halved({b}, {n})",
    "for _ in range(8):\n    {a}[1:-1, 1:-1] = ({a}[1:-1, 2:] + {b}[2:, 1:-1]) / 4",
    "for j in range(3):\n    {a} = {a} * 0.5 + j",
    "{a} = {b}.real",
)
WHOLE = (
    "s = np.max({a}) - np.min({b})",
    "s = s // 2 + {a}[2, 1]",
    "r = min(s, np.max({a}))",
    "r = s if np.min({a}) < r else r // 2",
    "{a} = {b} * s",
    "{a} = {a} // (1 + np.abs({b}).max())",
    "{a} = np.where({b} > r, {a} // 2, {c})",
    "{a}[{b} > 1] = 3",
    "{a}[1:-1] = ({b}[2:] + {b}[:-2]) // 2",
    "{a}[2, 3] += s",
    "{a} = {b} % 5 ^ {c}",
    "{a} = {b} >> {n}",
    "n = np.count_nonzero({a} > 1)",
    "s = s + np.sum({a} & 3)",
    "for _ in range(8):\n    {a}[1:-1, 1:-1] = ({a}[1:-1, 2:] + {b}[2:, 1:-1]) // 4",
)
COMPLEX = (
    "s = np.max({a}.real) - np.min({b}.imag)",
    "s = s * 0.5 + {a}[2, 1].real",
    "r = min(s, np.max({a}.imag))",
    "r = s if np.min({a}.real) < r else r * 0.5",
    "{a} = {b} * 0.5",
    "{a} = {b} + s",
    "{a} = {b}.conj() * 0.25",
    "{a} = np.where({b}.real > r, {a} * 0.5, {c})",
    "{a}[1:-1] = ({b}[2:] + {b}[:-2]) / 2",
    "{a}.real = {b}.imag",
    "{a}[2, 3] += s",
    "for _ in range(8):\n    {a}[1:-1, 1:-1] = ({a}[1:-1, 2:] + {b}[2:, 1:-1]) / 4",
)
STATEMENTS = {"f": ANY + REAL, "i": ANY + WHOLE, "u": ANY + WHOLE, "c": ANY + COMPLEX}

CONDITIONS = {
    "f": ("np.max({a}) > {limit}", "s > {limit}", "r < {limit} or np.min({b}) < -2", "t > {limit}",
          "{a}[1, 2] > {limit}", "not np.any({a} > {limit})", "{limit} < s < 9", "n > {n}", "np.isnan(s)",
          "np.max({a}) > np.max({b})", "k % 3 == 1", "k < 9 and s > {limit}"),
    "i": ("np.max({a}) > {limit}", "s > {limit}", "r < {limit} or np.min({b}) < 2", "{a}[1, 2] > {limit}",
          "np.all({a} > {limit})", "n > {n}", "np.max({a}) > np.max({b})", "k % 3 == 1"),
    "c": ("np.max({a}.real) > {limit}", "s > {limit}", "r < {limit}", "{a}[1, 2].imag > {limit}",
          "k % 3 == 1"),
}  # fmt: skip
CONDITIONS["u"] = CONDITIONS["i"]

HELPERS = """
def relaxed(a, s):
    for i in range(6):
        if np.max(a) < 1:
            return a + s
        a = a * 0.75
    return a


def halved(a, n):
    m, k = np.max(a), 0
    while m > n and k < 9:
        k += 1
        a = a * 0.5
        a[0] = a[-1]
        m = np.max(a)
    return a, m * 0.5

"""


class LoopingPrograms:
    """Chooses the statements of one function.

    chance: what decides. kind: of the fields' dtype.
    """

    def __init__(self, chance: random.Random, kind: str) -> None:
        self.chance, self.kind = chance, kind
        self.loops = 0

    def text(self, depth: int = 3) -> str:
        """Return the source of `f(u, v, t)`, below helpers that it may call."""
        scalar = {"f": "np.max(u) * 0.5", "c": "np.max(u.real) * 0.5"}.get(self.kind, "np.max(u)")
        lines = [
            "u, v, w = u * 1, v * 1, u - v",
            f"s, k, n = {scalar}, 0, np.count_nonzero(u == v)",
            "r = s",
            *self.block(depth),
            self.result(),
        ]
        return HELPERS + "def f(u, v, t):\n" + "".join(f"    {line}\n" for line in lines)

    def result(self) -> str:
        return self.chance.choice(["return u + w, v + s + k + n, t", "return u + r, v + w * n, t * 2"])

    def block(self, depth: int, in_loop: bool = False) -> list[str]:
        """Return statements. in_loop: whether the innermost loop around them may be left."""
        lines: list[str] = []
        for _ in range(self.chance.randint(1, 3)):
            kinds = ["line"] * 3 + ["for", "while", "if", "if"] * (depth > 0)
            kind = self.chance.choice(kinds)
            if kind == "line":
                lines += self.statement()
            elif kind == "if":
                lines += self.branch(depth, in_loop)
            else:
                lines += self.loop(kind, depth)
        return lines

    def statement(self) -> list[str]:
        text = self.chance.choice(STATEMENTS[self.kind])
        return self.filled(text).splitlines()

    def filled(self, text: str) -> str:
        limit = self.chance.choice(["-9", "0", "2", "9"] if self.kind in "iu" else ["-9", "0.5", "2", "9"])
        names = dict(zip("abc", self.chance.choices(FIELDS, k=3), strict=True))
        return text.format(x=self.chance.randint(0, 1), n=self.chance.randint(1, 3), limit=limit, **names)

    def condition(self) -> str:
        return self.filled(self.chance.choice(CONDITIONS[self.kind]))

    def branch(self, depth: int, in_loop: bool) -> list[str]:
        leave = self.chance.choice([None, None, "return", "break", "continue", "break"])
        if leave == "return":
            return [f"if {self.condition()}:", *indented([*self.statement(), self.result()])]
        if leave is not None and in_loop:
            return [f"if {self.condition()}:", *indented([*self.statement(), leave])]
        lines = [f"if {self.condition()}:", *indented(self.block(depth - 1, in_loop))]
        if self.chance.random() < 0.3:
            lines += [f"elif {self.condition()}:", *indented(self.statement())]
        if self.chance.random() < 0.5:
            lines += ["else:", *indented(self.block(depth - 1, in_loop))]
        return lines

    def loop(self, kind: str, depth: int) -> list[str]:
        self.loops += 1
        index = f"i{self.loops}"
        body = self.block(depth - 1, in_loop=True)
        if kind == "for":
            items = self.chance.choice(["5", "7", "2, 8", "3", "12, 1, -2", "0, 10, 2"])
            lines = [f"for {index} in range({items}):", *indented(body)]
            if self.chance.random() < 0.4:
                lines += [f"    {self.filled('{a} = {b} + ' + index)}"]
        elif self.chance.random() < 0.8:
            # The counter changes first: `continue` would pass over it.
            head = f"while {index} < {self.chance.randint(2, 7)} and ({self.condition()}):"
            lines = [f"{index} = 0", head, f"    {index} += 1", *indented(body)]
        else:
            leave = [f"if {index} > {self.chance.randint(2, 7)} or {self.condition()}:", "    break"]
            lines = [f"{index} = 0", "while True:", *indented([f"{index} += 1", *leave, *body])]
        if self.chance.random() < 0.2:
            lines += ["else:", *indented(self.statement())]
        if self.chance.random() < 0.2:
            lines += [f"k += {index}"]
        return lines


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def compiled(text: str) -> Callable[..., Any]:
    """Return the function `f` of a text, which tracebacks and tracing find."""
    name = f"<loops {hash(text)}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    space: dict[str, Any] = {"np": np, "ys": np.array([1, 5, 3]), "xs": np.array([0, 2, 5])}
    exec(compile(text, name, "exec"), space)
    return space["f"]  # type: ignore[no-any-return]
