"""Ranks on this machine: started through its mpiexec, watched, and their run judged."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from launch.mpi import launcher as mpi_launcher
from launch.mpi import library as mpi_library
from launch.mpi.environment import shell_command
from launch.mpi.rank_command import PROGRAM, run_options
from launch.spec import LaunchSpec
from launch.supervise.cleanup import RUN_MARK
from launch.supervise.judge import Conclude, no_answer
from launch.supervise.supervisor import supervise

LEAST = 16 << 20  # bytes: a Python with NumPy and MPI, what it shares with others not counted


def start(
    ranks: int,
    words: Sequence[str],
    columns: int | None = None,
    *,
    program: Sequence[str] = PROGRAM,
    debug: bool = False,
    conclude: Conclude = no_answer,
) -> int:
    """Run `program` with `words` as `ranks` ranks on this machine; the run's exit status.

    The program is also given `--run-dir DIR -n RANKS`, and `--tty COLUMNS` where a progress bar
    may be drawn. debug: show the launcher's own words too. conclude: as `judge` takes it.

    The launcher's exit status is not the verdict. The run has succeeded when rank 0 has left the
    completion record, its last act after every rank has said that its part is done, and no rank
    has claimed a failure. A signal that kills a rank after that (a crash while MPI or CUDA shuts
    down) changes nothing about the results: that is a warning. Any other bad status of the
    launcher is a failure, record or not, and so is a good one without the record.

    Raises UserError where there is no launcher, or one of another MPI than mpi4py loads. 130 (128 + signal)
    when interrupted.
    """
    launcher = mpi_launcher.find()
    if not launcher.bundled:  # else both are of one environment, and asking takes a tenth of a second
        mpi_library.check(launcher, {"here": mpi_library.loaded()})
    check_room(ranks)

    def started(run: Path, sockets: Path) -> tuple[list[str], dict[str, str]]:
        ours = [*run_options(str(run), columns), "-n", str(ranks)]
        environment = launcher.environment(ranks, os.environ, sockets)
        return [*launcher.command(ranks, bar=columns is not None), *program, *ours, *words], {
            **environment,
            RUN_MARK: str(run),
        }

    return supervise(started, columns, debug=debug, conclude=conclude)


def check_room(ranks: int) -> None:
    """Refuse more ranks than there is memory to start; say so where there are more than cores."""
    from runner.backend.host import host_memory
    from runner.errors import UserError, tell

    memory = host_memory()
    if ranks * LEAST > memory:
        raise UserError(
            f"{ranks:,} ranks do not fit into the memory of this machine",
            got=f"{memory >> 20:,} MiB",
            expected=f"{LEAST >> 20} MiB for each rank, before it does anything",
            hint=f"-n {mpi_launcher.cores()}, a rank for every core, or one for every GPU",
        )
    if ranks > mpi_launcher.cores():
        tell(
            f"warning: {ranks:,} ranks take turns on {mpi_launcher.cores()} cores: "
            "to start and to run takes longer, and timings say little"
        )


def preview(spec: LaunchSpec) -> str:
    """What `start` runs, for a shell, without what only a run has."""
    launcher = mpi_launcher.find()
    variables = launcher.environment(spec.ranks, {**os.environ, **spec.settings})
    return shell_command(
        variables, launcher.command(spec.ranks), [*PROGRAM, "-n", str(spec.ranks), *spec.words]
    )
