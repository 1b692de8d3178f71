"""A process of a verification: takes one tile after the other on orders, and imports little."""

from __future__ import annotations

import mmap
from contextlib import suppress
from multiprocessing.connection import Connection

import cloudpickle
import numpy as np

from meshrun.runner.errors import TRACE, MeshrunError, RunError, describe, traceback_of
from meshrun.runner.system.host_memory import keep_freed_memory
from meshrun.runner.world.termination import end_with_parent


def serve(channel: int, file: int) -> None:
    """Take tiles on orders from `channel` until it closes. file: of the memory that all share.

    Both are numbers of open files. The first message is the task; the answer to each one is None or what is
    wrong.
    """
    end_with_parent()  # also in the midst of a tile
    keep_freed_memory()
    with Connection(channel) as orders, suppress(EOFError, OSError):
        message = orders.recv_bytes()
        try:
            task = cloudpickle.loads(message)
            memory = np.frombuffer(mmap.mmap(file, 0), np.uint8)
        except BaseException as failure:
            orders.send(f"{type(failure).__name__}: {failure}")
            return
        orders.send(None)
        while True:
            tile = orders.recv()
            try:
                tile.take(task, memory)
            except BaseException as failure:
                orders.send(_told(failure))
            else:
                orders.send(None)


def _told(failure: BaseException) -> MeshrunError:
    """Return an error that can be sent."""
    if isinstance(failure, MeshrunError):
        return failure
    error = RunError(describe(failure))
    vars(error)[TRACE] = traceback_of(failure)
    return error
