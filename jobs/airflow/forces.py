"""Drag and lift over time: coefficients, their files, and the frequency at which vortices are shed.

Coefficients are 2 F / (rho U^2 A), where A is the body's length across the flow times its depth. Rows count
downwards, so that the lift, which is positive upwards, is minus the force along the rows. Time is in units of
length / U: a frequency is a Strouhal number, f * length / U.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jobs.airflow.shapes.bodies import Body
from jobs.measure import plots
from runner.errors import UserError
from runner.files import write_file
from runner.region import HostArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEWEST_PERIODS = 4
FEWEST_SAMPLES = 10  # in a period: three harmonics and the mean are fitted to it
HARMONICS = 3
ALIKE = (0.8, 1.25)  # amplitude of a period by that of the last ones, where vortices are shed regularly
SETTLED = 0.02  # difference of the mean drag of a period from that of the last ones, as a part of it
REGULAR = 0.5  # part of the lift's variance that belongs to the fundamental and its harmonics, at least
STILL = 1e-4  # amplitude of the lift by the drag, below which the flow is steady
# The two-sided 95 % quantile of Student's t for 1, 2, ... degrees of freedom; then by Cornish and Fisher.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
NORMAL = 1.959964


@dataclass(frozen=True)
class History:
    """Force coefficients over time, arrays of (samples,). steps: whole numbers. time: in length / U.
    side: across the flow, towards larger depth; None in two axes."""

    steps: HostArray
    time: HostArray
    drag: HostArray
    lift: HostArray
    side: HostArray | None = None

    @property
    def columns(self) -> dict[str, HostArray]:
        found = {"step": self.steps, "time": self.time, "drag": self.drag, "lift": self.lift}
        return found if self.side is None else {**found, "side": self.side}


@dataclass(frozen=True)
class Shedding:
    """Regular shedding of vortices, over the last `periods` whole periods.

    strouhal: f * length / U, and its uncertainty: half the width of the 95 % confidence interval, by what
    differs from period to period; cells and time steps that are too large are not in it. drag, lift: means.
    greatest_drag, greatest_lift: of the last FEWEST_PERIODS, when what the start left has died away; the
    amplitude of the lift is of its fundamental.
    """

    strouhal: float
    uncertainty: float
    periods: int
    drag: float
    greatest_drag: float
    lift: float
    greatest_lift: float
    lift_amplitude: float


def coefficients(steps: Sequence[int], force: HostArray, body: Body, speed: float) -> History:
    """Return coefficients of samples of the force, in lattice units: (samples, axes), in the array's axes.

    speed: of the free stream, or the mean one of a channel, in cells a step. The density is 1.
    """
    values = np.asarray(force, np.float64) * (2 / (speed**2 * body.reference))
    numbers = np.asarray(steps, np.int64)
    side = values[:, 0] if values.shape[1] == 3 else None
    return History(numbers, numbers * (speed / body.length), values[:, -1], -values[:, -2], side)


def write_csv(history: History, path: Path) -> None:
    """Write a line for each sample: step, time, drag, lift and, over three axes, side. UserError."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(history.columns)
    for row in zip(*(column.tolist() for column in history.columns.values()), strict=True):
        writer.writerow(row)
    try:
        write_file(path, text.getvalue())
    except OSError as reason:
        raise UserError(f"cannot write {path}", why=reason.strerror or reason) from reason


def plot(history: History, path: Path, title: str) -> None:
    """Write a plot of the coefficients over time, as .png, .svg or .html. UserError without matplotlib."""

    def draw(figure: Figure) -> None:
        names = ["drag", "lift", *(["side"] if history.side is not None else [])]
        for number, name in enumerate(names, 1):
            axes = figure.add_subplot(len(names), 1, number)
            values = history.columns[name]
            axes.plot(history.time, values, linewidth=1, color=f"C{number - 1}")
            axes.set_ylabel(f"{name} coefficient")
            axes.grid(True, color="0.9")
            axes.set_ylim(*_limits(values))
        axes.set_xlabel("time * speed / length")

    rows = ([f"{value:.6g}" for value in row] for row in zip(*history.columns.values(), strict=True))
    plots.save(draw, path, title, [plots.Sheet(list(history.columns), rows)])


def _limits(values: HostArray) -> tuple[float, float]:
    """Limits of an axis that shows the later half whole; what is larger at the start is cut off."""
    later = values[len(values) // 2 :]
    later = later[np.isfinite(later)]
    if not later.size:
        return 0.0, 1.0
    low, high = float(later.min()), float(later.max())
    margin = 0.5 * (high - low) + 0.05 * max(abs(low), abs(high)) + 1e-12
    return low - margin, high + margin


def shedding(history: History) -> Shedding:
    """Measure the Strouhal number, and the coefficients over the last whole periods.

    To each period, the mean, the fundamental and its harmonics are fitted by least squares. A straight line
    through the phases of the fundamental gives the frequency; the residuals of the phases give its
    uncertainty, as Student's t of so many periods. Periods count back from the end, as long as the amplitude
    and the mean drag are like those of the last ones. UserError if the flow is steady, irregular, sampled too
    rarely, or if fewer than four regular periods are seen.
    """
    time, lift, drag = (np.asarray(one) for one in (history.time, history.lift, history.drag))
    if len(time) < 2 * FEWEST_SAMPLES or not (np.isfinite(lift).all() and np.isfinite(drag).all()):
        got = f"{len(time)} samples" if len(time) < 2 * FEWEST_SAMPLES else "values that are not finite"
        raise UserError("the lift has no frequency", got=got, expected=_EXPECTED)
    if np.ptp(lift[len(lift) // 2 :]) / 2 <= STILL * abs(float(np.mean(drag[len(lift) // 2 :]))):
        raise UserError("the lift has no frequency", got="a steady flow", expected="vortices that are shed")
    frequency = _rough_frequency(time, lift)
    spacing = float(np.median(np.diff(time)))
    if 1 / (frequency * spacing) < FEWEST_SAMPLES:
        raise UserError(
            "the lift is sampled too rarely for its frequency",
            got=f"{1 / (frequency * spacing):.1f} samples in a period",
            expected=f"at least {FEWEST_SAMPLES}",
        )
    for _ in range(3):  # windows of whole periods need the frequency that they give
        periods = _periods(time, lift, drag, frequency)
        if len(periods) < FEWEST_PERIODS - 1:
            break
        frequency, uncertainty = _slope(periods, frequency)
    if len(periods) < FEWEST_PERIODS:
        raise UserError(
            "fewer than four regular periods of the lift were seen",
            got=f"{len(periods)} in a time of {time[-1] - time[0]:.4g} length / speed",
            expected=_EXPECTED,
            hint=f"more steps; a period takes about {1 / frequency:.3g} length / speed",
        )
    kept = time > time[-1] - len(periods) / frequency
    last = time > time[-1] - FEWEST_PERIODS / frequency
    mean, fitted = float(lift[kept].mean()), _regular_part(time[kept], lift[kept], frequency)
    if fitted < REGULAR:
        raise UserError(
            "the lift has no frequency",
            got=f"only {fitted:.0%} of its variance at one frequency and its multiples",
            expected="vortices that are shed regularly",
        )
    return Shedding(
        strouhal=frequency,
        uncertainty=uncertainty,
        periods=len(periods),
        drag=float(drag[kept].mean()),
        greatest_drag=float(drag[last].max()),
        lift=mean,
        greatest_lift=float(lift[last].max()),
        lift_amplitude=float(np.mean([abs(one.fundamental) for one in periods])),
    )


_EXPECTED = f"at least {FEWEST_PERIODS} regular periods, {FEWEST_SAMPLES} samples in each"


@dataclass(frozen=True)
class _Period:
    """middle: its time. fundamental: the complex amplitude of the lift's frequency in it. drag: mean."""

    middle: float
    fundamental: complex
    drag: float


def _rough_frequency(time: HostArray, lift: HostArray) -> float:
    """Return the frequency of the highest peak of the windowed spectrum of the later half."""
    later = len(time) // 2
    values = lift[later:] - np.polyval(np.polyfit(time[later:], lift[later:], 1), time[later:])
    count = len(values)
    padded = 8 * count
    power = np.abs(np.fft.rfft(values * np.hanning(count), padded))
    power[: 8 + 4] = 0  # less than one and a half periods in the later half
    peak = int(np.argmax(power))
    spacing = (time[-1] - time[later]) / (count - 1)
    return peak / (padded * float(spacing))


def _periods(time: HostArray, lift: HostArray, drag: HostArray, frequency: float) -> list[_Period]:
    """Return the regular periods up to the end, the last one first."""
    found: list[_Period] = []
    end = float(time[-1])
    while (end - 1 / frequency) >= time[0] - 1e-9 / frequency:
        begin = end - 1 / frequency
        inside = slice(*np.searchsorted(time, [begin, end], side="right"))
        middle = (begin + end) / 2
        design = _design(time[inside] - middle, frequency)
        values, *_ = np.linalg.lstsq(design, lift[inside], rcond=None)
        found.append(_Period(middle, complex(values[1], -values[2]), float(drag[inside].mean())))
        end = begin
    sizes, drags = (np.array(one) for one in ([abs(p.fundamental) for p in found], [p.drag for p in found]))
    for number in range(len(found)):
        near = slice(max(0, number - 1), number + 2)  # a single period may be noisy
        size, mean = (np.median(one[near]) / np.median(one[:FEWEST_PERIODS]) for one in (sizes, drags))
        if not (ALIKE[0] <= size <= ALIKE[1] and abs(mean - 1) <= SETTLED):
            return found[:number]
    return found


def _design(time: HostArray, frequency: float) -> HostArray:
    """The mean, and cosine and sine of each harmonic, as columns."""
    turns = 2 * math.pi * frequency * time
    waves = [wave(number * turns) for number in range(1, HARMONICS + 1) for wave in (np.cos, np.sin)]
    return np.stack([np.ones_like(time), *waves], 1)


def _slope(periods: Sequence[_Period], frequency: float) -> tuple[float, float]:
    """Return the frequency by a line through the phases, and its uncertainty at 95 %."""
    times = np.array([one.middle for one in periods])
    carried = np.array([one.fundamental for one in periods]) * np.exp(-2j * math.pi * frequency * times)
    phases = np.unwrap(np.angle(carried)) / (2 * math.pi)
    from_mean = times - times.mean()
    spread = float((from_mean**2).sum())
    slope = float((from_mean * phases).sum()) / spread
    residuals = phases - phases.mean() - slope * from_mean
    free = len(periods) - 2
    error = math.sqrt(float((residuals**2).sum()) / free / spread)
    return frequency + slope, _student(free) * error


def _student(free: int) -> float:
    if free <= len(STUDENT):
        return STUDENT[free - 1]
    z = NORMAL
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / free + second / free**2 + third / free**3


def _regular_part(time: HostArray, lift: HostArray, frequency: float) -> float:
    """Return the part of the variance that one frequency and its harmonics make."""
    design = _design(time - time.mean(), frequency)
    values, *_ = np.linalg.lstsq(design, lift, rcond=None)
    left = lift - design @ values
    return 1 - float(left.var() / lift.var())
