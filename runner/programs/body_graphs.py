"""What is issued again and again on the same blocks: calls that are bound to them, and CUDA graphs of these.

A CUDA graph of a loop's iterations is made once the blocks that they read and write have been used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.device.api import NotCapturable
from meshrun.runner.plan.halo import Widths

Call = Callable[[], None]
Phase = Callable[[str], AbstractContextManager[object]]  # times a part of a phase of the run

EAGER = 2  # iterations on the same blocks that are launched kernel by kernel before a CUDA graph is made


@dataclass(frozen=True)
class BoundCalls:
    """Calls of stages in turn, each with the phase that it is part of; "": its time is not accounted for.

    left: arrays, and the widths of their halos that are valid afterwards.
    """

    calls: Sequence[tuple[str, Call]]
    left: Sequence[tuple[DistributedArray, Widths]]

    def take(self, phase: Phase) -> None:
        """Make the calls. phase: times one. Collective."""
        for name, call in self.calls:
            if name:
                with phase(name):
                    call()
            else:
                call()
        for array, widths in self.left:
            array.valid = widths


@dataclass(frozen=True)
class BodyGraph:
    """A CUDA graph of iterations. exchanges: of halos. known: as of `execute.ProgramRun`, after it."""

    replay: Callable[[], None]
    exchanges: int
    known: frozenset[int]


class BodyGraphs:
    """Issues iterations of a loop, as graphs where that is possible.

    run: an `execute.ProgramRun`, of the body. replayed: iterations that were graphs. reason: why none can be.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self.replayed, self.reason = 0, ""
        self._graphs: dict[tuple[Any, ...], BodyGraph] = {}
        self._taken: dict[tuple[Any, ...], int] = {}  # iterations without a graph, by what would be its key

    def issue(
        self, targets: Sequence[DistributedArray], work: Callable[[], None], slots: tuple[int, ...]
    ) -> bool:
        """Issue iterations: what `work` does. Return whether a graph did it, which the host knows nothing of.

        targets: the blocks that they write. slots: of each one.
        """
        run = self._run
        if run.capturing or run.program.loops or self.reason:
            work()
            return False
        # A graph has launches for these blocks, and the exchanges of those that are stale.
        arrays = [array for array in (*run.arrays, *targets) if array is not None]
        stale = (array.is_stale for array in run.arrays if array is not None)
        key = slots, run.known, *map(id, arrays), *stale
        if key not in self._graphs:
            # In a graph of several iterations, the blocks have been used by single ones.
            self._taken[key] = self._taken.get(key, 0) + 1
            if (self._taken[key] <= EAGER and len(slots) == 1) or not self._capture(key, arrays, work):
                work()
                return False
        graph = self._graphs[key]
        graph.replay()
        run.exchanges += graph.exchanges
        run.known = graph.known
        self.replayed += len(slots)
        return True

    def _capture(
        self, key: tuple[Any, ...], arrays: Sequence[DistributedArray], work: Callable[[], None]
    ) -> bool:
        """Make a graph of an iteration, without running it. Return whether that was possible."""
        run, world = self._run, self._run.world
        if world.size > 1 and not world.arrays.capturable:
            self.reason = f"exchanges by {world.arrays.label} wait for the host"
            return False
        known, exchanges, valid = run.known, run.exchanges, [array.valid for array in arrays]
        read = list(run.arrays)
        run.capturing = True
        try:
            replay = world.backend.capture(work)
            self._graphs[key] = BodyGraph(replay, run.exchanges - exchanges, run.known)
        except NotCapturable as reason:
            self.reason = str(reason)
            return False
        finally:
            # Nothing was done on the device: no halo was filled.
            run.capturing, run.exchanges = False, exchanges
            run.abandon(known)
            run.arrays[:] = read
            for array, before in zip(arrays, valid, strict=True):
                array.valid = before
        return True
