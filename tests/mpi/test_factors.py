"""Results that are longer or shorter than the input, on MPI's ranks, against NumPy on the whole array."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factor_cases import Case

from meshrun.runner.errors import UserError
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import World

pytestmark = pytest.mark.mpi
HALO = ((1, 2), (2, 1))


def factors(*pairs: tuple[int, int]) -> tuple[Fraction, ...]:
    return tuple(Fraction(*pair) for pair in pairs)


CASES = {
    "half": Case((50, 34), (factors((1, 2), (1, 2)),), HALO, "mirror"),
    "filled": Case((50, 34), (factors((1, 2), (1, 2)),), HALO, "wrap", filled=True),
    "double": Case((17, 13), (factors((2, 1), (2, 1)),), HALO, "reflect"),
    "two thirds": Case((42, 27), (factors((2, 3), (3, 1)),), ((4, 4), (0, 0)), "constant"),
    "two of two": Case(
        (30, 24), (factors((1, 2), (1, 1)), factors((2, 3), (1, 4))), HALO, "nearest", inputs=2
    ),
    "few rows": Case((4, 6), (factors((1, 2), (1, 2)),), HALO, "mirror"),
}


def check(world: World, folder: Path, case: Case, **options: Any) -> dict[str, Any]:
    sources = [folder / f"in{number}.npy" for number in range(case.inputs)]
    targets = [folder / f"out{number}.npy" for number in range(len(case.factors))]
    for path, array in zip(sources, case.arrays, strict=True):
        world.on_root(lambda path=path, array=array: np.save(path, array))
    record = run(case.job, sources, targets, {}, Options(verify="full", **options), world=world)
    assert record["ranks"] == world.size
    for path, expected in zip(targets, case.expected, strict=True):
        np.testing.assert_array_equal(np.load(path), expected)
    return record


@pytest.mark.mpi_library
@pytest.mark.parametrize("grid", [None, "0x0"])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_in_memory(world: World, folder: Path, name: str, grid: str | None, overlap: bool) -> None:
    check(world, folder, CASES[name], grid=grid, overlap=overlap)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_in_chunks(world: World, folder: Path, name: str, static: bool) -> None:
    record = check(world, folder, CASES[name], stream=StreamOptions(chunk_bytes=3000, static=static))
    assert record["stream"]["rows"] % CASES[name].units[0] == 0


def test_a_length_that_does_not_divide_is_refused_on_every_rank(world: World, folder: Path) -> None:
    case = replace(CASES["half"], shape=(51, 34))
    with pytest.raises(UserError, match=r"along axis 0, .* got 51, expected a multiple of 2, such as 52"):
        check(world, folder, case)
