"""Jobs whose results are longer or shorter than their inputs by a factor, and arrays to try them on."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

import meshrun
from meshrun.runner.options.choices import BOUNDARIES

PAD = {"reflect": "symmetric", "mirror": "reflect", "nearest": "edge", "wrap": "wrap", "constant": "constant"}
CVAL = 3
Factors = tuple[Fraction, ...]  # per axis
Widths = tuple[tuple[int, int], ...]


def resampled(block: Any, factors: Factors, widths: Widths, first_weight: int = 1) -> Any:
    """Along each axis, p sums of q cells and their halo for each q cells (p/q: the factor).

    Every cell has a weight of its own. Sums are whole numbers: their order does not matter.
    """
    block = block.astype(np.int64)
    for axis, (factor, (low, high)) in enumerate(zip(factors, widths, strict=True)):
        p, q = factor.numerator, factor.denominator
        block = np.moveaxis(block, axis, -1)
        windows = np.lib.stride_tricks.sliding_window_view(block, q + low + high, axis=-1)[..., ::q, :]
        weights = first_weight + np.arange(windows.shape[-1] * p).reshape(-1, p) ** 2 % 7
        block = np.moveaxis((windows @ weights).reshape(*windows.shape[:-2], -1), -1, axis)
    return block


def scaled(shape: tuple[int, ...], factors: Factors) -> tuple[int, ...]:
    """What `out=` says: lengths that do not divide are rounded down."""
    return tuple(n * f.numerator // f.denominator for n, f in zip(shape, factors, strict=True))


@dataclass(frozen=True)
class Case:
    """factors: of each output. inputs: how many arrays are summed. filled: the job fills `out`."""

    shape: tuple[int, ...]
    factors: tuple[Factors, ...]
    widths: Widths
    boundary: str
    inputs: int = 1
    filled: bool = False

    @property
    def units(self) -> tuple[int, ...]:
        """Per axis, the fewest rows that give whole rows of every result."""
        axes = zip(*self.factors, strict=True)
        return tuple(int(np.lcm.reduce([f.denominator for f in of_axis])) for of_axis in axes)

    @property
    def arrays(self) -> list[Any]:
        random = np.random.default_rng(len(self.shape))
        return [random.integers(0, 50, self.shape).astype(np.int32) for _ in range(self.inputs)]

    @property
    def job(self) -> Any:
        def out(shape: Any, dtype: Any) -> Any:
            pairs = [(scaled(shape, factors), np.dtype(np.int64)) for factors in self.factors]
            return pairs if len(pairs) > 1 else pairs[0]

        outputs = len(self.factors)
        declare = meshrun.map_blocks(
            halo=self.widths, boundary=self.boundary, cval=CVAL, out=out, outputs=outputs, name="tried"
        )

        def compute(*blocks: Any) -> Any:
            own = [n - low - high for n, (low, high) in zip(blocks[0].shape, self.widths, strict=True)]
            assert not any(n % unit for n, unit in zip(own, self.units, strict=True))
            found = self._compute(blocks)
            return found if outputs > 1 else found[0]

        def fill(out: Any, *blocks: Any) -> None:
            for to, found in zip(out if outputs > 1 else [out], self._compute(blocks), strict=True):
                to[...] = found

        if self.filled and self.inputs == 1:
            return declare(lambda one, *, out: fill(out, one))
        if self.filled:
            return declare(lambda one, two, *, out: fill(out, one, two))

        def of_one(one: Any) -> Any:
            return compute(one)

        def of_two(one: Any, two: Any) -> Any:
            return compute(one, two)

        return declare(of_one if self.inputs == 1 else of_two)

    def _compute(self, blocks: Any) -> tuple[Any, ...]:
        total = sum(number * block.astype(np.int64) for number, block in enumerate(blocks, 1))
        return tuple(resampled(total, f, self.widths, 1 + n) for n, f in enumerate(self.factors))

    @property
    def expected(self) -> tuple[Any, ...]:
        """By NumPy, of the whole arrays."""
        more = {"constant_values": CVAL} if self.boundary == "constant" else {}
        return self._compute([np.pad(one, self.widths, PAD[self.boundary], **more) for one in self.arrays])


FACTORS = [Fraction(*pair) for pair in ((1, 1), (1, 2), (2, 1), (2, 3), (3, 2), (1, 5), (4, 1))]


@st.composite
def cases(draw: st.DrawFn, axes: int = 3, outputs: int = 2, inputs: int = 2) -> Case:
    ndim = draw(st.integers(1, axes))
    factors = tuple(
        tuple(draw(st.sampled_from(FACTORS)) for _ in range(ndim))
        for _ in range(draw(st.integers(1, outputs)))
    )
    one = Case((1,) * ndim, factors, (), "wrap")
    shape = tuple(unit * draw(st.integers(1, max(30 // unit // ndim, 2))) for unit in one.units)
    widths = tuple(
        (draw(st.integers(0, min(n, 3))), draw(st.integers(0, min(n, 3)))) if draw(st.booleans()) else (0, 0)
        for n in shape
    )
    boundary = draw(st.sampled_from(BOUNDARIES))
    return Case(shape, factors, widths, boundary, draw(st.integers(1, inputs)), draw(st.booleans()))
