"""Confirm suspects: the parts that explain slow measurements are measured again before they are named.

A first measurement yields suspects. They are retested by themselves and with partners known to be healthy.
The same search over the updated table confirms them, clears them, or yields other suspects. After a few
turns, only confirmed parts count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from meshrun.jobs.measure.outliers import (
    ALWAYS,
    GOOD_QUANTILE,
    LATE_SHARE,
    STANDARD_ERRORS,
    intermittence,
    is_erratic,
    is_intermittent,
    is_late,
    is_mild,
    is_stalling,
    is_surely_intermittent,
    mostly_slow,
    partners_needed,
    share_estimate,
    shares_differ,
    spread,
)
from meshrun.jobs.validate.localize.observations import Observations
from meshrun.jobs.validate.localize.set_cover import (
    OF_MANY,
    Cover,
    KnownFaults,
    Mask,
    PartKind,
    PartName,
    Suspect,
    explained_rows,
    rows_through,
)
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.probe.metered import TimeUpError
from meshrun.jobs.validate.topology import Ints, Topology

ALL_LOOKS = 1.0  # share of the looks in which one of many parts must be slow
FEW = 2  # rows: the two directions of a pair that met once
# Kinds of one direction, and what they are a direction of.
DIRECTION_OF = {"send": "nic", "receive": "nic", "host send": "host", "host receive": "host"}
LEAST_FLOWS = 4  # of a look at an intermittent part: two partners, both ways
LONG_STALL = 1.5  # times the level of a slow sample: a constant loss makes noisy samples as slow as that
# If nothing is found, but noise could hide a part below this share of the critical factor, measure longer.
HIDDEN = 0.95


def nic_of(name: PartName) -> PartName:
    """Return the NIC in place of a suspect that may be slow part of the time."""
    return ("nic", name[1]) if name[0] == "flap" else name


class RungMeasurement(Protocol):
    """One operation of a rung: how it is measured, and the parts on the paths of its measurements.

    faults: ranks that findings of lower rungs explain. nbytes: of each measurement. named: critically slow
    parts that another operation of the rung has confirmed over the plan's span, so that they will be named
    whatever this one finds.
    """

    topology: Topology
    faults: KnownFaults
    nbytes: int
    named: Collection[PartName] = ()

    @property
    def gaps(self) -> Sequence[str]:
        """What this measurement cannot judge, whatever it finds."""
        return ()

    def measure(self, longer: bool = False) -> Observations:
        """Measure everything. longer: take many samples."""

    def part_kinds(self, table: Observations) -> list[PartKind]:
        """Return the kinds of parts on the path of each row, in order of preference."""

    def retest(self, suspects: Sequence[PartName]) -> tuple[Observations, Collection[PartName]]:
        """Retest these suspects. Returns the table of all retests, and the suspects that are not clear."""

    def explained(self, table: Observations) -> Iterable[tuple[Mask, float]]:
        """Yield the rows that a finding of a lower rung explains, and its effect."""
        return explained_rows(self.faults, table, self.nbytes)

    def visible(self, table: Observations) -> float:
        """Return the share of its siblings' rate below which a part is detectable in the noise."""
        return table.visible

    def intermittent(self, cover: Cover) -> Suspect | None:
        """Return a part that is slow part of the time, judged by open rows."""
        return None

    def changing_looks(self, suspect: Suspect, cover: Cover) -> ChangingLooks:
        """Count the looks of retests in which a suspect was slow and fast, and all of its looks.

        Rows that another part explains do not count.
        """
        return changing_looks(cover.table, suspect.rows & cover.open, trusted=cover.open & ~suspect.rows)

    def is_erratic(self, suspect: Suspect, rows: Mask, table: Observations) -> bool:
        """Return whether these rows of a suspect are slow part of the time, as of an intermittent part."""
        return False

    def slowed(self, suspect: Suspect, table: Observations) -> Mask | None:
        """Return rows that a slow part may slow too, though they are no evidence of it; None: no others."""
        return None

    def locate(self, found: Confirmed) -> Confirmed | None:
        """Narrow a confirmed part down to its slow subset; None if no subset is slow."""
        return found


@dataclass(frozen=True, eq=False)
class Confirmed:
    """A part that was slow in the first measurement and in the retest. rows: the table's rows of evidence.

    ties: parts that it is indistinguishable from. flaps: share of the time that it is slow. ranks: a subset
    of the part's ranks, if only these are slow. or_ranks: those of another such subset that it may be
    instead. stalls: single samples are slow, not episodes. p99: as of `Evidence`.
    """

    name: PartName
    effect: float
    rows: Mask
    ties: tuple[PartName, ...] = ()
    flaps: float | None = None
    ranks: tuple[int, ...] | None = None
    or_ranks: tuple[int, ...] = ()
    stalls: bool = False
    p99: tuple[float, float] | None = None


@dataclass
class Localization:
    """retested: suspects that were retested. left: suspects for which no turn, or no time, was left.

    visible: as of `RungMeasurement`. unexplained: things that were slow again and that no part explains.
    """

    table: Observations
    confirmed: list[Confirmed]
    visible: float = 1.0
    unexplained: int = 0
    retested: list[PartName] = field(default_factory=list)
    left: list[PartName] = field(default_factory=list)


def localize(measurement: RungMeasurement, plan: Plan) -> Localization:
    """Measure and find the slow parts; measure longer if noise may have hidden them."""
    found = confirm_suspects(measurement, plan, measurement.measure())
    if not found.confirmed and not found.left and measurement.visible(found.table) < HIDDEN * plan.critical:
        with suppress(TimeUpError):
            found = confirm_suspects(measurement, plan, measurement.measure(longer=True))
    return found


def confirm_suspects(measurement: RungMeasurement, plan: Plan, first: Observations) -> Localization:
    """Search and retest in turns. first: the table of the first measurement."""
    table, retested, clear = first, set[PartName](), set[PartName]()
    for turn in range(plan.max_retests + 1):
        search = Search(measurement, table, retested, clear, plan)
        search.run()
        if not search.queue or turn == plan.max_retests:
            break
        try:
            later, unclear = measurement.retest(search.queue)
        except TimeUpError:
            break
        table = first.updated(later)
        retested |= set(search.queue)
        clear |= set(search.queue) - set(unclear)
    named = (without_direction(one, search) for one in search.confirmed)
    found = [part for one in named if one is not None and (part := measurement.locate(one)) is not None]
    visible = measurement.visible(table)
    return Localization(
        table, found, visible, search.unexplained(first), sorted(retested), [*search.queue, *search.undecided]
    )


class Search:
    """One turn: confirm, clear, or queue suspects for a retest. clear: of `retested`, those found clear."""

    def __init__(
        self,
        measurement: RungMeasurement,
        table: Observations,
        retested: set[PartName],
        clear: set[PartName],
        plan: Plan,
    ) -> None:
        self.measurement, self.retested, self.cleared, self.plan = measurement, retested, clear, plan
        self.cover = Cover(table, measurement.part_kinds(table), plan.slow_share, plan.tolerance)
        for rows, effect in measurement.explained(table):
            self.cover.explain(rows, effect)
        self.confirmed: list[Confirmed] = []
        self.queue: list[PartName] = []
        self.undecided: list[PartName] = []  # after all looks
        self.steady = False  # nothing else is slow part of the time
        # Suspects of one turn, and what is queued with the last one.
        self.most = 4 * max(plan.suspects_per_host, measurement.topology.hosts)

    def run(self) -> None:
        while len(self.queue) < self.most and (suspect := self.next()) is not None:
            retested = suspect.name in self.retested
            found = confirmed(suspect, self.cover, self.plan, self.measurement)
            # Flows of a clear suspect may be measured again for other suspects, while something loads them.
            if retested and found is not None and suspect.name not in self.cleared:
                self.confirm(suspect, found)
            elif retested or (found is None and self.all_retested(suspect)):
                self.clear(suspect)
            else:
                self.enqueue(suspect)
        self.undecided = [name for name in sorted(self.retested) if self.may_flap(name)]

    def next(self) -> Suspect | None:
        """Return the part that explains the most.

        A single pair may be slow by chance, or because one of the two is slow part of the time. So
        intermittent parts come before a suspect with few rows.
        """
        suspect, cover = self.cover.strongest() or self.cover.mildest(), self.cover
        erratic = suspect is not None and self.measurement.is_erratic(
            suspect, suspect.rows & cover.open & cover.slow, cover.table
        )
        if suspect is not None and suspect.kind == "nic":  # what looks showed comes before a median
            erratic = erratic or self.may_flap(("flap", suspect.key))
        if not self.steady and (suspect is None or erratic or self.slow_rows(suspect) <= FEW):
            intermittent = self.measurement.intermittent(self.cover)
            suspect, self.steady = intermittent or suspect, intermittent is None
        return suspect

    def all_retested(self, suspect: Suspect) -> bool:
        """Return whether all of its slow rows are already retested, because of other suspects."""
        table = self.cover.table
        late = self.cover.slow if self.slow_rows(suspect) else self.cover.beyond
        late = table.slow > 0 if suspect.kind == "flap" else late
        return not (late & self.cover.open & suspect.rows & ~table.retested).any()

    def may_flap(self, name: PartName) -> bool:
        """Return whether a part was looked at and may be slow part of the time, but is not confirmed."""
        table, cover = self.cover.table, self.cover
        if (
            name[0] != "flap"
            or name not in self.retested
            or any(name in (one.name, *one.ties) for one in self.confirmed)
        ):
            return False
        through = rows_through(cover.kinds, nic_of(name))
        rows = through & table.retested & cover.open
        looked = self.measurement.changing_looks(Suspect(*name, through, np.inf), cover)
        # With one partner, no look tells whether it is the part that is slow at times.
        if not looked.looks:
            return bool(table.slow[rows].sum() > LATE_SHARE / 2 * table.count[rows].sum())
        return looked.intermittence > 0 and not is_steady(rows, table)

    def slow_rows(self, suspect: Suspect) -> int:
        """Count the slow open rows that it would explain."""
        return int((self.cover.slow & self.cover.open & suspect.rows).sum())

    def enqueue(self, suspect: Suspect) -> None:
        """Queue it for a retest; a suspect with few rows together with all equal ones."""
        new, rows = [suspect.name], suspect.rows
        if suspect.kind == "flap":  # of two that were only measured with each other, either may be slow
            new += self.not_retested(suspect.ties)
        elif self.steady and 0 < (slow := self.slow_rows(suspect)) <= FEW:
            peers, rows = self.cover.peers(suspect.kind, slow)
            new, rows = self.not_retested(peers) or new, rows & self.cover.slow
        self.queue += new
        self.cover.excluded |= set(new)
        self.cover.explain(rows, suspect.effect if len(new) == 1 else np.inf)
        if len(new) == 1 and (more := self.measurement.slowed(suspect, self.cover.table)) is not None:
            self.cover.explain(more, suspect.effect)

    def unexplained(self, first: Observations) -> int:
        """Count what was critically slow at first and in most retests, and no confirmed part explains."""
        table, cover = self.cover.table, self.cover
        rows = np.flatnonzero(table.retested)
        size = 1 + max(int(side.max(initial=0)) for side in (table.a, table.b))
        pair, flow = np.unique(table.a[rows] * size + table.b[rows], return_inverse=True)
        grave = cover.slow & cover.open & (table.level > -np.log(self.plan.critical))
        slow, count = np.bincount(flow.reshape(-1), grave[rows]), np.bincount(flow.reshape(-1))
        again = slow > self.plan.slow_share * count
        if table.look.any():  # where there are looks over a span, slowness in one of them is load
            again &= count >= LEAST_FLOWS
        late = first.level > first.threshold
        return int((again & np.isin(pair, (first.a * size + first.b)[late])).sum())

    def not_retested(self, names: Iterable[PartName]) -> list[PartName]:
        return [name for name in names if name not in self.retested]

    def confirm(self, suspect: Suspect, found: Confirmed) -> None:
        """Confirm a suspect, queue its ties, and close the rows that it explains."""
        self.queue += [name for name in self.not_retested(suspect.ties) if name not in self.queue]
        self.confirmed.append(found)
        self.cover.excluded.add(suspect.name)
        effect = suspect.effect if found.flaps is None else np.inf
        self.cover.explain(suspect.rows, effect, 1.5)
        if (more := self.measurement.slowed(suspect, self.cover.table)) is not None:
            self.cover.explain(more, effect, 1.5)
            # Nor were these slow for another reason.
            self.confirmed = [
                one
                for one in self.confirmed
                if one is found or (one.rows & ~more).any() or not self.explains(effect, one)
            ]

    def explains(self, effect: float, one: Confirmed) -> bool:
        """Return whether a part of this effect makes another as slow as it is."""
        return bool(one.effect <= effect + 1.5 * float(np.median(self.cover.table.threshold[one.rows])))

    def clear(self, suspect: Suspect) -> None:
        """Close the rows that were not retested; retested slow rows stay open for other suspects.

        Those of a part between a healthy and a slow level do not: they are the slower ones of a mild loss.
        """
        table, cover = self.cover.table, self.cover
        cover.excluded.add(suspect.name)
        if suspect.kind == "flap" or self.measurement.is_erratic(
            suspect, suspect.rows & table.retested & cover.open & cover.slow, table
        ):
            return
        retested = suspect.rows & table.retested & cover.open
        if (cover.slow | cover.unclear)[retested].sum() > self.plan.slow_share * retested.sum():
            cover.explain(suspect.rows, float(np.median(table.level[retested])))
        gone = ~table.retested & (table.level <= suspect.effect + table.threshold)
        hidden = self.measurement.slowed(suspect, table)
        cover.close((suspect.rows if hidden is None else suspect.rows | hidden) & gone)


def confirmed(suspect: Suspect, cover: Cover, plan: Plan, measurement: RungMeasurement) -> Confirmed | None:
    """Return the suspect with its evidence if the retest confirms it."""
    table = cover.table
    retested = suspect.rows & table.retested
    still_open = retested & cover.open
    if not still_open.any():
        return None
    if suspect.kind == "flap":
        # Not if another part explains most of its rows.
        most = 2 * still_open.sum() > retested.sum()
        looked = measurement.changing_looks(suspect, cover)
        likely = most and looked.is_sure  # else loaded by others
        return confirmed_intermittent(suspect, still_open, table) if likely else None
    late = still_open & cover.slow
    # Rows that another part explains do not count, unless they were faster than this part would allow.
    faster = retested & ~cover.open & (table.level < suspect.effect - table.threshold)
    through, unclear = (still_open | faster).sum(), (still_open & cover.unclear).sum()
    mild = suspect.kind not in OF_MANY and not faster.any()
    mild = mild and is_mild(table.level[still_open], plan.tolerance, plan.slow_share)
    if not mild and not mostly_slow(late.sum(), through, unclear, plan.slow_share):
        return None
    if measurement.is_erratic(suspect, late, table):
        return None
    share = ALL_LOOKS if suspect.kind in OF_MANY else plan.slow_share
    if not mild and not slow_in_most_looks(late, still_open & ~cover.unclear, table, share):
        return None
    # The slow ones alone would overstate a mild loss, of which many are between a healthy and a slow level.
    slow = late | (still_open & cover.unclear)
    if not mostly_slow(late.sum(), through, unclear, plan.slow_share):
        slow = still_open
    effect = cover.effect(suspect.name, np.flatnonzero(slow if slow.any() else still_open))
    return Confirmed(suspect.name, effect, still_open, suspect.ties)


def without_direction(found: Confirmed, search: Search) -> Confirmed | None:
    """Return the NIC (or the host) in place of one of its directions, if most measurements of the other are
    slow, too, and not clearly fewer: chance alone put one direction above the share that confirms a part.
    None if the NIC is confirmed as one that is slow part of the time.

    Measurements that another part explains do not count.
    """
    (kind, key), cover = found.name, search.cover
    if kind not in DIRECTION_OF:
        return found
    whole = DIRECTION_OF[kind], key
    own, other = found.rows, rows_through(cover.kinds, whole) & cover.table.retested
    other &= ~rows_through(cover.kinds, found.name)
    of_others = [one.rows for one in search.confirmed if one.name not in (found.name, ("flap", key))]
    for rows in (*of_others, *(rows for rows, _ in search.measurement.explained(cover.table))):
        other &= ~rows
    (slow, of), (slow_other, of_other) = (
        (int((rows & cover.slow).sum()), int(rows.sum())) for rows in (own, other)
    )
    if 2 * slow_other <= of_other or shares_differ(slow, of, slow_other, of_other):
        return found
    if any(one.name == ("flap", key) for one in search.confirmed):
        return None
    late = (own | other) & cover.slow
    effect = float(np.median(cover.table.level[late]))
    return replace(found, name=whole, rows=own | other, effect=effect)


def confirmed_intermittent(suspect: Suspect, rows: Mask, table: Observations) -> Confirmed | None:
    """Return the suspect if it is slow part of the time with several partners, unlike other parts.

    One that only met one rank, which met no other either, is indistinguishable from it.
    """
    share = table.slow[rows].sum() / table.count[rows].sum()
    retested = np.flatnonzero(table.retested)
    others = retested[~suspect.rows[retested]]
    # Other suspects are among them: the lower half is healthy.
    usual = float(np.median(table.slow[others] / table.count[others])) if len(others) else 0.0
    late = np.flatnonzero(rows & is_late(table.slow, table.count))
    met = ranks_of(table, rows)
    partners = len(np.unique([table.a[late], table.b[late]])) if len(met) > FEW else FEW + 1
    if not is_intermittent(share, usual, partners, len(late)):
        return None
    effect = float(np.median(table.slow_level[late]))
    if is_steady(rows, table):
        return None
    stalls = is_stalling(table.slow[rows], table.count[rows])
    ties = tuple(("flap", rank) for rank in met if rank != suspect.key) if len(met) == FEW else ()
    return Confirmed(suspect.name, effect, rows, ties, flaps=float(share), stalls=stalls)


def is_steady(rows: Mask, table: Observations) -> bool:
    """Return whether these rows of a part that looks intermittent are slow, or fast, all of the time."""
    fast, count = int(table.fast[rows].sum()), int(table.count[rows].sum())
    # A NIC that is slower than most by less than a fault is seldom the faster one, even while it is good.
    good = rows & ~is_late(table.slow, table.count)
    healthy = good & (table.level <= table.slow_above / 2)
    erratic = is_erratic(fast, count) or is_erratic(int(healthy.sum()), int(rows.sum()))
    return not erratic or is_constant(rows, table)


def is_constant(rows: Mask, table: Observations) -> bool:
    """Return whether slow samples of a part are no more than the noise of a constant loss, or of none.

    That lifts noisy samples above the threshold too, but not far above the part's own good ones; nor are its
    slow measurements farther above its good ones than measurements of other parts are from each other.
    """
    late = np.flatnonzero(rows & is_late(table.slow, table.count))
    if not len(late):
        return True
    stalls = is_stalling(table.slow[rows], table.count[rows])
    # Of a part that stalls, good samples are in all measurements.
    own = 0.0 if stalls else float(np.quantile(table.level[rows], GOOD_QUANTILE))
    usual = spread(table.level[table.retested & ~rows])
    if usual and float(np.median(table.level[late])) - own > STANDARD_ERRORS * usual:
        return False
    above = float(np.median(table.slow_level[late])) - own
    return above <= float(np.median(table.slow_above[rows])) * (LONG_STALL if stalls else 1)


def ranks_of(table: Observations, rows: Mask) -> list[int]:
    """Return the ranks that these rows are measured between."""
    return list(np.unique([table.a[rows], table.b[rows]]).tolist())


@dataclass(frozen=True)
class ChangingLooks:
    """changing: looks in which a part was slow and fast. by_noise: share of looks that noise makes so.

    suspects: parts that were looked at, each of which may be called intermittent by chance. witnessed: a
    healthy NIC of the host was measured in the same looks, of which only those count in which it was fast.
    """

    changing: int
    looks: int
    by_noise: float = 0.0
    suspects: int = 1
    witnessed: bool = False

    @property
    def intermittence(self) -> float:
        return intermittence(self.changing, self.looks, self.by_noise, self.witnessed)

    @property
    def is_sure(self) -> bool:
        """Whether the part is intermittent: by chance, one of all suspects is in 1 of 1,000 cases."""
        return is_surely_intermittent(self.intermittence, self.suspects)


def changing_looks(
    table: Observations,
    rows: Mask,
    begin: int = 0,
    trusted: Mask | None = None,
    steady: Collection[int] | None = None,
) -> ChangingLooks:
    """Count the looks in which a part was slow with several partners (or with the only one, in several
    measurements), but not all of the time.

    Several: more than are slow by chance, see `partners_needed`. Looks with few of its flows, as a partner of
    other suspects, do not count. begin: the first that does. trusted: rows of healthy parts (None: all other
    rows). The load of others takes longer than a look, or slows one partner. Of
    a part that is always slow in one direction, no look is changing.

    steady: looks in which another NIC of the host was fast, which alone count: what slows the part in them
    is not a load of the host. A part that is slow for whole looks counts too, unless it is in most.
    """
    of_looks = table.retested & (table.look >= begin)
    if steady is not None:
        of_looks &= np.isin(table.look, list(steady))
    rows, others = rows & of_looks, of_looks & ~rows & (True if trusted is None else trusted)
    late, changing, whole_looks, by_noise = is_late(table.slow, table.count), 0, 0, 0.0
    looks, flows = np.unique(table.look[rows], return_counts=True)
    looks = looks[flows >= LEAST_FLOWS]
    alone = len(ranks_of(table, rows)) == FEW
    whole = table.slow >= ALWAYS * table.count
    noise, load = usual_lates(table.look[others], late[others], whole[others])
    for look in looks.tolist():
        now = rows & (table.look == look)
        # What sees the part slow or not: each partner, in any of its flows; or each measurement.
        witnesses = int(now.sum()) if alone else len(ranks_of(table, now)) - 1
        seen = int((now & late).sum()) if alone else len(ranks_of(table, now & late)) - 1
        # Noise makes each flow of a partner late by itself, a load all of them.
        chance = 1 - (1 - load) * (1 - noise) ** (int(now.sum()) / witnesses)
        always = table.slow[now].sum() > ALWAYS * table.count[now].sum()
        needed, by_chance = partners_needed(chance, witnesses)
        by_noise += by_chance / len(looks)
        changing += seen >= needed and not always
        whole_looks += seen >= needed and bool(always)
    # Slow for whole looks beside a steady NIC, but in few of them. One that is in most is always slow, or
    # changes within looks.
    witnessed = steady is not None and 2 * (changing + whole_looks) <= len(looks)
    if witnessed:
        changing += whole_looks
    elif len(looks) > 1 and one_way(table, rows):
        changing = 0
    return ChangingLooks(changing, len(looks), by_noise, witnessed=witnessed)


def usual_lates(look: Ints, late: Mask, whole: Mask) -> tuple[float, float]:
    """Estimate the share of measurements of healthy parts that are late by noise, and by a load, in looks in
    which most are not late. In the others, something loads all of them.

    whole: all samples are slow, as of a load, which outlasts a measurement.
    """
    count, slow = np.bincount(look), np.bincount(look, late)
    usual, of_load = 2 * slow <= count, np.bincount(look, late & whole)
    of, loaded = int(count[usual].sum()), int(of_load[usual].sum())
    return share_estimate(int(slow[usual].sum()) - loaded, of), share_estimate(loaded, of)


def one_way(table: Observations, rows: Mask) -> bool:
    """Return whether, over all looks, some flows are always slow and few are slow at times, or whether those
    of one direction are late more often than those of the other: a NIC that is slow at times is so in both.
    """
    some = np.flatnonzero(rows & table.retested)
    size = 1 + max(int(side.max(initial=0)) for side in (table.a, table.b))
    flow = np.unique(table.a[some] * size + table.b[some], return_inverse=True)[1].reshape(-1)
    share = np.bincount(flow, table.slow[some]) / np.bincount(flow, table.count[some])
    always, never = share >= ALWAYS, share <= 1 - ALWAYS
    if always.mean() >= 0.25 and (always | never).mean() >= 0.5:
        return True
    late = is_late(table.slow[some], table.count[some])
    hub = np.bincount(np.concatenate([table.a[some], table.b[some]])).argmax()  # the part, or its partner
    out = table.a[some] == hub
    return shares_differ(int(late[out].sum()), int(out.sum()), int(late[~out].sum()), int((~out).sum()))


def slow_in_most_looks(late: Mask, judged: Mask, table: Observations, share: float) -> bool:
    """Return whether a suspect was slow in most looks: a fault stays, the load of others passes."""
    looks = np.unique(table.look[judged])
    slow = [late[judged & (table.look == look)].mean() > 0.5 for look in looks.tolist()]
    return bool(sum(slow) >= share * len(slow))
