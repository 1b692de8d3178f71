"""Ranks on this machine: started through its mpiexec, watched, and their run judged."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch import mpi_library, mpiexec
from launch.spec import Plan
from launch.supervise.cleanup import RUN_MARK
from launch.supervise.supervisor import conduct

PROGRAM = (sys.executable, str(Path(__file__).with_name("__main__.py")))

LEAST = 16 << 20  # bytes: a Python with NumPy and MPI, what it shares with others not counted


def start(
    ranks: int,
    words: Sequence[str],
    columns: int | None = None,
    *,
    program: Sequence[str] = PROGRAM,
    debug: bool = False,
) -> int:
    """Run `program` with `words` as `ranks` ranks on this machine; the run's exit status.

    The program is also given `--run-dir DIR -n RANKS`, and `--tty COLUMNS` where a progress bar
    may be drawn. debug: show the launcher's own words too.

    The launcher's exit status is not the verdict. The run has succeeded when rank 0 has left the
    completion record, its last act after every rank has said that its part is done, and no rank
    has claimed a failure. A signal that kills a rank after that (a crash while MPI or CUDA shuts
    down) changes nothing about the results: that is a warning. Any other bad status of the
    launcher is a failure, record or not, and so is a good one without the record.

    Raises UserError where there is no launcher, or one of another MPI than mpi4py loads. 130 (128 + signal)
    when interrupted.
    """
    launcher = mpiexec.find()
    if not launcher.bundled:  # else both are of one environment, and asking takes a tenth of a second
        mpi_library.check(launcher, {"here": mpi_library.loaded()})
    check_room(ranks)

    def started(run: Path, sockets: Path) -> tuple[list[str], dict[str, str]]:
        ours = [*rank_words(str(run), columns), "-n", str(ranks)]
        environment = launcher.environment(ranks, os.environ, sockets)
        return [*launcher.command(ranks, bar=columns is not None), *program, *ours, *words], {
            **environment,
            RUN_MARK: str(run),
        }

    return conduct(started, columns, debug=debug, ran=words)


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
            hint=f"-n {mpiexec.cores()}, a rank for every core, or one for every GPU",
        )
    if ranks > mpiexec.cores():
        tell(
            f"warning: {ranks:,} ranks take turns on {mpiexec.cores()} cores: "
            "to start and to run takes longer, and timings say little"
        )


def shown(plan: Plan) -> str:
    """What `start` runs, for a shell, without what only a run has."""
    launcher = mpiexec.find()
    variables = launcher.environment(plan.ranks, {**os.environ, **plan.settings})
    return for_shell(variables, launcher.command(plan.ranks), [*PROGRAM, "-n", str(plan.ranks), *plan.words])


def for_shell(variables: Mapping[str, str], *words: Sequence[str]) -> str:
    """A command for a shell with this process's environment, its parts on lines of their own.

    variables: the environment that the command is to have.
    """
    removed = [f"-u {name}" for name in sorted(os.environ.keys() - variables.keys())]
    changed = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    assigned = ["env " + " ".join(removed)] if removed else []
    assigned += [f"{name}={shlex.quote(value)}" for name, value in sorted(changed.items())]
    return " \\\n    ".join([*assigned, *map(shlex.join, words)])


def plan_words(plan: Plan, token: str | None = None) -> list[str]:
    """What every rank is told of the plan that it must find carried out.

    token: of the lines by which it tells its verdict; None where nobody reads them.
    """
    run = ["--run-dir", f"@{token}"] if token else []
    network = ["--expect-network", plan.network] if plan.network else []
    silence = ["--host-timeout", f"{plan.host_timeout:g}"]
    return [*run, *silence, "--expect", str(plan.hosts), str(plan.per_host), *network, "-n", str(plan.ranks)]


def rank_words(place: str, columns: int | None) -> list[str]:
    """What every rank is told of the process that waits. place: as `runner.verdict.run_at` takes it."""
    terminal = [] if columns is None else ["--tty", str(columns)]
    colour = ["--colour"] if sys.stdout.isatty() else []
    return ["--run-dir", place, *terminal, *colour]
