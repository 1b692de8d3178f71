"""What keeping a row of values leaves: on a CPU, and on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_kept_row(backend: Any) -> None:
    """Words are kept as they were, also on the host; then some become others, all at once."""
    words, word = 700, np.dtype(np.uint64)
    row, kept = (backend.empty((words,), word) for _ in range(2))
    host, before = backend.host_empty((words,), word), np.arange(words, dtype=word) << 33
    pairs = np.array([[0, 1, 5, 699], [1, 0, 699, 6]], np.int64)
    moves = backend.empty(pairs.shape, pairs.dtype)
    backend.upload(pairs, moves)
    for to_host in (True, False):
        backend.upload(before, row)
        host.fill(7)
        kept.fill(9)
        backend.keep_row(row, kept, host if to_host else None, moves)
        backend.synchronize()
        after, found = np.empty_like(before), np.empty_like(before)
        backend.download(row, after)
        backend.download(kept, found)
        backend.synchronize()
        expected = before.copy()
        expected[pairs[1]] = before[pairs[0]]
        assert (found == before).all()
        assert (after == expected).all()
        assert (host == (before if to_host else 7)).all()
