"""Compare a file's array with its description by options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.options.spelling import option

if TYPE_CHECKING:
    from meshrun.runner.options.form import Form
    from meshrun.runner.storage.formats.registry import Source

NUMBERS = "biufc"  # kinds of dtype: booleans, integers, floats, complex


def agree(source: Source, form: Form) -> None:
    """Raise UserError if a file contradicts its description, except in the byte order."""
    compared: list[tuple[str, object, object]] = []
    if form.shape is not None:
        compared.append(("shape", tuple(form.shape), source.shape))
    if form.dtype is not None:
        compared.append(("dtype", parse_dtype(form.dtype).newbyteorder("="), source.dtype))
    if form.order is not None:
        compared.append(("order", form.order, source.form.order or "C"))
    for what, expected, got in compared:
        if expected != got:
            raise UserError(
                f"{source.path} has another {what} than {option(f'input_{what}')}",
                got=f"{what} {got} in the file",
                expected=expected,
                hint=f"leave {option(f'input_{what}')} out: the file has a header",
            )


def parse_dtype(text: str) -> np.dtype[Any]:
    """Parse a numeric dtype such as "float32" or ">i2"; UserError for anything else."""
    try:
        dtype = np.dtype(text)
    except (TypeError, ValueError, SyntaxError) as reason:
        raise UserError(
            f"{option('input_dtype')} is not a dtype", got=repr(text), hint="float32, or >f4"
        ) from reason
    if dtype.kind not in NUMBERS:
        raise UserError(f"{option('input_dtype')} is not numeric", got=repr(text), expected="a numeric dtype")
    return dtype
