"""How large buffers may be: what the cases need, and what of it memory holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import runner
from jobs.bench.copy.cases import Case
from jobs.bench.copy.engines import UNIT
from jobs.bench.copy.patterns import Place

SHARE = {"gpu": 0.9, "host": 0.5}  # of what is free, at most


def needs(cases: Sequence[Case], gpus: int) -> dict[Place, int]:
    """How many buffers of factor 1 each place holds at most; memory is kept from case to case."""
    most: Counter[tuple[Place, int]] = Counter()
    for case in cases:
        for _, _, flows in case.cells(gpus) if case.engine != "chase" else ():
            held = Counter((place, flow.factor) for flow in flows for place in (flow.source, flow.target))
            most |= held
    total: Counter[Place] = Counter()
    for (place, factor), count in most.items():
        total[place] += factor * count
    return dict(total)


def within(size: int, asked: Sequence[tuple[int, float]]) -> int:
    """`size`, halved until it fits. asked: (buffers, bytes that they may take together) of each memory.

    Raises UserError where not even a unit fits.
    """
    fits = size
    while any(count * fits > limit for count, limit in asked):
        fits = fits // 2 // UNIT * UNIT
        if not fits:
            raise runner.UserError("there is no memory for buffers", got=f"{size:,} bytes", everywhere=True)
    return fits
