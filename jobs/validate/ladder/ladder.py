"""The ladder: measure rung by rung, from single GPUs to the whole fleet, and name the slow parts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from meshrun.jobs.measure.outliers import is_critical
from meshrun.jobs.validate.health.alarms import alarms, worst_first
from meshrun.jobs.validate.health.counters import changes
from meshrun.jobs.validate.health.uneven_hosts import compare_hosts, count_parts, uneven_alarm
from meshrun.jobs.validate.ladder.budget import Deadline, TimeLimit
from meshrun.jobs.validate.localize.findings import findings, merge
from meshrun.jobs.validate.localize.observations import Observations
from meshrun.jobs.validate.localize.retest import Localization, RungMeasurement, localize
from meshrun.jobs.validate.localize.set_cover import KnownFaults, PartName
from meshrun.jobs.validate.measurements.allreduce import AllReduce
from meshrun.jobs.validate.measurements.below_limit import (
    Repeatable,
    has_rates_of_ranks,
    look_again,
    rates_of_ranks,
)
from meshrun.jobs.validate.measurements.inter_node import BETWEEN, InterNode, through_nics
from meshrun.jobs.validate.measurements.intra_node import IntraNode, PairOperation
from meshrun.jobs.validate.measurements.leaf_switches import LEAST_HOSTS, measure_leaf_switches
from meshrun.jobs.validate.measurements.single_gpu import SingleGpu
from meshrun.jobs.validate.plan import RUNGS, Plan, RungName
from meshrun.jobs.validate.probe.api import Probe, SingleRankOp, WrongData, operation_work
from meshrun.jobs.validate.probe.metered import MeteredProbe, TimeUpError
from meshrun.jobs.validate.report.model import Change, RateCurve
from meshrun.jobs.validate.report.wording import rate_text, unit_name
from meshrun.jobs.validate.topology import Topology, topology_of
from meshrun.jobs.validate.verdict import Finding, RungResult, Status, Verdict, unit_of
from meshrun.runner.report.units import counted

CURVE_SHIFTS = (18, 16, 14, 12, 10, 8, 6, 4, 2, 0)  # a curve's sizes: ring_bytes >> shift

PLURAL = ("copies", "flows")  # measurements whose name is a plural

CURVE_SECONDS = 30.0  # of a curve, at most

# Of each rung on CPUs, which share a limited time: their measurements, and the curves of "node" and "all".
OPERATIONS: dict[RungName, int] = {
    "gpu": 2, "host": 2, "pairs": 1, "node": 2, "host pairs": 1, "rails": 1, "all": 1,
}  # fmt: skip

CURVE_RANKS = 8192  # above, one sample of each size
TIME_UP = "no time was left"

OnRung = Callable[[RungName], None]  # called before each rung is measured


def ignore_rung(rung: RungName) -> None:
    pass


class Ladder:
    """One climb. `measure_rung` measures one rung; `verdict` is the verdict on the rungs so far.

    plan: from rung "host pairs" on with the bytes that its flows had time for, and rings with as much less.

    tables: measurements by rung and operation, with the work (bytes; operations of a product) that rates
    count. ended: the critical reason for an early end, or "".

    least: known rates, by rung and operation. rates_again: best rates of the ranks that were below these at
    first, when looked at again.
    """

    def __init__(
        self,
        probe: Probe,
        plan: Plan,
        on_rung: OnRung = ignore_rung,
        limit: TimeLimit | None = None,
        least: Mapping[tuple[RungName, str], float] = MappingProxyType({}),
    ) -> None:
        self.probe, self.plan, self.topology = MeteredProbe(probe), plan, topology_of(probe)
        self.on_rung, self.limit = on_rung, limit or TimeLimit(Deadline(math.inf, probe.clock))
        self.findings: list[Finding] = []
        self.rungs: list[RungResult] = []
        self.not_judged: list[str] = []
        self.tables: dict[tuple[RungName, str], tuple[Observations, int]] = {}
        self.changes: list[Change] = []
        self.wrong: list[WrongData] = []
        self.curves: list[RateCurve] = []
        self.least, self.rates_again = least, dict[tuple[RungName, str], Mapping[int, float]]()
        self.of_loads = dict[
            tuple[RungName, str], set[int]
        ]()  # ranks below these while others load the fleet
        self.gaps = 0  # sentences of `not_judged` that make the verdict unknown; they come first
        self.ended = ""
        parts = count_parts(probe.places, probe.hosts, probe.unit)
        self.uneven_hosts, self.uneven_notes = compare_hosts(parts, plan.expected_gpus)

    @property
    def faults(self) -> KnownFaults:
        """Ranks that findings so far explain, with their slowdowns and rates.

        All that a rank on a CPU does takes its core, so a finding explains whatever else is slow there.
        """
        known: KnownFaults = {}
        for one in self.findings:
            fault = (-float(np.log(one.factor)), one.evidence.rate)
            for rank in one.ranks:
                if self.topology.unit == "CPU":
                    known[rank] = [(math.inf, None)]
                else:
                    known.setdefault(rank, []).extend([fault] if one.evidence.unit == "B/s" else [])
        return known

    def climb(self) -> Verdict:
        """Measure the rungs of the plan; without `keep_going`, until one is broken."""
        broken = ""
        for name in RUNGS:
            why = self.skip_reason(name, broken)
            if why:
                self.rungs.append(RungResult(name, "not measured", why))
                continue
            self.on_rung(name)
            if self.measure_rung(name):
                broken = broken or name
        if self.plan.by_name:
            impossible = [
                f"{one.name}: {one.why}"
                for one in self.rungs
                if one.why and one.why == self.why_impossible(one.name)
            ]
            if impossible:
                sentence = f"named by --rungs and not measured: {'; '.join(impossible)}"
                self.note_not_judged(sentence, first=True)
        return self.verdict()

    def verdict(self) -> Verdict:
        """Return the verdict on the rungs so far; the remaining ones count as not measured."""
        reached = {rung.name for rung in self.rungs}
        rest = [
            RungResult(name, "not measured", "the run ended before") for name in RUNGS if name not in reached
        ]
        raised = alarms(
            self.ended, self.wrong, self.changes, self.probe.places, self.probe.hosts, self.topology.unit
        )
        uneven = (uneven_alarm(one, self.topology.unit) for one in self.uneven_hosts)
        raised = worst_first((*raised, *uneven))
        return Verdict(
            self.status([one.status for one in raised]),
            tuple(sorted(self.findings, key=lambda one: (RUNGS.index(one.rung), one.factor))),
            (*self.rungs, *rest),
            (*self.not_judged, *self.uneven_notes, *missing_siblings(self.topology, self.plan)),
            raised,
            self.uneven_hosts,
        )

    def skip_reason(self, name: RungName, broken: str) -> str:
        """Return why a rung is not measured, or "". broken: the first broken rung, or ""."""
        if name not in self.plan.rungs:
            return "not requested"
        if broken and not self.plan.keep_going:
            return f"rung {broken} is broken"
        if why := self.why_impossible(name):
            return why
        if why := self.limit.missing(name):
            self.note_not_judged(f"{name}: {why}")
        return why

    def why_impossible(self, name: RungName) -> str:
        """Return why these ranks have nothing that a rung measures, or ""."""
        topology = self.topology
        if name in self.probe.unavailable:
            return self.probe.unavailable[name]
        if name in ("pairs", "node") and topology.ranks == topology.hosts:
            return "no host has two ranks"
        if name in ("host pairs", "rails") and topology.hosts < 2:
            return "there is one host"
        if name == "all" and topology.ranks < 2:
            return "there is one rank"
        return ""

    @property
    def incomplete(self) -> bool:
        """Whether something could not be judged that makes the verdict unknown."""
        return self.gaps > 0

    def note_not_judged(self, sentence: str, *, first: bool = False) -> None:
        """Note something that could not be judged; the verdict is then not ok. first: it is the reason that
        the verdict's line gives."""
        self.not_judged.insert(0 if first else self.gaps, sentence)
        self.gaps += 1

    def end_early(self, ended: str, critical: bool) -> None:
        """End the run. ended: the reason. critical: a rank failed, and `ended` names it."""
        if critical:
            self.ended = ended
        else:
            self.note_not_judged(ended, first=True)

    def measure_rung(self, name: RungName) -> bool:
        """Measure one rung and record the results. Returns whether it is broken."""
        self.probe.reset()
        before = self.probe.counters()
        begin = time.perf_counter()
        found: list[Finding] = []
        named = set[PartName]()
        rates: dict[str, float] = {}
        measurements = self.measurements(name)
        for number, (what, measurement) in enumerate(measurements, 1):
            self.probe.left = self.limit.share(name, self.operations_after(name, number))
            measurement.named = frozenset(named)
            try:
                located = localize(measurement, self.plan)
            except TimeUpError:
                self.note_time_up(name, what)
                continue
            work = operation_work(what, measurement.nbytes)
            if isinstance(measurement, InterNode):
                self.reduce_sizes(measurement.bytes_of_flow)
            self.note_gaps(name, what, located)
            for gap in measurement.gaps:
                self.note_not_judged(f"{name}: {gap}")
            found += self.named(name, findings(located, self.topology, name, what, work))
            for one in located.confirmed:
                if is_critical(math.exp(-one.effect), self.plan.critical):
                    named |= {one.name, *one.ties}
            if len(located.table):
                self.tables[name, what] = located.table, work
                rated, _ = self.rated(name, what)
                rates[what] = float(np.median(work / rated.siblings))
                if isinstance(measurement, SingleGpu | IntraNode | InterNode):
                    self.look_again(name, what, measurement, rated, work, found)
        if name in ("node", "all"):
            found += self.measure_together(name, rates)
        if name == "all" and (points := self.curves[-1].points):
            rates = {"ring": points[-1][1], **rates}
        new = merge(found, self.topology)
        self.findings += new
        wrong = self.probe.wrong_data()
        self.wrong += wrong
        self.changes += changes(name, before, self.probe.counters())
        broken = bool(wrong) or any(is_critical(one.factor, self.plan.critical) for one in new)
        result: Literal["broken", "ok", "not measured"] = "broken" if broken else "ok"
        if not rates and not broken:
            result = "not measured"
        rounds, messages, measured = self.probe.rounds, self.probe.messages, self.probe.seconds
        analysed = time.perf_counter() - begin - self.probe.computed
        why = TIME_UP if result == "not measured" else ""
        self.rungs.append(RungResult(name, result, why, rounds, messages, rates, analysed, measured))
        return broken

    def reduce_sizes(self, nbytes: int) -> None:
        """Reduce what NICs move to the bytes that a flow had time for, and rings by the same factor."""
        if nbytes < self.plan.nic_bytes:
            share = self.plan.nic_bytes // nbytes
            self.plan = replace(self.plan, nic_bytes=nbytes, ring_bytes=self.plan.ring_bytes // share)

    def operations_after(self, name: RungName, done: int) -> int:
        """Return how many operations follow after `done` ones of a rung, also in later rungs."""
        later = RUNGS[RUNGS.index(name) + 1 :]
        follow = [rung for rung in later if rung in self.plan.rungs and not self.why_impossible(rung)]
        return OPERATIONS[name] - done + sum(OPERATIONS[rung] for rung in follow)

    def named(self, rung: RungName, found: list[Finding]) -> list[Finding]:
        """Return the findings without paths and links between hosts, if more of these than hosts are slow.

        Faults are few: so many are the network's design, such as uplinks that hashed flows share.
        """
        between = [one for one in found if one.kind in BETWEEN]
        if len(between) <= self.topology.hosts:
            return found
        self.note_not_judged(
            f"{rung}: {len(between)} paths between hosts are slow again, too many to be single faults: "
            "uplinks that flows share? NICs behind them cannot be judged"
        )
        return [one for one in found if one.kind not in BETWEEN]

    def rated(self, name: RungName, what: str) -> tuple[Observations, int]:
        """Return what rates are taken from, and the work of each row: of host pairs, flows that need NICs."""
        table, work = self.tables[name, what]
        return (through_nics(table, self.topology) if name == "host pairs" else table), work

    def look_again(
        self,
        name: RungName,
        what: str,
        measurement: Repeatable,
        table: Observations,
        work: int,
        found: Sequence[Finding],
    ) -> None:
        """Measure ranks again that are below a known rate and that no finding explains.

        table: of what is held against the rate. found: findings of this rung.
        """
        least = self.least.get((name, what))
        if least is None or not has_rates_of_ranks(name, self.topology, self.plan):
            return
        explained = {rank for one in (*self.findings, *found) for rank in one.ranks}
        rates = rates_of_ranks(table, work, self.topology.ranks)
        slow = {rank: rate for rank, rate in rates.items() if rate < least and rank not in explained}
        if not slow:
            return
        loaded = isinstance(measurement, InterNode) and (measurement.loaded or measurement.loaded_hosts)
        try:
            again = look_again(measurement, table, work, slow, least)
        except TimeUpError:
            if loaded:
                self.of_loads[name, what] = {*slow}
            self.note_time_up(name, what)
            return
        if loaded:
            self.of_loads[name, what] = {rank for rank in slow if again.best[rank] < least}
        self.rates_again[name, what] = again.best
        if count := len(self.of_loads.get((name, what), ())):
            self.note_not_judged(
                f"{name}: {what} of {counted(count, self.topology.unit)} below the usual rate while others "
                "load the fleet; validate it again while it is idle"
            )
        if count := len(again.undecided):
            rate, unit = rate_text(least, unit_of(what)), unit_name(unit_of(what))
            some = f"{what} of {counted(count, self.topology.unit)}"
            self.note_not_judged(
                f"{name}: {some} reached the usual rate, {rate} {unit} or more, in some looks but not in most"
            )

    def measure_together(self, name: RungName, rates: dict[str, float]) -> list[Finding]:
        """Measure the curve of "node" or "all", and before it the leaf switches of "all"."""
        self.probe.left = self.limit.share(name, self.operations_after(name, OPERATIONS[name]))
        many = name == "all" and self.topology.hosts >= LEAST_HOSTS
        found = self.leaf_switches(rates) if many else []
        self.measure_curve(name)
        return found

    def leaf_switches(self, rates: dict[str, float]) -> list[Finding]:
        """Measure under full load. Returns the findings; adds the rate to `rates`."""
        try:
            found = measure_leaf_switches(self.probe, self.topology, self.plan, self.faults)
        except TimeUpError:
            self.note_time_up("all", "flows")
            return []
        rates["flows"] = found.rate
        for note in found.notes:
            if found.unexplained:
                self.note_not_judged(note)
            else:
                self.not_judged.append(note)
        if found.failed:
            self.note_not_judged(failed_measurements("all", "flows", found.failed))
        return found.findings

    def note_time_up(self, name: str, what: str) -> None:
        self.note_not_judged(f"{name}: {what} not measured to the end: {TIME_UP}")

    def measurements(self, name: RungName) -> list[tuple[str, RungMeasurement]]:
        """Return what a rung measures: operation, measurement."""
        probe, topology, plan, faults = self.probe, self.topology, self.plan, self.faults
        single: tuple[SingleRankOp, ...]
        match name:
            case "gpu" | "host":
                single = ("memory", "product") if name == "gpu" else ("to_device", "to_host")
                if name == "gpu" and plan.tensor_seconds:
                    single += ("tensor",)
                return [(what, SingleGpu(probe, topology, plan, what, faults)) for what in single]
            case "pairs":
                operations = self.pair_operations()
                return [(what, IntraNode(probe, topology, plan, what, faults)) for what in operations]
            case "host pairs":
                return [("flows", InterNode(probe, topology, plan, faults))]
            case "node":
                return [("ring", AllReduce(probe, topology, plan, "ring", self.ranks_on("pair")))]
            case "rails":
                return [("ring", AllReduce(probe, topology, plan, "rail", self.ranks_on(*BETWEEN)))]
            case _:
                return []

    def pair_operations(self) -> tuple[PairOperation, ...]:
        """Return the operations of rung "pairs"; copies only if GPUs reach each other's memory."""
        why = self.probe.copies_unavailable()
        if why and self.probe.unit == "GPU":
            self.not_judged.append(f"pairs: no copies from GPU to GPU: {why}")
        return ("flows",) if why else ("copies", "flows")

    def ranks_on(self, *kinds: str) -> KnownFaults:
        """Return the ranks of hosts with a slow link of these kinds; rings through them are explained."""
        hosts = {host for one in self.findings if one.kind in kinds for host in one.hosts}
        names, host_of = self.topology.names, self.topology.host
        return {rank: [] for rank, host in enumerate(host_of) if names[host] in hosts} | self.faults

    def measure_curve(self, name: RungName) -> None:
        """Measure bus bandwidth by size: all ranks, or the median of the hosts. Reported, not judged.

        From the largest size down, for CURVE_SECONDS at most, or until the time is up.
        """
        topology = self.topology
        groups = [topology.on(host).tolist() for host in range(topology.hosts)] if name == "node" else []
        groups = [group for group in groups if len(group) > 1] or [list(range(topology.ranks))]
        share = np.array([2 * (len(group) - 1) / len(group) for group in groups])
        points: list[tuple[int, float]] = []
        samples, until = curve_samples(self.plan, topology.ranks), self.probe.clock() + CURVE_SECONDS
        for nbytes in filter(None, (self.plan.ring_bytes >> shift for shift in reversed(CURVE_SHIFTS))):
            if points and self.probe.clock() >= until:
                break
            try:
                seconds = self.probe.rings(groups, nbytes, samples)
            except TimeUpError:
                if not points:
                    self.note_time_up(name, "ring")
                break
            if np.isnan(seconds).any():
                self.note_not_judged(f"{name}: some of the measurements failed")
            points.insert(0, (nbytes, float(np.median(nbytes * share / np.median(seconds, axis=1)))))
        title = "all_reduce of all ranks" if name == "all" else "all_reduce of each host's GPUs, median"
        self.curves.append(RateCurve(name, title, tuple(points)))

    def note_gaps(self, name: str, what: str, located: Localization) -> None:
        """Note what could not be judged about this operation."""
        if located.table.failed:
            self.note_not_judged(failed_measurements(name, what, located.table.failed))
        visible = located.visible
        if located.unexplained:
            count = located.unexplained
            self.note_not_judged(
                f"{name}: {count} measurement{'s'[: count > 1]} of {what} slow again, and no part explains it"
            )
        if visible < self.plan.critical:
            share, vary = f"{100 * visible:.0f} %", "vary" if what in PLURAL else "varies"
            sentence = (
                f"{name}: {what} {vary} so much that only parts below {share} of the others are detectable"
            )
            if visible < self.plan.blind:
                self.note_not_judged(sentence)
            else:
                self.not_judged.append(sentence)
        if located.left:
            count = len(located.left)
            self.note_not_judged(f"{name}: {count} suspect{'s'[: count > 1]} of {what} not retested")

    def status(self, raised: Sequence[str]) -> Status:
        if "critical" in raised or any(is_critical(one.factor, self.plan.critical) for one in self.findings):
            return "critical"
        if self.incomplete:
            return "unknown"
        return "warning" if self.findings or raised else "ok"


def curve_samples(plan: Plan, ranks: int) -> int:
    return plan.samples if ranks <= CURVE_RANKS else 1


def failed_measurements(rung: str, what: str, ranks: Collection[int]) -> str:
    """ranks: those with a failed measurement."""
    listed = ", ".join(map(str, sorted(ranks)[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"{rung}: {what} could not be measured with rank {listed}"


def missing_siblings(topology: Topology, plan: Plan) -> list[str]:
    """Return what cannot be judged on this topology because there is nothing to compare it with."""
    notes = []
    if topology.ranks == 1:
        notes.append("one rank: nothing to compare it with; its figures are reported, not judged")
    elif topology.hosts == 1:
        unit = topology.unit
        notes.append(
            f"one host: a slowdown of all its {unit}s cannot be detected; its network is not measured"
        )
    elif topology.hosts == 2:
        notes.append(
            "two hosts: a slowdown of all their NICs (the link, or either host's network) cannot be detected"
        )
    for model in range(int(topology.nic_kind.max()) + 1) if topology.hosts > 2 else ():
        own = [topology.names[host] for host in np.unique(topology.host[topology.nic_kind == model])]
        if len(own) == 1:
            notes.append(
                f"only host {own[0]} has its model of NIC: a slowdown of all these cannot be detected"
            )
        elif len(own) == 2:
            notes.append(
                f"only hosts {own[0]} and {own[1]} have their model of NIC: only flows to faster NICs show a "
                "slowdown of all NICs of one, or of the link between the two"
            )
    if topology.hosts > 1 and (topology.domain == topology.domain[0]).all():
        notes.append("all hosts are in one NVLink network: their NICs are not measured")
    if 1 < topology.hosts < LEAST_HOSTS:
        notes.append(f"fewer than {LEAST_HOSTS} hosts: uplinks of leaf switches are not judged")
    if topology.hosts > plan.all_pairs_hosts:
        most = plan.all_pairs_hosts
        notes.append(f"more than {most} hosts: partners are sampled, so links between hosts are not judged")
    return notes


def climb_ladder(probe: Probe, plan: Plan | None = None) -> Verdict:
    """Climb the ladder once with this probe, and return the verdict."""
    return Ladder(probe, plan or Plan()).climb()
