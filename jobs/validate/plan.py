"""What a validation measures and how strict it is: sizes, samples, tolerances. A time budget becomes one of
these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
    again: int = 30  # of each thing that is measured again
    span: float = 0.0  # seconds over which that is spread at least
    enough: int = (
        400  # samples of each NIC at least: with few hosts there are few rounds, so more samples of each
    )
    full: int = 64  # up to this many hosts every pair meets on every rail
    cover: int = 512  # up to this many every pair meets on one rail; above, partners are drawn at random
    effort: int = 8  # times as many samples, at the most, where there is noise
    tolerance: float = 0.07  # log of the time over the siblings': what is closer is no suspect
    share: float = 0.75  # of a part's measurements must be slow
    critical: float = 0.9  # a part below this share of its siblings' rate breaks its rung
    suspects: int = 64  # measured again at a time for each host, 64 hosts at least
    passes: int = 6  # of questions to suspects
    seed: int = 0  # of the choice of partners
