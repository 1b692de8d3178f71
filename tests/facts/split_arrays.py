"""NumPy arrays split over ranks that are threads, and whole again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from meshrun.runner.arrays.distributed_array import DistributedArray
from meshrun.runner.arrays.tools.cells import made_of
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.plan.grid import Partition
from meshrun.runner.world.world import World, open_world

GRIDS = [(1,), (2,), (3,), (5,), (1, 2), (1, 3), (2, 2), (1, 1, 3)]
DTYPES = ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", "M8[s]", "m8[us]"]
SPECIAL = [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf]


def on_ranks(ranks: int, body: Callable[[World], Any]) -> list[Any]:
    """Return what `body` returns on each of some ranks."""
    return run_ranks(ranks, lambda control: body(open_world("cpu", control=control)))


def split(world: World, whole: Any, grid: Any = (1,), starts: Any = ()) -> DistributedArray:
    """Return an array that is split over the ranks. starts: where blocks begin along axis 0."""
    rest = whole.ndim - len(grid)
    cuts = (tuple(starts), *((0,),) * rest) if starts else ()
    partition = Partition(whole.shape, (*grid, *(1,) * rest), starts=cuts)
    return made_of(world, partition, whole[partition[world.rank].slices].copy())


def joined(arrays: list[DistributedArray]) -> Any:
    """Return the whole array of what each rank has."""
    whole = np.full(arrays[0].shape, 99, arrays[0].dtype)
    for rank, array in enumerate(arrays):
        assert array.partition == arrays[0].partition
        assert array.region == array.partition[rank]
        whole[array.region.slices] = array.interior
    return whole


def same(ours: Any, numpys: Any) -> None:
    """Assert that arrays have the same dtype, shape and bits."""
    ours, numpys = np.asarray(ours), np.asarray(numpys)
    assert (ours.dtype, ours.shape) == (numpys.dtype, numpys.shape)
    if ours.tobytes() != numpys.tobytes():
        np.testing.assert_array_equal(ours, numpys)
        raise AssertionError(f"equal, but not of the same bits: {ours!r}, {numpys!r}")


def values(dtype: str, size: int, seed: int, kind: str = "random") -> Any:
    """Return values of a dtype. kind: random, few (with many equal ones), equal, special (NaN, -0.0)."""
    random = np.random.default_rng(seed)
    if kind == "equal":
        return np.ones(size).astype(dtype)
    if kind == "few":
        return random.integers(0, 4, size).astype(dtype)
    if dtype[0] in "fc":
        cells = random.lognormal(0, 3, size) * random.choice([-1, 1], size)
        if kind == "special":
            cells = np.where(random.random(size) < 0.6, random.choice(SPECIAL, size), cells)
        if dtype[0] == "c":
            other = np.where(random.random(size) < 0.5, random.choice(SPECIAL, size), 1.0)
            both = np.empty(size, "c16")
            both.real, both.imag = cells, other if kind == "special" else random.permutation(cells)
            return both.astype(dtype)
        with np.errstate(over="ignore"):
            return cells.astype(dtype)
    cells = random.integers(0, 2**63, size, dtype="u8", endpoint=True)
    if kind == "special" and dtype[0] in "mM":
        return np.where(random.random(size) < 0.3, np.array("NaT", dtype), (cells >> 20).astype(dtype))
    return (cells if dtype[0] in "iu" else cells >> 20).astype(dtype)


@st.composite
def split_values(draw: st.DrawFn, dtypes: Any = DTYPES, most: int = 40, axes: int = 3) -> Any:
    """A whole array, and a grid of ranks: fewer cells than ranks, no cells, equal cells too."""
    grid = draw(st.sampled_from([grid for grid in GRIDS if len(grid) <= axes]))
    ndim = draw(st.integers(len(grid), axes))
    longest = most if ndim == 1 else 7
    shape = tuple(draw(st.integers(0, longest)) for _ in range(ndim))
    kind = draw(st.sampled_from(["random", "few", "equal", "special"]))
    cells = values(draw(st.sampled_from(dtypes)), int(np.prod(shape)), draw(st.integers(0, 99)), kind)
    return cells.reshape(shape), grid
