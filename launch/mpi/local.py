"""Start ranks on this machine with its mpiexec."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.launch.mpi import library as mpi_library
from meshrun.launch.mpi.environment import shell_command
from meshrun.launch.mpi.rank_command import PROGRAM, run_options
from meshrun.launch.spec import UNWATCHED, LaunchSpec, Watching
from meshrun.launch.supervise.cleanup import RUN_MARK
from meshrun.launch.supervise.clock import Clocks, halt_timeout
from meshrun.launch.supervise.restarts import with_restarts
from meshrun.launch.supervise.supervisor import USUAL, Supervision, supervise

RANK_BYTES = 16 << 20  # least private memory of a rank with Python, NumPy and MPI


def start(
    ranks: int,
    words: Sequence[str],
    supervision: Supervision = USUAL,
    *,
    program: Sequence[str] = PROGRAM,
    watching: Watching = UNWATCHED,
) -> int:
    """Run `program` with `words` as `ranks` ranks on this machine; returns the exit status (see `judge`).

    The program also gets `--run-dir DIR -n RANKS`, and `--tty COLUMNS` if it may draw a progress bar.

    Raises UserError without a launcher, or if it belongs to another MPI than mpi4py loads. The status is
    128 + signal if interrupted.
    """
    launcher = mpi_launcher.find()
    if not launcher.bundled:  # otherwise both are in one environment; the query takes a tenth of a second
        mpi_library.check(launcher, {"here": mpi_library.loaded()})
    check_capacity(ranks)

    columns, halt = supervision.columns, halt_timeout(watching.stall_timeout)

    def run(spec: LaunchSpec, restartable: bool) -> int:
        def prepare(run: Path, sockets: Path) -> tuple[list[str], dict[str, str]]:
            ours = [*run_options(str(run), columns, watching), "-n", str(spec.ranks)]
            environment = launcher.environment(spec.ranks, os.environ, sockets)
            command = [*launcher.command(spec.ranks, bar=columns is not None), *program, *ours, *spec.words]
            return command, {**environment, RUN_MARK: str(run)}

        return supervise(
            prepare,
            supervision,
            mpich=launcher.vendor == "MPICH",
            restart=spec if restartable else None,
            clocks=partial(Clocks, ranks=spec.ranks, start=supervision.start_timeout, halt=halt),
        )

    return with_restarts(run, LaunchSpec(tuple(words), 1, ranks), supervision.restarts)


def check_capacity(ranks: int) -> None:
    """Raise UserError for more ranks than fit into memory; warn about more ranks than cores."""
    from meshrun.runner.errors import UserError, tell
    from meshrun.runner.report.units import counted
    from meshrun.runner.system.host_memory import host_memory

    memory = host_memory()
    if ranks * RANK_BYTES > memory:
        raise UserError(
            f"{ranks:,} ranks do not fit into the memory of this machine",
            got=f"{memory >> 20:,} MiB",
            expected=f"at least {RANK_BYTES >> 20} MiB for each rank",
            hint=f"-n {mpi_launcher.cores()}, one rank per core, or one per GPU",
        )
    if ranks > mpi_launcher.cores():
        tell(
            f"warning: {ranks:,} ranks share {counted(mpi_launcher.cores(), 'core')}: "
            "starting and running take longer, and timings are not meaningful"
        )


def preview(spec: LaunchSpec) -> str:
    """The shell command that `start` runs, without the options of a single run."""
    launcher = mpi_launcher.find()
    variables = launcher.environment(spec.ranks, {**os.environ, **spec.settings})
    return shell_command(
        variables, launcher.command(spec.ranks), [*PROGRAM, "-n", str(spec.ranks), *spec.words]
    )
