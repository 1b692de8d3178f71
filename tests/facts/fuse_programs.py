"""Random functions on blocks, as Python texts, for tests that compare a kernel with the plain function.

They use only what gives the same bits everywhere: no exp and its kind, no floats that an integer cannot hold,
and after a minimum or maximum the sign of a zero is made positive.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.graph import Operand
from meshrun.runner.region import HostArray

KINDS = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "f4", "f8", "f4", "u1")
ARITHMETIC = ("+", "-", "*", "/", "//", "%", "+", "-", "*")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
BITS = ("&", "|", "^")
UNARY = ("xp.negative", "xp.absolute", "xp.square", "xp.sign", "xp.floor", "xp.ceil", "xp.trunc", "xp.rint",
         "xp.isnan", "xp.isfinite", "xp.isinf", "xp.logical_not", "xp.invert", "abs", "-", "~", "xp.positive",
         "xp.signbit", "xp.round", "xp.copy", "xp.zeros_like", "xp.ones_like")  # fmt: skip
BINARY = ("xp.logical_and", "xp.logical_or", "xp.logical_xor", "xp.fmod", "xp.copysign", "xp.left_shift",
          "xp.right_shift", "xp.floor_divide", "xp.remainder", "xp.divide", "xp.subtract")  # fmt: skip
CHOICES = ("xp.maximum", "xp.minimum", "xp.fmax", "xp.fmin")
NUMBERS = ("0", "1", "2", "3", "-1", "7", "0.5", "-1.5", "1e-3", "0.1", "xp.float32(0.3)", "xp.int16(3)",
           "True", "xp.float64(0.7)", "gain", "xp.uint8(200)", "100", "2**20", "xp.nan", "300")  # fmt: skip
POWERS = ("2", "0.5", "-1")  # of floats; others are the platform's pow


@dataclass(frozen=True)
class Sample:
    """text: of a function `f`. inputs: its arrays. axes: of the grid. results: how many it returns."""

    text: str
    inputs: tuple[Operand, ...]
    axes: int
    results: int

    @property
    def function(self) -> Callable[..., Any]:
        space: dict[str, Any] = {}
        exec(compile(self.text, f"<random {id(self)}>", "exec"), {"np": np}, space)
        found: Callable[..., Any] = space["f"]
        return found

    @property
    def widths(self) -> tuple[tuple[int, int], ...]:
        return ((2, 2),) * self.axes

    def blocks(self, own: Sequence[int], seed: int) -> list[HostArray]:
        """Return blocks with their halo; of floats, some are zeros, infinite, NaN or large."""
        rng = np.random.default_rng(seed)
        shape = tuple(n + low + high for n, (low, high) in zip(own, self.widths, strict=False))
        return [cells(rng, shape + one.trailing, one.dtype) for one in self.inputs]

    def __call__(self, blocks: Sequence[HostArray]) -> list[HostArray]:
        """Return what the plain function computes."""
        with np.errstate(all="ignore"):
            found = self.function(*(one.copy() for one in blocks), xp=np, gain=0.75)
        return list(found) if isinstance(found, tuple) else [found]


def cells(rng: np.random.Generator, shape: tuple[int, ...], kind: np.dtype[Any]) -> HostArray:
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind != "f":
        limits = np.iinfo(kind)
        wide = rng.integers(limits.min, limits.max, shape, kind, endpoint=True)
        return np.where(rng.random(shape) < 0.5, wide, wide % np.array(5, kind))
    rare = np.array(
        [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, np.finfo(kind).max, np.finfo(kind).tiny, 0.5], kind
    )
    usual = (rng.normal(size=shape) * 4).astype(kind)
    return np.where(rng.random(shape) < 0.3, rng.choice(rare, shape), usual)


class _Writer:
    """Writes one function. variables: names and how many cells of halo they still have."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.axes = self.random.choice((1, 2, 2, 2, 3))
        self.trailing: tuple[int, ...] = self.random.choice(((), (), (), (3,), (2,), (2, 2)))
        names = ["a", "b", "c"][: self.random.choice((1, 1, 2, 3))]
        kinds = [np.dtype(self.random.choice(KINDS)) for _ in names]
        self.inputs = tuple(
            Operand(name, kind, self.trailing) for name, kind in zip(names, kinds, strict=True)
        )
        self.variables = [(name, 2) for name in names]
        self.lines: list[str] = []

    def pick(self) -> tuple[str, int]:
        return self.random.choice(self.variables[-6:])

    def cut(self, name: str, halo: int, wanted: int) -> str:
        """Return the text of a part with so many cells of halo, the middle one or one beside it."""
        if halo == wanted:
            return name
        spare, parts = halo - wanted, []
        for _ in range(self.axes):
            at = self.random.choice((spare, spare, *range(2 * spare + 1)))
            last = at - 2 * spare
            parts.append(f"{at or ''}:{last or ''}")
        return f"{name}[{', '.join(parts)}]"

    def pair(self) -> tuple[str, str, int]:
        (a, one), (b, two) = self.pick(), self.pick()
        halo = self.random.randint(0, min(one, two))
        return self.cut(a, one, halo), self.cut(b, two, halo), halo

    @staticmethod
    def small(value: str) -> str:
        """Return the text of values that any integer can hold."""
        return f"xp.where(abs({value} + 0.0) < 100, {value}, 7)"

    @staticmethod
    def signed(value: str) -> str:
        """Return the text of values whose sign is defined: that of the NaN of an operation is not."""
        return f"xp.where({value} == {value}, {value}, 1)"

    def expression(self) -> tuple[str, int]:
        choose = self.random.choice
        kind = self.random.randrange(13)
        a, b, halo = self.pair()
        if kind < 4:
            return f"{a} {choose(ARITHMETIC)} {b}", halo
        if kind == 4:
            number = choose(NUMBERS)
            return (
                f"{a} {choose(ARITHMETIC)} {number}"
                if choose((0, 1))
                else f"{number} {choose(ARITHMETIC)} {a}"
            ), halo
        if kind == 5:
            function = choose(UNARY)
            return f"{function}({self.signed(a) if function == 'xp.signbit' else a})", halo
        if kind == 6:
            function = choose(BINARY)
            return f"{function}({a}, {self.signed(b) if function == 'xp.copysign' else b})", halo
        if kind == 7:
            return f"{choose(CHOICES)}({a}, {choose((b, choose(NUMBERS)))}) + 0", halo
        if kind == 8:
            condition = f"{a} {choose(COMPARISONS)} {choose((b, choose(NUMBERS)))}"
            return f"xp.where({condition}, {choose((a, b))}, {choose((b, choose(NUMBERS)))})", halo
        if kind == 9:
            to = choose(KINDS)
            return f"{self.small(a)}.astype('{to}')", halo
        if kind == 10:
            one, other = f"{a} {choose(COMPARISONS)} {b}", f"{b} {choose(COMPARISONS)} {choose(NUMBERS)}"
            return f"({one}) {choose(BITS)} ({other})", halo
        if kind == 11:
            return f"xp.clip({a}, {choose(('-1', '0', '0.5'))}, {choose(('2', '100', '3.5'))}) + 0", halo
        return choose((f"({a} + 0.0) ** {choose(POWERS)}", f"{a} ** 2")), halo

    def statement(self, number: int) -> None:
        choose, name = self.random.choice, f"v{number}"
        kind = self.random.randrange(10)
        if kind == 0 and self.lines:  # in place, on an array of its own
            a, b, halo = self.pair()
            other = choose((b, choose(NUMBERS)))
            self.lines += [f"{name} = ({a}).copy()", f"{name} {choose(('+', '-', '*', '/'))}= {other}"]
        elif kind == 1:
            a, b, halo = self.pair()
            self.lines += [
                f"{name} = xp.{choose(('zeros_like', 'empty_like'))}({a})",
                f"{name}[...] = {self.small(b)}",
            ]
        elif kind == 2 and len(self.trailing) == 1:
            a, halo = self.pick()
            count = self.trailing[0]
            at, other = self.random.randrange(count), self.random.randrange(-count, count)
            text = choose((
                f"xp.stack([{', '.join(f'{a}[..., {(at + k) % count}]' for k in range(count))}], axis=-1)",
                f"{a} + {a}[..., {at}:{at + 1}]",
                f"{a} * {a}[..., {other}, None]",
                f"{a} - {a}.max(axis=-1, keepdims=True) + 0",
                f"{a}[..., ::-1] - {a}",
                f"{a} * np.arange({count})",
                f"{a} + {a}.sum(axis=-1)[..., None]",
            ))  # fmt: skip
            self.lines.append(f"{name} = {text}")
            if choose((0, 1)):
                self.lines += [
                    f"{name} = {name}.copy()",
                    f"{name}[..., {at}] += {choose(('1', f'{name}[..., {other}]'))}",
                ]
        elif kind == 3 and self.axes > 1:
            a, b, halo = self.pair()
            axis = self.random.randrange(self.axes)
            self.lines.append(
                f"{name} = xp.moveaxis({a}, {axis}, 0) {choose(ARITHMETIC)} xp.moveaxis({b}, {axis}, 0)"
            )
            self.lines.append(f"{name} = xp.moveaxis({name}, 0, {axis})")
        else:
            text, halo = self.expression()
            self.lines.append(f"{name} = {text}")
        self.variables.append((name, halo))

    def sample(self) -> Sample:
        count = self.random.randint(2, 9)
        for number in range(count):
            self.statement(number)
        results = self.random.choice((1, 1, 2, 3))
        last = [self.cut(*one, 0) for one in self.variables[-results:]]
        head = f"def f({', '.join(one.name for one in self.inputs)}, *, xp, gain=0.5):"
        text = "\n    ".join([head, *self.lines, f"return {', '.join(last)}"]) + "\n"
        return Sample(text, self.inputs, self.axes, len(last))


def sample(seed: int) -> Sample:
    """Return a random function; it may be one that NumPy refuses, such as a difference of booleans."""
    return _Writer(seed).sample()
