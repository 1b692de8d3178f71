"""Calls of C functions made from C, one after another, as a C program would make them.

`_batch` is compiled at installation (hatch_build.py); `BUILT` says whether it was. What is missing without it
is only speed: the same calls are then made from Python.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

try:
    from runner.comm.collectives import _batch
except ImportError:
    BUILT = False
else:
    BUILT = True

WORDS = 8  # arguments at most
CALL = struct.Struct(f"{2 + WORDS}Q")  # the function's address, how many arguments, the arguments


class Batch:
    """Several calls as one function.

    calls: each a C function's address, and its arguments: pointers and integers, at most 8, none of them
    negative. Each function returns an int, 0 for success. refused: makes the error to raise of the
    first other one.
    """

    __slots__ = ("_refused", "_table")

    def __init__(
        self, calls: Sequence[tuple[int, Sequence[int]]], refused: Callable[[int], Exception]
    ) -> None:
        self._refused = refused
        self._table = b"".join(
            CALL.pack(function, len(words), *words, *[0] * (WORDS - len(words))) for function, words in calls
        )

    def __call__(self) -> None:
        if status := _batch.run(self._table):
            raise self._refused(status)
