"""Flows between hosts, rail by rail: finds slow NICs, hosts, rails and links between hosts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from meshrun.jobs.measure.outliers import (
    LOADED_UP_TO,
    MANY_MEASUREMENTS,
    STANDARD_ERRORS,
    Floats,
    is_erratic,
    looks_of_loaded,
    row_medians,
    sample_noise,
    samples_to_clear,
    slow_sample_threshold,
)
from meshrun.jobs.validate.localize.flow_network import LINKS, FlowNetwork
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
    rows_through,
)
from meshrun.jobs.validate.measurements.flow_schedule import PARTNERS, FlowSchedule
from meshrun.jobs.validate.measurements.repeats import (
    RETEST_REPEATS,
    Measure,
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
from meshrun.jobs.validate.probe.metered import TimeUpError
from meshrun.jobs.validate.topology import Ints, Topology

# Kinds of suspects that flows in one direction may clear wrongly; NICs that are measured in both at once.
ONE_WAY, MOST_BOTH_WAYS = ("nic", "send", "receive", "host", "path"), 16
FEW_FLAPS = 4  # suspects in one retest
MOST_LOOKS = 20  # of NICs that may be slow part of the time; a few cannot be told after 15
# How much longer pauses between looks are after the first RETEST_REPEATS: with a span of 40 s, the last of 8
# looks is after 112 s. Of loads with a mean of 40 s, one in 16 lasts as long.
LATER_PAUSES = 3
ERRATIC = ("nic", "send", "receive", "path")  # kinds that may be a NIC that is slow part of the time
PAIR_REPEATS = 4  # measurements of a flow in a look, if a suspect is shown with one partner only
BETWEEN = (*LINKS, "path")  # kinds that may rest on a single pair of flows
MOST_PASSES = 12  # of the first measurement over its span: some within each episode of 4 s in 24 s
SCREENED_HOSTS = 8  # from which on there are enough others
SCREENS = 16  # of suspects of these kinds, at most
SCREENED = 0.25  # share of them that a screen must clear for another: all take at most 4 times the first
SCREEN_SAMPLES = 1.5, 60  # times those that clear a healthy flow on average; at most
OF_HOSTS = ("nic", "send", "receive", "host", "flap")  # kinds that are slow while others load a host
OF_LOADS = ("nic", "send", "receive", "host", "host send", "host receive", *BETWEEN)  # or seem to be
LEAST_BUSY = 4  # hosts from which on one that was slow for a while shows that others load the fleet
WITNESSED = ("nic", "send", "receive", "flap", *BETWEEN)  # kinds that leave other NICs of a host fast
FLAP_PAUSES = 0.5  # times the usual pause: episodes of 5 s are seen in a look at least
MANY_HOSTS = 20  # from which on loads of other hosts show that others load the fleet, in the first looks
LOADED_HOSTS = 2  # others that were slow for a while only, which show that others load the fleet
UNSTEADY = 3.0  # tolerances between the levels of two looks, which no fault of a part makes
TRIAL_ROUNDS = 2  # with which it is decided how many flows to measure at once
LEAST_BYTES, LEAST_SPLIT_BYTES = 4 << 20, 16 << 20
NORMAL_QUARTILE = 0.67  # of a normal distribution, in standard deviations
NEAR_SAMPLES = 2  # times as many samples of a NIC: of one that is slow for 30 % of the time, in 15 episodes
CROWDED = 0.25  # share of the flows that must be faster for fewer at once to be worth their time


def most_subrounds(topology: Topology, plan: Plan) -> int:
    """Return into how many subrounds a round may be split; 1 if not at all."""
    return min(plan.max_subrounds, topology.hosts // 2) if topology.hosts >= 4 else 1


def first_samples(rounds: int, plan: Plan) -> tuple[int, int]:
    """Return samples of a round in a call, and in how many calls each of so many rounds is measured.

    With few rounds each takes many samples. A call of all of them would show one moment of the fleet; a NIC
    is seen in as many moments as in a retest, or, over the plan's `first_span`, in up to MOST_PASSES of them.
    """
    samples = max(plan.samples, math.ceil(plan.samples_per_nic / max(rounds, 1)))
    calls = math.ceil(RETEST_REPEATS / max(rounds, 1))
    if plan.first_span:
        calls = max(calls, min(samples // plan.samples, MOST_PASSES))
    return math.ceil(samples / calls), calls


class InterNode(RungMeasurement):
    """Flows between hosts, one row each. bytes_of_flow: as many as the network moves in time."""

    def __init__(self, probe: Probe, topology: Topology, plan: Plan, faults: KnownFaults) -> None:
        self.probe, self.topology, self.plan, self.faults = probe, topology, plan, faults
        self.network = FlowNetwork(topology, plan)
        self.schedule = FlowSchedule(topology, self.network, plan.seed)
        self.nbytes = self.bytes_of_flow = plan.nic_bytes
        self.at_once = max(topology.hosts // 4, min(topology.hosts // 2, 2))  # flows of a retest's round
        self.suspects = set(faults)  # ranks
        self.slow_ranks = set[int]()  # suspects that looks did not clear, and that are no links
        self.shares = list[SlowShares]()
        self.screened: Observations | None = None  # suspects that were cleared
        self.isolated: Observations | None = None
        self.paired: Observations | None = None  # NICs that send and receive at once
        self.paired_rounds: list[tuple[Ints, Seconds, int]] = []  # of `paired`: flows, seconds, look
        self.paired_looks = 0
        self.flows: list[Ints] = []  # of `isolated`
        self.seconds: list[Seconds] = []
        self.look_of: list[int] = []
        self.looks_at: dict[int, ChangingLooks] = {}  # of NICs, until decided
        self.looks_of: dict[int, set[int]] = {}  # in which a rank was part of a suspect
        self.flaps = set[PartName]()  # suspects that were looked at for being slow at times
        self.looked = 0
        self.witnessed: dict[int, dict[int, tuple[float, float]]] = {}  # levels, by host and look
        self.loaded = set[PartName]()  # suspects that were slow for a while, as by others' load
        self.cleared_hosts = set[int]()  # hosts with NICs that were slow at first only
        self.first: Observations  # table, of the first measurement
        self.crowded = False  # fewer flows at once than `max_subrounds` allows would be faster still

    @property
    def gaps(self) -> Sequence[str]:
        count = len(self.loaded)
        sentence = (
            f"{count} suspect{'s'[: count > 1]} between hosts, slow for a while only, as if others loaded "
            "the fleet; validate it again while it is idle"
        )
        load = (sentence,) if count else ()
        if self.network.far.any() or not self.crowded:
            return (*load, *self.network.gaps)
        return (
            *load,
            f"flows between hosts are faster the fewer there are at once, even {self.schedule.subrounds} "
            "times fewer than all; NICs behind such uplinks cannot be judged",
        )

    def part_kinds(self, table: Observations) -> list[PartKind]:
        return self.network.part_kinds(table)

    def slowed(self, suspect: Suspect, table: Observations) -> Mask | None:
        return self.network.slowed(suspect, table)

    def measure(self, longer: bool = False) -> Observations:
        rounds = list(inter_node_rounds(self.topology, self.plan))
        samples, repeats = first_samples(len(rounds), self.plan)
        if not self.schedule.subrounds:
            by_nics = [~self.topology.over_nvlink(*each.T) for each in rounds]
            self.nbytes = self.bytes_in_time(rounds[int(np.argmax([some.sum() for some in by_nics]))])
            self.bytes_of_flow = self.nbytes
            self.schedule.subrounds = self.subrounds_needed(rounds)
            # More rounds of fewer bytes take as long; latency is still a small part of a flow.
            self.nbytes = min(self.nbytes, max(self.nbytes // self.schedule.subrounds, LEAST_SPLIT_BYTES))
        if self.schedule.subrounds > 1:
            # Flows of a retest must not share an uplink either: one on each rail; with many hosts a sixteenth
            # of what a rail carries in a subround, so that more hosts take no more time.
            usual = max(self.topology.hosts // 4, 2)
            self.at_once = min(self.at_once, max(usual // self.schedule.subrounds, 4))
        rounds = [some for each in rounds for some in self.schedule.split(each)]
        # Noise that hides single pairs of many hides no NIC, and split rounds take as long as more hosts.
        as_many = self.schedule.subrounds * self.topology.hosts
        again = self.schedule.subrounds == 1 or as_many < self.plan.all_pairs_hosts
        paced = self.paced(len(rounds) * repeats)
        seconds, self.noise = measure_first(paced, rounds, samples, self.plan, longer, repeats, again)
        self.first = self.tabulated(rounds, seconds)
        self.network.find_groups(self.first)
        if self.network.far.any():
            met_by_chance = self.topology.hosts > self.plan.full_mesh_hosts
            inside = list(self.schedule.near_rounds(rounds if met_by_chance else ()))
            # Only these show a NIC that is slow at times, for all of a NIC's samples together.
            plan = replace(self.plan, samples_per_nic=NEAR_SAMPLES * self.plan.samples_per_nic, first_span=0)
            samples, repeats = first_samples(len(inside), plan)
            more, noise = measure_first(self.sample, inside, samples, plan, longer, repeats)
            rounds, seconds = self.without(inside, rounds, seconds)
            rounds, seconds, self.noise = rounds + inside, seconds + more, max(self.noise, noise)
        if self.network.far.any() or (self.network.hosts_of == 2).any():
            self.first = self.tabulated(rounds, seconds)
        self.network.find_slow_leaves(self.first)
        return self.first

    def tabulated(self, rounds: Sequence[Ints], seconds: Sequence[Seconds]) -> Observations:
        """Return the table of a first measurement. A host's flows of a round are measured together."""
        hosts = self.topology.hosts
        together = [number * hosts + self.topology.host[flows] for number, flows in enumerate(rounds)]
        return tabulate(
            rounds,
            seconds,
            self.network.siblings,
            self.plan,
            known=self.noise,
            together=np.concatenate(together),
            both_ways=True,
        )

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
        self.suspects |= {rank for name in others for rank in self.network.ranks(name)}
        left = others + self.screen(pairs)
        self.suspects |= {rank for name in left for rank in self.network.ranks(name)}
        # A look at many takes longer than a load does, and shows its begin and end.
        few_flaps = sum(name[0] == "flap" for name in left) <= FEW_FLAPS
        flows = {
            name: self.schedule.suspect_flows(name, self.suspects, few_flaps)
            for name in left
            if name[0] != "both"
        }
        controls = (
            self.schedule.control_flows(self.suspects, [flow for of in flows.values() for flow in of])
            if flows
            else []
        )
        samples = max(self.plan.retest_samples // RETEST_REPEATS, 3) * repeats_needed(
            self.noise, self.plan.retest_samples, self.plan
        )
        alone, both = ([name for name in left if (name[0] == "both") == wanted] for wanted in (False, True))
        slow = self.look(flows, controls, samples) if alone else []
        cleared = [name for name in alone if name not in slow and name[0] in ONE_WAY]
        if fast := self.fast_alone(cleared):
            self.network.fast_alone |= set(fast)
            self.look_both_ways(fast, max(self.plan.quick_looks, 1), 0.0, samples)
        if both:
            self.look_both_ways([nic for _, nic in both], RETEST_REPEATS, self.plan.retest_span, samples)
            assert self.paired is not None
            slow += self.unclear(self.paired, both)
        tables = [table for table in (self.screened, self.isolated) if table is not None]
        table = joined(tables[0], tables[1]) if len(tables) == 2 else tables[0] if tables else None
        if self.paired is not None:
            table = self.paired if table is None else table.followed_by(self.paired)
        assert table is not None  # there were suspects
        return table, slow

    def fast_alone(self, cleared: Sequence[PartName]) -> list[int]:
        """Return the NICs of these suspects of which flows alone were fast in either direction."""
        if not cleared or self.isolated is None:
            return []
        nics = dict.fromkeys(
            int(self.topology.owner[rank]) for name in cleared for rank in self.network.ranks(name)
        )
        directions = [(way, nic) for nic in nics for way in ("send", "receive")]
        slow = {nic for _, nic in self.unclear(self.isolated, directions)}
        return [nic for nic in nics if nic not in slow][:MOST_BOTH_WAYS]

    def look_both_ways(self, ranks: Sequence[int], looks: int, span: float, samples: int) -> None:
        """Measure these NICs while they send and receive at once, and add the rows to `paired`.

        looks: spread over `span` seconds.
        """
        pairs = [
            (rank, other) for rank in ranks for other in self.schedule.partners(rank, self.suspects, PARTNERS)
        ]
        controls = self.schedule.control_flows(self.suspects | set(ranks), pairs)
        pairs += [pair for pair in controls if pair not in pairs and pair[::-1] not in pairs]
        for _ in spaced_repeats(looks, span, self.probe):
            mixed = [pairs[number] for number in self.schedule.random.permutation(len(pairs))]
            for met in isolated_rounds(mixed, self.topology, self.at_once):
                table = both_ways(np.array(met, np.int64))
                self.paired_rounds.append((table, self.sample(table, samples), self.paired_looks))
            self.paired_looks += 1
            flows, seconds, looked = (list(column) for column in zip(*self.paired_rounds, strict=True))
            self.paired = tabulate(
                flows, seconds, self.retest_siblings, self.plan, retested=True, looks=looked, both_ways=True
            )

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
        single = {rank for name in left if name[0] not in LINKS for rank in self.network.ranks(name)}
        witnesses = {
            host: self.schedule.witness_flows(host, single | self.slow_ranks, self.suspects)
            for host in sorted(self.hosts_of([name for name in left if name[0] in WITNESSED]))
        }
        due = self.probe.clock()
        while left and self.looked - begin < MOST_LOOKS:
            enough = self.looked - begin >= RETEST_REPEATS
            with_flaps = any(name[0] == "flap" for name in left)
            due += spacing * (FLAP_PAUSES if with_flaps else LATER_PAUSES if enough else 1)
            for rank in {rank for name in left for rank in self.network.ranks(name)}:
                self.looks_of.setdefault(rank, set()).add(self.looked)
            of_left = [flow for name in left for flow in shown[name]]
            seen = {host: witnesses.get(host, []) for host in sorted(self.hosts_of(left))}
            few = [shown[name] for name in left if name[0] == "flap" and is_one_pair(shown[name])]
            of_pairs = {flow for pair in few for flow in pair}
            controls = self.schedule.of_classes(controls, of_left)
            of_witnesses = [flow for of_host in seen.values() for flow in of_host]
            wanted = [*dict.fromkeys([*of_left, *of_witnesses, *controls])]
            wanted += sorted(of_pairs) * (PAIR_REPEATS - 1)
            # A new order each time: flows that collided by chance will not collide again.
            mixed = [wanted[number] for number in self.schedule.random.permutation(len(wanted))]
            try:
                if (pause := due - self.probe.clock()) > 0:
                    self.probe.wait(pause)
                for met in isolated_rounds(mixed, self.topology, self.at_once):
                    table = np.array(met, np.int64)
                    seconds = self.sample(table, samples)
                    self.flows.append(table)
                    self.seconds.append(seconds)
                    self.look_of.append(self.looked)
            except TimeUpError:
                if not enough:
                    raise
                break  # the looks so far are those of a part that nothing loads
            self.looked += 1
            self.isolated = tabulate(
                self.flows, self.seconds, self.retest_siblings, self.plan, retested=True, looks=self.look_of
            )
            for host, of_host in seen.items():
                self.add_witness(host, of_host)
            if self.looked == begin + 1:
                shown = self.shown_flows(shown, self.isolated)
            left = self.undecided(left, self.isolated, begin)
        assert self.isolated is not None
        kinds, slow = self.network.part_kinds(self.isolated), self.unclear(self.isolated, list(flows))
        # Noise, and the loads of many hosts behind one switch, change from look to look.
        for name in [name for name in slow if name[0] in OF_LOADS and self.shows_loads()]:
            levels = self.levels_by_look(self.isolated, kinds, name, begin)
            if self.may_be_loaded(name) and passed(levels, self.plan.tolerance):
                self.loaded.add(name)
        slow = [name for name in slow if name not in self.loaded]
        self.slow_ranks |= {
            rank for name in slow if name[0] not in BETWEEN for rank in self.network.ranks(name)
        }
        return slow

    def add_witness(self, host: int, flows: Sequence[tuple[int, int]]) -> None:
        """Add the levels of the flows that tell, in the last look, whether others load this host: that of its
        faster partner, and of the slowest flow."""
        table, size = self.isolated, self.topology.ranks
        assert table is not None
        last = np.flatnonzero(table.look == self.looked - 1)
        pair = np.sort(np.stack([table.a[last], table.b[last]]), axis=0)
        pair = pair[0] * size + pair[1]
        levels = [
            table.level[last[pair == min(flow) * size + max(flow)]]
            for flow in flows[::2]
            if flow[0] != flow[1]
        ]
        levels = [each for each in levels if len(each)]
        if levels:
            of_look = self.witnessed.setdefault(host, {})
            of_look[self.looked - 1] = (
                min(float(np.median(each)) for each in levels),
                max(float(each.max()) for each in levels),
            )

    def witnesses_of(self, name: PartName) -> list[dict[int, tuple[float, float]]]:
        """Return the witnesses of the hosts of a suspect; none if there is none of one of the hosts."""
        of_hosts = [self.witnessed.get(host, {}) for host in self.hosts_of([name])]
        return of_hosts if name[0] in WITNESSED and all(of_hosts) else []

    def may_be_loaded(self, name: PartName) -> bool:
        """Return whether others may have loaded a host of a suspect in some looks."""
        of_hosts = self.witnesses_of(name)
        levels = [level for of in of_hosts for level, _ in of.values()]
        return not of_hosts or max(levels) > self.plan.tolerance

    def steady_looks(self, name: PartName) -> list[int] | None:
        """Return the looks in all of which others loaded none of the hosts of a suspect; None: not known."""
        of_hosts = self.witnesses_of(name)
        looks = set.intersection(*map(set, of_hosts)) if of_hosts else set()
        fast = slow_sample_threshold(self.noise, self.plan.tolerance)
        steady = [look for look in looks if all(of[look][1] < fast for of in of_hosts)]
        return sorted(steady) or None

    def shows_loads(self) -> bool:
        """Return whether levels of looks tell a load from a fault: noise does not make them differ as much.

        That of the samples of one flow in one look, during which a load seldom begins or ends.
        """
        noise = sample_noise(np.concatenate(self.seconds)) if self.seconds else self.noise
        return noise <= self.plan.tolerance

    def levels_by_look(
        self, table: Observations, kinds: Sequence[PartKind], name: PartName, begin: int
    ) -> Floats:
        """Return the median level of a suspect in each look from `begin` on.

        Where others loaded a host of it: by how much it was slower than another NIC of the host.
        """
        through, of_hosts = rows_through(kinds, name) & (table.look >= begin), self.witnesses_of(name)
        looks = np.unique(table.look[through]).tolist()
        levels = [float(np.median(table.level[through & (table.look == look)])) for look in looks]
        loads = [max((of[look][0] for of in of_hosts if look in of), default=0.0) for look in looks]
        return np.array(levels) - np.where(np.array(loads) > self.plan.tolerance, loads, 0.0)

    def hosts_of(self, names: Sequence[PartName]) -> set[int]:
        return {int(self.topology.host[rank]) for name in names for rank in self.network.ranks(name)}

    def looks_needed(self, name: PartName, levels: Floats) -> int:
        """Return how many looks at a suspect decide that it is slow. levels: of its looks so far.

        MOST_LOOKS if it was slow in some looks only, or if others load the fleet and no other NIC of its
        hosts shows whether they load these. Of few hosts, a NIC is slow for a while if its partner is. A load
        that changes too often is noise.
        """
        if name[0] not in OF_LOADS or not self.shows_loads():
            return RETEST_REPEATS
        if passed(levels, self.plan.tolerance, 1):
            return MOST_LOOKS
        if self.witnesses_of(name):  # steady: a fault that does not come and go
            steady = not len(levels) or np.ptp(levels) < self.plan.tolerance
            return RETEST_REPEATS if steady else self.plan.load_looks
        if self.topology.hosts >= LEAST_BUSY and self.cleared_hosts - self.hosts_of([name]):
            return MOST_LOOKS
        return self.plan.load_looks if self.topology.hosts < MANY_HOSTS else RETEST_REPEATS

    def shown_flows(
        self, flows: Mapping[PartName, Sequence[tuple[int, int]]], table: Observations
    ) -> dict[PartName, Sequence[tuple[int, int]]]:
        """Return the flows that show each suspect that may be slow at times; all flows of other suspects."""
        size, kinds, found = self.topology.ranks, self.network.part_kinds(table), dict(flows)
        for name, of_name in flows.items():
            if name[0] != "flap":
                continue
            rows = rows_through(kinds, nic_of(name))
            known = set((table.a[rows] * size + table.b[rows]).tolist())
            found[name] = [flow for flow in of_name if flow[0] * size + flow[1] in known] or of_name
        return found

    def undecided(self, names: Sequence[PartName], table: Observations, begin: int) -> list[PartName]:
        """Return the suspects that more looks may clear or confirm. begin: the first look at them."""
        kinds, count, found = self.network.part_kinds(table), self.looked - begin, []
        of_kind, suspect = self.network.flow_kind(table.a, table.b), list(self.suspects)
        healthy = ~np.isin(table.a, suspect) & ~np.isin(table.b, suspect)
        for name in names:
            if name[0] == "flap":
                looks = sorted(self.looks_of.get(name[1], ()))
                through = rows_through(kinds, nic_of(name)) & np.isin(table.look, looks)
                alike = healthy & np.isin(of_kind, of_kind[through])
                steady = self.steady_looks(name)
                looked = changing_looks(table, through, trusted=alike, steady=steady)
                looked = replace(looked, suspects=len(self.flaps))
                self.looks_at[name[1]] = looked
                decided = looked.is_sure or looked.intermittence <= LOADED_UP_TO
            else:
                levels = self.levels_by_look(table, kinds, name, begin)
                fast = int(np.count_nonzero(levels < self.plan.tolerance / 2))
                # A part that is slow in most looks is not fast in two of five.
                decided = bool(fast > (1 - self.plan.slow_share) * RETEST_REPEATS)
                # Slow in a look by itself, unlike a suspect that was slow at first because of its partners.
                slow = name[0] in OF_HOSTS and levels.max(initial=0) > self.plan.tolerance
                # A host is not slow at first because of its partners.
                if decided and (name[0] == "host" or (slow and self.may_be_loaded(name))):
                    self.cleared_hosts |= self.hosts_of([name])
                decided = decided or count >= self.looks_needed(name, levels)
            if not decided:
                found.append(name)
        return found

    def unclear(self, table: Observations, names: Sequence[PartName]) -> list[PartName]:
        """Return the suspects that may be slow; those that may be slow for part of the time always may."""
        flaps = [name for name in names if name[0] == "flap"]
        others = [name for name in names if name[0] != "flap"]
        return [
            *flaps,
            *unclear_suspects(table, self.network.part_kinds(table), others, self.noise, self.plan),
        ]

    def screen(self, names: Sequence[PartName]) -> list[PartName]:
        """Measure suspects again, many at once, with other neighbours each time. Returns those not cleared.

        Of flows that were slow once, nearly all collided by chance, and where uplinks are scarce, half of
        them again. Goes on while a screen clears SCREENED of them.
        Without others to compare them with, all remain.
        """
        if self.topology.hosts < SCREENED_HOSTS or not self.plan.quick_looks:
            return list(names)
        size = self.topology.ranks
        flows = {name: self.schedule.suspect_flows(name, self.suspects) for name in names}
        times, most = SCREEN_SAMPLES
        needed = times * samples_to_clear(self.noise, -math.log(self.plan.critical))
        samples = min(max(math.ceil(needed), self.plan.samples), most)
        left = list(names)
        for _ in range(SCREENS):
            if not left:
                break
            wanted = np.array([flow for name in left for flow in flows[name]], np.int64)
            controls = np.array(
                self.schedule.control_flows(self.suspects, wanted.tolist()), np.int64
            ).reshape(-1, 2)
            rounds = [
                *self.schedule.separate_rounds(controls, self.suspects),
                *self.schedule.separate_rounds(wanted, self.suspects, with_controls=True),
            ]
            seconds = [self.sample(each, samples) for each in rounds]
            suspected = {a * size + b for a, b in wanted.tolist()}

            def siblings(a: Ints, b: Ints, suspected: set[int] = suspected) -> Siblings:
                trusted = ~np.isin(a * size + b, list(suspected))
                return Siblings(self.network.flow_kind(a, b), None, 0.2, trusted)

            table = tabulate(rounds, seconds, siblings, self.plan, retested=True)
            before, left = left, self.unclear(table, left)
            cleared = {a * size + b for name in set(before) - set(left) for a, b in flows[name]}
            cleared -= {a * size + b for name in left for a, b in flows[name]}
            fine = table.of(np.isin(table.a * size + table.b, list(cleared)))
            self.screened = joined(self.screened, fine.with_slow_samples(self.first))
            if len(left) > (1 - SCREENED) * len(before):
                break
        return left

    def again(self, pairs: Ints, samples: int) -> Iterable[tuple[Ints, Seconds]]:
        """Measure these pairs, both ways, in rounds of distinct pairs as at first."""
        for met in matched_rounds(pairs, np.arange(self.topology.ranks), self.schedule.random):
            for flows in self.schedule.split(both_ways(met)):
                yield flows, self.sample(flows, samples)

    def sample(self, flows: Ints, samples: int) -> Seconds:
        return self.probe.flows(flows, self.nbytes, samples)

    def paced(self, calls: int) -> Measure[Ints]:
        """Return `sample`, but so many calls begin at equal distances over the plan's `first_span`.

        Without enough time left for a wait, it does not wait.
        """
        begin, number = self.probe.clock(), itertools.count()

        def sample(flows: Ints, samples: int) -> Seconds:
            done = min(next(number) / calls, 1.0)
            pause = self.plan.first_span * done - (self.probe.clock() - begin)
            if pause > 0:
                with suppress(TimeUpError):
                    self.probe.wait(pause)
            return self.sample(flows, samples)

        return sample

    def retest_siblings(self, a: Ints, b: Ints) -> Siblings:
        suspect = np.isin(np.arange(self.topology.ranks), list(self.suspects))
        return Siblings(self.network.flow_kind(a, b), None, 0.2, ~suspect[a] & ~suspect[b])

    def locate(self, found: Confirmed) -> Confirmed | None:
        kind, key = found.name
        if kind == "leaf":
            leaf = self.network.leaves[key]
            return replace(found, ranks=tuple(leaf.ranks.tolist()), or_ranks=tuple(leaf.others.tolist()))
        if kind in (*OF_LOADS, "both") and self.is_load(found.name):
            self.loaded.add(found.name)
            return None
        if kind == "path" and self.network.only_pair(*divmod(key, self.topology.ranks)):
            nics = [("nic", rank) for rank in divmod(key, self.topology.ranks)]
            return replace(found, ties=(*found.ties, *nics))
        if found.flaps is None:
            return found
        # A flap is of one NIC: several of a host are loads of the host. In a loaded fleet, loads that begin
        # or end during looks seem to be a flap.
        sure = np.array([nic for nic, looks in self.looks_at.items() if looks.is_sure], np.int64)
        several = np.count_nonzero(self.topology.host[sure] == self.topology.host[key]) > 1
        others = self.loaded_hosts - self.hosts_of([found.name])
        if several or (not self.looks_at[key].witnessed and len(others) >= LOADED_HOSTS):
            self.loaded.add(found.name)
            return None
        return replace(found, p99=self.tails(key))

    @property
    def loaded_hosts(self) -> set[int]:
        """The hosts that others loaded for a while."""
        changing = {
            host
            for host, looks in self.witnessed.items()
            if len({level > self.plan.tolerance for level, _ in looks.values()}) > 1
        }
        return (
            changing | self.cleared_hosts | self.hosts_of([one for one in self.loaded if one[0] in OF_HOSTS])
        )

    def is_load(self, name: PartName) -> bool:
        """Return whether a part that seems to be slow may only be loaded by others.

        Another NIC of the host tells. Where there is none, a host that others loaded at other times may be
        loaded again; and while others load the fleet, a load of them that lasts as usual must be unlikely to
        last for as many looks as the part was slow in.
        """
        assert self.isolated is not None or self.paired is not None
        if self.isolated is not None and self.witnesses_of(name):
            levels = self.levels_by_look(self.isolated, self.part_kinds(self.isolated), name, 0)
            slow = levels > self.plan.tolerance / 2  # and not only because of the load
            rarely = bool(np.count_nonzero(slow) < self.plan.slow_share * len(slow))
            return rarely and self.may_be_loaded(name)
        own = self.hosts_of([name])
        others = self.loaded_hosts - own
        if own & self.loaded_hosts:
            return True
        looks = min(len(self.looks_of.get(rank, ())) for rank in self.network.ranks(name))
        return len(others) >= LOADED_HOSTS and looks < self.looks_of_loads(others)

    def looks_of_loads(self, hosts: Collection[int]) -> float:
        """Return in how many looks a part must be slow, so that it is no load like those of these hosts.

        From the share of the looks at a loaded host after which it is still loaded in the next one.
        """
        stays = slow_looks = 0
        if self.isolated is not None:
            kinds = self.part_kinds(self.isolated)
            for host in hosts:
                levels = self.levels_by_look(self.isolated, kinds, ("host", host), 0)
                slow = np.concatenate([[True], levels > self.plan.tolerance])  # it was at first
                stays += int(np.count_nonzero(slow[:-1] & slow[1:]))
                slow_looks += int(np.count_nonzero(slow[:-1]))
        return looks_of_loaded(stays, slow_looks, self.topology.hosts)

    def tails(self, nic: int) -> tuple[float, float]:
        """Return the 99th percentile of the seconds of flows through a NIC in all looks, and of other flows.

        Of the class of flows that shows the NIC best: those on its rail.
        """
        owner = self.topology.owner
        kinds = [self.network.flow_kind(*flows.T) for flows in self.flows]
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

    def intermittent(self, cover: Cover) -> Suspect | None:
        """Return the NIC with the largest share of slow samples, if that is far above the usual share."""
        if not self.shares or self.shares[0].cover is not cover:
            loaded = [nic for nic, one in self.looks_at.items() if one.intermittence <= LOADED_UP_TO]
            shown = self.network.shown_by(cover.table)
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
        if known:
            return known
        looked = changing_looks(
            cover.table,
            suspect.rows & cover.open,
            trusted=cover.open & ~suspect.rows,
            steady=self.steady_looks(suspect.name),
        )
        return replace(looked, suspects=len(self.flaps))

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

    def without(
        self, later: Sequence[Ints], rounds: Sequence[Ints], seconds: Sequence[Seconds]
    ) -> tuple[list[Ints], list[Seconds]]:
        """Return the flows, and their seconds, that `later` rounds do not measure again."""
        size = self.topology.ranks
        again = np.concatenate([*later, np.empty((0, 2), np.int64)]) @ [size, 1]
        keep = [~np.isin(flows @ [size, 1], again) for flows in rounds]
        some = [number for number, of_round in enumerate(keep) if of_round.any()]
        return [rounds[n][keep[n]] for n in some], [seconds[n][keep[n]] for n in some]


def passed(levels: Floats, tolerance: float, least: int = 2) -> bool:
    """Return whether a part that was slow in most looks was fast in `least` of them or more, or not equally
    slow in all. So is a loaded part, but not a faulty one. levels: of each look. tolerance: as in the plan.
    """
    fast = np.count_nonzero(levels < tolerance / 2)
    return bool(len(levels) and (fast >= least or np.ptp(levels) > UNSTEADY * tolerance))


def is_one_pair(flows: Sequence[tuple[int, int]]) -> bool:
    return len({rank for flow in flows for rank in flow}) == 2


def through_nics(table: Observations, topology: Topology) -> Observations:
    """Return the flows that need NICs; all of them if none does."""
    rows = ~topology.over_nvlink(table.a, table.b)
    return table.of(rows) if rows.any() and not rows.all() else table
