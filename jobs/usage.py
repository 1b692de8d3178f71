"""Commands whose mistakes in their words end with an exit status that their callers know."""

from __future__ import annotations

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

    def make_context(self, *arguments: Any, **keywords: Any) -> click.Context:
        with raised_as(self.bad_usage):
            return super().make_context(*arguments, **keywords)

    def invoke(self, ctx: click.Context) -> Any:
        with raised_as(self.bad_usage):
            return super().invoke(ctx)


@contextmanager
def raised_as(kind: type[click.UsageError]) -> Iterator[None]:
    """Mistakes in words have the exit status of `kind`, whether click finds them or the runner does."""
    try:
        yield
    except click.UsageError as mistake:
        raise kind(mistake.format_message(), mistake.ctx) from mistake
    except runner.UserError as mistake:
        mistake.exit_code = kind.exit_code
        raise
