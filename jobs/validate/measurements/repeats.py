"""How often to measure: noisier measurements take more samples; suspects are looked at again over some time.

A retest is sequential: it ends if its first looks clear all suspects (`outliers.clear_threshold`). Only what
is still slow is looked at over the plan's span.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np

from meshrun.jobs.measure.outliers import (
    MEDIAN_ERROR,
    clear_threshold,
    column_middles,
    row_medians,
    sample_noise,
    samples_needed,
)
from meshrun.jobs.validate.localize.observations import Observations, Siblings, tabulate
from meshrun.jobs.validate.localize.set_cover import PartKind, PartName, rows_through
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.probe.api import Probe, Seconds
from meshrun.jobs.validate.probe.metered import TimeUpError
from meshrun.jobs.validate.topology import Ints

RETEST_REPEATS = 5  # looks of a retest over the plan's span, at least
LONG_SAMPLES, MOST_SAMPLES = 48, 384  # samples of a longer first measurement
LEAST_ROWS = 8  # of a round, whose median shows what slows them all: four pairs, both ways

Round = TypeVar("Round")
Measure = Callable[[Round, int], Seconds]  # a round, samples -> seconds


def spaced_repeats(count: int, span: float, probe: Probe) -> Iterator[int]:
    """Yield 0 to `count` - 1, waiting before each so that all take at least `span` seconds."""
    begin = probe.clock()
    for number in range(count):
        pause = span * (number + 1) / count - (probe.clock() - begin)
        if pause > 0:
            probe.wait(pause)
        yield number


def measure_repeatedly(
    measure: Measure[Round],
    rounds: Sequence[Round],
    samples: int,
    count: int = 1,
) -> list[Seconds]:
    """Measure all rounds `count` times. Returns the seconds of each round, with the samples of all repeats.

    A temporary disturbance (other work, heat) thus affects few samples of a part.
    """
    parts = [[measure(each, samples) for each in rounds] for _ in range(count)]
    return [np.concatenate(of_one, axis=1) for of_one in zip(*parts, strict=True)] if count > 1 else parts[0]


def repeats_in_time(
    measure: Measure[Round], rounds: Sequence[Round], samples: int, count: int
) -> list[list[Seconds]]:
    """Measure all rounds `count` times, or as often as there is time. Returns the seconds of each repeat."""
    found = []
    with suppress(TimeUpError):
        for _ in range(count):
            found.append([measure(each, samples) for each in rounds])
    return found


def measure_first(
    measure: Measure[Round],
    rounds: Sequence[Round],
    samples: int,
    plan: Plan,
    longer: bool = False,
    repeats: int = 1,
    again: bool = True,
) -> tuple[list[Seconds], float]:
    """Measure all rounds `repeats` times, and more often if they are noisy and there is time.

    samples: of each round in a repeat. longer: as many samples as show a part at the critical rate, at least
    LONG_SAMPLES and at most MOST_SAMPLES. again: more often because of noise. Returns the seconds of each
    round (`without_common`), and the noise as `repeats_needed` takes it.
    """
    found = measure_repeatedly(measure, rounds, samples, repeats)
    steady = [without_common(each) for each in found]
    noise, done = noise_of_rounds(steady, samples), repeats
    for turn in range(3):
        count = repeats_needed(noise, samples, plan) if again and not turn else done
        if longer:  # noise that the samples of a repeat share shows only between repeats
            wanted = min(max(samples_needed(noise, -math.log(plan.critical)), LONG_SAMPLES), MOST_SAMPLES)
            count = max(count, math.ceil(wanted / samples))
        if count <= done:
            break
        more = repeats_in_time(measure, rounds, samples, count - done)
        if not more:
            break
        found = [np.concatenate(parts, axis=1) for parts in zip(found, *more, strict=True)]
        steady = [without_common(each) for each in found]
        noise, done = max(noise, noise_of_rounds(steady, samples)), done + len(more)
        if done < count:
            break
    return steady, noise


def without_common(seconds: Seconds) -> Seconds:
    """Return a round's samples without what slows, or speeds up, more than half of its rows at one moment.

    seconds: (rows, samples). A busy network, or a host that all flows pass, is no reason to call one of them
    slow; nor should it hide one that is. Rounds of few rows stay as they are.
    """
    if len(seconds) < LEAST_ROWS:
        return seconds
    logs = np.log(seconds)
    moments = logs - row_medians(logs)[:, None]
    slow, fast = column_middles(moments)
    return np.asarray(np.exp(logs - np.maximum(slow, 0) - np.minimum(fast, 0)))


def noise_of_rounds(seconds: Sequence[Seconds], samples: int) -> float:
    """Return the standard deviation of the log of one sample, as if samples were independent.

    samples: in one repeat. Noise that the samples of one repeat share is scaled accordingly.
    """
    # A part of the rounds is enough.
    rows = np.concatenate(seconds[: 1 + 200_000 // max(seconds[0].size, 1)])
    of_repeats = np.median(rows.reshape(len(rows), -1, samples), axis=2)
    common = sample_noise(of_repeats) * math.sqrt(samples) / MEDIAN_ERROR
    return max(sample_noise(rows), common)


def looks(noise: float, span: float, plan: Plan, probe: Probe) -> Iterator[int]:
    """Yield the samples of each look of a retest; noisy measurements take more looks."""
    count = RETEST_REPEATS * repeats_needed(noise, plan.retest_samples, plan)
    for _ in spaced_repeats(count, span, probe):
        yield samples_of_look(plan)


def samples_of_look(plan: Plan) -> int:
    return max(plan.retest_samples // RETEST_REPEATS, 3)


class RetestSamples:
    """Samples of rounds that are measured again and again."""

    def __init__(self) -> None:
        self.rounds: dict[bytes, tuple[Ints, list[Seconds]]] = {}

    def add(self, flows: Ints, seconds: Seconds) -> None:
        """flows: (rows, 2), of a round. seconds: (rows, samples)."""
        self.rounds.setdefault(flows.tobytes(), (flows, []))[1].append(seconds)

    def table(self, siblings: Callable[[Ints, Ints], Siblings], plan: Plan) -> Observations:
        flows = [flows for flows, _ in self.rounds.values()]
        seconds = [np.concatenate(parts, axis=1) for _, parts in self.rounds.values()]
        return tabulate(flows, seconds, siblings, plan, retested=True)

    def mostly_slow(
        self,
        name: PartName,
        siblings: Callable[[Ints, Ints], Siblings],
        part_kinds: Callable[[Observations], list[PartKind]],
        plan: Plan,
    ) -> bool:
        """Return whether a part was slow in `slow_share` of the looks: of their samples together, those of
        half of the looks, in which others loaded it, would be enough.
        """
        looks = min(len(parts) for _, parts in self.rounds.values())
        slow = 0
        for look in range(looks):
            flows = [flows for flows, _ in self.rounds.values()]
            seconds = [parts[look] for _, parts in self.rounds.values()]
            table = tabulate(flows, seconds, siblings, plan, retested=True)
            level = table.level[rows_through(part_kinds(table), name)]
            slow += bool(len(level) and np.median(level) > plan.tolerance / 2)
        return slow >= plan.slow_share * looks


def look_until_clear(
    look: Callable[[RetestSamples, int], None],
    siblings: Callable[[Ints, Ints], Siblings],
    part_kinds: Callable[[Observations], list[PartKind]],
    suspects: Collection[PartName],
    noise: float,
    plan: Plan,
    probe: Probe,
    named: Collection[PartName] = (),
) -> tuple[Observations, list[PartName]]:
    """Retest suspects: look at once, and if that does not clear all of them, for as long as the plan's span.

    look: adds so many more samples of all rounds. siblings: as `tabulate` takes them. part_kinds, named: as
    of `RungMeasurement`; if only these are not clear, the second looks follow without waiting. Returns the
    table, and the suspects that are not clear.
    """
    found, left = RetestSamples(), list(suspects)
    for _ in range(plan.quick_looks):
        look(found, samples_of_look(plan))
    if plan.quick_looks:
        table = found.table(siblings, plan)
        left = unclear_suspects(table, part_kinds(table), suspects, noise, plan)
        if not left:
            return table, []
    found = RetestSamples()  # what loads a suspect now should not be half of its samples
    span = 0.0 if {*left} <= {*named} else plan.retest_span
    for samples in looks(noise, span, plan, probe):
        look(found, samples)
    table = found.table(siblings, plan)
    left = unclear_suspects(table, part_kinds(table), suspects, noise, plan)
    return table, [name for name in left if found.mostly_slow(name, siblings, part_kinds, plan)]


def joined(before: Observations | None, later: Observations) -> Observations:
    """Return the table of all retests. before: of those before the last one."""
    return later if before is None else before.updated(later)


def unclear_suspects(
    table: Observations, kinds: Sequence[PartKind], suspects: Iterable[PartName], noise: float, plan: Plan
) -> list[PartName]:
    """Return the suspects that may be slow: of a slow part, `slow_share` of the measurements are slow."""
    clear = table.level < clear_threshold(noise, table.count, -math.log(plan.critical))
    return [
        name
        for name in suspects
        if np.count_nonzero(clear[through := rows_through(kinds, name)])
        <= (1 - plan.slow_share) * np.count_nonzero(through)
    ]


def repeats_needed(noise: float, samples: int, plan: Plan) -> int:
    """Return how many times `samples` to take for the median's error to be small against the tolerance.

    noise: standard deviation of the log of one sample.
    """
    needed = samples_needed(noise, plan.tolerance)
    return min(max(math.ceil(needed / samples), 1), plan.max_repeats)
