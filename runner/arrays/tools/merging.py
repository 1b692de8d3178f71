"""Sorted runs of keys on a GPU become one, two at a time (kernels/merge.cu)."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.device.api import Backend
from meshrun.runner.device.kernel_file import kernel
from meshrun.runner.region import Array

KERNEL = Path(__file__).with_name("kernels") / "merge.cu"
THREADS, ITEMS = 256, 15  # threads of a block, and keys that each merges
KEYS = {  # by NumPy's name of the dtype
    "b1": "unsigned char",
    "i1": "signed char",
    "u1": "unsigned char",
    "i2": "short",
    "u2": "unsigned short",
    "i4": "int",
    "u4": "unsigned",
    "i8": "long long",
    "u8": "unsigned long long",
    "f4": "float",
    "f8": "double",
}


def can_merge(backend: Backend, dtype: np.dtype[Any]) -> bool:
    """Return whether `merge_runs` takes keys of a dtype: on GPUs, of numbers that CUDA compares."""
    return backend.asynchronous and dtype.isnative and dtype.str[1:] in KEYS


def merge_runs(backend: Backend, keys: Array, lengths: list[int]) -> Array:
    """Return keys sorted as by a stable sort, NaNs last; `keys` changes.

    keys: sorted runs, one after the other. lengths: of the runs.
    """
    key, spare = KEYS[keys.dtype.str[1:]], backend.empty(keys.shape, keys.dtype)
    ends = [0, *accumulate(length for length in lengths if length)]
    while len(ends) > 2:
        for start, middle, end in zip(ends[:-2:2], ends[1:-1:2], ends[2::2], strict=True):
            _merge(backend, key, keys[start:middle], keys[middle:end], spare[start:end])
        if len(ends) % 2 == 0:  # a run is left over
            spare[ends[-2] : ends[-1]] = keys[ends[-2] : ends[-1]]
        ends = [*ends[::2], *ends[-1:]] if len(ends) % 2 == 0 else ends[::2]
        keys, spare = spare, keys
    return keys


def _merge(backend: Backend, key: str, first: Array, second: Array, result: Array) -> None:
    """Fill `result` with two runs, merged. key: the keys' type in CUDA."""
    tile = THREADS * ITEMS
    tiles = -(-result.size // tile)
    cuts = backend.empty((tiles + 1,), np.dtype(np.int64))
    runs = (first, np.int64(first.size), second, np.int64(second.size))
    find, merge = (
        kernel(KERNEL, f"find_tiles<{key}>"),
        kernel(KERNEL, f"merge_tiles<{key}, {THREADS}, {ITEMS}>"),
    )
    find((-(-(tiles + 1) // THREADS),), (THREADS,), (*runs, np.int64(tile), cuts))
    merge((tiles,), (THREADS,), (*runs, cuts, result))
