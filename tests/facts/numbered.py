"""Large arrays whose content both ends of a message know: each int64 is its own index. Without copies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

PART = 1 << 20  # elements


def number(array: np.ndarray) -> None:
    for begin, part, indices in _parts(array):
        np.add(indices, begin, out=part)


def misnumbered(array: np.ndarray) -> list[int]:
    """Where the parts begin that hold anything else; as many as tell where to look."""
    found = (begin for begin, part, indices in _parts(array) if not np.array_equal(part - begin, indices))
    return list(itertools.islice(found, 5))


def _parts(array: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    indices = np.arange(PART)
    for begin in range(0, array.size, PART):
        part = array[begin : begin + PART]
        yield begin, part, indices[: part.size]
