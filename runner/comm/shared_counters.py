"""Counters that ranks share, in an MPI window: one-sided, passive target.

Rank r's counter lies in rank r's memory, so that a rank at its own counter waits for nobody. On one host
all of them lie in shared memory. Across hosts, a network adapter with atomics serves them; over TCP it is
the MPI library of the counter's rank, in that rank's next calls of `take`, `read` or `poke`, a few for each
request: until then whoever takes or reads waits. So a rank that waits for its own work does so in short naps,
with `poke` between them; one that computes all the while delays others by about as many chunks as calls.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from runner.errors import RunError, first_line

SERVING, BETWEEN = 1e-3, 50e-3  # seconds of serving other hosts' ranks, and until the next time at least


class MpiCounters:
    """`runner.comm.api.Counters` over the ranks of the mpi4py communicator `comm`; mpi: mpi4py's MPI.

    one_host: all ranks share memory. Raises RunError where the MPI library has no one-sided communication
    between these ranks.
    """

    def __init__(self, mpi: Any, comm: Any, one_host: bool) -> None:
        self._mpi, self._comm, self._one_host = mpi, comm, one_host
        self._served = 0.0
        self._one, self._own = np.ones((), np.int64), np.zeros((), np.int64)
        try:
            self._window = self._open(one_host)
        except mpi.Exception as reason:
            raise RunError(
                "MPI has no one-sided communication between these ranks",
                got=first_line(reason),
                hint="Open MPI 5, or --static; Open MPI 4 over TCP wants MPI4PY_RC_THREAD_LEVEL=serialized",
                everywhere=True,
            ) from reason
        # One epoch for life, of shared locks only: nobody ever asks for an exclusive one.
        self._window.Lock_all(mpi.MODE_NOCHECK)
        self._own[...] = 0
        self._window.Sync()
        comm.Barrier()

    def _open(self, one_host: bool) -> Any:
        # Not Win.Allocate: Open MPI lets its osc/rdma have such windows, where those of different
        # communicators may get the same memory on a host (4.1), and some networks crash (5.0, OFI).
        if not one_host:
            return self._mpi.Win.Create(self._own, self._own.nbytes, comm=self._comm)
        window = self._mpi.Win.Allocate_shared(self._own.nbytes, self._own.nbytes, comm=self._comm)
        self._own = np.frombuffer(window, np.int64)
        return window

    def take(self, owner: int) -> int:
        before = np.empty((), np.int64)
        self._window.Fetch_and_op(self._one, before, owner, 0, self._mpi.SUM)
        self._window.Flush(owner)
        self._comm.Iprobe()  # to flush this rank's own part is no call of MPI in every library
        self.poke()
        return int(before)

    def read(self) -> list[int]:
        # MPI leaves a Get beside an accumulate undefined; an accumulate that does nothing is atomic with it.
        values = np.empty(self._comm.size, np.int64)
        for owner in range(values.size):
            self._window.Fetch_and_op(self._one, values[owner : owner + 1], owner, 0, self._mpi.NO_OP)
        self._window.Flush_all()
        counts: list[int] = values.tolist()
        return counts

    def poke(self) -> None:
        if self._one_host or (now := perf_counter()) < self._served + BETWEEN:
            return
        # Not once: what another rank asks for takes several messages, there and back.
        while perf_counter() < now + SERVING:
            self._comm.Iprobe()
        self._served = perf_counter()

    def close(self) -> None:
        self._window.Unlock_all()
        self._window.Free()
