"""The ring: rows of A stay on their rank, pieces of B go round; the next piece arrives while one is
multiplied.

Every element of the product is one sum over the whole length, in one call of the library.
"""

from __future__ import annotations

from functools import partial

from meshrun.jobs.linalg.matmul.files import Factor, Product
from meshrun.jobs.linalg.matmul.plan import (
    MatmulLayout,
    MatmulProblem,
    cut,
    longest,
    ring_buffers,
    ring_results,
)
from meshrun.jobs.linalg.matmul.products import Products
from meshrun.jobs.linalg.matmul.steps import overlapped
from meshrun.runner.region import Array
from meshrun.runner.world.world import World


def multiply_ring(
    world: World,
    layout: MatmulLayout,
    problem: MatmulProblem,
    products: Products,
    left: Factor,
    right: Factor,
    out: Product,
) -> None:
    """Multiply the factors and write the product. Collective.

    In round i, rank r begins with piece i * size + r of B's columns, multiplies it, and passes it to rank r -
    1.
    """
    backend, size, rank = world.backend, world.size, world.rank
    stored, sums, length = products.precision.stored, products.precision.sums, problem.length
    pieces = [
        cut(problem.columns, size * layout.pieces, n, layout.unit[1]) for n in range(size * layout.pieces)
    ]
    wide = longest(problem.columns, len(pieces), layout.unit[1])
    begin, end = cut(problem.rows, size, rank, layout.unit[0])
    turns = [cut(end - begin, layout.turns, n, layout.unit[0]) for n in range(layout.turns)]
    high = longest(end - begin, layout.turns, layout.unit[0])
    of_a = backend.empty((high * length,), stored)
    uses = size, layout.turns, layout.pieces
    buffers = {name: backend.empty((length * wide,), stored) for name in ring_buffers(*uses)}
    results = [backend.empty((high * wide,), sums) for _ in range(ring_results(problem, *uses))]

    def exchange_names(name: str) -> None:
        buffers["multiplied"], buffers[name] = buffers[name], buffers["multiplied"]

    def shaped(buffer: Array, rows: int, columns: int) -> Array:
        return buffer[: rows * columns].reshape(rows, columns)

    def piece_in(buffer: Array, number: int) -> Array:
        return shaped(buffer, length, pieces[number][1] - pieces[number][0])

    def read(number: int, buffer: Array) -> None:
        right.read((0, length), pieces[number], piece_in(buffer, number))

    for turn, (first, last) in enumerate(turns):
        rows = (begin + first, begin + last)
        a = shaped(of_a, last - first, length)
        left.read(rows, (0, length), a)
        if turn == 0:
            read(rank, buffers["multiplied"])
        for round_ in range(layout.pieces):
            for step in range(size):
                number = round_ * size + (rank + step) % size
                columns = pieces[number]
                here = piece_in(buffers["multiplied"], number)
                c = shaped(results[0], last - first, columns[1] - columns[0])
                mark = backend.mark()
                sends, receives = [], []
                if step + 1 < size:
                    following = round_ * size + (rank + step + 1) % size
                    sends = [((rank - 1) % size, here)]
                    receives = [((rank + 1) % size, piece_in(buffers["arriving"], following))]
                overlapped(world, products, partial(products.multiply, a, here, c), sends, receives)
                out.flush(mark)
                out.put(rows, columns, c)
                results.reverse()
                if step + 1 < size:
                    exchange_names("arriving")
            after = (round_ + 1) * size + rank if round_ + 1 < layout.pieces else rank
            if (turn, round_) != (len(turns) - 1, layout.pieces - 1):
                with backend.beside(mark):
                    read(after, buffers["read"])
                exchange_names("read")
    out.flush(backend.mark())
