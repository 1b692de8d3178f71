"""What a validation measures and how strict it is: rungs, sizes, samples, tolerances.

The defaults are for GPUs; `budget.quick` and `budget.fit` make smaller plans, `for_cpus` one for ranks
without GPUs. The rules that use the tolerances are in `jobs.measure.outliers`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

RungName = Literal["gpu", "host", "pairs", "node", "host pairs", "rails", "all"]
RUNGS: tuple[RungName, ...] = ("gpu", "host", "pairs", "node", "host pairs", "rails", "all")


@dataclass(frozen=True)
class Plan:
    """Sizes are large enough that bandwidth, not latency, decides; a rate is `nbytes / seconds`."""

    rungs: tuple[RungName, ...] = RUNGS
    by_name: bool = False  # --rungs names them: one that cannot be measured is unknown, not left out
    keep_going: bool = True  # continue after a broken rung
    expected_gpus: int | None = None  # of each host, by --expect-gpus
    quick: bool = False  # by --quick, without --budget or --soak
    small: bool = False  # by --quick, also with --budget or --soak
    ranks_per_core: float = 1.0  # of the host on which most ranks on CPUs share a core; at least 1
    # Of a climb without --budget; the last call is finished. What is not judged by then is unknown.
    seconds: float = 600.0
    even_shares: bool = False  # of this time, for all operations: none uses up that of later ones
    memory_bytes: int = 1 << 30
    product_bytes: int = 256 << 20
    tensor_bytes: int = 128 << 20  # of one operand; at most 9,500 rows, so that results are exact
    tensor_seconds: float = 0.0  # of a sustained load on tensor cores in each climb; 0: none
    copy_bytes: int = 256 << 20
    pair_bytes: int = 256 << 20
    nic_bytes: int = 64 << 20
    ring_bytes: int = 256 << 20
    transfer_seconds: float = 5e-3  # of a flow between hosts, at most: slower networks move fewer bytes
    samples: int = 5  # of each first measurement; the median counts
    samples_per_nic: int = 400  # at least: with few hosts there are few rounds, so each takes more samples
    # Seconds over which the first measurement between hosts is spread at least: longer than a NIC stays fast
    # that is slow for 5 s in 20 s.
    first_span: float = 24.0
    retest_samples: int = 30  # of each retest
    # Seconds over which these are spread, unless the suspects are clear before: the load of others passes, a
    # fault stays. Of loads with a mean of 4 s, one in 2,000 lasts for four of five looks.
    retest_span: float = 40.0
    load_looks: int = 8  # at a suspect between hosts that others may load for longer than this span
    quick_looks: int = 2  # at once, before these; what they clear (`outliers.clear_threshold`) takes no time
    max_repeats: int = 8  # times as many samples if measurements are noisy, at most
    full_mesh_hosts: int = 64  # up to this many hosts, each pair is measured on each rail
    all_pairs_hosts: int = 512  # up to this many, each pair on one rail; above, random partners
    max_subrounds: int = 8  # into which a round between hosts is split if uplinks limit its flows, at most
    tolerance: float = 0.07  # log(time / siblings' time) below which nothing is a suspect
    slow_share: float = 0.75  # share of a part's measurements that must be slow for the part to be slow
    critical: float = 0.9  # a part below this share of its siblings' rate breaks its rung
    blind: float = 0.85  # unknown if noise hides every part above this share of its siblings' rate
    suspects_per_host: int = 64  # retested in one turn (at least 64 hosts are counted)
    max_retests: int = 6  # turns of retests
    seed: int = 0  # of the choice of partners


# Share of its siblings' rate above which a CPU is not at fault: ranks share cores, caches and memory with
# each other and with other processes.
CPU_SHARE = 0.75
CPU_BLIND = 0.5  # share of the siblings' rate: processors are too noisy for more
CPU_SPAN = 20.0  # seconds; long enough that temporary load on a core does not look like a fault
CPU_LOOKS = 5  # over this span: processes of others on a core come and go faster than jobs on a network
CPU_SAMPLES = 4  # divisor of the samples: a sample on CPUs takes long
CPU_REPEATS = 2  # divisor of the repeats, for the same reason
# Seconds from the start of rank 0 to the end of the measurements with --quick. With what comes before and
# after these, the command ends within 30 s, also if there are more ranks than cores.
QUICK_CPU_SECONDS = 22.0
# Larger than most caches; each operation takes a few milliseconds.
CPU_BYTES = {
    "memory_bytes": 32 << 20, "product_bytes": 4 << 20, "copy_bytes": 32 << 20,
    "pair_bytes": 4 << 20, "nic_bytes": 1 << 20, "ring_bytes": 4 << 20,
}  # fmt: skip
# With --quick. Most of the time of a call is that of generating and checking its data.
QUICK_CPU_BYTES = {name: nbytes // 4 for name, nbytes in CPU_BYTES.items()}


QUICK_ON_CPUS = (
    "--quick on CPUs ends within about 30 s and does not measure suspects again, so it cannot confirm a slow "
    "part; --quick --budget 2m can"
)


def for_cpus(plan: Plan, ranks_per_core: float = 1.0) -> Plan:
    """Return the plan for ranks on CPUs: smaller sizes, fewer samples over a longer time, more tolerance.

    With --quick there is no time to measure suspects again over `CPU_SPAN`; they leave the verdict unknown. A
    rank that waits for its core during all of the few samples is as many times slower as ranks share the
    core, so --quick suspects only parts that are slower still.
    """
    share, blind = CPU_SHARE, CPU_BLIND
    if plan.small or plan.quick:
        plan = at_most(plan, QUICK_CPU_BYTES)
    if plan.quick:
        share, blind = share / ranks_per_core, blind / ranks_per_core
        plan = replace(
            plan,
            seconds=QUICK_CPU_SECONDS,
            even_shares=True,
            max_retests=0,
            ranks_per_core=ranks_per_core,
        )
    return replace(
        at_most(plan, CPU_BYTES),
        tolerance=-math.log(share),
        critical=share,
        blind=blind,
        samples_per_nic=max(plan.samples_per_nic // CPU_SAMPLES, plan.samples),
        max_repeats=max(plan.max_repeats // CPU_REPEATS, 1),
        transfer_seconds=math.inf,  # a sample on CPUs lasts longer than a transfer
        first_span=0.0,
        retest_span=CPU_SPAN,
        load_looks=CPU_LOOKS,
        tensor_seconds=0.0,
        quick_looks=0,  # ranks that share cores are fast or slow for a whole look
    )


def for_hosts(plan: Plan, hosts: int) -> Plan:
    """Return the plan for this many hosts: in long rings, more bytes let bandwidth decide, not latency."""
    return replace(plan, ring_bytes=4 * plan.ring_bytes) if hosts > plan.all_pairs_hosts else plan


def at_most(plan: Plan, nbytes: dict[str, int]) -> Plan:
    """Return the plan with sizes limited to `nbytes`, by field name."""
    sizes: dict[str, Any] = {name: min(getattr(plan, name), most) for name, most in nbytes.items()}
    return replace(plan, **sizes)
