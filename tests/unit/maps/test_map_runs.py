"""Whole runs on simulated ranks, from file to file, against scipy.ndimage's own answers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

import meshrun
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import MeshrunError, RunError, UserError
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

CHUNKS = StreamOptions(chunk_bytes=64)


def run_simulated(job: Any, ranks: int, source: Path, target: Path | None, **options: Any) -> dict[str, Any]:
    """The job's record from `ranks` simulated ranks."""
    parameters = options.pop("parameters", {})

    def rank(control: Any) -> dict[str, Any]:
        world = open_world("cpu", control=control)
        return run(job, source, target, parameters, Options(**options), world=world)

    return run_ranks(ranks, rank)[0]


def correlation(kernel: np.ndarray, halo: Any) -> Any:
    """A job that correlates with `kernel`, by sums of shifted views."""

    @meshrun.map_blocks(halo=halo)
    def correlate(block: Any, *, out: Any) -> None:
        out[...] = 0
        for index in np.ndindex(*kernel.shape):
            window = tuple(slice(i, i + n) for i, n in zip(index, out.shape, strict=True))
            out[...] += kernel[index] * block[window]

    return correlate


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, ...]:
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.sampled_from([1, 2, 3, 5, 7, 8, 13, 17])) for _ in range(ndim))
    size = tuple(draw(st.integers(1, min(4, n + 1))) for n in shape)
    ranks = draw(st.integers(1, 8))
    grid = draw(st.sampled_from([None, "x".join("0" * ndim)]))
    boundary = draw(st.sampled_from(BOUNDARIES))
    overlap = draw(st.booleans())
    return shape, size, ranks, grid, boundary, overlap, draw(st.integers(0, 2**32 - 1))


@given(cases())
def test_every_cut_gives_what_scipy_gives(case: tuple[Any, ...]) -> None:
    shape, size, ranks, grid, boundary, overlap, seed = case
    generator = np.random.default_rng(seed)
    array = generator.integers(-1000, 1000, shape).astype(np.float64)
    kernel = generator.integers(-9, 9, size).astype(np.float64)
    halo = [(n // 2, n - 1 - n // 2) for n in size]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.npy"), Path(folder, "out.npy")
        np.save(source, array)
        run_simulated(
            correlation(kernel, halo),
            ranks,
            source,
            target,
            grid=grid,
            boundary=boundary,
            cval=7.0 if boundary == "constant" else None,
            overlap=overlap,
            verify="full",
        )
        # Whole numbers: every order of summation gives the same bits.
        wanted = ndimage.correlate(array, kernel, mode=boundary, cval=7.0)
        np.testing.assert_array_equal(np.load(target), wanted)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (3, 0, 4)])
@pytest.mark.parametrize("ranks", [1, 3])
def test_arrays_without_cells_come_out_without_cells(
    tmp_path: Path, shape: tuple[int, ...], ranks: int
) -> None:
    np.save(tmp_path / "in.npy", np.empty(shape, np.float32))
    job = meshrun.map_blocks(lambda block: block + 1)
    run_simulated(job, ranks, tmp_path / "in.npy", tmp_path / "out.npy", verify="full")
    assert np.load(tmp_path / "out.npy").shape == shape


def test_many_slabs_on_a_cpu_are_joined(tmp_path: Path) -> None:
    array = np.arange(3_000_017, dtype=np.float64)  # 24 MB: a dozen slabs
    np.save(tmp_path / "in.npy", array)
    kernel = np.array([1.0, -2.0, 1.0, 3.0])
    for overlap in (False, True):
        run_simulated(
            correlation(kernel, [(2, 1)]),
            3,
            tmp_path / "in.npy",
            tmp_path / "out.npy",
            boundary="mirror",
            overlap=overlap,
        )
        np.testing.assert_array_equal(
            np.load(tmp_path / "out.npy"), ndimage.correlate1d(array, kernel, mode="mirror")
        )


def test_the_record_says_what_was_done(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.ones((10, 6), np.float32))
    record = run_simulated(
        correlation(np.ones((3, 3)), 1), 4, tmp_path / "in.npy", tmp_path / "out.npy", verify="sample"
    )
    assert record["schema"] == 2
    assert record["ranks"] == 4
    assert record["grid"] == [4, 1]
    assert record["halo"] == [[1, 1], [1, 1]]
    assert {"read", "exchange", "kernel", "write", "verify"} <= set(record["phases"])
    assert record["phases"]["read"]["bytes"] == 10 * 6 * 4
    assert record["phases"]["kernel"]["bytes"] == 2 * 10 * 6 * 4
    assert len(record["devices"]) == 4
    assert record["verify"]["cells"] > 0


def test_a_function_that_returns_may_choose_dtype_and_drop_axes(tmp_path: Path) -> None:
    array = np.arange(7 * 5 * 3, dtype=np.uint8).reshape(7, 5, 3)
    np.save(tmp_path / "in.npy", array)
    job = meshrun.map_blocks(lambda block: block.sum(axis=2, dtype=np.int64))
    for ranks in (1, 2, 8):
        run_simulated(job, ranks, tmp_path / "in.npy", tmp_path / "out.npy", verify="full")
        result = np.load(tmp_path / "out.npy")
        assert result.dtype == np.int64
        np.testing.assert_array_equal(result, array.sum(axis=2))


def test_here_tells_the_place_and_random_numbers_follow_the_cell(tmp_path: Path) -> None:
    @meshrun.map_blocks(halo=(1, 0))
    def noise(block: Any, *, here: meshrun.BlockContext) -> Any:
        assert here.block == (block.shape[0] - 2, block.shape[1])
        return here.uniform(seed=3) + here.normal(seed=4)

    np.save(tmp_path / "in.npy", np.zeros((53, 11)))
    results = []
    for ranks, grid in ((1, None), (3, None), (4, "2x2")):
        run_simulated(noise, ranks, tmp_path / "in.npy", tmp_path / "out.npy", grid=grid)
        results.append(np.load(tmp_path / "out.npy"))
    assert len(np.unique(results[0])) == 53 * 11
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda block: block[1:], "wrong shape"),
        (lambda block: 3.0, "did not return an array"),
        (lambda block: None, "did not return an array"),
    ],
)
def test_a_function_that_returns_nonsense_is_told_what(tmp_path: Path, function: Any, words: str) -> None:
    np.save(tmp_path / "in.npy", np.ones((9, 4)))
    with pytest.raises(RunError, match=words):
        run_simulated(meshrun.map_blocks(halo=0)(function), 2, tmp_path / "in.npy", tmp_path / "out.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["in.npy"]


def test_two_dtypes_from_one_function_are_refused(tmp_path: Path) -> None:
    @meshrun.map_blocks
    def moody(block: Any, *, here: meshrun.BlockContext) -> Any:
        return block.astype(np.float32 if here.offset[0] else np.float64)

    np.save(tmp_path / "in.npy", np.ones((8, 2)))
    with pytest.raises(MeshrunError, match=r"different results on different ranks|two dtypes"):
        run_simulated(moody, 2, tmp_path / "in.npy", tmp_path / "out.npy")


@pytest.mark.parametrize("declared", [True, False])
def test_another_dtype_than_declared_is_refused_without_asking_for_a_declaration(
    tmp_path: Path, declared: bool
) -> None:
    def moody(block: Any, *, here: meshrun.BlockContext) -> Any:
        return block.astype(np.float32 if here.offset[0] else np.float64)

    out = (lambda shape, dtype: (shape, np.float64)) if declared else None
    np.save(tmp_path / "in.npy", np.ones((8, 2)))
    with pytest.raises(MeshrunError, match=r"two dtypes|another dtype") as caught:
        run_simulated(
            meshrun.map_blocks(out=out)(moody), 1, tmp_path / "in.npy", tmp_path / "o.npy", stream=CHUNKS
        )
    assert ("than out= declares" in str(caught.value)) == declared
    assert ("or declare out=" in str(caught.value)) == (not declared)
    assert ("as the first call returned" in str(caught.value)) == (not declared)


def test_a_reduction_in_another_byte_order_is_written_in_the_machines(tmp_path: Path) -> None:
    job = meshrun.reduce_blocks(combine=lambda a, b: a + b, whole_rows=True)(
        lambda block: block.sum(axis=0).astype(">f8")
    )
    np.save(tmp_path / "in.npy", np.ones((40, 5)))
    record = run_simulated(job, 2, tmp_path / "in.npy", tmp_path / "out.npy")
    assert np.load(tmp_path / "out.npy").dtype.isnative
    assert record["result"]["dtype"] == "float64"


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("stream", [StreamOptions(), StreamOptions(chunk_bytes=1024)])
def test_a_result_in_another_byte_order_is_written_in_the_machines(
    tmp_path: Path, declared: bool, stream: StreamOptions
) -> None:
    values = np.arange(200.0).reshape(40, 5)
    job = meshrun.map_blocks(out=(lambda shape, dtype: (shape, ">f8")) if declared else None)(
        lambda block: block.astype(">f8")
    )
    np.save(tmp_path / "in.npy", values)
    run_simulated(job, 2, tmp_path / "in.npy", tmp_path / "out.npy", stream=stream)
    for found in (np.load(tmp_path / "out.npy"), job(values)):
        assert found.dtype.isnative
        np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"grid": "3"}, "every rank exactly once"),
        ({"grid": "1x1x2"}, "more axes than the array"),
        ({"grid": "two"}, "does not parse"),
        ({"boundary": "edge"}, "unknown boundary"),
        ({"verify": "some"}, "unknown verify"),
        ({"parameters": {"speed": 1}}, "no such parameter"),
    ],
)
def test_bad_options_are_refused_on_every_rank(tmp_path: Path, options: Any, words: str) -> None:
    np.save(tmp_path / "in.npy", np.ones((9, 4)))
    with pytest.raises(UserError, match=words):
        run_simulated(
            correlation(np.ones((3, 3)), 1), 2, tmp_path / "in.npy", tmp_path / "out.npy", **options
        )
    assert [path.name for path in tmp_path.iterdir()] == ["in.npy"]


def test_a_halo_wider_than_the_array_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.ones((3, 9)))
    with pytest.raises(UserError, match="wider than the array along axis 0"):
        run_simulated(correlation(np.ones((9, 1)), (4, 0)), 2, tmp_path / "in.npy", tmp_path / "out.npy")


def test_a_constant_that_the_dtype_cannot_hold_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.ones((3, 9), np.uint8))
    with pytest.raises(UserError, match="--cval"):
        run_simulated(
            correlation(np.ones((3, 1)), (1, 0)),
            1,
            tmp_path / "in.npy",
            tmp_path / "out.npy",
            boundary="constant",
            cval=-1,
        )


def test_a_failed_run_leaves_the_old_output_as_it_was(tmp_path: Path) -> None:
    @meshrun.map_blocks
    def fails_late(block: Any, *, out: Any, here: meshrun.BlockContext) -> None:
        out[...] = 1
        if here.rank == 1:
            raise ZeroDivisionError("late")

    np.save(tmp_path / "in.npy", np.ones((8, 2)))
    np.save(tmp_path / "out.npy", np.arange(3))
    with pytest.raises((ZeroDivisionError, MeshrunError, SystemExit)):
        run_simulated(fails_late, 2, tmp_path / "in.npy", tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), np.arange(3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.npy", "out.npy"]


def test_calling_a_job_on_an_array_gives_what_a_run_gives() -> None:
    array = np.random.default_rng(0).random((40, 30))
    kernel = np.ones((3, 3))
    job = correlation(kernel, 1)
    np.testing.assert_allclose(job(array), ndimage.correlate(array, kernel, mode="reflect"))
