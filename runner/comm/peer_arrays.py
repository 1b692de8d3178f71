"""Device arrays into which kernels of other ranks of the host store, and launches of such kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from runner.comm.api import Control
from runner.comm.peer_memory import PAGE, PeerMemory, Unreachable
from runner.device.api import Device
from runner.device.cuda import kernel
from runner.device.raw.cuda_memory import CudaBox
from runner.device.raw.memory import Memory
from runner.errors import MeshrunError, first_line
from runner.region import Array, Shape


class PeerArrays:
    """Arrays of this rank's GPU and, once opened, the addresses of its neighbours' arrays.

    control: all ranks. devices: of each rank, all of this host.
    """

    def __init__(self, control: Control, devices: Sequence[Device]) -> None:
        self._control, self._devices = control, devices
        self._gpu = devices[control.rank].index

    @functools.cached_property
    def _box(self) -> CudaBox:
        return CudaBox()

    @functools.cached_property
    def _shared(self) -> PeerMemory:
        return PeerMemory(self._control, self._box)

    def problem(self) -> str:
        """Return why this process cannot look for the GPUs that it reaches; "" if it can. Not collective."""
        try:
            assert self._box is not None
        except (RuntimeError, OSError, MeshrunError) as reason:
            return f"rank {self._control.rank} cannot look for GPUs: {first_line(reason)}"
        return ""

    def empty(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Return an uninitialised array in memory of its own, which other processes can open."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        memory = cupy.cuda.Memory(max(-(-size // PAGE), 1) * PAGE)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))

    def open(self, arrays: Sequence[Array], peers: Collection[int]) -> dict[int, list[int]]:
        """Return the addresses of the same arrays of `peers`, for this rank's kernels. Collective.

        arrays: made by `empty`. Raises Unreachable, on this rank only; then `close` is the only method that
        may be called, on all ranks.
        """
        own = {
            (self._control.rank, number): Memory(array.data.ptr, array.nbytes, "device", self._gpu)
            for number, array in enumerate(arrays)
        }
        handles = self._shared.publish(own)
        return {
            peer: [self._open(handles[peer, number], peer) for number in range(len(arrays))] for peer in peers
        }

    def _open(self, handle: Any, peer: int) -> int:
        indices = {gpu.uuid: gpu.index for gpu in self._box.gpus}
        index = indices.get(self._devices[peer].uuid)
        where = f"rank {self._control.rank}"
        if index is None:
            raise Unreachable(f"{where}'s process does not see rank {peer}'s GPU")
        try:
            if not self._box.connect(self._gpu, index):
                raise Unreachable("no peer access between their GPUs")
            return self._shared.open(handle, self._gpu, index).address
        except RuntimeError as reason:
            raise Unreachable(f"{where} cannot open rank {peer}'s memory: {first_line(reason)}") from reason

    def close(self) -> None:
        """Unmap the neighbours' arrays. Collective."""
        self._shared.close()


class DeviceTables:
    """What a kernel of a table of rows needs: addresses, tables on the device, and launches."""

    def address(self, array: Array) -> int:
        address: int = array.data.ptr
        return address

    def upload(self, table: np.ndarray[Any, Any]) -> Array:
        return cupy.asarray(table)

    def kernel(self, path: Path, name: str) -> Callable[..., None]:
        """Compile a kernel; call the result with (grid, block, arguments)."""
        return kernel(path, name)
