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
    keep_going: bool = False  # measure on after a broken rung
    memory_bytes: int = 1 << 30
    product_bytes: int = 256 << 20
    copy_bytes: int = 256 << 20
    pair_bytes: int = 256 << 20
    nic_bytes: int = 64 << 20
    ring_bytes: int = 256 << 20
    samples: int = 5  # of each thing in its first measurement; the median counts
    samples_per_nic: int = 400  # at least: with few hosts there are few rounds, so more samples of each
    retest_samples: int = 30  # of each thing that is measured again
    retest_span: float = 0.0  # seconds over which these are spread, at least
    max_repeats: int = 8  # times as many samples, at most, where there is noise
    full_mesh_hosts: int = 64  # up to this many hosts, every pair meets on every rail
    all_pairs_hosts: int = 512  # up to this many, every pair meets on one rail; above, partners are random
    tolerance: float = 0.07  # log of the time over the siblings' time: below it, nothing is a suspect
    slow_share: float = 0.75  # of a part's measurements must be slow before the part is
    critical: float = 0.9  # a part below this share of its siblings' rate breaks its rung
    suspects_per_host: int = 64  # measured again in one turn (64 hosts counted at least)
    max_retests: int = 6  # turns in which suspects are measured again
    seed: int = 0  # of the choice of partners


# Of its siblings' rate, what a CPU may have without being at fault: ranks share cores, caches and memory with
# each other and with whatever else runs.
CPU_SHARE = 0.75
CPU_SPAN = 20.0  # seconds: other work on a core comes and goes, and is no fault
CPU_SAMPLES = 4  # a sample takes long on CPUs, so a quarter of them has to be enough
CPU_REPEATS = 2  # for the same reason, half of the repeats that noise may cause
# Beyond most caches, and a few milliseconds long.
CPU_BYTES = {
    "memory_bytes": 32 << 20, "product_bytes": 4 << 20, "copy_bytes": 32 << 20,
    "pair_bytes": 4 << 20, "nic_bytes": 1 << 20, "ring_bytes": 4 << 20,
}  # fmt: skip


def for_cpus(plan: Plan) -> Plan:
    """The plan for ranks on CPUs: smaller sizes, fewer samples over a longer time, a larger tolerance."""
    return replace(
        at_most(plan, CPU_BYTES),
        tolerance=-math.log(CPU_SHARE),
        critical=CPU_SHARE,
        samples_per_nic=max(plan.samples_per_nic // CPU_SAMPLES, plan.samples),
        max_repeats=max(plan.max_repeats // CPU_REPEATS, 1),
        retest_span=CPU_SPAN,
    )


def at_most(plan: Plan, nbytes: dict[str, int]) -> Plan:
    """The plan with none of these sizes above its limit. nbytes: by the name of the field."""
    sizes: dict[str, Any] = {name: min(getattr(plan, name), most) for name, most in nbytes.items()}
    return replace(plan, **sizes)
