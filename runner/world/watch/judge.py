"""Which part makes a run slow: a rank, a GPU, a host or a link. Pure functions of what the ranks did.

The ranks of a run wait for each other, so all of them take the same time for a step. The slow one is the one
that waits least: its own time has grown against its past and against the other ranks. Where nobody's own time
has grown, and messages take longer after their sender has sent them, the network is slow.

All times are shares of the time between two looks, which needs no count of steps. Steps are only counted to
tell whether the run became slower at all.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

Kind = Literal["compute", "memory", "host", "wire", "file system", "load"]
PartType = Literal["rank", "GPU", "host", "NIC", "link", "network", "file system"]

RECENT = 20.0  # seconds of looks that are judged
RECENT_LEAST = 5  # looks that are judged at least, where steps are long
STEPS_LEAST = 5  # steps of a look: fewer would begin and end in it at other times than in the next one
LONGEST = 4.0  # seconds of a look, after which one step suffices; without a step, it is no look
PAST = 180  # looks before these that they are compared with
PAST_LEAST = 6  # looks of the past without which there is none
WARM_UP = 3  # looks after the first step that count for nothing
LEAST = 0.085  # share of time: smaller delays are not reported
PERSISTENT = 0.75  # share of the recent looks in which a part must be late
NOISE = 8.0  # standard errors of the median of the past's looks, below which a delay is noise
EXCURSION = 1.5  # a delay is noise up to this many times the largest one of the past
SLOWER = 0.5  # the run must have become slower by this share of the delay
ALIKE = 0.5  # share of the delay of the slowest rank that others must have to be named with it
UNEXPLAINED = 1.3  # times the noise that a delay must have if no counter explains it
EXPLAINED = 0.4  # share of a delay that a counter must explain to give it its kind
MAD = 1.4826  # median absolute deviation to standard deviation


@dataclass(frozen=True, slots=True)
class RankPart:
    """Where a rank runs. gpu: its GPU's name on the host, such as "GPU 3"; "" on a CPU. peers: the ranks that
    it exchanges messages with; empty if not known."""

    rank: int
    host: str
    gpu: str = ""
    peers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RankInterval:
    """What one rank did between two looks, which are `seconds` apart. All are seconds but steps and clocks.

    steps: that it took. waited: for others, in collectives and for messages. transit: of that, after all
    partners had sent; None if not known. files: in reads and writes. lost: by the names of CAUSES, while
    something kept it from working. clock, memory_clock: of its GPU, MHz; 0 if not known.
    """

    seconds: float
    steps: int
    waited: float
    transit: float | None = None
    files: float = 0.0
    lost: Mapping[str, float] = field(default_factory=dict)
    clock: float = 0.0
    memory_clock: float = 0.0

    @property
    def own(self) -> float:
        """The share of the time in which the rank did not wait for others."""
        return 1.0 - min(self.waited / self.seconds, 1.0)


@dataclass(frozen=True)
class LatePart:
    """A slow part.

    part_type, part: what it is and its name, such as "GPU" and "GPU 3 of host n2". ranks: that it makes late.
    kind: of the cause. since: seconds, on the clock of the looks. delay: by how much each step is longer, as
    a share of its time before. confidence: probability that this part is slow, 0 to 1. evidence: a sentence.
    """

    part_type: PartType
    part: str
    ranks: tuple[int, ...]
    kind: Kind
    since: float
    delay: float
    confidence: float
    evidence: str


# Counters of seconds: the kind of cause that they show, and what they say. "files" is a field of
# `RankInterval`; the others are names in its `lost`: the process was ready to run and others had its
# processors; other processes used its GPU; the process was stopped; the hypervisor had its processors; it
# waited for swapped memory.
CAUSES: dict[str, tuple[Kind, str]] = {
    "files": ("file system", "its reads and writes of files took {:.0%} of the time"),
    "queued": ("load", "other processes had its processors for {:.0%} of the time"),
    "shared": ("load", "other processes used its GPU for {:.0%} of the time"),
    "stopped": ("host", "its process was stopped for {:.0%} of the time"),
    "stolen": ("host", "the hypervisor took its processors for {:.0%} of the time"),
    "faults": ("memory", "it waited for swapped memory for {:.0%} of the time"),
}
CLOCKS: dict[str, tuple[Kind, str]] = {
    "clock": ("compute", "its GPU's clock is {:.0%} lower"),
    "memory_clock": ("memory", "its GPU's memory clock is {:.0%} lower"),
}


@dataclass(frozen=True)
class DelayChange:
    """How a share of time has changed: its median lately less that of the past. ratio: to the largest change
    that would be noise. since: seconds, when it began. is_late: whether it is no noise, and lasts."""

    share: float
    ratio: float
    since: float
    is_late: bool


@dataclass
class Judge:
    """Finds slow parts in the looks at a run.

    Parameters
    ----------
    parts: where each rank runs, in rank order.

    Examples
    --------
    >>> judge = Judge([RankPart(rank, "n1") for rank in range(2)])
    >>> for second in range(40):
    ...     steps, waited = (9, 0.1) if second < 20 else (5, 0.45)
    ...     ranks = {0: RankInterval(1.0, steps, waited), 1: RankInterval(1.0, steps, 0.1)}
    ...     for finding in judge.look(second, ranks):
    ...         print(second, finding.part, finding.kind)
    35 rank 1 of host n1 compute
    """

    parts: Sequence[RankPart]
    findings: list[LatePart] = field(default_factory=list)
    _times: deque[float] = field(default_factory=deque)
    _looks: deque[Mapping[int, RankInterval]] = field(default_factory=deque)
    _partial: Mapping[int, RankInterval] = field(default_factory=dict)  # a look that has too few steps so far
    _seen: int = 0
    _candidate: str = ""  # the part that the last look has found
    _recent: int = 0  # looks at the end of `_looks` that are judged

    def look(self, at: float, ranks: Mapping[int, RankInterval]) -> list[LatePart]:
        """Add a look and return the parts that are found to be slow by it, each once.

        Parameters
        ----------
        at: seconds, when the look was taken.
        ranks: what each rank has done since the look before. A look counts for nothing if a rank is missing,
        or
            takes no step for `LONGEST` seconds. Looks with few steps are taken together.
        """
        if len(self.parts) < 2 or len(ranks) < len(self.parts):
            self._partial = {}
            return []
        if self._partial:
            ranks = {rank: _joined(self._partial[rank], one) for rank, one in ranks.items()}
        steps, seconds = (min(one.steps for one in ranks.values()), ranks[0].seconds)
        if steps < STEPS_LEAST and seconds < LONGEST:
            self._partial = ranks
            return []
        self._partial = {}
        if not steps:
            return []
        self._seen += 1
        if self._seen <= WARM_UP:
            return []
        self._times.append(at)
        self._looks.append(ranks)
        self._recent = max(sum(time > at - RECENT for time in self._times), RECENT_LEAST)
        while len(self._looks) > PAST + self._recent:
            self._looks.popleft()
            self._times.popleft()
        if at - self._times[0] < RECENT * PERSISTENT or len(self._looks) < self._recent:
            return []
        finding = self._by_own_time() or self._by_transit() or self._by_counters() or self._from_the_start()
        # Chance seldom repeats itself: the next look must find the same part.
        candidate, self._candidate = self._candidate, finding.part if finding else ""
        if finding is None or finding.part != candidate:
            return []
        if any(set(one.ranks) & set(finding.ranks) for one in self.findings):
            return []
        self.findings.append(finding)
        return [finding]

    def _by_own_time(self) -> LatePart | None:
        """Find the ranks whose own time has grown more than that of others, in files or outside of them: rank
        0 may write files now and then, which is no news, and would add up with other delays."""
        for values in (lambda one: one.own - _share(one, "files"), lambda one: _share(one, "files")):
            excess = [_excess({rank: values(one) for rank, one in look.items()}) for look in self._looks]
            late = self._late(excess)
            if late and (finding := self._slowest(late, excess)):
                return finding
        return None

    def _slowest(
        self, late: Mapping[int, DelayChange], excess: Sequence[Mapping[int, float]]
    ) -> LatePart | None:
        """Name the ranks that the others wait for. late: ranks whose own time has grown. excess: of all
        looks."""
        # The slowest rank has the longest own time, unless it has not become the slowest: then nobody waits
        # for it.
        slowest = max(late, key=lambda rank: late[rank].share)
        own = {rank: median(look[rank].own for look in self._recent_looks) for rank in self._looks[-1]}
        change = late[slowest]
        if own[slowest] < max(own.values()) - LEAST or self._slowdown() < SLOWER * change.share:
            return None

        # A slow host makes all of its ranks late, some of which may be so near the limit that noise hides it.
        ranks = [rank for rank, other in late.items() if other.share >= ALIKE * change.share]
        near = {rank for rank, part in enumerate(self.parts) if part.host == self.parts[slowest].host}
        if near <= {*ranks, *self._alike(excess, change.share)} and len(near) < len(self.parts):
            ranks = sorted({*ranks, *near})
        if len(ranks) > len(self.parts) // 2 and len({self.parts[rank].host for rank in ranks}) > 1:
            return None  # most ranks are no exception: their work has changed

        kind, evidence = self._cause(ranks, change.share)
        if kind is None and change.ratio < UNEXPLAINED:
            return None
        evidence = (
            evidence or f"it waited {change.share:.0%} less of the time than others, and no counter shows why"
        )
        return self._finding(ranks, change, kind or "compute", evidence)

    def _by_transit(self) -> LatePart | None:
        """Find the part of the network on which messages take longer, after they were sent."""
        if any(one.transit is None for one in self._looks[-1].values()):
            return None
        shares = [
            {rank: (one.transit or 0.0) / one.seconds for rank, one in look.items()} for look in self._looks
        ]
        late = self._late(shares)
        if not late:
            return None
        slowest = max(late, key=lambda rank: late[rank].share)
        change = late[slowest]
        if self._slowdown() < SLOWER * change.share:
            return None
        ranks = self._alike(shares, change.share)
        part_type, part = network_part(self.parts, ranks)
        evidence = f"messages took {change.share:.0%} more of the time after they were sent"
        return self._finding(ranks, change, "wire", evidence, (part_type, part))

    def _by_counters(self) -> LatePart | None:
        """Find ranks that counters show to be slow, where no rank waits less than others: a rank that waits
        for its GPU does not show whether the GPU waits for another one."""
        slowdown = self._slowdown()
        if slowdown < LEAST:
            return None
        for name, (kind, text) in (CAUSES | CLOCKS).items():
            if name in CAUSES:
                shares = [{rank: _share(one, name) for rank, one in look.items()} for look in self._looks]
            else:
                shares = [
                    _lag({rank: getattr(one, name) for rank, one in look.items()}) for look in self._looks
                ]
            late = self._late(shares)
            ranks = [rank for rank, change in late.items() if change.share >= SLOWER * slowdown]
            one_host = len({self.parts[rank].host for rank in ranks}) == 1
            if ranks and (one_host or len(ranks) <= len(self.parts) // 4 or name == "files"):
                change = max((late[rank] for rank in ranks), key=lambda one: one.share)
                named: tuple[PartType, str] | None = None
                if name == "files" and len(ranks) > 1:
                    named = "file system", "the file system"
                return self._finding(ranks, change, kind, text.format(change.share), named)
        return None

    def _from_the_start(self) -> LatePart | None:
        """Find ranks that were never as fast as the others, for a cause that counters show. Without a counter
        they may as well have more work."""
        recent = self._recent_looks
        excess = [_excess({rank: one.own for rank, one in look.items()}) for look in recent]
        for name, (kind, text) in CAUSES.items():
            if name == "files":  # one rank may well write the files of all
                continue
            counted = [_excess({rank: _share(one, name) for rank, one in look.items()}) for look in recent]
            ranks = []
            for rank in recent[-1]:
                late = sum(each[rank] >= 1.5 * LEAST for each in excess)
                share = median(each[rank] for each in excess)
                shown = median(each[rank] for each in counted)
                if late >= PERSISTENT * len(recent) and shown >= SLOWER * share and share >= 2 * LEAST:
                    ranks.append(rank)
            if ranks:
                share = max(median(e[rank] for e in excess) for rank in ranks)
                change = DelayChange(share, share / (2 * LEAST), self._times[0], True)
                return self._finding(ranks, change, kind, text.format(share))
        return None

    @property
    def _recent_looks(self) -> list[Mapping[int, RankInterval]]:
        return list(self._looks)[-self._recent :]

    def _late(self, shares: Sequence[Mapping[int, float]]) -> dict[int, DelayChange]:
        """Return the ranks whose share has grown by more than noise, and still has. shares: of all looks."""
        late = {}
        for rank in shares[-1]:
            values = [look[rank] for look in shares]
            if median(values[-self._recent :]) >= LEAST and (change := self._change(values)).is_late:
                late[rank] = change
        return late

    def _alike(self, shares: Sequence[Mapping[int, float]], share: float) -> list[int]:
        """Return the ranks whose share has grown by `ALIKE` of that of the slowest rank, `share`."""
        grown = {}
        for rank in shares[-1]:
            values = [look[rank] for look in shares]
            grown[rank] = median(values[-self._recent :]) - median(values[: -self._recent])
        return [rank for rank, growth in grown.items() if growth >= ALIKE * share]

    def _change(self, values: Sequence[float]) -> DelayChange:
        """Return how a share has changed. values: of all looks."""
        recent, past = values[-self._recent :], values[: -self._recent]
        if len(past) < PAST_LEAST:
            return DelayChange(0.0, 0.0, self._times[-1], False)
        usual = median(past)
        share = median(recent) - usual
        # A delay is no news if the past has had such ones, by its single looks or for as long as this one.
        spread = MAD * median(abs(value - usual) for value in past)
        spans = [past[begin : begin + len(recent)] for begin in range(0, len(past), len(recent))]
        excursion = max((median(span) - usual for span in spans if 2 * len(span) > len(recent)), default=0.0)
        noise = max(LEAST, NOISE * spread / math.sqrt(len(recent)), EXCURSION * excursion)
        lasts = sum(value - usual >= share / 2 for value in recent) >= PERSISTENT * len(recent)
        first, missed = len(values) - 1, 0
        for index in range(len(values) - 1, len(values) - len(recent) - 1, -1):
            missed = 0 if values[index] - usual >= share / 2 else missed + 1
            if missed > 1:
                break
            first = index if not missed else first
        return DelayChange(share, share / noise, self._times[first], share >= noise and lasts)

    def _slowdown(self) -> float:
        """Return by how much the run has become slower: the share of the time that its steps would not have
        taken in the past."""
        past = list(self._looks)[: -self._recent]
        if len(past) < PAST_LEAST:
            return 0.0
        return 1.0 - median(map(_pace, self._recent_looks)) / median(map(_pace, past))

    def _cause(self, ranks: Sequence[int], share: float) -> tuple[Kind | None, str]:
        """Return the kind of cause that explains a delay of ranks, and what shows it; None if no counter
        does."""
        explained: list[tuple[float, Kind, str]] = []
        for name, (kind, text) in CAUSES.items():
            counted = [median(_share(look[rank], name) for rank in ranks) for look in self._looks]
            growth = median(counted[-self._recent :]) - median(counted[: -self._recent])
            explained.append((growth, kind, text.format(median(counted[-self._recent :]))))
        for name, (kind, text) in CLOCKS.items():
            lags = [_lag({rank: getattr(one, name) for rank, one in look.items()}) for look in self._looks]
            counted = [median(look[rank] for rank in ranks) for look in lags]
            growth = median(counted[-self._recent :]) - median(counted[: -self._recent])
            explained.append((growth, kind, text.format(growth)))
        growth, kind, text = max(explained)
        if growth >= EXPLAINED * share:
            return kind, text
        return None, ""

    def _finding(
        self,
        ranks: Sequence[int],
        change: DelayChange,
        kind: Kind,
        evidence: str,
        named: tuple[PartType, str] | None = None,
    ) -> LatePart:
        """Make a finding. change: of the slowest rank. named: the part, if it is not where the ranks run."""
        part_type, part = named or rank_part(self.parts, ranks)
        delay = change.share / max(1.0 - change.share, 0.05)
        confidence = 1.0 - 0.1 * math.exp(-2.0 * (change.ratio - 1.0))
        return LatePart(
            part_type, part, tuple(sorted(ranks)), kind, change.since, delay, confidence, evidence
        )


def rank_part(parts: Sequence[RankPart], ranks: Sequence[int]) -> tuple[PartType, str]:
    """Return what ranks have in common: a GPU, a host, or nothing but that they are slow."""
    hosts = {parts[rank].host for rank in ranks}
    if len(ranks) == 1:
        part = parts[ranks[0]]
        if part.gpu:
            return "GPU", f"{part.gpu} of host {part.host} (rank {part.rank})"
        return "rank", f"rank {part.rank} of host {part.host}"
    if len(hosts) == 1 and sum(part.host in hosts for part in parts) == len(ranks):
        return "host", f"host {hosts.pop()}"
    return "rank", f"ranks {', '.join(map(str, sorted(ranks)))}"


def network_part(parts: Sequence[RankPart], ranks: Sequence[int]) -> tuple[PartType, str]:
    """Return the part of the network that makes messages late.

    ranks: at which messages arrive late. A slow link makes them late at both of its ends, a slow NIC at its
    host and at all hosts that it exchanges messages with.
    """
    # Between hosts, the hosts are the ends; on a single host, the ranks are.
    several = len({part.host for part in parts}) > 1
    ends = [f"host {part.host}" if several else f"rank {part.rank}" for part in parts]
    late = {ends[rank] for rank in ranks}
    neighbours: dict[str, set[str]] = {end: set() for end in ends}
    for part in parts:
        peers = part.peers or range(len(parts))
        neighbours[ends[part.rank]] |= {ends[peer] for peer in peers} - {ends[part.rank]}
    if len(late) == 2:
        first, second = sorted(late)
        if second in neighbours[first]:
            return "link", f"the link between {first} and {second}"
    # A centre: all of its neighbours are late, and nobody else is.
    centres = [end for end in late if late - {end} == neighbours[end] or len(late) == 1]
    if len(centres) == 1:
        return "NIC", f"the network of {centres[0]}"
    return "network", f"the network between {', '.join(sorted(late))}"


def _joined(first: RankInterval, second: RankInterval) -> RankInterval:
    """Return an interval and the next one as one. Clocks are the lower ones."""
    transit = None
    if first.transit is not None and second.transit is not None:
        transit = first.transit + second.transit
    return RankInterval(
        first.seconds + second.seconds,
        first.steps + second.steps,
        first.waited + second.waited,
        transit,
        first.files + second.files,
        {name: first.lost.get(name, 0.0) + second.lost.get(name, 0.0) for name in first.lost},
        min(first.clock, second.clock),
        min(first.memory_clock, second.memory_clock),
    )


def _pace(look: Mapping[int, RankInterval]) -> float:
    """Return the steps per second of a look, of all ranks."""
    return sum(one.steps for one in look.values()) / sum(one.seconds for one in look.values())


def _share(one: RankInterval, name: str) -> float:
    """Return the share of the time that a counter of `CAUSES` has counted."""
    return (one.files if name == "files" else one.lost.get(name, 0.0)) / one.seconds


def _excess(values: Mapping[int, float]) -> dict[int, float]:
    """Return by how much each rank's value exceeds that of a rank that is no slower than most."""
    usual = sorted(values.values())[(len(values) - 1) // 4]
    return {rank: value - usual for rank, value in values.items()}


def _lag(clocks: Mapping[int, float]) -> dict[int, float]:
    """Return by how much each clock is below that of most; 0 for one that is not known."""
    known = sorted(clock for clock in clocks.values() if clock)
    usual = known[(3 * len(known)) // 4] if known else 0.0
    return {rank: 1.0 - clock / usual if clock else 0.0 for rank, clock in clocks.items()}
