"""The form of an input without a header: shape, dtype and order, as options describe them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshrun.runner.errors import UserError
from meshrun.runner.spelling import option

if TYPE_CHECKING:
    from meshrun.runner.region import Shape

DIGITS_MOST = 19  # of an int64
LARGEST = (1 << 63) - 1  # cells of an array


@dataclass(frozen=True)
class Form:
    """Description of a file's array by the options input_shape, input_dtype and input_order.

    Raw files require it; for other files it must agree with the file. order: "C", or "F" for a file in which
    the first index varies fastest; None: not given, the same as "C".
    """

    shape: Shape | None = None
    dtype: str | None = None
    order: str | None = None


NO_FORM = Form()


def is_length(word: str) -> bool:
    """Return whether a word is the digits of a length; Python refuses to convert thousands of them."""
    return word.isascii() and word.isdecimal() and len(word) <= DIGITS_MOST


def form_of(shape: str | None, dtype: str | None, order: str | None) -> Form | tuple[Form, ...] | None:
    """Build a Form from the options shape, dtype and order; None if none of them is given.

    Commas separate the shapes and the dtypes of several inputs: a Form for each.
    """
    if shape is None and dtype is None and order is None:
        return None
    shapes = [None] if shape is None else [parse_shape(text) for text in shape.split(",")]
    dtypes = [None] if dtype is None else dtype.split(",")
    count = max(len(shapes), len(dtypes))
    if not {len(shapes), len(dtypes)} <= {1, count}:
        raise UserError(
            f"{option('shape')} and {option('dtype')} describe different numbers of inputs",
            got=f"{len(shapes)} shapes and {len(dtypes)} dtypes",
        )
    each = zip(shapes * (count // len(shapes)), dtypes * (count // len(dtypes)), strict=True)
    forms = tuple(Form(one, element, order) for one, element in each)
    return forms[0] if count == 1 else forms


def forms_of_inputs(form: Form | tuple[Form, ...] | None, count: int) -> list[Form | None]:
    """Return the Form of each of `count` inputs; UserError if there are Forms of another number of them."""
    if not isinstance(form, tuple):
        return [form] * count
    if len(form) != count:
        raise UserError(
            f"{option('shape')} and {option('dtype')} describe another number of inputs",
            got=len(form),
            expected="1" if count == 1 else f"{count}, or 1 for all",
            hint="a comma is between inputs; the lengths of one are joined by x, as in 10x6",
        )
    return list(form)


def parse_shape(text: str) -> tuple[int, ...]:
    """Parse axis lengths such as 1000x512; raises UserError if an array cannot have that shape."""
    words = text.lower().split("x")
    if not all(map(is_length, words)):
        raise UserError(
            f"{option('shape')} does not parse", got=repr(text), expected="lengths joined by x: 1000x512"
        )
    lengths = tuple(int(word) for word in words)
    import numpy as np  # not for --help

    try:
        np.empty((0,) * len(lengths))
    except ValueError as reason:  # NumPy's message has the largest number of axes
        raise UserError(f"{option('shape')} has more axes than an array can have", why=reason) from None
    if math.prod(length or 1 for length in lengths) > LARGEST:
        raise UserError(
            f"{option('shape')} is larger than any array",
            got=text,
            expected=f"at most {LARGEST} cells",
        )
    return lengths
