"""What all bench commands share: classes, exit status, common options, and starting on the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import click

from meshrun.jobs.measure.exit_codes import Parsed, StrictCommand
from meshrun.jobs.measure.sizes import parse_nccl_tests_size
from meshrun.runner.errors import Exit
from meshrun.runner.report.record import stdout_for
from meshrun.runner.world.failure import FailureHandler
from meshrun.runner.world.rank_process import run_as_rank

Command = TypeVar("Command", bound=Callable[..., Any])


class BadUsage(click.UsageError):
    exit_code = Exit.BENCH_BAD_REQUEST


class OwnCommand(StrictCommand):
    """A command without an equivalent in nccl-tests: one list of options."""

    bad_usage = BadUsage


class TranslatedCommand(OwnCommand):
    """A command that people may type with the options of another program.

    instead: what to type for such an option, by its name with underscores.
    """

    instead: ClassVar[dict[str, str]] = {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as mistake:
            words = self.instead.get(mistake.option_name)
            if words is None:
                raise
            raise BadUsage(f"No such option {mistake.option_name!r}: {words}", ctx) from None


class OwnGroup(OwnCommand, click.Group):
    """A group of such commands."""


SIZE = Parsed("bytes", parse_nccl_tests_size)
MOST = 2**31 - 1  # nccl-tests' counts are of type int
COUNT, NATURAL = click.IntRange(1, MOST), click.IntRange(0, MOST)
PLOT = click.option("--plot", metavar="FILE", help="Draw a plot: .html, .svg or .png.")
DEBUG = click.option("--debug", is_flag=True, help="Show the traceback of an error.")
LAST = (
    click.option("--device", type=click.Choice(("auto", "cpu", "cuda")), default="auto", show_default=True,
                 help="Measure GPU or host memory."),
    DEBUG,
)  # fmt: skip


def with_options(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """Decorate a command with options, in this order."""

    def add(command: Command) -> Command:
        for one in reversed(options):
            command = one(command)
        return command

    return add


def run_on_ranks(body: Callable[..., dict[str, Any]], options: Any, device: Any, debug: bool) -> int:
    """Run `body(world, handler, options, cli_context)` on every rank; returns the exit status."""
    cli_context = click.get_current_context().obj
    with stdout_for(options.output_file):
        return run_as_rank(
            lambda world, handler: body(world, handler, options, cli_context),
            FailureHandler(
                debug=debug, usage_exit_status=Exit.BENCH_BAD_REQUEST, interrupt_message="interrupted"
            ),
            device=device,
            started=cli_context.started,
            command=" ".join(cli_context.words),
        )
