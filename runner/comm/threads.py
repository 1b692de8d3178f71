"""Ranks as threads of one process, without MPI: for tests, simulations and runs of one rank."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from meshrun.runner.comm.api import UFUNCS, Message, Operation, as_bytes, check_contiguous
from meshrun.runner.comm.recorded import Trail, record_operations
from meshrun.runner.errors import RunError
from meshrun.runner.region import Array

Result = TypeVar("Result")


class ThreadHub:
    """State shared by thread ranks: mailboxes per (sender, receiver), a barrier, a list of gathered values.

    timeout: seconds after which a waiting rank fails, so that a test with a deadlock fails instead of
    hanging.
    """

    def __init__(self, size: int, timeout: float = 60.0) -> None:
        self.size, self.timeout = size, timeout
        self._barrier = threading.Barrier(size)
        self._board: list[Any] = [None] * size
        self._mail: dict[tuple[int, int], deque[Array]] = defaultdict(deque)
        self._arrival = threading.Condition()
        self._broken = False

    def barrier(self) -> None:
        if self.size == 1:
            return
        try:
            self._barrier.wait(self.timeout)
        except threading.BrokenBarrierError:
            if self._broken:
                raise RunError("another rank ended before this one") from None
            raise RunError(f"a rank waited {self.timeout:g} s at a barrier for the others") from None

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
        deadline = time.monotonic() + self.timeout
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
    def __init__(self, comm: ThreadComm, receives: Sequence[Message]) -> None:
        self._comm, self._receives = comm, receives

    def progress(self) -> None:
        pass

    def wait(self) -> None:
        for peer, array in self._receives:
            sent = self._comm.hub.collect(peer, self._comm.rank)
            if sent.nbytes != array.nbytes:
                raise RunError(
                    f"rank {peer} sent {sent.nbytes} bytes, rank {self._comm.rank} expected {array.nbytes}"
                )
            as_bytes(array)[...] = as_bytes(sent)


class ThreadCounters:
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

    def progress(self) -> None:
        pass

    def close(self) -> None:
        pass


class ThreadComm:
    """One rank of a hub; without a hub, the only rank."""

    label = "threads of one process"
    capturable = False
    peer_slots = None
    is_open = True
    library = ""
    trail: Trail | None = None

    def __init__(self, hub: ThreadHub | None = None, rank: int = 0) -> None:
        self.hub = hub or ThreadHub(1)
        self.rank, self.size = rank, self.hub.size

    def barrier(self) -> None:
        self.hub.barrier()

    def broadcast(self, value: Any) -> Any:
        return self.hub.gather(self.rank, value)[0]

    def allgather(self, value: Any) -> list[Any]:
        return self.hub.gather(self.rank, value)

    def counters(self) -> ThreadCounters:
        counters: ThreadCounters = self.hub.gather(self.rank, ThreadCounters(self.size))[0]
        return counters

    def split(self, color: int, key: int = 0) -> ThreadComm:
        gathered = self.hub.gather(self.rank, (color, key))
        members = [rank for rank, (other, _) in enumerate(gathered) if other == color]
        members.sort(key=lambda rank: gathered[rank][1])
        first = self.rank == members[0]
        hubs = self.hub.gather(self.rank, ThreadHub(len(members), self.hub.timeout) if first else None)
        part = ThreadComm(hubs[members[0]], members.index(self.rank))
        if self.trail is not None:
            record_operations(part, self.trail.part(color, members))
        return part

    def shared_memory_size(self) -> int | None:
        return self.size

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> _Mail:
        for _, array in [*sends, *receives]:
            check_contiguous(array)
        for peer, array in sends:
            self.hub.post(self.rank, peer, array.copy())
        return _Mail(self, receives)

    def all_reduce(self, array: Array, operation: Operation) -> None:
        if self.size == 1:  # a single rank's array may also be a device array
            return
        contributions = self.hub.gather(self.rank, array.copy())
        combine = getattr(np, UFUNCS[operation])
        array[...] = combine.reduce(contributions, axis=0, dtype=array.dtype)

    def abort(self, status: int) -> None:
        self.hub.fail()

    def close(self) -> None:
        pass


def run_ranks(size: int, function: Callable[[ThreadComm], Result], timeout: float = 60.0) -> list[Result]:
    """Call `function(comm)` on `size` thread ranks concurrently; returns their results in rank order.

    The first exception of any rank ends all of them and is raised here.
    """
    hub = ThreadHub(size, timeout)
    results: list[Any] = [None] * size
    failures: list[BaseException] = []

    def rank_main(rank: int) -> None:
        try:
            results[rank] = function(ThreadComm(hub, rank))
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
