"""What a streamed run did when: one span for each stage of each chunk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal, NamedTuple, get_args

Stage = Literal["read", "to device", "kernel", "from device", "write"]
STAGES: tuple[str, ...] = get_args(Stage)


class Span(NamedTuple):
    """One stage of one chunk on this rank. begin, end: `time.perf_counter` seconds. moved: bytes."""

    stage: Stage
    chunk: int
    begin: float
    end: float
    moved: int

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def shifted(self, offset: float) -> Span:
        """The same on a clock that shows `offset` seconds more."""
        return self._replace(begin=self.begin + offset, end=self.end + offset)


@dataclass
class Spans:
    """The spans of one rank, in the order in which they ended; added to from any of its threads."""

    found: list[Span] = field(default_factory=list)

    @contextmanager
    def __call__(self, stage: Stage, chunk: int, moved: int) -> Iterator[None]:
        """Time what happens inside; a stage that fails leaves no span."""
        begin = perf_counter()
        yield
        self.add(stage, chunk, begin, perf_counter(), moved)

    def add(self, stage: Stage, chunk: int, begin: float, end: float, moved: int) -> None:
        self.found.append(Span(stage, chunk, begin, end, moved))
