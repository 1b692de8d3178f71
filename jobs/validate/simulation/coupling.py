"""How simultaneous flows wait for each other, as those of the real probe (`probe.multi_rank`).

A rank sends and receives in one operation, which ends when both have ended, and repeats it. Repeat k of a
flow begins when both of its ranks have finished repeat k - 1:

    end(rank, k) = max over its flows (a, b) of [max(end(a, k - 1), end(b, k - 1)) + seconds(a, b)]

The probe reports end(rank, repeats) / repeats, of the later of a flow's two ranks. So a slow flow slows those
that are up to `repeats` flows away from it: its whole cycle, or chain, at 16 repeats.
"""

from __future__ import annotations

import numpy as np

from meshrun.jobs.validate.probe.api import Seconds
from meshrun.jobs.validate.simulation.hardware import Numbers


def coupled(flows: Numbers, seconds: Seconds, repeats: int) -> Seconds:
    """Return what the probe reports. flows: (flows, 2). seconds: (flows, samples), of each by itself."""
    if not len(flows):
        return seconds
    ranks, place = np.unique(flows, return_inverse=True)
    sender, receiver = place.reshape(-1, 2).T
    order = np.argsort(np.concatenate([sender, receiver]), kind="stable")
    first = np.flatnonzero(np.diff(np.concatenate([sender, receiver])[order], prepend=-1))
    end = np.zeros((len(ranks), seconds.shape[1]))
    # In pairs that send to each other (and single flows), nothing else is waited for.
    pairs = _only_pairs(sender, receiver)
    for _ in range(1 if pairs else repeats):
        done = np.maximum(end[sender], end[receiver]) + seconds
        end = np.maximum.reduceat(np.concatenate([done, done])[order], first, axis=0)
    return np.asarray(np.maximum(end[sender], end[receiver]) / (1 if pairs else repeats))


def _only_pairs(sender: Numbers, receiver: Numbers) -> bool:
    """Return whether no rank has more than one partner."""
    low, high = np.minimum(sender, receiver), np.maximum(sender, receiver)
    pairs = np.unique(low * (1 + int(high.max(initial=0))) + high)
    ends = np.divmod(pairs, 1 + int(high.max(initial=0)))
    return len(np.unique(np.concatenate(ends))) == 2 * len(pairs)
