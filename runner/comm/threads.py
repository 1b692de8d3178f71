"""Ranks as threads of one process, with no MPI: for tests, for rehearsals, and for a world of one."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from runner.comm.api import Message, Operation, as_bytes, check_contiguous
from runner.errors import RunError
from runner.region import Array

Result = TypeVar("Result")
REDUCE = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


class Hub:
    """What the simulated ranks share: mailboxes per (sender, receiver), a barrier, a blackboard.

    patience: seconds after which a rank that waits for another gives up, so that a test with a
    deadlock fails instead of hanging.
    """

    def __init__(self, size: int, patience: float = 60.0) -> None:
        self.size, self.patience = size, patience
        self._barrier = threading.Barrier(size)
        self._board: list[Any] = [None] * size
        self._mail: dict[tuple[int, int], deque[Array]] = defaultdict(deque)
        self._arrival = threading.Condition()
        self._broken = False

    def barrier(self) -> None:
        try:
            self._barrier.wait(self.patience)
        except threading.BrokenBarrierError:
            if self._broken:
                raise RunError("another rank ended before this one") from None
            raise RunError(f"a rank waited {self.patience:g} s at a barrier for the others") from None

    def gather(self, rank: int, value: Any) -> list[Any]:
        self._board[rank] = value
        self.barrier()
        gathered = list(self._board)
        self.barrier()
        return gathered

    def post(self, sender: int, receiver: int, array: Array) -> None:
        with self._arrival:
            self._mail[sender, receiver].append(array)
            self._arrival.notify_all()

    def collect(self, sender: int, receiver: int) -> Array:
        deadline = time.monotonic() + self.patience
        with self._arrival:
            box = self._mail[sender, receiver]
            while not box:
                if self._broken or not self._arrival.wait(deadline - time.monotonic()):
                    raise RunError(f"no message from rank {sender} to rank {receiver} arrived")
            return box.popleft()

    def fail(self) -> None:
        with self._arrival:
            self._broken = True
            self._arrival.notify_all()
        self._barrier.abort()


class _Mail:
    def __init__(self, comm: SimulatedComm, receives: Sequence[Message]) -> None:
        self._comm, self._receives = comm, receives

    def wait(self) -> None:
        for peer, array in self._receives:
            sent = self._comm.hub.collect(peer, self._comm.rank)
            if sent.nbytes != array.nbytes:
                raise RunError(
                    f"rank {peer} sent {sent.nbytes} bytes, rank {self._comm.rank} expected {array.nbytes}"
                )
            as_bytes(array)[...] = as_bytes(sent)


class SimulatedCounters:
    """`runner.comm.api.Counters` that `size` threads share."""

    def __init__(self, size: int) -> None:
        self._values, self._lock = [0] * size, threading.Lock()

    def take(self, owner: int) -> int:
        with self._lock:
            self._values[owner] += 1
            return self._values[owner] - 1

    def read(self) -> list[int]:
        with self._lock:
            return list(self._values)

    def poke(self) -> None:
        pass

    def close(self) -> None:
        pass


class SimulatedComm:
    """One rank of a Hub; without a hub, the only rank of its world."""

    label = "threads of one process"
    library = ""

    def __init__(self, hub: Hub | None = None, rank: int = 0) -> None:
        self.hub = hub or Hub(1)
        self.rank, self.size = rank, self.hub.size

    def barrier(self) -> None:
        self.hub.barrier()

    def broadcast(self, value: Any) -> Any:
        return self.hub.gather(self.rank, value)[0]

    def allgather(self, value: Any) -> list[Any]:
        return self.hub.gather(self.rank, value)

    def counters(self) -> SimulatedCounters:
        counters: SimulatedCounters = self.broadcast(SimulatedCounters(self.size))  # rank 0's
        return counters

    def split(self, color: int, key: int = 0) -> SimulatedComm:
        said = self.allgather((color, key))
        members = [rank for rank, (other, _) in enumerate(said) if other == color]
        members.sort(key=lambda rank: said[rank][1])
        first = self.rank == members[0]
        hubs = self.allgather(Hub(len(members), self.hub.patience) if first else None)
        return SimulatedComm(hubs[members[0]], members.index(self.rank))

    def shared_memory_size(self) -> int | None:
        return self.size

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> _Mail:
        for _, array in [*sends, *receives]:
            check_contiguous(array)
        for peer, array in sends:
            self.hub.post(self.rank, peer, array.copy())
        return _Mail(self, receives)

    def all_reduce(self, array: Array, operation: Operation) -> None:
        if self.size == 1:  # the lone rank's array may also be a device array
            return
        contributions = self.hub.gather(self.rank, array.copy())
        array[...] = REDUCE[operation].reduce(contributions, axis=0, dtype=array.dtype)

    def abort(self, status: int) -> None:
        self.hub.fail()

    def close(self) -> None:
        pass


def run_ranks(size: int, function: Callable[[SimulatedComm], Result], patience: float = 60.0) -> list[Result]:
    """Call `function(comm)` on `size` simulated ranks at once; their results in rank order.

    The first exception of any rank ends all of them and is raised here.
    """
    hub = Hub(size, patience)
    results: list[Any] = [None] * size
    failures: list[BaseException] = []

    def rank_main(rank: int) -> None:
        try:
            results[rank] = function(SimulatedComm(hub, rank))
        except BaseException as failure:
            failures.append(failure)
            hub.fail()

    threads = [threading.Thread(target=rank_main, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results
