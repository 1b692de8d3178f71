"""How often `meshrun validate` names the right part on real ranks, and how often it blames healthy ones.

    python benchmarks/validate_real.py --device cuda --ranks 2 --faults healthy busy off-nvlink [--json FILE]
    python benchmarks/validate_real.py --device cpu --ranks 4 --runs 20 --faults healthy stopped
    python benchmarks/validate_real.py --hosts 4 --per-host 2 --runs 20 --faults healthy limited

Each run is `meshrun -n N validate --quick`, as a user would type it. The sorts of runs take turns, and what
is disturbed changes from run to run. A fault is there before the ranks are, and goes after them:

healthy         none. Expected: status ok.
busy            another process keeps a GPU busy, with matrix products or with copies inside its memory.
off-nvlink      NCCL_P2P_DISABLE=1: every GPU alike, so that none is slower than its siblings. Expected: the
                alarm that pairs stay far below what the hardware allows.
off-nvlink-one  the same for one rank alone. Expected: refused before anything is measured, that rank named.
stopped         a rank is stopped for half of the time, in slices of 10 to 50 ms.
neighbour       two processes spin on a rank's core; the ranks are pinned for this, each to a core of its own.
limited         of hosts in network namespaces, one has a slower network (needs root).

Of the others: status critical, and a finding at the GPU (of "limited": at the host, or at each of
its NICs). "right" counts runs like that, "also" those that blame another part, too (a pair is at both GPUs).
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import disturbed
from disturbed import LONGEST, Around, Setting, Site, Skipped

from meshrun.runner.report.record import write_json

Json = dict[str, Any]
GPU_KINDS = ("gpu", "pcie", "nvlink", "nvlink send", "nvlink receive", "pair")
NETWORK = ("host pairs", "rails")
NIC_KINDS = ("nic", "send", "receive", "flap")
FAR_BELOW = "all GPUs alike: pairs flows at"


def ok(report: Json, place: Json) -> bool:
    return bool(report["status"] == "ok")


def alarmed(report: Json, place: Json) -> bool:
    sentences = [one["sentence"] for one in report["alarms"]]
    return report["status"] != "ok" and any(one.startswith(FAR_BELOW) for one in sentences)


def gpu_named(report: Json, place: Json) -> bool:
    return report["status"] == "critical" and any(at(one, place) for one in report["findings"])


def host_named(report: Json, place: Json) -> bool:
    found = [one for one in report["findings"] if at(one, place)]
    whole = any(one["kind"] == "host" for one in found)
    every = {gpu for one in found for gpu in one["gpus"]} == set(place["gpus"])
    return report["status"] == "critical" and (whole or every)


def at(finding: Json, place: Json) -> bool:
    """Whether a finding is at the GPU, or where none is meant, at the network of the host."""
    if place.get("host") not in finding["hosts"]:
        return False
    if "gpu" in place:
        return finding["kind"] in GPU_KINDS and place["gpu"] in finding["gpus"]
    network = finding["rung"] in NETWORK and finding["kind"] in ("host", *NIC_KINDS)
    return network and finding["hosts"] == [place["host"]]


@dataclass(frozen=True)
class Sort:
    """of: what is disturbed."""

    around: Around
    right: Callable[[Json, Json], bool]
    of: str = ""
    device: str = ""  # that it needs
    refused: str = ""  # what is said, with the number of the part, instead of a report


SORTS = {
    "healthy": Sort(disturbed.none, ok),
    "busy": Sort(disturbed.busy, gpu_named, "gpu", "cuda"),
    "off-nvlink": Sort(disturbed.off_nvlink, alarmed, "", "cuda"),
    "off-nvlink-one": Sort(
        disturbed.off_nvlink_one, gpu_named, "gpu", "cuda", "NCCL_P2P_DISABLE=1 on rank {} "
    ),
    "stopped": Sort(disturbed.stopped, gpu_named, "gpu", "cpu"),
    "neighbour": Sort(disturbed.neighbour, gpu_named, "gpu", "cpu"),
    "limited": Sort(disturbed.limited, host_named, "host", "cpu"),
}


def place_of(sort: Sort, part: int, setting: Setting, members: Sequence[Json]) -> Json:
    """The part as a report names it; {} of none, or without a report."""
    if not members:
        return {}
    if sort.of == "host":
        host = list(dict.fromkeys(one["host"] for one in members))[part]
        return {"host": host, "gpus": [one["gpu"] for one in members if one["host"] == host]}
    if sort.of == "gpu":
        bus_id = setting.bus_id.lower()
        found = (
            one for one in members if (one["bus_id"].lower() == bus_id if bus_id else one["rank"] == part)
        )
        return {name: value for name, value in next(found, {}).items() if name in ("host", "gpu")}
    return {}


def refused(sort: Sort, part: int, status: int | None, said: str) -> bool:
    """Whether the launch itself named the part."""
    return bool(sort.refused and status and sort.refused.format(part) in said)


@dataclass(frozen=True)
class Run:
    """place: what was disturbed. also: findings at other parts. said: on stderr."""

    sort: str
    number: int
    place: Json
    exit_status: int | None
    right: bool
    also: int
    seconds: float
    status: str
    line: str
    findings: list[str]
    alarms: list[str]
    rates: Json
    said: str


def once(site: Site, name: str, number: int) -> tuple[Run, Json]:
    """One run and its report, {} where it left none."""
    sort, token = SORTS[name], secrets.token_hex(8)
    part = number % (site.options.hosts if sort.of == "host" else site.ranks)
    site.report.unlink(missing_ok=True)
    begin = time.perf_counter()
    with sort.around(site, part, token) as setting:
        begin = time.perf_counter()
        try:
            done = site.run(setting, token)
            status, said = done.returncode, done.stderr
        except subprocess.TimeoutExpired:
            status, said = None, f"not over after {LONGEST} s"
        seconds = time.perf_counter() - begin
    report = json.loads(site.report.read_text()) if site.report.exists() else {}
    place = place_of(sort, part, setting, report.get("members", []))
    findings = report.get("findings", [])
    run = Run(
        name,
        number,
        place,
        status,
        (bool(report) and sort.right(report, place)) or refused(sort, part, status, said),
        sum(not at(one, place) for one in findings),
        seconds,
        report.get("status", "no report"),
        report.get("line", ""),
        [one["sentence"] for one in findings],
        [one["sentence"] for one in report.get("alarms", [])],
        {rung["name"]: rung["rates"] for rung in report.get("rungs", []) if rung["rates"]},
        said[-2000:],
    )
    return run, report


def campaign(site: Site) -> list[Run]:
    options, runs = site.options, []
    skipped: dict[str, str] = {}
    facts: Json = {}
    for number in range(options.first, options.first + options.runs):
        for name in options.faults:
            if name in skipped:
                continue
            try:
                run, report = once(site, name, number)
            except Skipped as reason:
                skipped[name] = str(reason)
                print(f"{name}: skipped, {reason}", flush=True)
                continue
            runs.append(run)
            verdict = "right" if run.right and not run.also else "right, and more" if run.right else "WRONG"
            where = " ".join(str(value) for value in run.place.values())
            line = run.line or run.said.partition("\n")[0]
            print(f"{number:3} {name} {where}: {verdict}, {run.seconds:.1f} s: {line}", flush=True)
            facts = facts or {
                "versions": report.get("environment", {}),
                "devices": [one["device"] for one in report.get("members", [])],
            }
            if options.reports:
                options.reports.mkdir(parents=True, exist_ok=True)
                write_json(
                    options.reports / f"{name}-{number}.json", "validate", report.get("schema", 0), report
                )
            if options.json:  # now: a long campaign may be ended before its end
                record = {"benchmark": "validate_real", "hosts": options.hosts, "ranks": site.ranks, **facts}
                write_json(
                    options.json,
                    "benchmark",
                    1,
                    record | {"skipped": skipped, "runs": [asdict(one) for one in runs]},
                )
    return runs


def show(runs: Sequence[Run]) -> None:
    print(f"{'sort':14} {'runs':>4} {'right':>5} {'also':>4}   seconds (least, most)")
    for name in dict.fromkeys(one.sort for one in runs):
        those = [one for one in runs if one.sort == name]
        seconds = [one.seconds for one in those]
        right, also = sum(one.right for one in those), sum(one.also > 0 for one in those)
        print(
            f"{name:14} {len(those):4} {right:5} {also:4}"
            f"   {statistics.median(seconds):.1f} ({min(seconds):.1f}, {max(seconds):.1f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cpu with --hosts, else cuda")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hosts", type=int, default=0, help="in network namespaces of this machine")
    parser.add_argument("--per-host", type=int, default=2)
    parser.add_argument("--runs", type=int, default=10, help="of each sort")
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first run: what is disturbed goes by it"
    )
    parser.add_argument("--faults", nargs="+", choices=SORTS, default=["healthy"], metavar="SORT")
    parser.add_argument("--load", choices=disturbed.LOADS, help="of busy; default: in turn")
    parser.add_argument("--rungs", help="only these, as meshrun validate takes them")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help="where every run's report is kept")
    options = parser.parse_args()
    options.device = options.device or ("cpu" if options.hosts else "cuda")
    if options.hosts:
        options.ranks = options.hosts * options.per_host
    for name in options.faults:
        sort = SORTS[name]
        if sort.device not in ("", options.device) or (sort.of == "host") > bool(options.hosts):
            parser.error(f"{name} needs {'--hosts' if sort.of == 'host' else f'--device {sort.device}'}")
        if sort.of == "gpu" and options.hosts:
            parser.error(f"{name} is of one host")
    with disturbed.sited(options) as site:
        show(campaign(site))


if __name__ == "__main__":
    main()
