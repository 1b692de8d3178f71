"""How often `jobs.validate` names the right part of a simulated fleet, and how often it blames a healthy one.

    python benchmarks/validate_simulated.py [--full] [--hosts 2 8 64] [--workers 2] [--json FILE]

Quick: 60 runs of each sort. --full: for each number of hosts 1,000 single faults ("one"), 1,000 healthy
fleets, 300 pairs of faults ("two") and 300 leaf switches with slow uplinks ("leaf", from 16 hosts on, a
quarter of the hosts or 32 behind each).

A fault counts as named when a finding is of its kind and at its place: the same host and GPU (of a link: both
hosts, of a pair of GPUs: both), and nothing else is blamed. Of two faults, both must be named; what else is
said is counted under "extra". "Blind" fleets show nothing of a fault: the link between the only two hosts has
nothing to compare with, and behind a slower host its NICs and links (of two hosts: any) are as fast as that
host lets them. The first column of percentages counts them as wrong, the second leaves them out. Faults are
drawn by the simulation (`random_fault`: factor 0.5 to 0.85, noise 3 %), which knows nothing of the search.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from meshrun.jobs.validate.ladder.ladder import climb_ladder
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.simulation.fleet import SimulatedFleet
from meshrun.jobs.validate.simulation.spec import Fault, FleetSpec, parse_fleet, random_fault
from meshrun.jobs.validate.verdict import Finding

NAMES = {"nvpair": "pair"}  # a fault's kind, where a finding calls it otherwise


@dataclass(frozen=True)
class Run:
    """One fleet: what was put in, what was said."""

    sort: str
    hosts: int
    seed: int
    faults: list[str]
    said: list[str]
    right: bool
    blind: bool
    extra: int
    seconds: float  # of analysis
    rounds: int
    messages: int


def names(finding: Finding, fault: Fault, spec: FleetSpec) -> bool:
    """Same kind, same place. A leaf switch is the rail and the hosts behind it."""
    if fault.kind == "leaf":
        group, rail = divmod(fault.where[0], spec.rails)
        behind = range(group * spec.leaf, min((group + 1) * spec.leaf, spec.hosts))
        return (finding.kind, finding.gpus, finding.hosts) == (
            "leaf",
            (rail,),
            tuple(f"h{host}" for host in behind),
        )
    hosts = sorted(f"h{host}" for host in fault.hosts)
    return (
        finding.kind == NAMES.get(fault.kind, fault.kind)
        and sorted(finding.hosts) == hosts
        and sorted(finding.gpus) == sorted(fault.gpus)
    )


def run(sort: str, hosts: int, gpus: int, seed: int) -> Run:
    rng = np.random.default_rng([hosts, seed, len(sort)])
    healthy = parse_fleet(f"hosts={hosts},gpus={gpus}")
    if sort == "leaf":
        healthy = replace(healthy, leaf=max(4, min(32, hosts // 4)))
    faults = leaf(rng, healthy) if sort == "leaf" else drawn(rng, healthy, COUNTS[sort])
    fleet = SimulatedFleet(replace(healthy, faults=tuple(faults)), seed=seed)
    verdict = climb_ladder(fleet, Plan(seed=seed))
    named = [any(names(one, fault, healthy) for one in verdict.findings) for fault in faults]
    extra = sum(not any(names(one, fault, healthy) for fault in faults) for one in verdict.findings)
    return Run(
        sort,
        hosts,
        seed,
        [str(fault) for fault in faults],
        [
            f"{one.kind} {' '.join(one.hosts)} {one.gpus} {one.factor:.2f} [{one.rung}]"
            for one in verdict.findings
        ],
        all(named) and (len(faults) > 1 or not extra),
        blind(faults, hosts),
        extra,
        sum(rung.seconds for rung in verdict.rungs),
        sum(rung.rounds for rung in verdict.rungs),
        sum(rung.messages for rung in verdict.rungs),
    )


def blind(faults: list[Fault], hosts: int) -> bool:
    """Whether no measurement can show one of them: a path is as fast as its slowest part."""
    for fault in faults:
        if hosts == 2 and fault.kind == "link":
            return True
        for other in faults:
            reached = hosts == 2 or set(other.hosts) & set(fault.hosts)
            if other.kind == "host" and fault.kind in WIRES and reached and other.factor <= fault.factor:
                return True
    return False


COUNTS = {"healthy": 0, "one": 1, "two": 2}  # faults


def leaf(rng: np.random.Generator, spec: FleetSpec) -> list[Fault]:
    """One leaf switch with slow uplinks."""
    return [Fault("leaf", (int(rng.integers(spec.leaf_switches)),), float(rng.uniform(0.5, 0.85)))]


WIRES = ("nic", "send", "receive", "flap", "link")


def drawn(rng: np.random.Generator, spec: FleetSpec, count: int) -> list[Fault]:
    """Random faults of different parts."""
    faults: list[Fault] = []
    while len(faults) < count:
        new = random_fault(rng, spec)
        if all(new.name != old.name for old in faults):
            faults.append(new)
    return faults


FULL = {"one": 1000, "healthy": 1000, "two": 300, "leaf": 300}
FEWEST = {"leaf": 16}  # hosts: of fewer than four switches, each of a few hosts, none is told from the others


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 3, 4, 8, 16, 32, 64, 128, 512])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--runs", type=int, help="of each sort, instead of the default")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--sorts", nargs="+", default=["one", "healthy", "two", "leaf"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--failures", type=int, default=8, help="shown for each row")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    counts = FULL if options.full else dict.fromkeys(FULL, 60)
    print(
        f"{'hosts':>5} {'sort':8} {'runs':>5} {'right':>7} {'not blind':>9} {'extra':>5} "
        f"{'analysis':>9} {'rounds':>6}"
    )
    runs: list[Run] = []
    with ProcessPoolExecutor(options.workers) as pool:
        for hosts in options.hosts:
            for sort in options.sorts:
                if hosts < FEWEST.get(sort, 2):
                    continue
                begin = time.perf_counter()
                seeds = range(options.first, options.first + (options.runs or counts[sort]))
                done = list(pool.map(partial(run, sort, hosts, options.gpus), seeds, chunksize=5))
                runs += done
                show(done, time.perf_counter() - begin, options.failures)
    if options.json:
        text = json.dumps(record(runs, vars(options)), default=str, separators=(",", ":"))
        options.json.write_text(text.replace("},{", "},\n{") + "\n")


def record(runs: list[Run], options: dict[str, object]) -> dict[str, object]:
    """All that the figures come from: versions, options, a summary of each row, and every run."""
    rows = [
        [one for one in runs if (one.hosts, one.sort) == row]
        for row in dict.fromkeys((one.hosts, one.sort) for one in runs)
    ]
    return {
        "benchmark": "validate_simulated",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "processor": platform.processor() or platform.machine(),
        "options": options,
        "plan": asdict(Plan()),
        "summary": [summary(row) for row in rows],
        "runs": [compact(one) for one in runs],
    }


def compact(one: Run) -> dict[str, object]:
    """A run; what was said of it only where that was not right."""
    whole = asdict(one)
    return {name: value for name, value in whole.items() if name != "said" or not one.right}


def summary(runs: list[Run]) -> dict[str, object]:
    """right: share of all runs; sighted: of those that are not blind. false_alarms: share of runs that blame
    what is healthy. seconds, rounds, messages: medians.
    """
    seen = [one for one in runs if not one.blind]
    return {
        "hosts": runs[0].hosts,
        "sort": runs[0].sort,
        "runs": len(runs),
        "blind": len(runs) - len(seen),
        "right": float(np.mean([one.right for one in runs])),
        "sighted": float(np.mean([one.right for one in seen])) if seen else None,
        "false_alarms": float(np.mean([one.extra > 0 for one in runs])),
        "extra": sum(one.extra for one in runs),
        "seconds": float(np.median([one.seconds for one in runs])),
        "rounds": float(np.median([one.rounds for one in runs])),
        "messages": float(np.median([one.messages for one in runs])),
    }


def show(runs: list[Run], seconds: float, failures: int) -> None:
    row = summary(runs)
    sighted = "" if row["sighted"] is None else f"{row['sighted']:.1%}"
    print(
        f"{row['hosts']:5} {row['sort']:8} {row['runs']:5} {row['right']:7.1%} {sighted:>9} {row['extra']:5} "
        f"{row['seconds']:8.2f}s {row['rounds']:6.0f} ({seconds:.0f} s)",
        flush=True,
    )
    seen = [one for one in runs if not one.blind]
    for one in [one for one in seen if not one.right or one.extra][:failures]:
        print(
            f"        seed {one.seed}: {', '.join(one.faults) or 'healthy'} -> {one.said or 'nothing'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
