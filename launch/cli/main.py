"""The `meshrun` command: starts ranks or becomes one.

Only the standard library and click are imported before a command runs. A process becomes a rank if
a launcher started it, or if no ranks are to be started; `-n` starts ranks on this machine with the
same arguments.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meshrun.launch import completion
from meshrun.launch import help as help_pages
from meshrun.launch.cli.cli_context import CliContext, terminal_columns
from meshrun.launch.cli.errors import report_error, single_line, usage_message
from meshrun.launch.cli.job_command import HELP_ALL, Jobs
from meshrun.launch.cli.params import (
    MAX_RESTARTS,
    METRICS,
    ON_FAILURE,
    OPERATIONS,
    STALL,
    START,
    WATCH,
    ParsedText,
    gathered,
    per_host,
    restarts,
)
from meshrun.launch.cli.plugins import (
    ARGUMENTS,
    Commands,
    check_words,
    command_in,
    conclude,
    has_result,
    ranks_asked,
    without_ranks,
)
from meshrun.launch.cli.selftest import selftest
from meshrun.launch.spec import HOST_TIMEOUT, Watching

if TYPE_CHECKING:
    from meshrun.runner.errors import MeshrunError
    from meshrun.runner.system.launcher import DetectedLauncher

HELP = ("--help", "-h")
SHOWS_HELP = {*HELP, HELP_ALL}
DEBUG = {"--debug", "--run-debug"}  # the latter for a job with a parameter of this name


def _print_version(ctx: click.Context, _: click.Parameter, requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        click.echo(f"meshrun {version('meshrun')}")
        ctx.exit()


@dataclass(frozen=True)
class Parent:
    """What the process that starts ranks passes on to them, in hidden options."""

    run_dir: str | None
    host_timeout: float
    expect: tuple[int, int | tuple[int, ...]] | None
    expect_network: str | None
    columns: int | None
    colour: bool


@click.group(
    cls=Commands, context_settings={"help_option_names": HELP[::-1]}, subcommand_metavar="COMMAND ..."
)
@click.option(
    "-n", "--ranks", type=click.IntRange(min=1), metavar="N", help="Start this many ranks on this machine."
)
@ON_FAILURE
@MAX_RESTARTS
@START
@STALL
@METRICS
@OPERATIONS
@WATCH
@click.option("--run-dir", hidden=True)
@click.option("--host-timeout", type=float, default=HOST_TIMEOUT, hidden=True)
@click.option("--expect", type=(int, ParsedText("RANKS", per_host)), hidden=True)
@click.option("--expect-network", hidden=True)
@click.option("--tty", "columns", type=int, hidden=True)
@click.option("--colour", is_flag=True, hidden=True)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.pass_context
@gathered(Parent)
@gathered(Watching)
def command(
    ctx: click.Context,
    parent: Parent,
    watching: Watching,
    ranks: int | None,
    on_failure: str,
    max_restarts: int,
    start_timeout: float,
) -> None:
    """Run array work over many GPUs and nodes, and prove that the result is right.

    \b
    meshrun -n 4 run laplacian in.npy out.npy          4 ranks on this machine
    mpirun -n 32 meshrun run laplacian in.npy out.npy  on a cluster; also with srun
    meshrun run laplacian --help                       describe a job and its options
    """
    from meshrun.runner.system.launcher import Started, check_expected, detect_launcher, takes_colour

    launched, words = detect_launcher(), ctx.meta[ARGUMENTS]
    if parent.run_dir is None and words[0] not in command.commands and not {*words} & SHOWS_HELP:
        ranks = _with_own_options(ranks, words, launched)
    if ranks is not None and not {*words} & SHOWS_HELP:
        if ranks > 1 and (single := without_ranks(words)):
            raise click.UsageError(f"`meshrun {single}` starts no ranks; remove -n")
        if ranks > 1 and parent.run_dir is None and not _is_rank(launched):
            from meshrun.launch.mpi.local import start
            from meshrun.launch.supervise.supervisor import Supervision

            if has_result(words):  # which is printed once, before ranks are started in vain
                check_words(command, words)
            supervision = Supervision(
                terminal_columns(),
                debug=not DEBUG.isdisjoint(words),
                conclude=partial(conclude, words),
                restarts=restarts(on_failure, max_restarts, words),
                start_timeout=start_timeout,
            )
            ctx.exit(start(ranks, words, supervision, watching=watching))
        if launched is not None and launched.size is not None:
            check_expected(ranks, launched.size, launched)
    if on_failure == "resume" and not {*words} & SHOWS_HELP:
        if words[0] == "launch":
            raise click.UsageError("--on-failure goes after launch mpirun or launch local")
        raise click.UsageError("--on-failure resume: this command starts no ranks; add -n N, 2 or more")
    if parent.run_dir is not None and launched is not None:
        from meshrun.runner.world.run_status import run_at

        run_at(parent.run_dir).begin(launched.rank, os.uname().nodename, os.getpid())
    planned: tuple[int | None, int | tuple[int, ...] | None] = parent.expect or (None, None)
    ctx.obj = CliContext(
        Started(
            ranks,
            parent.run_dir,
            parent.host_timeout,
            *planned,
            parent.expect_network,
            **vars(watching),
        ),
        parent.columns if launched else terminal_columns(),
        parent.colour if launched else takes_colour(),
        words,
    )


def _with_own_options(
    ranks: int | None, words: Sequence[str], launched: DetectedLauncher | None
) -> int | None:
    """The number of ranks to start: of -n, or of the command's own options, such as -g 8 of `bench`.

    Raises UserError if ranks are started otherwise too: it would be unclear how many are wanted.
    """
    from meshrun.runner.errors import UserError

    asked, plain = ranks_asked(words)
    if asked == 1:
        return ranks
    if ranks is not None:
        raise UserError(
            "both -n and -g start ranks",
            got=f"-n {ranks}, and -g and -t for {asked}",
            expected="one of them",
            hint=shlex.join(["meshrun", "-n", str(asked), *plain]),
        )
    if launched is not None and _is_rank(launched):
        by_srun = "srun" in launched.launcher and "SLURM_STEP_ID" in os.environ
        size = str(asked * (launched.size or 1))
        start = ["srun", "--ntasks", size] if by_srun else ["mpirun", "-np", size]
        raise UserError(
            f"{launched.launcher} has started the ranks, and each of them uses one GPU",
            got=f"-g and -t for {asked} GPUs per rank",
            hint=shlex.join([*start, "meshrun", *plain]),
        )
    return asked


def _is_rank(launched: DetectedLauncher | None) -> bool:
    # An interactive shell under srun is a step with one task, and may start ranks.
    return launched is not None and not (launched.size == 1 and "SLURM_STEP_ID" in os.environ)


@command.group(
    cls=Jobs,
    subcommand_metavar="JOB INPUT [OUTPUT] [OPTIONS]",
    options_metavar="",
    no_args_is_help=False,
)
def run() -> None:
    """Run a job on a file.

    JOB is the name of an installed job (meshrun jobs lists them), a function in your own
    file, FILE.py:NAME, or in a module that is installed or in the working directory,
    package.MODULE:NAME. meshrun run JOB --help describes it and its options.

    An existing OUTPUT is replaced when the new one is complete. An OUTPUT that is also an
    INPUT is refused without --overwrite-input.
    """


@command.command()
def jobs() -> None:
    """List the installed jobs."""
    from meshrun.runner.errors import MeshrunError
    from meshrun.runner.job.discover import find, names

    rows = []
    for name in names():
        try:
            rows.append((name, find(name).summary))
        except MeshrunError as reason:
            rows.append((name, f"cannot be loaded: {single_line(reason)}"))
    width = max((len(name) for name, _ in rows), default=0)
    for name, summary in rows:
        click.echo(f"{name:{width}}  {summary}".rstrip())


@command.command(hidden=True)
@click.argument("folder", type=click.Path(path_type=Path))
@click.pass_obj
def call(cli_context: CliContext, folder: Path) -> int:
    """Run a call, `job.run(..., ranks=N)`, that a Python program has left in FOLDER."""
    from meshrun.runner.job.signature import renamed_options
    from meshrun.runner.run.entry import main
    from meshrun.runner.run.python_call import read_call
    from meshrun.runner.spelling import python_caller

    wanted = read_call(folder)
    with python_caller(renamed_options(wanted.job.parameters)):
        return main(
            wanted.job,
            wanted.inputs,
            wanted.outputs,
            wanted.parameters,
            wanted.options,
            started=cli_context.started,
            columns=cli_context.columns,
            call=folder,
        )


command.add_command(selftest)
command.add_command(completion.completion)
command.add_command(help_pages.show_help)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, 1 for a failed run, 2 for a usage error, 130 for Ctrl-C."""
    open_standard_streams()
    if completion.VARIABLE in os.environ and arguments is None:
        return completion.answer(command)
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    debug = not DEBUG.isdisjoint(words)
    try:
        with command.make_context("meshrun", words.copy()) as ctx:
            status: Any = command.invoke(ctx)
            sys.stdout.flush()
            return status if isinstance(status, int) else 0
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except click.ClickException as mistake:
        return _ended(
            words, mistake.exit_code, usage_message(mistake, () if without_ranks(words) else words), debug
        )
    except (KeyboardInterrupt, click.Abort):
        print("meshrun: interrupted", file=sys.stderr)
        return conclude(command_in(words), 130, "interrupted")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes stdout again at exit
        return 0
    except OSError as failure:
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nothing:  # Python flushes stdout again
            os.dup2(nothing.fileno(), 1)
        return _ended(words, 1, _full(failure), debug)
    except _meshrun_error() as failure:
        return _ended(words, failure.exit_code, str(failure), debug)
    except SystemExit:  # of a rank, with its status
        raise
    except BaseException as failure:  # a defect: its status is the command's to choose, such as `unknown`
        return _ended(words, 1, _described(failure), debug)


def open_standard_streams() -> None:
    """Open standard streams that are closed, as by `>&-`, to nowhere: else a file that is opened, such as the
    output, would get their number, and what libraries print. Let writing wait for a slow reader: another
    program may have left the terminal or pipe without that, and what does not fit would be lost."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.set_blocking(number, True)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # gets the least free number, which is this one
            os.set_inheritable(opened, True)
            setattr(sys, name, os.fdopen(opened, "w" if number else "r", closefd=False))


def _full(failure: OSError) -> str:
    """The message for an unhandled file error, usually a full disk."""
    from meshrun.runner.errors import RunError

    if failure.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        return str(RunError(f"cannot write {failure.filename or ''}".rstrip(), why=failure.strerror))
    return _described(failure)


def _described(failure: BaseException) -> str:
    from meshrun.runner.errors import describe  # only if an error was raised

    return describe(failure)


def _ended(words: Sequence[str], status: int, sentence: str, debug: bool) -> int:
    """Report an error, and print the result of a command that must print one; returns the exit status.

    Where both streams are the same terminal or file, such a result states the error, and only the hint
    follows.
    """
    from meshrun.runner.system.launcher import detect_launcher

    launched, ran = detect_launcher(), command_in(words)
    if words[0] == "--run-dir" or (launched is not None and launched.rank):
        return report_error(sentence, status, words, debug)  # what started the ranks concludes, or rank 0
    if not (has_result(ran) and same_stream(1, 2)):
        report_error(sentence, status, words, debug)
        return conclude(ran, status, sentence)
    status = conclude(ran, status, sentence)
    _, _, hint = sentence.partition(" Try: ")
    if hint or debug:
        report_error(f"Try: {hint}" if hint else sentence, status, words, debug)
    return status


def same_stream(one: int, other: int) -> bool:
    """Whether two file descriptors are open on the same terminal, pipe or file."""
    try:
        return os.path.sameopenfile(one, other)
    except OSError:  # one is closed
        return False


def _meshrun_error() -> type[MeshrunError]:
    # Imported only if an error was raised.
    from meshrun.runner.errors import MeshrunError

    return MeshrunError
