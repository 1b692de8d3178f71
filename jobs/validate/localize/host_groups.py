"""Groups of hosts behind slower uplinks, and ranks of a rail whose leaf switch has slow uplinks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshrun.jobs.measure.outliers import Floats, group_medians, is_mild
from meshrun.jobs.validate.localize.observations import Observations
from meshrun.jobs.validate.localize.set_cover import Mask
from meshrun.jobs.validate.localize.two_sides import ranks_of_sides, two_sides
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.topology import Ints, Topology

LEAST_GROUPED = 6  # hosts from which on groups can be seen
MOST_NEAR = 0.6  # share of the host pairs that are in the same group
GROUPED = 0.8  # share of hosts that are near others
GROUPED_SHARE = 0.6  # of the hosts near either of two that are near both, on average
GROUPING_STEPS = 8  # iterations of a search, at most
LEAST_OF_LEAF = 3  # hosts of a leaf switch whose ports are slow, and of the rest of its rail


@dataclass(frozen=True, eq=False)
class SlowLeaf:
    """Ranks of a rail whose leaf switch is slow, (members,) int64.

    others: ranks of another leaf switch if its uplinks may be slow instead, else empty. within: whether flows
    among the ranks are slow too, as of slow ports; else only those with other ranks are, as of slow uplinks.
    """

    ranks: Ints
    others: Ints
    within: bool = False


def host_levels(table: Observations, topology: Topology) -> Floats:
    """Return (hosts, hosts): the level between each two hosts, the median over rails; NaN if unknown."""
    host, size = topology.host, topology.hosts
    rows = np.flatnonzero(
        (topology.gpu[table.a] == topology.gpu[table.b]) & ~topology.over_nvlink(table.a, table.b)
    )
    a, b = host[table.a[rows]], host[table.b[rows]]
    pairs, group = np.unique(np.minimum(a, b) * size + np.maximum(a, b), return_inverse=True)
    found = np.full((size, size), np.nan)
    low, high = np.divmod(pairs, size)
    found[low, high] = found[high, low] = group_medians(table.level[rows], group.reshape(-1))
    return found


def far_hosts(table: Observations, topology: Topology, plan: Plan) -> Mask:
    """Return (hosts, hosts): pairs between groups of hosts, if flows between groups are slower than inside.

    Uplinks of leaf switches that are slower than a NIC, by their number or by their rate, make them so. The
    groups are those whose members are fast with the same hosts; without such groups, no pair is far.
    """
    none = np.zeros((topology.hosts, topology.hosts), np.bool_)
    if not LEAST_GROUPED <= topology.hosts <= plan.all_pairs_hosts:  # above, few pairs of a group have met
        return none
    level = host_levels(table, topology)
    known = ~np.isnan(level)
    values = np.sort(level[known])
    # Flows between groups may have several levels, of uplinks that one, two, ... of them share.
    while len(values) > 1:
        cut = two_clusters(values)
        fast, slow = values[:cut], values[cut:]
        if np.median(slow) - np.median(fast) <= 2 * plan.tolerance:
            break
        near = known & (level <= fast[-1])
        np.fill_diagonal(near, True)
        if len(fast) <= MOST_NEAR * known.sum() and in_groups(near):
            together = shared(near) / near.sum(axis=1)[:, None] > 0.5  # of each host's near ones
            return np.asarray(known & ~(together | together.T))
        values = fast
    return none


def two_clusters(values: Floats) -> int:
    """Return how many of the sorted values are in the first of two clusters, with the least sum of squares.

    (Otsu 1979.)
    """
    count = np.arange(1, len(values))
    left, total = np.cumsum(values)[:-1], values.sum()
    return int(np.argmax(left**2 / count + (total - left) ** 2 / (len(values) - count))) + 1


def shared(near: Mask) -> Floats:
    """Return (hosts, hosts): how many hosts are near both."""
    return np.asarray(near.astype(np.float64) @ near)


def in_groups(near: Mask) -> bool:
    """Return whether hosts that are near each other are near the same hosts (Jaccard 1901), nearly all with
    some. Of random pairs, MOST_NEAR of all, two hosts share MOST_NEAR / (2 - MOST_NEAR) = 43 %.
    """
    count, both = near.sum(axis=1), shared(near)
    pairs = np.triu(near, 1)
    share = both[pairs] / (np.add.outer(count, count) - both)[pairs]
    return bool(len(share) and np.mean(share) >= GROUPED_SHARE and np.mean(count == 1) <= 1 - GROUPED)


def slow_leaves(table: Observations, topology: Topology, far: Mask, plan: Plan) -> dict[int, SlowLeaf]:
    """Return the slow leaf switch of each rail that has one.

    Its ranks are slow with most others. If they are fast with each other, its uplinks are slow: at most half
    of a rail, and at least two ranks. If not, its ports are (`slow_ports`).
    """
    if topology.hosts > plan.all_pairs_hosts:
        return {}
    gpu, host = topology.gpu, topology.host
    usable = (gpu[table.a] == gpu[table.b]) & ~topology.over_nvlink(table.a, table.b)
    found, ports = dict[int, SlowLeaf](), slow_ports(table, topology, np.flatnonzero(usable), plan)
    for rail in range(topology.rails):
        if rail in ports:
            found[rail] = SlowLeaf(ports[rail], ports[rail][:0], within=True)
            continue
        rows = np.flatnonzero(usable & (gpu[table.a] == rail))
        slow, known = np.zeros((2, topology.hosts, topology.hosts))
        for one, other in ((table.a, table.b), (table.b, table.a)):
            np.add.at(known, (host[one[rows]], host[other[rows]]), 1)
            np.add.at(slow, (host[one[rows]], host[other[rows]]), table.level[rows] > table.threshold[rows])
        # Only flows over uplinks show them; those among a switch's hosts tell it from its rail.
        across, late = (known * far, slow * far) if far.any() else (known, slow)
        inside = slow_group(table, rows, topology, far, plan)
        if not inside.any():
            inside = slow_hosts(slow, known, across, late, plan)
        if inside.any():
            here = topology.at[:, rail] >= 0
            apart = (known * far)[np.ix_(here, here)]
            found[rail] = SlowLeaf(*ranks_of_sides(inside[here], topology.at[here, rail], apart))
    return found


def slow_ports(table: Observations, topology: Topology, rows: Ints, plan: Plan) -> dict[int, Ints]:
    """Return, by rail, ranks that are equally slow with all others and with each other, if the rest of the
    rail is fast: the ports of their leaf switch are slow.

    One cause rather than many slow NICs: at least LEAST_OF_LEAF ranks, and no host that is slow on most of
    its other rails as well. The rest of the rail also has as many ranks, or all of it may be slow.

    rows: flows of NICs on one rail.
    """
    a, b, ranks = table.a[rows], table.b[rows], topology.ranks
    late = (table.level > table.threshold)[rows]
    known, slow = (
        np.bincount(a, weight, ranks) + np.bincount(b, weight, ranks) for weight in (np.ones(len(rows)), late)
    )
    # Half of the way between a healthy rank, slow only with those of the leaf switch, and one of these.
    suspect = slow > (1 + plan.slow_share) / 2 * np.maximum(known, 1)
    of_host, size = (np.bincount(topology.host, weight) for weight in (suspect, np.ones(ranks)))
    suspect &= 2 * (of_host - 1)[topology.host] < np.maximum(size - 1, 1)[topology.host]
    found = dict[int, Ints]()
    for rail in range(topology.rails) if topology.rails > 1 else ():
        members = topology.rail(rail)
        inside, outside = members[suspect[members]], members[~suspect[members]]
        if min(len(inside), len(outside)) < LEAST_OF_LEAF:
            continue
        from_leaf, to_leaf = np.isin(a, inside), np.isin(b, inside)
        among, rest = from_leaf & to_leaf, np.isin(a, outside) & np.isin(b, outside)
        across = from_leaf != to_leaf
        level = table.level[rows[across]]
        of_rank = group_medians(level, np.where(from_leaf, a, b)[across])
        if (
            among.any()
            and rest.any()
            and late[among].mean() >= plan.slow_share
            and late[rest].mean() <= 1 - plan.slow_share
            and np.ptp(of_rank) <= 2 * plan.tolerance
        ):
            found[rail] = inside
    return found


def slow_group(table: Observations, rows: Ints, topology: Topology, far: Mask, plan: Plan) -> Mask:
    """Return the hosts of the known group whose uplinks are the slowest; none if those of no group are slow.

    rows: flows of one rail. That noise hides a mild loss in each of them hides none in all of them
    (`is_mild`). Flows that do not leave or enter the group do not have it.
    """
    found, slowest = np.zeros(topology.hosts, bool), 0.0
    group = np.argmin(far, axis=1)  # the first host of each
    a, b = (group[topology.host[side[rows]]] for side in (table.a, table.b))
    for first in np.unique(group).tolist() if far.any() else ():
        through = (a != b) & ((a == first) | (b == first))
        level, others = table.level[rows[through]], table.level[rows[~through]]
        if not len(others) or not is_mild(level, plan.tolerance, plan.slow_share):
            continue
        several = 2 <= np.count_nonzero(group == first) <= topology.hosts / 2
        if several and np.median(others) < plan.tolerance / 2 and np.median(level) > slowest:
            found, slowest = group == first, float(np.median(level))
    return np.asarray(found)


def slow_hosts(slow: Floats, known: Floats, across: Floats, late: Floats, plan: Plan) -> Mask:
    """Return the hosts that are slow with most others, but not with each other; none if there are no such.

    slow, known: (hosts, hosts), slow flows and all flows. late, across: of those over uplinks.
    """
    best, found = 0.0, np.zeros(len(slow), bool)
    most = late.sum(axis=1) >= 0.5 * np.maximum(across.sum(axis=1), 1)
    starts = {"most": most, "sides": two_sides(slow, known)}
    for name, start in starts.items():
        inside = slow_side(start, late, across)
        cut = float((2 * late - across)[np.ix_(inside, ~inside)].sum())
        flows = known[np.ix_(inside, inside)].sum()
        within = slow[np.ix_(inside, inside)].sum() / max(flows, 1)
        if name == "sides" and not flows:
            continue  # all of the rail is slow, as far as is known
        if cut > best and 2 <= inside.sum() <= len(slow) / 2 and within < 1 - plan.slow_share:
            found, best = inside, cut
    return found


def slow_side(inside: Mask, slow: Floats, known: Floats) -> Mask:
    """Return the hosts that are slow with the others, by iteration from these.

    A host is on the side with which it has fewer slow flows, less the fast ones: a healthy one is slow with
    those inside too, but not with others.
    """
    more = 2 * slow - known
    for _ in range(GROUPING_STEPS):
        now = more @ ~inside > more @ inside
        if (now == inside).all():
            break
        inside = now
    return np.asarray(inside)
