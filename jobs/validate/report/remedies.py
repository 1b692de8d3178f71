"""Remedies: for each kind of fault what to check, and the command that measures it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from meshrun.jobs.validate.plan import QUICK_ON_CPUS
from meshrun.jobs.validate.report.model import Report
from meshrun.jobs.validate.report.wording import find_member, part_name, rank_name
from meshrun.jobs.validate.verdict import Finding, HostPart
from meshrun.runner.report.units import counted

# {host}, {other}: hosts; {gpu}, {peer}: GPUs as nvidia-smi names them; {rail}: a number.
ADVICE = {
    "gpu": "on {host}: nvidia-smi -q -i {gpu} -d PERFORMANCE,CLOCK,TEMPERATURE,POWER,ECC (throttled, capped, "
    "retired memory?), then nvidia-smi pmon -c 1 -i {gpu} (another process?)",
    "pcie": "on {host}: nvidia-smi -q -i {gpu} -d PCIE (link width and generation against their maximum, "
    "replays); reseat the card or its riser when the link is narrow",
    "nvlink": "on {host}: nvidia-smi nvlink -s -i {gpu} (links down or slow?), nvidia-smi nvlink -e -i {gpu} "
    "(errors?); then reset or reseat the GPU",
    "pair": "on {host}: nvidia-smi topo -m (is there NVLink between the two?), then nvidia-smi nvlink -e "
    "-i {gpu} and -i {peer} (errors?)",
    "nic": "on {host}: nvidia-smi topo -m names the NIC next to GPU {gpu}; ibstat or ethtool (rate, state), "
    "perfquery -x or ethtool -S (symbol errors, discards); then swap its cable, then its switch port",
    "flap": "on {host}: dmesg -T | grep -i link, and link_downed in /sys/class/infiniband/*/ports/*/counters "
    "of the NIC next to GPU {gpu}; swap its cable or transceiver",
    "stall": "on {host}: retransmissions and timeouts of the NIC next to GPU {gpu} (out_of_sequence, "
    "packet_seq_err, local_ack_timeout_err in /sys/class/infiniband/*/ports/*/hw_counters), pause frames "
    "(ethtool -S), its firmware; swap its cable or transceiver",
    "host": "take {host} out of the queue; meshrun doctor there and on a good host, and compare (power cap, "
    "clocks, PCIe ACS, firmware, other load)",
    "link": "between {host} and {other}: routes and cables between their switches (ibtracert, ibdiagnet); "
    "both hosts are fast with others",
    "link one way": "from {host} to {other}: routes and cables between their switches in this direction "
    "(ibtracert); the opposite direction is fast",
    "path": "between {host} and {other} on rail {rail}: routes and cables between their switches on this "
    "rail (ibtracert, ibdiagnet)",
    "rail": "the switches of rail {rail}: port rates, errors and uplinks; every host is slow on this rail",
    "leaf": "the leaf switch of rail {rail} that {host} and {other} are attached to: its uplinks (how many "
    "are up, their rate, errors) if its hosts are fast among each other, otherwise its ports",
    "ring": "on {host}: systemctl status nvidia-fabricmanager and nvidia-smi topo -m; each pair is fast "
    "alone, so look at the NVSwitches, and at NCCL_DEBUG=INFO for the ring it took",
}
# Of a host with another number of these than its siblings.
UNEVEN: dict[HostPart, str] = {
    "GPU": "on {host}: nvidia-smi -L (does it list all GPUs?), dmesg -T | grep -i xid (did one fall off the "
    "bus?); if all are there, the number of ranks that the launcher starts on it",
    "NIC": "on {host}: ibstat or rdma link (is a port down, or at a lower rate than the others?)",
    "NVLink": "on {host}: nvidia-smi nvlink -s (which links are down?); then reset or reseat the GPU",
    "rank": "the number of ranks that the launcher starts on {host}",
}
SAME = {"nvlink send": "nvlink", "nvlink receive": "nvlink", "send": "nic", "receive": "nic"}
NETWORK = "on {host}: ethtool (rate), ip -s link (errors, drops), tc qdisc (a limit?); then cable and port"
BUSY = "on {host}: top -H and taskset -pc PID (other processes on this rank's cores, or a clock held down?)"

OF_CPUS = dict.fromkeys(("gpu", "nvlink", "pair", "ring"), BUSY) | dict.fromkeys(
    ("nic", "flap", "stall"), NETWORK
)


@dataclass(frozen=True)
class Remedy:
    """about: the fault. advice: what to check. command: measures it again, or ""."""

    about: str
    advice: str
    command: str = ""


def remedies(report: Report) -> list[Remedy]:
    """Return a remedy for each kind of fault, with the first of its kind as the example."""
    return [*of_early_end(report), *of_wrong_data(report), *of_findings(report), *of_others(report)]


def of_early_end(report: Report) -> Iterator[Remedy]:
    if report.ended:
        look = "what that rank printed last, and on its host: dmesg -T | grep -iE 'xid|oom|out of memory'"
        yield Remedy("the run ended early", look, report.command)


def of_wrong_data(report: Report) -> Iterator[Remedy]:
    if report.wrong:
        first = report.wrong[0]
        names = [rank_name(report, rank) for rank in {first.rank: 0, first.source: 0} if rank is not None]
        look = "discard its results; dmesg -T | grep -i xid, nvidia-smi -q -d ECC, then dcgmi diag -r 3"
        yield Remedy(f"wrong data, {' and '.join(names)}", look)


def of_findings(report: Report) -> Iterator[Remedy]:
    seen: set[str] = set()
    for one in report.verdict.findings:
        kind = SAME.get(one.kind, one.kind)
        if kind not in seen:
            seen.add(kind)
            yield Remedy(part_name(one), advice(report, one), again(report, one.rung))


def of_others(report: Report) -> Iterator[Remedy]:
    for part, look in UNEVEN.items():
        uneven = next((one for one in report.verdict.uneven_hosts if one.part == part), None)
        if uneven is not None:
            about = f"host {uneven.host} has {counted(uneven.count, part)}"
            yield Remedy(about, look.format(host=uneven.host))
    fault = next((one for one in report.changes if one.weight == "fault"), None)
    if fault is not None:
        look = f"{fault.meaning}; check whether it still increases on an idle machine"
        yield Remedy(f"{fault.counter} on host {fault.host}, {fault.part}", look)
    if any(one.rate < one.usual for one in report.drifts):
        look = "; ".join(report.changed) or "nothing in the environment changed"
        accept = f"if this is intended, --save-baseline {report.baseline}"
        yield Remedy("slower than earlier runs", f"{look}; {accept}")
    if QUICK_ON_CPUS in report.verdict.not_judged and report.verdict.status == "unknown" and not report.ended:
        yield Remedy("not judged", "measure for longer, and suspects again", f"{report.command} --budget 2m")
    elif report.verdict.status == "unknown" and not report.ended:
        yield Remedy("not judged", "a missing value does not count as good: measure again", report.command)


def advice(report: Report, one: Finding) -> str:
    kind = SAME.get(one.kind, one.kind)
    ranks = [find_member(report, rank) for rank in one.ranks]
    on_cpus = any(rank is not None and rank.kind == "cpu" for rank in ranks)
    look = {**ADVICE, **OF_CPUS}[kind] if on_cpus else ADVICE[kind]
    gpus = [
        bus_id(report, one.hosts, gpu) if kind not in ("nic", "flap", "stall") else str(gpu)
        for gpu in one.gpus
    ]
    names = {
        "host": one.hosts[0] if one.hosts else "",
        "other": one.hosts[-1] if one.hosts else "",
        "gpu": gpus[0] if gpus else "",
        "peer": gpus[-1] if gpus else "",
        "rail": str(one.gpus[0]) if one.gpus else "",
    }
    return look.format(**names)


def bus_id(report: Report, hosts: tuple[str, ...], gpu: int) -> str:
    """Return a GPU's bus ID, which is independent of CUDA_VISIBLE_DEVICES; its number if unknown."""
    found = (one.bus_id for one in report.members if one.host in hosts[:1] and one.gpu == gpu and one.bus_id)
    return next(found, str(gpu))


def again(report: Report, rung: str) -> str:
    """Return the command that measures one rung again; the last of repeated options counts."""
    return f"{report.command or 'meshrun validate'} --rungs {shlex.quote(rung)}"
