"""Flows between hosts, rail by rail: finds slow NICs, hosts, rails and links between hosts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from meshrun.jobs.measure.outliers import (
    LOADED_UP_TO,
    MANY_MEASUREMENTS,
    STANDARD_ERRORS,
    Floats,
    group_medians,
    healthy_pairs,
    is_erratic,
    is_mild,
    row_medians,
    samples_to_clear,
)
from meshrun.jobs.validate.localize.findings import gpu_of_nic
from meshrun.jobs.validate.localize.intermittent import SlowShares, shares_of_nics
from meshrun.jobs.validate.localize.observations import Observations, Siblings, tabulate
from meshrun.jobs.validate.localize.retest import (
    ChangingLooks,
    Confirmed,
    RungMeasurement,
    changing_looks,
    nic_of,
)
from meshrun.jobs.validate.localize.set_cover import (
    Cover,
    KnownFaults,
    Mask,
    PartKind,
    PartName,
    Suspect,
    numbered_kind,
    part_kind,
    rows_through,
)
from meshrun.jobs.validate.localize.two_sides import ranks_of_sides, two_sides
from meshrun.jobs.validate.measurements.repeats import (
    RETEST_REPEATS,
    joined,
    measure_first,
    repeats_needed,
    spaced_repeats,
    unclear_suspects,
)
from meshrun.jobs.validate.measurements.schedule import (
    both_ways,
    inter_node_rounds,
    isolated_rounds,
    matched_rounds,
    one_rank_per_nic,
    split_round,
)
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.probe.api import Probe, Seconds
from meshrun.jobs.validate.topology import Ints, Topology

FEW_FLAPS = 4  # suspects in one retest
MOST_LOOKS = 20  # of NICs that may be slow part of the time; a few cannot be told after 15
ERRATIC = ("nic", "send", "receive", "path")  # kinds that may be a NIC that is slow part of the time
PARTNERS = 4  # of each suspect in a retest
PAIR_REPEATS = 4  # measurements of a flow in a look, if a suspect is shown with one partner only
CONTROLS = 8  # healthy flows of each class that are measured with the suspects
CANDIDATES = 32  # ranks from which these are drawn
LINKS = ("link", "link one way")
BETWEEN = (*LINKS, "path")  # kinds that may rest on a single pair of flows
SCREENED_HOSTS = 8  # from which on there are enough others
SCREENS = 16  # of suspects of these kinds, at most
SCREENED = 0.25  # share of them that a screen must clear for another: all take at most 4 times the first
SCREEN_SAMPLES = 1.5, 60  # times those that clear a healthy flow on average; at most
TRIAL_ROUNDS = 2  # with which it is decided how many flows to measure at once
LEAST_BYTES, LEAST_SPLIT_BYTES = 4 << 20, 16 << 20
OF_NICS = ("nic", "send", "receive", "flap", "host")
NORMAL_QUARTILE = 0.67  # of a normal distribution, in standard deviations
HIDDEN_LISTED = 4  # hosts
LEAST_NEAR = 2  # other hosts whose flows show a host's NICs, where flows to most are slower
LEAST_GROUPED = 6  # hosts from which on groups can be seen
MOST_NEAR = 0.6  # share of the host pairs that are in the same group
NEAR_ROUNDS = MANY_MEASUREMENTS  # of flows inside groups, at most: enough that a median shows a NIC
NEAR_SAMPLES = 2  # times as many samples of a NIC: of one that is slow for 30 % of the time, in 15 episodes
GROUPED = 0.8  # share of hosts that are near others
GROUPED_SHARE = 0.6  # of the hosts near either of two that are near both, on average
GROUPING_STEPS = 8  # iterations of a search, at most
CROWDED = 0.25  # share of the flows that must be faster for fewer at once to be worth their time


def most_subrounds(topology: Topology, plan: Plan) -> int:
    """Return into how many subrounds a round may be split; 1 if not at all."""
    return min(plan.max_subrounds, topology.hosts // 2) if topology.hosts >= 4 else 1


def first_samples(rounds: int, plan: Plan) -> tuple[int, int]:
    """Return samples of a round in a call, and in how many calls each of so many rounds is measured.

    With few rounds each takes many samples. A call of all of them would show one moment of the fleet; a NIC
    is seen in as many moments as in a retest.
    """
    samples = max(plan.samples, math.ceil(plan.samples_per_nic / max(rounds, 1)))
    calls = math.ceil(RETEST_REPEATS / max(rounds, 1))
    return math.ceil(samples / calls), calls


class InterNode(RungMeasurement):
    """Flows between hosts, one row each. bytes_of_flow: as many as the network moves in time."""

    def __init__(self, probe: Probe, topology: Topology, plan: Plan, faults: KnownFaults) -> None:
        self.probe, self.topology, self.plan, self.faults = probe, topology, plan, faults
        self.nbytes = self.bytes_of_flow = plan.nic_bytes
        self.random = np.random.default_rng(plan.seed)
        self.at_once = max(topology.hosts // 4, min(topology.hosts // 2, 2))  # flows of a retest's round
        self.suspects = set(faults)  # ranks
        self.shares = list[SlowShares]()
        self.screened: Observations | None = None  # suspects that were cleared
        self.isolated: Observations | None = None
        self.flows: list[Ints] = []  # of `isolated`
        self.seconds: list[Seconds] = []
        self.look_of: list[int] = []
        self.looks_at: dict[int, ChangingLooks] = {}  # of NICs, until decided
        self.looks_of: dict[int, set[int]] = {}  # in which a rank was part of a suspect
        self.flaps = set[PartName]()  # suspects that were looked at for being slow at times
        self.looked = 0
        self.first: Observations  # table, of the first measurement
        self.subrounds = 0  # into which each round is split; 0: not known yet
        self.crowded = False  # fewer flows at once than `max_subrounds` allows would be faster still
        hosts = topology.hosts
        self.far = np.zeros((hosts, hosts), np.bool_)  # host pairs whose uplinks are slower than NICs
        self.near = np.full(hosts, hosts > LEAST_NEAR)  # hosts whose NICs flows to some others show
        # By rail: ranks that are slow with others only, and these others if either may be the reason.
        self.leaves: dict[int, tuple[Ints, Ints]] = {}

    @property
    def gaps(self) -> Sequence[str]:
        if self.far.any():
            hidden = [self.topology.names[host] for host in np.flatnonzero(~self.near).tolist()]
            if not hidden:
                return ()
            some = ", ".join(hidden[:HIDDEN_LISTED]) + (", ..." if len(hidden) > HIDDEN_LISTED else "")
            return (
                "flows between groups of hosts are limited by uplinks; NICs behind such uplinks cannot be "
                f"judged where a group has fewer than {LEAST_NEAR + 1} hosts: {some}",
            )
        if not self.crowded:
            return ()
        return (
            f"flows between hosts are faster the fewer there are at once, even {self.subrounds} times fewer "
            "than all; NICs behind such uplinks cannot be judged",
        )

    # --- measuring

    def measure(self, longer: bool = False) -> Observations:
        rounds = list(inter_node_rounds(self.topology, self.plan))
        samples, repeats = first_samples(len(rounds), self.plan)
        if not self.subrounds:
            by_nics = [~self.topology.over_nvlink(*each.T) for each in rounds]
            self.nbytes = self.bytes_in_time(rounds[int(np.argmax([some.sum() for some in by_nics]))])
            self.bytes_of_flow = self.nbytes
            self.subrounds = self.subrounds_needed(rounds)
            # More rounds of fewer bytes take as long; latency is still a small part of a flow.
            self.nbytes = min(self.nbytes, max(self.nbytes // self.subrounds, LEAST_SPLIT_BYTES))
        if self.subrounds > 1:
            # Flows of a retest must not share an uplink either: one on each rail; with many hosts a sixteenth
            # of what a rail carries in a subround, so that more hosts take no more time.
            usual = max(self.topology.hosts // 4, 2)
            self.at_once = min(self.at_once, max(usual // self.subrounds, 4))
        rounds = [some for each in rounds for some in self.split(each)]
        # Noise that hides single pairs of many hides no NIC, and split rounds take as long as more hosts.
        as_many = self.subrounds * self.topology.hosts
        again = self.subrounds == 1 or as_many < self.plan.all_pairs_hosts
        seconds, self.noise = measure_first(self.sample, rounds, samples, self.plan, longer, repeats, again)
        self.first = self.tabulated(rounds, seconds)
        self.far = far_hosts(self.first, self.topology, self.plan)
        self.near = np.asarray(np.count_nonzero(~self.far, axis=1) > LEAST_NEAR)
        if self.far.any():
            met_by_chance = self.topology.hosts > self.plan.full_mesh_hosts
            inside = list(self.near_rounds(rounds if met_by_chance else ()))
            # Only these show a NIC that is slow at times, for all of a NIC's samples together.
            plan = replace(self.plan, samples_per_nic=NEAR_SAMPLES * self.plan.samples_per_nic)
            samples, repeats = first_samples(len(inside), plan)
            more, noise = measure_first(self.sample, inside, samples, plan, longer, repeats)
            rounds, seconds = self.without(inside, rounds, seconds)
            rounds, seconds, self.noise = rounds + inside, seconds + more, max(self.noise, noise)
            self.first = self.tabulated(rounds, seconds)
        self.leaves = slow_leaves(self.first, self.topology, self.far, self.plan)
        return self.first

    def tabulated(self, rounds: Sequence[Ints], seconds: Sequence[Seconds]) -> Observations:
        """Return the table of a first measurement. A host's flows of a round are measured together."""
        hosts = self.topology.hosts
        together = [number * hosts + self.topology.host[flows] for number, flows in enumerate(rounds)]
        return tabulate(
            rounds, seconds, self.siblings, self.plan, known=self.noise, together=np.concatenate(together)
        )

    def near_rounds(self, rounds: Sequence[Ints]) -> Iterator[Ints]:
        """Yield rounds of flows inside the groups of hosts, of pairs of ranks that have not met in `rounds`.

        Only these flows show NICs, and where each two hosts meet on one rail, a NIC has met few or none of
        its group. No uplink limits them, so all are measured at once. At most NEAR_ROUNDS, in each of which a
        rank has one partner.
        """
        topology = self.topology
        near = ~self.far & np.triu(np.ones_like(self.far), 1)
        pairs = [topology.at[np.argwhere(near), rail] for rail in range(topology.rails)]
        wanted = np.concatenate([each[(each >= 0).all(axis=1)] for each in pairs])
        wanted = wanted[~topology.over_nvlink(*wanted.T)]
        size = topology.ranks
        if len(rounds):
            wanted = wanted[~np.isin(wanted @ [size, 1], np.concatenate(rounds) @ [size, 1])]
        for each in islice(matched_rounds(wanted, np.arange(size), self.random), NEAR_ROUNDS):
            yield from one_rank_per_nic(both_ways(each), topology)

    def without(
        self, later: Sequence[Ints], rounds: Sequence[Ints], seconds: Sequence[Seconds]
    ) -> tuple[list[Ints], list[Seconds]]:
        """Return the flows, and their seconds, that `later` rounds do not measure again."""
        size = self.topology.ranks
        again = np.concatenate([*later, np.empty((0, 2), np.int64)]) @ [size, 1]
        keep = [~np.isin(flows @ [size, 1], again) for flows in rounds]
        some = [number for number, of_round in enumerate(keep) if of_round.any()]
        return [rounds[n][keep[n]] for n in some], [seconds[n][keep[n]] for n in some]

    def split(self, flows: Ints) -> list[Ints]:
        """Split a round so that neither shared NICs nor uplinks limit its flows."""
        return [
            part
            for each in one_rank_per_nic(flows, self.topology)
            for part in split_round(each, self.topology, max(self.subrounds, 1))
        ]

    def bytes_in_time(self, flows: Ints) -> int:
        """Return how much a flow moves so that it takes no longer than the plan's `transfer_seconds`.

        The plan's size, or halves of it, but at least LEAST_BYTES: where the network is slow, a transfer of
        fewer bytes shows the rate as well.
        """
        by_nics = flows[~self.topology.over_nvlink(*flows.T)]
        measured = self.sample(by_nics if len(by_nics) else flows, 1)
        if np.isnan(measured).all():
            return self.nbytes
        seconds = float(np.nanmedian(measured))
        halves = max(math.ceil(math.log2(max(seconds / self.plan.transfer_seconds, 1))), 0)
        return max(self.nbytes >> halves, min(self.nbytes, LEAST_BYTES))

    def subrounds_needed(self, rounds: Sequence[Ints]) -> int:
        """Return into how many each round must be split so that NICs, not shared uplinks, limit its flows.

        Doubles the number while at least CROWDED of the flows become faster by more than the tolerance, up to
        `max_subrounds`: a climb then takes that many times as long on this rung. Tries the rounds whose hosts
        are farthest apart, as neighbours often share a leaf switch.
        """
        count, most = 1, most_subrounds(self.topology, self.plan)
        if most == 1:
            return 1
        host, fewest = self.topology.host, self.topology.hosts // 2
        apart = [float(np.abs(np.diff(host[flows], axis=1)).mean()) for flows in rounds]
        some = [rounds[number] for number in np.argsort(apart)[::-1][:TRIAL_ROUNDS].tolist()]
        usual = self.trial(some, count)
        while 2 * count <= fewest:
            fewer = self.trial(some, 2 * count)
            if np.mean(usual - fewer > self.plan.tolerance) < CROWDED:
                return count
            if 2 * count > most:
                self.crowded = True
                return count
            count, usual = 2 * count, fewer
        return count

    def trial(self, rounds: Sequence[Ints], count: int) -> Floats:
        """Return (flows,): the log of the median seconds of each, in the order of its pair of ranks.

        With each round split into `count`.
        """
        parts = [
            part
            for each in rounds
            for one in one_rank_per_nic(each, self.topology)
            for part in split_round(one, self.topology, count)
        ]
        logs = np.concatenate([np.log(row_medians(self.sample(part, self.plan.samples))) for part in parts])
        a, b = np.concatenate(parts).T
        return np.asarray(logs[np.argsort(a * self.topology.ranks + b)])

    def retest(self, suspects: Sequence[PartName]) -> tuple[Observations, Collection[PartName]]:
        """Screen pairs; retest what remains, and other suspects, one flow per host at a time over the span.

        Healthy ranks are their siblings in the same rounds.
        """
        # NICs that are slow for part of the time are not: a look at once may clear them.
        pairs = [name for name in suspects if name[0] in BETWEEN]
        others = [name for name in suspects if name[0] not in BETWEEN]
        self.suspects |= {rank for name in others for rank in self.ranks(name)}
        left = others + self.screen(pairs)
        self.suspects |= {rank for name in left for rank in self.ranks(name)}
        # A look at many takes longer than a load does, and shows its begin and end.
        few_flaps = sum(name[0] == "flap" for name in left) <= FEW_FLAPS
        flows = {name: self.suspect_flows(name, self.suspects, few_flaps) for name in left}
        controls = (
            self.control_flows(self.suspects, [flow for of in flows.values() for flow in of]) if left else []
        )
        samples = max(self.plan.retest_samples // RETEST_REPEATS, 3) * repeats_needed(
            self.noise, self.plan.retest_samples, self.plan
        )
        if left:
            left = self.look(flows, controls, samples)
        if self.isolated is None:
            assert self.screened is not None  # there were suspects
            return self.screened, left
        return joined(self.screened, self.isolated), left

    def look(
        self,
        flows: Mapping[PartName, Sequence[tuple[int, int]]],
        controls: Sequence[tuple[int, int]],
        samples: int,
    ) -> list[PartName]:
        """Measure the flows of suspects alone, in looks over the plan's span, until each is decided.

        Suspects that may be slow part of the time are looked at up to MOST_LOOKS times. Returns the suspects
        that are not clear.
        """
        begin, left, shown = self.looked, list(flows), dict(flows)
        self.flaps |= {name for name in flows if name[0] == "flap"}
        spacing = self.plan.retest_span / RETEST_REPEATS
        if self.isolated is not None:  # looks at a host decide about its NICs too
            left = self.undecided(left, self.isolated, begin)
        for _ in spaced_repeats(MOST_LOOKS if left else 0, MOST_LOOKS * spacing, self.probe):
            for rank in {rank for name in left for rank in self.ranks(name)}:
                self.looks_of.setdefault(rank, set()).add(self.looked)
            of_left = [flow for name in left for flow in shown[name]]
            few = [shown[name] for name in left if name[0] == "flap" and is_one_pair(shown[name])]
            of_pairs = {flow for pair in few for flow in pair}
            controls = self.of_classes(controls, of_left)
            wanted = [*dict.fromkeys([*of_left, *controls]), *sorted(of_pairs) * (PAIR_REPEATS - 1)]
            # A new order each time: flows that collided by chance will not collide again.
            mixed = [wanted[number] for number in self.random.permutation(len(wanted))]
            for met in isolated_rounds(mixed, self.topology, self.at_once):
                table = np.array(met, np.int64)
                seconds = self.sample(table, samples)  # raises if the time is up
                self.flows.append(table)
                self.seconds.append(seconds)
                self.look_of.append(self.looked)
            self.looked += 1
            self.isolated = tabulate(
                self.flows, self.seconds, self.retest_siblings, self.plan, retested=True, looks=self.look_of
            )
            if self.looked == begin + 1:
                shown = self.shown_flows(shown, self.isolated)
            left = self.undecided(left, self.isolated, begin)
            if not left:
                break
        assert self.isolated is not None
        return self.unclear(self.isolated, list(flows))

    def shown_flows(
        self, flows: Mapping[PartName, Sequence[tuple[int, int]]], table: Observations
    ) -> dict[PartName, Sequence[tuple[int, int]]]:
        """Return the flows that show each suspect that may be slow at times; all flows of other suspects."""
        size, kinds, found = self.topology.ranks, self.part_kinds(table), dict(flows)
        for name, of_name in flows.items():
            if name[0] != "flap":
                continue
            rows = rows_through(kinds, nic_of(name))
            known = set((table.a[rows] * size + table.b[rows]).tolist())
            found[name] = [flow for flow in of_name if flow[0] * size + flow[1] in known] or of_name
        return found

    def of_classes(
        self, flows: Sequence[tuple[int, int]], like: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Return the flows of the same classes as some other flows."""
        wanted, own = (self.flow_kind(*np.array(some, np.int64).reshape(-1, 2).T) for some in (like, flows))
        return [flow for flow, kind in zip(flows, own.tolist(), strict=True) if kind in set(wanted.tolist())]

    def undecided(self, names: Sequence[PartName], table: Observations, begin: int) -> list[PartName]:
        """Return the suspects that more looks may clear or confirm. begin: the first look at them."""
        kinds, count, found = self.part_kinds(table), self.looked - begin, []
        of_kind, suspect = self.flow_kind(table.a, table.b), list(self.suspects)
        healthy = ~np.isin(table.a, suspect) & ~np.isin(table.b, suspect)
        for name in names:
            if name[0] == "flap":
                looks = sorted(self.looks_of.get(name[1], ()))
                through = rows_through(kinds, nic_of(name)) & np.isin(table.look, looks)
                alike = healthy & np.isin(of_kind, of_kind[through])
                looked = replace(changing_looks(table, through, trusted=alike), suspects=len(self.flaps))
                self.looks_at[name[1]] = looked
                decided = looked.is_sure or looked.intermittence <= LOADED_UP_TO
            else:
                through = rows_through(kinds, name) & (table.look >= begin)
                limit = self.plan.tolerance / 2
                fast = [
                    np.median(table.level[through & (table.look == look)]) < limit
                    for look in np.unique(table.look[through]).tolist()
                ]
                # A part that is slow in most looks is not fast in two of five.
                decided = count >= RETEST_REPEATS or sum(fast) > (1 - self.plan.slow_share) * RETEST_REPEATS
            if not decided:
                found.append(name)
        return found

    def unclear(self, table: Observations, names: Sequence[PartName]) -> list[PartName]:
        """Return the suspects that may be slow; those that may be slow for part of the time always may."""
        flaps = [name for name in names if name[0] == "flap"]
        others = [name for name in names if name[0] != "flap"]
        return [*flaps, *unclear_suspects(table, self.part_kinds(table), others, self.noise, self.plan)]

    def screen(self, names: Sequence[PartName]) -> list[PartName]:
        """Measure suspects again, many at once, with other neighbours each time. Returns those not cleared.

        Of flows that were slow once, nearly all collided by chance, and where uplinks are scarce, half of
        them again. Goes on while a screen clears SCREENED of them.
        Without others to compare them with, all remain.
        """
        if self.topology.hosts < SCREENED_HOSTS or not self.plan.quick_looks:
            return list(names)
        size = self.topology.ranks
        flows = {name: self.suspect_flows(name, self.suspects) for name in names}
        times, most = SCREEN_SAMPLES
        needed = times * samples_to_clear(self.noise, -math.log(self.plan.critical))
        samples = min(max(math.ceil(needed), self.plan.samples), most)
        left = list(names)
        for _ in range(SCREENS):
            if not left:
                break
            wanted = np.array([flow for name in left for flow in flows[name]], np.int64)
            controls = np.array(self.control_flows(self.suspects, wanted.tolist()), np.int64)
            rounds = [*self.separate_rounds(controls), *self.separate_rounds(wanted, with_controls=True)]
            seconds = [self.sample(each, samples) for each in rounds]
            suspected = {a * size + b for a, b in wanted.tolist()}

            def siblings(a: Ints, b: Ints, suspected: set[int] = suspected) -> Siblings:
                trusted = ~np.isin(a * size + b, list(suspected))
                return Siblings(self.flow_kind(a, b), None, 0.2, trusted)

            table = tabulate(rounds, seconds, siblings, self.plan, retested=True)
            before, left = left, self.unclear(table, left)
            cleared = {a * size + b for name in set(before) - set(left) for a, b in flows[name]}
            cleared -= {a * size + b for name in left for a, b in flows[name]}
            fine = table.of(np.isin(table.a * size + table.b, list(cleared)))
            self.screened = joined(self.screened, fine.with_slow_samples(self.first))
            if len(left) > (1 - SCREENED) * len(before):
                break
        return left

    def separate_rounds(self, pairs: Ints, with_controls: bool = False) -> Iterator[Ints]:
        """Yield rounds of these pairs of ranks, both ways, whose flows neither NICs nor uplinks limit.

        If groups of hosts are known, so are the flows that share uplinks: then each group has as many at once
        as a subround of the first measurement has on average, and pairs inside groups need no uplinks.
        """
        everything = np.arange(self.topology.ranks)
        if not self.far.any():
            for met in matched_rounds(pairs, everything, self.random):
                flows = self.with_controls(met, everything) if with_controls else met
                yield from self.split(both_ways(flows))
            return
        far = self.far[tuple(self.topology.host[pairs].T)]
        for met in matched_rounds(pairs[~far], self.topology.owner, self.random):
            yield both_ways(met)
        uplink = self.uplinks()
        for met in matched_rounds(pairs[far], uplink, self.random):
            yield both_ways(self.with_controls(met, uplink) if with_controls else met)

    def uplinks(self) -> Ints:
        """Return (ranks,): a number of the uplinks that the hosts of each rank's group have on its rail.

        As many hosts as there are subrounds share a number.
        """
        hosts = np.arange(self.topology.hosts)
        first = np.argmin(self.far, axis=1)  # host of each group
        place = np.array([np.count_nonzero(first[:host] == first[host]) for host in hosts])
        part = first * self.topology.hosts + place // max(self.subrounds, 1)
        return np.unique(
            part[self.topology.host] * self.topology.rails + gpu_of_nic(self.topology), return_inverse=True
        )[1].reshape(-1)

    def with_controls(self, pairs: Ints, place: Ints) -> Ints:
        """Return pairs with pairs of other ranks to compare them with. place: as of `matched_rounds`."""
        idle = ~np.isin(place, place[pairs])
        idle[list(self.suspects)] = False
        ranks = self.random.permutation(np.flatnonzero(idle))
        ranks = ranks[np.unique(place[ranks], return_index=True)[1]]  # one of each place
        ranks = self.random.permutation(ranks)
        ranks = ranks[np.argsort(self.topology.gpu[ranks], kind="stable")]
        others = np.stack([ranks[:-1], ranks[1:]], axis=1)[::2]  # of one rail, nearly all
        others = others[self.topology.gpu[others[:, 0]] == self.topology.gpu[others[:, 1]]]
        count = max(CONTROLS, len(pairs) // 4)
        return np.concatenate([pairs, self.random.permutation(others)[:count]])

    def again(self, pairs: Ints, samples: int) -> Iterable[tuple[Ints, Seconds]]:
        """Measure these pairs, both ways, in rounds of distinct pairs as at first."""
        for met in matched_rounds(pairs, np.arange(self.topology.ranks), self.random):
            for flows in self.split(both_ways(met)):
                yield flows, self.sample(flows, samples)

    def sample(self, flows: Ints, samples: int) -> Seconds:
        return self.probe.flows(flows, self.nbytes, samples)

    def siblings(self, a: Ints, b: Ints) -> Siblings:
        """Compare flows between NICs of the same models, those on one rail and those across rails.

        From three hosts on, compare host pairs.
        """
        topology, kind = self.topology, self.flow_kind(a, b)
        hosts, rails, host = topology.hosts, topology.rails, topology.host
        if hosts == 2:
            return Siblings(kind, None, (rails - 1) / rails)
        of_kind = [
            len(np.unique(host[topology.nic_kind == one])) for one in range(topology.nic_kind.max() + 1)
        ]
        fewest = min(of_kind)
        if hosts > self.plan.full_mesh_hosts:
            return Siblings(kind, None, healthy_pairs(fewest, 2))
        low, high = np.minimum(host[a], host[b]), np.maximum(host[a], host[b])
        return Siblings(kind, low * hosts + high, healthy_pairs(fewest, 2) if fewest > 3 else 0.0)

    def retest_siblings(self, a: Ints, b: Ints) -> Siblings:
        suspect = np.isin(np.arange(self.topology.ranks), list(self.suspects))
        return Siblings(self.flow_kind(a, b), None, 0.2, ~suspect[a] & ~suspect[b])

    def flow_kind(self, a: Ints, b: Ints) -> Ints:
        """Return the class of each flow, as of the topology; flows over slower uplinks have their own."""
        host = self.topology.host
        return 2 * self.topology.flow_kind(a, b) + self.far[host[a], host[b]]

    # --- parts

    def part_kinds(self, table: Observations) -> list[PartKind]:
        """Return the parts on the path of each flow; of equally good explanations, the first is named."""
        a, b = table.a, table.b
        host, gpu, size = self.topology.host, self.topology.gpu, self.topology.ranks
        low, high = np.minimum(a, b), np.maximum(a, b)
        first, second = np.minimum(host[a], host[b]), np.maximum(host[a], host[b])
        owner, nvlink = self.topology.owner, self.topology.over_nvlink(a, b)
        rail = np.where((gpu[a] == gpu[b]) & ~nvlink, gpu[owner[a]], -1)
        in_parts = np.isin(rail, list(self.leaves))  # slow in parts only
        whole = np.where(in_parts, -1, rail)
        send, receive = self.shown_by(table)
        sender, receiver = np.where(send, owner[a], -1), np.where(receive, owner[b], -1)
        kinds = [
            numbered_kind("nic", size, sender, receiver),
            numbered_kind("send", size, sender),
            numbered_kind("receive", size, receiver),
            numbered_kind(
                "host", self.topology.hosts, np.where(send, host[a], -1), np.where(receive, host[b], -1)
            ),
            numbered_kind("rail", self.topology.rails, whole),
        ]
        if nvlink.any():
            there, back = np.where(nvlink, a, -1), np.where(nvlink, b, -1)
            kinds += [
                part_kind("nvlink", there, back),
                part_kind("nvlink send", there),
                part_kind("nvlink receive", back),
            ]
        if self.leaves:
            inside = np.zeros(size, bool)
            inside[np.concatenate([ranks for ranks, _ in self.leaves.values()])] = True
            kinds.append(part_kind("leaf", np.where(in_parts & (inside[a] != inside[b]), rail, -1)))
        if self.topology.hosts > self.plan.all_pairs_hosts:
            return kinds  # partners are sampled: links are not judged
        if self.topology.rails > 1:
            kinds.append(part_kind("path", low * size + high))
        return [
            *kinds,
            part_kind("link", first * self.topology.hosts + second),
            part_kind("link one way", host[a] * self.topology.hosts + host[b]),
        ]

    def shown_by(self, table: Observations) -> tuple[Mask, Mask]:
        """Return whether each flow shows its sender's NIC, and its receiver's.

        Flows over NVLink do not, nor those across rails with PXN, nor those over uplinks that are slower than
        a NIC: across rails if these are slower by design, and to far hosts unless a host has no others.
        """
        a, b, topology = table.a, table.b, self.topology
        by_nics, cross = ~topology.over_nvlink(a, b), topology.gpu[a] != topology.gpu[b]
        if topology.pxn:
            by_nics &= ~cross
        usual, nics = np.log(table.siblings), topology.flow_kind(a, b) // 4
        for one in np.unique(nics[cross & by_nics]).tolist():
            alike = by_nics & (nics == one)
            if (alike & ~cross).any():
                limit = usual[alike & ~cross].min() + 2 * self.plan.tolerance
                by_nics &= ~(alike & cross & (usual > limit))
        near, host = self.near, topology.host
        far = self.far[host[a], host[b]]
        return by_nics & ~(far & near[host[a]]), by_nics & ~(far & near[host[b]])

    def slowed(self, suspect: Suspect, table: Observations) -> Mask | None:
        """Return the rows that a slow part may slow too, though they are no evidence of it.

        Flows across rails pass its NICs, or the leaf switch of its rail, even where they show no NIC.
        """
        names = [name for name in (suspect.name, *suspect.ties) if name[0] in (*OF_NICS, "rail")]
        send, receive = self.shown_by(table)
        hidden = ~(send & receive) & ~self.topology.over_nvlink(table.a, table.b)
        if suspect.kind not in (*OF_NICS, "rail") or not hidden.any():
            return None
        of_parts = np.zeros(self.topology.ranks, bool)
        for name in names:
            of_parts |= np.isin(self.topology.owner, self.topology.owner[self.ranks(name)])
        return np.asarray(hidden & (of_parts[table.a] | of_parts[table.b]))

    def locate(self, found: Confirmed) -> Confirmed | None:
        kind, key = found.name
        if kind == "leaf":
            ranks, others = (tuple(side.tolist()) for side in self.leaves[key])
            return replace(found, ranks=ranks, or_ranks=others)
        if kind == "path" and self.only_pair(*divmod(key, self.topology.ranks)):
            nics = [("nic", rank) for rank in divmod(key, self.topology.ranks)]
            return replace(found, ties=(*found.ties, *nics))
        return found if found.flaps is None else replace(found, p99=self.tails(key))

    def only_pair(self, a: int, b: int) -> bool:
        """Return whether flows between two ranks are the only ones that show what their NICs reach."""
        one, other = self.topology.host[[a, b]]
        return bool(self.far.any() and not self.far[one, other] and not self.near[[one, other]].any())

    def tails(self, nic: int) -> tuple[float, float]:
        """Return the 99th percentile of the seconds of flows through a NIC in all looks, and of other flows.

        Of the class of flows that shows the NIC best: those on its rail.
        """
        owner = self.topology.owner
        kinds = [self.flow_kind(*flows.T) for flows in self.flows]
        through = [(owner[flows] == nic).any(axis=1) for flows in self.flows]
        # Flows of a rail are of a lower class than those across rails, or to far hosts.
        best = min(int(kind[some].min()) for kind, some in zip(kinds, through, strict=True) if some.any())

        def p99(wanted: bool) -> float:
            of = [
                seconds[(kind == best) & (some == wanted)].ravel()
                for seconds, kind, some in zip(self.seconds, kinds, through, strict=True)
            ]
            return float(np.nanpercentile(np.concatenate(of), 99)) if any(map(len, of)) else math.nan

        return p99(True), p99(False)

    def ranks(self, name: PartName) -> list[int]:
        """Return the ranks that a suspect consists of."""
        kind, key = name
        if kind == "leaf":
            return list(self.leaves[key][0].tolist())
        if kind in ("nic", "send", "receive", "flap"):
            return list(self.topology.sharing(key).tolist())
        if kind == "host":
            return list(self.topology.on(key).tolist())
        if kind == "rail":
            return list(self.topology.rail(key).tolist())
        if kind in LINKS:
            return [
                rank for host in divmod(key, self.topology.hosts) for rank in self.topology.on(host).tolist()
            ]
        return list(divmod(key, self.topology.ranks)) if kind == "path" else [key]

    def intermittent(self, cover: Cover) -> Suspect | None:
        """Return the NIC with the largest share of slow samples, if that is far above the usual share."""
        if not self.shares or self.shares[0].cover is not cover:
            loaded = [nic for nic, one in self.looks_at.items() if one.intermittence <= LOADED_UP_TO]
            shown = self.shown_by(cover.table)
            self.shares = shares_of_nics(
                cover, self.topology.owner, shown, self.noise, self.plan.tolerance, loaded
            )
        proven = [nic for nic, looks in self.looks_at.items() if looks.is_sure]
        most = max(PARTNERS, self.topology.hosts // 16)
        found = (shares.suspect(most, proven) for shares in self.shares)
        return next((suspect for suspect in found if suspect is not None), None)

    def changing_looks(self, suspect: Suspect, cover: Cover) -> ChangingLooks:
        """As of `RungMeasurement`. Later retests of others do not change what was decided, unless they show
        another part that explains some of it."""
        explained = (suspect.rows & cover.table.retested & ~cover.open).any()
        known = None if explained else self.looks_at.get(suspect.key)
        return known or replace(super().changing_looks(suspect, cover), suspects=len(self.flaps))

    def visible(self, table: Observations) -> float:
        """Return the share below which a NIC is detectable: noise in many rows hides less than in each.

        Of a part that is slow by more than the tolerance, three quarters of the rows are slow by half of it
        (`is_mild`) unless their standard deviation is large.
        """
        rows = np.bincount(table.a, minlength=self.topology.ranks)
        if not len(table) or np.median(rows) < MANY_MEASUREMENTS / 2:
            return table.visible
        deviation = float(np.median(table.threshold)) / STANDARD_ERRORS
        needed = max(self.plan.tolerance, self.plan.tolerance / 2 + NORMAL_QUARTILE * deviation)
        return max(table.visible, math.exp(-needed))

    def is_erratic(self, suspect: Suspect, rows: Mask, table: Observations) -> bool:
        fast, count = int(table.fast[rows].sum()), int(table.count[rows].sum())
        return suspect.kind in ERRATIC and is_erratic(fast, count)

    # --- flows of a retest

    def suspect_flows(
        self, name: PartName, suspects: set[int], few_flaps: bool = False
    ) -> list[tuple[int, int]]:
        """Return flows in both directions through a suspect. few_flaps: of a flap, with more partners."""
        kind, key = name
        topology = self.topology
        if kind in LINKS:
            left, right = divmod(key, topology.hosts)
            pairs = [
                (int(a), int(b))
                for a, b in zip(topology.at[left], topology.at[right], strict=True)
                if min(a, b) >= 0
            ]
        elif kind == "path":
            pairs = [divmod(key, topology.ranks)]
            if topology.hosts <= PARTNERS:
                pairs += [
                    (rank, other) for rank in pairs[0] for other in self.partners(rank, suspects, PARTNERS)
                ]
        else:
            ranks = self.ranks(name)
            few = ranks if len(ranks) <= 8 else self.random.choice(ranks, 8, replace=False).tolist()
            far, over_nvlink = kind == "leaf", kind.startswith("nvlink")
            count = 2 * PARTNERS if kind == "flap" and few_flaps else PARTNERS
            pairs = [
                (rank, other)
                for rank in few
                for other in self.partners(rank, suspects, count, far, over_nvlink)
            ]
        return [flow for a, b in pairs for flow in ((a, b), (b, a))]

    def partners(
        self, rank: int, suspects: set[int], count: int, far: bool = False, over_nvlink: bool = False
    ) -> list[int]:
        """Return healthy ranks of other hosts on the same rail.

        far: beyond slower uplinks, if there are any. over_nvlink: in the same NVLink network.
        If there are few, across rails too, which separates the two sides of a flow.
        """
        topology = self.topology
        away = topology.host != topology.host[rank]
        if over_nvlink:
            away &= topology.domain == topology.domain[rank]
        elif (others := topology.domain != topology.domain[rank]).any():
            away &= others
        rail = away & (topology.gpu == topology.gpu[rank])
        distant = self.far[topology.host[rank], topology.host]
        if far and (rail & distant).any():
            rail &= distant
        elif not far and (rail & ~distant).sum() >= LEAST_NEAR:
            rail &= ~distant
        found = self.chosen(np.flatnonzero(rail), suspects, count)
        if rail.sum() < PARTNERS:
            found += self.chosen(np.flatnonzero(away & ~rail), suspects, count)
        return found

    def chosen(self, ranks: Ints, suspects: set[int], count: int) -> list[int]:
        """Return up to `count` of the ranks in random order, healthy ones first."""
        order = self.random.permutation(ranks)
        last = np.isin(order, list(suspects))
        return list(np.concatenate([order[~last], order[last]])[:count].tolist())

    def control_flows(self, suspects: set[int], wanted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return flows between healthy ranks (or suspects, if there are no others), of each class wanted."""
        topology, found = self.topology, list[tuple[int, int]]()
        needed = set(self.flow_kind(*np.array(wanted, np.int64).T).tolist())
        host = topology.host
        pairs = [
            (rank, other)
            for rank in self.chosen(np.arange(topology.ranks), suspects, CANDIDATES)
            for rail in (topology.gpu == topology.gpu[rank], topology.gpu != topology.gpu[rank])
            for distant in ((False, True) if self.far.any() else (False,))  # of many hosts, few are near
            for other in self.chosen(
                np.flatnonzero((host != host[rank]) & rail & (self.far[host[rank], host] == distant)),
                suspects,
                CONTROLS,
            )
        ]
        kinds = self.flow_kind(*np.array(pairs, np.int64).T)
        good = np.asarray(~np.isin(np.array(pairs), list(suspects)).any(axis=1))
        for kind in sorted(needed):
            some = self.random.permutation(np.flatnonzero(kinds == kind))
            some = some[np.argsort(~good[some], kind="stable")][:CONTROLS]
            found += [pairs[number] for number in some.tolist()]
        return found


def is_one_pair(flows: Sequence[tuple[int, int]]) -> bool:
    return len({rank for flow in flows for rank in flow}) == 2


def through_nics(table: Observations, topology: Topology) -> Observations:
    """Return the flows that need NICs; all of them if none does."""
    rows = ~topology.over_nvlink(table.a, table.b)
    return table.of(rows) if rows.any() and not rows.all() else table


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


def slow_leaves(
    table: Observations, topology: Topology, far: Mask, plan: Plan
) -> dict[int, tuple[Ints, Ints]]:
    """Return, by rail, ranks that are slow with most others, but not with each other.

    Each uplink of their leaf switch is slow. At most half of a rail, and at least two ranks. And the ranks of
    those others, if the uplinks of their leaf switch may be slow instead.
    """
    if topology.hosts > plan.all_pairs_hosts:
        return {}
    gpu, host = topology.gpu, topology.host
    usable = (gpu[table.a] == gpu[table.b]) & ~topology.over_nvlink(table.a, table.b)
    found = {}
    for rail in range(topology.rails):
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
            found[rail] = ranks_of_sides(
                inside[here], topology.at[here, rail], (known * far)[np.ix_(here, here)]
            )
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
