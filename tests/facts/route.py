"""The route of a run: the files of runner/ that it passes, and the collectives by which its ranks agree."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import meshrun.runner
from meshrun.runner.comm.api import ForwardedControl
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.run.execute import Options, execute
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.world.world import single_rank_world

RUNNER = str(Path(meshrun.runner.__file__).parent)
COLLECTIVES = ("barrier", "broadcast", "allgather", "all_reduce", "shared_memory_size", "counters", "split")


@dataclass
class Route:
    """files: calls into each file of runner/. changes: calls into another file than the call before.
    collectives: of the control communicator, by name."""

    files: Counter[str] = field(default_factory=Counter)
    changes: int = 0
    collectives: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        collectives = sum(self.collectives.values())
        return f"{len(self.files)} files, {self.changes} changes of file, {collectives} collectives"


class CountedControl(ForwardedControl):
    """A communicator that counts its collectives."""

    rank, size = 0, 1

    def __init__(self, control: Any, route: Route) -> None:
        self.control = control
        for name in COLLECTIVES:
            setattr(self, name, self._counted(name, getattr(control, name), route))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.control, name)

    @staticmethod
    def _counted(name: str, call: Callable[..., Any], route: Route) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            route.collectives[name] += 1
            return call(*arguments)

        return counted


def route_of(job: Any, inputs: Any, outputs: Any, parameters: dict[str, Any], options: Options) -> Route:
    """Return the route of a run on one rank, this process, from `execute` on."""
    route = Route()
    world = single_rank_world(CpuBackend())
    control: Any = CountedControl(world.control, route)
    world = replace(world, control=control, arrays=control)
    last = ""

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        nonlocal last
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(RUNNER):
            return
        route.files[file] += 1
        route.changes += file != last
        last = file

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        execute(world, job, inputs, outputs, parameters, options, transaction=OutputTransaction())
    finally:
        sys.setprofile(before)
    return route
