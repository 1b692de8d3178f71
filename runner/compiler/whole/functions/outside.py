"""NumPy's arrays from outside of a traced function, as the function sees them: not to be written.

One of few entries is a table that cells of integers look up: table[labels].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrun.runner.compiler.trace.array import MOST_COMPONENTS, TracedArray
from meshrun.runner.compiler.trace.functions.composites import MOST_ENTRIES, take


class LookupTable(np.ndarray[Any, Any]):
    """An array of few entries, whose index may be an array of cells."""

    def __getitem__(self, index: Any) -> Any:
        first, *others = index if isinstance(index, tuple) else (index,)
        if isinstance(first, TracedArray):
            part = (slice(None), *others)
            entries = np.asarray(self)[part]
            return take(entries, first, 0)
        return super().__getitem__(index)


def as_table(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array, as a table if it has few entries."""
    few = array.ndim and len(array) <= MOST_ENTRIES and array.size <= len(array) * MOST_COMPONENTS
    return array.view(LookupTable) if few else array


def protected(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a view that cannot be written, of an array from outside of the function."""
    view = as_table(array.view())
    view.flags.writeable = False
    return view
