"""Device arrays between ranks through host memory and MPI, for ranks that share a GPU (NCCL refuses
these)."""

from __future__ import annotations

from collections.abc import Sequence

from meshrun.runner.comm.api import Control, Message, Operation, Pending
from meshrun.runner.device.api import Backend
from meshrun.runner.region import Array


class _Staged:
    def __init__(self, backend: Backend, pending: Pending, landings: list[tuple[Array, Array]]) -> None:
        self._backend, self._pending, self._landings = backend, pending, landings

    def progress(self) -> None:
        self._pending.progress()

    def wait(self) -> None:
        self._pending.wait()
        for host, device in self._landings:
            self._backend.upload(host, device)


class StagedComm:
    """Same calls as `nccl_transfers.NcclComm`; every array is copied twice more."""

    label = "staged through host memory (ranks share a GPU, which NCCL refuses), MPI"
    capturable = False
    peer_slots = None
    is_open = True

    def __init__(self, control: Control, backend: Backend) -> None:
        self._control, self._backend = control, backend

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> _Staged:
        outgoing = [(peer, self._to_host(array)) for peer, array in sends]
        landings = [(self._backend.host_empty(array.shape, array.dtype), array) for _, array in receives]
        incoming = [(peer, host) for (peer, _), (host, _) in zip(receives, landings, strict=True)]
        return _Staged(self._backend, self._control.exchange(outgoing, incoming), landings)

    def all_reduce(self, array: Array, operation: Operation) -> None:
        host = self._to_host(array)
        self._control.all_reduce(host, operation)
        self._backend.upload(host, array)

    def _to_host(self, array: Array) -> Array:
        host = self._backend.host_empty(array.shape, array.dtype)
        self._backend.download(array, host)
        self._backend.synchronize()
        return host

    def close(self) -> None:
        pass
