"""Functions of whole arrays that combine features: NumPy's results on ranks, grids, chunks and in kernels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from combined_functions import FEATURES, STEPS, Combined, combined, constants
from hypothesis import given, settings
from hypothesis import strategies as st
from step_runs import stepped

from meshrun.runner.errors import UserError
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.system.compiler import find_compiler

ROUNDED = {4: 2e-4, 8: 1e-11}  # of the largest value, by the size of the coarsest float
WAYS: list[dict[str, Any]] = [
    {"ranks": 1}, {"ranks": 2}, {"ranks": 5}, {"ranks": 3, "grid": "1x3"}, {"ranks": 4, "grid": "2x2"},
    {"ranks": 2, "steps_per_exchange": 2}, {"ranks": 2, "copies": "one"},
    {"ranks": 2, "stream": StreamOptions(chunk_bytes=4096)},
]  # fmt: skip
IN_MEMORY = ("reductions or arrays between stages", "series, which are not computed in chunks")


@pytest.fixture(scope="module", autouse=True)
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is compiled for all tests of this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def check(folder: Path, random: Random, features: set[str], ways: list[dict[str, Any]], fuse: Any) -> None:
    """Compare runs of a function that is drawn with NumPy's results, and with each other to the bit."""
    case = combined(random, features)
    space = constants(case.arrays[0].shape, random.randrange(100), random.choice(("f4", "f8")))
    job, rate, steps = case.job(space), random.choice((0.1, 0.125)), random.randint(1, STEPS)
    wanted, first = case.after(job, steps, rate), None
    for number, way in enumerate(ways):
        outputs = [folder / f"{number}_{name}.npy" for name in (*case.outputs, *case.series)]
        verify = "off" if "stream" in way else "full"
        try:
            found, _ = stepped(
                folder, job, case.arrays, steps, parameters=case.parameters(rate), outputs=outputs, fuse=fuse,
                verify=verify, **way,
            )  # fmt: skip
        except UserError as refused:
            if ("stream" in way or "copies" in way) and any(reason in str(refused) for reason in IN_MEMORY):
                continue
            raise
        compare(case, found, wanted, way)
        first = first or found
        assert [one.tobytes() for one in found] == [one.tobytes() for one in first], f"{way}\n{case.text}"


def compare(case: Combined, found: list[Any], wanted: list[Any], way: Any) -> None:
    size = min(np.zeros(0, one.dtype).real.itemsize for one in case.arrays)
    for one, want in zip(found, wanted, strict=True):
        assert (one.dtype, one.shape) == (want.dtype, want.shape)
        if case.exact:
            np.testing.assert_array_equal(one, want, err_msg=f"{way}\n{case.text}")
        else:
            near = ROUNDED[size] * float(np.abs(want[np.isfinite(want)]).max(initial=0))
            np.testing.assert_allclose(one, want, rtol=0, atol=near, err_msg=f"{way}\n{case.text}")


RANDOM = st.randoms(use_true_random=False)
SOME = st.sets(st.sampled_from(FEATURES), max_size=4)


@settings(max_examples=max(settings.default.max_examples // 5, 1))
@given(random=RANDOM, features=SOME, ways=st.permutations(WAYS))
def test_random_functions_are_numpys(
    tmp_path_factory: Any, random: Random, features: set[str], ways: list[dict[str, Any]]
) -> None:
    """The function is called; it is verified, too."""
    check(tmp_path_factory.mktemp("run"), random, features, [WAYS[0], *ways[:2]], "off")


@pytest.mark.nightly
@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
@settings(max_examples=max(settings.default.max_examples // 5, 1))
@given(random=RANDOM, features=SOME, ways=st.permutations(WAYS))
def test_random_functions_in_kernels_are_numpys(
    tmp_path_factory: Any, random: Random, features: set[str], ways: list[dict[str, Any]]
) -> None:
    check(tmp_path_factory.mktemp("run"), random, features, [WAYS[0], *ways[:2]], "require")


PAIRS = list(itertools.combinations(FEATURES, 2))


@pytest.mark.parametrize("part", range(4))
def test_each_pair_of_features(tmp_path: Path, part: int) -> None:
    """Every pair is in some function."""
    pairs = PAIRS[part::4]
    for number, (one, other) in enumerate(pairs):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        way = WAYS[1 + number % (len(WAYS) - 1)]
        check(folder, Random(part * 100 + number), {one, other}, [way], "off")


def test_a_function_is_planned_anew_for_what_it_reads(tmp_path: Path) -> None:
    """Other parameters, globals, a table, a number of steps: each changes the results in one process."""
    case = combined(Random(4), {"constants", "time", "edges", "exact"})
    space = constants(case.arrays[0].shape, 1, "f8")
    job = case.job(space)
    changes = [
        (0.1, 2, ""),
        (0.2, 2, ""),
        (0.2, 3, ""),
        (0.2, 3, "PLATE"),
        (0.2, 3, "LINE"),
        (0.2, 3, "table"),
    ]
    for number, (rate, steps, change) in enumerate([*changes, (0.1, 2, "")]):
        if change == "table":
            case.table = case.table * np.float32(0.5)
        elif change:
            space[change] = space[change] + 1  # another array
            space["COLUMN"][2] += 1  # the same one, changed in place
        wanted = case.after(job, steps, rate)
        outputs = [tmp_path / f"{number}_{name}.npy" for name in case.outputs]
        found, _ = stepped(
            tmp_path, job, case.arrays, steps, parameters=case.parameters(rate), outputs=outputs, ranks=2
        )
        compare(case, found, wanted, change)
        called = job.iterate(*case.arrays, steps=steps, **case.parameters(rate))
        compare(case, list(called), wanted, change)
