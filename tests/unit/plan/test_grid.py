"""Cuts of an array: every element in exactly one block, blocks balanced, grids chosen well."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import Partition, bounds, owner, parse_grid
from meshrun.runner.region import Region, Shape

LENGTHS = st.one_of(st.integers(0, 20), st.integers(0, 10**13))
PARTS = st.one_of(st.integers(1, 9), st.integers(1, 10**6))


@given(LENGTHS, PARTS, st.data())
def test_owner_is_the_inverse_of_bounds(length: int, parts: int, data: st.DataObject) -> None:
    if length:
        position = data.draw(st.integers(0, length - 1))
        start, stop = bounds(length, parts, owner(length, parts, position))
        assert start <= position < stop
    index = data.draw(st.integers(0, parts - 1))
    start, stop = bounds(length, parts, index)
    if start < stop:
        assert owner(length, parts, start) == owner(length, parts, stop - 1) == index


@given(LENGTHS, PARTS, st.data())
def test_blocks_are_neighbours_and_balanced(length: int, parts: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, parts - 1))
    start, stop = bounds(length, parts, index)
    assert start == (bounds(length, parts, index - 1)[1] if index else 0)
    assert stop == (bounds(length, parts, index + 1)[0] if index < parts - 1 else length)
    assert stop - start in (length // parts, -(-length // parts))
    assert stop - start <= bounds(length, parts, 0)[1], "long blocks come first"


SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 5, 7, 8, 13]), min_size=1, max_size=3).map(tuple)


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    """Of some: in units of several cells along some leading axes."""
    counted = draw(SHAPES)
    units = tuple(draw(st.lists(st.integers(1, 3), max_size=len(counted))))
    shape = tuple(n * unit for n, unit in itertools.zip_longest(counted, units, fillvalue=1))
    return Partition(shape, tuple(draw(st.integers(1, 5)) for _ in shape), units)


@given(partitions())
def test_blocks_begin_and_end_at_units(partition: Partition) -> None:
    for rank, region in enumerate(partition):
        for axis, ends in enumerate(zip(region.start, region.stop, strict=True)):
            assert not any(end % partition.unit(axis) for end in ends)
            assert ends == partition.bounds(axis, partition.coordinates(rank)[axis])
            for cell in range(*ends):
                assert partition.owner(axis, cell) == partition.coordinates(rank)[axis]


@given(partitions())
def test_a_partition_covers_every_element_exactly_once(partition: Partition) -> None:
    covered = np.zeros(partition.shape, int)
    regions = list(partition)
    assert len(regions) == partition.size == math.prod(partition.grid)
    for region in regions:
        covered[region.slices] += 1
        assert covered[region.slices].shape == region.shape
        assert region.size == math.prod(region.shape)
    assert (covered == 1).all()
    assert sum(region.size for region in regions) == math.prod(partition.shape)


@given(partitions())
def test_ranks_number_the_blocks_in_c_order(partition: Partition) -> None:
    places = list(itertools.product(*map(range, partition.grid)))
    assert [partition.coordinates(rank) for rank in range(partition.size)] == places
    assert [partition.rank(place) for place in places] == list(range(partition.size))


def test_a_region_prints_as_slices() -> None:
    assert str(Region((0, 4), (2, 9))) == "[0:2, 4:9]"


def test_a_partition_of_a_scalar_is_one_block() -> None:
    (region,) = Partition((), ())
    assert (region.shape, region.size) == ((), 1)


# parse_grid


def moved(shape: Shape, grid: Shape) -> int:
    """Elements next to a cut, counted on the array itself: how many neighbour pairs the cuts part."""
    total = 0
    for axis, (length, parts) in enumerate(zip(shape, grid, strict=True)):
        edges = {bounds(length, parts, index)[0] for index in range(1, parts)}
        across = math.prod(n for other, n in enumerate(shape) if other != axis)
        total += len(edges) * across
    return total


def grids(shape: Shape, ranks: int, axes: int) -> list[Shape]:
    named = itertools.product(range(1, ranks + 1), repeat=axes)
    return [(*grid, *[1] * (len(shape) - axes)) for grid in named if math.prod(grid) == ranks]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple), st.integers(1, 12), st.data())
def test_the_chosen_grid_cuts_least(shape: Shape, ranks: int, data: st.DataObject) -> None:
    axes = data.draw(st.integers(1, len(shape)))
    grid = parse_grid("x".join("0" * axes), shape, ranks)
    candidates = grids(shape, ranks, axes)
    assert grid in candidates
    full = [other for other in candidates if all(p <= n for p, n in zip(other, shape, strict=True))]
    if full:
        assert grid in full, "no empty block where that can be had"
        assert moved(shape, grid) == min(moved(shape, other) for other in full)


@pytest.mark.parametrize(
    ("text", "shape", "ranks", "grid"),
    [
        ("4", (10, 10), 4, (4, 1)),
        ("2x3", (10, 10), 6, (2, 3)),
        ("2X3", (10, 10), 6, (2, 3)),
        ("0x2", (10, 10), 6, (3, 2)),
        ("0", (10, 10), 6, (6, 1)),
        ("0x0", (100, 100), 4, (2, 2)),
        ("0x0", (1000, 10), 4, (4, 1)),
        ("0x0", (10, 1000), 4, (1, 4)),
        ("0x0", (100, 100), 2, (2, 1)),  # on a tie, the axis whose blocks are contiguous
        ("0x0x0", (64, 64, 64), 8, (2, 2, 2)),
        ("0", (0,), 3, (3,)),
        ("0x0", (2, 2), 8, (4, 2)),  # too many ranks: few of them without a block
        ("5", (3,), 5, (5,)),  # more ranks than rows: the last two have none
        ("1", (7, 7), 1, (1, 1)),
        ("0x0", (13, 13), 7, (7, 1)),
    ],
)
def test_grids_a_user_types(text: str, shape: Shape, ranks: int, grid: Shape) -> None:
    assert parse_grid(text, shape, ranks) == grid


@pytest.mark.parametrize(
    ("text", "shape", "ranks", "word"),
    [
        ("", (4,), 1, "parse"),
        ("2x", (4, 4), 2, "parse"),
        ("-2", (4,), 2, "parse"),
        ("2,2", (4, 4), 4, "parse"),
        ("two", (4, 4), 2, "parse"),
        ("1.5", (4, 4), 2, "parse"),
        ("²", (4, 4), 2, "parse"),
        ("2x2", (4,), 4, "axes"),
        ("0", (), 1, "axes"),
        ("3", (4,), 4, "exactly once"),
        ("2x2", (4, 4), 8, "exactly once"),
        ("3x0", (4, 4), 8, "exactly once"),
    ],
)
def test_grids_that_are_refused(text: str, shape: Shape, ranks: int, word: str) -> None:
    with pytest.raises(UserError, match=word):
        parse_grid(text, shape, ranks)
