"""Options of runs that take steps."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from meshrun.runner.errors import UserError
from meshrun.runner.options.choices import COLORS, Copies, HaloChoice
from meshrun.runner.options.spelling import option

STEPS_MOST = 10**12
EVERY = 10  # steps between two checks of --until, unless --every says otherwise


@dataclass(frozen=True)
class SaveInterval:
    """Interval between two checkpoints: in steps or in seconds; the other one is None."""

    steps: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class FieldChange:
    """Stop when no cell of some fields changes by more than `tolerance` in a step. fields: their names."""

    tolerance: float
    fields: tuple[str, ...]

    def check(self, changing: Sequence[str]) -> None:
        """Raise UserError for a name that is none of `changing`, the inputs that become new in a step."""
        for name in self.fields:
            if name not in changing:
                raise UserError(
                    f"{option('until')} names {name!r}, which no step changes",
                    expected=f"some of {', '.join(changing)}",
                    hint=next(iter(get_close_matches(name, changing, 1)), None),
                )


@dataclass(frozen=True)
class Steady:
    """Stop when the state is steady. tolerance: greatest relative change; None: as the job declares."""

    tolerance: float | None = None


@dataclass(frozen=True)
class StepOptions:
    """Options of a run that takes steps; None or False: not given.

    steps_per_exchange: steps between two halo exchanges; None: as many as one kernel takes. halo: how GPUs
    exchange them. copies: of the fields in memory; auto: one, if two do not fit and they cannot pass through
    in chunks. until: largest change of any field at which the run stops, or FieldChange or Steady.
    check_finite: steps between two checks for values that are not finite. every: steps between two frames,
    and between two checks of `until`. frames: file or folder for the frames; frame_field: the input that they
    show; frame_range: values of the first and the last colour; frame_colors: name of the colour map.
    checkpoint: interval between checkpoints.
    """

    steps: int | None = None
    steps_per_exchange: int | None = None
    halo: HaloChoice = "auto"
    copies: Copies = "auto"
    until: float | FieldChange | Steady | None = None
    check_finite: int | None = None
    every: int | None = None
    frames: str | None = None
    frame_field: str | None = None
    frame_range: tuple[float, float] | None = None
    frame_colors: str = COLORS[0]
    checkpoint: SaveInterval | None = None

    @property
    def named(self) -> str | None:
        """The first given option that applies only to runs that take steps, as `option` spells it."""
        given = {
            "steps": self.steps is not None,
            "steps_per_exchange": self.steps_per_exchange is not None,
            "halo": self.halo != "auto",
            "copies": self.copies != "auto",
            "until": self.until is not None,
            "check_finite": self.check_finite is not None,
            "every": self.every is not None,
            "frames": self.frames is not None,
            "frame_field": self.frame_field is not None,
            "frame_range": self.frame_range is not None,
            "frame_colors": self.frame_colors != COLORS[0],
            "checkpoint": self.checkpoint is not None,
        }
        return next((option(name) for name, is_given in given.items() if is_given), None)

    def check(self) -> None:
        """Raise UserError for options that need others."""
        if self.steps is None and self.named is not None:
            raise UserError(
                f"{self.named} applies only to runs that take steps", hint=option("steps", metavar="N")
            )
        if self.frames is not None and self.every is None:
            raise UserError(
                f"{option('frames')} needs the number of steps between two frames",
                hint=option("every", metavar="N"),
            )
        for name, given in (
            ("frame_field", self.frame_field is not None),
            ("frame_range", self.frame_range is not None),
            ("frame_colors", self.frame_colors != COLORS[0]),
        ):
            if given and self.frames is None:
                raise UserError(
                    f"{option(name)} applies only to frames", hint=option("frames", metavar="FILE")
                )
        if self.every is not None and self.frames is None and self.until is None:
            raise UserError(
                f"{option('every')} is the interval of {option('frames')} and {option('until')}",
                hint=option("frames", metavar="FILE"),
            )


LONGEST = 1e15  # of an interval, in any unit


def parse_interval(text: str) -> SaveInterval:
    """Parse the interval of checkpoints: 100 (steps), 30s, 5min or 1.5h; raises UserError."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *(|steps?|s|sec|m|min|minutes?|h|hours?)", text.strip())
    if found is not None and (number := float(found[1])) <= LONGEST:
        unit = found[2]
        if unit in ("", "step", "steps"):
            if number >= 1 and number == int(number):
                return SaveInterval(steps=int(number))
        elif number > 0:
            return SaveInterval(seconds=number * {"s": 1, "m": 60, "h": 3600}[unit[0]])
    raise UserError(
        f"{text!r} is not an interval", expected="a number of steps, or a time such as 30s or 5min"
    )


def parse_until(text: str) -> float | FieldChange | Steady:
    """Parse when to stop: 1e-6 (a change in a step), 1e-6:u,v (of some fields), steady or steady:1e-6.

    Raises UserError for other texts.
    """
    word, colon, rest = text.strip().partition(":")
    steady = word == "steady"
    if steady and not colon:
        return Steady()
    try:
        tolerance = float(rest if steady else word)
    except ValueError:
        tolerance = math.nan
    if steady and 0 < tolerance < 1:
        return Steady(tolerance)
    if steady:
        raise UserError(f"{text!r} has no tolerance", expected="a number between 0 and 1: steady:1e-6")
    if not tolerance >= 0:
        raise UserError(
            f"{text!r} is no tolerance",
            expected="0 or more, as in 1e-6 or 1e-6:FIELD, or steady, or a tolerance as in steady:1e-6",
        )
    names = tuple(name.strip() for name in rest.split(","))
    if colon and not all(names):
        raise UserError(f"{text!r} names no field", expected="names of fields, as in 1e-6:u or 1e-6:u,v")
    return FieldChange(tolerance, tuple(dict.fromkeys(names))) if colon else tolerance


def parse_range(text: str) -> tuple[float, float]:
    """Parse the range of colours, LOW:HIGH; raises UserError."""
    low, colon, high = text.partition(":")
    try:
        values = float(low), float(high)
    except ValueError:
        values = (0.0, 0.0)
    if not colon or not values[0] < values[1] or abs(values[0]) == float("inf") == values[1]:
        raise UserError(f"{text!r} is not a range", expected="two numbers such as 0:1 or -2.5:2.5")
    return values
