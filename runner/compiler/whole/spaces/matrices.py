"""Products of two fields as matrices: numpy.matmul, the operator @, and numpy.dot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.array import Functions, stored
from meshrun.runner.compiler.whole.array import Along, Whole, made
from meshrun.runner.compiler.whole.between.reductions import REDUCTIONS as OTHERS
from meshrun.runner.compiler.whole.functions import products
from meshrun.runner.compiler.whole.spaces.fourier import whole_field


def _is_field(a: Any) -> bool:
    return isinstance(a, Whole) and a.ndim == 2 and all(isinstance(axis, Along) for axis in a._axes)


def _product(name: str, other: Callable[..., Any]) -> Callable[..., Any]:
    """Return NumPy's function of that name. other: for products that are no product of two fields."""

    def multiply(a: Any, b: Any, out: Any = None, **options: Any) -> Any:
        if not (_is_field(a) and _is_field(b)):
            return other(a, b, out=out, **options)
        if a.shape[1] != b.shape[0]:
            raise ValueError(f"{name}: shapes {a.shape} and {b.shape} do not fit")
        dtype = np.result_type(a.dtype, b.dtype)
        # A transpose is multiplied as what it is one of.
        turned = tuple([one.axis for one in array._axes] == [1, 0] for array in (a, b))
        fields = [
            whole_field(f"numpy.{name}", array.T if turn else array, ())
            for array, turn in zip((a, b), turned, strict=True)
        ]
        recorder = fields[0]._recorder
        nodes = [one.cast(one.read(), dtype).item() for one in fields]
        shape = a.shape[0], b.shape[1]
        target, load = recorder.spaces.multiplied(recorder, tuple(nodes), turned, shape, dtype)
        axes = [Along(axis, 0, 1, n) for axis, n in enumerate(target.space)]
        return stored(made(target, axes, {}, np.full((), load, object), dtype), out)

    return multiply


FUNCTIONS: Functions = {
    np.matmul: _product("matmul", OTHERS.get(np.matmul, products.matmul)),
    np.dot: _product("dot", OTHERS.get(np.dot, products.dot)),
}
