"""What a validation concludes: findings, the rungs they stand on, and what could not be judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from jobs.validate.plan import RungName

Status = Literal["ok", "warning", "critical", "unknown"]
Kind = Literal[
    "gpu",  # memory or arithmetic of one GPU
    "pcie",  # the way between a GPU and its host
    "nvlink",  # of one GPU to all others of its host
    "nvlink send",
    "nvlink receive",
    "pair",  # the way between two GPUs of a host
    "nic",
    "send",  # one direction of a NIC
    "receive",
    "flap",  # a NIC that is slow for some of the time
    "host",
    "link",  # between two hosts, on all rails
    "path",  # between two hosts, on one rail
    "rail",
    "ring",  # slow only when all of its GPUs work together
]


@dataclass(frozen=True)
class Evidence:
    """The figures behind a finding. rate, siblings: bytes per second (product: operand bytes), medians."""

    what: str  # operation or operations
    rate: float
    siblings: float
    measurements: int
    partners: tuple[str, ...]  # whom it was measured again with
    slow_share: float  # of what was measured again


@dataclass(frozen=True)
class Finding:
    """A part that is slower than its siblings, confirmed by measuring again.

    factor: its rate over its siblings'. ranks: that it consists of. rail: where it is one, or lies on one.
    time: share of the time, of what flaps. instead: parts that the measurements cannot tell it from.

    confidence: share of the repeated measurements that were slow x probability that the median of a part as
    good as its siblings stays below the threshold (normal, standard error 1.2533 s / sqrt(n)), shared among
    `instead`.
    """

    kind: Kind
    hosts: tuple[str, ...]
    gpus: tuple[int, ...]
    factor: float
    confidence: float
    rung: RungName
    evidence: Evidence
    ranks: tuple[int, ...] = ()
    time: float | None = None
    instead: tuple[str, ...] = ()

    @property
    def part(self) -> str:
        """Host, GPU and part, as a person would look for them."""
        return part(self.kind, self.hosts, self.gpus)

    @property
    def sentence(self) -> str:
        e = self.evidence
        scale, unit = (1e9, "GB/s") if e.siblings < 1e12 else (1e12, "TB/s")
        details = [f"{e.rate / scale:.3g} of {e.siblings / scale:.3g} {unit}", e.what]
        if e.partners:
            details.append(f"{len(e.partners)} partner{'s'[: len(e.partners) > 1]}")
        when = f" for {self.time:.0%} of the time".replace("%", " %") if self.time is not None else ""
        text = f"{self.part} at {100 * self.factor:.0f} % of its siblings{when} ({', '.join(details)})"
        if self.instead:
            text += f"; cannot be told from {' or '.join(self.instead)}"
        return text


def part(kind: str, hosts: tuple[str, ...], gpus: tuple[int, ...]) -> str:
    host = f"host {hosts[0]}" if hosts else ""
    match kind:
        case "gpu":
            return f"{host}, GPU {gpus[0]}:"
        case "host":
            return f"{host}:"
        case "pcie":
            return f"{host}, GPU {gpus[0]}: its PCIe"
        case "nvlink":
            return f"{host}, GPU {gpus[0]}: its NVLink"
        case "nvlink send" | "nvlink receive":
            return f"{host}, GPU {gpus[0]}: its NVLink when it {kind.split()[1]}s"
        case "pair":
            return f"{host}: NVLink between GPUs {gpus[0]} and {gpus[1]}"
        case "nic" | "flap":
            return f"{host}, GPU {gpus[0]}: its NIC"
        case "send" | "receive":
            return f"{host}, GPU {gpus[0]}: its NIC when it {kind}s"
        case "link":
            return f"link between hosts {hosts[0]} and {hosts[1]}:"
        case "path":
            return f"link between hosts {hosts[0]} and {hosts[1]}, rail {gpus[0]}:"
        case "rail":
            return f"rail {gpus[0]}:"
        case _:
            return f"{host}: all its GPUs together"


@dataclass(frozen=True)
class Rung:
    """result: of the measurements. why: not measured. rounds, messages: sent, repeats included."""

    name: RungName
    result: Literal["ok", "broken", "not measured"]
    why: str = ""
    rounds: int = 0
    messages: int = 0
    rates: dict[str, float] = field(default_factory=dict)  # medians of the siblings, bytes per second
    seconds: float = 0.0  # of analysis


@dataclass(frozen=True)
class Verdict:
    status: Status
    findings: tuple[Finding, ...]
    rungs: tuple[Rung, ...]
    not_judged: tuple[str, ...]

    @property
    def line(self) -> str:
        """The verdict in one line."""
        if self.findings:
            more = f" (and {len(self.findings) - 1} more)" if len(self.findings) > 1 else ""
            return f"{self.status}: {self.findings[0].sentence}{more}"
        return (
            f"{self.status}: {self.not_judged[0]}"
            if self.status == "unknown" and self.not_judged
            else self.status
        )
