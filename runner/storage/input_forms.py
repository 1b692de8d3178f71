"""Descriptions of the inputs by the options shape, dtype and order: a Form for each."""

from __future__ import annotations

import math

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.options.spelling import option
from meshrun.runner.options.stream_options import is_length
from meshrun.runner.storage.formats.registry import Form


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
    try:
        np.empty((0,) * len(lengths))
    except ValueError as reason:  # NumPy's message has the largest number of axes
        raise UserError(f"{option('shape')} has more axes than an array can have", why=reason) from None
    if math.prod(length or 1 for length in lengths) > np.iinfo(np.int64).max:
        raise UserError(
            f"{option('shape')} is larger than any array",
            got=text,
            expected=f"at most {np.iinfo(np.int64).max} cells",
        )
    return lengths
