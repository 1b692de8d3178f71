"""What to do next: one concrete line for each kind of thing found, and how to measure that rung again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from jobs.validate.report.model import Report
from jobs.validate.report.wording import member, on_cpu, rank_name
from jobs.validate.verdict import Finding

# {host}, {other}: hosts; {gpu}, {peer}: GPUs as nvidia-smi takes them; {rail}: a number.
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
    "host": "take {host} out of the queue; meshrun doctor there and on a good host, and compare (power cap, "
    "clocks, PCIe ACS, firmware, other load)",
    "link": "between {host} and {other}: routes and cables between their switches (ibtracert, ibdiagnet); "
    "both hosts are good with others",
    "path": "between {host} and {other} on rail {rail}: routes and cables between their switches on this "
    "rail (ibtracert, ibdiagnet)",
    "rail": "the switches of rail {rail}: port rates, errors and uplinks; every host is slow on this rail",
    "leaf": "the leaf switch of rail {rail} that {host} and {other} hang on: its uplinks (how many are up, "
    "their rate, errors); its hosts are good among each other",
    "ring": "on {host}: systemctl status nvidia-fabricmanager and nvidia-smi topo -m; each pair is good "
    "alone, so look at the NVSwitches, and at NCCL_DEBUG=INFO for the ring it took",
}
SAME = {"nvlink send": "nvlink", "nvlink receive": "nvlink", "send": "nic", "receive": "nic"}
XID = "dmesg -T | grep -i xid, nvidia-smi -q -d ECC, then dcgmi diag -r 3"
EDAC = "dmesg -T | grep -iE 'mce|edac' (errors of its memory?)"
NETWORK = "on {host}: ethtool (rate), ip -s link (errors, drops), tc qdisc (a limit?); then cable and port"
BUSY = "on {host}: top -H and taskset -pc PID (other processes on this rank's cores, or a clock held down?)"

OF_CPUS = dict.fromkeys(("gpu", "nvlink", "pair", "ring"), BUSY) | dict.fromkeys(("nic", "flap"), NETWORK)


@dataclass(frozen=True)
class Step:
    """about: what it is for. advice: what to look at. command: that measures this again; "": none."""

    about: str
    advice: str
    command: str = ""


def steps(report: Report) -> list[Step]:
    """One for each kind of thing found, the first of its kind as the example."""
    return [*after_the_end(report), *after_wrong_data(report), *after_findings(report), *after_others(report)]


def after_the_end(report: Report) -> Iterator[Step]:
    if report.ended:
        look = "what that rank printed last, and on its host: dmesg -T | grep -iE 'xid|oom|out of memory'"
        yield Step("the run ended early", look, report.command)


def after_wrong_data(report: Report) -> Iterator[Step]:
    if report.wrong:
        first = report.wrong[0]
        names = [rank_name(report, rank) for rank in {first.rank: 0, first.source: 0} if rank is not None]
        look = (
            "use no results of it; dmesg -T | grep -i xid, nvidia-smi -q -d ECC, then dcgmi diag -r 3 there"
        )
        yield Step(f"wrong data, {' and '.join(names)}", look)


def after_findings(report: Report) -> Iterator[Step]:
    seen: set[str] = set()
    for one in report.verdict.findings:
        kind = SAME.get(one.kind, one.kind)
        if kind not in seen:
            seen.add(kind)
            yield Step(one.part.rstrip(":"), advice(report, one), again(report, one.rung))


def after_others(report: Report) -> Iterator[Step]:
    faults = [one for one in report.changes if one.weight == "fault"]
    if faults:
        one = faults[0]
        look = f"{one.meaning}; see whether it still counts up when nothing runs"
        yield Step(f"{one.counter} on host {one.host}, {one.part}", look)
    if any(one.score < 0 for one in report.drifts):
        look = "; ".join(report.changed) if report.changed else "nothing of the environment changed"
        yield Step(
            "slower than earlier runs", f"{look}; when this is meant, --save-baseline {report.baseline}"
        )
    if report.verdict.status == "unknown" and not report.ended:
        yield Step(
            "what could not be judged", "a missing value is no good value: measure again", report.command
        )


def advice(report: Report, one: Finding) -> str:
    kind = SAME.get(one.kind, one.kind)
    found = [member(report, rank) for rank in one.ranks]
    on_cpus = any(known is not None and on_cpu(known) for known in found)
    kind_text = {**ADVICE, **OF_CPUS}[kind] if on_cpus else ADVICE[kind]
    gpus = [bus_id(report, one.hosts, gpu) if kind not in ("nic", "flap") else str(gpu) for gpu in one.gpus]
    names = {
        "host": one.hosts[0] if one.hosts else "",
        "other": one.hosts[-1] if one.hosts else "",
        "gpu": gpus[0] if gpus else "",
        "peer": gpus[-1] if gpus else "",
        "rail": str(one.gpus[0]) if one.gpus else "",
    }
    return kind_text.format(**names)


def bus_id(report: Report, hosts: tuple[str, ...], gpu: int) -> str:
    """What nvidia-smi calls a GPU whatever CUDA_VISIBLE_DEVICES says; its number where that is not known."""
    found = (one.bus_id for one in report.members if one.host in hosts[:1] and one.gpu == gpu and one.bus_id)
    return next(found, str(gpu))


def again(report: Report, rung: str) -> str:
    """The command that repeats one rung only: of options given twice, the last counts."""
    return f"{report.command or 'meshrun validate'} --rungs {shlex.quote(rung)}"
