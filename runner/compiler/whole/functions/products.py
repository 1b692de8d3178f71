"""Sums of products over short axes: einsum, tensordot, dot, inner and matmul.

NumPy adds the products in an order of its own, which depends on memory: the sums agree with its sums within
rounding, and are the same on any number of ranks.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.array import common_dtype, recorder_of, stored
from meshrun.runner.compiler.trace.refusal import NotTraceable


def einsum(subscripts: Any, *operands: Any, out: Any = None, **options: Any) -> Any:
    if not isinstance(subscripts, str):
        raise NotTraceable("uses numpy.einsum with lists of axes", "np.einsum('ij,j->i', a, b)")
    left, arrow, output = subscripts.replace(" ", "").partition("->")
    inputs = left.split(",")
    if len(inputs) != len(operands):
        raise ValueError("einstein sum subscripts string has another number of terms than operands")

    # An ellipsis stands for letters of its own, those of the last axes first.
    unused = [letter for letter in string.ascii_letters if letter not in subscripts]
    counts = [np.ndim(one) - len(term.replace("...", "")) for term, one in zip(inputs, operands, strict=True)]
    most = max([count for term, count in zip(inputs, counts, strict=True) if "..." in term], default=0)
    dots = "".join(unused[:most])
    inputs = [term.replace("...", dots[most - count :]) for term, count in zip(inputs, counts, strict=True)]
    if not arrow:
        letters = "".join(inputs)
        output = dots + "".join(sorted(one for one in set(letters) - set(dots) if letters.count(one) == 1))
    return stored(_summed("einsum", inputs, output.replace("...", dots), operands), out)


def _summed(name: str, inputs: Sequence[str], output: str, operands: Sequence[Any]) -> Any:
    """Return the sum of products over all letters of the inputs that the output does not have."""
    recorder = recorder_of(*operands)
    arrays = [recorder.operand(one) for one in operands]
    lengths: dict[str, int] = {}
    for term, array in zip(inputs, arrays, strict=True):
        if len(set(term)) != len(term):
            raise NotTraceable(f"takes a diagonal (numpy.{name})", "np.where(i == j, a, 0) with np.indices")
        if len(term) != array.ndim:
            raise ValueError("einstein sum subscripts do not match the operand's number of axes")
        for axis, letter in enumerate(term):
            if letter not in output and array.is_cells(axis):
                raise NotTraceable(
                    f"sums products of cells (numpy.{name})",
                    "meshrun.matmul, in a program of your own",
                )
            if lengths.setdefault(letter, array.shape[axis]) != array.shape[axis]:
                raise ValueError(f"operands could not be broadcast together: axes {letter} differ in length")

    # The axes of each operand in the order of the output's, with new ones for those that it lacks.
    kind = common_dtype(arrays)
    added = [letter for letter in lengths if letter not in output]
    total: Any = None
    for element in np.ndindex(*(lengths[letter] for letter in added)):
        at = dict(zip(added, element, strict=True))
        factors = []
        for term, array in zip(inputs, arrays, strict=True):
            part = array[tuple(at.get(letter, slice(None)) for letter in term)].astype(kind, copy=False)
            kept = [letter for letter in term if letter in output]
            part = part.transpose([kept.index(letter) for letter in output if letter in kept])
            factors.append(part[tuple(slice(None) if letter in kept else None for letter in output)])
        product = reduce(mul, factors)
        total = product.copy() if total is None else total + product
    if total is None:
        raise NotTraceable(f"sums no products (numpy.{name})", "np.zeros(shape)")
    return total


def _letters(*ndims: int) -> list[str]:
    """Return as many letters for each array, all of them different."""
    left = iter(string.ascii_letters)
    return ["".join(next(left) for _ in range(ndim)) for ndim in ndims]


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    of_a, of_b = _letters(np.ndim(a), np.ndim(b))
    pairs = (range(-axes, 0), range(axes)) if isinstance(axes, int) else axes
    first, second = ([one] if isinstance(one, int) else list(one) for one in pairs)
    for one, other in zip(first, second, strict=True):
        of_b = of_b.replace(of_b[other], of_a[one])
    output = "".join(letter for letter in of_a + of_b if (letter in of_a) != (letter in of_b))
    return _summed("tensordot", [of_a, of_b], output, [a, b])


def dot(a: Any, b: Any, out: Any = None) -> Any:
    if np.ndim(a) == 0 or np.ndim(b) == 0:
        return np.multiply(a, b, out=out)
    return stored(tensordot(a, b, (-1, max(np.ndim(b) - 2, 0))), out)


def inner(a: Any, b: Any) -> Any:
    return a * b if np.ndim(a) == 0 or np.ndim(b) == 0 else tensordot(a, b, (-1, -1))


def matmul(a: Any, b: Any, **options: Any) -> Any:
    out = options.get("out")
    if np.ndim(b) <= 2:
        return stored(dot(a, b), out)
    term_a, term_b = ("j" if np.ndim(a) == 1 else "...ij"), "...jk"
    output = "...k" if np.ndim(a) == 1 else "...ik"
    return einsum(f"{term_a},{term_b}->{output}", a, b, out=out)
