"""Two ranks of a run that is stuck: one waits for the other, which computes."""

from __future__ import annotations

from typing import Any

from meshrun.runner.recorder.process import Frame
from meshrun.runner.recorder.ring import Operation
from meshrun.runner.recorder.snapshot import RankSnapshot
from meshrun.runner.world.run_status import RunDirectory

GROUPS = {"world": (0, 1)}
WAITING = RankSnapshot(
    0, "n1", "CPU", "running", 9.0, (Operation(9, "barrier", 9.0, None, 0, "world", 4),), {"world": 4}, GROUPS
)
COMPUTING = RankSnapshot(
    1,
    "n1",
    "CPU",
    "running",
    9.0,
    (Operation(8, "kernel", 9.0, None),),
    {"world": 3},
    GROUPS,
    at=Frame("/home/a/edges.py", 17, "smooth"),
)


def setting(run: RunDirectory | None = None, **more: Any) -> dict[str, Any]:
    place = None if run is None else str(run.path)
    return {
        "run_id": "abc",
        "size": 2,
        "seconds": 7.0,
        "chosen": True,
        "run": place,
        "hosts": {"0": "n1"},
        **more,
    }
