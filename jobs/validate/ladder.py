"""The ladder: rung by rung from one GPU to everything, each isolating one thing, to a verdict that names the
part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from jobs.validate.attribution.inquiry import Answer, Scope, inquire
from jobs.validate.attribution.known import Known
from jobs.validate.attribution.naming import findings, merged
from jobs.validate.attribution.table import Table
from jobs.validate.fleet import fleet_of
from jobs.validate.health.alarms import alarms
from jobs.validate.health.counters import changes
from jobs.validate.left_open import siblings_missing, unmeasured
from jobs.validate.metered import Metered
from jobs.validate.plan import RUNGS, Plan, RungName
from jobs.validate.probe import Alone, Probe, Wrong, counted
from jobs.validate.report.model import Change, Curve
from jobs.validate.rungs.alone import AloneScope
from jobs.validate.rungs.between import Between
from jobs.validate.rungs.inside import Inside, Moved
from jobs.validate.rungs.leaves import LEAST, leaves
from jobs.validate.rungs.rings import Rings
from jobs.validate.verdict import Finding, Rung, Status, Verdict

NEEDS: dict[RungName, str] = {
    "pairs": "no host has two ranks",
    "node": "no host has two ranks",
    "host pairs": "there is one host",
    "rails": "there is one host",
    "all": "there is one rank",
}
BLIND = 0.5  # of the siblings' rate: where noise hides what is above, nothing is judged
CURVE = (18, 16, 14, 12, 10, 8, 6, 4, 2, 0)  # a curve's sizes: halved so often


def nothing(rung: RungName) -> None:
    pass


def always(name: RungName) -> str:
    return ""


class Ladder:
    """One climb. `rung` measures one rung; `verdict` concludes from what is there.

    told: called with each rung's name before it. spare: why there is no time for a rung; "": there is.
    tables: what was measured, by rung and operation, with the bytes (of a product: the floating-point
    operations) that its rates count.
    """

    def __init__(
        self,
        probe: Probe,
        plan: Plan,
        told: Callable[[RungName], None] = nothing,
        spare: Callable[[RungName], str] = always,
    ) -> None:
        self.probe, self.plan, self.fleet = Metered(probe), plan, fleet_of(probe)
        self.told, self.spare = told, spare
        self.found: list[Finding] = []
        self.rungs: list[Rung] = []
        self.not_judged: list[str] = []
        self.tables: dict[tuple[RungName, str], tuple[Table, int]] = {}
        self.changes: list[Change] = []
        self.wrong: list[Wrong] = []
        self.curves: list[Curve] = []
        self.lost = False
        self.ended = ""

    @property
    def bad(self) -> Known:
        """Ranks that findings so far explain."""
        known: Known = {}
        for one in self.found:
            fault = (-float(np.log(one.factor)), one.evidence.rate)
            for rank in one.ranks:
                known.setdefault(rank, []).extend([fault] if one.evidence.unit == "B/s" else [])
        return known

    def climb(self) -> Verdict:
        broken = ""
        for name in RUNGS:
            why = self.reason(name, broken)
            if why:
                self.rungs.append(Rung(name, "not measured", why))
                continue
            self.told(name)
            if self.rung(name):
                broken = broken or name
        return self.verdict()

    def verdict(self) -> Verdict:
        """What the rungs so far say; those that were not reached are not measured."""
        reached = {rung.name for rung in self.rungs}
        rest = [Rung(name, "not measured", "the run ended before") for name in RUNGS if name not in reached]
        raised = alarms(
            self.ended, self.wrong, self.changes, self.probe.places, self.probe.hosts, self.fleet.unit
        )
        return Verdict(
            self.status([one.status for one in raised]),
            tuple(ordered(self.found)),
            (*self.rungs, *rest),
            (*self.not_judged, *siblings_missing(self.fleet, self.plan)),
            raised,
        )

    def reason(self, name: RungName, broken: str) -> str:
        """Why a rung is not measured; empty: it is."""
        fleet = self.fleet
        if name not in self.plan.rungs:
            return "not asked for"
        if broken and not self.plan.keep_going:
            return f"rung {broken} is broken"
        if name in self.probe.absent:
            return self.probe.absent[name]
        lone = all(len(fleet.on(host)) < 2 for host in range(fleet.hosts))
        missing = {"pairs": lone, "node": lone, "host pairs": fleet.hosts < 2, "rails": fleet.hosts < 2}
        if missing.get(name, fleet.ranks < 2 and name == "all"):
            return NEEDS[name]
        if why := self.spare(name):
            self.lost = True
            self.not_judged.append(f"{name}: {why}")
        return why

    def cut_short(self, ended: str, guilty: bool) -> None:
        """The run ends here. guilty: `ended` names who is to blame."""
        if guilty:
            self.ended = ended
        else:
            self.lost = True
            self.not_judged.insert(0, ended)

    def rung(self, name: RungName) -> bool:
        """Measure one rung; True: broken."""
        self.probe.reset()
        before = self.probe.counters()
        begin = time.perf_counter()
        found: list[Finding] = []
        rates: dict[str, float] = {}
        for what, work, scope, kinds in self.scopes(name):
            answer = inquire(scope, self.plan)
            self.note(name, what, answer)
            found += findings(answer, self.fleet, name, what, work, kinds)
            if len(answer.table):
                self.tables[name, what] = answer.table, work
                rates[what] = float(np.median(work / answer.table.siblings))
        if name in ("node", "all"):
            self.curve(name)
        if name == "all":
            rates["ring"] = self.curves[-1].points[-1][1]
            if self.fleet.hosts >= LEAST:
                load = leaves(self.probe, self.fleet, self.plan, self.bad)
                found += load.findings
                rates["flows"] = load.rate
                self.not_judged += load.notes
                if load.lost:
                    self.lost = True
                    self.not_judged.append(unmeasured("all", "flows", load.lost))
        new = merged(found, self.fleet)
        self.found += new
        wrong = self.probe.wrong()
        self.wrong += wrong
        self.changes += changes(name, before, self.probe.counters())
        broken = bool(wrong) or any(one.factor < self.plan.critical for one in new)
        seconds = time.perf_counter() - begin - self.probe.seconds
        self.rungs.append(
            Rung(
                name,
                "broken" if broken else "ok",
                "",
                self.probe.rounds,
                self.probe.messages,
                rates,
                seconds,
                self.probe.seconds,
            )
        )
        return broken

    def scopes(self, name: RungName) -> list[tuple[str, int, Scope, dict[str, str]]]:
        """What a rung measures: operation, what its rates count, how, and what its parts are called."""
        probe, fleet, plan, bad = self.probe, self.fleet, self.plan, self.bad
        single: tuple[Alone, ...]
        match name:
            case "gpu" | "host":
                single = ("memory", "product") if name == "gpu" else ("to_device", "to_host")
                scopes = [AloneScope(probe, fleet, plan, what, bad) for what in single]
                kinds = {"gpu": "gpu" if name == "gpu" else "pcie"}
                return [(scope.what, counted(scope.what, scope.nbytes), scope, kinds) for scope in scopes]
            case "pairs":
                return [
                    (what, plan.pair_bytes, Inside(probe, fleet, plan, what, bad), {})
                    for what in self.moved()
                ]
            case "host pairs":
                return [("flows", plan.nic_bytes, Between(probe, fleet, plan, bad), {})]
            case "node":
                return [("ring", plan.ring_bytes, Rings(probe, fleet, plan, "ring", bad), {})]
            case "rails":
                bad = bad | self.on_links()
                return [("ring", plan.ring_bytes, Rings(probe, fleet, plan, "rail", bad), {})]
            case _:
                return []

    def moved(self) -> tuple[Moved, ...]:
        """What pairs of a host measure: copies where GPUs reach each other's memory."""
        why = self.probe.no_copies()
        if why and self.probe.unit == "GPU":
            self.not_judged.append(f"pairs: no copies from GPU to GPU: {why}")
        return ("flows",) if why else ("copies", "flows")

    def on_links(self) -> Known:
        """Ranks at the ends of links that a finding names: rings that go through them are explained."""
        hosts = {host for one in self.found if one.kind in ("link", "path") for host in one.hosts}
        return {rank: [] for rank, host in enumerate(self.fleet.host) if self.fleet.names[host] in hosts}

    def curve(self, name: RungName) -> None:
        """Bus bandwidth by size, of all ranks' ring or the median of the hosts': told, not judged."""
        fleet = self.fleet
        groups = [fleet.on(host).tolist() for host in range(fleet.hosts)] if name == "node" else []
        groups = [group for group in groups if len(group) > 1] or [list(range(fleet.ranks))]
        share = np.array([2 * (len(group) - 1) / len(group) for group in groups])
        points = []
        for halved in CURVE:
            nbytes = self.plan.ring_bytes >> halved
            if nbytes:
                seconds = self.probe.rings(groups, nbytes, self.plan.samples)
                if np.isnan(seconds).any():
                    self.lost = True
                    self.not_judged.append(f"{name}: some of the measurements failed")
                points.append((nbytes, float(np.median(nbytes * share / np.median(seconds, axis=1)))))
        title = "all_reduce of all ranks" if name == "all" else "all_reduce of each host's GPUs, median"
        self.curves.append(Curve(name, title, tuple(points)))

    def note(self, name: str, what: str, answer: Answer) -> None:
        """What this answer leaves open."""
        if answer.table.lost:
            self.lost = True
            self.not_judged.append(unmeasured(name, what, answer.table.lost))
        seen = answer.table.seen
        if seen < self.plan.critical:
            self.lost = self.lost or seen < BLIND
            self.not_judged.append(
                f"{name}: {what} vary so much that only parts below {100 * seen:.0f} % of the others are seen"
            )
        if answer.open:
            self.not_judged.append(f"{name}: {len(answer.open)} suspects of {what} were not asked again")

    def status(self, raised: Sequence[str]) -> Status:
        if "critical" in raised or any(one.factor < self.plan.critical for one in self.found):
            return "critical"
        if self.lost:
            return "unknown"
        return "warning" if self.found or raised else "ok"


def ordered(found: Sequence[Finding]) -> list[Finding]:
    """Lowest rung first, there the slowest."""
    return sorted(found, key=lambda one: (RUNGS.index(one.rung), one.factor))


def validate(probe: Probe, plan: Plan | None = None) -> Verdict:
    """Measure the fleet behind `probe` rung by rung, and name what is slow."""
    return Ladder(probe, plan or Plan()).climb()
