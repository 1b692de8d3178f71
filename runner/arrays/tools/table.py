"""Which function here does what a function of NumPy does, for `DistributedArray.__array_function__`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrun.runner.arrays.operations.table import FUNCTIONS
from meshrun.runner.arrays.tools.counting import bincount, histogram
from meshrun.runner.arrays.tools.order_statistics import median, percentile, quantile
from meshrun.runner.arrays.tools.scans import cumprod, cumsum
from meshrun.runner.arrays.tools.searching import searchsorted, unique
from meshrun.runner.arrays.tools.small_matrices import det, eigh, inv, solve
from meshrun.runner.arrays.tools.sorting import argsort, sort

NUMPY_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.sort: sort,
    np.argsort: argsort,
    np.cumsum: cumsum,
    np.cumprod: cumprod,
    np.percentile: percentile,
    np.quantile: quantile,
    np.median: median,
    np.histogram: histogram,
    np.bincount: bincount,
    np.unique: unique,
    np.searchsorted: searchsorted,
    np.linalg.solve: solve,
    np.linalg.inv: inv,
    np.linalg.det: det,
    np.linalg.eigh: eigh,
    (np.add, "accumulate"): cumsum,
    (np.multiply, "accumulate"): cumprod,
}
FUNCTIONS.update(NUMPY_FUNCTIONS)
