"""How long each phase of a run took on one rank, the work of its device included."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Phase:
    """seconds: summed over the phase's parts. moved: bytes read plus written, 0 where that means nothing."""

    seconds: float = 0.0
    moved: int = 0


@dataclass
class Phases:
    """The phases of one rank, in the order of their first use.

    synchronize: waits for the work that was issued to the rank's device.
    """

    synchronize: Callable[[], None]
    phases: dict[str, Phase] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str, moved: int = 0) -> Iterator[None]:
        """Time what happens inside, to the end of the device work that it issued."""
        begin = time.perf_counter()
        yield
        self.synchronize()
        self.add(name, time.perf_counter() - begin, moved)

    def add(self, name: str, seconds: float, moved: int = 0) -> None:
        phase = self.phases.setdefault(name, Phase())
        phase.seconds += seconds
        phase.moved += moved
