"""A map in chunks over streams of one GPU: copied in, computed, copied out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from jobs import kernels
from jobs.bench.lessons.protocol import Stage
from jobs.bench.lessons.streams.schedule import STAGES, Chunk, Span, composed
from jobs.bench.lessons.timers import by_marks
from jobs.measure import check
from jobs.measure.patterns import Copied, Segment
from runner import DATATYPES

WORD = DATATYPES["uint32"]
MULTIPLIER, INCREMENT = 1664525, 1013904223  # Numerical Recipes' generator: mixes all bits
THREADS, BLOCKS_EACH = 256, 8  # of a processor: as many threads as it holds at a time
MOST_STREAMS = 4


class Map:
    """Host memory for all chunks, twice, and device memory for one chunk of each stream."""

    def __init__(self, stage: Stage, chunks: list[Chunk], kind: Any) -> None:
        self.stage, self.box, self.gpu, self.chunks = stage, stage.gpus, stage.gpu, chunks
        whole = 4 * (chunks[-1].begin + chunks[-1].count)
        self.source, self.target = (self.box.allocate(kind, whole, self.gpu) for _ in range(2))
        self.streams = [self.box.stream(self.gpu) for _ in range(MOST_STREAMS)]
        self.slots = [self.box.allocate("device", 4 * chunks[0].count, self.gpu) for _ in self.streams]
        self.words = [self.box.array(slot).view(np.uint32) for slot in self.slots]
        self.affine = kernels.load("affine.cu", "affine")
        self.most_blocks = BLOCKS_EACH * self.box.gpus[self.gpu].processors
        check.fill(
            self.box.host_array(self.source),
            WORD,
            [Segment(c.begin, c.count, Copied(c.number + 1, 0), c.number) for c in chunks],
        )

    def release(self) -> None:
        for memory in (self.source, self.target, *self.slots):
            self.box.release(memory)

    def stages(self, chunk: Chunk, stream: int, rounds: int) -> tuple[Callable[[], None], ...]:
        """What queues each of STAGES for one chunk."""
        nbytes, slot, queue = 4 * chunk.count, self.slots[stream], self.streams[stream]
        source, target = (
            replace(memory, address=memory.address + 4 * chunk.begin, nbytes=nbytes)
            for memory in (self.source, self.target)
        )
        numbers: list[Any] = [np.uint64(chunk.count), *np.array([MULTIPLIER, INCREMENT, rounds], np.uint32)]
        blocks = min(math.ceil(chunk.count / THREADS), self.most_blocks)

        def compute() -> None:
            with self.box.on(self.gpu):
                self.affine((blocks,), (THREADS,), (self.words[stream], *numbers), stream=queue)

        return (
            lambda: self.box.copy(slot, source, nbytes, queue),
            compute,
            lambda: self.box.copy(target, slot, nbytes, queue),
        )

    def alone(self, stage: int, rounds: int) -> float:
        """Median seconds of one of STAGES for the first chunk, with nothing beside it."""
        queue = self.stages(self.chunks[0], 0, rounds)[stage]
        return by_marks(self.stage, self.streams[0], lambda turn: queue())

    def run(self, streams: int, rounds: int, *, waiting: bool = False) -> tuple[float, list[Span]]:
        """Chunk i on stream i modulo `streams`; the seconds of all, and when what ran or waited to run.

        waiting: the host waits for each stage before it queues the next.
        """
        box, used = self.box, self.streams[:streams]
        # Not behind a gate: chunks and marks may be more than streams take while one is closed, a call for
        # pageable memory waits for its copy, and that calls go on beside the work is what streams are for.
        start = box.mark(used[0])
        for stream in used[1:]:
            box.wait(stream, start)
        marks = []
        for chunk in self.chunks:
            lane = chunk.number % streams
            passed = [box.mark(used[lane])]
            for queue in self.stages(chunk, lane, rounds):
                queue()
                passed.append(box.mark(used[lane]))
                if waiting:
                    box.synchronize(used[lane])
            marks.append(passed)
        for stream in used[1:]:
            box.wait(used[0], box.mark(stream))
        end = box.mark(used[0])
        for stream in used:
            box.synchronize(stream)
        spans = [
            Span(chunk.number % streams, chunk.number, stage, *(box.elapsed(start, mark) for mark in pair))
            for chunk, passed in zip(self.chunks, marks, strict=True)
            for stage, pair in zip(range(len(STAGES)), pairwise(passed), strict=True)
        ]
        return box.elapsed(start, end), spans

    def spoil(self) -> None:
        check.poison(self.box.host_array(self.target))

    def wrong(self, rounds: int) -> list[str]:
        """What is wrong with the results, a sentence for each such chunk."""
        multiplier, increment = np.array(composed(MULTIPLIER, INCREMENT, rounds), np.uint32)
        source, target = (self.box.host_array(m).view(np.uint32) for m in (self.source, self.target))
        found = []
        for chunk in self.chunks:
            part = slice(chunk.begin, chunk.begin + chunk.count)
            differ = target[part] != source[part] * multiplier + increment
            if differ.any():
                found.append(
                    f"chunk {chunk.number}: {np.count_nonzero(differ):,} of {chunk.count:,} elements are "
                    f"wrong, the first at {chunk.begin + int(differ.argmax()):,}"
                )
        return found
