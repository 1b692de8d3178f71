"""`@` and `np.matmul` of distributed arrays: their rows are multiplied as `meshrun.matmul` does."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrun.jobs.linalg.matmul import blocks
from meshrun.runner.arrays.operations.table import implements
from meshrun.runner.errors import UserError


@implements(np.dot)
def dot(a: Any, b: Any, out: Any = None) -> Any:
    return np.multiply(a, b, out=out) if not np.ndim(a) or not np.ndim(b) else matmul(a, b, out=out)


@implements(np.matmul)
def matmul(x1: Any, x2: Any, /, out: Any = None) -> Any:
    """Return the product of two matrices, or of a matrix and a vector, split by rows. Collective."""
    a, b = x1, x2
    if not np.ndim(a) or not np.ndim(b):
        raise ValueError("matmul: Input operand does not have enough dimensions")
    if max(np.ndim(a), np.ndim(b)) > 2:
        raise UserError(
            "matmul of distributed arrays multiplies matrices and vectors",
            got=f"shapes {np.shape(a)} and {np.shape(b)}",
            hint="a loop over the first axis, or (a[..., None] * b[..., None, :, :]).sum(axis=-2)",
            everywhere=True,
        )
    if np.shape(a)[-1] != np.shape(b)[0]:
        raise ValueError(
            "matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature "
            f"(n?,k),(k,m?)->(n?,m?) (size {np.shape(b)[0]} is different from {np.shape(a)[-1]})"
        )
    if np.ndim(a) == np.ndim(b) == 1:
        return np.sum(np.multiply(a, b))
    result = blocks.matmul(a, b)
    if out is None:
        return result
    target = out[0] if isinstance(out, tuple) else out
    target[...] = result
    return target
