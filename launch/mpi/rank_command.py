"""The command of every rank: meshrun, with options about the run before its command."""

from __future__ import annotations

import sys
from pathlib import Path

from meshrun.launch.spec import UNWATCHED, LaunchSpec, Watching, endpoint_text

PROGRAM = (sys.executable, str(Path(__file__).parents[2] / "__main__.py"))


def spec_options(spec: LaunchSpec, token: str | None = None) -> list[str]:
    """Options with which a rank checks that it was started as specified.

    token: of its status lines; None if no process reads them.
    """
    run = ["--run-dir", f"@{token}"] if token else []
    network = ["--expect-network", spec.network] if spec.network else []
    own = ["--host-timeout", f"{spec.host_timeout:g}", *_watching_options(spec)]
    per_host = ",".join(map(str, spec.slots)) or str(spec.per_host)
    return [*run, *own, "--expect", str(spec.hosts), per_host, *network, "-n", str(spec.ranks)]


def run_options(place: str, columns: int | None, watching: Watching = UNWATCHED) -> list[str]:
    """Options about the process that waits for the ranks. place: as for `run_status.run_at`."""
    from meshrun.runner.system.launcher import takes_colour

    terminal = [] if columns is None else ["--tty", str(columns)]
    colour = ["--colour"] if takes_colour() else []
    return ["--run-dir", place, *_watching_options(watching), *terminal, *colour]


def _watching_options(watching: Watching) -> list[str]:
    stall, metrics, operations = watching.stall_timeout, watching.metrics, watching.operations
    return [
        *([] if stall is None else ["--stall-timeout", f"{stall:g}"]),
        *([] if metrics is None else ["--metrics", endpoint_text(metrics)]),
        *([] if operations is None else ["--record-operations", operations]),
        *(["--watch"] if watching.watch else []),
    ]
