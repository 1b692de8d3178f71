"""CUDA graphs: how they are captured, and that they end before the communicators whose calls they hold."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar
from weakref import WeakSet

import cupy

from meshrun.runner.device.api import NotCapturable
from meshrun.runner.errors import first_line

CAPTURING = "stream is capturing"  # in errors of CuPy


class CapturedGraph:
    """A CUDA graph of the current device; a call launches it in its stream."""

    known: ClassVar[WeakSet[CapturedGraph]] = WeakSet()

    def __init__(self, graph: Any, stream: Any) -> None:
        self._graph, self._stream, self.device = graph, stream, cupy.cuda.Device().id
        self.known.add(self)

    def __call__(self) -> None:
        self._graph.launch(self._stream)

    def release(self) -> None:
        self._graph = None


def release_graphs() -> None:
    """Destroy all CUDA graphs of the current device: a communicator whose calls they hold is closed."""
    for graph in CapturedGraph.known:
        if graph.device == cupy.cuda.Device().id:
            graph.release()


def capture(work: Callable[[], None]) -> CapturedGraph:
    """Return a CUDA graph of what `work` issues to the current stream, which does not run.

    Raises NotCapturable if `work` waits for the device, allocates, or does what no graph can hold.
    """
    stream = cupy.cuda.get_current_stream()
    stream.begin_capture()
    graph = None
    try:
        # Memory allocated here would be given to others before the graph runs.
        with cupy.cuda.using_allocator(_refuse_to_allocate):
            work()
    except RuntimeError as reason:
        # CuPy refuses some calls by itself, with an error of no class of its own.
        if not isinstance(reason, cupy.cuda.runtime.CUDARuntimeError) and CAPTURING not in str(reason):
            raise
        raise NotCapturable(f"the function waits for the device ({first_line(reason)})") from reason
    finally:
        # Fails where the recording has.
        with suppress(cupy.cuda.runtime.CUDARuntimeError):
            graph = stream.end_capture()
    if graph is None:
        raise NotCapturable("the function does what a CUDA graph cannot hold")
    return CapturedGraph(graph, stream)


def _refuse_to_allocate(nbytes: int) -> Any:
    raise NotCapturable("the function allocates device memory")
