"""A model of runs in which a part becomes slow, and of what a watcher sees of them.

It steps all runs at once: each rank computes, sends its halos, and waits for those of its neighbours; some
runs also reduce over all ranks. It shares no code with the judge, which gets what recorders and counters
would show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SLOWDOWN_LEAST = 1.2  # times as long a step, of a run with a slow part
SECONDS = 100  # of a run, one look a second
HEALTHY = "healthy"
# Name: the counter that shows it, the kind, and whether one rank, a whole host, or the network is slow.
SLOWDOWNS = {
    "hidden": (None, "compute", "rank"),
    "clock": ("clock", "compute", "rank"),
    "memory clock": ("memory_clock", "memory", "rank"),
    "neighbour": ("queued", "load", "rank"),
    "shared GPU": ("shared", "load", "rank"),
    "stopped": ("stopped", "host", "rank"),
    "swapping": ("faults", "memory", "rank"),
    "slow disk": ("files", "file system", "rank"),
    "stolen": ("stolen", "host", "host"),
    "busy host": ("queued", "load", "host"),
    "link": (None, "wire", "link"),
    "NIC": (None, "wire", "NIC"),
}
LOST = ("queued", "shared", "stopped", "stolen", "faults")  # counters of seconds

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """One run. names: acceptable names of the slow part, each a text that must be in the finding's; empty if
    none. looks: by second, each rank's values by the names that `RankInterval` has."""

    slowdown: str
    kind: str
    onset: float
    names: tuple[str, ...]
    hosts: Sequence[str]
    peers: Sequence[frozenset[int]]
    looks: Sequence[tuple[float, Sequence[dict[str, float]]]]


def runs(  # noqa: PLR0912
    slowdown: str, count: int, seed: int, hosts: int = 4, per_host: int = 2
) -> Iterator[Run]:
    """Make runs with a slowdown of SLOWDOWNS, or HEALTHY ones."""
    rng = np.random.default_rng([seed, len(slowdown), *slowdown.encode()])
    ranks = hosts * per_host
    ring = bool(rng.integers(2)) and hosts > 2
    counter, kind, scope = SLOWDOWNS.get(slowdown, (None, "", ""))

    # What the victim of each run loses, and from when on.
    onset = rng.uniform(20, 55, count)
    severity = rng.uniform(0.25, 1.5, count)
    victim = rng.integers(ranks, size=count)
    host_of = np.arange(ranks) // per_host
    struck = np.zeros((count, ranks), bool)
    if scope == "rank":
        struck[np.arange(count), victim] = True
    elif scope == "host":
        struck = host_of[None, :] == host_of[victim][:, None]

    # Work of a step; some ranks have more of it than others, but not so much that the victim never matters.
    step = rng.uniform(0.04, 0.4, count)
    uneven = 1 + rng.uniform(0, 0.15, (count, 1)) * rng.random((count, ranks))
    # The run must feel it: a rank with less work than others may be slower and make nobody wait.
    most = uneven.max(1)
    if struck.any():
        severity = np.maximum(severity, SLOWDOWN_LEAST * most / np.where(struck, uneven, 0).max(1) - 1)
    sigma = rng.choice([0.005, 0.03, 0.08], count)
    reduces = rng.random(count) < 0.5
    heavier_at, heavier = rng.uniform(10, 90, count), rng.uniform(1, 1.3, count)
    every, writing = rng.uniform(15, 60, count), rng.uniform(0.1, 2, count)
    background = rng.uniform(0, 0.04, (count, ranks))
    burst_at = np.where(rng.random(count) < 0.3, rng.uniform(15, 90, count), np.inf)
    burst_for, burst_rank = rng.uniform(1, 5, count), rng.integers(ranks, size=count)

    # The wires between neighbours, of which those between hosts may become slow.
    left, right = np.roll(np.arange(ranks), 1), np.roll(np.arange(ranks), -1)
    near = np.zeros((ranks, ranks), bool)
    near[np.arange(ranks), left] = near[np.arange(ranks), right] = True
    if not ring and ranks > 2:
        near[0, -1] = near[-1, 0] = False
    first_host = rng.integers(hosts if ring else max(hosts - 1, 1), size=count)
    slow_host = rng.integers(hosts, size=count)
    slow_wire = np.zeros((count, ranks, ranks), bool)
    for run in range(count):
        ends = {int(first_host[run]), int(first_host[run] + 1) % hosts}
        for a, b in zip(*np.nonzero(near), strict=True):
            pair = {int(host_of[a]), int(host_of[b])}
            if len(pair) == 2 and (
                (scope == "link" and pair == ends) or (scope == "NIC" and int(slow_host[run]) in pair)
            ):
                slow_wire[run, a, b] = True

    # Step all runs until each of them has reached the end.
    now = np.zeros((count, ranks))
    drift = np.zeros((count, ranks))
    waited = np.zeros((count, ranks))
    transit = np.zeros((count, ranks))
    files = np.zeros((count, ranks))
    times, waits, transits, filed = [now], [waited], [transit], [files]
    next_write = every.copy()
    while now.min() < SECONDS:
        drift = 0.95 * drift + rng.normal(0, 0.006, (count, ranks))
        noise = np.exp(rng.normal(0, 1, (count, ranks)) * sigma[:, None] + drift)
        work = step[:, None] * uneven * noise * np.where(now.max(1) > heavier_at, heavier, 1.0)[:, None]
        work = work * (1 + background)
        is_on = struck & (now >= onset[:, None])
        loss = severity[:, None] * is_on
        extra = work * loss
        hiccup = (rng.random((count, ranks)) < step[:, None] / 25) * rng.uniform(0.02, 1.0, (count, ranks))
        in_burst = (now >= burst_at[:, None]) & (now < (burst_at + burst_for)[:, None])
        in_burst &= np.arange(ranks)[None, :] == burst_rank[:, None]
        work = work + hiccup + work * in_burst
        writes = now.max(1) >= next_write
        own_files = np.zeros((count, ranks))
        own_files[:, 0] = writes * writing
        next_write = np.where(writes, next_write + every, next_write)
        if counter == "files":
            own_files = own_files + extra
            extra = 0.0 * extra
        sent = now + work + extra + own_files
        wire = 2e-4 + rng.exponential(1e-4, (count, ranks, ranks))
        slow = slow_wire & (now.max(1) >= onset)[:, None, None]
        wire = wire + slow * (step * severity)[:, None, None] * rng.uniform(0.8, 1.2, (count, 1, 1))
        arrived = np.where(near[None], sent[:, None, :] + wire, -np.inf).max(2)
        last = np.where(near[None], sent[:, None, :], -np.inf).max(2)
        end = np.maximum(arrived, sent)
        transit = transit + np.maximum(end - np.maximum(last, sent), 0)
        after = np.where(reduces[:, None], end.max(1, keepdims=True) + 3e-4, end)
        transit = transit + np.where(reduces[:, None], 3e-4, 0)
        waited = waited + (after - sent)
        files = files + own_files
        now = after
        times.append(now)
        waits.append(waited)
        transits.append(transit)
        filed.append(files)

    seconds = np.arange(1, SECONDS + 1, dtype=float)
    stacked = [np.array(each) for each in (times, waits, transits, filed)]
    for run in range(count):
        when, waits_of, transits_of, files_of = (each[:, run] for each in stacked)
        grown = []
        for rank in range(ranks):
            done = np.searchsorted(when[:, rank], seconds, side="right") - 1
            cumulated = [
                np.interp(seconds, when[:, rank], each[:, rank]) for each in (waits_of, transits_of, files_of)
            ]
            grown.append([np.diff(each, prepend=0.0) for each in (done.astype(float), *cumulated)])
        looks = []
        for index, second in enumerate(seconds):
            shown = []
            for rank in range(ranks):
                steps, wait, transiting, filing = (float(each[index]) for each in grown[rank])
                on = bool(struck[run, rank]) and second > onset[run] + 1
                lost = float(severity[run] / (1 + severity[run])) * max(1.0 - wait, 0.0) if on else 0.0
                values = {
                    "seconds": 1.0,
                    "steps": steps,
                    "waited": wait,
                    "transit": transiting,
                    "files": filing,
                }
                values["queued"] = float(background[run, rank] * rng.uniform(0.5, 1.5))
                slower = 1 / (1 + severity[run])
                for name in ("clock", "memory_clock"):
                    values[name] = (
                        1500.0 * rng.uniform(0.99, 1.0) * (slower if on and counter == name else 1.0)
                    )
                if counter == "stopped":
                    values["stopped"] = rng.binomial(10, min(lost, 1.0)) / 10
                elif counter in LOST:
                    values[counter] = values.get(counter, 0.0) + lost * rng.uniform(0.85, 1.0)
                shown.append(values)
            looks.append((float(second), shown))
        names: tuple[str, ...] = ()
        if scope == "rank":
            names = (f"rank {victim[run]} ", f"(rank {victim[run]})")
        elif scope == "host":
            names = (f"host n{host_of[victim[run]]}",)
        elif scope == "link":
            a, b = sorted((int(first_host[run]), int(first_host[run] + 1) % hosts))
            names = (f"host n{a} and host n{b}",)
        elif scope == "NIC":
            h = int(slow_host[run])
            names = (f"the network of host n{h}",)
            if not ring and h in (0, hosts - 1):  # it has one neighbour: its NIC and this link are the same
                other = 1 if h == 0 else hosts - 2
                names += (f"host n{min(h, other)} and host n{max(h, other)}",)
        peers = [frozenset(int(b) for b in np.nonzero(near[a])[0]) for a in range(ranks)]
        yield Run(slowdown, kind, float(onset[run]), names, [f"n{h}" for h in host_of], peers, looks)
