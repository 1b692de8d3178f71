"""Options of runs that take steps."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from meshrun.runner.errors import UserError
from meshrun.runner.options.choices import COLORS, Colors, Copies, HaloChoice
from meshrun.runner.options.table import first_given, row
from meshrun.runner.options.values import ChoiceValue, CountValue, ParsedValue, TextValue
from meshrun.runner.spelling import option

STEPS_MOST = 10**12
LOOKS = 8  # how often ranks check the clock within an interval of seconds
EVERY = 10  # steps between two checks of --until, unless --every says otherwise


@dataclass(frozen=True)
class SaveInterval:
    """Interval between two checkpoints: in steps or in seconds; the other one is None."""

    steps: int | None = None
    seconds: float | None = None

    def steps_to_look(self, passed: float, steps: int) -> int:
        """Return after how many further steps to look at the clock, in an interval of seconds.

        passed, steps: seconds since the last checkpoint, and the steps taken in them.
        """
        if not steps or passed <= 0 or self.seconds is None:
            return 1
        wait = max(math.floor(steps / passed * self.seconds / LOOKS), 1)
        return min(wait, 2 * steps)  # the first steps may be slower than the others


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
class NamedRule:
    """Stop by a rule that the job provides. tolerance: as given; None: as the job chooses."""

    name: str
    tolerance: float | None = None


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


def parse_until(text: str) -> float | FieldChange | NamedRule:
    """Parse when to stop: 1e-6 (a change in a step), 1e-6:u,v (of some fields), steady or steady:1e-6.

    Raises UserError for other texts.
    """
    word, colon, rest = text.strip().partition(":")
    named = word == "steady"
    if named and not colon:
        return NamedRule(word)
    try:
        tolerance = float(rest if named else word)
    except ValueError:
        tolerance = math.nan
    if named and 0 < tolerance < 1:
        return NamedRule(word, tolerance)
    if named:
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


@dataclass(frozen=True)
class StepOptions:
    """Options of a run that takes steps."""

    steps: int | None = row(
        CountValue(STEPS_MOST), "Take N steps: each result is the next step's input.", metavar="N"
    )
    steps_per_exchange: int | None = row(
        CountValue(STEPS_MOST),
        "Exchange halos K times as wide, every K steps.",
        metavar="K",
        default_text="as one kernel takes, or 1",
    )
    halo: HaloChoice = row(
        ChoiceValue(HaloChoice),
        "How GPUs exchange halos: by messages, or by storing into each other's memory.",
        default="auto",
        default_text="auto",
    )
    copies: Copies = row(
        ChoiceValue(Copies),
        "Copies of the fields in memory: two, or one, which takes half the bytes.",
        default="auto",
        default_text="two where they fit",
    )
    until: float | FieldChange | NamedRule | None = row(
        ParsedValue(
            parse_until,
            float | str | tuple[float, str | Sequence[str]],
            '1e-6, "1e-6:u,v" or (1e-6, ("u", "v")), "steady" or "steady:1e-6"',
        ),
        "Stop when no cell, of the fields named or of any, changes by more than this in a step, checked "
        f"every {EVERY} or {{every}} steps; or when a flow is steady.",
        metavar="TOLERANCE[:FIELD,...]|steady[:TOLERANCE]",
    )
    check_finite: int | None = row(
        CountValue(STEPS_MOST),
        "Fail if a value is not finite, checked every N steps. Without {steps}, fail for a NaN in the "
        "condition of a loop, and for a result that is not finite.",
        metavar="N",
    )
    every: int | None = row(
        CountValue(STEPS_MOST), "Steps between two frames, or checks of {until}.", metavar="N"
    )
    frames: str | None = row(
        TextValue(paths=True),
        "Write frames: a folder of PNGs, .gif, .webp, .png or .mp4; or all cells to .npy or .zarr.",
        metavar="DIR|FILE",
    )
    frame_field: str | None = row(
        TextValue(), "Input that frames show.", metavar="NAME", default_text="the first"
    )
    frame_range: tuple[float, float] | None = row(
        ParsedValue(parse_range, str | tuple[float, float], '"0:1" or (0, 1)'),
        "Values of the first and the last colour.",
        metavar="LOW:HIGH",
        default_text="the first frame's",
    )
    frame_colors: Colors = row(ChoiceValue(Colors), "Colour map.", default=COLORS[0], default_text=COLORS[0])
    checkpoint: SaveInterval | None = row(
        ParsedValue(parse_interval, int | str),
        "Save the state every N steps, or every 30s, 5min or 1h; continue with {resume:True}.",
        metavar="EVERY",
    )

    @property
    def named(self) -> str | None:
        """The first given option that applies only to runs that take steps, as `option` spells it."""
        return first_given(self)

    def check(self, *, series: bool = False, whole: bool = False) -> None:
        """Raise UserError for options that need others.

        series: whether the job has any. whole: whether it is a function of whole arrays.
        """
        of_steps = replace(self, check_finite=None) if whole else self
        if self.steps is None and of_steps.named is not None:
            raise UserError(
                f"{of_steps.named} applies only to runs that take steps", hint=option("steps", metavar="N")
            )
        if self.frames is not None and self.every is None:
            raise UserError(
                f"{option('frames')} needs the number of steps between two frames",
                hint=option("every", metavar="N"),
            )
        of_frames = first_given(self, ("frame_field", "frame_range", "frame_colors"))
        if of_frames is not None and self.frames is None:
            raise UserError(f"{of_frames} applies only to frames", hint=option("frames", metavar="FILE"))
        if self.every is not None and self.frames is None and self.until is None and not series:
            raise UserError(
                f"{option('every')} is the interval of {option('frames')} and {option('until')}",
                hint=option("frames", metavar="FILE"),
            )
