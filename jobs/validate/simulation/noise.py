"""Noise of a healthy fleet, and links that are slow part of the time.

Factors multiply seconds (above 1: slower) unless stated. At level 0 all are 1 and nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshrun.jobs.validate.simulation.hardware import Mask, Numbers, Rates
from meshrun.jobs.validate.simulation.spec import Fault

STRAGGLES, HOST_STRAGGLES = 1 / 300, 1 / 3000  # share of samples
PINNED = 0.15  # share of the flows through the spine that adaptive routing does not move
MEMORY = 0.95  # autocorrelation of a temperature from call to call
EPISODE = 8  # mean number of samples that a flapping link stays slow
BURST = 4.0  # mean seconds of other users' load
LEFT = (0.4, 0.85)  # share of its rate that other users' load leaves to a part


class Noise:
    """level: relative standard deviation of one measurement by jitter alone.

    tolerance, heat: of the parts' rates, and of the speed of GPUs with their temperature; None: by the level.
    """

    def __init__(
        self,
        level: float,
        rng: np.random.Generator,
        ranks: int,
        hosts: int,
        tolerance: float | None = None,
        heat: float | None = None,
    ) -> None:
        self.level, self._rng = level, rng
        self.tolerance = level / 3 if tolerance is None else tolerance
        self.heat = level / 8 if heat is None else heat
        self._heat = [self._normal(ranks), self._normal(hosts)]

    def spread(self, rates: Rates) -> Rates:
        """Apply manufacturing tolerance to rates: at level 3 % a deviation of 1 %, at most 3 %."""
        if not self.tolerance:
            return rates
        return np.asarray(
            rates * (1 + self.tolerance * np.clip(self._rng.standard_normal(rates.shape), -3, 3))
        )

    def drift(self, host: Numbers) -> Rates:
        """Return (ranks,) speed factors by temperature, which drifts between calls. host: of each rank."""
        if not self.heat:
            return np.ones(len(host))
        fresh = float(np.sqrt(1 - MEMORY**2))
        self._heat = [MEMORY * heat + fresh * self._normal(len(heat)) for heat in self._heat]
        gpus, hosts = self._heat
        return np.asarray(1 + self.heat * (gpus + hosts[host]).clip(-4, 4))

    def jitter(self, rows: int, samples: int) -> Rates:
        """Return (rows, samples) factors of mean 1, gamma-distributed with a long tail above."""
        return self._gamma((rows, samples), self.level)

    def stragglers(self, rows: int, samples: int, often: float = STRAGGLES) -> Rates:
        """Return (rows, samples) factors: single samples take 1.2 to 3 times as long, log-uniformly."""
        factors = np.ones((rows, samples))
        if self.level:
            late = self._rng.random(factors.shape) < often
            factors[late] = 1.2 * 2.5 ** self._rng.random(np.count_nonzero(late))
        return factors

    def hiccups(self, hosts: int, samples: int) -> Rates:
        """Return (hosts, samples) factors of stragglers that affect whole hosts."""
        return self.stragglers(hosts, samples, HOST_STRAGGLES)

    def of_hosts(self, hosts: int, samples: int, level: float) -> Rates:
        """Return (hosts, samples) factors of mean 1 that all of a host's measurements share."""
        return self._gamma((hosts, samples), level)

    def busy(self, samples: int) -> Rates:
        """Return (samples,) factors of all traffic between hosts: other users load the fabric too."""
        if not self.level:
            return np.ones(samples)
        return self._gamma((samples,), self.level / 2) * (
            1 + self.level / 2 * self._rng.standard_exponential()
        )

    def collisions(self, from_leaf: Numbers, to_leaf: Numbers, cables: int) -> Rates:
        """Return the share of its rate that each flow through the spine keeps for a round; at least a half.

        A hash of its addresses selects a flow's spine switch, and so one of the `cables` of each leaf switch
        on its path. Some flows on cables with more than their fair load are slow.
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
        return self._rng.standard_normal(size) if self.heat else np.zeros(size)


class Flaps:
    """State of each fault that comes and goes, sample by sample.

    flap: a Markov chain of two states, good and slow. Durations are geometric: slow for EPISODE samples on
    average (more if the good periods would be shorter than one sample), good for as long as makes the share
    of slow time equal to `share`. stall: each of a sample's calls by itself.
    """

    def __init__(self, faults: Sequence[Fault], rng: np.random.Generator) -> None:
        self.faults, self._rng = faults, rng
        share = np.array([fault.share for fault in faults])
        odds = share / np.maximum(1 - share, 1e-12)
        self._ends = np.where(share < 1, 1 / np.maximum(EPISODE, odds), 0)
        self._starts = np.where(share < 1, self._ends * odds, 1)
        self._on = rng.random(len(faults)) < share

    def next(self, samples: int, calls: int = 1) -> Rates:
        """Return (faults, samples) factors of rates, continuing from the last call.

        calls: operations whose mean is a sample.
        """
        factors = np.ones((len(self.faults), samples))
        slow = np.array([fault.factor for fault in self.faults])
        for sample in range(samples if self.faults else 0):
            change = self._rng.random(len(self.faults)) < np.where(self._on, self._ends, self._starts)
            self._on = self._on ^ change
            factors[:, sample] = np.where(self._on, slow, 1.0)
        for number, fault in enumerate(self.faults):
            if fault.kind == "stall":
                late = self._rng.binomial(calls, fault.share, samples) / calls
                factors[number] = 1 / (1 + late * (fault.factor - 1))
        return factors


class Neighbours:
    """Other users' load: bursts of seconds on parts (hosts' NICs, leaf switches' uplinks), each by itself.

    share: of the time that a part is loaded. Durations are exponential, of mean BURST when loaded.
    """

    def __init__(self, share: float, parts: int, rng: np.random.Generator) -> None:
        self.share, self._rng = share, rng
        self._left = np.where(rng.random(parts) < share, self._depth(parts), 1.0)
        self._ends = self._duration(self._left < 1)

    def left(self, now: float) -> Rates:
        """Return (parts,): what is left of each part's rate at `now` seconds, which never goes back."""
        while self.share and (over := self._ends <= now).any():
            starts = over & (self._left == 1)
            self._left = np.where(over, np.where(starts, self._depth(len(over)), 1.0), self._left)
            self._ends = np.where(over, self._ends + self._duration(starts), self._ends)
        return self._left

    def _depth(self, parts: int) -> Rates:
        return self._rng.uniform(*LEFT, parts)

    def _duration(self, loaded: Mask) -> Rates:
        usual = np.where(loaded, BURST, BURST * (1 - self.share) / max(self.share, 1e-12))
        return np.asarray(usual * self._rng.standard_exponential(len(loaded)))
