"""Find commands: plug-ins by entry point, imported only when used, and the one in a line of arguments."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from shlex import join
from typing import TYPE_CHECKING, Any

import click

from meshrun.launch.cli.errors import check_empty_arguments

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMAND_GROUP = "meshrun.commands"  # group of entry points
# Summaries of our own plug-ins, whose import would take longer than the rest of the help.
SUMMARIES = {
    "meshrun.jobs.bench.cli:bench": "Measure collectives: the NCCL tests.",
    "meshrun.launch.cli.doctor:doctor": "Show the hardware of every rank, and all problems.",
    "meshrun.launch.cli.kernel:kernel": "Print the kernel that a job's function becomes.",
    "meshrun.launch.cli.launch:launch": "Start ranks on several hosts.",
    "meshrun.launch.cli.plan:plan": "Predict the time and memory of a run, without a GPU or MPI.",
    "meshrun.launch.cli.running.mcp_server:mcp_server": "Serve plans, runs and verdicts to an assistant.",
    "meshrun.launch.cli.running.status:status": "Show what each rank of your runs on this host is doing.",
    "meshrun.jobs.validate.cli:validate": "Check whether GPUs and links are healthy.",
}
ARGUMENTS = "meshrun.words"  # in click's meta: the command and its arguments
# nccl-tests' programs, as built with and without MPI.
NCCL_TESTS = re.compile(r"([a-z_]+)_perf(?:_mpi)?")
# Commands that no ranks run, or not with an option.
WITHOUT_RANKS = (
    ("jobs",), ("completion",), ("help",), ("kernel",), ("launch",), ("plan",), ("status",),
    ("bench", "compare"), ("bench", "plot"), ("validate", "--simulate"),
)  # fmt: skip
VALUES = {"--colour": 0, "--expect": 2}  # number of values of options before the command; others have one


class Commands(click.Group):
    """The built-in commands, and plug-ins, which are imported only when used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        ours = [name for name, known in self.commands.items() if not known.hidden]
        return sorted({*ours, *_entry_points()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or _load(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        args = _by_our_names(args)
        ctx.meta[ARGUMENTS] = tuple(args)
        if args and self.get_command(ctx, args[0]) is None and (close := self._closest(ctx, args[0])):
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {close!r}?", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not getattr(command, "texts", False):
            check_empty_arguments(command, rest, click.Context(command, info_name=name, parent=ctx))
        return name, command, rest

    def _closest(self, ctx: click.Context, name: str) -> str | None:
        """The command that was probably meant; click knows only those that are loaded."""
        return next(iter(difflib.get_close_matches(name, self.list_commands(ctx), 1)), None)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [
            (name, known.get_short_help_str(60)) for name, known in self.commands.items() if not known.hidden
        ]
        rows += [
            (name, SUMMARIES.get(entry.value, f"from {entry.value}"))
            for name, entry in _entry_points().items()
            if name not in self.commands
        ]
        with formatter.section("Commands"):
            formatter.write_dl(sorted(rows))


def _by_our_names(words: list[str]) -> list[str]:
    """The words with `bench all_reduce` for nccl-tests' `all_reduce_perf`; likewise nvbandwidth."""
    if words[:1] == ["nvbandwidth"]:
        return ["bench", *words]
    match = NCCL_TESTS.fullmatch(words[0]) if words else None
    return words if match is None else ["bench", match[1], *words[1:]]


def ranks_asked(ran: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """The number of ranks that a command's own options ask for, and the words without these options.

    ran: the command's name and arguments. Only a command with a method `ranks_asked(words)` has such options,
    as `bench` has nccl-tests' -g and -t.
    """
    ask = _method(ran, "ranks_asked")
    if ask is None:
        return 1, tuple(ran)
    ranks, rest = ask(ran[1:])
    return int(ranks), (ran[0], *rest)


def conclude(
    ran: Sequence[str],
    status: int,
    why: str,
    *,
    rank_status: int | None = None,
    answer: str | None = None,
    files: bool = True,
) -> int:
    """Have a command print its result after a run that ended without one; returns the exit status.

    Only commands with a method `conclude(words, status, why, rank_status, answer, files)` have such a result.
    ran: the command's name and arguments. `partial(conclude, ran)` is a `launch.supervise.judge.Conclude`.
    """
    give = _method(ran, "conclude")
    return status if give is None else int(give(ran[1:], status, why, rank_status, answer, files))


def has_result(ran: Sequence[str]) -> bool:
    """Whether `conclude` prints something for this command."""
    return _method(ran, "conclude") is not None


def _method(ran: Sequence[str], name: str) -> Callable[..., Any] | None:
    """The method of this name of the plug-in that `ran` begins with; None if it has none."""
    from meshrun.runner.errors import MeshrunError

    try:
        return getattr(_load(ran[0]), name, None) if ran else None
    except (MeshrunError, click.UsageError):  # reported when the command was loaded
        return None


def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=COMMAND_GROUP)}


def _load(name: str) -> click.Command | None:
    entry = _entry_points().get(name)
    if entry is None:
        return None
    from meshrun.runner.errors import Importing

    with Importing(f"the command {name} ({entry.value})"):
        command = entry.load()
    if not isinstance(command, click.Command):
        raise click.UsageError(f"the command {name} ({entry.value}) is not a click command")
    return command


def without_ranks(words: Sequence[str]) -> str | None:
    """The command at the beginning of `words`, with its option if there is one, if no ranks run it."""
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    for name in WITHOUT_RANKS:
        begin = tuple(word for word in name if not word.startswith("--"))
        if tuple(words[: len(begin)]) == begin and options.issuperset(name[len(begin) :]):
            return " ".join(name)
    return None


def check_words(root: click.Command, words: Sequence[str]) -> None:
    """UsageError unless every rank would accept these arguments. root: the command `meshrun`."""
    group: click.Command | None = root
    name, rest = "meshrun", list(words)
    ctx: click.Context | None = None
    while isinstance(group, click.Group):
        ctx = click.Context(group, info_name=name, parent=ctx)
        if not rest:
            raise click.UsageError("Missing command.", ctx)
        if rest[0].startswith("-"):
            raise click.UsageError(
                f"Missing command before {rest[0]}; launch starts the ranks, without -n", ctx
            )
        found, group, rest = group.resolve_command(ctx, rest)
        name = found or name
    assert group is not None
    group.make_context(name, rest, parent=ctx)
    asked, plain = ranks_asked(_by_our_names(list(words)))
    if asked > 1:
        from meshrun.runner.errors import UserError

        raise UserError(
            "launch starts the ranks, so the command cannot start some too",
            got=f"-g and -t for {asked} ranks",
            expected=f"-j HOSTSx{asked}, without -g and -t",
            hint=f"-j 1x{asked} -- {join(plain)}",
        )
    if single := without_ranks(words):
        raise click.UsageError(f"`meshrun {single}` starts no ranks")


def command_in(words: Sequence[str]) -> Sequence[str]:
    """The command that ranks run and its arguments, from the arguments of `meshrun`; () if there is none."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        joined = "=" in rest[0] or (rest[0].startswith("-n") and rest[0] != "-n")
        del rest[: 1 if joined else 1 + VALUES.get(rest[0], 1)]
    if rest and rest[0] == "launch":
        return rest[rest.index("--") + 1 :] if "--" in rest else ()
    return rest
