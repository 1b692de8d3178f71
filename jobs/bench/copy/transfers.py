"""Run simultaneous transfers: fill sources, time the copies as nvbandwidth does, and verify targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from meshrun.jobs.bench.copy.buffers import BoundTransfer, End, TransferBuffers
from meshrun.jobs.bench.copy.engines import (
    ENGINES,
    PIECE,
    SMALL,
    UNIT,
    Copies,
    TransferEngine,
    grid_of,
)
from meshrun.jobs.measure import check, patterns
from meshrun.jobs.measure.gate import Gate
from meshrun.jobs.measure.patterns import Copied, Segment, Untouched
from meshrun.jobs.measure.timers import ConcurrentEvents, queue_concurrently
from meshrun.runner.comm.collectives.api import DATATYPES
from meshrun.runner.device.raw.memory import GpuProperties, Memory
from meshrun.runner.report.units import counted

WARM_UP = 4  # copies behind the gate that are not timed
ELEMENT = "uint64"
WIDTH = 8  # bytes of an element


@dataclass(frozen=True)
class TransferSample:
    """One sample, the same on all ranks of the host.

    nbytes: of one copy of each transfer. seconds: of all copies of each transfer. total: seconds from the
    start until the last transfer ended; the longest of all processes. mismatches: a sentence for each target
    with wrong data.
    """

    nbytes: tuple[int, ...]
    seconds: tuple[float, ...]
    total: float
    mismatches: tuple[str, ...]


class TransferRunner:
    """Run transfers between `buffers`. synchronize: waits for fills on the current GPU.

    Methods are collective over the host's ranks.
    """

    def __init__(self, buffers: TransferBuffers, synchronize: Callable[[], None]) -> None:
        self.buffers, self.box, self.group, self.gpus = buffers, buffers.box, buffers.group, buffers.gpus
        self._synchronize = synchronize
        first = next(one.gpu.index for one in self.gpus if one.rank == self.group.rank)
        self._gate = Gate(self.box, first)
        self._streams: dict[int, list[Any]] = {}
        self._loaded: set[tuple[str, int, bool]] = set()
        self._seed = 0

    def run(
        self, transfers: Sequence[BoundTransfer], kind: str, copies: int, checked: bool
    ) -> TransferSample:
        """Measure one sample. kind: of ENGINES. Every sample moves different data."""
        engine, seed = ENGINES[kind], self._seed
        self._seed += 1
        mine = [one for one in transfers if one.ends]
        for number, one in enumerate(mine):
            self._load(one, kind)
            self.stream(self.gpu_of(one).index, number)  # created while no gate is closed
        self.group.barrier()  # all warm-up copies are done
        if checked:
            for one in transfers:
                self._fill(one, engine, seed)
        with self._gate.closed():
            self.group.barrier()
            streams, events = self._queue(mine, engine, copies)
            self.group.barrier()
        for stream in streams:
            self.box.synchronize(stream)
        self._gate.check()
        seconds = (
            {one.number: spent for one, spent in zip(mine, events.seconds(), strict=True)} if events else {}
        )
        total = events.total() if events else 0.0
        gathered = self.group.allgather((seconds, total))
        known = {number: value for part, _ in gathered for number, value in part.items()}
        return TransferSample(
            tuple(self._moved(one, engine) for one in transfers),
            tuple(known[one.number] for one in transfers),
            max(whole for _, whole in gathered),
            self._verify(transfers, engine, seed, copies) if checked else (),
        )

    def gpu_of(self, one: BoundTransfer) -> GpuProperties:
        """Return the GPU that moves the bytes."""
        return self.gpus[one.transfer.gpu].gpu

    def stream(self, gpu: int, number: int) -> Any:
        """Return one of the streams of the GPU with this CUDA index."""
        streams = self._streams.setdefault(gpu, [])
        while len(streams) <= number:
            streams.append(self.box.stream(gpu))
        return streams[number]

    def _load(self, one: BoundTransfer, kind: str) -> None:
        """Load the kernels: a first launch behind a closed gate would wait for the gate."""
        gpu = self.gpu_of(one)
        small = one.nbytes < SMALL
        if (kind, gpu.index, small) in self._loaded:
            return
        self._loaded.add((kind, gpu.index, small))
        stream = self.stream(gpu.index, 0)
        self._gate.hold(gpu.index, stream)
        self._copy(one, ENGINES[kind], 1, stream)
        self.box.synchronize(stream)

    def _queue(
        self, transfers: Sequence[BoundTransfer], engine: TransferEngine, copies: int
    ) -> tuple[list[Any], ConcurrentEvents | None]:
        """Queue all transfers behind the gate, each on a stream; returns the streams and their events."""
        streams = []
        for number, one in enumerate(transfers):
            gpu = self.gpu_of(one)
            stream = self.stream(gpu.index, number)
            self._gate.hold(gpu.index, stream)
            self._copy(one, engine, WARM_UP, stream)
            streams.append(stream)
        if not transfers:
            return [], None
        work = [
            partial(self._copy, one, engine, copies, stream)
            for one, stream in zip(transfers, streams, strict=True)
        ]
        return streams, queue_concurrently(self.box, streams, work)

    def _copy(self, one: BoundTransfer, engine: TransferEngine, copies: int, stream: Any) -> None:
        target, source = one.ends["target"], one.ends["source"]
        engine.queue(Copies(self.box, self.gpu_of(one), target, source, one.nbytes, copies, stream))

    def _moved(self, one: BoundTransfer, engine: TransferEngine) -> int:
        return engine.moved(one.nbytes, self.gpu_of(one))

    def _fill(self, one: BoundTransfer, engine: TransferEngine, seed: int) -> None:
        """Fill the source with data and the target with poison."""
        for end, memory in one.own.items():
            with self.box.on(memory.gpu):
                array = self.box.array(memory)
                if engine.both_ways:
                    check.fill(array, DATATYPES[ELEMENT], self._expected(one, engine, seed))
                    _poison_pieces(array, 0 if end == "source" else 1)
                elif end == "source":
                    whole = Segment(0, one.nbytes // WIDTH, Copied(seed, one.number))
                    check.fill(array, DATATYPES[ELEMENT], [whole])
                else:
                    check.poison(array)
                self._synchronize()

    def _expected(self, one: BoundTransfer, engine: TransferEngine, seed: int) -> list[Segment]:
        """Return the expected contents of the target: the bytes that were moved, then poison."""
        moved = self._moved(one, engine)
        rest = one.nbytes - moved
        return [
            Segment(0, moved // WIDTH, Copied(seed, one.number)),
            Segment(moved // WIDTH, rest // WIDTH, Untouched()),
        ]

    def _verify(
        self, transfers: Sequence[BoundTransfer], engine: TransferEngine, seed: int, copies: int
    ) -> tuple[str, ...]:
        found = []
        for one in transfers:
            for end, memory in one.own.items():
                if end == "target" or engine.both_ways:
                    with self.box.on(memory.gpu):
                        if engine.leaves in ("sums", "repeats"):
                            mismatch = self._verify_grid(one, engine, copies)
                        else:
                            mismatch = self._verify_end(one, engine, seed, end, memory)
                    found += [] if mismatch is None else [mismatch]
        return tuple(one for some in self.group.allgather(found) for one in some)

    def _verify_grid(self, one: BoundTransfer, engine: TransferEngine, copies: int) -> str | None:
        """Compare what a kernel that only reads or writes has left with the source."""
        blocks, threads, rounds = grid_of(one.nbytes, self.gpu_of(one))
        words = blocks * threads * UNIT // WIDTH  # of a round
        source, target = (
            self.box.array(one.ends[end])[: rounds * words * WIDTH].view(ELEMENT).reshape(rounds, words)
            for end in ("source", "target")
        )
        if engine.leaves == "sums":
            expected, target = source.sum(axis=0, dtype=ELEMENT) * np.uint64(copies), target[0]
        else:
            expected = source[0]
        wrong = int((target != expected).sum())
        if not wrong:
            return None
        what = "sum" if engine.leaves == "sums" else "element"
        return f"{one.transfer}: {counted(wrong, f'wrong {what}')} of {WIDTH} bytes"

    def _verify_end(
        self, one: BoundTransfer, engine: TransferEngine, seed: int, end: End, memory: Memory
    ) -> str | None:
        kind = DATATYPES[ELEMENT]
        mismatch = check.verify(self.box.array(memory), kind, self._expected(one, engine, seed))
        if mismatch is None:
            return None
        got, expected = (f"0x{bits:0{2 * WIDTH}x}" for bits in (mismatch.got_bits, mismatch.expected_bits))
        return (
            f"{one.transfer}: byte {mismatch.offset * WIDTH} of the {end} ({getattr(one.transfer, end)}): "
            f"got {got}, expected {expected}; {counted(mismatch.count, 'wrong element')} of {WIDTH} bytes"
        )


def _poison_pieces(array: Any, parity: int) -> None:
    """Poison the even (0) or odd (1) pieces of PIECE bytes, which come from the other end."""
    pairs = len(array) // (2 * PIECE)
    array[: 2 * PIECE * pairs].reshape(pairs, 2, PIECE)[:, parity] = patterns.POISON
    rest = array[2 * PIECE * pairs :]
    rest[parity * PIECE : (parity + 1) * PIECE] = patterns.POISON
