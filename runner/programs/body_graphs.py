"""CUDA graphs of a loop's iterations, each made once the blocks that it reads and writes have been used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.device.api import NotCapturable

EAGER = 2  # iterations on the same blocks that are launched kernel by kernel before a CUDA graph is made


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
    ) -> None:
        """Issue iterations: what `work` does. targets: the blocks that they write. slots: of each one."""
        run = self._run
        if not run.world.backend.asynchronous or run.capturing or run.program.loops or self.reason:
            work()
            return
        # A graph has launches for these blocks, and the exchanges of those that are stale.
        arrays = [array for array in (*run.arrays, *targets) if array is not None]
        stale = (array.is_stale for array in run.arrays if array is not None)
        key = slots, run.known, *map(id, arrays), *stale
        if key not in self._graphs:
            # In a graph of several iterations, the blocks have been used by single ones.
            self._taken[key] = self._taken.get(key, 0) + 1
            if (self._taken[key] <= EAGER and len(slots) == 1) or not self._capture(key, arrays, work):
                work()
                return
        graph = self._graphs[key]
        graph.replay()
        run.exchanges += graph.exchanges
        run.known = graph.known
        self.replayed += len(slots)

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
