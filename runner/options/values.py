"""How values of options are written and read: kinds of values, one class each.

`read` returns a program's value, or the command's text, as the run has it, and raises UserError where the
value is wrong; `error.what` names no option. `python` is the type that a program may pass. `form`, if a
docstring has it, says how a program writes the value.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from meshrun.runner.errors import UserError
from meshrun.runner.options.boundary import spelled
from meshrun.runner.options.choices import BOUNDARIES, BoundaryRules
from meshrun.runner.options.form import is_length

DIGITS_MOST = 40  # digits of a size that are read
SIZE_MOST = (1 << 63) - 1  # bytes: the largest file offset
SIZES = "a number of bytes such as 64M or 1.5G"


def whole_number(value: Any) -> int | None:
    """Return a whole number of Python or NumPy; None for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


@dataclass(frozen=True)
class ChoiceValue:
    """A word of a Literal. flags: True stands for the second word, and False for the first."""

    python: Any
    flags: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(word for word in get_args(self.python) if isinstance(word, str))

    @property
    def form(self) -> str:
        return ", ".join(f'"{word}"' for word in self.words) + (", or True or False" if self.flags else "")

    def read(self, value: Any) -> str:
        if self.flags and isinstance(value, bool):
            return self.words[value]
        if value not in self.words:
            raise UserError(f"{value!r} is not one of {', '.join(map(repr, self.words))}")
        return str(value)


@dataclass(frozen=True)
class BoundaryValue:
    """A boundary of all inputs, axes and sides, or of each. The job checks what it names."""

    python: Any = BoundaryRules
    form: str = 'a mode, or {"p": ("wrap", (0.0, "nearest"))}'

    def read(self, value: Any) -> str:
        if isinstance(value, str) and value.isidentifier() and value not in BOUNDARIES:
            raise UserError(f"{value!r} is not one of {', '.join(map(repr, BOUNDARIES))}")
        return spelled(value)


@dataclass(frozen=True)
class FlagValue:
    """True or False."""

    python: Any = bool
    form: str = ""

    def read(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise UserError(f"{value!r} is neither True nor False")
        return value


@dataclass(frozen=True)
class CountValue:
    """A whole number from 1 to `most`; None: without limit. texts: a program may pass digits as a text."""

    most: int | None
    texts: bool = False
    python: Any = int
    form: str = ""

    def read(self, value: Any) -> int:
        is_digits = self.texts and isinstance(value, str) and is_length(value.strip())
        number = int(value) if is_digits else whole_number(value)
        if number is None:
            raise UserError(f"{value!r} is not a valid integer")
        if number < 1 or (self.most is not None and number > self.most):
            limits = "x>=1" if self.most is None else f"1<=x<={self.most}"
            raise UserError(f"{number} is not in the range {limits}")
        return number


@dataclass(frozen=True)
class NumberValue:
    """A floating-point number. positive: greater than 0."""

    positive: bool = False
    python: Any = float
    form: str = ""

    def read(self, value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError):
            raise UserError(f"{value!r} is not a valid float") from None


@dataclass(frozen=True)
class TextValue:
    """A text or, with `paths`, the path of a file or folder."""

    paths: bool = False
    form: str = ""

    @property
    def python(self) -> Any:
        return str | Path if self.paths else str

    def read(self, value: Any) -> str:
        if not isinstance(value, str | os.PathLike if self.paths else str):
            raise UserError(f"{value!r} is not a {'path' if self.paths else 'text'}")
        return str(os.fspath(value))


@dataclass(frozen=True)
class LengthsValue:
    """Lengths along axes: 2x4, or 2x4,4x3 for two arrays. A text is parsed where the array is known."""

    several: bool = False
    form: str = '"2x4" or (2, 4)'

    @property
    def python(self) -> Any:
        one = str | Sequence[int]
        return one | Sequence[Sequence[int]] if self.several else one

    def read(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, (tuple, list)) and value and all(isinstance(n, (tuple, list)) for n in value):
            return ",".join(map(self.read, value))
        numbers = [whole_number(n) for n in (value if isinstance(value, Sequence) else [value])]
        if None in numbers:
            raise UserError(f"{value!r} is neither a text such as '2x4' nor numbers such as (2, 4)")
        return "x".join(map(str, numbers))


@dataclass(frozen=True)
class DtypeValue:
    """A dtype or its name, or a list of them for several arrays."""

    python: Any = Any
    form: str = "a dtype or its name"

    def read(self, value: Any) -> str:
        import numpy as np  # not for --help

        if isinstance(value, str):
            return value
        if isinstance(value, list):
            return ",".join(map(self.read, value))
        try:
            return str(np.dtype(value))
        except TypeError:
            raise UserError(f"{value!r} is not a dtype") from None


@dataclass(frozen=True)
class SizeValue:
    """A number of bytes, also as a text with a unit."""

    python: Any = int | str
    form: str = 'bytes, or a text such as "64M"'

    def read(self, value: Any) -> int:
        if isinstance(value, str):
            return parse_size(value)
        size = whole_number(value)
        return _checked_size(0 if size is None else size, value)


def parse_size(text: str) -> int:
    """Parse a size such as 64M or 1.5G into bytes (K, M, G, T: powers of 1024); raises UserError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UserError(f"{text!r} is not a size", expected=SIZES)
    whole, unit = match[1], 1024 ** " KMGT".index(match[2].upper() or " ")
    if len(whole) > DIGITS_MOST:  # more than Python or a float converts
        whole = whole.partition(".")[0].lstrip("0")[:DIGITS_MOST] or "0"
    return _checked_size(int(whole) * unit if whole.isdecimal() else int(float(whole) * unit), text)


def _checked_size(size: int, given: object) -> int:
    """Return `size` if a file or memory can have it, else raise UserError. given: the size as written."""
    if size < 1:
        raise UserError(f"{given!r} is not a size", expected=SIZES)
    if size > SIZE_MOST:
        raise UserError(
            f"{given!r} is more than any file or memory has", expected=f"at most {SIZE_MOST} bytes"
        )
    return size


@dataclass(frozen=True)
class ParsedValue:
    """A text that `parse` reads; it raises UserError. Other values are converted to such a text first: a
    tuple to one with colons, a tuple in it to one with commas."""

    parse: Callable[[str], Any]
    python: Any
    form: str = ""

    def read(self, value: Any) -> Any:
        parts = value if isinstance(value, (tuple, list)) else [value]
        return self.parse(
            ":".join(",".join(map(str, n)) if isinstance(n, (tuple, list)) else str(n) for n in parts)
        )


OptionValue = (
    ChoiceValue
    | BoundaryValue
    | FlagValue
    | CountValue
    | NumberValue
    | TextValue
    | LengthsValue
    | DtypeValue
    | SizeValue
    | ParsedValue
)
