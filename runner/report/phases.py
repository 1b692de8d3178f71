"""Times of the phases of a run on one rank, including the work of its device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from meshrun.runner.recorder.ring import DEVICE_WAIT, Recorder


@dataclass
class Phase:
    """seconds: summed over the phase's parts. moved: bytes read plus written, 0 if not applicable."""

    seconds: float = 0.0
    moved: int = 0


@dataclass
class Phases:
    """The phases of one rank, in the order of their first use.

    synchronize: waits for the work issued to the rank's device; None: nothing is under way there when a call
    returns. recorder: notes where the rank is.
    """

    synchronize: Callable[[], None] | None
    recorder: Recorder | None = None
    phases: dict[str, Phase] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str, moved: int = 0) -> Iterator[None]:
        """Time the block, including the device work that it issues."""
        begin = time.perf_counter()
        if self.recorder is None:
            yield
            if self.synchronize is not None:
                self.synchronize()
        else:
            entry = self.recorder.enter(self.recorder.name(name), moved)
            try:
                yield
                waiting = self.recorder.enter(self.recorder.name(DEVICE_WAIT))
                if self.synchronize is not None:
                    self.synchronize()
                self.recorder.leave(waiting)
            finally:
                self.recorder.leave(entry)
        self.add(name, time.perf_counter() - begin, moved)

    def seconds(self, name: str) -> float:
        """Return the seconds of a phase so far; 0 if it has not been used."""
        return self.phases[name].seconds if name in self.phases else 0.0

    def add(self, name: str, seconds: float, moved: int = 0) -> None:
        phase = self.phases.setdefault(name, Phase())
        phase.seconds += seconds
        phase.moved += moved
