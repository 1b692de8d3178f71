"""Referee of `meshrun validate`: single faults of every kind, and healthy fleets, under real conditions.

    python benchmarks/verdicts.py [--runs 51] [--healthy 9] [--hosts 2 8 32] [--conditions plain ecmp all]
        [--kinds nic oneway] [--factor 0.8] [--faults 2] [--stop-at-first] [--first SEED] [--workers 2]
        [--failures 8] [--json FILE]

Each condition alone, then several at once ("all"). Each run draws a fault (each kind in turn) of factor 0.5
to 0.85, or of the one given, and its place by a seed, and makes the report that `meshrun validate --simulate`
would make.

    right      the part is named and nothing else, or the part is among those that the finding calls
               indistinguishable from it. Of NICs that GPUs share: any of these GPUs. A stall may be
               called a slow or a flapping NIC. Of a fault of all NICs: an alarm that blames no part
    wrong      another part is blamed, perhaps beside the right one
    missed     exit status 0 although there is a fault
    other      the rest: unknown, or an alarm that names no part
    invisible  no measurement can show the fault (a link of the only two hosts, or between hosts whose uplinks
               are slower; uplinks of a single group of hosts, or of a rail without NICs; NVLink
               where there is none): not counted in the share
    alarm      a healthy fleet with exit status 1 or 2
    unknown    a healthy fleet with exit status 3

With --faults 2, a second fault of another kind is drawn. Right: both are named and nothing else is blamed;
invisible: one of them is; other: one is not named.

"model s" is the median of the simulated seconds of a run, "most" their maximum, "analysis" the most seconds
that the search of a run took on one core.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.run.options import ValidateOptions
from meshrun.jobs.validate.run.run import measure_simulated
from meshrun.jobs.validate.simulation.fleet import SimulatedFleet
from meshrun.jobs.validate.simulation.hardware import NIC, UPLINK
from meshrun.jobs.validate.simulation.spec import FORMS, SHARES, Fault, FleetSpec, parse_fleet
from meshrun.jobs.validate.verdict import EXIT, Finding, describe_part

LEAF = "leaf=8"  # so that fleets from 16 hosts on have several leaf switches
# Parts differ by at most 3 `spread`, and by 4 `drift`: less than 7 %, so that no healthy part is slow by
# definition.
CONDITIONS = {
    "plain": "",
    "oversubscribed": "oversubscription=2",
    "ecmp": "ecmp=8",
    "spread": "spread=0.02",
    "drift": "drift=0.01",
    "heavy noise": "noise=0.08,spread=0.01,drift=0.005",
    "host noise": "hostnoise=0.05",
    "neighbours": "neighbours=0.05",
    "shared nics": "nics=4",
    "pcie switches": "pcie=2",
    "mesh": "nvlink=mesh",
    "bridge": "nvlink=bridge",
    "no nvlink": "nvlink=none",
    "mixed": "models=H200/H100",
    "pxn": "pxn=on",
    "domains": "domain=4",
    "all": "oversubscription=2,ecmp=8,spread=0.02,drift=0.005,noise=0.06,hostnoise=0.03,neighbours=0.03",
}
HEALTHY = "healthy"
TOLERANCE = 0.93  # of a healthy part's rate: a part above is as fast as healthy ones
KINDS = (*FORMS, "tcp")
OF_PARTS = tuple(kind for kind in FORMS if kind != "all-nics")
NIC_KINDS = ("nic", "send", "receive", "flap", "stall")
SAID = {  # what a finding may call a fault
    "nvpair": ("pair",),
    "oneway": ("link one way",),
    "flap": ("flap",),
    "stall": ("stall", "flap", "nic"),
}


@dataclass(frozen=True)
class Run:
    """One fleet: what was put in, what was said. result: as the columns of the table."""

    condition: str
    kind: str
    hosts: int
    seed: int
    fleet: str
    status: str
    result: str
    said: list[str]
    model_seconds: float
    analysis_seconds: float
    rounds: int


def draw(kind: str, rng: np.random.Generator, spec: FleetSpec) -> FleetSpec:
    """Return the fleet with a fault of this kind."""
    if kind == HEALTHY:
        return spec
    if kind == "tcp":
        return replace(spec, fallback="tcp")
    roles = FORMS[kind]
    hosts = rng.choice(spec.hosts, roles.count("HOST"), replace=False).tolist()
    gpus = rng.choice(spec.rails, roles.count("GPU"), replace=False).tolist()
    leaves = rng.choice(spec.leaf_switches, roles.count("LEAF"), replace=False).tolist()
    numbers = {"HOST": iter(hosts), "GPU": iter(gpus), "LEAF": iter(leaves)}
    factor = 10.0 if kind == "stall" else round(float(rng.uniform(0.5, 0.85)), 3)
    where = tuple(next(numbers[role]) for role in roles)
    return replace(spec, faults=(Fault(kind, where, factor, SHARES.get(kind, 1.0)),))


def draw_two(kind: str, rng: np.random.Generator, spec: FleetSpec) -> FleetSpec:
    """Return the fleet with a fault of this kind and one of another kind, each of a part."""
    first = draw(kind, rng, spec)
    other = str(rng.choice([name for name in OF_PARTS if name != kind]))
    second = draw(other, rng, spec)
    return replace(spec, faults=first.faults + second.faults)


def invisible(kind: str, spec: FleetSpec) -> bool:
    """Return whether the fleet has no such part, or nothing to compare it with."""
    domains = math.ceil(spec.hosts / spec.domain)
    faults = spec.faults
    if kind in (HEALTHY, "gpu", "pcie", "nvlink", "nvpair", "host"):
        return kind == "nvlink" and spec.nvlink == "none"
    if kind == "leaf":
        rail = faults[0].where[0] % spec.rails
        if rail != min(same_nic(rail, spec)):
            return True  # no NIC is on this rail
        return spec.hosts < 2 * spec.leaf or domains < 3
    if kind in ("link", "oneway"):
        fault = faults[0]
        leaves = {host // spec.leaf for host in fault.hosts}
        # One of a leaf switch's `ecmp` uplinks carries a flow: no more than this is left of a NIC's rate.
        uplink = spec.leaf * UPLINK / spec.oversubscription / max(spec.ecmp, 1)
        if len(leaves) > 1 and spec.ecmp and fault.factor * NIC > TOLERANCE * uplink:
            return True
        return spec.hosts < 3 or len({host // spec.domain for host in fault.hosts}) < 2 or domains < 3
    return domains < 2


def named(one: Finding, fault: Fault, spec: FleetSpec) -> bool:
    """Return whether a finding is the faulty part, or the smallest set that contains it."""
    names = tuple(f"h{host}" for host in fault.hosts)
    hosts, gpus = {*names}, {*fault.gpus}
    if fault.kind not in ("leaf", "oneway", "all-nics") and one.instead:
        kind = SAID.get(fault.kind, (fault.kind,))[0]
        if describe_part(kind, names, fault.gpus).rstrip(":") in one.instead:
            return True
    if fault.kind == "leaf":
        group, rail = divmod(fault.where[0], spec.rails)
        behind = range(group * spec.leaf, min((group + 1) * spec.leaf, spec.hosts))
        names = tuple(f"h{host}" for host in behind)
        either = describe_part("leaf", names, (rail,)) in one.instead
        return one.kind == "leaf" and one.gpus == (rail,) and (either or one.hosts == names)
    if fault.kind == "rail":
        sharing = same_nic(fault.gpus[0], spec)
        return one.kind == "rail" and not one.hosts and {*one.gpus} <= sharing
    kinds = SAID.get(fault.kind, (fault.kind,))
    if fault.kind in NIC_KINDS and spec.nics:
        kinds, sharing = (*kinds, "nic"), same_nic(fault.gpus[0], spec)
        return one.kind in kinds and {*one.hosts} == hosts and {*one.gpus} <= sharing
    if fault.kind == "nvlink" and spec.nvlink == "bridge":  # a GPU's NVLinks are one bridge
        pair = {gpu // 2 * 2 + other for gpu in gpus for other in (0, 1)}
        return one.kind in ("nvlink", "pair") and {*one.hosts} == hosts and {*one.gpus} <= pair
    if fault.kind == "oneway" and tuple(one.hosts) != names:
        return False
    return one.kind in kinds and {*one.hosts} == hosts and {*one.gpus} == gpus


def judge_two(report: Any, spec: FleetSpec) -> str:
    """As `judge`, of two faults: right if each is named, and nothing else."""
    found, alone = report.verdict.findings, [replace(spec, faults=(fault,)) for fault in spec.faults]
    if any(invisible(one.faults[0].kind, one) for one in alone):
        return "invisible"
    blamed = [[named(one, each.faults[0], each) for each in alone] for one in found]
    if not all(map(any, blamed)):
        return "wrong"
    if all(any(of_finding[number] for of_finding in blamed) for number in range(len(alone))):
        return "right"
    return "missed" if report.verdict.status == "ok" else "other"


def same_nic(gpu: int, spec: FleetSpec) -> set[int]:
    nics = min(spec.nics or spec.rails, spec.rails)
    return {other for other in range(spec.rails) if other * nics // spec.rails == gpu * nics // spec.rails}


def judge(report: Any, kind: str, spec: FleetSpec) -> str:
    """Return the column that a report counts in."""
    verdict = report.verdict
    if kind == HEALTHY:
        return {"ok": "right", "unknown": "unknown"}.get(verdict.status, "alarm")
    right = [named(one, fault, spec) for one in verdict.findings for fault in spec.faults]
    if right and all(right):
        return "right"
    if invisible(kind, spec):
        return "wrong" if verdict.findings else "invisible"
    if verdict.status == "ok":
        return "missed"
    if kind in ("tcp", "all-nics"):
        blamed = any(one.hosts for one in verdict.findings)
        return "wrong" if blamed else "right" if verdict.alarms else "other"
    return "wrong" if right else "other"


def run(
    task: tuple[str, str, int, int],
    gpus: int,
    faults: int = 1,
    keep_going: bool = True,
    factor: float | None = None,
) -> Run:
    condition, kind, hosts, seed = task
    rng = np.random.default_rng([hosts, seed, list(CONDITIONS).index(condition), len(kind)])
    words = ",".join(filter(None, [f"hosts={hosts},gpus={gpus},seed={seed},{LEAF}", CONDITIONS[condition]]))
    two = faults == 2 and kind in OF_PARTS
    spec = (draw_two if two else draw)(kind, rng, parse_fleet(words))
    if factor is not None:
        spec = replace(spec, faults=tuple(replace(fault, factor=factor) for fault in spec.faults))
    fleet = SimulatedFleet(spec)
    options = ValidateOptions(Plan(seed=seed, keep_going=keep_going), simulate=str(spec))
    report = measure_simulated(fleet, options, lambda rung: None, lambda line: None)
    said = [
        f"{one.kind} {':'.join(one.hosts)} {one.gpus} {one.factor:.2f}" for one in report.verdict.findings
    ]
    said += [one.sentence for one in report.verdict.alarms]
    if report.verdict.status in ("unknown", "ok"):
        said += report.verdict.not_judged
    rungs = report.verdict.rungs
    return Run(
        condition, kind, hosts, seed, str(spec), report.verdict.status,
        judge_two(report, spec) if two else judge(report, kind, spec), said,
        fleet.now, sum(rung.seconds for rung in rungs), sum(rung.rounds for rung in rungs),
    )  # fmt: skip


COLUMNS = ("right", "wrong", "missed", "other", "alarm", "unknown", "invisible")


def summary(runs: list[Run]) -> dict[str, Any]:
    """Shares are of the runs that are not invisible."""
    counts = Counter(one.result for one in runs)
    seen = len(runs) - counts["invisible"]
    return {
        "runs": len(runs),
        **{name: counts[name] for name in COLUMNS},
        "share_right": counts["right"] / seen if seen else None,
        "model_seconds_median": float(np.median([one.model_seconds for one in runs])),
        "model_seconds_most": max(one.model_seconds for one in runs),
        "analysis_seconds_most": max(one.analysis_seconds for one in runs),
    }


def show(title: str, runs: list[Run]) -> None:
    row = summary(runs)
    share = "" if row["share_right"] is None else f"{row['share_right']:.1%}"
    counts = " ".join(f"{row[name]:9}" for name in COLUMNS)
    print(
        f"{title:26} {row['runs']:5} {share:>7} {counts} {row['model_seconds_median']:8.0f} "
        f"{row['model_seconds_most']:8.0f} {row['analysis_seconds_most']:8.2f}",
        flush=True,
    )


def tasks(options: argparse.Namespace, condition: str) -> Iterable[tuple[str, str, int, int]]:
    """Yield condition, kind, hosts, seed: `runs` faults, each kind in turn; then as many healthy fleets."""
    for number in range(options.runs):
        seed = options.first + number
        hosts = options.hosts[number // len(options.kinds) % len(options.hosts)]
        yield condition, options.kinds[number % len(options.kinds)], hosts, seed
    for number in range(options.healthy):
        yield condition, HEALTHY, options.hosts[number % len(options.hosts)], options.first + number


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3 * len(KINDS), help="faults of each condition")
    parser.add_argument("--healthy", type=int, default=9, help="healthy fleets of each condition")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--conditions", nargs="+", default=list(CONDITIONS), choices=CONDITIONS)
    parser.add_argument("--factor", type=float, help="of all faults, instead of 0.5 to 0.85")
    parser.add_argument("--faults", type=int, default=1, choices=(1, 2), help="at once")
    parser.add_argument("--stop-at-first", action="store_true", help="as of `meshrun validate`")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--failures", type=int, default=0, help="shown for each condition")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    heads = " ".join(f"{name:>9}" for name in COLUMNS)
    print(f"{'':26} {'runs':>5} {'right':>7} {heads} {'model s':>8} {'most':>8} {'analysis':>8}")
    runs: list[Run] = []
    begin = time.perf_counter()
    with ProcessPoolExecutor(options.workers) as pool:
        for condition in options.conditions:
            one_run = partial(
                run,
                gpus=options.gpus,
                faults=options.faults,
                keep_going=not options.stop_at_first,
                factor=options.factor,
            )
            done = list(pool.map(one_run, tasks(options, condition)))
            runs += done
            faulty = [one for one in done if one.kind != HEALTHY]
            for title, some in (
                (condition, faulty),
                ("  healthy", [one for one in done if one not in faulty]),
            ):
                if some:
                    show(title, some)
            failed = [one for one in done if one.result not in ("right", "invisible")]
            for one in failed[: options.failures]:
                print(f"    {one.result}: {one.fleet} -> {one.status} {one.said}", flush=True)
    print()
    for kind in dict.fromkeys(one.kind for one in runs):
        show(kind, [one for one in runs if one.kind == kind])
    print(f"{len(runs)} runs in {time.perf_counter() - begin:.0f} s")
    if options.json:
        rows = {
            condition: summary([one for one in runs if one.condition == condition and one.kind != HEALTHY])
            for condition in options.conditions
            if options.runs
        }
        record = {
            "benchmark": "verdicts",
            "python": platform.python_version(),
            "numpy": np.__version__,
            "status": EXIT,
            "options": vars(options) | {"json": str(options.json)},
            "conditions": rows,
            "runs": [asdict(one) for one in runs],
        }
        options.json.write_text(json.dumps(record, separators=(",", ":")).replace("},{", "},\n{") + "\n")


if __name__ == "__main__":
    main()
