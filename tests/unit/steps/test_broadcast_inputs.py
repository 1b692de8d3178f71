"""Inputs of `map_blocks` that broadcast as in NumPy: the bits of the function on whole padded arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pairs import pairs_by_day
from step_runs import PAD, stepped

import meshrun
from meshrun.runner.errors import UserError
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.system.compiler import find_compiler

SHAPE = 17, 13
STEPS = 5


@pytest.fixture(scope="module", autouse=True)
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is compiled for all tests of this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def spread(u: Any, column: Any, row: Any, line: Any, number: Any) -> Any:
    """Each has the halo of its own axes: (n, 1), (1, m), (m,) and () beside (n, m)."""
    own = u[1:-1, 1:-1]
    slope = (column[2:] - column[:-2]) * own + (row[:, 2:] - row[:, :-2]) * u[2:, 1:-1]
    return own * 0.5 + 0.125 * slope + line[1:-1] * number - 0.25 * line[2:] * u[1:-1, :-2]


def arrays() -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.random(shape) for shape in (SHAPE, (SHAPE[0], 1), (1, SHAPE[1]), (SHAPE[1],), ())]


def padded(array: Any, boundary: str) -> Any:
    """The array with a halo along the axes that it has more than one cell of."""
    widths = [(0, 0) if n == 1 else (1, 1) for n in array.shape]
    if not array.ndim:
        return array
    if boundary == "constant":
        return np.pad(array, widths, constant_values=2.5)
    return np.pad(array, widths, PAD[boundary])


@pairs_by_day(
    boundary=("constant", "wrap", "mirror"),
    ranks__grid=((1, None), (3, None), (4, "2x2"), (2, "1x2")),
    fuse=("off", "require"),
)
def test_inputs_that_broadcast_take_steps(
    tmp_path: Path, boundary: Any, ranks: int, grid: str | None, fuse: Any
) -> None:
    if fuse == "require" and find_compiler() is None:
        pytest.skip("needs a C++ compiler")
    job = meshrun.map_blocks(halo=1, boundary=boundary, cval=2.5)(spread)
    u, *others = arrays()
    for _ in range(STEPS):
        u = spread(*(padded(one, boundary) for one in (u, *others)))
    (found,), _ = stepped(tmp_path, job, arrays(), STEPS, ranks=ranks, grid=grid, fuse=fuse, verify="full")
    np.testing.assert_array_equal(found, u)
    assert np.array_equal(job.iterate(*arrays(), steps=STEPS), u)
    if grid is None:
        stream = StreamOptions(chunk_bytes=6000)
        (found,), _ = stepped(
            tmp_path, job, arrays(), STEPS, ranks=ranks, fuse=fuse, verify="full", stream=stream
        )
        np.testing.assert_array_equal(found, u)


def test_one_pass_over_files_and_a_call_are_the_same(tmp_path: Path) -> None:
    job = meshrun.map_blocks(halo=1, boundary="nearest")(spread)
    expected = spread(*(padded(one, "nearest") for one in arrays()))
    names = [tmp_path / f"{number}.npy" for number in range(5)]
    for path, one in zip(names, arrays(), strict=True):
        np.save(path, one)
    for fuse in ("off", "require"):
        job.run(names, tmp_path / "out.npy", verify="full", fuse=fuse)
        np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)
    np.testing.assert_array_equal(job(*arrays()), expected)


def test_inputs_that_share_their_first_axes_stay_as_they_are() -> None:
    """As before: (n, m) beside (n,), whose axes are the first ones."""

    @meshrun.map_blocks
    def scaled(u, k):
        return u * k[:, None]

    u, k = np.ones((4, 4)), np.arange(4.0)
    np.testing.assert_array_equal(scaled(u, k), u * k[:, None])


def test_shapes_that_do_not_broadcast_are_refused_with_both() -> None:
    job = meshrun.map_blocks(halo=1)(lambda u, k: u[1:-1, 1:-1] * k[1:-1, 1:-1])
    with pytest.raises(UserError) as refused:
        job(np.ones((8, 6)), np.ones((5, 1)))
    assert "8x6" in str(refused.value)
    assert "5x1" in str(refused.value)
    assert "broadcasts" in str(refused.value)


def test_an_input_that_broadcasts_cannot_be_fed() -> None:
    @meshrun.map_blocks(halo=1, outputs=2)
    def both(u, k):
        return u[1:-1, 1:-1], u[1:-1, 1:-1] * k[1:-1]

    with pytest.raises(UserError, match="cannot become its input k"):
        both.iterate(np.ones((8, 6)), np.ones((8, 1)), steps=2)
