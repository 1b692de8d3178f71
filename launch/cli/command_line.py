"""Find the command in the arguments of `meshrun`, and whether ranks run it."""

from __future__ import annotations

from collections.abc import Sequence

import click

WITHOUT_RANKS = (
    ("jobs",),
    ("launch",),
    ("plan",),
    ("bench", "compare"),
    ("bench", "plot"),
)  # commands that no ranks run
VALUES = {"--colour": 0, "--expect": 2}  # number of values of options before the command; others have one


def without_ranks(words: Sequence[str]) -> str | None:
    """The command at the beginning of `words`, if no ranks run it."""
    return next((" ".join(name) for name in WITHOUT_RANKS if tuple(words[: len(name)]) == name), None)


def check_words(root: click.Command, words: Sequence[str]) -> None:
    """UsageError unless every rank would accept these arguments. root: the command `meshrun`."""
    if single := without_ranks(words):
        raise click.UsageError(f"`meshrun {single}` starts no ranks")
    group: click.Command | None = root
    name, rest = "meshrun", list(words)
    ctx: click.Context | None = None
    while isinstance(group, click.Group):
        ctx = click.Context(group, info_name=name, parent=ctx)
        if not rest:
            raise click.UsageError("Missing command.", ctx)
        found, group, rest = group.resolve_command(ctx, rest)
        name = found or name
    assert group is not None
    group.make_context(name, rest, parent=ctx)


def command_in(words: Sequence[str]) -> Sequence[str]:
    """The command that ranks run and its arguments, from the arguments of `meshrun`; () if there is none."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        joined = "=" in rest[0] or (rest[0].startswith("-n") and rest[0] != "-n")
        del rest[: 1 if joined else 1 + VALUES.get(rest[0], 1)]
    if rest and rest[0] == "launch":
        return rest[rest.index("--") + 1 :] if "--" in rest else ()
    return rest
