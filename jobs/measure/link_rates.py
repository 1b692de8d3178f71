"""The rate on the tightest link, from algbw and busbw: pure arithmetic.

busbw is what a ring would put on the wire. Other algorithms put less there (NVLS, where the switch adds up;
CollNet, where the network does; a tree, which crosses hosts with sums), so their busbw can exceed the link's
rate, and depends on the number of ranks where the rate on the wire does not. What is computed here rests on
an assumption about the algorithm, which every result states.

Symbols: n ranks on k hosts, g = n/k on each, one GPU and one NIC a rank, neighbours in rank on the same host;
S the size in nccl-tests' sense, a = S/t algbw, b busbw. One direction of one link is counted. The tight
link of one host is its GPUs' own (NVLink); of several, the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Algorithm = Literal["ring", "nvls", "tree", "collnet", "pat", "direct"]
Link = Literal["NVLink", "PCIe", "network"]

NVLS_RANKS = 5  # NCCL takes NVLS over a ring from so many GPUs of a host on: with fewer it moves more
# NCCL_ALGO's words, without case.
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
    """Where the ranks are. inside: what joins the GPUs of one host."""

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

    assumption: a sentence on what the rate rests on, or why there is none.
    """

    rate: float | None
    link: Link | None
    algorithm: Algorithm
    assumption: str


def assumed_algorithm(
    operation: str, layout: RankLayout, environment: Mapping[str, str], nvls_possible: bool
) -> Assumed:
    """The algorithm that NCCL is assumed to use for large sizes; NCCL does not report it.

    environment: with NCCL's variables. nvls_possible: whether an NVSwitch of the third generation or
    later joins the GPUs, and the library uses it.
    """
    offered = OFFERED.get(operation)
    if offered is None:
        return Assumed("direct", "made of sends and receives between pairs")
    setting = environment.get("NCCL_ALGO", "")
    allowed = [algorithm for algorithm in _named(operation, setting) if algorithm in offered]
    if len(allowed) == 1:
        return Assumed(allowed[0], f"NCCL_ALGO={setting}")
    without = "" if not allowed or "ring" in allowed else f"NCCL_ALGO={setting} leaves out the ring"
    if without:
        return Assumed(allowed[0], without)
    if operation != "all_reduce":
        return Assumed("ring", "what NCCL takes for large sizes")
    if layout.hosts > 1:
        return Assumed(
            "ring",
            "not known over several hosts; a tree would put less on the network (NCCL_ALGO=Ring decides)",
        )
    return _of_one_host(layout.ranks, environment, nvls_possible and (not allowed or "nvls" in allowed))


def _of_one_host(ranks: int, environment: Mapping[str, str], nvls_possible: bool) -> Assumed:
    if environment.get("NCCL_NVLS_ENABLE") == "0":
        return Assumed("ring", "NCCL_NVLS_ENABLE=0")
    if not nvls_possible:
        return Assumed("ring", "NVLS is not possible here")
    if ranks < NVLS_RANKS:
        return Assumed("ring", f"NCCL takes NVLS from {NVLS_RANKS} GPUs on")
    return Assumed("nvls", f"NCCL takes it from {NVLS_RANKS} GPUs of a host with NVSwitch on")


def _named(operation: str, setting: str) -> list[Algorithm]:
    """The algorithms that NCCL_ALGO allows: "Ring,Tree", "^Tree" or "allreduce:tree;broadcast:ring"; [] if
    unset.

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
    # Each GPU asks the switch for the sum of its S/n of the data, and multicasts it. For that it gives out S,
    # its part of every sum, and S/n; it takes in S/n and S.
    ("all_reduce", "nvls"): lambda a, b, n, k, g: a * (n + 1) / n,
    ("all_gather", "nvls"): lambda a, b, n, k, g: a,  # the half of it that multicasts: S comes in
    ("reduce_scatter", "nvls"): lambda a, b, n, k, g: a,  # the half of it that adds up: S goes out
    # To or from each of the others: (n-1)/n S. The root's link is the tight one of gather and scatter.
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
    # Each host sends its sum once into the network, which adds up, and gets the result once.
    ("all_reduce", "collnet"): lambda a, b, n, k, g: a / g,
    ("alltoall", "direct"): _to_other_hosts,
    ("gather", "direct"): _to_other_hosts,
    ("scatter", "direct"): _to_other_hosts,
    # Of a host's ranks only the last sends to the next host: all of it through its one NIC.
    ("sendrecv", "direct"): lambda a, b, n, k, g: a,
    # The exchanges of g and more blocks go between hosts: n-g of n-1 blocks. They follow on the ones inside,
    # so the NIC is idle for a part of the time.
    ("hypercube", "direct"): _to_other_hosts,
}


def wire_rate(operation: str, layout: RankLayout, assumed: Assumed, algbw: float, busbw: float) -> WireRate:
    """The rate on the tightest link, from algbw and busbw in GB/s."""
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
        return "what alltoallv sends over a link depends on its matrix"
    if algorithm == "tree" and not known:
        return "a tree is a chain inside a host, and how its ends are spread over the GPUs is not known"
    if not known:
        return f"no formula for {operation} by {algorithm} on {layout.hosts} host(s)"
    return ""


def _sentence(operation: str, layout: RankLayout, assumed: Assumed) -> str:
    spread = ""
    if layout.hosts > 1:
        spread = f", ranks in blocks of {layout.per_host} a host, one NIC a rank"
    return f"{operation}: {assumed.algorithm} assumed ({assumed.reason}){spread}"


def percent(rate: float | None, nominal: float | None) -> float | None:
    """A rate in percent of the nominal one (both GB/s in one direction); None if either is unknown."""
    return None if rate is None or not nominal else 100 * rate / nominal
