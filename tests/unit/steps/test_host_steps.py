"""Several steps of a compiled function on a CPU, in one call: the same bits as one step after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from step_runs import plain_loop, stepped

import meshrun
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.system.compiler import find_compiler


@pytest.fixture(scope="module", autouse=True)
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Keep what is compiled for all tests of this module."""
    if find_compiler() is None:
        pytest.skip("needs a C++ compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@meshrun.map_blocks(halo=((1, 2), (2, 1)), outputs=2, feeds=("now", "before"), fuse="require")
def uneven(now: Any, before: Any, mask: Any) -> Any:
    """Read every neighbour with another weight."""
    inner = now[1:-2, 2:-1]
    sums = now[:-3, 2:-1] * 3 + now[3:, :-3] * 5 + now[2:-1, 3:] * 7 - before[1:-2, 1:-2] * 11
    return sums + inner * mask[1:-2, 2:-1], inner + 1


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(
    ("ranks", "grid", "every", "steps"),
    [(1, None, None, 9), (2, None, None, 16), (3, None, 3, 7), (4, "2x2", 2, 6), (2, "1x2", None, 5)],
)
def test_the_bits_are_those_of_a_plain_loop(
    tmp_path: Path, boundary: str, ranks: int, grid: str | None, every: int | None, steps: int
) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.integers(0, 1000, (67, 53), np.uint32) for _ in range(3)]
    more: dict[str, Any] = {"cval": 4.0} if boundary == "constant" else {}
    results, record = stepped(
        tmp_path, uneven, arrays, steps, ranks=ranks, grid=grid, boundary=boundary,
        steps_per_exchange=every, **more,
    )  # fmt: skip
    assert record["steps"]["steps_per_kernel"] == min(every or 8, 8)
    widths, feeds = ((1, 2), (2, 1)), (0, 1)
    wanted = plain_loop(uneven.function, arrays, steps, widths, boundary, feeds, 4.0)
    for result, expected in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("boundary", ["wrap", "constant"])
@pytest.mark.parametrize(("ranks", "grid"), [(1, None), (3, "3x1"), (2, "1x2")])
def test_so_are_those_of_fields_in_one_copy(
    tmp_path: Path, boundary: str, ranks: int, grid: str | None
) -> None:
    """Compiled loops write each row where an earlier band was; steps are taken one by one."""
    rng = np.random.default_rng(3)
    arrays = [rng.integers(0, 1000, (167, 53), np.uint32) for _ in range(3)]
    more: dict[str, Any] = {"cval": 4.0} if boundary == "constant" else {}
    results, record = stepped(
        tmp_path, uneven, arrays, 5, ranks=ranks, grid=grid, boundary=boundary, copies="one", **more
    )
    assert (record["steps"]["copies"], record["steps"]["steps_per_kernel"]) == (1, 1)
    wanted = plain_loop(uneven.function, arrays, 5, ((1, 2), (2, 1)), boundary, (0, 1), 4.0)
    for result, expected in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("until", [None, -1.0])
def test_so_are_those_of_fields_in_chunks(tmp_path: Path, boundary: str, until: float | None) -> None:
    rng = np.random.default_rng(2)
    arrays = [rng.integers(0, 1000, (200, 31), np.uint32) for _ in range(3)]
    more: dict[str, Any] = {"cval": 4.0} if boundary == "constant" else {}
    if until is not None:
        more |= {"until": 0.0, "every": 5}
    results, record = stepped(
        tmp_path,
        uneven,
        arrays,
        11,
        ranks=2,
        boundary=boundary,
        stream=StreamOptions(chunk_bytes=40_000),
        **more,
    )
    assert record["steps"]["passes"] is not None
    wanted = plain_loop(uneven.function, arrays, 11, ((1, 2), (2, 1)), boundary, (0, 1), 4.0)
    for result, expected in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result, expected)
