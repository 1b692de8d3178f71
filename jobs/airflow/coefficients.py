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

from meshrun.jobs.airflow.shapes.bodies import Body
from meshrun.jobs.measure import plots
from meshrun.runner.errors import UserError
from meshrun.runner.files import write_file
from meshrun.runner.region import HostArray
from meshrun.runner.report.record import Record
from meshrun.runner.spelling import option

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEWEST_PERIODS = 4
FEWEST_SAMPLES = 10  # in a period: three harmonics and the mean are fitted to it
HARMONICS = 3
ALIKE = (0.8, 1.25)  # amplitude of a period by that of the last ones, where vortices are shed regularly
SETTLED = 0.02  # difference of the mean drag of a period from that of the last ones, as a part of it
REGULAR = 0.5  # part of the lift's variance that belongs to the fundamental and its harmonics, at least
STILL = 1e-4  # amplitude of the lift by the drag, below which the flow is steady
DECAY = (
    0.01  # part of its amplitude that a lift may lose from period to period: vortices that are shed lose none
)
UNSURE = 0.05  # uncertainty of a Strouhal number, as a part of it, above which there is none
SAME = 0.03  # difference of two frequencies that are the same, as a part of them
HEARD = 0.01  # part of the lift's variance in the band of a sound, from which on it is one
# The two-sided 95 % quantile of Student's t for 1, 2, ... degrees of freedom; then by Cornish and Fisher.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
NORMAL = 1.959964


@dataclass(frozen=True)
class History:
    """Force coefficients over time, arrays of (samples,). steps: whole numbers. time: in length / U.
    side: across the flow, towards larger depth; None in two axes. parts: the same of each separate body."""

    steps: HostArray
    time: HostArray
    drag: HostArray
    lift: HostArray
    side: HostArray | None = None
    parts: Sequence[History] = ()

    @property
    def columns(self) -> dict[str, HostArray]:
        """Arrays by the names of a file's columns: of part N, drag_N, lift_N and side_N."""
        found = {"step": self.steps, "time": self.time, **self._coefficients}
        for number, part in enumerate(self.parts, 1):
            found |= {f"{name}_{number}": values for name, values in part._coefficients.items()}
        return found

    @property
    def _coefficients(self) -> dict[str, HostArray]:
        found = {"drag": self.drag, "lift": self.lift}
        return found if self.side is None else {**found, "side": self.side}


@dataclass(frozen=True)
class Shedding:
    """Regular shedding of vortices, over the last `periods` whole periods.

    strouhal: f * length / U, and its uncertainty: half the width of the 95 % confidence interval, by what
    differs from period to period; cells and time steps that are too large are not in it. drag, lift: means.
    lift_rms: root mean square of the lift's difference from its mean. begin: time at which these periods
    begin.
    greatest_drag, greatest_lift: of the last FEWEST_PERIODS, when what the start left has died away; the
    amplitude of the lift, half of its range, too.
    """

    strouhal: float
    uncertainty: float
    periods: int
    begin: float
    drag: float
    greatest_drag: float
    lift: float
    lift_rms: float
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


def shedding(history: History, sounds: Sequence[float] = ()) -> Shedding:
    """Measure the Strouhal number, and the coefficients over the last whole periods.

    To each period, the mean, the fundamental and its harmonics are fitted by least squares. A straight line
    through the phases of the fundamental gives the frequency; the residuals of the phases give its
    uncertainty, as Student's t of so many periods. Periods count back from the end, as long as the amplitude
    and the mean drag are like those of the last ones, or to the middle of the run if that is enough of them.
    sounds: frequencies of sound in the domain, which no Strouhal number may be. UserError if the flow is
    steady, irregular or sampled too rarely, if the lift decays, if its frequency is that of a sound or not
    that of the drag, or if fewer than four regular periods are seen.
    """
    time, lift, drag = (np.asarray(one) for one in (history.time, history.lift, history.drag))
    if len(time) < 2 * FEWEST_SAMPLES or not (np.isfinite(lift).all() and np.isfinite(drag).all()):
        got = f"{len(time)} samples" if len(time) < 2 * FEWEST_SAMPLES else "values that are not finite"
        raise UserError("the lift has no frequency", got=got, expected=_EXPECTED)
    last_quarter = slice(3 * len(lift) // 4, None)
    if np.ptp(lift[last_quarter]) / 2 <= STILL * abs(float(np.mean(drag[last_quarter]))):
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
        regular = periods = _periods(time, lift, drag, frequency)
        if len(periods) < FEWEST_PERIODS - 1:
            break
        # What the start left changes the figures by more than their uncertainty: leave out the first half.
        later = [one for one in regular if one.middle - 0.5 / frequency >= (time[0] + time[-1]) / 2]
        periods = later if len(later) >= FEWEST_PERIODS else regular
        frequency, uncertainty = _slope(periods, frequency)
    if len(periods) < FEWEST_PERIODS:
        more = f"more steps; a period takes about {1 / frequency:.3g} length / speed"
        if (time[-1] - time[0]) * frequency > 4 * FEWEST_PERIODS:
            more = (
                f"more steps, or look at {option('forces', 'forces.csv')}: vortices may be shed irregularly"
            )
        raise UserError(
            "fewer than four regular periods of the lift were seen",
            got=f"{len(periods)} in a time of {time[-1] - time[0]:.4g} length / speed",
            expected=_EXPECTED,
            hint=more,
        )
    _check_decay(regular)
    _check_sound(frequency, uncertainty, sounds)
    if uncertainty > UNSURE * frequency:
        raise UserError(
            "the lift's frequency differs from period to period",
            got=f"{frequency:.3g}, with an uncertainty of {uncertainty:.2g}",
            expected=f"at most {UNSURE:.0%} of it",
            hint="more steps; vortices may also be shed irregularly",
        )
    begin = float(time[-1]) - len(periods) / frequency
    kept = time > begin
    last = time > time[-1] - FEWEST_PERIODS / frequency
    mean, fitted = float(lift[kept].mean()), _regular_part(time[kept], lift[kept], frequency)
    if fitted < REGULAR:
        raise UserError(
            "the lift has no frequency",
            got=f"only {fitted:.0%} of its variance at one frequency and its multiples",
            expected="vortices that are shed regularly",
        )
    _check_drag(time[kept], lift[kept], drag[kept], frequency)
    return Shedding(
        strouhal=frequency,
        uncertainty=uncertainty,
        periods=len(periods),
        begin=begin,
        drag=float(drag[kept].mean()),
        greatest_drag=float(drag[last].max()),
        lift=mean,
        lift_rms=float(lift[kept].std()),
        greatest_lift=float(lift[last].max()),
        lift_amplitude=float(np.ptp(lift[last])) / 2,
    )


def averages(history: History, sounds: Sequence[float] = ()) -> tuple[Record, float | None]:
    """Return what a run reports of its forces, and the frequency of a sound that the lift contains, or None.

    Averages are those of `shedding`, or over the later half with the reason why there is no Strouhal number.
    `averaged_steps` are the first and the last step of the samples that they are taken over. sounds:
    frequencies of sound in the domain.
    """
    try:
        shed = shedding(history, sounds)
    except UserError as reason:
        window = slice(len(history.drag) // 2, None)
        lift = history.lift[window]
        found: Record = {
            "drag": float(np.mean(history.drag[window])),
            "lift": float(np.mean(lift)),
            "lift_rms": float(np.std(lift)),
            "lift_amplitude": float(np.ptp(lift)) / 2,
            "averaged_steps": [int(step) for step in history.steps[window][[0, -1]]],
            "strouhal": None,
            "strouhal_reason": str(reason),
        }
        return found | _of_parts(history, sounds), heard_sound(history, sounds)
    first = int(np.searchsorted(history.time, shed.begin, side="right"))
    return {
        "drag": shed.drag,
        "greatest_drag": shed.greatest_drag,
        "lift": shed.lift,
        "greatest_lift": shed.greatest_lift,
        "lift_rms": shed.lift_rms,
        "lift_amplitude": shed.lift_amplitude,
        "averaged_steps": [int(history.steps[first]), int(history.steps[-1])],
        "strouhal": shed.strouhal,
        "strouhal_uncertainty": shed.uncertainty,
        "periods": shed.periods,
        **_of_parts(history, sounds),
    }, heard_sound(history, sounds, shed)


def _of_parts(history: History, sounds: Sequence[float]) -> Record:
    """Return the same figures of each separate body, with its number after their names."""
    found: Record = {}
    for number, part in enumerate(history.parts, 1):
        own, _ = averages(part, sounds)
        names = ("drag", "lift", "lift_rms", "lift_amplitude", "strouhal", "strouhal_reason")
        found |= {f"{name}_{number}": own[name] for name in names if name in own}
    return found


def heard_sound(history: History, sounds: Sequence[float], shed: Shedding | None = None) -> float | None:
    """Return the frequency of the sound in the domain that most of the lift's power belongs to.

    sounds: frequencies of sound in the domain. shed: vortices, whose part of the lift does not count. Looks
    at the later half; None if no part of the lift that counts has one of these frequencies.

    >>> time = np.linspace(0, 100, 2000)
    >>> lift = 0.3 * np.sin(1.0 * time) + 0.1 * np.sin(2.5 * time)
    >>> history = History(np.arange(2000), time, np.full(2000, 1.5), lift)
    >>> heard_sound(history, [0.2, 2.5 / (2 * math.pi), 0.9])
    0.39788735772973836
    """
    later = slice(len(history.time) // 2, None)
    time, lift, drag = (np.asarray(one)[later] for one in (history.time, history.lift, history.drag))
    if len(time) < 2 * FEWEST_SAMPLES or not np.isfinite(lift).all():
        return None
    left = lift - np.polyval(np.polyfit(time, lift, 1), time)
    variance = float(left.var())
    if shed is not None:
        design = _design(time - time.mean(), shed.strouhal)
        values, *_ = np.linalg.lstsq(design, left, rcond=None)
        left = left - design @ values
    spacing = float(time[-1] - time[0]) / (len(time) - 1)
    window = np.hanning(len(left))
    power = np.abs(np.fft.rfft(left * window)) ** 2
    frequencies = np.fft.rfftfreq(len(left), spacing)
    variances = 2 * power / (len(left) * (window**2).sum())  # of each frequency; their sum is the variance
    resolution = 2 / (len(left) * spacing)
    found = {}
    for one in sounds:
        width = max(SAME * one, resolution)
        band = abs(frequencies - one) <= width
        beside = (abs(frequencies - one) <= 3 * width) & ~band
        if not band.any() or (beside.any() and power[beside].max() > power[band].max()):
            continue
        part = float(variances[band].sum())
        if part > HEARD * variance and math.sqrt(2 * part) > STILL * abs(float(drag.mean())):
            found[one] = part
    return max(found, key=lambda one: found[one]) if found else None


def _check_decay(periods: Sequence[_Period]) -> None:
    """Raise UserError if the amplitude of the lift falls from period to period. periods: the last first."""
    numbers = -np.arange(len(periods), dtype=float)
    sizes = np.log([abs(one.fundamental) for one in periods])
    from_mean = numbers - numbers.mean()
    spread = float((from_mean**2).sum())
    slope = float((from_mean * sizes).sum()) / spread
    residuals = sizes - sizes.mean() - slope * from_mean
    error = math.sqrt(float((residuals**2).sum()) / (len(periods) - 2) / spread)
    if slope + 3 * _student(len(periods) - 2) * error < -DECAY:  # noise alone may look like it in 1 of 20
        raise UserError(
            "the lift has no frequency of its own",
            got=f"an amplitude that falls by {-math.expm1(slope):.1%} from period to period",
            expected="vortices that are shed",
            hint="more steps, after which the flow is steady or sheds vortices",
        )


def _check_sound(frequency: float, uncertainty: float, sounds: Sequence[float]) -> None:
    for one in sounds:
        if abs(frequency - one) <= max(SAME * one, uncertainty):
            raise UserError(
                "the lift has the frequency of sound in the domain",
                got=f"{frequency:.4g}, and sound from side to side has {one:.4g}",
                expected="a frequency of vortices",
                hint=f"{option('sides', 'slip')}, which absorbs sound, or another height of the domain",
            )


def _check_drag(time: HostArray, lift: HostArray, drag: HostArray, frequency: float) -> None:
    """Raise UserError if the drag, where it changes more than the lift, has a frequency of its own.

    Vortices change the drag at their frequency or twice as often. The lifts of two bodies may cancel, and
    leave something else.
    """
    level = np.polyval(np.polyfit(time, drag, 1), time)
    if (drag - level).std() <= lift.std():
        return
    other = _rough_frequency(time, drag, 0)
    if min(abs(other / frequency - times) / times for times in (1, 2)) > SAME:
        raise UserError(
            "the lift and the drag have different frequencies",
            got=f"{frequency:.4g} of the lift, and {other:.4g} of the drag, which changes more",
            expected="a drag that changes once or twice in a period of the lift",
            hint="look at the forces on each body",
        )


_EXPECTED = f"at least {FEWEST_PERIODS} regular periods, {FEWEST_SAMPLES} samples in each"


@dataclass(frozen=True)
class _Period:
    """middle: its time. fundamental: the complex amplitude of the lift's frequency in it. drag: mean."""

    middle: float
    fundamental: complex
    drag: float


def _rough_frequency(time: HostArray, lift: HostArray, later: int | None = None) -> float:
    """Return the frequency of the highest peak of the windowed spectrum. later: first sample that counts, by
    default of the later half."""
    later = len(time) // 2 if later is None else later
    values = lift[later:] - np.polyval(np.polyfit(time[later:], lift[later:], 1), time[later:])
    count = len(values)
    padded = 8 * count
    power = np.abs(np.fft.rfft(values * np.hanning(count), padded))
    power[: 8 + 4] = 0  # less than one and a half periods
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
