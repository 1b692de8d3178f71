"""Start ranks on this machine, by its mpiexec."""

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

RANK_BYTES = 16 << 20  # the least that a rank takes: Python, NumPy and MPI, without what ranks share


def start(
    ranks: int,
    words: Sequence[str],
    columns: int | None = None,
    *,
    program: Sequence[str] = PROGRAM,
    debug: bool = False,
    conclude: Conclude = no_answer,
) -> int:
    """Run `program` with `words` as `ranks` ranks on this machine; the exit status, as `judge` finds it.

    The program is also given `--run-dir DIR -n RANKS`, and `--tty COLUMNS` where it may draw a progress bar.
    debug: also show the launcher's own messages. conclude: as `judge` takes it.

    Raises UserError where there is no launcher, or one of another MPI than mpi4py loads. The status is 130
    (128 + signal) when interrupted.
    """
    launcher = mpi_launcher.find()
    if not launcher.bundled:  # else both are of one environment, and asking takes a tenth of a second
        mpi_library.check(launcher, {"here": mpi_library.loaded()})
    check_capacity(ranks)

    def prepare(run: Path, sockets: Path) -> tuple[list[str], dict[str, str]]:
        ours = [*run_options(str(run), columns), "-n", str(ranks)]
        environment = launcher.environment(ranks, os.environ, sockets)
        return [*launcher.command(ranks, bar=columns is not None), *program, *ours, *words], {
            **environment,
            RUN_MARK: str(run),
        }

    return supervise(prepare, columns, debug=debug, conclude=conclude)


def check_capacity(ranks: int) -> None:
    """UserError for more ranks than fit into memory; a warning for more ranks than cores."""
    from runner.errors import UserError, tell
    from runner.system.host_memory import host_memory

    memory = host_memory()
    if ranks * RANK_BYTES > memory:
        raise UserError(
            f"{ranks:,} ranks do not fit into the memory of this machine",
            got=f"{memory >> 20:,} MiB",
            expected=f"{RANK_BYTES >> 20} MiB for each rank, before it does anything",
            hint=f"-n {mpi_launcher.cores()}, a rank for every core, or one for every GPU",
        )
    if ranks > mpi_launcher.cores():
        tell(
            f"warning: {ranks:,} ranks share {mpi_launcher.cores()} cores: "
            "starting and running takes longer, and timings mean little"
        )


def preview(spec: LaunchSpec) -> str:
    """The shell command for what `start` runs, without the options of a single run."""
    launcher = mpi_launcher.find()
    variables = launcher.environment(spec.ranks, {**os.environ, **spec.settings})
    return shell_command(
        variables, launcher.command(spec.ranks), [*PROGRAM, "-n", str(spec.ranks), *spec.words]
    )
