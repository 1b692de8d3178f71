"""Device arrays into which other ranks of the host store or copy, and launches of kernels that store."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from meshrun.runner.comm.api import Arrays, Control
from meshrun.runner.comm.peer_memory import PAGE, PeerMemory, Unreachable
from meshrun.runner.device.api import Device, Mark
from meshrun.runner.device.cuda import kernel
from meshrun.runner.device.raw.cuda_memory import Box
from meshrun.runner.device.raw.memory import Memory
from meshrun.runner.errors import MeshrunError, first_line
from meshrun.runner.region import Array, Shape

BEFORE_KERNELS = -5  # priority of a stream; CUDA takes the highest that there is


class PeerArrays:
    """Arrays of this rank's GPU and, once opened, the addresses of its neighbours' arrays.

    control: all ranks. devices: of each rank, all of this host.
    """

    def __init__(self, control: Control, devices: Sequence[Device]) -> None:
        self._control, self._devices = control, devices
        self._gpu = devices[control.rank].index

    @functools.cached_property
    def _box(self) -> Box:
        return Box()

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

    def bytes_of(self, array: Array, first: int, count: int) -> Array:
        """Return bytes of the memory that an array lies in, counted from its first element; a view.

        They may belong to what lies between the array's rows.
        """
        return cupy.ndarray((count,), np.uint8, array.data + first)

    def upload(self, table: np.ndarray[Any, Any]) -> Array:
        return cupy.asarray(table)

    def kernel(self, path: Path, name: str) -> Callable[..., None]:
        """Compile a kernel; call the result with (grid, block, arguments)."""
        return kernel(path, name)


class PeerCopies:
    """A stream of copies from this GPU. Kernels stay in the caller's stream.

    arrays: of all ranks.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays, self._word = arrays, cupy.zeros(1, cupy.float32)
        self._stream = cupy.cuda.Stream(non_blocking=True, priority=BEFORE_KERNELS)
        self._given = cupy.cuda.Event(disable_timing=True)  # to the caller's stream, before the last `follow`

    def follow(self) -> None:
        """Let later copies wait for all that the caller's stream has been given."""
        self._given.record(cupy.cuda.get_current_stream())
        self._stream.wait_event(self._given)

    def rows(self, target: int, source: int, pitches: tuple[int, int], width: int, rows: int) -> None:
        """Copy `rows` rows of `width` bytes. target, source: addresses; pitches: bytes between their rows."""
        ends, kind = (target, pitches[0], source, pitches[1]), cupy.cuda.runtime.memcpyDefault
        cupy.cuda.runtime.memcpy2DAsync(*ends, width, rows, kind, self._stream.ptr)

    @contextmanager
    def issuing(self) -> Iterator[None]:
        """Issue what the block does to the copies' stream."""
        with self._stream:
            yield

    def mark(self) -> Mark:
        """Return a mark that is passed after all copies so far of this rank."""
        return _event(self._stream)

    def arrived(self) -> Mark:
        """Return a mark that is passed after all copies so far of all ranks. Collective."""
        with self.issuing():
            self._arrays.all_reduce(self._word, "max")
        return self.mark()

    def wait(self, mark: Mark) -> None:
        """Let later work of the caller's stream wait for `mark`."""
        cupy.cuda.get_current_stream().wait_event(mark)


def _event(stream: cupy.cuda.Stream) -> cupy.cuda.Event:
    event = cupy.cuda.Event(disable_timing=True)
    event.record(stream)
    return event
