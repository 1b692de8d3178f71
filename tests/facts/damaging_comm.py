"""Ranks as threads between which one message is damaged on its way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrun.runner.comm.api import Message, Operation, as_bytes
from meshrun.runner.comm.threads import ThreadComm, ThreadHub

TRAILER = 24  # bytes of a checksum's message, which is not damaged


class DamagingComm(ThreadComm):
    """Damages what `sender` sends to `receiver`: the message `number` of those of at least `least` bytes.

    fault: "bit" flips one, "old" delivers the one before of the same length in its place. With "result",
    it is the all-reduction `number` whose result has a flipped bit on rank `receiver`.
    """

    def __init__(
        self,
        hub: ThreadHub,
        rank: int,
        fault: str,
        *,
        number: int = 2,
        sender: int = 0,
        receiver: int = 1,
        least: int = TRAILER + 1,
    ) -> None:
        super().__init__(hub, rank)
        self.fault, self.number, self.pair, self.least = fault, number, (sender, receiver), least
        self._count = 0
        self._before: dict[int, Any] = {}  # the last message of each length

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Any:
        return super().exchange([(peer, self._sent(peer, array)) for peer, array in sends], receives)

    def _sent(self, peer: int, array: Any) -> Any:
        if (self.rank, peer) != self.pair or array.nbytes < self.least:
            return array
        self._count += 1
        before = self._before.get(array.nbytes)
        self._before[array.nbytes] = array.copy()
        if self._count != self.number or self.fault not in ("bit", "old"):
            return array
        if self.fault == "old":
            return before
        damaged = array.copy()
        as_bytes(damaged)[-2] ^= 4
        return damaged

    def all_reduce(self, array: Any, operation: Operation) -> None:
        super().all_reduce(array, operation)
        if self.fault == "result" and self.rank == self.pair[1] and array.dtype != np.uint64:
            self._count += 1
            if self._count == self.number:
                as_bytes(array)[-1] ^= 1
