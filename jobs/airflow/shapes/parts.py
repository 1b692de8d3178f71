"""The parts of a body that do not touch each other: the forces on each are measured."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from meshrun.jobs.airflow.shapes.bodies import Body, CellBody
from meshrun.jobs.airflow.shapes.surface import Surface
from meshrun.runner.region import HostArray, Region

MOST_PARTS = 8  # specks of a picture are no bodies
MOST_CELLS = 2**24  # of a box whose cells are looked at


@dataclass(frozen=True)
class SeparateBodies:
    """Separate bodies, in the order of their places along the flow, then from the top and the front.

    box: that holds all of them. labels: (*box.shape) uint8, the number of each solid cell's part, from 0.
    references: (parts,) what the force coefficients of each refer to, as `Body.reference`. places: (parts,
    axes) the middle of each in cells, in the order of the array's axes.
    """

    box: Region
    labels: HostArray
    references: HostArray
    places: HostArray

    def of(self, cells: HostArray) -> HostArray:
        """Return the part of each solid cell. cells: (n, axes), in the domain."""
        found: HostArray = self.labels[tuple((cells - np.array(self.box.start)).T)]
        return found


def find_parts(body: Body) -> SeparateBodies | None:
    """Return the parts of a body; None if it has one, too many, or too many cells to look at.

    Cells that touch at a corner belong together: no flow passes there.
    """
    box = body.box
    if not isinstance(body, (CellBody, Surface)) or not 0 < box.size <= MOST_CELLS:
        return None
    solid = body.solid(box)
    begins = solid.copy()
    begins[..., 1:] &= ~solid[..., :-1]
    run = np.cumsum(begins.reshape(-1)).reshape(solid.shape) - 1  # of solid cells along the flow
    pairs = [np.zeros((0, 2), np.int64)]
    for shift in product((-1, 0, 1), repeat=solid.ndim):
        if shift[:-1] > (0,) * (solid.ndim - 1):  # each two neighbours once, but for those of one run
            here, there = (
                tuple(
                    slice(max(sign * one, 0), length + min(sign * one, 0))
                    for one, length in zip(shift, solid.shape, strict=True)
                )
                for sign in (1, -1)
            )
            touch = solid[here] & solid[there]
            touch[..., 1:] &= ~touch[..., :-1]  # cells that follow each other are of the same two runs
            pairs.append(np.stack([run[here][touch], run[there][touch]], 1))
    label = connected(np.concatenate(pairs), int(begins.sum()))
    names = np.unique(label)
    if not 1 < len(names) <= MOST_PARTS:
        return None
    number = np.searchsorted(names, label)[run]  # of each solid cell
    cells: list[HostArray] = [np.argwhere(solid & (number == one)) for one in range(len(names))]
    middles = np.array([np.mean([one.min(axis=0), one.max(axis=0)], axis=0) for one in cells]) + box.start
    order = np.lexsort([*middles.T[:-1], middles[:, -1]])
    frontal = np.array([len(np.unique(cells[one][:, :-1], axis=0)) for one in order])
    exact = body.reference / (int(np.count_nonzero(solid.any(-1))) or 1)  # of a line along the flow
    labels = np.zeros(solid.shape, np.uint8)
    labels[solid] = np.argsort(order)[number[solid]]
    return SeparateBodies(box, labels, frontal * exact, middles[order])


def connected(pairs: HostArray, count: int) -> HostArray:
    """Return, for each of `count` nodes, the smallest node that edges (n, 2) connect it with."""
    label = np.arange(count)
    while True:
        smallest = label[pairs].min(1)
        before = label.copy()
        for side in pairs.T:
            np.minimum.at(label, label[side], smallest)
            np.minimum.at(label, side, smallest)
        label = label[label]
        if np.array_equal(label, before):
            return label
