"""Run a lesson's operations: on one stream of the rank's GPU, or on the host with NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshrun.jobs import kernels
from meshrun.jobs.bench.lessons.protocol import Context
from meshrun.jobs.measure.timers import Work, gated_event_seconds, sampled_host_seconds


@dataclass(frozen=True)
class Launch:
    """A kernel and its one-dimensional grid."""

    file: str
    instance: str
    blocks: int
    threads: int = 256


class GpuDevice:
    def __init__(self, context: Context) -> None:
        self.context, self.box, self.gpu = context, context.required_box, context.gpu
        self.stream = self.box.stream(self.gpu)

    def free(self) -> int:
        """Return free memory in bytes."""
        return self.box.free_memory(self.gpu)

    def settle(self) -> None:
        """Wait for all work so far, on any stream."""
        self.context.world.backend.synchronize()
        self.box.synchronize(self.stream)

    def operation(self, launch: Launch, arguments: tuple[Any, ...]) -> Work:
        """Load the kernel; returns a function that queues it."""
        with self.box.on(self.gpu):
            run = kernels.load(launch.file, launch.instance)
        return lambda: run((launch.blocks,), (launch.threads,), arguments, stream=self.stream)

    def seconds(self, operation: Work) -> float:
        """Return median seconds of what `operation` queues."""
        return gated_event_seconds(self.box, self.gpu, self.stream, operation, self.context.median)


class HostDevice:
    def __init__(self, context: Context) -> None:
        self.context = context

    def free(self) -> int:
        """Return free memory in bytes."""
        return self.context.world.backend.free_memory()

    def settle(self) -> None:
        """Do nothing: every call returns when it is done."""

    def seconds(self, operation: Work) -> float:
        return self.context.median(lambda: sampled_host_seconds(operation))
