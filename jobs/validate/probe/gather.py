"""Gather to rank 0 only: with many ranks, the others need not hold all values."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from meshrun.runner.comm.api import Control

Rows = np.ndarray[Any, Any]


def rows(control: Control, mine: Rows) -> Rows:
    """Gather C-contiguous arrays of one shape and dtype. Returns (ranks, ...) on rank 0, else (0, ...)."""
    if control.rank:
        control.exchange([(0, mine)], []).wait()
        return np.empty((0, *mine.shape), mine.dtype)
    found = np.empty((control.size, *mine.shape), mine.dtype)
    found[0] = mine
    control.exchange([], [(rank, found[rank]) for rank in range(1, control.size)]).wait()
    return found


def values(control: Control, mine: Any) -> list[Any]:
    """Gather JSON values. Returns them in rank order on rank 0, [] elsewhere."""
    text = np.frombuffer(json.dumps(mine).encode(), np.uint8)
    sizes = rows(control, np.array([text.size], np.int64)).ravel().tolist()
    if control.rank:
        control.exchange([(0, text)], []).wait()
        return []
    texts = [np.empty(size, np.uint8) for size in sizes]
    texts[0][...] = text
    control.exchange([], list(enumerate(texts))[1:]).wait()
    return [json.loads(one.tobytes()) for one in texts]
