"""The memory that flows are between: of this process, and of the host's other processes through CUDA IPC."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from jobs.bench.copy.patterns import Flow, Place
from runner import Box, Control, Gpu, Memory

End = Literal["source", "target"]
PAGE = 2 << 20  # bytes that cudaMalloc takes from the driver at a time
ENDS: tuple[End, ...] = ("source", "target")


@dataclass(frozen=True)
class Seat:
    """A GPU of the matrix: the rank of the host's group that has it, and the GPU as that rank sees it."""

    rank: int
    gpu: Gpu


@dataclass(frozen=True)
class Lane:
    """A flow and its memory on this rank.

    number: among the flows asked for. own: the ends in this rank's keeping, to be filled and checked here.
    ends: both, as the rank that moves the bytes reaches them; empty on the others.
    """

    number: int
    flow: Flow
    nbytes: int
    own: dict[End, Memory] = field(default_factory=dict)
    ends: dict[End, Memory] = field(default_factory=dict)


@dataclass(frozen=True)
class Lent:
    """lanes: the flows that can be run. barred: why others cannot, by their numbers; alike on all ranks."""

    lanes: tuple[Lane, ...]
    barred: dict[int, str]


class Lender:
    """Memory of a host's ranks for one flow after another; kept for the next one, until the box is closed.

    All methods are collective over `group`, the host's ranks.
    """

    def __init__(self, group: Control, box: Box, seats: Sequence[Seat]) -> None:
        self.group, self.box, self.seats = group, box, seats
        self._idle: dict[tuple[Place, int], list[Memory]] = defaultdict(list)
        self._handles: dict[int, bytes] = {}  # by address, one for as long as the memory is allocated
        self._attached: dict[bytes, Memory] = {}

    def rank_of(self, gpu: int) -> int:
        return self.seats[gpu].rank

    def here(self, gpu: int) -> bool:
        """Whether this rank has the GPU."""
        return self.rank_of(gpu) == self.group.rank

    @contextmanager
    def lent(self, flows: Sequence[Flow], size: int, ends: Sequence[End] = ENDS) -> Iterator[Lent]:
        """Memory for these ends of all flows at the same time; size: bytes of a flow of factor 1."""
        lanes = [Lane(number, flow, flow.factor * size) for number, flow in enumerate(flows)]
        barred = self._barred(flows)
        try:
            for lane in lanes:
                for end in ends:
                    place = getattr(lane.flow, end)
                    if self.here(place.gpu):
                        lane.own[end] = self._take(place, lane.nbytes)
            barred |= self._reach(lanes, ends, barred)
            yield Lent(tuple(lane for lane in lanes if lane.number not in barred), barred)
        finally:
            for lane in lanes:
                for end, memory in lane.own.items():
                    self._idle[getattr(lane.flow, end), lane.nbytes].append(memory)

    def close(self) -> None:
        """Give other ranks' memory back, before they release it."""
        for memory in self._attached.values():
            self.box.release(memory)
        self._attached.clear()
        self.group.barrier()

    def _take(self, place: Place, nbytes: int) -> Memory:
        idle = self._idle[place, nbytes]
        if idle:
            return idle.pop()
        gpu = self.seats[place.gpu].gpu.index
        if place.kind == "host":
            return self.box.allocate("pinned", nbytes, gpu)
        return lendable(self.box, nbytes, gpu)

    def _barred(self, flows: Sequence[Flow]) -> dict[int, str]:
        """Flows whose GPU does not reach the other's memory, as the ranks that move them see it."""
        mine = {}
        for number, flow in enumerate(flows):
            if flow.between_gpus and self.here(flow.gpu):
                other = flow.target.gpu if flow.source.gpu == flow.gpu else flow.source.gpu
                if not self._connected(flow.gpu, other):
                    mine[number] = f"GPU {flow.gpu} has no peer access to GPU {other}"
        return self._together(mine)

    def _connected(self, gpu: int, other: int) -> bool:
        index = self.seats[gpu].gpu.index
        uuid = self.seats[other].gpu.uuid
        seen = next((one.index for one in self.box.gpus if one.uuid == uuid), None)
        if seen is None:
            return True  # CUDA IPC opens the memory of GPUs that are not visible too, or says why not
        if not self.box.connect(index, seen):
            return False
        # Both ways where both GPUs are this process's, as a copy engine of either may do the copy.
        return not self.here(other) or self.box.connect(seen, index)

    def _reach(self, lanes: Sequence[Lane], ends: Sequence[End], barred: dict[int, str]) -> dict[int, str]:
        """Fill in `ends` on the ranks that move bytes; the flows for which that failed."""
        foreign = [
            (lane.number, end)
            for lane in lanes
            for end in ends
            if lane.number not in barred
            and self.rank_of(getattr(lane.flow, end).gpu) != self.rank_of(lane.flow.gpu)
        ]
        handles: dict[tuple[int, End], bytes] = {}
        failed: dict[int, str] = {}
        if foreign:
            exported = {}
            for number, end in foreign:
                if end in lanes[number].own:
                    with _failing(failed, lanes[number], "its memory cannot be exported"):
                        exported[number, end] = self._exported(lanes[number].own[end])
            for some in self.group.allgather(exported):
                handles |= some
        for lane in lanes:
            if lane.number in barred or not self.here(lane.flow.gpu):
                continue
            lane.ends.update(lane.own)
            for end in ends:
                if end not in lane.own and (lane.number, end) in handles:
                    with _failing(failed, lane, f"memory of {getattr(lane.flow, end)} cannot be mapped"):
                        lane.ends[end] = self._attach(handles[lane.number, end], lane)
        return self._together(failed) if foreign else {}

    def _exported(self, memory: Memory) -> bytes:
        if memory.address not in self._handles:
            self._handles[memory.address] = self.box.export(memory)
        return self._handles[memory.address]

    def _attach(self, handle: bytes, lane: Lane) -> Memory:
        if handle not in self._attached:
            # Mapped for the GPU that moves the bytes, as peers' memory is; its owner may be invisible here.
            index = self.seats[lane.flow.gpu].gpu.index
            with self.box.on(index):
                self._attached[handle] = self.box.attach(handle, lane.nbytes, index)
        return self._attached[handle]

    def _together(self, mine: dict[int, str]) -> dict[int, str]:
        whole: dict[int, str] = {}
        for some in self.group.allgather(mine):
            whole |= some
        return dict(sorted(whole.items()))


@contextmanager
def _failing(failed: dict[int, str], lane: Lane, what: str) -> Iterator[None]:
    """Note why a lane cannot be run, where CUDA refuses something; its errors are RuntimeErrors."""
    try:
        yield
    except RuntimeError as reason:
        failed[lane.number] = f"{lane.flow}: {what}: {first_line(reason)}"


def lendable(box: Box, nbytes: int, gpu: int) -> Memory:
    """Device memory in whole pages: what shares one with other memory cannot be opened by another process by
    itself.
    """
    return replace(box.allocate("device", -(-nbytes // PAGE) * PAGE, gpu), nbytes=nbytes)


def first_line(reason: Exception) -> str:
    return (str(reason).splitlines() or [""])[0]


def seats_of(group: Control, box: Box, index: int) -> tuple[Seat, ...]:
    """The GPUs of a host's matrix: all that a lone rank sees, else each rank's own, `index` of its box."""
    mine = box.gpus if group.size == 1 else [box.gpus[index]]
    gathered = group.allgather(list(mine))
    return tuple(Seat(rank, gpu) for rank, gpus in enumerate(gathered) for gpu in gpus)
