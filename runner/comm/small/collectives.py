"""All-reduce and all-to-all of a few KiB between GPUs of one host, without NCCL: kernels/small.cu."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakSet

import numpy as np

from meshrun.runner.comm.api import Control, Operation
from meshrun.runner.comm.peer_memory import Unreachable
from meshrun.runner.device.api import Backend
from meshrun.runner.errors import RunError
from meshrun.runner.region import Array

if TYPE_CHECKING:
    from meshrun.runner.comm.peer_arrays import DeviceTables, PeerArrays

LOGGER = logging.getLogger(__name__)
KERNELS = Path(__file__).parent / "kernels" / "small.cu"
SLOTS = KERNELS.with_name("slots.cuh")
MOST_RANKS, PAIRS, WARP = 8, 512, 32  # as in kernels/small.cu; threads of a warp
PAIR, SLOT = 8, 16  # bytes of cells of a slot, and of the slot
CAPACITY = 256 << 10  # bytes of an array, or for each rank; also what a rank sends before NCCL is faster
PATIENCE = 1800.0  # seconds that a kernel waits for another rank, whose host may do work of its own
TYPES = {
    "float32": "float", "float64": "double", "int32": "int", "uint32": "unsigned", "int64": "i64",
    "uint64": "u64",
}  # fmt: skip
UNITS = {8: "u64", 4: "unsigned", 2: "unsigned short", 1: "unsigned char"}
OPERATIONS = {"sum": "Sum", "max": "Max", "min": "Min"}
MEMBERS = np.dtype(
    [
        ("slots", np.uint64, (MOST_RANKS,)), ("own", np.uint64), ("rank", np.int64), ("capacity", np.int64),
        ("state", np.uint64), ("numbers", np.uint64), ("failure", np.uint64), ("patience", np.uint64),
    ]
)  # fmt: skip


class SmallCollectives:
    """Collectives of the GPUs of one host, each by one kernel in the current stream.

    A CUDA graph can hold them. All ranks make the same calls, in the same order, always in one stream.

    Parameters
    ----------
    control : Control
        All ranks: 2 to `MOST_RANKS`.
    backend : Backend
        This rank's GPU.
    tables : DeviceTables
        Compiles and launches kernels.
    peers : PeerArrays
        GPU memory that the other ranks can open.
    patience : float
        Seconds that a kernel waits for another rank.

    Attributes
    ----------
    members : numpy.ndarray
        What kernels take, by value, that use the slots themselves (`reduce_words` of kernels/slots.cuh).

    Raises
    ------
    Unreachable
        On the ranks that cannot open another rank's memory. Then `close` is the only method to call.
    """

    known: ClassVar[WeakSet[SmallCollectives]] = WeakSet()

    def __init__(
        self,
        control: Control,
        backend: Backend,
        tables: DeviceTables,
        peers: PeerArrays,
        patience: float = PATIENCE,
    ) -> None:
        self._control, self._peers, self._patience = control, peers, patience
        rank, size, pairs = control.rank, control.size, CAPACITY // PAIR
        self._failure = backend.host_empty((1,), np.dtype(np.uint64))
        self._failure.fill(0)
        # Slots with the flag 0, which no operation has; the kernels' failure and counts. Used by address.
        self._slots = peers.empty((2 * size * pairs * SLOT,), np.dtype(np.uint8))
        self._slots.fill(0)
        self._state = tables.upload(np.zeros(3, np.uint64))
        self._numbers = tables.upload(np.zeros(pairs // PAIRS, np.uint64))
        backend.synchronize()  # before another rank knows the slots
        reached = peers.open([self._slots], [peer for peer in range(size) if peer != rank])
        members, own = np.zeros((), MEMBERS), tables.address(self._slots)
        members["slots"][:size] = [own if peer == rank else reached[peer][0] for peer in range(size)]
        members["own"], members["rank"], members["capacity"] = own, rank, pairs
        members["state"], members["numbers"] = tables.address(self._state), tables.address(self._numbers)
        members["failure"], members["patience"] = self._failure.ctypes.data, int(patience * 1e9)
        self.members, self._address = members, tables.address
        self._kernel = functools.cache(functools.partial(tables.kernel, KERNELS))
        self.known.add(self)

    def all_reduce(self, array: Array, operation: Operation) -> None:
        """Reduce contiguous arrays that are small (`is_small`) elementwise, in place. Collective.

        The ranks' cells are combined in rank order: the bits are the same on all ranks, in every call.
        """
        words = TYPES[array.dtype.name], OPERATIONS[operation], str(self._control.size)
        arguments = np.uint64(self._address(array)), np.int64(array.size)
        self._launch(f"all_reduce<{', '.join(words)}>", array.nbytes, *arguments)

    def all_to_all(self, source: Array, target: Array) -> None:
        """Send each rank its part of a contiguous array, and receive theirs in rank order. Collective.

        Parameters
        ----------
        source, target : array
            Of equal shape and dtype, as many equal parts as ranks, each of 1 to `CAPACITY` bytes. They may
            not overlap.
        """
        nbytes = source.nbytes // self._control.size
        ends = self._address(source), self._address(target)
        unit = next(unit for unit in UNITS if not any(value % unit for value in (nbytes, *ends)))
        arguments = *map(np.uint64, ends), np.int64(nbytes // unit)
        self._launch(f"all_to_all<{UNITS[unit]}, {self._control.size}>", nbytes, *arguments)

    def _launch(self, name: str, nbytes: int, *arguments: Any) -> None:
        pairs = -(-nbytes // PAIR)
        blocks = -(-pairs // PAIRS)
        threads = PAIRS if blocks > 1 else -(-pairs // WARP) * WARP
        self._kernel(name)((blocks,), (threads,), (self.members, *arguments))

    @property
    def failure(self) -> RunError | None:
        """The error of a kernel that has waited in vain for another rank: the cause of later CUDA errors."""
        if not self._failure[0]:
            return None
        rank, peer = self._control.rank, int(self._failure[0]) - 1
        return RunError(
            f"rank {rank} waited in vain for rank {peer} in a collective",
            got=f"nothing from rank {peer} in {self._patience:g} s",
            hint=f"the log of rank {peer}",
        )

    def close(self) -> None:
        """Close the other ranks' memory; all operations must be done. Collective."""
        self.known.discard(self)
        self._peers.close()


def is_small(array: Array, operation: Operation, ranks: int) -> bool:
    """Return whether so many ranks reduce such an array here: the same on all of them."""
    sent = array.nbytes * max(ranks - 1, 1)
    kind = array.dtype.name if 0 < sent <= CAPACITY else ""
    # Maxima of floats are NCCL's, which says what becomes of a NaN.
    return kind in TYPES and (operation == "sum" or (operation in OPERATIONS and array.dtype.kind in "iu"))


def open_small(control: Control, backend: Backend) -> SmallCollectives | None:
    """Return collectives of GPUs that reach each other's memory; None if these do not. Collective.

    Parameters
    ----------
    control : Control
        The ranks.
    backend : Backend
        This rank's GPU.
    """
    from meshrun.runner.comm.peer_arrays import DeviceTables, PeerArrays

    known = control.allgather((backend.device, control.shared_memory_size()))
    devices, sharing = [device for device, _ in known], {size for _, size in known}
    distinct = len({device.uuid for device in devices}) == control.size
    if control.size > MOST_RANKS or sharing != {control.size} or not distinct:
        return None
    peers, opened = PeerArrays(control, devices), None
    if any(control.allgather(peers.problem())):
        return None
    try:
        opened = SmallCollectives(control, backend, DeviceTables(), peers)
    except Unreachable as problem:
        LOGGER.debug("no small collectives: %s", problem)
    if all(control.allgather(opened is not None)):
        return opened
    peers.close()
    return None


def failure_of_collectives() -> RunError | None:
    """Return the error of this process's collectives that have waited in vain; None if none has."""
    return next(filter(None, (one.failure for one in SmallCollectives.known)), None)
