"""Particles: arrays whose rows are kept, moved to the ranks of their cells, and exchanged with a grid.

A particle's position has a number per axis of a grid, in cells: cell i is at position i. Its owner is the
rank with the cell at or before it along each axis. The grid is periodic along axes with the boundary "wrap".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.halo.exchange import HaloPlan
from meshrun.runner.arrays.tools.cells import (
    lengths_of,
    like,
    made_of,
    moved_to,
    of_lengths,
    on_host,
    rows_of,
    taken,
)
from meshrun.runner.arrays.tools.fixed_point import fixed_point
from meshrun.runner.arrays.tools.routes import routes_to
from meshrun.runner.errors import UserError
from meshrun.runner.plan.halo import along
from meshrun.runner.region import Array
from meshrun.runner.world.world import World

Order = Literal["nearest", "linear"]
Corner = tuple[tuple[Array, ...], Array | None]


@dataclass(frozen=True)
class ParticleCheck:
    """What is wrong with values of this rank, if any is. wrong: which of them. The others: of the error."""

    values: Array
    wrong: Array
    what: str
    expected: str
    hint: str | None = None


def compress(mask: DistributedArray, *arrays: DistributedArray) -> tuple[DistributedArray, ...]:
    """Return the rows of arrays where a mask holds. Collective.

    Parameters
    ----------
    mask : DistributedArray
        Of bool, of shape (n,).
    *arrays : DistributedArray
        Of n rows.

    Returns
    -------
    tuple of DistributedArray
        Split along axis 0, in parts of as many rows as each rank has kept of those that it has of the first
        array, in their order.

    Raises
    ------
    UserError
        On every rank, for a mask of another dtype, and for arrays of another number of rows.

    Examples
    --------
    >>> x, v = meshrun.compress(inside, x, v)  # inside: whether a particle is in the box
    """
    *rows, mask = _as_rows("compress", (*arrays, mask))
    if len(mask.shape) != 1 or mask.dtype != np.bool_:
        raise UserError(
            "compress takes a mask of one axis",
            got=f"{mask.dtype} of shape {mask.shape}",
            expected="bool",
            everywhere=True,
        )
    lengths = mask.world.control.allgather(int(mask.interior.sum()))
    return tuple(
        made_of(mask.world, of_lengths(lengths, array.shape[1:]), array.interior[mask.interior])
        for array in rows
    )


def owners(grid: DistributedArray, *positions: DistributedArray) -> DistributedArray:
    """Return the rank that owns each particle. Collective.

    Parameters
    ----------
    grid : DistributedArray
        Whose cells are split over the ranks.
    *positions : DistributedArray
        Of shape (n,), in cells, one for each axis of the grid.

    Returns
    -------
    DistributedArray
        Of int64, split as the positions; for `send_to_owners`.

    Raises
    ------
    UserError
        On every rank, for a position that is not finite, or beyond the first or the last cell of an axis that
        is not periodic.

    Examples
    --------
    >>> x, v = meshrun.send_to_owners(meshrun.owners(rho, x), x, v)
    """
    grid, positions, _ = _taken_particles("owners", grid, positions)
    world, xp = grid.world, grid.world.xp
    rank = xp.zeros(positions[0].interior.shape, np.int64)
    for axis, cells in enumerate(_cells_before("owners", grid, positions)):
        partition = grid.partition
        starts = [partition.bounds(axis, part)[0] for part in range(partition.grid[axis])]
        part = xp.searchsorted(xp.asarray(np.array(starts)), cells, side="right") - 1
        rank = rank * partition.grid[axis] + part
    return made_of(world, positions[0].partition, rank)


def send_to_owners(ranks: DistributedArray, *arrays: DistributedArray) -> tuple[DistributedArray, ...]:
    """Return arrays whose rows are on the ranks that own them. Collective.

    Parameters
    ----------
    ranks : DistributedArray
        The rank that gets each row, of shape (n,) and integers, such as from `owners`.
    *arrays : DistributedArray
        Of n rows.

    Returns
    -------
    tuple of DistributedArray
        Split along axis 0, in parts of as many rows as each rank owns, ordered by the rank they come from and
        then as they were there.

    Raises
    ------
    UserError
        On every rank, for a rank that does not exist, and for arrays of another number of rows.

    Examples
    --------
    >>> x, v = meshrun.send_to_owners(meshrun.owners(rho, x), x, v)
    """
    *rows, ranks = _as_rows("send_to_owners", (*arrays, ranks))
    world = ranks.world
    if len(ranks.shape) != 1 or ranks.dtype.kind not in "iu":
        raise UserError(
            "send_to_owners takes a rank for each row",
            got=f"{ranks.dtype} of shape {ranks.shape}",
            expected="integers of one axis",
            everywhere=True,
        )
    of_rows = ranks.interior
    beyond = (of_rows < 0) | (of_rows >= world.size)
    _refuse(world, [ParticleCheck(of_rows, beyond, "send_to_owners: no such rank", f"0 to {world.size - 1}")])
    routes = routes_to(world, of_rows)
    lengths = world.control.allgather(sum(routes.received))
    return tuple(
        made_of(world, of_lengths(lengths, array.shape[1:]), routes.send(array.interior)) for array in rows
    )


def deposit(
    grid: DistributedArray,
    positions: Sequence[DistributedArray],
    weights: DistributedArray,
    order: Order = "linear",
) -> DistributedArray:
    """Return the sum of the weights of the particles at each cell of a grid. Collective.

    Parameters
    ----------
    grid : DistributedArray
        Whose partition, halo and boundary the result has; its cells do not count.
    positions : sequence of DistributedArray
        Of shape (n,), in cells, one for each axis of the grid; on the ranks that `owners` says.
    weights : DistributedArray
        Of shape (n,), of floats.
    order : {"linear", "nearest"}
        "linear" (cloud in cell) shares a weight among the cells around a particle by its distance to them;
        "nearest" gives it to the nearest cell.

    Returns
    -------
    DistributedArray
        Of the dtype of the weights, the halo stale. A cell has the same bits on any number of ranks, and in
        any order of the particles.

    Raises
    ------
    UserError
        On every rank, for a particle that is beyond the grid, or on another rank than its owner.

    Examples
    --------
    >>> rho = meshrun.deposit(rho, [x], charge)
    """
    grid, positions, (weights,) = _taken_particles("deposit", grid, positions, weights)
    _check_order("deposit", order)
    if weights.dtype.kind != "f":
        raise UserError("deposit takes weights that are floats", got=weights.dtype, everywhere=True)
    world, xp = grid.world, grid.world.xp

    # The sums of the slices of the weights, at the own cells and one after them along each axis.
    corners = 1 if order == "nearest" else 2 ** len(grid.shape)
    form = fixed_point(world, weights.interior, corners)
    shape = tuple(length + 1 for length in grid.interior.shape)
    sums = xp.zeros((form.slices, int(np.prod(shape))), np.float64)
    floats = weights.interior.astype(np.float64)
    for cells, share in _corners("deposit", grid, positions, order):
        index = xp.zeros(floats.shape, np.int64)
        for axis, length in enumerate(shape):
            index = index * length + cells[axis]
        form.add(xp, sums, index, _shared(xp, floats, share))
    sums = sums.reshape(form.slices, *shape)

    # What is at the cell after the own ones belongs to the next rank.
    for axis in range(len(shape)):
        sums = _add_to_next(grid, axis, sums)
    return like(grid, form.join(xp, sums).astype(weights.dtype, copy=False))


def interpolate(
    grid: DistributedArray, positions: Sequence[DistributedArray], order: Order = "linear"
) -> DistributedArray:
    """Return the value of a grid at each particle. Collective.

    Parameters
    ----------
    grid : DistributedArray
        Of numbers. If its halo is narrower than one cell after each axis, a copy with a halo is made.
    positions : sequence of DistributedArray
        Of shape (n,), in cells, one for each axis of the grid; on the ranks that `owners` says.
    order : {"linear", "nearest"}
        Between the cells around a particle, or at the nearest cell.

    Returns
    -------
    DistributedArray
        Of shape (n,), split as the positions; of the dtype of the grid times a position, or of the grid for
        "nearest". The same bits on any number of ranks.

    Raises
    ------
    UserError
        On every rank, for a particle that is beyond the grid, or on another rank than its owner.

    Examples
    --------
    >>> force = meshrun.interpolate(field, [x])
    """
    grid, positions, _ = _taken_particles("interpolate", grid, positions)
    _check_order("interpolate", order)
    corners = [*_corners("interpolate", grid, positions, order)]
    haloed = grid
    if any(after < 1 for _, after in grid.layout.declared):
        widths, layout = ((0, 1),) * len(grid.shape), grid.layout
        plan = HaloPlan(grid.partition, grid.world.rank, widths, layout.boundary, layout.cval, padded=True)
        haloed = DistributedArray(plan, plan.empty(grid.world.backend, grid.dtype), grid.world)
        haloed.interior[...] = grid.interior
    haloed.exchange()
    total: Array = None
    for cells, share in corners:
        low = [before for before, _ in haloed.layout.declared]
        value = haloed.block[tuple(own + first for own, first in zip(cells, low, strict=True))]
        value = _shared(grid.world.xp, value, share)
        total = value if total is None else total + value
    return made_of(grid.world, positions[0].partition, total)


def _corners(
    function: str, grid: DistributedArray, positions: Sequence[DistributedArray], order: Order
) -> Iterator[Corner]:
    """Yield the cells around each particle, counted from the own ones, and the particle's share in them.

    Collective, before the first one. A share of None is 1.
    """
    xp, lows, shares = grid.world.xp, [], []
    wrong: list[ParticleCheck] = []
    for axis, cells in enumerate(_cells_before(function, grid, positions)):
        own, length, position = (
            cells - grid.region.start[axis],
            grid.region.shape[axis],
            positions[axis].interior,
        )
        wrong.append(
            ParticleCheck(
                position,
                (own < 0) | (own >= length),
                f"{function}: a particle is on a rank that does not have its cell along axis {axis}",
                "each particle on its owner",
                "meshrun.send_to_owners(meshrun.owners(grid, *positions), *positions, ...)",
            )
        )
        lows.append(own)
        shares.append(position - xp.floor(position))
    _refuse(grid.world, wrong)
    if order == "nearest":
        yield tuple(low + (share >= 0.5) for low, share in zip(lows, shares, strict=True)), None
        return
    for corner in itertools.product((0, 1), repeat=len(lows)):
        share: Array = None
        for step, part in zip(corner, shares, strict=True):
            factor = part if step else 1 - part
            share = factor if share is None else share * factor
        yield tuple(low + step for low, step in zip(lows, corner, strict=True)), share


def _shared(xp: Any, values: Array, share: Array | None) -> Array:
    """Return the particles' shares of values: nothing of an infinity or a NaN in which the share is 0."""
    return values if share is None else xp.where(share == 0, share, values * share)


def _cells_before(
    function: str, grid: DistributedArray, positions: Sequence[DistributedArray]
) -> list[Array]:
    """Return, per axis, the cell at or before each particle. Collective: one beyond the grid is an error."""
    xp, cells = grid.world.xp, []
    wrong: list[ParticleCheck] = []
    for axis, length in enumerate(grid.shape):
        position = positions[axis].interior
        periodic = along(grid.layout.boundary, axis) == "wrap"
        inside = xp.isfinite(position) if periodic else (position >= 0) & (position <= length - 1)
        wrong.append(
            ParticleCheck(
                position,
                ~inside,
                f"{function}: a particle is beyond the grid along axis {axis}",
                "a finite position" if periodic else f"from 0 to {length - 1}",
            )
        )
        # A position that is wrong has any cell.
        before = xp.floor(xp.where(inside, position, 0))
        cells.append((before % length if periodic else before).astype(np.int64))
    _refuse(grid.world, wrong)
    return cells


def _add_to_next(grid: DistributedArray, axis: int, sums: Array) -> Array:
    """Return sums without the cells after the own ones along an axis, which are added to the next rank's.

    Collective. Beyond the last cell of an axis that is not periodic, there is nothing.
    """
    world, partition, length = grid.world, grid.partition, grid.shape[axis]
    place = partition.coordinates(world.rank)
    start, stop = grid.region.start[axis], grid.region.stop[axis]
    periodic = along(grid.layout.boundary, axis) == "wrap"

    def rank_of(cell: int) -> int:
        part = partition.owner(axis, cell % length)
        return partition.rank((*place[:axis], part, *place[axis + 1 :]))

    # The first axis has the slices.
    moved = world.xp.moveaxis(sums, axis + 1, 0)
    own, after = moved[:-1], moved[-1:]
    arrived = world.xp.zeros(after.shape, sums.dtype)
    sends, receives = [], []
    if stop > start and (stop < length or periodic):
        sends.append((rank_of(stop), after))
    if stop > start and (start > 0 or periodic):
        receives.append((rank_of(start - 1), arrived))
    world.exchange(sends, receives)
    own[:1] += arrived
    return world.xp.moveaxis(own, 0, axis + 1)


def _taken_particles(
    function: str, grid: object, positions: Sequence[object], *others: object
) -> tuple[DistributedArray, tuple[DistributedArray, ...], tuple[DistributedArray, ...]]:
    """Return the grid, the positions, and other arrays of the particles split as the first of these."""
    cells = taken(function, grid)
    if not cells.shape or len(positions) != len(cells.shape):
        raise UserError(
            f"{function} takes a position for each axis of the grid",
            got=f"{len(positions)} for shape {cells.shape}",
            everywhere=True,
        )
    rows = _as_rows(function, (*positions, *others))
    for array in rows:
        if len(array.shape) != 1:
            raise UserError(
                f"{function} takes a number for each particle", got=f"shape {array.shape}", everywhere=True
            )
    for position in rows[: len(positions)]:
        if position.dtype.kind != "f":
            raise UserError(
                f"{function} takes positions that are floats", got=position.dtype, everywhere=True
            )
    return cells, tuple(rows[: len(positions)]), tuple(rows[len(positions) :])


def _as_rows(function: str, arrays: Sequence[object]) -> list[DistributedArray]:
    """Return arrays split along axis 0 alone, in the same rows as the first one. Collective."""
    rows = [taken(function, array) for array in arrays]
    if any(array.shape[:1] != rows[0].shape[:1] or not array.shape for array in rows):
        raise UserError(
            f"{function}: the arrays have different numbers of rows",
            got="shapes " + ", ".join(str(array.shape) for array in rows),
            everywhere=True,
        )
    world = rows[0].world
    lengths = lengths_of(rows_of(rows[0]), world.size)
    return [moved_to(array, of_lengths(lengths, array.shape[1:])) for array in rows]


def _check_order(function: str, order: str) -> None:
    if order not in ("linear", "nearest"):
        raise UserError(
            f"{function}: unknown order", got=order, expected="linear or nearest", everywhere=True
        )


def _refuse(world: World, checks: Sequence[ParticleCheck]) -> None:
    """Raise UserError on every rank if one has wrong values. Collective."""
    mine = [
        on_host(check.values[check.wrong][:1]).tolist() if bool(check.wrong.any()) else [] for check in checks
    ]
    for rank, of_rank in enumerate(world.control.allgather(mine)):
        for check, first in zip(checks, of_rank, strict=True):
            if first:
                raise UserError(
                    check.what,
                    got=f"{first[0]} on rank {rank}",
                    expected=check.expected,
                    hint=check.hint,
                    everywhere=True,
                )
