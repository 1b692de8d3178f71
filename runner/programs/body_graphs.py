"""CUDA graphs of a loop's iterations, each made once the blocks that it reads and writes have been used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.device.api import NotCapturable

EAGER = 2  # iterations on the same blocks that are launched kernel by kernel before a CUDA graph is made


class BodyGraphs:
    """Issues iterations of a loop, as graphs where that is possible.

    run: an `execute.ProgramRun`, of the body. replayed: iterations that were graphs. reason: why none can be.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self.replayed, self.reason = 0, ""
        self._graphs: dict[tuple[Any, ...], tuple[Callable[[], None], int]] = {}  # with their exchanges
        self._taken: dict[tuple[Any, ...], int] = {}  # iterations without a graph, by what would be its key

    def issue(self, targets: Iterable[DistributedArray], work: Callable[[], None], parity: int) -> None:
        """Issue an iteration: what `work` does. targets: the blocks that it writes. parity: of its number."""
        run = self._run
        if not run.world.backend.asynchronous or run.capturing or run.program.loops or self.reason:
            work()
            return
        # A graph has launches for these blocks, and the exchanges of those that are stale.
        arrays = [array for array in (*run.arrays, *targets) if array is not None]
        key = parity, run.known, *map(id, arrays), *(array.is_stale for array in arrays)
        if key not in self._graphs:
            self._taken[key] = self._taken.get(key, 0) + 1
            if self._taken[key] <= EAGER or not self._capture(key, arrays, work):
                work()
                return
        replay, exchanges = self._graphs[key]
        replay()
        run.exchanges += exchanges
        self.replayed += 1

    def _capture(
        self, key: tuple[Any, ...], arrays: Sequence[DistributedArray], work: Callable[[], None]
    ) -> bool:
        """Make a graph of an iteration, without running it. Return whether that was possible."""
        run, world = self._run, self._run.world
        if world.size > 1 and not world.arrays.capturable:
            self.reason = f"exchanges by {world.arrays.label} wait for the host"
            return False
        known, exchanges, valid = run.known, run.exchanges, [array.valid for array in arrays]
        run.capturing = True
        try:
            replay = world.backend.capture(work)
            self._graphs[key] = replay, run.exchanges - exchanges
        except NotCapturable as reason:
            self.reason = str(reason)
            return False
        finally:
            # Nothing was done on the device: no halo was filled.
            run.capturing, run.exchanges = False, exchanges
            run.abandon(known)
            for array, before in zip(arrays, valid, strict=True):
                array.valid = before
        return True
