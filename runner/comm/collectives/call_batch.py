"""Make a list of C calls from C, as a C program would.

`_batch` is compiled at installation (hatch_build.py); `BUILT` is False if it was not. The same calls are then
made from Python, which is slower.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

try:
    from meshrun.runner.comm.collectives import _batch
except ImportError:
    BUILT = False
else:
    BUILT = True

WORDS = 8  # arguments at most
CALL = struct.Struct(f"{2 + WORDS}Q")  # the function's address, number of arguments, the arguments


class Batch:
    """Several C calls as one function.

    calls: each a C function's address and its arguments: at most 8 pointers and non-negative integers. Each
    function returns an int, 0 for success. refused: makes the error to raise from the first other status.
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
