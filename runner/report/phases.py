"""Times of the phases of a run on one rank, including the work of its device."""

from __future__ import annotations

import time
from collections.abc import Callable
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

    def __call__(self, name: str, moved: int = 0) -> TimedBlock:
        """Time the block of a `with` statement, including the device work that it issues."""
        return TimedBlock(self, name, moved)

    def seconds(self, name: str) -> float:
        """Return the seconds of a phase so far; 0 if it has not been used."""
        return self.phases[name].seconds if name in self.phases else 0.0

    def add(self, name: str, seconds: float, moved: int = 0) -> None:
        if name not in self.phases:
            self.phases[name] = Phase()
        phase = self.phases[name]
        phase.seconds += seconds
        phase.moved += moved


class TimedBlock:
    """A `with` statement that is part of a phase; one that raises is not. Stages enter one each."""

    __slots__ = ("_begin", "_entry", "_moved", "_name", "_phases")

    def __init__(self, phases: Phases, name: str, moved: int) -> None:
        self._phases, self._name, self._moved = phases, name, moved

    def __enter__(self) -> None:
        recorder = self._phases.recorder
        self._begin = time.perf_counter()
        if recorder is not None:
            self._entry = recorder.enter(recorder.name(self._name), self._moved)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        phases, recorder = self._phases, self._phases.recorder
        try:
            if kind is None:
                waiting = None if recorder is None else recorder.enter(recorder.name(DEVICE_WAIT))
                if phases.synchronize is not None:
                    phases.synchronize()
                if recorder is not None and waiting is not None:
                    recorder.leave(waiting)
        finally:
            if recorder is not None:
                recorder.leave(self._entry)
        if kind is None:
            phases.add(self._name, time.perf_counter() - self._begin, self._moved)
