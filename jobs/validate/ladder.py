"""The ladder: rung by rung from one GPU to everything, each isolating one thing, to a verdict that names the
part.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from jobs.validate.alone import AloneScope
from jobs.validate.between import Between
from jobs.validate.fleet import Fleet, fleet_of
from jobs.validate.inquiry import Answer, Scope, inquire
from jobs.validate.inside import Inside
from jobs.validate.known import Known
from jobs.validate.metered import Metered
from jobs.validate.naming import findings, merged
from jobs.validate.plan import RUNGS, Plan, RungName
from jobs.validate.probe import Alone, Probe
from jobs.validate.rings import Rings
from jobs.validate.verdict import Finding, Rung, Status, Verdict

NEEDS: dict[RungName, str] = {
    "pairs": "no host has two GPUs",
    "node": "no host has two GPUs",
    "host pairs": "there is one host",
    "rails": "there is one host",
    "all": "there is one rank",
}


class Ladder:
    """One climb. `rung` measures one rung; `verdict` concludes."""

    def __init__(self, probe: Probe, plan: Plan) -> None:
        self.probe, self.plan, self.fleet = Metered(probe), plan, fleet_of(probe)
        self.found: list[Finding] = []
        self.rungs: list[Rung] = []
        self.not_judged: list[str] = siblings_missing(self.fleet, plan)
        self.lost = False

    @property
    def bad(self) -> Known:
        """Ranks that findings so far explain."""
        known: Known = {}
        for one in self.found:
            rate = one.evidence.rate
            for rank in one.ranks:
                known.setdefault(rank, []).append((-float(np.log(one.factor)), rate))
        return known

    def climb(self) -> Verdict:
        broken = ""
        for name in RUNGS:
            why = self.reason(name, broken)
            if why:
                self.rungs.append(Rung(name, "not measured", why))
                continue
            if self.rung(name):
                broken = broken or name
        return Verdict(self.status(), tuple(ordered(self.found)), tuple(self.rungs), tuple(self.not_judged))

    def reason(self, name: RungName, broken: str) -> str:
        """Why a rung is not measured; empty: it is."""
        fleet = self.fleet
        if name not in self.plan.rungs:
            return "not asked for"
        if broken and not self.plan.keep_going:
            return f"rung {broken} is broken"
        lone = all(len(fleet.on(host)) < 2 for host in range(fleet.hosts))
        missing = {"pairs": lone, "node": lone, "host pairs": fleet.hosts < 2, "rails": fleet.hosts < 2}
        return NEEDS[name] if missing.get(name, fleet.ranks < 2 and name == "all") else ""

    def rung(self, name: RungName) -> bool:
        """Measure one rung; True: broken."""
        self.probe.reset()
        begin = time.perf_counter()
        found: list[Finding] = []
        rates: dict[str, float] = {}
        for what, nbytes, scope, kinds in self.scopes(name):
            answer = inquire(scope, self.plan)
            self.note(name, what, answer)
            found += findings(answer, self.fleet, name, what, nbytes, kinds)
            if len(answer.table):
                rates[what] = float(np.median(nbytes / answer.table.siblings))
        if name == "all":
            rates["ring"] = self.everything()
        new = merged(found, self.fleet)
        self.found += new
        broken = any(one.factor < self.plan.critical for one in new)
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
            )
        )
        return broken

    def scopes(self, name: RungName) -> list[tuple[str, int, Scope, dict[str, str]]]:
        """What a rung measures: operation, bytes, how, and what its parts are called."""
        probe, fleet, plan, bad = self.probe, self.fleet, self.plan, self.bad
        single: tuple[Alone, ...]
        match name:
            case "gpu" | "host":
                single = ("memory", "product") if name == "gpu" else ("to_device", "to_host")
                scopes = [AloneScope(probe, fleet, plan, what, bad) for what in single]
                kinds = {"gpu": "gpu" if name == "gpu" else "pcie"}
                return [(scope.what, scope.nbytes, scope, kinds) for scope in scopes]
            case "pairs":
                return [("flows", plan.pair_bytes, Inside(probe, fleet, plan, bad), {})]
            case "host pairs":
                return [("flows", plan.nic_bytes, Between(probe, fleet, plan, bad), {})]
            case "node":
                return [("ring", plan.ring_bytes, Rings(probe, fleet, plan, "ring", bad), {})]
            case "rails":
                bad = bad | self.on_links()
                return [("ring", plan.ring_bytes, Rings(probe, fleet, plan, "rail", bad), {})]
            case _:
                return []

    def on_links(self) -> Known:
        """Ranks at the ends of links that a finding names: rings that go through them are explained."""
        hosts = {host for one in self.found if one.kind in ("link", "path") for host in one.hosts}
        return {rank: [] for rank, host in enumerate(self.fleet.host) if self.fleet.names[host] in hosts}

    def everything(self) -> float:
        """Bus bandwidth of one ring of all ranks: it has no sibling, so it is told and not judged."""
        ranks = self.fleet.ranks
        seconds = self.probe.rings([list(range(ranks))], self.plan.ring_bytes, self.plan.samples)
        if np.isnan(seconds).any():
            self.lost = True
            self.not_judged.append("all: some of the measurements failed")
        return float(self.plan.ring_bytes * 2 * (ranks - 1) / ranks / np.median(seconds))

    def note(self, name: str, what: str, answer: Answer) -> None:
        """What this answer leaves open."""
        if answer.table.lost:
            self.lost = True
            lost = sorted(answer.table.lost)
            ranks = ", ".join(map(str, lost[:8])) + (", ..." if len(lost) > 8 else "")
            self.not_judged.append(f"{name}: {what} could not be measured with rank {ranks}")
        if answer.open:
            self.not_judged.append(f"{name}: {len(answer.open)} suspects of {what} were not asked again")

    def status(self) -> Status:
        if any(one.factor < self.plan.critical for one in self.found):
            return "critical"
        if self.lost:
            return "unknown"
        return "warning" if self.found else "ok"


def siblings_missing(fleet: Fleet, plan: Plan) -> list[str]:
    """What no measurement here can judge, because there is nothing to compare with."""
    notes = []
    if fleet.ranks == 1:
        notes.append("one rank: nothing to compare it with; its figures are told, not judged")
    elif fleet.hosts == 1:
        notes.append("one host: what slows all its GPUs alike cannot be seen; NICs are not measured")
    elif fleet.hosts == 2:
        notes.append(
            "two hosts: what slows all their NICs alike (the link, or either host's network) cannot be seen"
        )
    if fleet.hosts > 1:
        notes.append(
            "uplinks of leaf switches: no round fills all uplinks of one, so a slow one is not judged"
        )
    if fleet.hosts > plan.cover:
        notes.append(
            f"more than {plan.cover} hosts: partners are sampled, so links between two hosts are not judged"
        )
    return notes


def ordered(found: Sequence[Finding]) -> list[Finding]:
    """Lowest rung first, there the slowest."""
    return sorted(found, key=lambda one: (RUNGS.index(one.rung), one.factor))


def validate(probe: Probe, plan: Plan | None = None) -> Verdict:
    """Measure the fleet behind `probe` rung by rung, and name what is slow."""
    return Ladder(probe, plan or Plan()).climb()
