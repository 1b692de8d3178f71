"""The dtype of an array that options describe."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.spelling import option

NUMBERS = "biufc"  # kinds of dtype: booleans, integers, floats, complex


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
