"""How often `validate` names the cause of a slow fleet, by condition, on the fleets of `fleet_physics`.

    python tests/facts/fleet_causes.py [--runs 40] [--conditions NAME ...] [--failures 2] [--workers 2]

right: the part is named, and nothing else is blamed; of a healthy fleet, the status is ok. unknown: nothing
is blamed and the status says that something could not be judged. alarm: a healthy fleet fails, or another
part is blamed beside the right one or instead of it. missed: the status is ok although a part is slow.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from fleet_physics import Episode, Fleet, PhysicalFleet

from meshrun.jobs.validate.ladder.budget import quick
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.run.options import ValidateOptions
from meshrun.jobs.validate.run.run import measure_simulated
from meshrun.jobs.validate.verdict import Finding

FAST, SLOW = 48e9, 24e9  # bytes/s of a NIC
LONGEST = 2000.0  # seconds for which episodes are drawn
Named = tuple[tuple[str, ...], frozenset[str], frozenset[int]]  # kinds, hosts, GPUs


@dataclass
class Case:
    """causes: for each slow part, the kinds, hosts and GPUs of a finding that names it; none if healthy.

    whole: one finding that names all of the causes. quick: with the plan of --quick.
    busy: others load the fleet, so it may also end as unknown, never as critical.
    missing: what an alarm says of a host that lacks NICs; nothing else is blamed.
    """

    fleet: Fleet
    causes: Sequence[Named] = ()
    whole: Named | None = None
    busy: bool = False
    quick: bool = False
    missing: str = ""


def named(kinds: str, hosts: Sequence[int], gpus: Sequence[int]) -> Named:
    return tuple(kinds.split("/")), frozenset(f"h{host}" for host in hosts), frozenset(gpus)


def even(rng: Any, hosts: int, gpus: int = 8, rates: Sequence[float] | None = None, **words: Any) -> Fleet:
    """A fleet of equal hosts. rates: of the NICs of each host."""
    return Fleet([gpus] * hosts, rates or [FAST] * hosts, [0] * hosts, int(rng.integers(1 << 30)), **words)


def two_rates(rng: Any, hosts: int) -> list[float]:
    """At least three hosts of each rate."""
    fast = int(rng.integers(3, hosts - 2))
    rates = [FAST] * fast + [SLOW] * (hosts - fast)
    return [rates[number] for number in rng.permutation(hosts)] if rng.random() < 0.5 else rates


def loss(rng: Any) -> float:
    return float(rng.uniform(0.5, 0.82))


def healthy(rng: Any, hosts: int) -> Case:
    return Case(even(rng, hosts))


def healthy_two_rates(rng: Any, hosts: int) -> Case:
    hosts = max(hosts, 6)
    return Case(even(rng, hosts, rates=two_rates(rng, hosts)))


def busy(rng: Any, hosts: int, share: float = 0.2, fast: bool = False) -> Case:
    """Others load hosts and NICs for a share of the time, 5 to 120 s long."""
    fleet = even(rng, hosts)
    for host in range(hosts):
        now, length = float(rng.uniform(-60, 0)), float(np.exp(rng.uniform(np.log(5), np.log(120))))
        loaded = bool(rng.random() < share)
        while now < LONGEST:
            usual = length if loaded else length * (1 - share) / share
            end = now + float(rng.exponential(usual))
            if loaded:
                fleet.episodes.append(Episode("host", host, now, end, float(rng.uniform(0.4, 0.8))))
            now, loaded = end, not loaded
    return Case(fleet, busy=True, quick=fast)


def busy_quick(rng: Any, hosts: int) -> Case:
    return busy(rng, hosts, fast=True)


def very_busy(rng: Any, hosts: int) -> Case:
    return busy(rng, hosts, 0.3)


def nic(rng: Any, hosts: int) -> Case:
    host, gpu, left = int(rng.integers(hosts)), int(rng.integers(8)), loss(rng)
    rank = 8 * host + gpu
    return Case(
        even(rng, hosts, slow={("send", rank): left, ("receive", rank): left}), [named("nic", [host], [gpu])]
    )


def one_direction(rng: Any, hosts: int) -> Case:
    host, gpu, way = int(rng.integers(hosts)), int(rng.integers(8)), str(rng.choice(["send", "receive"]))
    fleet = even(rng, hosts, slow={(way, 8 * host + gpu): loss(rng)})
    return Case(fleet, [named(way, [host], [gpu])])


def host_receives(rng: Any, hosts: int, way: str = "receive") -> Case:
    hosts = max(hosts, 3)
    host, left = int(rng.integers(hosts)), loss(rng)
    fleet = even(rng, hosts, slow={(way, 8 * host + gpu): left for gpu in range(8)})
    causes = [named(way, [host], [gpu]) for gpu in range(8)]
    return Case(fleet, causes, named(way, [host], range(8)))


def host_sends(rng: Any, hosts: int) -> Case:
    return host_receives(rng, hosts, "send")


def both_at_once(rng: Any, hosts: int) -> Case:
    """A NIC that moves in both directions together what it should move in each."""
    host, gpu = int(rng.integers(hosts)), int(rng.integers(8))
    fleet = even(rng, hosts, duplex={8 * host + gpu: float(rng.uniform(1.0, 1.6))})
    return Case(fleet, [named("nic", [host], [gpu])])


def flaps(rng: Any, hosts: int) -> Case:
    """Slow for about 5 s in about 20 s."""
    host, gpu, left = int(rng.integers(hosts)), int(rng.integers(8)), loss(rng)
    fleet, now = even(rng, hosts), float(rng.uniform(-20, 0))
    while now < LONGEST:
        length = float(rng.uniform(4, 6))
        fleet.episodes.append(Episode("nic", 8 * host + gpu, now, now + length, left))
        now += length + float(rng.uniform(12, 18))
    return Case(fleet, [named("flap/nic", [host], [gpu])])


def half_leaf(rng: Any, hosts: int) -> Case:
    """Two leaf switches on a rail, or more; the uplinks of one, with half of the hosts, are slow."""
    hosts = max(hosts, 8)
    half = hosts // 2
    group = np.zeros((hosts, 8), np.int64)
    group[half:] = (
        1 if rng.random() < 0.5 else (1 + (np.arange(hosts - half) >= (hosts - half) // 2))[:, None]
    )
    rail, left = int(rng.integers(8)), float(rng.uniform(0.3, 0.6))
    fleet = even(rng, hosts, group=group, cables=half, slow={("up", rail): left, ("down", rail): left})
    one = named("leaf", range(half), [rail])
    return Case(fleet, [one])


def half_leaf_ports(rng: Any, hosts: int) -> Case:
    """A leaf switch with half of a rail's hosts, whose ports are slow."""
    hosts = max(hosts, 8)
    half, gpu, left = hosts // 2, int(rng.integers(8)), loss(rng)
    slow = {(way, 8 * host + gpu): left for host in range(half) for way in ("send", "receive")}
    return Case(even(rng, hosts, slow=slow), [named("leaf", range(half), [gpu])])


def leaf(rng: Any, hosts: int) -> Case:
    """Eight hosts to a leaf switch, with half as many uplinks; those of one are slower still."""
    hosts = max(hosts, 32)
    group = np.repeat(np.arange(hosts) // 8, 8).reshape(hosts, 8)
    number, rail, left = int(rng.integers(hosts // 8)), int(rng.integers(8)), loss(rng)
    part = number * 8 + rail
    fleet = even(
        rng, hosts, group=group, cables=4, static=bool(rng.random() < 0.5), uplink=100e9 / 2,
        slow={("up", part): left, ("down", part): left},
    )  # fmt: skip
    return Case(fleet, [named("leaf", range(8 * number, 8 * number + 8), [rail])])


def healthy_leaves(rng: Any, hosts: int) -> Case:
    case = leaf(rng, hosts)
    case.fleet.slow.clear()
    return Case(case.fleet)


def link(rng: Any, hosts: int) -> Case:
    hosts = max(hosts, 3)
    one, other = rng.choice(hosts, 2, replace=False).tolist()
    way = str(rng.choice(["link", "one way"]))
    kind = "link" if way == "link" else "link one way"
    return Case(even(rng, hosts, slow={(way, (one, other)): loss(rng)}), [named(kind, [one, other], [])])


def rail(rng: Any, hosts: int) -> Case:
    hosts = max(hosts, 3)
    gpu, left = int(rng.integers(8)), loss(rng)
    slow = {(way, 8 * host + gpu): left for host in range(hosts) for way in ("send", "receive")}
    return Case(even(rng, hosts, slow=slow), [named("rail", [], [gpu])])


def two_rates_nic(rng: Any, hosts: int) -> Case:
    hosts = max(hosts, 6)
    host, gpu, left = int(rng.integers(hosts)), int(rng.integers(8)), loss(rng)
    rank = 8 * host + gpu
    slow = {("send", rank): left, ("receive", rank): left}
    return Case(even(rng, hosts, rates=two_rates(rng, hosts), slow=slow), [named("nic", [host], [gpu])])


def two_rates_host(rng: Any, hosts: int) -> Case:
    hosts = max(hosts, 6)
    host, left = int(rng.integers(hosts)), loss(rng)
    slow = {(way, 8 * host + gpu): left for gpu in range(8) for way in ("send", "receive")}
    fleet = even(rng, hosts, rates=two_rates(rng, hosts), slow=slow)
    return Case(fleet, [named("host", [host], [])])


def two_rates_receive(rng: Any, hosts: int) -> Case:
    hosts = max(hosts, 6)
    case = host_receives(rng, hosts)
    case.fleet.rates = two_rates(rng, hosts)
    return case


def shared_nics(rng: Any, hosts: int) -> Case:
    """Two GPUs of some hosts share a NIC; others have a NIC each, and are fewer."""
    hosts = max(hosts, 9)
    gpus = [8 if rng.random() < 0.6 else 4 for _ in range(hosts)]
    gpus[0], gpus[-1] = 8, 4
    nics = [4] * hosts
    starts = np.cumsum([0, *gpus])
    host = int(rng.integers(hosts))
    gpu = int(rng.integers(4)) * (gpus[host] // 4)
    rank = int(starts[host]) + gpu
    left = loss(rng)
    fleet = Fleet(gpus, [FAST] * hosts, nics, int(rng.integers(1 << 30)))
    fleet.slow = {("send", rank): left, ("receive", rank): left}
    sharing = [gpu, gpu + 1] if gpus[host] == 8 else [gpu]
    return Case(fleet, [named("nic", [host], sharing)])


def healthy_shared(rng: Any, hosts: int) -> Case:
    case = shared_nics(rng, hosts)
    case.fleet.slow = {}
    return Case(case.fleet)


# Of one part each: the kinds of a finding, and the parts of the model that are slow.
PARTS: dict[str, tuple[str, ...]] = {
    "gpu": ("gpu",), "pcie": ("pcie",), "nvlink": ("nvlink",), "pair": ("bridge",),
    "nic": ("send", "receive"), "send": ("send",), "receive": ("receive",),
}  # fmt: skip


def one_slow(rng: Any, fleet: Fleet, kinds: Sequence[str], left: float) -> Case:
    """A slow part of one of these kinds, of any host."""
    kind, host, gpu = str(rng.choice([*kinds])), int(rng.integers(len(fleet.gpus))), int(rng.integers(8))
    if kind in ("link", "host"):
        other = (host + int(rng.integers(1, len(fleet.gpus)))) % len(fleet.gpus)
        parts: list[tuple[str, Any]] = [("link", (host, other))]
        if kind == "host":
            parts = [(way, 8 * host + number) for number in range(8) for way in ("send", "receive")]
        fleet.slow |= dict.fromkeys(parts, left)
        return Case(fleet, [named(kind, [host, other] if kind == "link" else [host], [])])
    gpu = gpu // 2 * 2 if kind == "pair" else gpu
    fleet.slow |= {(part, 8 * host + gpu): left for part in PARTS[kind]}
    return Case(fleet, [named(kind, [host], [gpu, gpu + 1] if kind == "pair" else [gpu])])


def two_models_fleet(rng: Any, hosts: int) -> Fleet:
    """At least two hosts with an older GPU model, three with another; with NICs of one rate or of two.

    Of the only two hosts with the faster NICs, nothing shows which is slow.
    """
    hosts = max(hosts, 5)
    older = rng.permutation(hosts)[: int(rng.integers(2, hosts - 2))].tolist()
    slower = rng.random() < 0.5
    rates = [SLOW if slower and host in older else FAST for host in range(hosts)]
    return even(rng, hosts, rates=rates, older=frozenset(older))


def healthy_two_models(rng: Any, hosts: int) -> Case:
    return Case(two_models_fleet(rng, hosts))


def two_models(rng: Any, hosts: int) -> Case:
    kinds = ("gpu", "pcie", "nvlink", "nic", "send", "receive", "link", "host")
    return one_slow(rng, two_models_fleet(rng, hosts), kinds, loss(rng))


def healthy_bridges(rng: Any, hosts: int) -> Case:
    return Case(even(rng, hosts, bridged=True))


def bridges(rng: Any, hosts: int) -> Case:
    return one_slow(rng, even(rng, hosts, bridged=True), ("gpu", "pcie", "pair", "nic"), loss(rng))


def one_path_fleet(rng: Any, hosts: int) -> Fleet:
    """A flow takes one of the uplinks, as many as a leaf switch has hosts: hashed for good (a queue pair)."""
    hosts = max(hosts, 12)
    each = int(rng.choice([4, 6]))
    group = np.repeat(np.arange(hosts) // each, 8).reshape(hosts, 8)
    return even(rng, hosts, group=group, cables=each, static=True)


def healthy_one_path(rng: Any, hosts: int) -> Case:
    return Case(one_path_fleet(rng, hosts))


def one_path(rng: Any, hosts: int) -> Case:
    return one_slow(
        rng, one_path_fleet(rng, hosts), ("gpu", "nvlink", "nic", "send", "receive", "host"), loss(rng)
    )


def mild(rng: Any, hosts: int) -> Case:
    kinds = ("gpu", "pcie", "nvlink", "nic", "send", "receive", "link", "host")
    return one_slow(rng, even(rng, max(hosts, 3)), kinds, 0.9)


def without_nic(rng: Any, hosts: int) -> Case:
    """A GPU's NIC is missing, so that it uses its neighbour's."""
    hosts = max(hosts, 3)
    host, gpu = int(rng.integers(hosts)), int(rng.integers(8))
    fleet = even(rng, hosts, borrowed={8 * host + gpu: 8 * host + (gpu ^ 1)})
    return Case(fleet, missing=f"h{host} has 7 NICs")


def few_nics(rng: Any, hosts: int) -> Case:
    """A host has 1 to 6 NICs for its 8 GPUs."""
    hosts = max(hosts, 3)
    host, left = int(rng.integers(hosts)), int(rng.choice([1, 2, 4, 6]))
    nic_of = {8 * host + gpu: 8 * host - (-(gpu * left // 8) * 8 // left) for gpu in range(8)}
    return Case(even(rng, hosts, borrowed=nic_of), missing=f"h{host} has {left} NIC")


def no_nics(rng: Any, hosts: int) -> Case:
    """A host has no NICs for RDMA, so that NCCL uses TCP."""
    hosts = max(hosts, 3)
    host = int(rng.integers(hosts))
    return Case(even(rng, hosts, by_tcp=frozenset([host])), missing=f"h{host} has 0 NICs")


CONDITIONS: dict[str, Callable[[Any, int], Case]] = {
    "healthy": healthy, "healthy, two NIC rates": healthy_two_rates,
    "healthy, scarce uplinks": healthy_leaves, "healthy, shared NICs": healthy_shared,
    "others load 20 %": busy, "others load 20 %, --quick": busy_quick, "others load 30 %": very_busy,
    "NIC": nic, "one direction": one_direction, "link": link, "rail": rail,
    "host receives": host_receives, "host sends": host_sends, "both at once": both_at_once, "flaps": flaps,
    "half a rail's leaf": half_leaf, "scarce uplinks, leaf": leaf, "two rates, NIC": two_rates_nic,
    "two rates, host": two_rates_host, "two rates, host receives": two_rates_receive,
    "shared NICs": shared_nics, "half a rail's leaf, ports": half_leaf_ports,
    "healthy, two GPU models": healthy_two_models, "two GPU models": two_models,
    "healthy, bridges": healthy_bridges, "bridges": bridges, "healthy, one path": healthy_one_path,
    "one path": one_path, "10 % lost": mild, "without a NIC": without_nic,
    "few NICs": few_nics, "no NICs": no_nics,
}  # fmt: skip
HOSTS = (2, 3, 4, 6, 8, 9, 12, 16, 24, 32, 64)


def matches(one: Finding, cause: Named) -> bool:
    kinds, hosts, gpus = cause
    return one.kind in kinds and {*one.hosts} == hosts and {*one.gpus} == gpus


def in_instead(one: Finding, cause: Named) -> bool:
    """Whether a finding says that it cannot tell the part from another."""
    kinds, hosts, gpus = cause
    if one.kind != kinds[0] or {*one.gpus} != gpus or not one.instead:
        return False
    ordered = sorted(hosts, key=lambda name: int(name[1:]))
    return any(ordered[0] in text and (len(ordered) == 1 or ordered[-1] in text) for text in one.instead)


def judge(case: Case, report: Any) -> str:
    verdict = report.verdict
    if case.missing:
        alarms = [one.sentence for one in verdict.alarms]
        told = any(f"host {case.missing}" in one for one in alarms) and not verdict.findings
        if told and all(case.missing.split()[0] in one for one in alarms):
            return "right"
        return "missed" if verdict.status == "ok" else "alarm"
    if not case.causes:
        blamed = [one for one in verdict.alarms if " other hosts of its kind have " not in one.sentence]
        if verdict.status == "warning" and not verdict.findings and not blamed:
            return "right"  # hosts have different numbers of GPUs, which is so
        if verdict.status == "ok" or (case.busy and verdict.status == "unknown" and not verdict.findings):
            return "right" if verdict.status == "ok" else "unknown"
        return "unknown" if verdict.status == "unknown" else "alarm"
    if not verdict.findings:
        return {"ok": "missed", "unknown": "unknown"}.get(verdict.status, "unknown")
    wanted = [*case.causes, *([case.whole] if case.whole else [])]
    if not all(
        any(matches(one, cause) or in_instead(one, cause) for cause in wanted) for one in verdict.findings
    ):
        return "alarm"
    every = all(
        any(matches(one, cause) or in_instead(one, cause) for one in verdict.findings)
        for cause in case.causes
    )
    whole = case.whole is not None and any(matches(one, case.whole) for one in verdict.findings)
    return "right" if every or whole else "alarm"


def run(condition: str, number: int, sizes: Sequence[int] = HOSTS) -> tuple[str, int, str, float, float]:
    hosts = sizes[number % len(sizes)]
    rng = np.random.default_rng([list(CONDITIONS).index(condition), number, 5])
    case = CONDITIONS[condition](rng, hosts)
    probe: Any = PhysicalFleet(case.fleet)
    plan = quick() if case.quick else Plan()
    begin = time.perf_counter()
    try:
        report = measure_simulated(probe, ValidateOptions(plan), lambda rung: None, lambda line: None)
    except Exception as error:
        return "crash", len(probe.hosts), repr(error)[:150], probe.now, time.perf_counter() - begin
    said = [
        f"{one.kind} {':'.join(one.hosts)} {one.gpus} {one.factor:.2f}" for one in report.verdict.findings
    ]
    said = said[:4] + [one.sentence for one in report.verdict.alarms][:2]
    causes = [(*kinds, *sorted(hosts)[:3], *sorted(gpus)) for kinds, hosts, gpus in case.causes]
    text = f"{causes[:2]} -> {report.verdict.status} {said}"
    if report.verdict.status in ("unknown", "ok"):
        text += f" {report.verdict.not_judged[:2]}"
    return judge(case, report), len(probe.hosts), text, probe.now, time.perf_counter() - begin


COLUMNS = ("right", "alarm", "missed", "unknown", "crash")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=40, help="fleets of each condition")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--conditions", nargs="+", default=list(CONDITIONS), choices=CONDITIONS)
    parser.add_argument("--hosts", type=int, nargs="+", default=list(HOSTS))
    parser.add_argument("--failures", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    print(
        f"{'':26} {'runs':>5} " + " ".join(f"{name:>8}" for name in COLUMNS) + f" {'most s':>7} {'took':>6}"
    )
    with ProcessPoolExecutor(options.workers) as pool:
        for condition in options.conditions:
            numbers = range(options.first, options.first + options.runs)
            done = list(pool.map(partial(run, condition, sizes=options.hosts), numbers))
            count = Counter(one[0] for one in done)
            print(
                f"{condition:26} {len(done):5} " + " ".join(f"{count[name]:8}" for name in COLUMNS)
                + f" {max(one[3] for one in done):7.0f} {sum(one[4] for one in done):6.0f}", flush=True,
            )  # fmt: skip
            for number, one in zip(numbers, done, strict=True):
                if one[0] != "right" and options.failures and count["shown"] < options.failures:
                    count["shown"] += 1
                    print(f"    {number} {one[0]} {one[1]} hosts: {one[2]}", flush=True)


if __name__ == "__main__":
    main()
