"""What makes measurements of a healthy fleet differ, and links that are slow at times.

Factors are of seconds (above 1: slower) unless stated. With a level of 0 all are 1 and nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobs.validate.simulation.hardware import Mask, Numbers, Rates
from jobs.validate.simulation.spec import Fault

STRAGGLES, HOST_STRAGGLES = 1 / 300, 1 / 3000  # how often, of all samples
PINNED = 0.15  # of the flows through the spine: those that adaptive routing leaves where the hash put them
MEMORY = 0.95  # of a temperature, from one call to the next
EPISODE = 8  # samples that a flapping link stays slow, in the mean


class Noise:
    """level: relative standard deviation of one measurement by its jitter alone."""

    def __init__(self, level: float, rng: np.random.Generator, ranks: int, hosts: int) -> None:
        self.level, self._rng = level, rng
        self._heat = [self._normal(ranks), self._normal(hosts)]

    def spread(self, rates: Rates) -> Rates:
        """Rates with manufacturing tolerance: a deviation of 1 % where the level is 3 %, 3 % at most."""
        if not self.level:
            return rates
        return np.asarray(
            rates * (1 + self.level / 3 * np.clip(self._rng.standard_normal(rates.shape), -3, 3))
        )

    def drift(self, host: Numbers) -> Rates:
        """(ranks,) factors of speed by temperature, which drifts from call to call. host: of each rank."""
        if not self.level:
            return np.ones(len(host))
        fresh = float(np.sqrt(1 - MEMORY**2))
        self._heat = [MEMORY * heat + fresh * self._normal(len(heat)) for heat in self._heat]
        gpus, hosts = self._heat
        return np.asarray(1 + self.level / 8 * (gpus + hosts[host]).clip(-4, 4))

    def jitter(self, rows: int, samples: int) -> Rates:
        """(rows, samples), mean 1: a gamma distribution, with a floor close below and a long tail above."""
        return self._gamma((rows, samples), self.level)

    def stragglers(self, rows: int, samples: int, often: float = STRAGGLES) -> Rates:
        """(rows, samples): single samples that take 1.2 to 3 times as long, the less the likelier."""
        factors = np.ones((rows, samples))
        if self.level:
            late = self._rng.random(factors.shape) < often
            factors[late] = 1.2 * 2.5 ** self._rng.random(np.count_nonzero(late))
        return factors

    def hiccups(self, hosts: int, samples: int) -> Rates:
        """(hosts, samples): the same of whole hosts."""
        return self.stragglers(hosts, samples, HOST_STRAGGLES)

    def busy(self, samples: int) -> Rates:
        """(samples,) for all traffic of one round between hosts: other users load the fabric too."""
        if not self.level:
            return np.ones(samples)
        return self._gamma((samples,), self.level / 2) * (
            1 + self.level / 2 * self._rng.standard_exponential()
        )

    def collisions(self, from_leaf: Numbers, to_leaf: Numbers, cables: int) -> Rates:
        """The share of its rate that each flow through the spine keeps for a round; at least a half.

        A hash of its addresses gives a flow its spine switch, thus one of the `cables` of each leaf switch
        on its way. Where a cable has more than its fair load, some of its flows are slow.
        """
        if not self.level:
            return np.ones(len(from_leaf))
        spine = self._rng.integers(cables, size=len(from_leaf))
        crowd = np.ones(len(from_leaf))
        for leaf in (from_leaf, to_leaf):
            cable = leaf * cables + spine
            load, fair = np.bincount(cable)[cable], np.maximum(np.bincount(leaf)[leaf] / cables, 1)
            crowd = np.maximum(crowd, load / fair)
        pinned = self._rng.random(len(crowd)) < PINNED
        depth = pinned * self._rng.random(len(crowd))
        return np.asarray(1 / (1 + depth * (crowd - 1).clip(0, 1)))

    def _gamma(self, shape: tuple[int, ...], level: float) -> Rates:
        if not level:
            return np.ones(shape)
        return np.asarray(1 + level * (self._rng.standard_gamma(2, shape) - 2) / np.sqrt(2))

    def _normal(self, size: int) -> Rates:
        return self._rng.standard_normal(size) if self.level else np.zeros(size)


class Flaps:
    """Whether each of the flapping faults is on, sample by sample: a chain of two states, good and slow.

    Both last geometrically long: slow EPISODE samples in the mean (or more, where the good ones between
    would be shorter than one sample), good so long that slow is its `share` of the time.
    """

    def __init__(self, faults: Sequence[Fault], rng: np.random.Generator) -> None:
        self.faults, self._rng = faults, rng
        share = np.array([fault.share for fault in faults])
        odds = share / np.maximum(1 - share, 1e-12)
        self._ends = np.where(share < 1, 1 / np.maximum(EPISODE, odds), 0)
        self._starts = np.where(share < 1, self._ends * odds, 1)
        self._on = rng.random(len(faults)) < share

    def next(self, samples: int) -> Mask:
        """(faults, samples), going on where the last call ended."""
        on = np.empty((len(self.faults), samples), dtype=np.bool_)
        for sample in range(samples):
            change = self._rng.random(len(self.faults)) < np.where(self._on, self._ends, self._starts)
            on[:, sample] = self._on = self._on ^ change
        return on
