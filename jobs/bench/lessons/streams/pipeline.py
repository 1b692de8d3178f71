"""A map in chunks over streams of one GPU: copy in, compute, copy out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from meshrun.jobs import kernels
from meshrun.jobs.bench.lessons.protocol import Context
from meshrun.jobs.bench.lessons.streams.schedule import STAGES, Chunk, StageSpan, composed
from meshrun.jobs.measure import check
from meshrun.jobs.measure.patterns import Copied, Segment
from meshrun.jobs.measure.timers import gated_event_seconds
from meshrun.runner.comm.collectives.api import DATATYPES

WORD = DATATYPES["uint32"]
MULTIPLIER, INCREMENT = 1664525, 1013904223  # of Numerical Recipes' generator, which mixes all bits
THREADS, BLOCKS_PER_PROCESSOR = 256, 8  # as many threads as a multiprocessor holds
MOST_STREAMS = 4


class ChunkedMap:
    """Host memory for all chunks, before and after, and device memory for one chunk of each stream."""

    def __init__(self, context: Context, chunks: list[Chunk], kind: Any) -> None:
        self.context, self.box, self.gpu = context, context.required_box, context.gpu
        self.chunks = chunks
        whole = 4 * (chunks[-1].begin + chunks[-1].count)
        self.source, self.target = (self.box.allocate(kind, whole, self.gpu) for _ in range(2))
        self.streams = [self.box.stream(self.gpu) for _ in range(MOST_STREAMS)]
        self.slots = [self.box.allocate("device", 4 * chunks[0].count, self.gpu) for _ in self.streams]
        self.words = [self.box.array(slot).view(np.uint32) for slot in self.slots]
        self.affine = kernels.load("affine.cu", "affine")
        self.most_blocks = BLOCKS_PER_PROCESSOR * self.box.gpus[self.gpu].processors
        check.fill(
            self.box.host_array(self.source),
            WORD,
            [Segment(c.begin, c.count, Copied(c.number + 1, 0), c.number) for c in chunks],
        )

    def release(self) -> None:
        for memory in (self.source, self.target, *self.slots):
            self.box.release(memory)

    def stages(self, chunk: Chunk, stream: int, rounds: int) -> tuple[Callable[[], None], ...]:
        """Return the calls that queue each of STAGES for one chunk."""
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

    def stage_seconds(self, stage: int, rounds: int) -> float:
        """Return median seconds of one of STAGES for the first chunk, by itself."""
        queue = self.stages(self.chunks[0], 0, rounds)[stage]
        return gated_event_seconds(self.box, self.gpu, self.streams[0], queue, self.context.median)

    def run(self, streams: int, rounds: int, *, waiting: bool = False) -> tuple[float, list[StageSpan]]:
        """Run chunk i on stream i modulo `streams`; returns total seconds, and a span from queue to end per
        stage.

        waiting: the host waits for each stage before it queues the next.
        """
        box, used = self.box, self.streams[:streams]
        # Without a gate: streams may not take this many chunks and events while it is closed, and a call that
        # copies pageable memory waits for the copy. Calls overlap with the work here, as in a real pipeline.
        start = box.mark(used[0])
        for stream in used[1:]:
            box.wait(stream, start)
        marks = []
        for chunk in self.chunks:
            at = chunk.number % streams
            passed = [box.mark(used[at])]
            for queue in self.stages(chunk, at, rounds):
                queue()
                passed.append(box.mark(used[at]))
                if waiting:
                    box.synchronize(used[at])
            marks.append(passed)
        for stream in used[1:]:
            box.wait(used[0], box.mark(stream))
        end = box.mark(used[0])
        for stream in used:
            box.synchronize(stream)
        spans = [
            StageSpan(
                chunk.number % streams, chunk.number, stage, *(box.elapsed(start, mark) for mark in pair)
            )
            for chunk, passed in zip(self.chunks, marks, strict=True)
            for stage, pair in zip(range(len(STAGES)), pairwise(passed), strict=True)
        ]
        return box.elapsed(start, end), spans

    def poison(self) -> None:
        check.poison(self.box.host_array(self.target))

    def mismatches(self, rounds: int) -> list[str]:
        """Return a sentence for each chunk with wrong results."""
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
