"""A job of time steps that is killed or stopped at one place of a run; copied to where a test runs.

The variable STAGE is "PLACE,RANK,STEP": where, on which rank, in the step that follows so many, or in the
checkpoint after so many. A variable, because a parameter would make it another run, which nobody resumes.
HOLD_AT: the step that follows so many waits for the note `go`, so that a test which comes late finds ranks.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

import meshrun
from meshrun.runner import files
from meshrun.runner.storage.checkpoint_folder import CheckpointFolder
from meshrun.runner.storage.formats.flat import FlatSink

notes = Path(os.environ["MESHRUN_TEST_RUN"])
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
place, victim, when = os.environ.get("STAGE", "nowhere,0,0").split(",")
pause, hold_at = float(os.environ.get("PAUSE", "0")), int(os.environ.get("HOLD_AT", "-1"))
(notes / f"pid-{rank}").write_text(str(os.getpid()))
taken = [0]


def die() -> None:
    (notes / f"failing-{rank}").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def hold() -> None:
    (notes / f"holding-{rank}").touch()
    while True:
        time.sleep(0.01)


def half_a_field(sink: FlatSink, region: Any, array: Any) -> None:
    if ".checkpoint/" in str(sink.path):
        whole_write(sink, region.rows(0, region.shape[0] // 2), array[: region.shape[0] // 2])
        die()
    whole_write(sink, region, array)


def half_of_the_old(path: Path, *_: Any, **__: Any) -> None:
    if path.name == "step-7":
        next(path.glob("*.json")).unlink()
        die()


# What is done instead of a function, in the checkpoint after step `when`.
PLACES: dict[str, tuple[Any, str, Any]] = {
    "a field": (FlatSink, "write", half_a_field),
    "sync": (FlatSink, "sync", lambda sink: die()),
    "before its state": (CheckpointFolder, "commit", lambda *_: die()),
    "its state": (files, "write_file", lambda *_, **__: die()),
    "before its name": (Path, "rename", lambda *_: die()),
    "after its name": (CheckpointFolder, "_complete", lambda _: die()),
    "the old one": (shutil, "rmtree", half_of_the_old),
    "hold": (CheckpointFolder, "commit", lambda *_: hold()),
}
whole_write = FlatSink.write
if place in PLACES and rank == int(victim):
    owner, name, instead = PLACES[place]
    original = getattr(owner, name)

    def planted(*arguments: Any, **options: Any) -> Any:
        return (instead if taken == [int(when)] else original)(*arguments, **options)

    setattr(owner, name, planted)


@meshrun.map_blocks(halo=1, boundary="mirror", outputs=2, split_dependent=True)
def march(field: Any, clock: Any) -> Any:
    """Sums of differently weighted neighbours, modulo 2^64; `clock` counts steps."""
    inner = (slice(1, -1), slice(1, -1))
    done = int(clock[inner].flat[0])
    (notes / f"next-{rank}").write_text(str(done))
    os.replace(notes / f"next-{rank}", notes / f"at-{rank}")  # whoever reads it finds a number
    time.sleep(pause)
    while done == hold_at and not (notes / "go").exists():
        time.sleep(0.01)
    if place == "step" and rank == int(victim) and done == int(when):
        die()
    if place == "limit" and done == int(when):
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    sums = 3 * field[inner] + 5 * field[:-2, 1:-1] + 7 * field[2:, 2:] + 11 * field[1:-1, :-2]
    taken[0] = done + 1
    return sums + field[2:, :-2], clock[inner] + np.uint64(1)
