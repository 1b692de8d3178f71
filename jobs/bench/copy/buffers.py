"""Memory of transfers: of this process and, through CUDA IPC, of the host's other processes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from meshrun.jobs.bench.copy.cases import Case, CopyTransfer, MemoryPlace
from meshrun.jobs.bench.copy.engines import UNIT
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.peer_memory import PeerMemory, Unreachable, allocate_exportable
from meshrun.runner.device.raw.memory import GpuProperties, Kind, Memory
from meshrun.runner.errors import UserError

if TYPE_CHECKING:
    from meshrun.runner.device.raw.cuda_memory import Box

End = Literal["source", "target"]
ENDS: tuple[End, ...] = ("source", "target")
LARGEST_SHARE = {"gpu": 0.9, "host": 0.5}  # of the free memory


@dataclass(frozen=True)
class MatrixGpu:
    """A GPU of the matrix: the rank of the host's group that has it, and the GPU as that rank sees it."""

    rank: int
    gpu: GpuProperties


@dataclass(frozen=True)
class BoundTransfer:
    """A transfer and its memory on this rank.

    number: index among the transfers to bind. own: the ends that this rank allocated, fills and checks. ends:
    both ends as mapped by the rank that moves the bytes; empty on the others.
    """

    number: int
    transfer: CopyTransfer
    nbytes: int
    own: dict[End, Memory] = field(default_factory=dict)
    ends: dict[End, Memory] = field(default_factory=dict)


@dataclass(frozen=True)
class Binding:
    """transfers: those that can run. unavailable: reasons of the others, by number; the same on all ranks."""

    transfers: tuple[BoundTransfer, ...]
    unavailable: dict[int, str]


class TransferBuffers:
    """Memory of a host's ranks, reused by one set of transfers after another; kept until the box closes.

    All methods are collective over `group`, the host's ranks. huge_pages: of host memory. near: host memory
    is near its GPU.
    """

    def __init__(
        self,
        group: Control,
        box: Box,
        gpus: Sequence[MatrixGpu],
        *,
        huge_pages: bool = False,
        near: bool = True,
    ) -> None:
        self.group, self.box, self.gpus, self._near = group, box, gpus, near
        self._host_kind: Kind = "huge" if huge_pages else "pinned"
        self._idle: dict[tuple[MemoryPlace, int], list[Memory]] = defaultdict(list)
        self._peers = PeerMemory(group, box)

    def rank_of(self, gpu: int) -> int:
        return self.gpus[gpu].rank

    def is_here(self, gpu: int) -> bool:
        """Whether this rank has the GPU."""
        return self.rank_of(gpu) == self.group.rank

    @contextmanager
    def bound(
        self, transfers: Sequence[CopyTransfer], size: int, ends: Sequence[End] = ENDS
    ) -> Iterator[Binding]:
        """Provide memory for these ends of all transfers at once. size: bytes of a transfer of factor 1."""
        bound = [
            BoundTransfer(number, transfer, transfer.factor * size)
            for number, transfer in enumerate(transfers)
        ]
        unavailable = self._without_access(transfers)
        try:
            for one in bound:
                for end in ends:
                    place = getattr(one.transfer, end)
                    if self.is_here(place.gpu):
                        one.own[end] = self._take(place, one.nbytes)
            unavailable |= self._reach(bound, ends, unavailable)
            yield Binding(tuple(one for one in bound if one.number not in unavailable), unavailable)
        finally:
            for one in bound:
                for end, memory in one.own.items():
                    self._idle[getattr(one.transfer, end), one.nbytes].append(memory)

    def close(self) -> None:
        """Unmap other ranks' memory, before they free it."""
        self._peers.close()

    def _take(self, place: MemoryPlace, nbytes: int) -> Memory:
        idle = self._idle[place, nbytes]
        if idle:
            return idle.pop()
        gpu = self.gpus[place.gpu].gpu.index
        if place.kind == "host":
            return self.box.allocate(self._host_kind, nbytes, gpu, near=self._near)
        return allocate_exportable(self.box, nbytes, gpu)

    def _without_access(self, transfers: Sequence[CopyTransfer]) -> dict[int, str]:
        """Return the transfers whose GPU has no peer access to the other GPU, with the reason, by number."""
        mine = {}
        for number, transfer in enumerate(transfers):
            if transfer.between_gpus and self.is_here(transfer.gpu):
                source, target = transfer.source.gpu, transfer.target.gpu
                other = target if source == transfer.gpu else source
                if not self._connected(transfer.gpu, other):
                    mine[number] = f"GPU {transfer.gpu} has no peer access to GPU {other}"
        return self._merged(mine)

    def _connected(self, gpu: int, other: int) -> bool:
        index = self.gpus[gpu].gpu.index
        uuid = self.gpus[other].gpu.uuid
        seen = next((one.index for one in self.box.gpus if one.uuid == uuid), None)
        if seen is None:
            return True  # CUDA IPC opens the memory of invisible GPUs too, or fails with a reason
        if not self.box.connect(index, seen):
            return False
        # If both GPUs are this process's, connect both ways: a copy engine of either may do the copy.
        return not self.is_here(other) or self.box.connect(seen, index)

    def _reach(
        self, bound: Sequence[BoundTransfer], ends: Sequence[End], unavailable: dict[int, str]
    ) -> dict[int, str]:
        """Fill in `ends` on the ranks that move bytes; returns the reasons of failures, by number."""
        foreign = [
            (one.number, end)
            for one in bound
            for end in ends
            if one.number not in unavailable
            and self.rank_of(getattr(one.transfer, end).gpu) != self.rank_of(one.transfer.gpu)
        ]
        own = {(number, end): bound[number].own[end] for number, end in foreign if end in bound[number].own}
        handles = self._peers.publish(own) if foreign else {}
        failed: dict[int, str] = {}
        for one in bound:
            if one.number in unavailable or not self.is_here(one.transfer.gpu):
                continue
            one.ends.update(one.own)
            for end in ends:
                if end in one.own:
                    continue
                handle = handles[one.number, end]
                # Its owner may be invisible here.
                gpu = self.gpus[one.transfer.gpu].gpu.index
                if handle.problem:
                    failed[one.number] = f"{one.transfer}: its memory cannot be exported: {handle.problem}"
                    continue
                try:
                    one.ends[end] = self._peers.open(handle, gpu)
                except Unreachable as reason:
                    place = getattr(one.transfer, end)
                    failed[one.number] = f"{one.transfer}: memory of {place} cannot be mapped: {reason}"
        return self._merged(failed) if foreign else {}

    def _merged(self, mine: dict[int, str]) -> dict[int, str]:
        whole: dict[int, str] = {}
        for some in self.group.allgather(mine):
            whole |= some
        return dict(sorted(whole.items()))


def gpus_of(group: Control, box: Box, index: int) -> tuple[MatrixGpu, ...]:
    """Return the GPUs of a host's matrix: all of a single rank, else GPU `index` of each rank's box."""
    mine = box.gpus if group.size == 1 else [box.gpus[index]]
    gathered = group.allgather(list(mine))
    return tuple(MatrixGpu(rank, gpu) for rank, gpus in enumerate(gathered) for gpu in gpus)


def buffers_needed(cases: Sequence[Case], gpus: int) -> dict[MemoryPlace, int]:
    """Return the most buffers of factor 1 that each place holds; memory is kept from case to case."""
    most: Counter[tuple[MemoryPlace, int]] = Counter()
    for case in cases:
        for _, _, transfers in case.cells(gpus) if case.engine != "chase" else ():
            held = Counter((place, one.factor) for one in transfers for place in (one.source, one.target))
            most |= held
    total: Counter[MemoryPlace] = Counter()
    for (place, factor), count in most.items():
        total[place] += factor * count
    return dict(total)


def fitting_size(size: int, memories: Sequence[tuple[int, float]]) -> int:
    """Halve `size` until it fits. memories: of each memory (number of buffers, bytes available for them).

    Raises UserError if not even one unit fits.
    """
    fits = size
    while any(count * fits > limit for count, limit in memories):
        fits = fits // 2 // UNIT * UNIT
        if not fits:
            raise UserError("not enough memory for buffers", got=f"{size:,} bytes", everywhere=True)
    return fits
