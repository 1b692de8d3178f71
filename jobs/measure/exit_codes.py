"""Exit statuses of the measuring commands: usage errors that click or the runner finds, and failed runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import click

from meshrun.runner.errors import Exit, RunError, UserError


class WrongResults(RunError):
    """Wrong data, or too slow on average."""

    exit_code = Exit.BENCH_WRONG_RESULTS


class Stuck(RunError):
    """No progress for -T seconds."""

    exit_code = Exit.STUCK


class NeedsGpu(RunError):
    """The measurement needs a GPU and there is none."""

    exit_code = Exit.BENCH_NEEDS_GPU


class StrictCommand(click.Command):
    """A command with its own exit status for usage errors; options accept hyphens for underscores.

    bad_usage: the class that usage errors are raised as.
    """

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


class Parsed(click.ParamType[Any]):
    """What `function` makes of a text; its ValueError or UserError is a usage error. name: as in messages."""

    def __init__(self, name: str, function: Callable[[str], Any]) -> None:
        self.name, self._function = name, function

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):  # a default
            return value
        try:
            return self._function(value)
        except (UserError, ValueError) as reason:
            self.fail(str(reason), param, ctx)


class Finite(click.FloatRange):
    """A number in a range; refuses "nan" and "inf"."""

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
    """Raise usage errors as `kind`, and give the runner's UserError its exit status.

    ctx: of the command, for errors that have none.
    """
    try:
        yield
    except click.UsageError as mistake:
        raise kind(mistake.format_message(), mistake.ctx or ctx) from mistake
    except UserError as mistake:
        mistake.exit_code = kind.exit_code
        raise
