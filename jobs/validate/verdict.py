"""The verdict of a validation: findings, the rungs they come from, alarms, and what could not be judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from meshrun.jobs.validate.plan import RungName
from meshrun.runner.errors import Exit

Unit = Literal["GPU", "CPU"]  # what each rank computes on
Status = Literal["ok", "warning", "critical", "unknown"]
SEVERITY: tuple[Status, ...] = ("ok", "warning", "unknown", "critical")
EXIT: dict[Status, int] = {
    "ok": Exit.OK,
    "warning": Exit.VALIDATE_WARNING,
    "critical": Exit.VALIDATE_CRITICAL,
    "unknown": Exit.VALIDATE_UNKNOWN,
}
FindingKind = Literal[
    "gpu",  # memory or arithmetic of one GPU
    "pcie",  # the link between a GPU and its host
    "nvlink",  # of one GPU to all others of its host
    "nvlink send",
    "nvlink receive",
    "pair",  # the link between two GPUs of a host
    "nic",
    "send",  # one direction of a NIC
    "receive",
    "flap",  # a NIC that is slow in episodes
    "stall",  # a NIC that takes much longer for single operations
    "host",
    "link",  # between two hosts, on all rails
    "link one way",  # from the first host to the second
    "path",  # between two hosts, on one rail
    "rail",
    "leaf",  # the leaf switch of some hosts on one rail: its uplinks, or its ports
    "ring",  # slow only when all of its GPUs work together
]


RateUnit = Literal["B/s", "FLOP/s"]


def unit_of(what: str) -> RateUnit:
    """Return the unit of a measurement's rates: FLOP/s for a matrix product, otherwise B/s."""
    return "FLOP/s" if what in ("product", "tensor") else "B/s"


@dataclass(frozen=True)
class Evidence:
    """The figures behind a finding. what: operations. rate, siblings: medians of the slowest operation, in
    `unit`. partners: ranks it was retested with. slow_share: share of the retests that were slow.
    p99: of a part that is slow at times, 99th percentile of the seconds of its retested operations, and of
    its siblings'.
    """

    what: str
    rate: float
    siblings: float
    measurements: int
    partners: tuple[str, ...]
    slow_share: float
    unit: RateUnit = "B/s"
    p99: tuple[float, float] | None = None


@dataclass(frozen=True)
class Finding:
    """A part that is slower than its siblings, confirmed by measuring again.

    factor: its rate / its siblings' rate. ranks: those that it consists of. time: share of the time that a
    flapping part is slow. instead: parts that the measurements cannot distinguish from it. devices: what to
    look for on the host, such as "GPU 3 is 0000:5d:00.0", where known.
    """

    kind: FindingKind
    hosts: tuple[str, ...]
    gpus: tuple[int, ...]
    factor: float
    rung: RungName
    evidence: Evidence
    ranks: tuple[int, ...] = ()
    time: float | None = None
    instead: tuple[str, ...] = ()
    unit: Unit = "GPU"
    devices: tuple[str, ...] = ()

    @property
    def part(self) -> str:
        """Host, GPU and part as text; ends with a colon if it names only a host or GPU."""
        return describe_part(self.kind, self.hosts, self.gpus, self.unit)

    @property
    def sentence(self) -> str:
        e = self.evidence
        scale, prefix = (1e9, "G") if e.siblings < 1e12 else (1e12, "T")
        details = [f"{e.rate / scale:.3g} of {e.siblings / scale:.3g} {prefix}{e.unit}", e.what]
        if e.partners:
            details.append(f"{len(e.partners)} partner{'s'[: len(e.partners) > 1]}")
        if e.p99 is not None:
            own, usual = (f"{1e3 * seconds:.3g}" for seconds in e.p99)
            details.append(f"p99 {own} ms, siblings' {usual} ms")
        when = f" for {self.time:.0%} of the time".replace("%", " %") if self.time is not None else ""
        text = f"{self.part} at {100 * self.factor:.0f} % of its siblings{when} ({', '.join(details)})"
        if self.instead:
            text += f"; indistinguishable from {' or '.join(self.instead)}"
        return "; ".join((text, *self.devices))


PARTS = {
    "gpu": "host {host}, {unit} {gpu}:",
    "host": "host {host}:",
    "pcie": "host {host}, {unit} {gpu}: its PCIe",
    "nvlink": "host {host}, {unit} {gpu}: its {link}",
    "nvlink send": "host {host}, {unit} {gpu}: its {link} when it sends",
    "nvlink receive": "host {host}, {unit} {gpu}: its {link} when it receives",
    "pair": "host {host}: {between} between {unit}s {gpu} and {last_gpu}",
    "nic": "host {host}, {unit} {gpu}: its {port}",
    "flap": "host {host}, {unit} {gpu}: its {port}",
    "stall": "host {host}, {unit} {gpu}: its {port}",
    "send": "host {host}, {unit} {gpu}: its {port} when it sends",
    "receive": "host {host}, {unit} {gpu}: its {port} when it receives",
    "link": "link between hosts {host} and {last_host}:",
    "link one way": "link from host {host} to host {last_host}:",
    "path": "link between hosts {host} and {last_host}, rail {gpu}:",
    "rail": "rail {gpu}:",
    "rail of some": "rail {gpu}, {count} hosts ({host} to {last_host}):",
    "leaf": "rail {gpu}, {count} hosts ({host} to {last_host}): their leaf switch",
    "ring": "host {host}: all its {unit}s together",
}


WIRES = {
    "GPU": {"link": "NVLink", "between": "link", "port": "NIC"},  # a pair's link is NVLink or PCIe
    "CPU": {"link": "shared memory", "between": "shared memory", "port": "network"},
}


def describe_part(kind: str, hosts: Sequence[str], gpus: Sequence[int], unit: Unit = "GPU") -> str:
    """Describe a part by host, GPU and name. hosts: in fleet order."""
    words = PARTS["rail of some" if kind == "rail" and hosts else kind]
    if len(gpus) > 1 and words.endswith(("{port}", "{port} when it sends", "{port} when it receives")):
        words = words.replace("{unit} {gpu}: its", "{unit}s {gpus}: their")
    (host, last_host), (gpu, last_gpu) = ((some[0], some[-1]) if some else ("", "") for some in (hosts, gpus))
    places = {"host": host, "last_host": last_host, "gpu": gpu, "last_gpu": last_gpu, "count": len(hosts)}
    places["gpus"] = ", ".join(map(str, gpus))
    return words.format(unit=unit, **WIRES[unit], **places)


@dataclass(frozen=True)
class RungResult:
    """why: reason if not measured. rounds, messages: totals, including repeats. rates: siblings' medians.

    seconds: analysis time. measured: measuring time, in seconds.
    """

    name: RungName
    result: Literal["ok", "broken", "not measured"]
    why: str = ""
    rounds: int = 0
    messages: int = 0
    rates: dict[str, float] = field(default_factory=dict)  # in the `unit_of` each measurement
    seconds: float = 0.0
    measured: float = 0.0


def measured_nothing(rungs: Sequence[RungResult]) -> bool:
    """Return whether there are rungs, and none was measured."""
    return bool(rungs) and all(one.result == "not measured" for one in rungs)


@dataclass(frozen=True)
class Alarm:
    """A problem other than a slow part: wrong data, an error counter that increased, a rank that died."""

    status: Literal["critical", "warning"]
    sentence: str


HostPart = Literal["GPU", "NIC", "NVLink", "rank"]  # rank: one on CPUs


@dataclass(frozen=True)
class UnevenHost:
    """A host with another number of parts than most hosts of its kind, or than --expect-gpus says.

    count: parts of this host that take part in the run. usual: the number of the others, or the stated one.
    siblings: hosts that have the usual number; None if it was stated. An alarm names each of these hosts.
    """

    host: str
    part: HostPart
    count: int
    usual: int
    siblings: int | None


@dataclass(frozen=True)
class Verdict:
    """findings, alarms: worst first. not_judged: sentences."""

    status: Status
    findings: tuple[Finding, ...]
    rungs: tuple[RungResult, ...]
    not_judged: tuple[str, ...]
    alarms: tuple[Alarm, ...] = ()
    uneven_hosts: tuple[UnevenHost, ...] = ()

    @property
    def line(self) -> str:
        """The verdict in one line."""
        grave = [one.sentence for one in self.alarms if one.status == "critical"]
        light = [one.sentence for one in self.alarms if one.status != "critical"]
        reasons = [*grave, *(one.sentence for one in self.findings), *light]
        if not reasons and self.status == "unknown":
            reasons = list(self.not_judged[:1])
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        return f"{self.status}: {reasons[0]}{more}" if reasons else self.status
