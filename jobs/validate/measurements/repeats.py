"""How often to measure: the more noise, the more samples, and at more times."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from jobs.measure.outliers import MEDIAN_ERROR, sample_noise, samples_needed
from jobs.validate.plan import Plan
from jobs.validate.probe.api import Seconds

VISITS = 5  # times at which what is measured again is, with the others in between
MANY = 48  # samples of a longer look

Round = TypeVar("Round")
Measure = Callable[[Round, int], Seconds]  # a round, samples


def visits(count: int, span: float) -> Iterator[int]:
    """Numbers of visits, with a wait before each, the first one too: all take `span` seconds at least."""
    begin = time.monotonic()
    for number in range(count):
        time.sleep(max(begin + span * (number + 1) / count - time.monotonic(), 0))
        yield number


def visited(
    measure: Measure[Round], rounds: Sequence[Round], samples: int, count: int = 1, span: float = 0.0
) -> list[Seconds]:
    """Seconds of each round with the samples of all visits: a round comes once a visit.

    So what disturbs a part for a while (a neighbour's work, heat) is in few of its samples. span: as of
    `visits`.
    """
    parts = [[measure(each, samples) for each in rounds] for _ in visits(count, span)]
    return [np.concatenate(of_one, axis=1) for of_one in zip(*parts, strict=True)] if count > 1 else parts[0]


def first_look(
    measure: Measure[Round], rounds: Sequence[Round], samples: int, plan: Plan, longer: bool = False
) -> tuple[list[Seconds], float]:
    """Seconds of each round, of more visits where there is noise; and the noise, as `effort` wants it.

    longer: many samples whatever the noise.
    """
    once = visited(measure, rounds, samples)
    noise = noise_of(once, samples)
    count = max(effort(noise, samples, plan), math.ceil(MANY / samples) if longer else 1)
    if count == 1:
        return once, noise
    again = visited(measure, rounds, samples, count - 1)
    whole = [np.concatenate(both, axis=1) for both in zip(once, again, strict=True)]
    return whole, max(noise, noise_of(whole, samples))


def noise_of(seconds: Sequence[Seconds], samples: int) -> float:
    """Standard deviation of the log of one sample, as if samples had nothing in common: what those of a visit
    have in common counts for more.
    """
    # Some of the rounds are enough.
    rows = np.concatenate(seconds[: 1 + 200_000 // max(seconds[0].size, 1)])
    of_visits = np.median(rows.reshape(len(rows), -1, samples), axis=2)
    common = sample_noise(of_visits) * math.sqrt(samples) / MEDIAN_ERROR
    return max(sample_noise(rows), common)


def second_look(measure: Measure[Round], rounds: Sequence[Round], noise: float, plan: Plan) -> list[Seconds]:
    """Seconds of each round, measured again: of more visits where there is noise, over the plan's span."""
    count = VISITS * effort(noise, plan.again, plan)
    return visited(measure, rounds, max(plan.again // VISITS, 3), count, plan.span)


def effort(noise: float, samples: int, plan: Plan) -> int:
    """How many times `samples` make the error of a median small against the tolerance.

    noise: standard deviation of the log of one sample.
    """
    needed = samples_needed(noise, plan.tolerance)
    return min(max(math.ceil(needed / samples), 1), plan.effort)
