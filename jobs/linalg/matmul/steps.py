"""A step of a distributed product: multiply what is here while what comes next is on its way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobs.linalg.matmul.products import NumpyProducts, Products
from runner.comm.api import Message
from runner.world.world import World


def overlapped(
    world: World,
    products: Products,
    multiply: Callable[[], None],
    sends: Sequence[Message],
    receives: Sequence[Message],
) -> None:
    """Call `multiply` while messages are exchanged; later work may use what is received. Collective.

    On a GPU the messages are issued to a second stream, after the product, whose parts let them start. On a
    CPU the processor moves them between parts of the product. Empty messages are left out, by both sides.
    """
    sends, receives = ([(peer, array) for peer, array in some if array.size] for some in (sends, receives))
    backend = world.backend
    if backend.asynchronous:
        mark = backend.mark()
        multiply()
        with backend.beside(mark):
            world.arrays.exchange(sends, receives).wait()
        return
    pending = world.arrays.exchange(sends, receives)
    if isinstance(products, NumpyProducts):
        products.between = pending.progress
    multiply()
    pending.wait()
