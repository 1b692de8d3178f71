"""Gathered slabs: rows of A and of the product stay on their rank; slabs of B's columns are gathered from all
ranks, each while the one before is multiplied.

Every element of the product is one sum over the whole length, in one call of the library, as on one rank.
Panels of the length (summa) move as many bytes; but each panel reads and writes all sums again, which takes a
GPU a tenth of the time of the products themselves.
"""

from __future__ import annotations

from meshrun.jobs.linalg.matmul.plan import slab_cuts
from meshrun.jobs.linalg.matmul.products import Products
from meshrun.runner.region import Array
from meshrun.runner.world.world import World


def multiply_gathered(
    world: World, products: Products, length: int, left: Array, right: Array, out: Array
) -> None:
    """Fill `out`, this rank's rows of the product, of the sums' dtype. Collective.

    left, right: this rank's rows of A and of B, of any dtype; those of B are stored slab by slab. length:
    rows of all of B, split by the project's rule.
    """
    backend, ranks = world.backend, range(world.size)
    rows = [world.part(length, rank) for rank in ranks]
    slabs = [slice(*cut) for cut in slab_cuts(out.shape[1])]
    widest = max(slab.stop - slab.start for slab in slabs)
    # One is multiplied while the next arrives.
    buffers = [backend.empty((length * widest,), products.precision.stored) for _ in slabs[:2]]

    def gathered(number: int) -> Array:
        """Return the buffer of a slab, C-contiguous."""
        columns = slabs[number].stop - slabs[number].start
        return buffers[number % 2][: length * columns].reshape(length, columns)

    def gather(number: int) -> None:
        slab = gathered(number)
        own = slab[rows[world.rank]]
        products.store(right[:, slabs[number]], own)
        others = [rank for rank in ranks if rank != world.rank]
        world.exchange([(rank, own) for rank in others], [(rank, slab[rows[rank]]) for rank in others])

    mark = backend.mark()
    a = products.stored(left)
    with backend.beside(mark):
        gather(0)
    for number, slab in enumerate(slabs):
        mark = backend.mark()
        products.multiply(a, gathered(number), out[:, slab])
        if number + 1 < len(slabs):
            with backend.beside(mark):
                gather(number + 1)
