"""Commands of other packages, found by entry point and imported only when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from launch.refuse import refuse_empty

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMAND_GROUP = "meshrun.commands"  # entry points of further commands
# Of the project's own further commands, whose import would cost more than the rest of the help.
SUMMARIES = {
    "jobs.bench.cli:bench": "Measure collectives: the NCCL tests.",
    "launch.doctor:doctor": "Show what every rank has, and what is wrong with it.",
    "launch.command:launch": "Start ranks on several hosts.",
    "launch.forecast_command:plan": "Tell what a run will take, without a GPU or MPI.",
    "jobs.validate.command:validate": "Say whether the GPUs and wires are healthy.",
}
VALUES = {"--colour": 0, "--expect": 2}  # of options before the command; one of any other
WORDS = "meshrun.words"  # in click's meta: the command and all that follows


class Commands(click.Group):
    """The commands here, and those of other packages, which are imported only when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_further_commands()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or _load(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        ctx.meta[WORDS] = tuple(args)
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not getattr(command, "texts", False):
            refuse_empty(command, rest, click.Context(command, info_name=name, parent=ctx))
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, known.get_short_help_str(60)) for name, known in self.commands.items()]
        further = _further_commands()
        rows += [
            (name, SUMMARIES.get(entry.value, f"from {entry.value}"))
            for name, entry in further.items()
            if name not in self.commands
        ]
        with formatter.section("Commands"):
            formatter.write_dl(sorted(rows))


def conclude(
    ran: Sequence[str],
    status: int,
    why: str,
    *,
    kept: int | None = None,
    answer: str | None = None,
    files: bool = True,
) -> int:
    """Have the command of a run that has ended without its answer give it; the exit status.

    That is for a command with a method `conclude(words, status, why, kept, answer, files)`. ran: its name and
    its words. why: as it was told. kept: the status of ranks that end and say nothing; None where no rank was
    started. answer: what rank 0 has kept of it. files: the command may write those that its words name.
    """
    from runner.errors import MeshrunError

    try:
        give = getattr(_load(ran[0]), "conclude", None) if ran else None
    except (MeshrunError, click.UsageError):  # told when it was asked for
        return status
    return status if give is None else int(give(ran[1:], status, why, kept, answer, files))


def command_in(words: Sequence[str]) -> Sequence[str]:
    """Of the words of a `meshrun`, the command that ranks run and what follows it; () where there is none."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        joined = "=" in rest[0] or (rest[0].startswith("-n") and rest[0] != "-n")
        del rest[: 1 if joined else 1 + VALUES.get(rest[0], 1)]
    if rest and rest[0] == "launch":
        return rest[rest.index("--") + 1 :] if "--" in rest else ()
    return rest


def _further_commands() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=COMMAND_GROUP)}


def _load(name: str) -> click.Command | None:
    entry = _further_commands().get(name)
    if entry is None:
        return None
    from runner.errors import Importing

    with Importing(f"the command {name} ({entry.value})"):
        command = entry.load()
    if not isinstance(command, click.Command):
        raise click.UsageError(f"the command {name} ({entry.value}) is no click command")
    return command
