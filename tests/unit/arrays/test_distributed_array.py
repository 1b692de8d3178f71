"""Arrays that are split over the ranks, compared with NumPy's on the whole array."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshrun
from meshrun.runner.arrays.halo.exchange import HaloPlan, exchange
from meshrun.runner.arrays.load import load_arrays
from meshrun.runner.arrays.redistribute import redistribute
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.plan.grid import Partition
from meshrun.runner.plan.redistribution import RedistributionPlan
from meshrun.runner.region import Region
from meshrun.runner.storage.formats.registry import MemorySource
from meshrun.runner.world.world import World, open_world
from tests.facts.step_runs import padded

GRIDS = [(1,), (2,), (3,), (6,), (1, 3), (2, 2), (3, 2), (1, 1, 4), (2, 1, 3)]
DTYPES = ["bool", "i1", "u2", "i8", "f2", "f4", "f8", "c8"]


def on_ranks(ranks: int, body: Callable[[World], Any]) -> list[Any]:
    """Return what `body` returns on each of some ranks, which are threads."""
    return run_ranks(ranks, lambda control: body(open_world("cpu", control=control)))


def values(shape: Any, dtype: str, seed: int = 0) -> Any:
    """Values whose sum depends on the order in which they are added."""
    cells = np.random.default_rng(seed).lognormal(0, 3, shape)
    return (cells * np.sign(np.sin(cells)) % 4).astype(dtype)


def halo_of(whole: Any, region: Region, widths: Any, boundary: str) -> Any:
    """The part of the padded whole array that is a rank's block."""
    place = zip(region.start, region.stop, widths, strict=True)
    return padded(whole, widths, boundary, 7)[tuple(slice(a, b + low + high) for a, b, (low, high) in place)]


@st.composite
def splits(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
    """A shape, with fewer cells than ranks too, a grid of ranks and the widths of a halo."""
    grid = draw(st.sampled_from(GRIDS))
    shape = tuple(draw(st.integers(1, 9)) for _ in range(draw(st.integers(len(grid), 3))))
    widths = tuple(draw(st.tuples(st.integers(0, min(3, n)), st.integers(0, min(3, n)))) for n in shape)
    return shape, grid, widths


@settings(max_examples=max(settings.default.max_examples // 4, 1))
@given(split=splits(), boundary=st.sampled_from(BOUNDARIES), dtype=st.sampled_from(DTYPES))
def test_an_exchange_fills_the_halo(split: Any, boundary: Any, dtype: str) -> None:
    shape, grid, widths = split
    whole = values(shape, dtype)

    def body(world: World) -> Any:
        array = meshrun.load(
            world, MemorySource(whole), halo=list(widths), boundary=boundary, cval=7, split=grid
        )
        assert (array.shape, array.dtype, array.is_stale) == (shape, whole.dtype, widths != array.valid)
        array.exchange()
        assert not array.is_stale
        return array.region, array.block.copy(), array.interior.copy()

    for region, block, interior in on_ranks(int(np.prod(grid)), body):
        assert block.shape == tuple(
            low + n + high for (low, high), n in zip(widths, region.shape, strict=True)
        )
        np.testing.assert_array_equal(interior, whole[region.slices])
        if region.size:
            np.testing.assert_array_equal(block, halo_of(whole, region, widths, boundary))


@settings(max_examples=max(settings.default.max_examples // 4, 1))
@given(data=st.data(), split=splits(), boundary=st.sampled_from(BOUNDARIES))
def test_an_exchange_moves_what_is_stale_and_nothing_else(data: Any, split: Any, boundary: Any) -> None:
    """What is said to be valid is not received: it holds other values afterwards."""
    shape, grid, widths = split
    whole = values(shape, "f8")
    valid = tuple((data.draw(st.integers(0, low)), data.draw(st.integers(0, high))) for low, high in widths)

    def body(world: World) -> Any:
        array = meshrun.load(
            world, MemorySource(whole), halo=list(widths), boundary=boundary, cval=7, split=grid
        )
        array.exchange()
        array.valid = valid
        known = tuple(
            slice(low - a, low + n + b)
            for (low, _), (a, b), n in zip(widths, valid, array.region.shape, strict=True)
        )
        stale = np.ones(array.block.shape, bool)
        stale[known] = False
        array.block[stale] = np.nan
        received = len(array.layout.stale(valid)[1])
        exchange([array])
        return array.region, array.block.copy(), received, len(array.layout.receives)

    for region, block, received, of_whole_halo in on_ranks(int(np.prod(grid)), body):
        if region.size:
            np.testing.assert_array_equal(block, halo_of(whole, region, widths, boundary))
            assert received <= of_whole_halo
            assert received == 0 or valid != widths


@settings(max_examples=max(settings.default.max_examples // 4, 1))
@given(data=st.data(), split=splits(), boundary=st.sampled_from(BOUNDARIES))
def test_arrays_of_several_sizes_share_a_partition_of_space(data: Any, split: Any, boundary: Any) -> None:
    """Faces, coarse grids, and levels with fewer cells than ranks."""
    shape, grid, _ = split
    every = tuple(data.draw(st.integers(1, 4)) for _ in shape)
    other = tuple(-(-n // step) + data.draw(st.integers(0, 1)) for n, step in zip(shape, every, strict=True))
    widths = tuple((min(2, n), min(1, n)) for n in other)
    whole, fine = values(other, "f4"), Partition(shape, (*grid, *[1] * (len(shape) - len(grid))))
    coarse = fine.of_size(other, every)
    for cell in np.ndindex(*other):
        place = [fine.owner(axis, min(i * every[axis], shape[axis] - 1)) for axis, i in enumerate(cell)]
        assert whole[coarse[fine.rank(place)].slices].size
        assert [coarse.owner(axis, i) for axis, i in enumerate(cell)] == place

    def body(world: World) -> Any:
        array = load_arrays(
            world,
            [MemorySource(whole)],
            [HaloPlan(coarse, world.rank, widths, boundary, 7, padded=True)],
            world.phases,
        )[0]
        array.exchange()
        again = array.redistribute(0).redistribute(grid)
        return array.region, array.block, array.sum().tobytes(), again.sum().tobytes()

    found = on_ranks(fine.size, body)
    assert len({total for *_, one, two in found for total in (one, two)}) == 1
    for region, block, *_ in found:
        if region.size:
            np.testing.assert_array_equal(block, halo_of(whole, region, widths, boundary))


def test_faces_stay_with_their_cells() -> None:
    """Also where the last ranks have no cells."""
    faces = Partition((2, 4), (3, 2)).of_size((3, 5), (1, 1))
    assert [faces.bounds(0, part) for part in range(3)] == [(0, 1), (1, 3), (3, 3)]
    assert [faces.bounds(1, part) for part in range(2)] == [(0, 2), (2, 5)]


def test_what_is_written_after_an_exchange_is_exchanged_by_the_next() -> None:
    """A view of the interior may be kept: an exchange does not ask what has been written."""

    def body(world: World) -> Any:
        array = meshrun.load(world, MemorySource(np.zeros(6)), halo=1, boundary="wrap")
        interior = array.interior
        for number in (1, 2):
            interior[...] = 10 * number + world.rank
            array.exchange()
        return array.block.tolist()

    assert on_ranks(3, body) == [[22, 20, 20, 21], [20, 21, 21, 22], [21, 22, 22, 20]]


def test_a_sum_of_half_precision_is_rounded_once() -> None:
    whole = MemorySource(np.array([2048, 1, 1, 0, 0], np.float16))  # half precision has no 2049
    assert [float(total) for total in on_ranks(2, lambda world: meshrun.load(world, whole).sum())] == [
        2050
    ] * 2


def test_sides_that_are_valid_are_not_received() -> None:
    plan = HaloPlan(Partition((12, 5), (3, 1)), 1, ((2, 1), (0, 0)), "nearest")
    sent, received = plan.stale(((2, 0), (0, 0)))
    assert [(one.sender, one.receiver) for one in (*sent, *received)] == [(1, 0), (2, 1)]


@settings(max_examples=max(settings.default.max_examples // 4, 1))
@given(split=splits(), dtype=st.sampled_from(DTYPES), large=st.booleans())
def test_reductions_have_the_same_bits_on_any_ranks(split: Any, dtype: str, large: bool) -> None:
    shape, grid, _ = split
    if large and dtype != "f2":  # whose sums would be infinite
        shape = tuple(41 * n for n in shape[:2]) + shape[2:]
    one, two = values(shape, dtype), values(shape, dtype, 1)

    def body(world: World) -> list[Any]:
        parts = grid if world.size > 1 else (1,)
        a, b = (meshrun.load(world, MemorySource(whole), halo=1, split=parts) for whole in (one, two))
        return [a.sum(), a.min(), a.max(), a.dot(b)]

    (alone,) = on_ranks(1, body)
    for found in on_ranks(int(np.prod(grid)), body):
        assert [(x.tobytes(), x.dtype, x.shape) for x in found] == [(x.tobytes(), x.dtype, ()) for x in alone]
    exact = np.result_type(dtype, "f8" if one.dtype.kind in "fc" else "i8")
    product = one.astype(exact) * two
    for got, expected, like in zip(
        alone,
        [one.astype(exact).sum(), one.min(), one.max(), product.sum()],
        [one.sum(), one.min(), one.max(), one.sum()],
        strict=True,
    ):
        assert got.dtype == like.dtype
        eps = np.finfo(dtype).eps if one.dtype.kind in "fc" else 0
        assert abs(exact.type(got) - expected) <= eps * (abs(product).sum() + abs(one.astype(exact)).sum())


def test_reductions_of_large_rows_go_through_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = MemorySource(values((40, 33, 7), "f4"))

    def body(world: World) -> bytes:
        bits: bytes = meshrun.load(world, whole, split=1).sum().tobytes()
        return bits

    (once,) = set(on_ranks(3, body))
    monkeypatch.setattr("meshrun.runner.arrays.reduce.SLAB", 100)
    assert set(on_ranks(2, body)) == {once}


def test_reductions_without_cells() -> None:
    def body(world: World) -> Any:
        array = meshrun.load(world, MemorySource(np.zeros((0, 3), "i2")))
        with pytest.raises(UserError, match="max of an array without cells"):
            array.max()
        return array.sum()

    assert [(found.shape, found.dtype, int(found)) for found in on_ranks(2, body)] == [((), "i8", 0)] * 2


@settings(max_examples=max(settings.default.max_examples // 4, 1))
@given(split=splits(), to=st.sampled_from(GRIDS), dtype=st.sampled_from(DTYPES))
def test_cells_move_to_any_other_partition(split: Any, to: Any, dtype: str) -> None:
    shape, grid, widths = split
    ranks = int(np.prod(grid))
    after = to if int(np.prod(to)) == ranks and len(to) <= len(shape) else len(shape) - 1
    whole = values(shape, dtype)

    def body(world: World) -> Any:
        moved = meshrun.load(world, MemorySource(whole), halo=list(widths), split=grid).redistribute(after)
        moved.exchange()
        return moved.region, moved.block.copy()

    for region, block in on_ranks(ranks, body):
        if region.size:
            np.testing.assert_array_equal(block, halo_of(whole, region, widths, "reflect"))


def test_a_plan_moves_cells_as_often_as_they_change() -> None:
    """From the interior of one array into that of another; what was in the halo counts as stale."""
    whole = values((9, 7), "f8")

    def body(world: World) -> None:
        rows = meshrun.load(world, MemorySource(whole), halo=1)
        columns = rows.redistribute(1)
        plan = RedistributionPlan(rows.partition, columns.partition, world.size)
        for factor in (1, 3):
            rows.interior[...] *= factor
            columns.exchange()
            redistribute(plan, rows, columns)
            np.testing.assert_array_equal(columns.interior, factor * whole[columns.region.slices])
            assert not any(map(any, columns.valid))

    on_ranks(3, body)


@pytest.mark.parametrize("suffix", [".npy", ".h5:/a", ".zarr", ".png"])
def test_what_is_saved_is_loaded(tmp_path: Path, suffix: str) -> None:
    """Also over an old file, and of a picture, which one rank reads and writes whole."""
    pytest.importorskip({".h5:/a": "h5py", ".zarr": "zarr"}.get(suffix, "numpy"))
    whole, path = values((9, 7), "u1"), f"{tmp_path}/a{suffix}"

    def body(world: World) -> Any:
        for old in (whole[::-1], whole):
            meshrun.save(world, path, meshrun.load(world, MemorySource(old), halo=1, split=1))
        found = meshrun.load(world, path, halo=((2, 0),), boundary="wrap")
        found.exchange()
        return found.region, found.block

    for region, block in on_ranks(3, body):
        np.testing.assert_array_equal(block, halo_of(whole, region, ((2, 0), (0, 0)), "wrap"))
    assert [one.name for one in tmp_path.iterdir()] == ["a" + suffix.partition(":")[0]]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.zeros(4))

    def full(sink: Any, region: Region, array: Any) -> None:
        if region.start[0]:
            raise RunError("no space left")

    monkeypatch.setattr("meshrun.runner.storage.formats.npy.NpySink.write", full)

    def body(world: World) -> None:
        with pytest.raises(RunError, match="no space left"):
            meshrun.save(world, tmp_path / "a.npy", meshrun.load(world, MemorySource(np.ones(4))))

    on_ranks(2, body)
    assert [one.name for one in tmp_path.iterdir()] == ["a.npy"]
    assert not np.load(tmp_path / "a.npy").any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": 2}, "cannot be split along this axis: got 2"),
        ({"split": (3, 1)}, "cannot be split into such parts: got 3x1"),
        ({"split": (2, 1, 1)}, "cannot be split into such parts"),
        ({"halo": 5}, "halo is wider than the array along axis 0"),
        ({"halo": -1}, "halo must be a number of cells"),
        ({"boundary": "bounce"}, "unknown boundary"),
    ],
)
def test_what_an_array_cannot_have(arguments: Any, message: str) -> None:
    """Every rank gets the error, and the ranks can go on."""

    def body(world: World) -> None:
        with pytest.raises(UserError, match=message):
            meshrun.load(world, MemorySource(np.zeros((4, 6))), **arguments)
        world.control.barrier()

    on_ranks(2, body)


def test_arrays_that_are_split_differently_have_no_dot() -> None:
    def body(world: World) -> None:
        array = meshrun.load(world, MemorySource(np.zeros((4, 6))))
        with pytest.raises(UserError, match="dot of two arrays that are split differently"):
            array.dot(array.redistribute(1))
        with pytest.raises(UserError, match="cannot be split along this axis"):
            array.redistribute(2)

    on_ranks(2, body)


def test_a_new_array_is_like_another() -> None:
    def body(world: World) -> None:
        array = meshrun.load(world, MemorySource(np.zeros((4, 6), "f4")), halo=1, boundary="wrap")
        other = array.empty_like("f8")
        assert (other.dtype, other.shape, other.layout) == (np.float64, array.shape, array.layout)
        assert np.isnan(other.block).all()  # what is not filled shows
        assert other.is_stale

    on_ranks(2, body)
