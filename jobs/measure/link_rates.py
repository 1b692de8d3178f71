"""Compute the rate on the limiting link from algbw and busbw; pure arithmetic.

busbw is the rate that a ring would put on the wire. Other algorithms put less on it (NVLS reduces in the
switch, CollNet in the network, and a tree sends sums between hosts), so their busbw can exceed the link's
rate, and depends on the number of ranks where the rate on the wire does not. The computation assumes an
algorithm, which every result states.

Symbols: n ranks on k hosts, g = n/k on each, one GPU and one NIC per rank, consecutive ranks on the same
host; S the size as in nccl-tests, a = S/t algbw, b busbw. One direction of one link is counted. On one host
the limiting link is that of a GPU (NVLink); over several hosts it is the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Algorithm = Literal["ring", "nvls", "tree", "collnet", "pat", "direct"]
Link = Literal["NVLink", "PCIe", "network"]

NVLS_RANKS = 5  # GPUs of a host from which on NCCL prefers NVLS to a ring; with fewer, NVLS moves more
# NCCL_ALGO's values, in lower case.
WORDS: dict[str, Algorithm] = {
    "ring": "ring",
    "tree": "tree",
    "collnet": "collnet",
    "collnetdirect": "collnet",
    "collnetchain": "collnet",
    "nvls": "nvls",
    "nvlstree": "nvls",
    "pat": "pat",
}
# Which algorithms NCCL has for an operation; every other operation is made of sends and receives.
OFFERED: dict[str, tuple[Algorithm, ...]] = {
    "all_reduce": ("ring", "tree", "collnet", "nvls"),
    "all_gather": ("ring", "collnet", "nvls", "pat"),
    "reduce_scatter": ("ring", "collnet", "nvls", "pat"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
}


@dataclass(frozen=True)
class RankLayout:
    """Where the ranks are. inside: the link between the GPUs of one host."""

    ranks: int
    hosts: int = 1
    inside: Literal["NVLink", "PCIe"] = "NVLink"

    @property
    def per_host(self) -> int:
        return self.ranks // self.hosts


@dataclass(frozen=True)
class Assumed:
    """The algorithm that is assumed, and why."""

    algorithm: Algorithm
    reason: str


@dataclass(frozen=True)
class WireRate:
    """rate: GB/s (1e9 bytes) in one direction of one GPU's link, or of one NIC; None if unknown.

    assumption: a sentence that states what the rate assumes, or why there is none.
    """

    rate: float | None
    link: Link | None
    algorithm: Algorithm
    assumption: str


def assumed_algorithm(
    operation: str, layout: RankLayout, environment: Mapping[str, str], nvls_possible: bool
) -> Assumed:
    """Return the algorithm that NCCL is assumed to use for large sizes; NCCL does not report it.

    environment: contains NCCL's variables. nvls_possible: whether an NVSwitch of the third generation or
    later connects the GPUs, and the library uses it.
    """
    offered = OFFERED.get(operation)
    if offered is None:
        return Assumed("direct", "made of sends and receives between pairs")
    setting = environment.get("NCCL_ALGO", "")
    allowed = [algorithm for algorithm in _named(operation, setting) if algorithm in offered]
    if len(allowed) == 1:
        return Assumed(allowed[0], f"NCCL_ALGO={setting}")
    without = "" if not allowed or "ring" in allowed else f"NCCL_ALGO={setting} excludes the ring"
    if without:
        return Assumed(allowed[0], without)
    if operation != "all_reduce":
        return Assumed("ring", "NCCL's choice for large sizes")
    if layout.hosts > 1:
        return Assumed(
            "ring",
            "not known over several hosts; a tree would put less on the network (NCCL_ALGO=Ring selects it)",
        )
    return _of_one_host(layout.ranks, environment, nvls_possible and (not allowed or "nvls" in allowed))


def _of_one_host(ranks: int, environment: Mapping[str, str], nvls_possible: bool) -> Assumed:
    if environment.get("NCCL_NVLS_ENABLE") == "0":
        return Assumed("ring", "NCCL_NVLS_ENABLE=0")
    if not nvls_possible:
        return Assumed("ring", "NVLS is not possible here")
    if ranks < NVLS_RANKS:
        return Assumed("ring", f"NCCL uses NVLS from {NVLS_RANKS} GPUs on")
    return Assumed("nvls", f"NCCL uses it from {NVLS_RANKS} GPUs of a host with NVSwitch on")


def _named(operation: str, setting: str) -> list[Algorithm]:
    """Parse NCCL_ALGO, such as "Ring,Tree", "^Tree" or "allreduce:tree;broadcast:ring"; [] if unset.

    A clause that names a function applies to it, and takes precedence over one that names none.
    """
    clauses = dict(_clause(text) for text in setting.lower().split(";"))
    words = clauses.get(operation.replace("_", ""), clauses.get("", ""))
    listed = [WORDS[word] for word in words.lstrip("^").split(",") if word in WORDS]
    if words.startswith("^"):
        return [algorithm for algorithm in dict.fromkeys(WORDS.values()) if algorithm not in listed]
    return list(dict.fromkeys(listed))


def _clause(text: str) -> tuple[str, str]:
    function, colon, words = text.replace(" ", "").rpartition(":")
    return (function, words) if colon else ("", words)


Formula = Callable[[float, float, int, int, int], float]  # (a, b, n, k, g) -> GB/s

# One host: bytes of a GPU's busier direction.
INSIDE: dict[tuple[str, Algorithm], Formula] = {
    # By definition of busbw, a ring's GPU sends 2(n-1)/n S, or (n-1)/n S where it goes round once.
    ("all_reduce", "ring"): lambda a, b, n, k, g: b,
    ("all_gather", "ring"): lambda a, b, n, k, g: b,
    ("reduce_scatter", "ring"): lambda a, b, n, k, g: b,
    # A pipelined chain: each of its links carries S.
    ("broadcast", "ring"): lambda a, b, n, k, g: a,
    ("reduce", "ring"): lambda a, b, n, k, g: a,
    # Each GPU reads the sum of its S/n of the data from the switch, and multicasts it. It sends S, its part
    # of every sum, and S/n; it receives S/n and S.
    ("all_reduce", "nvls"): lambda a, b, n, k, g: a * (n + 1) / n,
    ("all_gather", "nvls"): lambda a, b, n, k, g: a,  # the multicasting half: S is received
    ("reduce_scatter", "nvls"): lambda a, b, n, k, g: a,  # the reducing half: S is sent
    # To or from each of the others: (n-1)/n S. The root's link limits gather and scatter.
    ("alltoall", "direct"): lambda a, b, n, k, g: b,
    ("gather", "direct"): lambda a, b, n, k, g: b,
    ("scatter", "direct"): lambda a, b, n, k, g: b,
    ("sendrecv", "direct"): lambda a, b, n, k, g: a,
    # Exchanges of 1, 2, 4, ... blocks of S/(n-1): S in all.
    ("hypercube", "direct"): lambda a, b, n, k, g: a,
}


def _between(a: float, b: float, n: int, k: int, g: int) -> float:
    """Only what other hosts lack crosses the network, spread over a host's g NICs.

    all_reduce: reduced inside each host, then 2(k-1)/k S/g by each NIC; all_gather and reduce_scatter:
    (k-1)/k S/g. With busbw's factor of n, both are this.
    """
    return b * (k - 1) / (n - 1)


def _to_other_hosts(a: float, b: float, n: int, k: int, g: int) -> float:
    """Of the n-1 blocks that a rank sends or receives, n-g are other hosts'."""
    return b * (n - g) / (n - 1)


# Several hosts: bytes of a NIC's busier direction.
OUTSIDE: dict[tuple[str, Algorithm], Formula] = {
    # g rings (or chains) run side by side, each through another NIC, and each enters a host once.
    ("all_reduce", "ring"): lambda a, b, n, k, g: b / g,
    ("all_gather", "ring"): lambda a, b, n, k, g: b / g,
    ("reduce_scatter", "ring"): lambda a, b, n, k, g: b / g,
    ("broadcast", "ring"): lambda a, b, n, k, g: a / g,
    ("reduce", "ring"): lambda a, b, n, k, g: a / g,
    ("all_reduce", "tree"): _between,
    ("all_reduce", "nvls"): _between,
    ("all_gather", "nvls"): _between,
    ("reduce_scatter", "nvls"): _between,
    # Each host sends its sum once into the network, which reduces, and gets the result once.
    ("all_reduce", "collnet"): lambda a, b, n, k, g: a / g,
    ("alltoall", "direct"): _to_other_hosts,
    ("gather", "direct"): _to_other_hosts,
    ("scatter", "direct"): _to_other_hosts,
    # Of a host's ranks only the last sends to the next host: all of it through its one NIC.
    ("sendrecv", "direct"): lambda a, b, n, k, g: a,
    # The exchanges of g and more blocks go between hosts: n-g of n-1 blocks. They follow the exchanges
    # inside a host, so the NIC is idle part of the time.
    ("hypercube", "direct"): _to_other_hosts,
}


def wire_rate(operation: str, layout: RankLayout, assumed: Assumed, algbw: float, busbw: float) -> WireRate:
    """Compute the rate on the limiting link from algbw and busbw, GB/s."""
    link: Link = layout.inside if layout.hosts == 1 else "network"
    several = layout.hosts > 1
    known = (OUTSIDE if several else INSIDE).get((operation, assumed.algorithm))
    problem = _problem(operation, layout, assumed.algorithm, known is not None)
    if problem or known is None:
        return WireRate(None, None, assumed.algorithm, f"no wire rate: {problem}")
    n, k, g = layout.ranks, layout.hosts, layout.per_host
    rate = known(algbw, busbw, n, k, g)
    return WireRate(rate, link, assumed.algorithm, _sentence(operation, layout, assumed))


def _problem(operation: str, layout: RankLayout, algorithm: Algorithm, known: bool) -> str:
    if layout.ranks < 2:
        return "nothing crosses a link with one rank"
    if layout.ranks % layout.hosts:
        return f"{layout.ranks} ranks are not spread evenly over {layout.hosts} hosts"
    if algorithm == "nvls" and layout.hosts == 1 and layout.inside == "PCIe":
        return "NVLS needs NVLink"
    if operation == "alltoallv":
        return "the bytes that alltoallv sends over a link depend on its matrix"
    if algorithm == "tree" and not known:
        return "a tree is a chain inside a host, and how its ends are spread over the GPUs is not known"
    if not known:
        hosts = "1 host" if layout.hosts == 1 else f"{layout.hosts} hosts"
        return f"no formula for {operation} by {algorithm} on {hosts}"
    return ""


def _sentence(operation: str, layout: RankLayout, assumed: Assumed) -> str:
    spread = ""
    if layout.hosts > 1:
        spread = f", ranks in blocks of {layout.per_host} per host, one NIC per rank"
    return f"{operation}: {assumed.algorithm} assumed ({assumed.reason}){spread}"


def percent(rate: float | None, nominal: float | None) -> float | None:
    """Return a rate as a percentage of the nominal one (both one direction); None if unknown."""
    return None if rate is None or not nominal else 100 * rate / nominal
