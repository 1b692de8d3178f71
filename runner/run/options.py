"""Options of a run, parsed and checked, and the context that its functions share."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.job.signature import FORM
from meshrun.runner.options.choices import (
    BOUNDARIES,
    COLORS,
    DEVICES,
    FUSE,
    Checksum,
    Copies,
    DeviceChoice,
    FuseMath,
    HaloChoice,
)
from meshrun.runner.options.form import Form, form_of, is_length
from meshrun.runner.options.spelling import option
from meshrun.runner.options.step_options import (
    STEPS_MOST,
    StepOptions,
    parse_interval,
    parse_range,
    parse_until,
)
from meshrun.runner.options.stream_options import DEPTH_MOST, StreamOptions, check_size, parse_size

TEXTS = {"checkpoint": parse_interval, "frame_range": parse_range, "until": parse_until}
VERIFY = ("off", "sample", "full")
CHECKSUM: tuple[str, ...] = get_args(Checksum)
CHOICES = {
    "device": DEVICES,
    "verify": VERIFY,
    "checksum": CHECKSUM,
    "boundary": BOUNDARIES,
    "input_order": ("C", "F"),
    "fuse": FUSE,
    "fuse_math": get_args(FuseMath),
    "frame_colors": COLORS,
    "halo": get_args(HaloChoice),
    "copies": get_args(Copies),
}
FLAGS = ("overlap", "oversubscribe", "overwrite_input", "resume", "static", "debug")
SIZES = ("chunk_bytes", "host_memory", "device_memory")
FILES = ("json", "timeline", "frames")
COUNTS = ("steps", "steps_per_exchange", "check_finite", "every")
RANKS_MOST = 1 << 17  # of a plan, which visits every rank's block


@dataclass(frozen=True)
class Options:
    """Values of the command's options with the same names.

    overlap: None: chosen by device. overwrite_input: an output may replace an input. boundary, cval, fuse:
    None: the job's own. form: declared form of inputs without a header, one for all or one for each. stream,
    steps: options of streamed runs, and of runs that take steps. rates: file of this machine's rates.
    """

    device: DeviceChoice = "auto"
    json: str | None = None
    verify: str = "off"
    checksum: Checksum = "off"
    grid: str | None = None
    boundary: str | None = None
    cval: float | None = None
    overlap: bool | None = None
    fuse: str | None = None
    fuse_math: str = "strict"
    oversubscribe: bool = False
    overwrite_input: bool = False
    debug: bool = False
    form: Form | tuple[Form, ...] | None = None
    stream: StreamOptions = field(default_factory=StreamOptions)
    steps: StepOptions = field(default_factory=StepOptions)
    rates: Path | None = None


def read_options(keywords: Mapping[str, Any], rates: Path | None = None) -> Options:
    """Build Options from keywords; raises UserError for a value that the command would refuse.

    keywords: every option of `meshrun run` by its name, with underscores; None if it is not given.
    """
    values = {name: checked(name, value) for name, value in keywords.items()}
    form = form_of(*(values.pop(f"input_{name}") for name in FORM))
    stream = StreamOptions(**{name: values.pop(name) for name in StreamOptions.__dataclass_fields__})
    given = {name: values.pop(name) for name in StepOptions.__dataclass_fields__}
    steps = StepOptions(**{name: value for name, value in given.items() if value is not None})
    return Options(**values, form=form, stream=stream, steps=steps, rates=rates)


def checked(name: str, value: Any) -> Any:
    """Return the value of an option as the command would have it; UserError where it would refuse it."""
    if value is None:
        return None
    if name == "verify" and isinstance(value, bool):
        return "sample" if value else "off"
    if name in CHOICES and value not in CHOICES[name]:
        raise _invalid(name, f"{value!r} is not one of {', '.join(map(repr, CHOICES[name]))}")
    if name in FLAGS and not isinstance(value, bool):
        raise _invalid(name, f"{value!r} is neither True nor False")
    reader = READERS.get(name)
    if reader is None or (name in AS_TEXT and isinstance(value, str)):
        return value
    return reader(name, value)


def _invalid(name: str, what: str) -> UserError:
    return UserError(f"Invalid value for {option(name)!r}: {what}")


def whole_number(value: Any) -> int | None:
    """Return a whole number of Python or NumPy; None for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _size(name: str, value: Any) -> int:
    number = whole_number(value)
    try:
        if isinstance(value, str):
            return parse_size(value)
        return check_size(0 if number is None else number, value)
    except UserError as reason:
        raise _invalid(name, f"{reason.what}; expected {reason.expected}") from reason


def _depth(name: str, value: Any) -> int:
    number = int(value) if isinstance(value, str) and is_length(value.strip()) else whole_number(value)
    if number is None:
        raise _invalid("depth", f"{value!r} is not a valid integer")
    if not 1 <= number <= DEPTH_MOST:
        raise _invalid("depth", f"{number} is not in the range 1<=x<={DEPTH_MOST}")
    return number


def _count(name: str, value: Any, most: int = STEPS_MOST) -> int:
    number = whole_number(value)
    if number is None:
        raise _invalid(name, f"{value!r} is not a valid integer")
    if not 1 <= number <= most:
        raise _invalid(name, f"{number} is not in the range 1<=x<={most}")
    return number


def _parsed(name: str, value: Any) -> Any:
    """Parse the text of an option by its function in TEXTS; other values are converted to text first."""
    parts = value if isinstance(value, (tuple, list)) else [value]
    text = ":".join(",".join(map(str, one)) if isinstance(one, (tuple, list)) else str(one) for one in parts)
    try:
        return TEXTS[name](text)
    except UserError as reason:
        raise _invalid(name, f"{reason.what}; expected {reason.expected}") from reason


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise _invalid(name, f"{value!r} is not a valid float") from None


def _joined(name: str, value: Any) -> str:
    """Join axis lengths as the command line writes them: 2x4 for (2, 4), 2x4,4x3 for [(2, 4), (4, 3)]."""
    if isinstance(value, (tuple, list)) and value and all(isinstance(one, (tuple, list)) for one in value):
        return ",".join(_joined(name, one) for one in value)
    numbers = [whole_number(one) for one in (value if isinstance(value, Sequence) else [value])]
    if None in numbers:
        raise _invalid(name, f"{value!r} is neither a text such as '2x4' nor numbers such as (2, 4)")
    return "x".join(map(str, numbers))


def _dtype(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ",".join(_dtype(name, one) for one in value)
    try:
        return str(np.dtype(value))
    except TypeError:
        raise _invalid(name, f"{value!r} is not a dtype") from None


def _path(name: str, value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise _invalid(name, f"{value!r} is not a path")
    return os.fspath(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _invalid(name, f"{value!r} is not a text")
    return value


AS_TEXT = ("grid", "input_shape", "input_dtype")  # texts of these are parsed later
READERS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(FILES, _path),
    **dict.fromkeys(("gpu", "frame_field"), _text),
    **dict.fromkeys(SIZES, _size),
    **dict.fromkeys(COUNTS, _count),
    **dict.fromkeys(("ranks", "hosts"), partial(_count, most=RANKS_MOST)),
    **dict.fromkeys(TEXTS, _parsed),
    "cval": _number,
    **dict.fromkeys(("grid", "input_shape"), _joined),
    "depth": _depth,
    "input_dtype": _dtype,
}
