"""Results that are longer or shorter than the input along split axes: every run gives what NumPy gives."""

from __future__ import annotations

import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from factor_cases import Case, cases
from hypothesis import given
from hypothesis import strategies as st
from queued_device import QueuedBackend

from runner.comm.threads import run_ranks
from runner.plan.stream_options import StreamOptions
from runner.run.execute import Options, run
from runner.world.world import open_world

HALF = Fraction(1, 2)


def run_on(
    ranks: int, job: Any, sources: Any, targets: Any, *, device: bool = False, **options: Any
) -> dict[str, Any]:
    """The run's record. device: on a device that copies late, instead of the CPU."""

    def rank(control: Any) -> dict[str, Any]:
        world = open_world("cpu", control=control)
        if device:
            world.backend = QueuedBackend()
        return run(job, sources, targets, {}, Options(**options), world=world)

    return run_ranks(ranks, rank, timeout=20)[0]


def check(case: Case, ranks: int, **options: Any) -> dict[str, Any]:
    """Run it, verify every cell, and compare with NumPy."""
    with tempfile.TemporaryDirectory() as folder:
        sources = [Path(folder, f"in{number}.npy") for number in range(case.inputs)]
        targets = [Path(folder, f"out{number}.npy") for number in range(len(case.factors))]
        for path, array in zip(sources, case.arrays, strict=True):
            np.save(path, array)
        record = run_on(ranks, case.job, sources, targets, verify="full", **options)
        for path, expected in zip(targets, case.expected, strict=True):
            np.testing.assert_array_equal(np.load(path), expected)
    assert record["verify"]["cells"] == np.prod(case.shape)
    return record


def grids(ndim: int) -> Any:
    chosen = st.integers(1, ndim).map(lambda axes: "x".join("0" * axes))
    return st.none() | chosen


@given(cases(), st.integers(1, 5), st.booleans(), st.booleans(), st.data())
def test_every_cut_gives_what_numpy_gives(
    case: Case, ranks: int, overlap: bool, device: bool, data: st.DataObject
) -> None:
    grid = data.draw(grids(len(case.shape)))
    record = check(case, ranks, grid=grid, overlap=overlap, device=device)
    assert record["stream"] is None


@given(cases(), st.integers(1, 3), st.booleans(), st.data())
def test_every_chunk_gives_what_numpy_gives(
    case: Case, ranks: int, device: bool, data: st.DataObject
) -> None:
    grid = data.draw(grids(len(case.shape)) | st.sampled_from(["2", "5"]))
    row = 4 * int(np.prod([n + sum(w) for n, w in zip(case.shape[1:], case.widths[1:], strict=True)]))
    least = (case.units[0] + sum(case.widths[0])) * row * case.inputs
    stream = StreamOptions(
        chunk_bytes=least + data.draw(st.integers(0, 4 * least)),
        depth=data.draw(st.integers(1, 3)),
        static=data.draw(st.booleans()),
    )
    record = check(case, ranks, grid=grid, stream=stream, device=device)
    assert record["stream"]["rows"] % case.units[0] == 0


@given(cases())
def test_a_call_gives_what_numpy_gives(case: Case) -> None:
    found = case.job(*case.arrays)
    for one, expected in zip(found if len(case.factors) > 1 else [found], case.expected, strict=True):
        np.testing.assert_array_equal(one, expected)
