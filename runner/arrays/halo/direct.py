"""Exchange halos by stores of the GPUs: each rank writes its cells into its neighbours' halos.

The ranks of one host open each other's blocks once (both blocks of each fed input), and a page of flags. An
exchange is then one kernel launch on each rank (kernels/halo.cu), without messages and without the host.
Every rank numbers its exchanges, n = 1, 2, ..., in its own device memory; neighbours take part in the same
ones. In exchange n, the kernel of rank r

    1. with `handshake`: raises flag ready[r] = n in the page of every neighbour, and waits for ready[p] >= n
       in its own page before it stores into the memory of neighbour p;
    2. stores its cells into the halos of its neighbours' target blocks, and of its own, one block of threads
       for each part of a face;
    3. after a fence, each of these adds its share to the count arrived[r] in the page of the part's
       neighbour: all shares of an exchange are E = 2^32 together;
    4. waits for arrived[p] >= n E of every neighbour p, in its own page.

Shares are added with release and loaded with acquire, at system scope; kernels of one stream follow each
other. Neighbours of r are all ranks from which r copies a cell or that copy one of r's. The relation is
symmetric: a block's owner waits for every rank that stores into the block, and the reverse. Flags and counts
only grow, and p adds nothing of exchange n + 1 before its exchange n has ended.

Read after write: rank r reads halo cells in kernels after its exchange n, which ended after arrived[p] = n E,
the last share of which p added after all its stores of exchange n. The halo is complete, and of this step:
p's stores follow p's step.

Write after read: p may store into the halo of r's block B in exchange n only if r no longer uses the former
halo of B, and will not use it until its own exchange n has ended.

- With `handshake`, r raises ready[r] = n in the kernel of its exchange n, which follows in its stream all its
  earlier work, and p's stores follow that. Between this flag and the end of its exchange n, r uses no halo
  cell of B.
- Without, with one step per exchange and no work beside the exchange: exchange n has the target block B, the
  exchanges n - 1 and n + 1 the other block A. After exchange n - 2, in which B was the target, r's step n - 1
  reads B and writes A; step n reads A and writes the own cells of B. So r last used the halo of B in step n -
  1, which precedes its exchange n - 1, and p has seen arrived[r] = (n - 1) E before its exchange n - 1 ended.
  For n = 1 there is nothing before but poison, which is written before a barrier of the hosts.

With several steps per exchange, the same block may be the target of exchanges n - 1 and n, and r computes
cells of its halo in between: hence the handshake. It is needed too where the interior is computed beside the
exchange, as arrived[r] then says nothing of the interior of the step, and where r reads what a step has read
after the exchange that follows it, for rows of series.

Kernels of several steps may exchange halos along axis 0 themselves (`sending`, runner/compiler/kernels/
sending_2d.cuh), if only that axis is split and each kernel exchanges: others would use halos into which a
neighbour stores. Near a side are the strips that compute one of the `Sending.rows` rows next to it: all that
read rows of the halo there or compute rows that the neighbour needs. In kernel n = 1, 2, ..., a strip of r
near its side to p

    1. waits, before it reads, for arrived[side] >= (n - 1) E in r's page: all strips of p near r have ended
       their kernel n - 1;
    2. computes, stores the rows that p needs into the halo of p's target block, and adds its share to p's
       count. All shares of a kernel are E together.

Read after write: the halo that kernel n reads was stored by p's kernel n - 1. Write after read: kernel n of r
stores into the halo of p's block B, which is read by kernels n + 1, n - 1, ... of p, and only by strips near
r. Those of n - 1 have added their shares after they read, and r has waited for these; those of n + 1 wait for
r's kernel n. Own rows of B are written by p alone. The wait is for the kernel before, which has ended on r
too, so that no strip waits for one that has no place on its processor.

A wait ends after `PATIENCE` seconds: the kernel notes the neighbour's rank in a word of host memory, all
later exchanges return at once, and `check` raises RunError. Waiting kernels of ranks that share a GPU keep it
from the others for their time slices only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from meshrun.runner.arrays.halo import boxes as halo_boxes
from meshrun.runner.arrays.halo.boxes import FieldHalos, HaloBox
from meshrun.runner.compiler.cuda.steps.layout import Neighbour, Sending
from meshrun.runner.errors import RunError
from meshrun.runner.plan.halo import wraps
from meshrun.runner.region import Array
from meshrun.runner.spelling import option
from meshrun.runner.world.world import World

if TYPE_CHECKING:
    from meshrun.runner.comm.peer_arrays import DeviceTables, PeerArrays

PATIENCE = 300.0  # seconds that a kernel waits for a neighbour, whose host may write a frame meanwhile


class DirectHalos:
    """Fill the halos of a rank's blocks by stores of the cells' owners, as described above.

    fields: of each fed input. pairs: its two blocks, made by `peers.empty`; poisoned. cells: the boundary's
    constant. handshake: needed with several steps per exchange, with work beside the exchange, or if halos
    are read again after it. patience: seconds, `PATIENCE` by default.
    """

    def __init__(
        self,
        world: World,
        fields: Sequence[FieldHalos],
        pairs: Sequence[tuple[Array, Array]],
        cells: Sequence[Array],
        tables: DeviceTables,
        peers: PeerArrays,
        *,
        handshake: bool,
        patience: float | None = None,
    ) -> None:
        """Open the neighbours' blocks. Collective. Raises Unreachable, on the ranks that cannot."""
        self._world, self._peers = world, peers
        backend, rank = world.backend, world.rank
        page = peers.empty((2 * world.size + 2,), np.dtype(np.uint64))
        page.fill(0)
        backend.synchronize()  # before another rank knows the page
        self.neighbours = halo_boxes.neighbours(fields, rank)
        # Of a block that is a view, the array that other ranks can open.
        flat = [block if block.base is None else block.base for pair in pairs for block in pair]
        reached = peers.open([*flat, page], self.neighbours)
        self._failure = backend.host_empty((1,), np.dtype(np.uint64))
        self._failure.fill(0)
        nanoseconds = int(1e9 * (patience or PATIENCE))
        # Kept: the device uses them by their addresses.
        state = tables.upload(np.zeros(3, np.uint64))
        arrived = {peer: reached[peer][-1] + 8 * (world.size + rank) for peer in self.neighbours}
        ranks = tables.upload(np.array(self.neighbours or [-1], np.int64))
        pages = tables.upload(np.array([reached[peer][-1] for peer in self.neighbours] or [0], np.uint64))
        link = (
            state, page, ranks, pages, np.int64(len(self.neighbours)), np.int64(rank), np.int64(world.size),
            np.int64(handshake), np.uint64(nanoseconds), np.uint64(self._failure.ctypes.data),
        )  # fmt: skip
        move, exchange = (
            tables.kernel(halo_boxes.KERNELS, name) for name in ("move_cells", "exchange_halos")
        )
        self._launches: dict[int, tuple[Callable[[], None], ...]] = {}
        self._sending: dict[int, Sending] = {}
        self._cells, self._state_of_kernels = cells, tables.upload(np.zeros(3, np.uint64))
        counts = {peer: reached[peer][-1] + 16 * world.size for peer in self.neighbours}
        by_kernel = Sending(
            tables.address(self._state_of_kernels), tables.address(page) + 16 * world.size,
            self._failure.ctypes.data, nanoseconds, max(max(one.widths[0]) for one in fields), None, None,
        )  # fmt: skip
        for parity in (0, 1):
            blocks = [tables.address(pair[parity]) for pair in pairs]
            theirs = {
                peer: [
                    reached[peer][2 * n + parity] + field.layout(peer).row(field.itemsize)[0] * field.itemsize
                    for n, field in enumerate(fields)
                ]
                for peer in self.neighbours
            }
            if only_rows_are_split(fields):
                before, after = (row_neighbour(fields, rank, side, theirs, counts) for side in (-1, 1))
                self._sending[blocks[0]] = replace(by_kernel, before=before, after=after)
            sent = sent_boxes(fields, rank, blocks, theirs)
            own = halo_boxes.own_boxes(fields, rank, blocks, [tables.address(cell) for cell in cells])
            self._launches[blocks[0]] = (
                halo_boxes.launch(tables, exchange, [*sent, *own], *link, arrived=arrived),
                halo_boxes.launch(tables, exchange, sent, *link, arrived=arrived),
                halo_boxes.launch(tables, move, own),
            )
        self._address = tables.address
        backend.synchronize()

    def fill(self, blocks: Sequence[Array]) -> None:
        """Fill the whole halos."""
        self._launches[self._address(blocks[0])][0]()

    def fill_from_others(self, blocks: Sequence[Array], *, beyond: bool = False) -> None:
        """Exchange halos; the cells that other ranks need must be computed, the other own cells need not.

        beyond: is of no importance, as each cell is sent from the own cell that it equals.
        """
        self._launches[self._address(blocks[0])][1]()

    def fill_own(self, blocks: Sequence[Array]) -> None:
        """Fill the halo cells that need no other rank."""
        self._launches[self._address(blocks[0])][2]()

    def sending(self, blocks: Sequence[Array]) -> Sending | None:
        """Return how the kernel that writes these blocks exchanges their halos along axis 0, in place of
        `fill`; None if other axes are split too."""
        return self._sending.get(self._address(blocks[0]))

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold exchanges: they are kernels of the device."""
        return True

    def check(self) -> None:
        """Raise RunError if a wait for a neighbour has ended without its halo, in exchanges done so far."""
        if self._failure[0]:
            peer = int(self._failure[0]) - 1
            raise RunError(
                f"rank {self._world.rank} waited in vain for the halo of its neighbour, rank {peer}",
                got=f"no halo from [{self._world.ranks[peer]}]",
                hint=f"the log of that rank; {option('halo', 'nccl')} exchanges halos by messages",
            )

    def close(self) -> None:
        """Close the neighbours' blocks; every exchange must be done. Collective."""
        self._peers.close()


def only_rows_are_split(fields: Sequence[FieldHalos]) -> bool:
    """Return whether the ranks' parts lie one after another along axis 0, their rows equally far apart."""
    ranks = range(fields[0].partition.size)
    return all(
        field.partition.grid[0] == len(ranks)
        and len({field.layout(rank).strides(field.itemsize)[0] for rank in ranks}) == 1
        for field in fields
    )


def row_neighbour(
    fields: Sequence[FieldHalos],
    rank: int,
    side: int,
    theirs: Mapping[int, Sequence[int]],
    counts: Mapping[int, int],
) -> Neighbour | None:
    """Return the rank before (side -1) or after (1) along axis 0; None if none exchanges rows with this one.

    theirs: of each neighbour, the addresses of its blocks. counts: of its count of what has arrived from the
    rank before it; that of the rank after it follows.
    """
    size = fields[0].partition.size
    peer = (rank + side) % size
    if peer not in theirs or (not wraps(fields[0].boundary, 0) and peer != rank + side):
        return None
    halos = []
    for field, block in zip(fields, theirs[peer], strict=True):
        layout, strides = field.layout(peer), field.layout(peer).strides(field.itemsize)
        first = sum(part.start * stride for part, stride in zip(layout.core, strides, strict=True))
        own = layout.region.shape[0] if side < 0 else -field.layout(rank).region.shape[0]
        low, high = field.filled[0]
        halos.append((block + first + own * strides[0], high if side < 0 else low))
    return Neighbour(peer, counts[peer] + (8 if side < 0 else 0), halos)


def sent_boxes(
    fields: Sequence[FieldHalos], rank: int, blocks: Sequence[int], theirs: dict[int, list[int]]
) -> list[HaloBox]:
    """Return the stores of this rank's cells into its neighbours' halos; blocks, theirs: addresses."""
    return [
        halo_boxes.between_blocks(field, sent, blocks[n], theirs[sent.receiver][n], sent.receiver)
        for n, field in enumerate(fields)
        for sent in field.sent(rank)
    ]
