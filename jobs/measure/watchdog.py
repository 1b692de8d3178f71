"""Run a measurement under the runner's watchdog: end a run without progress, and name the stuck rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from meshrun import World
from meshrun.jobs.measure.exit_codes import Stuck
from meshrun.runner.comm.api import Control
from meshrun.runner.errors import MeshrunError, tell
from meshrun.runner.world.failure import FailureHandler
from meshrun.runner.world.watchdog.watchdog import MeasurementProgress, Watchdog


@contextmanager
def watching(
    world: World,
    handler: FailureHandler,
    timeout: float,
    control: Control | None = None,
    failure: Callable[[str], MeshrunError] = Stuck,
) -> Iterator[MeasurementProgress]:
    """Yield this rank's progress, watched if `timeout` is not 0; collective over `control`.

    timeout: seconds without progress. control: the ranks that measure; None for all. failure: the error that
    ends the run.
    """
    if not timeout:
        yield MeasurementProgress()
        return

    def report(text: str) -> None:
        handler.report_single(failure(text), "", world.rank)

    control = control or world.control
    names = control.allgather(str(world.here))
    watchdog = Watchdog(
        control, names, timeout, on_report=report, end=world.control.abort, network=world.network
    )
    for warning in watchdog.warnings if control.rank == 0 else ():
        tell(f"warning: {warning}")
    try:
        yield watchdog
    finally:
        watchdog.stop()
