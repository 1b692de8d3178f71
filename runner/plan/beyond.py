"""Boundaries that differ by input, axis and side: the rule of each side.

`options.boundary` says how they are written. Cells beyond the ends of several axes follow the rule of the
last of these axes, as after `numpy.pad` along one axis after the other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.series import Series
from meshrun.runner.options.boundary import NUMBER, malformed, parsed
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.plan.halo import Constants, Modes, Widths, source_index
from meshrun.runner.region import HostArray
from meshrun.runner.spelling import option


@dataclass(frozen=True)
class Side:
    """What the cells beyond one end of an axis are.

    mode: one of BOUNDARIES. value: of "constant": the number, or the name of the table in time that has it.
    """

    mode: str
    value: float | str = 0.0


Rules = tuple[tuple[Side, Side], ...]  # per axis, before and after the array


def check_boundary(job: Job, text: str) -> None:
    """Raise UserError for a boundary that the job's inputs and parameters do not allow."""
    for name, (axes, _) in parsed(text).items():
        if name and name not in job.arrays:
            raise UserError(
                f"{option('boundary')} names an input that job {job.name} does not have",
                got=name,
                expected=", ".join(job.arrays),
                hint=_close(name, job.arrays),
            )
        for sides in axes:
            for side in sides:
                _check_side(job, side)
            if "wrap" in sides and set(sides) != {"wrap"}:
                raise UserError(
                    f"{option('boundary')}: wrap joins both ends of an axis",
                    got=":".join(sides),
                    expected="wrap on both sides, or on none",
                    hint="wrap, without another rule for this axis",
                )


def _check_side(job: Job, side: str) -> None:
    """Raise UserError for a word that is neither a mode, nor a number, nor a parameter that is one."""
    if side in BOUNDARIES:
        return
    if NUMBER.match(side):
        try:
            _number(side)
        except ValueError:
            raise malformed(side) from None
        return
    numeric = [one.name for one in job.parameters if one.type in (float, int, Series)]
    if side not in numeric:
        given = [one.name for one in job.parameters]
        what = f"the parameter {side} is no number" if side in given else "unknown boundary"
        constants = f", a number, or a parameter that is one ({', '.join(numeric) or 'there are none'})"
        raise UserError(
            f"{option('boundary')}: {what}" if side in given else what,
            got=side,
            expected=", ".join(BOUNDARIES) + constants,
            hint=_close(side, (*BOUNDARIES, *numeric)),
        )


def _close(word: str, words: Sequence[str]) -> str | None:
    return next(iter(get_close_matches(word, words, 1)), None)


def _number(text: str) -> float:
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


def rules_of(
    job: Job, text: str, cval: float, name: str, widths: Widths, parameters: Mapping[str, Any]
) -> Rules:
    """Return the rules of one input.

    cval: the number of "constant". widths: of its halo. parameters: as functions get them. Raises UserError
    for a boundary of other axes than the input has.
    """
    words = parsed(text)
    axes, of_all = words.get(name) or words.get("") or ([("reflect",)], True)
    if of_all:
        axes = axes * len(widths)
    needed = max((axis + 1 for axis, width in enumerate(widths) if width != (0, 0)), default=0)
    if not needed <= len(axes) <= len(widths):
        which = f"the input {name}" if len(job.arrays) > 1 else "the input"
        raise UserError(
            f"{option('boundary')} names {len(axes)} {'axis' if len(axes) == 1 else 'axes'} of {which}",
            got=text,
            expected=f"one entry for each of its {len(widths)} axes"
            + (f", or for the first {needed}, which have a halo" if needed < len(widths) else ""),
            hint="for both sides of one axis, a pair in the place of its entry: before and after",
        )
    axes = axes + [("nearest",)] * (len(widths) - len(axes))
    rules = []
    for sides in axes:
        before, after = sides if len(sides) == 2 else sides * 2
        rules.append((_side(job, before, cval, parameters), _side(job, after, cval, parameters)))
    return tuple(rules)


def _side(job: Job, word: str, cval: float, parameters: Mapping[str, Any]) -> Side:
    if word in BOUNDARIES:
        return Side(word, cval if word == "constant" else 0.0)
    if NUMBER.match(word):
        return Side("constant", _number(word))
    value = parameters[word]
    if isinstance(value, np.ndarray):
        if value.ndim != 1 or not value.size:
            raise UserError(
                f"{option('boundary')}: each row of the table {word} must be one number",
                got=f"shape {'x'.join(map(str, value.shape))}",
                expected="one column, and a row for each step",
            )
        return Side("constant", word)
    if value is None:
        raise UserError(
            f"{option('boundary')}: the parameter {word} has no value", hint=option(word, metavar="NUMBER")
        )
    return Side("constant", value)


def rules_text(rules: Rules) -> str:
    """Return the rules of one input as `options.boundary` writes them."""

    def word(side: Side) -> str:
        return str(side.value) if side.mode == "constant" else side.mode

    pairs = ((word(before), word(after)) for before, after in rules)
    return ",".join(before if before == after else f"{before}:{after}" for before, after in pairs)


def repeated_along(axes: Sequence[int], rules: Rules) -> Rules:
    """Return the rules of an input whose cells along some axes are all the same.

    So are the cells beyond their ends, as every mode but "constant" says.
    """

    def repeated(side: Side) -> Side:
        return Side("nearest") if side.mode == "constant" else side

    return tuple(
        (repeated(before), repeated(after)) if axis in axes else (before, after)
        for axis, (before, after) in enumerate(rules)
    )


def modes_of(rules: Rules) -> Modes:
    return tuple((before.mode, after.mode) for before, after in rules)


def constants_of(rules: Rules, parameters: Mapping[str, Any], step: int) -> Constants:
    """Return the constants of each axis in a step."""

    def value(side: Side) -> Any:
        return parameters[side.value][step] if isinstance(side.value, str) else side.value

    return tuple((value(before), value(after)) for before, after in rules)


def check_tables(rules: Sequence[Rules], parameters: Mapping[str, Any], steps: int) -> None:
    """Raise UserError for a table in time of a boundary that has fewer rows than there are steps."""
    for side in {side for one in rules for axis in one for side in axis}:
        if isinstance(side.value, str) and len(parameters[side.value]) < steps:
            raise UserError(
                f"the table {side.value} of {option('boundary')} is too short for {steps:,} steps",
                got=f"{len(parameters[side.value]):,} rows",
                expected=f"{steps:,} rows",
                hint=f"a longer table, or fewer {option('steps')}",
                everywhere=True,
            )


def uniform(rules: Sequence[Rules], widths: Sequence[Widths]) -> Side | None:
    """Return the rule of all sides that have a halo, if it is one. rules, widths: of each input."""
    sides = {
        side
        for of_axes, of_input in zip(rules, widths, strict=True)
        for axis, width in zip(of_axes, of_input, strict=True)
        for side, cells in zip(axis, width, strict=True)
        if cells
    }
    if not sides:
        return Side("nearest")
    (side, *others) = sides
    same = not others and not isinstance(side.value, str) and not math.isnan(side.value)
    return side if same else None


def padded(own: HostArray, widths: Widths, modes: Modes, constants: Constants) -> HostArray:
    """Return an array with the cells beyond its ends, by `source_index`."""
    block = own
    for axis, (low, high) in enumerate(widths):
        length = own.shape[axis]
        sources = [source_index(at, length, modes[axis][at >= length]) for at in range(-low, length + high)]
        block = np.take(block, [0 if one is None else one for one in sources], axis)
        for place, source in enumerate(sources):
            if source is None:
                block[(slice(None),) * axis + (place,)] = constants[axis][place >= low + length]
    return block
