"""Commands whose mistakes in their words end with an exit status that their callers know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import click

import runner


class StrictCommand(click.Command):
    """usage_status: what mistakes in its words end with. Options may have hyphens for underscores."""

    usage_status: ClassVar[int]

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.context_settings["token_normalize_func"] = lambda word: word.replace("-", "_")

    def make_context(self, *arguments: Any, **keywords: Any) -> click.Context:
        with ending(self.usage_status):
            return super().make_context(*arguments, **keywords)

    def invoke(self, ctx: click.Context) -> Any:
        with ending(self.usage_status):
            return super().invoke(ctx)


@contextmanager
def ending(status: int) -> Iterator[None]:
    """Mistakes in words end with `status`, whether click finds them or the runner does."""
    try:
        yield
    except click.UsageError as mistake:
        mistake.exit_code = status  # type: ignore[misc]  # a class's, says click, but asks the instance
        raise
    except runner.UserError as mistake:
        mistake.exit_code = status
        raise
