"""What a group of ranks is asked for, on threads, MPI's ranks and GPUs alike: each case checks all results.

Values are numbered by their place in the whole array, so that any misplaced or repeated part shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshrun.runner.comm.api import UFUNCS
from meshrun.runner.errors import UserError
from meshrun.runner.plan.grid import bounds
from meshrun.runner.world.group import Group
from meshrun.runner.world.world import World

DTYPES = ("bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128")


def whole(shape: tuple[int, ...], dtype: Any = "int64") -> np.ndarray:
    """The same on every rank; values of bool from a generator, others numbered in the dtype's range."""
    values = np.arange(int(np.prod(shape))).reshape(shape)
    if dtype == "bool":
        return np.random.default_rng(7).integers(0, 2, shape).astype(bool)
    values = values % 113 + 1
    return (values + 1j * (values % 7)).astype(dtype) if np.dtype(dtype).kind == "c" else values.astype(dtype)


def part(array: Any, group: Group, axis: int, rank: int | None = None) -> Any:
    """A rank's part of an array split along an axis, with gaps between its rows."""
    start, stop = bounds(array.shape[axis], group.size, group.rank if rank is None else rank)
    return array[(slice(None),) * axis + (slice(start, stop),)]


def mixed_up(sends: Any, rank: int, mutant: str) -> list[Any]:
    """A rank's messages with those to two other ranks "swapped", or the first one of them sent "twice"."""
    found = list(sends)
    one, other = [number for number, (peer, _) in enumerate(found) if peer != rank][:2]
    first, second = found[one][1], found[other][1]
    found[other] = (found[other][0], first)
    if mutant == "swapped":
        found[one] = (found[one][0], second)
    return found


def same(got: Any, expected: np.ndarray) -> None:
    found = got.get() if hasattr(got, "get") else got
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


def redistributes(group: Group, shape: tuple[int, ...], dtype: str = "int64") -> None:
    """Between every two axes, with the shape given and without."""
    array = whole(shape, dtype)
    for old in range(len(shape)):
        for new in range(len(shape)):
            block = group.xp.asarray(part(array, group, old))
            for known in (None, shape):
                same(group.redistribute(block, old, new - len(shape), known), part(array, group, new))
            same(block, part(array, group, old))


def gathers(group: Group, shape: tuple[int, ...], dtype: str = "int64") -> None:
    array = whole(shape, dtype)
    for axis in range(len(shape)):
        same(group.all_gather(group.xp.asarray(part(array, group, axis)), axis), array)


def gathers_parts_of_any_length(group: Group) -> None:
    lengths = [(5 * rank + 3) % 4 for rank in range(group.size)]
    ends = np.cumsum([0, *lengths])
    array = whole((3, int(ends[-1])))
    mine = group.xp.asarray(array[:, ends[group.rank] : ends[group.rank + 1]])
    same(group.all_gather(mine, 1), array)


def sends_everyone_something(group: Group, dtype: str = "int64") -> None:
    """Arrays of other shapes to each rank, and one array with an entry for each."""

    def message(source: int, to: int) -> np.ndarray:
        return whole((source + 1, (source + 2 * to) % 3), dtype) + np.array(to % 2, dtype)

    sent = [group.xp.asarray(message(group.rank, to)) for to in range(group.size)]
    for source, got in enumerate(group.all_to_all(sent)):
        same(got, message(source, group.rank))
    out = [group.xp.zeros_like(group.xp.asarray(message(source, group.rank))) for source in range(group.size)]
    assert group.all_to_all(sent, out) is out
    for source, got in enumerate(out):
        same(got, message(source, group.rank))
    for inner in ((), (3, 2)):
        everyones = whole((group.size, group.size, *inner), dtype)  # [from, to]
        same(group.all_to_all(group.xp.asarray(everyones[group.rank])), everyones[:, group.rank])


def reduces(group: Group, dtype: str) -> None:
    """To parts, along both axes, and of fewer rows than ranks."""
    for shape in ((7, 5), (1, 3), (0, 2)):
        inputs = np.stack([np.roll(whole(shape, dtype), rank) for rank in range(group.size)])
        if dtype == "float16":
            inputs %= 8  # exact in any order
        operations = ("sum", "prod") if np.dtype(dtype).kind == "c" else ("sum", "prod", "min", "max")
        for operation in operations:
            if operation == "prod" and dtype != "bool":
                inputs = inputs.real.astype(np.int64).__mod__(2).astype(dtype) + np.array(1, dtype)
            expected = getattr(np, UFUNCS[operation]).reduce(inputs, axis=0, dtype=dtype)
            for axis in (0, 1):
                got = group.reduce_scatter(group.xp.asarray(inputs[group.rank]), operation, axis)
                same(got, part(expected, group, axis))
            on_gpu = group.backend.device.kind == "cuda"
            if not (on_gpu and np.dtype(dtype).kind == "c" and operation == "prod"):  # which NCCL lacks
                mine = group.xp.asarray(inputs[group.rank].copy())
                assert group.all_reduce(mine, operation) is mine
                same(mine, expected)


def reduces_arrays_of_any_strides_and_byte_order(group: Group) -> None:
    """Of different strides on different ranks."""
    expected = whole((4, 5)) * group.size
    orders = ("=",) if group.xp is not np else ("=", ">")
    for order in orders:
        for dtype in ("f8", "i2"):
            room = group.xp.asarray(np.zeros((8, 10), order + dtype))
            mine = (room[:4, :5], room[::2, ::2], room.T[:4, :5])[group.rank % 3]
            mine[...] = group.xp.asarray(whole((4, 5)))
            assert group.all_reduce(mine) is mine
            same(mine, expected.astype(order + dtype))
            assert int(abs(room).sum()) == expected.sum()  # nothing else has changed


def all_reduces(group: Group, dtype: str) -> None:
    """In place, arrays that lie in memory differently on each rank."""
    inputs = np.stack([np.roll(whole((7, 5), dtype), rank) for rank in range(group.size)])
    inputs = inputs.real.astype(np.int64).__mod__(2).astype(dtype)  # exact in any order
    for operation in ("sum", "prod") if np.dtype(dtype).kind == "c" else ("sum", "prod", "min", "max"):
        expected = getattr(np, UFUNCS[operation]).reduce(inputs, axis=0, dtype=dtype)
        room = group.xp.zeros((14, 5), dtype)
        array = (room[::2], room[:7], room[:7][::-1], room[:7].reshape(5, 7).T)[group.rank % 4]
        array[...] = group.xp.asarray(inputs[group.rank])
        assert group.all_reduce(array, operation) is array
        same(array, expected)
        if dtype == "int64":
            swapped = inputs[group.rank].astype(">i8")
            same(group.all_reduce(swapped, operation).astype("int64"), expected)


def refuses_what_cannot_be_reduced(group: Group) -> None:
    """On any number of ranks, also on one."""
    xp = group.xp
    with pytest.raises(UserError, match="no such reduction: got 'mean', expected sum, prod, min, max"):
        group.all_reduce(xp.zeros(3), "mean")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no such reduction: got 'mean'"):
        group.reduce_scatter(xp.zeros(3), "mean")  # type: ignore[arg-type]
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    for value in (3, 3.0, [1, 2], np.float64(3), read_only):
        with pytest.raises(UserError, match="all_reduce replaces the elements of an array: got "):
            group.all_reduce(value)
    for array in (np.array([{}]), np.array(["a"]), np.zeros(1, "datetime64")):
        with pytest.raises(UserError, match=f"all_reduce: sum is not for this dtype: got {array.dtype}"):
            group.all_reduce(array)
    with pytest.raises(UserError, match="all_reduce: max is not for this dtype: got complex128"):
        group.all_reduce(xp.zeros(3, "complex128"), "max")
    with pytest.raises(UserError, match="the length of an axis is 0 or more: got -1"):
        group.part(-1)


def passes_on_in_a_ring(group: Group) -> None:
    """Sent in turn, and as an exchange; arrays with gaps on both sides."""
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    sent = group.xp.asarray(whole((4, 6)) + group.rank)[:, ::2]
    target = group.xp.zeros((3, 4), "int64").T
    group.exchange([(right, sent)], [(left, target)])
    same(target, (whole((4, 6)) + left)[:, ::2])
    if group.size == 1:
        return
    if group.rank == 0:
        group.send(sent, right)
        same(group.receive(group.xp.zeros_like(sent), left), sent.get() if hasattr(sent, "get") else sent)
    else:
        group.send(group.receive(group.xp.zeros_like(sent), left), right)


def refuses_what_does_not_fit(group: Group) -> None:
    xp = group.xp
    with pytest.raises(UserError, match="a rank that does not exist: got 99, expected 0 to"):
        group.exchange([(99, xp.zeros(3))], [])
    with pytest.raises(UserError, match="all_to_all takes an array for each rank"):
        group.all_to_all([xp.zeros(3)] * (group.size + 1))
    with pytest.raises(UserError, match="all_gather: there is no such axis: got 2"):
        group.all_gather(xp.zeros((3, 3)), 2)
    with pytest.raises(UserError, match="redistribute: there is no such axis: got 2"):
        group.redistribute(xp.zeros((3, 3)), 0, 2)
    with pytest.raises(UserError, match="reduce_scatter: min is not for this dtype: got complex64"):
        group.reduce_scatter(xp.zeros(3, "complex64"), "min")
    if group.size == 1:
        return
    last = group.rank == group.size - 1
    with pytest.raises(
        UserError, match=r"reduce_scatter: the ranks' arrays do not fit together: got float64"
    ):
        group.reduce_scatter(xp.zeros(3, "float32" if last else "float64"))
    with pytest.raises(UserError, match=r"do not fit together: got .*\(3, 2\) .*equal shapes but for axis 0"):
        group.all_gather(xp.zeros((3, 4 if last else 2)))
    with pytest.raises(UserError, match=r"no even split of .* along axis 0: got 1 on rank 0, expected 2"):
        group.redistribute(xp.zeros((group.size if last else 1, 4)), 0, 1)


def takes_every_dtype(group: Group, dtype: str) -> None:
    redistributes(group, (4, 5), dtype)
    sends_everyone_something(group, dtype)
    reduces(group, dtype)


def moves_blocks_between_any_two_axes(group: Group, shape: tuple[int, ...]) -> None:
    redistributes(group, shape)
    gathers(group, shape)


def has_grids(world: World) -> None:
    """Every grid of two axes: places, groups along its axes, and pencils of three axes through them."""
    for rows in (n for n in range(1, world.size + 1) if world.size % n == 0):
        columns = world.size // rows
        grid = world.grid(rows, 0)
        assert grid.shape == (rows, columns)
        assert grid.coordinates == (world.rank // columns, world.rank % columns)
        assert grid.rank_at(*grid.coordinates) == world.rank
        down, across = grid.along(0), grid.along(1)
        assert (down.size, across.size) == grid.shape
        assert (down.rank, across.rank) == grid.coordinates
        members = world.xp.asarray([world.rank])
        same(down.all_gather(members), np.arange(rows) * columns + grid.coordinates[1])
        same(across.all_gather(members), np.arange(columns) + grid.coordinates[0] * columns)
        array = whole((5, 4, 7))
        pencil = world.xp.asarray(part(part(array, down, 0), across, 1))
        pencil = across.redistribute(pencil, 1, 2)
        same(pencil, part(part(array, down, 0), across, 2))
        same(down.redistribute(pencil, 0, 1), part(part(array, down, 1), across, 2))
        total = world.xp.ones(2)
        same(across.all_reduce(total), np.full(2, float(columns)))
        grid.close()


SHAPES = [(6, 4), (7, 5, 3), (1, 9), (3, 0, 2)]
OTHERS = [
    gathers_parts_of_any_length,
    passes_on_in_a_ring,
    reduces_arrays_of_any_strides_and_byte_order,
    refuses_what_cannot_be_reduced,
    refuses_what_does_not_fit,
    has_grids,
]
