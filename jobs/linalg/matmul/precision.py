"""How factors, sums and results are rounded: chosen from the dtypes of A and B and the option `precision`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.region import HostArray
from meshrun.runner.spelling import option

WORDS = ("auto", "float64", "float32", "tf32", "float16", "bfloat16")
FACTORS = {"float64": "float64", "float32": "float32", "tf32": "float32", "float16": "float16"}
# Unit roundoffs: of a number that is rounded to nearest with so many bits.
UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "tf32": 2.0**-10, "float16": 2.0**-11, "bfloat16": 2.0**-8}
TENSOR_CORES = ("tf32", "float16", "bfloat16")
PRODUCTS = 16  # whose sum a tensor core truncates at once, at least
SPREAD = 2.0  # times the root of the number of roundings


@dataclass(frozen=True)
class Precision:
    """The rounding of a product.

    name: of the factors' precision. result: dtype of the product, as numpy.matmul's. stored: dtype of the
    factors in memory and in messages; of bfloat16 on a GPU, 16-bit words. sums: dtype of the sums. rounds:
    whether storing a factor rounds it.
    """

    name: str
    result: np.dtype[Any]
    stored: np.dtype[Any]
    sums: np.dtype[Any]
    rounds: bool = False

    @property
    def exact(self) -> bool:
        """Whether the product is of integers, which wrap around like NumPy's."""
        return self.result.kind in "iu"

    def bound(self, length: int) -> float:
        """Return the error of a sum that rounding explains, relative to the sum of |a| |b|.

        length: number of products in the sum. Rounding errors of a sum are independent of each other and grow
        with the root of their number (N. J. Higham and T. Mary, "A new approach to probabilistic rounding
        error analysis", SIAM J. Sci. Comput. 41, 2019); tensor cores truncate, so that errors add up (M.
        Fasi, N. J. Higham, M. Mikaitis, S. Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ CS 7,
        2021).
        """
        unit = float(np.finfo(self.sums).eps) / 2
        growth = min(float(length), SPREAD * math.sqrt(length))
        if self.name in TENSOR_CORES:
            growth += 2 * length / PRODUCTS
        if self.result.kind == "c":
            growth *= 4  # products and sums of two parts
        return (growth + 1) * unit + (2 * UNITS[self.name] if self.name == "tf32" else 0.0)

    def converts(self, dtype: np.dtype[Any]) -> bool:
        """Whether numbers of a dtype change when they are stored as factors."""
        return dtype != self.stored or (self.rounds and self.name != "tf32")

    def factor(self, array: HostArray) -> HostArray:
        """Return a factor as it is rounded before it is multiplied; for tf32, of which this is not known, as
        it is."""
        if not self.rounds or self.name == "tf32":
            return array
        return array.astype(ml_dtypes.bfloat16 if self.name == "bfloat16" else self.name)

    @property
    def stores(self) -> float:
        """Return the largest error of storing a sum in the result, relative to the result."""
        return float(np.finfo(self.result).eps) / 2 if self.result != self.sums else 0.0


def choose(left: np.dtype[Any], right: np.dtype[Any], word: str, *, gpu: bool) -> Precision:
    """Return the precision for factors of two dtypes. Raises UserError for those that cannot be multiplied
    so."""
    if word not in WORDS:
        raise UserError("unknown precision", got=word, expected=", ".join(WORDS))
    result = np.result_type(left, right)
    given = f"{left} and {right}" if left != right else str(left)
    if result.kind == "b":
        raise UserError("matmul multiplies numbers", got=given, hint="convert one factor to int8 or float32")
    if gpu and result.itemsize > (16 if result.kind == "c" else 8):
        raise UserError("GPUs have no such floating-point numbers", got=given, expected="at most float64",
                        hint=option("device", "cpu"))  # fmt: skip
    if result.kind != "f" and word != "auto":
        raise UserError(
            f"{option('precision', word)} applies to real floating-point factors",
            got=given,
            hint=f"leave {option('precision')} out",
        )
    if result.kind != "f" or (word == "auto" and result.name not in UNITS):
        return Precision(result.name, result, result, result)
    if word == "tf32" and not gpu:
        raise UserError(
            f"{option('precision', 'tf32')} is a mode of GPUs",
            got="CPU ranks",
            hint=f"{option('precision', 'float32')}, or {option('device', 'cuda')}",
        )
    name = result.name if word == "auto" else word
    rounds = name == "tf32" or max(map(_digits, (left, right))) > -math.log2(UNITS[name])
    sums = np.dtype("float64" if name == "float64" else "float32")
    if name in FACTORS and (gpu or name != "float16"):
        stored = np.dtype(FACTORS[name])
    else:  # a CPU has no fast arithmetic of 16 bits: rounded values in float32, whose products are exact
        stored = np.dtype("uint16" if gpu else "float32")
    return Precision(name, result, stored, sums, rounds)


def _digits(dtype: np.dtype[Any]) -> float:
    """Return the number of binary digits that numbers of a dtype may have."""
    return float(np.finfo(dtype).nmant + 1) if dtype.kind == "f" else float(8 * dtype.itemsize)
