"""Counters that ranks share, in an MPI window: one-sided, passive target.

Rank r's counter lies in rank r's memory, so that a rank can access its own without waiting. On one host all
counters lie in shared memory. Across hosts, network adapters with atomics serve requests. Over TCP, the MPI
library of the counter's rank serves them during that rank's next few calls of `take`, `read` or `progress`,
and the requesting rank waits until then. Therefore a rank that waits for its own work sleeps in short
intervals and calls `progress` between them; a rank that only computes delays a request by a few chunks.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from meshrun.runner.errors import RunError, first_line
from meshrun.runner.spelling import option

SERVING, INTERVAL = 1e-3, 50e-3  # seconds spent serving other hosts' ranks, and least time between


class MpiCounters:
    """`runner.comm.api.Counters` over the ranks of the mpi4py communicator `comm`; mpi: mpi4py's MPI.

    one_host: all ranks share memory. Raises RunError if the MPI library has no one-sided communication
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
                why=first_line(reason),
                hint=f"Open MPI 5, or {option('static', True)}; "
                "Open MPI 4 over TCP needs MPI4PY_RC_THREAD_LEVEL=serialized",
                everywhere=True,
            ) from reason
        # One epoch for the window's lifetime, with shared locks: no rank ever takes an exclusive one.
        self._window.Lock_all(mpi.MODE_NOCHECK)
        self._own[...] = 0
        self._window.Sync()
        comm.Barrier()

    def _open(self, one_host: bool) -> Any:
        # Not Win.Allocate: Open MPI uses osc/rdma for such windows, in which windows of different
        # communicators may get the same memory on a host (4.1) and some networks crash (5.0, OFI).
        if not one_host:
            return self._mpi.Win.Create(self._own, self._own.nbytes, comm=self._comm)
        window = self._mpi.Win.Allocate_shared(self._own.nbytes, self._own.nbytes, comm=self._comm)
        self._own = np.frombuffer(window, np.int64)
        return window

    def take(self, owner: int) -> int:
        before = np.empty((), np.int64)
        self._window.Fetch_and_op(self._one, before, owner, 0, self._mpi.SUM)
        self._window.Flush(owner)
        self._comm.Iprobe()  # flushing the own part does not enter every library's progress engine
        self.progress()
        return int(before)

    def read(self) -> list[int]:
        # A Get concurrent with an accumulate is undefined in MPI; a no-op accumulate is atomic with it.
        values = np.empty(self._comm.size, np.int64)
        for owner in range(values.size):
            self._window.Fetch_and_op(self._one, values[owner : owner + 1], owner, 0, self._mpi.NO_OP)
        self._window.Flush_all()
        counts: list[int] = values.tolist()
        return counts

    def progress(self) -> None:
        if self._one_host or (now := perf_counter()) < self._served + INTERVAL:
            return
        # Repeatedly: one request takes several messages in both directions.
        while perf_counter() < now + SERVING:
            self._comm.Iprobe()
        self._served = perf_counter()

    def close(self) -> None:
        self._window.Unlock_all()
        self._window.Free()
