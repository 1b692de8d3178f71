"""Redistribution of arrays between the ranks: at once, or in parts beside work on other parts.

A `RedistributionPlan` between two partitions of one shape says what moves. It is made once, and carried out
as often as arrays of that shape change between them.
"""

from __future__ import annotations

from collections.abc import Callable

from meshrun.runner.arrays.halo.exchange import HaloBlock
from meshrun.runner.plan.halo import Slices
from meshrun.runner.plan.redistribution import RedistributionPlan
from meshrun.runner.region import Array
from meshrun.runner.world.group import Group, move


def redistribute(plan: RedistributionPlan, source: HaloBlock, target: HaloBlock) -> None:
    """Fill the interior of `target` from `source`. Collective.

    They are split as `plan.after` and as `plan.before`, and have one dtype. The halo is stale afterwards.
    """
    move(source.world, plan, source.interior, target.interior)
    target.written()


def exchange_in_parts(
    group: Group,
    plan: RedistributionPlan,
    ready: Callable[[int], Array],
    land: Callable[[int], Array],
    finish: Callable[[int, Array], None],
) -> None:
    """Move the cells part by part, and work on one part while the messages of another travel. Collective.

    While part n is on its way, this rank copies what it keeps of it, part n + 1 is made ready and packed, and
    part n - 1 is finished: on a GPU, the messages' stream has nothing else to do.

    ready: returns a part's cells, to be sent (`plan.sent`). land: returns the array in which a part arrives
    (`plan.received`). finish: called with it when the part has arrived.
    """

    def packed(number: int) -> tuple[list[Array], list[Slices]]:
        """Return a part's messages, by receiver, and where others arrive; this rank's own is not packed."""
        source = ready(number)
        outgoing, incoming = plan.messages(group.rank, number)
        messages = [source[cells] for cells in outgoing]
        return [
            message if rank == group.rank else group.xp.ascontiguousarray(message)
            for rank, message in enumerate(messages)
        ], incoming

    others = [rank for rank in range(group.size) if rank != group.rank]
    made = {0: packed(0)}
    landed: dict[int, Array] = {}
    for number in range(plan.parts):
        target = landed[number] = land(number)
        messages, incoming = made.pop(number)
        own, kept = messages[group.rank], target[incoming[group.rank]]

        def work(number: int = number, own: Array = own, kept: Array = kept) -> None:
            kept[...] = own
            if number + 1 < plan.parts:
                made[number + 1] = packed(number + 1)
            if number:
                finish(number - 1, landed.pop(number - 1))

        group.exchange_beside(
            work,
            [(rank, messages[rank]) for rank in others],
            [(rank, target[incoming[rank]]) for rank in others],
        )
    finish(plan.parts - 1, landed.pop(plan.parts - 1))
