"""A step of a distributed product: multiply what is here while what comes next is on its way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshrun.jobs.linalg.matmul.products import NumpyProducts, Products
from meshrun.runner.comm.api import Message, Pending
from meshrun.runner.world.world import World


def overlapped(
    world: World,
    products: Products,
    multiply: Callable[[], None],
    sends: Sequence[Message],
    receives: Sequence[Message],
) -> None:
    """Call `multiply` while messages are exchanged; later work may use what is received. Collective.

    On a GPU the parts of the product let the messages start. On a CPU the processor moves them between parts
    of the product.
    """

    def started(pending: Pending) -> None:
        if isinstance(products, NumpyProducts):
            products.between = pending.progress

    world.exchange_beside(multiply, sends, receives, started)
