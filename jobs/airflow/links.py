"""Links that cross the surface of a body: interpolated bounce-back on them, and the force on the body.

A link goes from a fluid cell b along a velocity e_i to a solid cell s = b + e_i. The surface crosses it at
the fraction q of its length. Interpolated bounce-back of M. Bouzidi, M. Firdaouss, P. Lallemand, Phys. Fluids
13 (2001), 3452-3459, linear: before a step, the population opposite to i that b will pull from s is set to

    2 q g_i(b) + (1 - 2 q) g_i(b - e_i)                       q < 1/2
    1 / (2 q) g_i(b) + (1 - 1 / (2 q)) g_opposite(b)          q >= 1/2

Every such slot belongs to one link, and none is read by another: the order does not matter. Momentum
exchange, of A. J. C. Ladd, J. Fluid Mech. 271 (1994), 285-309: the force is the sum of e_i (g_i(b) +
g_opposite(s)) over the links.

The sum is over whole multiples of 2^-36, each link's share rounded once: integers add up to the same in any
order, on any number of ranks, on CPU and GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from itertools import pairwise
from types import ModuleType

import numpy as np

from meshrun.jobs import kernels
from meshrun.jobs.airflow.lattice import Lattice
from meshrun.jobs.airflow.shapes.bodies import Body
from meshrun.runner.region import Array, HostArray, Region

THREADS = 256  # as in links.cu
UNIT = 2.0**36  # of forces
LARGEST = 4.0  # of a link's share: any flow's is much smaller


@dataclass(frozen=True)
class Links:
    """Links of a block of cells: NumPy or CuPy arrays of (n,), sorted by both directions, then by place.

    Places are counted in elements from the first one of a block. strides: of that block, per axis, in
    elements. near: b. solid: s. direction, opposite: numbers of the velocity i and of its opposite. fraction:
    q, as float32. far: where the second value of the interpolation is, and far_direction which population it
    is of: i at b - e_i, the opposite one at b, or the first value itself where b - e_i is not fluid and q is
    1/2 therefore. near_weight, far_weight: of both values.
    """

    strides: tuple[int, ...]
    near: Array  # int64
    solid: Array  # int64
    direction: Array  # uint8
    opposite: Array  # uint8
    fraction: Array  # float32
    far: Array  # int64
    far_direction: Array  # uint8
    near_weight: Array  # float32
    far_weight: Array  # float32

    @property
    def count(self) -> int:
        return len(self.near)

    def on(self, xp: ModuleType) -> Links:
        """Return the same links as arrays of `xp`."""
        return replace(self, **{name: xp.asarray(getattr(self, name)) for name in self._arrays})

    def cells(self, places: Array) -> tuple[Array, ...]:
        """Return the cells at some places, `near` or `solid`: their coordinates along each axis."""
        found = []
        for step in self.strides:
            found.append(places // step)
            places = places % step
        return tuple(found)

    def chosen(self, kept: HostArray) -> Links:
        """Return some of the links. kept: (n,) bool."""
        return replace(self, **{name: getattr(self, name)[kept] for name in self._arrays})

    @property
    def _arrays(self) -> list[str]:
        return [one.name for one in fields(self) if one.name != "strides"]

    @cached_property
    def runs(self) -> list[tuple[int, int, int, slice]]:
        """Links that follow each other with the same direction, opposite direction and far direction; on the
        host."""
        if not self.count:
            return []
        kinds = np.stack([self.direction, self.opposite, self.far_direction], 1)
        begins = [0, *(np.flatnonzero((kinds[1:] != kinds[:-1]).any(1)) + 1).tolist(), self.count]
        return [
            (int(kinds[begin, 0]), int(kinds[begin, 1]), int(kinds[begin, 2]), slice(begin, end))
            for begin, end in pairwise(begins)
        ]


def find_links(
    body: Body,
    region: Region,
    lattice: Lattice,
    width: int | Sequence[int] = 1,
    fluid: HostArray | None = None,
    strides: Sequence[int] = (),
) -> Links:
    """Return the links of all cells b of `region`.

    width: of the halo around `region` in the blocks that the links are for, along each axis or along all, at
    least 1. fluid: bool, of the shape of such a block, where cells are fluid: neither the body nor a wall; by
    default all but the body.
    strides: of such a block, in elements; by default it is C-contiguous.
    """
    axes = len(region.start)
    widths = np.broadcast_to(width, axes)
    shape = tuple((np.array(region.shape) + 2 * widths).tolist())
    inner = tuple(slice(n - 1, 1 - n or None) for n in widths.tolist())  # the region and one cell around it
    around = Region(tuple(n - 1 for n in region.start), tuple(n + 1 for n in region.stop))
    solid = body.solid(around)
    near_body = _window(solid)
    open_cells = ~solid[near_body] if fluid is None else fluid[inner][near_body] & ~solid[near_body]
    found = [
        _of_direction(number, solid[near_body], open_cells, lattice) for number in range(1, lattice.size)
    ]
    numbers = np.concatenate([np.full(len(cells), at, np.uint8) for at, (cells, _) in enumerate(found, 1)])
    cells = np.concatenate([cells for cells, _ in found])  # in the window
    cells += [one.start for one in near_body]  # in `around`
    behind = np.concatenate([behind for _, behind in found])
    velocities = np.array(lattice.velocities)[numbers]
    fraction = body.intersect(cells + around.start, velocities)
    pitches = tuple(strides) or tuple(math.prod(shape[axis + 1 :]) for axis in range(axes))
    return _links(pitches, cells + widths - 1, velocities, numbers, behind, lattice, fraction)


def _window(solid: HostArray) -> tuple[slice, ...]:
    """Return the part of an array that holds all links to solid cells, and the cells behind them."""
    found = []
    for axis, length in enumerate(solid.shape):
        places = np.flatnonzero(solid.any(tuple(other for other in range(solid.ndim) if other != axis)))
        first, last = (int(places[0]), int(places[-1])) if len(places) else (0, 0)
        found.append(slice(max(first - 2, 0), min(last + 3, length)))
    return tuple(found)


def _of_direction(
    number: int, solid: HostArray, fluid: HostArray, lattice: Lattice
) -> tuple[HostArray, HostArray]:
    """Cells b (n, axes), in coordinates of both arrays, that have a link; and whether b - e_i is fluid."""
    velocity = lattice.velocities[number]
    center, to, back = (
        tuple(slice(1 + sign * e, n - 1 + sign * e) for e, n in zip(velocity, solid.shape, strict=True))
        for sign in (0, 1, -1)
    )
    here = fluid[center] & solid[to]
    cells = np.argwhere(here)
    return cells + 1, fluid[back][tuple(cells.T)]


def _links(
    strides: tuple[int, ...],
    cells: HostArray,
    velocities: HostArray,
    numbers: HostArray,
    behind: HostArray,
    lattice: Lattice,
    fraction: HostArray,
) -> Links:
    """Places and weights. cells: in the block of these strides. behind: whether the cell behind is fluid."""

    def flat(places: HostArray) -> HostArray:
        return places.astype(np.int64) @ np.array(strides, np.int64)

    opposite = np.array(lattice.opposite, np.uint8)[numbers]
    q = np.where(np.isnan(fraction), 0.5, fraction)
    q = np.where((q < 0.5) & ~behind, 0.5, q)
    short, half = q < 0.5, q == 0.5
    near_weight = np.where(short, 2 * q, 1 / np.maximum(2 * q, 1))
    far_weight = np.where(short, 1 - 2 * q, 1 - near_weight)
    far_direction = np.where(short | half, numbers, opposite)
    order = np.lexsort((far_direction, numbers))
    return Links(
        strides=strides,
        near=flat(cells)[order],
        solid=flat(cells + velocities)[order],
        direction=numbers[order],
        opposite=opposite[order],
        fraction=q.astype(np.float32)[order],
        far=flat(np.where(short[:, None], cells - velocities, cells))[order],
        far_direction=far_direction.astype(np.uint8)[order],
        near_weight=near_weight.astype(np.float32)[order],
        far_weight=far_weight.astype(np.float32)[order],
    )


def addresses(xp: ModuleType, populations: Sequence[Array]) -> Array:
    """Return the table of places in memory that both kernels take, for these populations on the GPU."""
    return xp.asarray(np.array([kernels.address(one) for one in populations], np.uint64))


def set_slots(
    populations: Sequence[Array], links: Links, xp: ModuleType = np, table: Array | None = None
) -> None:
    """Set the slots of all links, in place: interpolated bounce-back. Before a step, when halos are filled.

    populations: a block for each velocity, of the links' strides, float32 or float16 of any scale. table:
    their `addresses`; made again for each call if it is not given. NumPy and kernel give the same bits.
    """
    _check(populations, links)
    if not links.count:
        return
    if xp is not np:
        name = kernels.instance("set_slots", populations[0].dtype)
        places = addresses(xp, populations) if table is None else table
        arrays = (links.near, links.solid, links.direction, links.opposite, links.far, links.far_direction)
        arguments = (places, *arrays, links.near_weight, links.far_weight, np.int64(links.count))
        kernels.launch("links.cu", name, -(-links.count // THREADS), THREADS, arguments)
        return
    flat = [_flat(one, links.strides) for one in populations]
    for number, opposite, other, part in links.runs:
        near = flat[number][links.near[part]].astype(np.float32)
        far = flat[other][links.far[part]].astype(np.float32)
        flat[opposite][links.solid[part]] = links.near_weight[part] * near + links.far_weight[part] * far


def momentum(
    populations: Sequence[Array],
    links: Links,
    lattice: Lattice,
    xp: ModuleType = np,
    scale: float = 1.0,
    table: Array | None = None,
) -> Array:
    """Return what the fluid gives the body in a step, as integers that ranks may add up: (axes + 1,) int64.

    The result is on the device; it is not waited for.

    The force along each axis, in units of 2^-36, and the number of links whose share is not finite or LARGEST
    or more: such a state is none of a flow, and these shares are left out. scale: by which stored populations
    are to be multiplied. After `set_slots`, if the body has them. At most 2^25 links.
    """
    _check(populations, links)
    if xp is not np:
        total = xp.zeros(lattice.axes + 1, np.uint64)
        if links.count:
            velocities = _velocities(lattice, xp, xp.cuda.runtime.getDevice())
            places = addresses(xp, populations) if table is None else table
            arguments = (places, links.near, links.solid, links.direction, links.opposite, velocities,
                         np.int32(lattice.axes), np.float64(scale), np.int64(links.count), total)  # fmt: skip
            name = kernels.instance("momentum", populations[0].dtype)
            kernels.launch("links.cu", name, -(-links.count // THREADS), THREADS, arguments)
        return total.view(np.int64)
    flat = [_flat(one, links.strides) for one in populations]
    result = np.zeros(lattice.axes + 1, np.int64)
    for number, opposite, _, part in links.runs:
        there = flat[opposite][links.solid[part]]
        share = (flat[number][links.near[part]].astype(np.float64) + there.astype(np.float64)) * scale
        good = np.abs(share) < LARGEST
        whole = int(np.rint(share[good] * UNIT).astype(np.int64).sum())
        result[:-1] += whole * np.array(lattice.velocities[number], np.int64)
        result[-1] += np.count_nonzero(~good)
    return result


@cache
def _velocities(lattice: Lattice, xp: ModuleType, device: int) -> Array:
    """Return the lattice's velocities on the current device, which has this number."""
    return xp.asarray(np.array(lattice.velocities, np.int8))


def force(total: HostArray) -> HostArray:
    """Return the force of `momentum`, or of its sum over ranks: (axes,) float64; NaN if a share was left
    out."""
    found: HostArray = total[:-1] / UNIT
    return found if total[-1] == 0 else np.full_like(found, np.nan)


def _flat(block: HostArray, strides: Sequence[int]) -> HostArray:
    """Return all elements from the first to the last in memory, those between rows included; a view."""
    extent = 1 + sum((n - 1) * step for n, step in zip(block.shape, strides, strict=True))
    return np.lib.stride_tricks.as_strided(block, (extent,), (block.itemsize,))


def _check(populations: Sequence[Array], links: Links) -> None:
    """ValueError for blocks of other strides: links would be elsewhere."""
    for one in populations:
        if tuple(one.strides) != tuple(one.itemsize * step for step in links.strides):
            raise ValueError(f"a block of strides {one.strides} bytes is not what these links are for")
