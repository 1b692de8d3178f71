"""Flows run at the same time: filled, timed as nvbandwidth times them, and what arrived looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import runner
from jobs.bench.copy.buffers import End, Lane, Lender
from jobs.bench.copy.engines import ENGINES, PIECE, SMALL, Engine
from jobs.measure import check, patterns
from jobs.measure.gate import Gate
from jobs.measure.patterns import Copied, Segment, Untouched
from runner import Memory

WARM_UP = 4  # copies behind the gate that are not timed
ELEMENT = "uint64"
WIDTH = 8


@dataclass(frozen=True)
class Wrong:
    """What is wrong in a flow's target. offset: of the first, in bytes. count: of elements of 8 bytes."""

    flow: str
    where: str
    offset: int
    got: str
    expected: str
    count: int

    def __str__(self) -> str:
        return (
            f"{self.flow}: byte {self.offset} of {self.where}: got {self.got}, expected {self.expected}; "
            f"{self.count} wrong elements of {WIDTH} bytes"
        )


@dataclass(frozen=True)
class Moved:
    """One sample, alike on all ranks of the host. nbytes: of a copy of each flow. seconds: of all
    copies of each.

    total: seconds from the beginning until the last flow ended; of several processes the longest.
    """

    nbytes: tuple[int, ...]
    seconds: tuple[float, ...]
    total: float
    wrong: tuple[Wrong, ...]


@dataclass(frozen=True)
class Timed:
    """The marks round one lane's copies."""

    lane: Lane
    stream: Any
    begin: Any
    end: Any


class Mover:
    """Runs flows between memory that `lender` lends. synchronize: waits for fills on the current GPU.

    Methods are collective over the host's ranks.
    """

    def __init__(self, lender: Lender, synchronize: Callable[[], None]) -> None:
        self.lender, self.box, self.group, self.seats = lender, lender.box, lender.group, lender.seats
        self._synchronize = synchronize
        first = next(seat.gpu.index for seat in self.seats if seat.rank == self.group.rank)
        self._gate = Gate(self.box, first)
        self._streams: dict[int, list[Any]] = {}
        self._ready: set[tuple[str, int, bool]] = set()
        self._seed = 0

    def run(self, lanes: Sequence[Lane], kind: str, copies: int, checked: bool) -> Moved:
        """One sample. kind: of ENGINES. Every sample moves other data."""
        engine, seed = ENGINES[kind], self._seed
        self._seed += 1
        mine = [lane for lane in lanes if lane.ends]
        for number, lane in enumerate(mine):
            self._prepare(lane, kind)
            self.stream(self.seats[lane.flow.gpu].gpu.index, number)  # made while no gate is closed
        self.group.barrier()  # what was written to make ready is written
        if checked:
            for lane in lanes:
                self._fill(lane, engine, seed)
        with self._gate.closed():
            self.group.barrier()
            timed, first, last = self._queue(mine, engine, copies)
            self.group.barrier()
        for one in timed:
            self.box.synchronize(one.stream)
        self._gate.check()
        seconds = {one.lane.number: self.box.elapsed(one.begin, one.end) for one in timed}
        total = self.box.elapsed(first, last) if timed else 0.0
        gathered = self.group.allgather((seconds, total))
        known = {number: value for part, _ in gathered for number, value in part.items()}
        return Moved(
            tuple(self._moved(lane, engine) for lane in lanes),
            tuple(known[lane.number] for lane in lanes),
            max(whole for _, whole in gathered),
            self._wrong(lanes, engine, seed) if checked else (),
        )

    def stream(self, gpu: int, number: int) -> Any:
        """One of the streams of the GPU with this CUDA index."""
        streams = self._streams.setdefault(gpu, [])
        while len(streams) <= number:
            streams.append(self.box.stream(gpu))
        return streams[number]

    def _prepare(self, lane: Lane, kind: str) -> None:
        """Load what will be launched: a kernel that is loaded behind a closed gate waits for the gate."""
        gpu = self.seats[lane.flow.gpu].gpu
        small = lane.nbytes < SMALL
        if (kind, gpu.index, small) in self._ready:
            return
        self._ready.add((kind, gpu.index, small))
        stream = self.stream(gpu.index, 0)
        self._gate.hold(gpu.index, stream)
        ENGINES[kind].queue(self.box, gpu, lane.ends["target"], lane.ends["source"], lane.nbytes, 1, stream)
        self.box.synchronize(stream)

    def _queue(self, lanes: Sequence[Lane], engine: Engine, copies: int) -> tuple[list[Timed], Any, Any]:
        """All lanes behind their gates; their marks, and those of the beginning and the end of all."""
        streams = []
        for number, lane in enumerate(lanes):
            gpu = self.seats[lane.flow.gpu].gpu
            stream = self.stream(gpu.index, number)
            self._gate.hold(gpu.index, stream)
            self._copy(lane, engine, WARM_UP, stream)
            streams.append(stream)
        if not lanes:
            return [], None, None
        begins = [self.box.mark(streams[0])]
        for stream in streams[1:]:
            self.box.wait(stream, begins[0])  # all begin when the first one does
            begins.append(self.box.mark(stream))
        timed = []
        for lane, stream, begin in zip(lanes, streams, begins, strict=True):
            self._copy(lane, engine, copies, stream)
            timed.append(Timed(lane, stream, begin, self.box.mark(stream)))
        for one in timed[1:]:
            self.box.wait(streams[0], one.end)
        return timed, begins[0], self.box.mark(streams[0])

    def _copy(self, lane: Lane, engine: Engine, copies: int, stream: Any) -> None:
        gpu = self.seats[lane.flow.gpu].gpu
        engine.queue(self.box, gpu, lane.ends["target"], lane.ends["source"], lane.nbytes, copies, stream)

    def _moved(self, lane: Lane, engine: Engine) -> int:
        return engine.moved(lane.nbytes, self.seats[lane.flow.gpu].gpu)

    def _fill(self, lane: Lane, engine: Engine, seed: int) -> None:
        """The data to be moved where it comes from, poison where it goes to."""
        for end, memory in lane.own.items():
            with self.box.on(memory.gpu):
                array = self.box.array(memory)
                if engine.both_ways:
                    check.fill(array, runner.DATATYPES[ELEMENT], self._expected(lane, engine, seed))
                    _poison_pieces(array, 0 if end == "source" else 1)
                elif end == "source":
                    check.fill(array, runner.DATATYPES[ELEMENT], [_whole(lane, seed)])
                else:
                    check.poison(array)
                self._synchronize()

    def _expected(self, lane: Lane, engine: Engine, seed: int) -> list[Segment]:
        """What the target holds in the end: the data as far as it is moved, and poison still behind that."""
        moved = self._moved(lane, engine)
        rest = lane.nbytes - moved
        return [
            Segment(0, moved // WIDTH, Copied(seed, lane.number)),
            Segment(moved // WIDTH, rest // WIDTH, Untouched()),
        ]

    def _wrong(self, lanes: Sequence[Lane], engine: Engine, seed: int) -> tuple[Wrong, ...]:
        found = []
        for lane in lanes:
            for end, memory in lane.own.items():
                if end == "target" or engine.both_ways:
                    with self.box.on(memory.gpu):
                        wrong = self._look(lane, engine, seed, end, memory)
                    found += [] if wrong is None else [wrong]
        return tuple(one for some in self.group.allgather(found) for one in some)

    def _look(self, lane: Lane, engine: Engine, seed: int, end: End, memory: Memory) -> Wrong | None:
        kind = runner.DATATYPES[ELEMENT]
        wrong = check.verify(self.box.array(memory), kind, self._expected(lane, engine, seed))
        if wrong is None:
            return None
        place = getattr(lane.flow, end)
        digits = 2 * WIDTH
        return Wrong(
            str(lane.flow),
            f"the {end} ({place})",
            wrong.offset * WIDTH,
            f"0x{wrong.got_bits:0{digits}x}",
            f"0x{wrong.expected_bits:0{digits}x}",
            wrong.count,
        )


def _whole(lane: Lane, seed: int) -> Segment:
    return Segment(0, lane.nbytes // WIDTH, Copied(seed, lane.number))


def _poison_pieces(array: Any, parity: int) -> None:
    """Poison the even (0) or odd (1) pieces of PIECE bytes, those that come from the other end."""
    pairs = len(array) // (2 * PIECE)
    array[: 2 * PIECE * pairs].reshape(pairs, 2, PIECE)[:, parity] = patterns.POISON
    rest = array[2 * PIECE * pairs :]
    rest[parity * PIECE : (parity + 1) * PIECE] = patterns.POISON
