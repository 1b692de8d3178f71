"""Commands whose mistakes in their words end with an exit status that their callers know."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import click

import runner


class StrictCommand(click.Command):
    """bad_usage: as what mistakes in its words are raised. Options may have hyphens for underscores."""

    bad_usage: ClassVar[type[click.UsageError]]

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.context_settings["token_normalize_func"] = lambda word: word.replace("-", "_")

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with raised_as(self.bad_usage, click.Context(self, info_name=info_name, parent=parent)):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with raised_as(self.bad_usage):
            return super().invoke(ctx)


class Finite(click.FloatRange):
    """A number in a range; "nan" and "inf" are none."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a valid float.", param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return float(super().convert(number, param, ctx))


@contextmanager
def raised_as(kind: type[click.UsageError], ctx: click.Context | None = None) -> Iterator[None]:
    """Mistakes in words have the exit status of `kind`, whether click finds them or the runner does.

    ctx: of the command, for those that click does not tell.
    """
    try:
        yield
    except click.UsageError as mistake:
        raise kind(mistake.format_message(), mistake.ctx or ctx) from mistake
    except runner.UserError as mistake:
        mistake.exit_code = kind.exit_code
        raise
