"""The table of options: one row for each option of `meshrun run`, `plan` and `kernel`.

A row is the field of a data class that has the option's value in a run, such as

    every: int | None = row(CountValue(MOST), "Steps between two frames, or checks of {until}.", metavar="N")

From the rows come the commands' options, the reading of a program's keywords, the docstrings of `job.run` and
`job.plan`, and the messages that an option does not apply. runner/run/signatures.py writes the keywords once
more, for type checkers; a test compares both.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from meshrun.runner.errors import UserError
from meshrun.runner.options.values import FlagValue, OptionValue
from meshrun.runner.spelling import option, python_caller


@dataclass(frozen=True)
class OptionRow:
    """One option.

    Parameters
    ----------
    values: how its values are written and read.
    help: what it does. `{every}` stands for another option, `{boundary:wrap}` for one with a value.
    default: value in a run if the option is not given.
    default_text: what the default is, in words.
    metavar: what stands for a value in the command's help.
    required: the option must be given.
    short: second name, unless the job has a parameter of that name.
    letter: name of one letter in a command: "v" for -v.
    name: name in Python; with hyphens, in a command. Set by `rows`.
    """

    values: OptionValue
    help: str
    default: Any = None
    default_text: str | None = None
    metavar: str | None = None
    required: bool = False
    short: str | None = None
    letter: str | None = None
    name: str = ""

    @property
    def names(self) -> list[str]:
        return [self.name, *([self.short] if self.short else [])]

    @property
    def is_two_sided(self) -> bool:
        """Whether a command has --NAME and --no-NAME."""
        return isinstance(self.values, FlagValue) and self.default is None

    @property
    def help_text(self) -> str:
        """What the option does, with other options as the caller writes them."""
        return self.help.format_map(_Spelled())

    def read(self, value: Any) -> Any:
        """Return the value of a program's keyword as a run has it; UserError if the value is wrong."""
        try:
            return self.values.read(value)
        except UserError as reason:
            expected = f"; expected {reason.expected}" if reason.expected else ""
            what = f"Invalid value for {option(self.name)!r}: {reason.what}{expected}"
            raise UserError(what) from reason


class _Spelled(dict[str, Any]):
    """For each name in braces, the option of that name."""

    def __missing__(self, name: str) -> _SpelledOption:
        return _SpelledOption(name)


@dataclass(frozen=True)
class _SpelledOption:
    name: str

    def __format__(self, value: str) -> str:
        return option(self.name, {"": None, "True": True}.get(value, value))


def row(
    values: OptionValue, help: str, default: Any = None, default_text: str | None = None, **details: Any
) -> Any:
    """Return the field of a data class for an option; its parameters are those of `OptionRow`."""
    return field(default=default, metadata={"row": OptionRow(values, help, default, default_text, **details)})


@functools.cache
def rows(options: type) -> Mapping[str, OptionRow]:
    """Return the rows of a data class of options, by name."""
    return {
        entry.name: replace(entry.metadata["row"], name=entry.name)
        for entry in fields(options)
        if "row" in entry.metadata
    }


def first_given(options: object, names: Sequence[str] = ()) -> str | None:
    """Return the first option, of `names` or any, that has not its default, as `option` spells it."""
    kind: Any = type(options)
    for name, entry in rows(kind).items():
        if getattr(options, name) != entry.default and (not names or name in names):
            return option(name)
    return None


def read_keywords(table: Iterable[OptionRow], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options that are given; None is not. Raises UserError for a wrong value.

    keywords: by the names of options, also by their short ones.
    """
    values = {}
    for entry in table:
        given = [keywords[name] for name in entry.names if keywords.get(name) is not None]
        if given:
            values[entry.name] = entry.read(given[0])
    return values


def described(table: Iterable[OptionRow]) -> str:
    """Return the section of a docstring that describes keywords of Python."""
    lines = ["Parameters", "----------"]
    for entry in table:
        form, default = entry.values.form, f"Default: {entry.default_text}." if entry.default_text else ""
        with python_caller():
            sentences = [entry.help_text, f"{form[:1].upper()}{form[1:]}." if form else "", default]
        text = f"{', '.join(entry.names)}: {' '.join(filter(None, sentences))}"
        lines += textwrap.wrap(text, 100, subsequent_indent="    ")
    return "\n".join(lines)
