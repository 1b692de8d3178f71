"""Random numbers whose reduction is exact, whatever the order of its steps.

An element has a window of contributors: `window` neighbouring ranks, the first chosen by the element's hash;
every other rank contributes the identity. A result thus costs at most MAX_CONTRIBUTORS draws, however many
ranks there are. Contributions by kind of reduction:

    integers          random bits, wrapping; odd ones to a product; to an average so few bits that the
                      sum stays in the signed range.
    floats, sum       n 2^e, n a random integer of either sign but never 0, e one random number for the
                      whole element. The magnitudes of all n of an element add up to 2^p at most, p being
                      the precision, so every partial sum is an integer that the type holds. Inputs are +0
                      or normal, and x + -x is +0: no sum is -0 or subnormal.
    floats, product   a random sign and power of two, and one contributor of the element a random mantissa.
    min, max          any integer; any normal number.
    floats, average   NCCL multiplies by the type's nearest 1 / ranks and then sums. If the number of ranks is
                      a power of two, this changes only exponents. Otherwise two ranks contribute the
                      same power of two: both products and their sum are exact multiples of the
                      reciprocal by powers of two, and so is the quotient if a library sums first. The
                      two methods differ only where the reciprocal is subnormal (f8e4m3 on more than
                      64 ranks): NCCL's result is expected, and `tolerance` allows the other. Where
                      the reciprocal is 0 (from 1024 ranks on), all data are 0.
"""

from __future__ import annotations

import functools
from dataclasses import astuple, dataclass, replace
from enum import IntEnum
from fractions import Fraction

import numpy as np

from meshrun.runner.comm.collectives.api import Datatype, premultiplier

MAX_CONTRIBUTORS = 64  # contributors to an element


class RecipeKind(IntEnum):
    """How random bits become an element; the same numbers as in kernels/bench_data.cu."""

    UNTOUCHED = 0
    COPIED = 1
    SUM = 2
    PRODUCT = 3
    EXTREME = 4
    FLOAT_SUM = 5
    FLOAT_PRODUCT = 6


@dataclass(frozen=True)
class Recipe:
    """Parameters of an element's computation, the same for NumPy and the kernels.

    width: bits of an element. window: number of contributors. bits: random bits of a contribution. odd:
    factor of odd ranks' contributions. divisor: of the sum. alike: 1 if contributors share a sign. identity:
    initial value of a combination; for EXTREME, as a key that orders like the values. mantissa: mantissa
    bits. low, choices: lowest exponent field of the integer 1, and number of fields to draw from; for
    EXTREME, fields are 1 to choices. shift, extra: added by averaging to the exponent field and to the
    mantissa. powers: contributors of a product that contribute a power of two. minimum, signed: 1 or 0.
    """

    kind: RecipeKind
    width: int
    ranks: int = 1
    window: int = 1
    bits: int = 0
    odd: int = 1
    divisor: int = 1
    alike: int = 0
    identity: int = 0
    mantissa: int = 0
    low: int = 0
    choices: int = 0
    shift: int = 0
    extra: int = 0
    powers: int = 0
    minimum: int = 0
    signed: int = 0

    @property
    def inputs(self) -> Recipe:
        """The recipe before weights and averaging: what a rank contributes."""
        return replace(self, odd=1, divisor=1, shift=0, extra=0)

    @property
    def arguments(self) -> tuple[np.uint64, ...]:
        """The fields from `ranks` on as kernel arguments, modulo 2^64."""
        return tuple(np.uint64(value % 2**64) for value in astuple(self)[2:])


@functools.lru_cache(maxsize=128)
def recipe(datatype: Datatype, reduction: str, ranks: int) -> Recipe:
    """Return the recipe of a reduction over `ranks` ranks."""
    if reduction in ("min", "max"):
        return _extreme(datatype, ranks, reduction == "min")
    if not datatype.floating:
        return _integers(datatype, ranks, reduction)
    return _product(datatype, ranks) if reduction == "prod" else _sum(datatype, ranks, reduction)


def _integers(datatype: Datatype, ranks: int, reduction: str) -> Recipe:
    width, window = 8 * datatype.itemsize, min(ranks, MAX_CONTRIBUTORS)
    if reduction == "prod":
        return Recipe(RecipeKind.PRODUCT, width, ranks, window, identity=1)
    if reduction != "avg":
        odd = premultiplier(1) if reduction == "mulsum" else 1
        return Recipe(RecipeKind.SUM, width, ranks, window, bits=width, odd=odd)
    # Two large numbers rather than many small ones where a sum may have only 7 bits.
    window = min(window, MAX_CONTRIBUTORS if width > 8 else 2)
    return Recipe(RecipeKind.SUM, width, ranks, window, bits=width - 1 - _log2(window), divisor=ranks)


def _sum(datatype: Datatype, ranks: int, reduction: str) -> Recipe:
    mantissa, precision = datatype.mantissa, datatype.mantissa + 1
    top = largest(datatype) >> mantissa
    window, total = min(ranks, 1 << mantissa, MAX_CONTRIBUTORS), precision
    odd = premultiplier(1) if reduction == "mulsum" else 1
    bits = total - _log2(window) - _log2(odd)
    shift = extra = 0
    alike = reduction == "avg" and ranks != 1 << _log2(ranks)
    if reduction == "avg":
        nearest = _reciprocal(datatype, ranks, lowest=1 - bias(datatype))
        if nearest is None:
            return Recipe(RecipeKind.FLOAT_SUM, 8 * datatype.itemsize, ranks, window=0, mantissa=mantissa)
        shift, extra = nearest
        if alike:
            window, bits, total = 2, 0, 1
    # The smallest value, 1 * 2^e (in averages: its share), is normal; the largest, 2^total * 2^e, finite.
    low = 1 - shift
    choices = top - total - low + 1
    return Recipe(
        RecipeKind.FLOAT_SUM,
        8 * datatype.itemsize,
        ranks,
        window if choices > 0 else 0,
        bits,
        odd,
        alike=int(alike),
        mantissa=mantissa,
        low=low,
        choices=max(choices, 1),
        shift=shift,
        extra=extra,
    )


def _product(datatype: Datatype, ranks: int) -> Recipe:
    one = bias(datatype) << datatype.mantissa
    window = min(ranks, MAX_CONTRIBUTORS)
    powers = min(window, bias(datatype) - 3)  # all up or all down stays normal, with room for the mantissa
    return Recipe(
        RecipeKind.FLOAT_PRODUCT,
        8 * datatype.itemsize,
        ranks,
        window,
        identity=one,
        mantissa=datatype.mantissa,
        powers=powers,
    )


def _extreme(datatype: Datatype, ranks: int, minimum: bool) -> Recipe:
    width = 8 * datatype.itemsize
    highest = (1 << width) - 1
    if datatype.floating:
        highest = largest(datatype) | 1 << (width - 1)
    return Recipe(
        RecipeKind.EXTREME,
        width,
        ranks,
        min(ranks, MAX_CONTRIBUTORS),
        identity=highest if minimum else (1 << width) - 1 - highest,
        mantissa=datatype.mantissa,
        choices=(1 << datatype.exponent) - 2,
        minimum=int(minimum),
        signed=int(datatype.signed),
    )


def tolerance(datatype: Datatype, reduction: str, ranks: int) -> int:
    """Return by how many units in the last place a correct result may differ from the expected one.

    It is the difference between multiplying by the type's 1 / ranks and dividing; 0 except for f8e4m3
    averages.
    """
    if not datatype.floating or reduction != "avg":
        return 0
    nearest = _reciprocal(datatype, ranks, lowest=1 - bias(datatype))
    exact = _reciprocal(datatype, ranks, lowest=-ranks)
    if nearest is None or exact is None:
        return 0
    return abs(((nearest[0] - exact[0]) << datatype.mantissa) + nearest[1] - exact[1])


def _reciprocal(datatype: Datatype, ranks: int, lowest: int) -> tuple[int, int] | None:
    """Round 1 / ranks to the type's precision; returns exponent and mantissa, None if it rounds to 0.

    lowest: the exponent below which numbers are subnormal.
    """
    unit = max(-_log2(ranks), lowest) - datatype.mantissa  # the exponent of the last bit
    multiple = round(Fraction(1, ranks) / Fraction(2) ** unit)  # half to even
    if multiple == 0:
        return None
    lead = multiple.bit_length() - 1
    return unit + lead, (multiple << datatype.mantissa >> lead) - (1 << datatype.mantissa)


def bias(datatype: Datatype) -> int:
    """Return the exponent field of 1.0."""
    return (1 << (datatype.exponent - 1)) - 1


def largest(datatype: Datatype) -> int:
    """Return the bits of the largest finite number. Types named fn have no infinity; NaN is all ones."""
    if datatype.numpy.endswith("fn"):
        return (1 << (8 * datatype.itemsize - 1)) - 2
    return (((1 << datatype.exponent) - 1) << datatype.mantissa) - 1


def _log2(number: int) -> int:
    """Compute log2, rounded up."""
    return (number - 1).bit_length()
