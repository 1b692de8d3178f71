"""A run of time steps of a small field, beside a clock that counts them; a benchmark fails its ranks."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

SHAPE = (256, 256)
JOB = """
import os
import signal
import time

import meshrun

rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0"))


@meshrun.map_blocks(halo=1, boundary="wrap", outputs=2, fuse="off")
def march(field, clock):
    time.sleep(0.005)
    at_step(int(clock[1, 1]))
    inner = (slice(1, -1), slice(1, -1))
    sums = 3 * field[inner] + 5 * field[:-2, 1:-1] + 7 * field[2:, 2:] + 11 * field[1:-1, :-2]
    return sums, clock[inner] + clock.dtype.type(1)

"""


def prepare(work: Path, at_step: str) -> None:
    """Write the job and its inputs. at_step: text of a function of the steps taken, which each step calls."""
    (work / "job.py").write_text(JOB + at_step)
    np.save(work / "in.npy", np.random.default_rng(0).integers(0, 2**64, SHAPE, np.uint64))
    np.save(work / "clock.npy", np.zeros(SHAPE, np.uint64))


def command(work: Path, ranks: int, start: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the words of a run in `work`, from which earlier outputs are removed.

    start: options of the start of its ranks. options: of the run.
    """
    for left in [*work.glob("out.npy*"), *work.glob("end.npy*")]:  # and the checkpoints of a run that failed
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    files = ["in.npy", "clock.npy", "out.npy", "end.npy"]
    return [
        sys.executable,
        "-m",
        "meshrun",
        "-n",
        str(ranks),
        *start,
        "run",
        "job.py:march",
        *files,
        *options,
    ]


def result(work: Path, status: int | None) -> bytes:
    """Return the bytes of the field after a run that ended with this status; none if it failed."""
    return (work / "out.npy").read_bytes() if status == 0 else b""
