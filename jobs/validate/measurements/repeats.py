"""How often to measure: noisier measurements take more samples, spread over more time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from jobs.measure.outliers import MEDIAN_ERROR, sample_noise, samples_needed
from jobs.validate.plan import Plan
from jobs.validate.probe.api import Seconds

RETEST_REPEATS = 5  # passes of a retest over all its rounds
LONG_SAMPLES, MOST_SAMPLES = 48, 384  # samples of a longer first measurement

Round = TypeVar("Round")
Wait = Callable[[float], None]
Measure = Callable[[Round, int], Seconds]  # a round, samples -> seconds


def spaced_repeats(count: int, span: float, wait: Wait | None = None) -> Iterator[int]:
    """Yield 0 to count - 1, waiting before each so that all take at least `span` seconds.

    wait: as in `Probe`; None sleeps.
    """
    begin, waited = time.monotonic(), 0.0
    for number in range(count):
        # In a model, time passes by waiting only.
        pause = max(span * (number + 1) / count - max(time.monotonic() - begin, waited), 0)
        (wait or time.sleep)(pause)
        waited += pause
        yield number


def measure_repeatedly(
    measure: Measure[Round],
    rounds: Sequence[Round],
    samples: int,
    count: int = 1,
    span: float = 0.0,
    wait: Wait | None = None,
) -> list[Seconds]:
    """Measure all rounds `count` times. Returns the seconds of each round, with the samples of all repeats.

    A temporary disturbance (other work, heat) thus affects few samples of a part. span: as in
    `spaced_repeats`.
    """
    parts = [[measure(each, samples) for each in rounds] for _ in spaced_repeats(count, span, wait)]
    return [np.concatenate(of_one, axis=1) for of_one in zip(*parts, strict=True)] if count > 1 else parts[0]


def measure_first(
    measure: Measure[Round], rounds: Sequence[Round], samples: int, plan: Plan, longer: bool = False
) -> tuple[list[Seconds], float]:
    """Measure all rounds, with more repeats if they are noisy.

    longer: as many samples as show a part at the critical rate, at least LONG_SAMPLES and at most
    MOST_SAMPLES. Returns the seconds of each round, and the noise as
    `repeats_needed` takes it.
    """
    once = measure_repeatedly(measure, rounds, samples)
    noise = noise_of_rounds(once, samples)
    count = repeats_needed(noise, samples, plan)
    if longer:
        wanted = min(max(samples_needed(noise, -math.log(plan.critical)), LONG_SAMPLES), MOST_SAMPLES)
        count = max(count, math.ceil(wanted / samples))
    if count == 1:
        return once, noise
    more = measure_repeatedly(measure, rounds, samples, count - 1)
    whole = [np.concatenate(both, axis=1) for both in zip(once, more, strict=True)]
    return whole, max(noise, noise_of_rounds(whole, samples))


def noise_of_rounds(seconds: Sequence[Seconds], samples: int) -> float:
    """Return the standard deviation of the log of one sample, as if samples were independent.

    samples: in one repeat. Noise that the samples of one repeat share is scaled accordingly.
    """
    # A part of the rounds is enough.
    rows = np.concatenate(seconds[: 1 + 200_000 // max(seconds[0].size, 1)])
    of_repeats = np.median(rows.reshape(len(rows), -1, samples), axis=2)
    common = sample_noise(of_repeats) * math.sqrt(samples) / MEDIAN_ERROR
    return max(sample_noise(rows), common)


def measure_again(
    measure: Measure[Round], rounds: Sequence[Round], noise: float, plan: Plan, wait: Wait | None = None
) -> list[Seconds]:
    """Measure all rounds as a retest: with more repeats if they are noisy, over the plan's span."""
    count = RETEST_REPEATS * repeats_needed(noise, plan.retest_samples, plan)
    return measure_repeatedly(
        measure, rounds, max(plan.retest_samples // RETEST_REPEATS, 3), count, plan.retest_span, wait
    )


def repeats_needed(noise: float, samples: int, plan: Plan) -> int:
    """Return how many times `samples` to take for the median's error to be small against the tolerance.

    noise: standard deviation of the log of one sample.
    """
    needed = samples_needed(noise, plan.tolerance)
    return min(max(math.ceil(needed / samples), 1), plan.max_repeats)
