"""Results that are longer or shorter than the input along split axes: every run gives what NumPy gives."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factor_cases import Case, cases
from hypothesis import given
from hypothesis import strategies as st
from queued_device import QueuedBackend

import meshrun
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

FAILING = [False]  # no variable around a function that looks at it: those make it another job
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

    return run_ranks(ranks, rank)[0]


def check(case: Case, ranks: int, **options: Any) -> dict[str, Any]:
    """Run it, verify every cell, and compare with NumPy. Calls and the boxes of the proof are small."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshrun.runner.maps.in_memory.SLAB", 100)
        patch.setattr("meshrun.runner.plan.sampling.FULL_CELLS", 40)
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


# ---- ways to run


def halves(block: Any, *, out: Any) -> None:
    """Means of 2x2 cells, weighted with their neighbours'; all sums are whole."""
    rows, columns = (n - n % 2 for n in (block.shape[0] - 2, block.shape[1] - 2))
    total = np.zeros(out.shape, np.int64)
    for i in range(4):
        for j in range(4):
            total += (4 * i + j + 1) * block[i : i + rows : 2, j : j + columns : 2]
    out[...] = total // 40


def of_half(shape: Any, dtype: Any) -> Any:
    return (shape[0] // 2, shape[1] // 2, *shape[2:]), dtype


half = meshrun.map_blocks(halo=(1, 1), out=of_half, boundary="mirror")(halves)


@meshrun.map_blocks(out=lambda shape, dtype: ((2 * shape[0], 2 * shape[1], *shape[2:]), dtype))
def twice(block: Any, *, out: Any) -> None:
    for i in range(2):
        for j in range(2):
            out[i::2, j::2] = block


def values(*shape: int) -> Any:
    return np.random.default_rng(0).integers(0, 200, shape).astype(np.uint8)


def halved(array: Any) -> Any:
    out = np.empty(of_half(array.shape, None)[0], array.dtype)
    halves(np.pad(array, ((1, 1), (1, 1), (0, 0))[: array.ndim], "reflect"), out=out)
    return out


@pytest.mark.parametrize(("job", "of"), [(half, halved), (twice, lambda a: a.repeat(2, 0).repeat(2, 1))])
@pytest.mark.parametrize("verify", ["sample", "full"])
@pytest.mark.parametrize("device", [False, True])
def test_large_arrays_are_cut_into_slabs_and_boxes(
    tmp_path: Path, job: Any, of: Callable[[Any], Any], verify: str, device: bool
) -> None:
    array = values(1210, 3302)  # a rank's block is several slabs on a CPU, and several boxes in a proof
    np.save(tmp_path / "in.npy", array)
    for ranks, grid in ((2, None), (4, "0x0")):
        target = tmp_path / f"out{ranks}.npy"
        run_on(ranks, job, tmp_path / "in.npy", target, grid=grid, device=device, verify=verify)
        np.testing.assert_array_equal(np.load(target), of(array))


@pytest.mark.parametrize("suffix", [".png", ".tif", ".zarr", ".h5", ".npy"])
@pytest.mark.parametrize(("job", "of"), [(half, halved), (twice, lambda a: a.repeat(2, 0).repeat(2, 1))])
def test_every_format_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, job: Any, of: Callable[[Any], Any]
) -> None:
    monkeypatch.setattr("meshrun.runner.storage.formats.zarr.CHUNK", 500)  # chunks of a few rows
    array = values(66, 40, 3)
    np.save(tmp_path / "array.npy", array)
    for name in ("in", "back"):
        run_on(3, same, tmp_path / "array.npy", tmp_path / f"{name}{suffix}")
    run_on(3, job, tmp_path / f"in{suffix}", tmp_path / f"out{suffix}", verify="full")
    run_on(2, same, tmp_path / f"out{suffix}", tmp_path / "result.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "result.npy"), of(array))


@meshrun.map_blocks
def same(block: Any) -> Any:
    return block


@pytest.mark.parametrize("rows", [3, 4, 5, 7])
@pytest.mark.parametrize(("p", "q"), [(1, 2), (3, 2), (2, 3), (4, 1), (1, 3)])
def test_chunks_hold_whole_chunks_of_every_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, p: int, q: int
) -> None:
    """Which two ranks must not write: the sink refuses a region that cuts one."""
    monkeypatch.setattr(
        "meshrun.runner.storage.formats.zarr.zarr_chunks", lambda shape, dtype: (rows, *shape[1:])
    )
    case = Case((120, 3), ((Fraction(p, q), Fraction(1)), (HALF, Fraction(1))), ((1, 0), (0, 0)), "wrap")
    np.save(tmp_path / "in.npy", case.arrays[0])
    targets = [tmp_path / "one.zarr", tmp_path / "two.zarr"]
    unit = case.units[0]
    least = next(n for n in range(unit, 121, unit) if n * p // q % rows == n // 2 % rows == 0)
    stream = StreamOptions(chunk_bytes=(least + 1) * 3 * 4)
    record = run_on(3, case.job, tmp_path / "in.npy", targets, verify="full", stream=stream)
    assert record["stream"]["rows"] == least
    for target, expected in zip(targets, case.expected, strict=True):
        run_on(1, same, target, tmp_path / "whole.npy")
        np.testing.assert_array_equal(np.load(tmp_path / "whole.npy"), expected)


@pytest.mark.parametrize("device", [False, True])
def test_a_folder_of_images(tmp_path: Path, device: bool) -> None:
    (tmp_path / "in").mkdir()
    shapes = {"a": (8, 6, 3), "b": (302, 1004, 3), "c": (2, 2, 3), "d": (3000, 802, 3)}
    for name, shape in shapes.items():
        np.save(tmp_path / "in" / f"{name}.npy", values(*shape))
    run_on(2, half, tmp_path / "in", tmp_path / "out", device=device, verify="full")
    run_on(2, twice, tmp_path / "in", tmp_path / "large", device=device, verify="sample")
    for name, shape in shapes.items():
        np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{name}.npy"), halved(values(*shape)))
        found = np.load(tmp_path / "large" / f"{name}.npy")
        np.testing.assert_array_equal(found, values(*shape).repeat(2, 0).repeat(2, 1))


def test_an_image_that_does_not_divide_is_named(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, shape in {"a": (8, 6), "b": (5, 6)}.items():
        np.save(tmp_path / "in" / f"{name}.npy", values(*shape))
    with pytest.raises(RunError, match=r"b\.npy: job halves: its result has 1/2 .* got 5, .* such as 6"):
        run_on(2, half, tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_interrupted_run_goes_on_on_other_ranks(tmp_path: Path, ranks: int) -> None:
    FAILING[0] = True

    @meshrun.map_blocks(halo=(1, 1), out=of_half, boundary="mirror")
    def fragile(block: Any, *, out: Any, here: meshrun.BlockContext) -> None:
        if FAILING[0] and here.offset[0] >= 30:
            raise ZeroDivisionError("fragile")
        halves(block, out=out)

    array = values(50, 20)
    np.save(tmp_path / "in.npy", array)
    stream = StreamOptions(chunk_bytes=9 * 20)
    with pytest.raises((ZeroDivisionError, RunError)):
        run_on(2, fragile, tmp_path / "in.npy", tmp_path / "out.npy", stream=stream)
    FAILING[0] = False
    stream = StreamOptions(resume=True)
    record = run_on(ranks, fragile, tmp_path / "in.npy", tmp_path / "out.npy", stream=stream, verify="full")
    assert record["stream"]["rows"] == 6
    assert 0 < record["stream"]["resumed"] < record["stream"]["chunks"]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), halved(array))


@pytest.mark.parametrize("stream", [None, "1K"])
def test_from_python(stream: str | None) -> None:
    array, result = values(60, 34), np.zeros((30, 17), np.uint8)
    half.run(array, result, chunk_bytes=stream, verify="full", device="cpu")
    np.testing.assert_array_equal(result, halved(array))
    np.testing.assert_array_equal(half(array), halved(array))


def test_arrays_without_cells() -> None:
    assert half(np.zeros((0, 6), np.uint8)).shape == (0, 3)
    assert half(np.zeros((4, 0), np.uint8)).shape == (2, 0)
    assert twice(np.zeros((4, 0), np.uint8)).shape == (8, 0)


# ---- what is refused


def refused(job: Any, *shapes: Any, **options: Any) -> str:
    with tempfile.TemporaryDirectory() as folder:
        sources = [Path(folder, f"in{number}.npy") for number in range(len(shapes))]
        for path, shape in zip(sources, shapes, strict=True):
            np.save(path, np.zeros(shape, np.float32))
        targets = [Path(folder, f"{name}.npy") for name in job.output_names]
        with pytest.raises(meshrun.MeshrunError) as failure:
            run_on(1, job, sources, targets, **options)
    return str(failure.value)


def shaped(out: Any, **options: Any) -> Any:
    """A job that fills results of the shapes that `out` gives."""

    @meshrun.map_blocks(out=out, name="shaped", **options)
    def fill(block: Any, *, out: Any) -> None:
        for one in out if isinstance(out, tuple) else (out,):
            one[...] = 0

    return fill


@pytest.mark.parametrize(
    ("rows", "length", "sentence"),
    [
        (lambda n: n // 2, 7,
         "has 1/2 of the input's length along axis 0, .* got 7, expected a multiple of 2, such as 8"),
        (lambda n: -(-n // 3), 7, "has 1/3 .* got 7, expected a multiple of 3, such as 9"),
        (lambda n: round(n * 2 / 3), 10, "has 2/3 .* got 10, expected a multiple of 3, such as 12"),
        (lambda n: n // 4099, 4100, "has 1/4099 .* got 4100, expected a multiple of 4099, such as 8198"),
        (lambda n: n // 17, 16, "has 1/17 .* got 16, expected a multiple of 17, such as 17"),
        (lambda n: n - 2, 8, r"changes an axis .* got \(6, 4\) from \(8, 4\)"),
        (lambda n: 2 * n - 1, 8, "changes an axis"),
        (lambda n: n // 2 + 1, 8, "changes an axis"),
        (lambda n: 3, 6, "changes an axis"),
        (lambda n: n * n, 6, "changes an axis"),
        (lambda n: {8: 4}[n], 8, "changes an axis"),
        (lambda n: n // 2 if n < 100 else n // 4, 8, "changes an axis"),
    ],
)  # fmt: skip
def test_other_lengths_are_refused(rows: Callable[[int], int], length: int, sentence: str) -> None:
    job = shaped(lambda shape, dtype: ((rows(shape[0]), *shape[1:]), dtype))
    with pytest.raises(UserError, match=sentence):
        job(np.zeros((length, 4)))


def test_an_out_that_refuses_other_lengths_may_do_so() -> None:
    def out(shape: Any, dtype: Any) -> Any:
        if shape[0] % 4:
            raise UserError("rows must be multiples of 4", got=shape[0])
        return (shape[0] // 4, *shape[1:]), dtype

    assert shaped(out)(np.zeros((8, 3))).shape == (2, 3)
    with pytest.raises(UserError, match="rows must be multiples of 4: got 7"):
        shaped(out)(np.zeros((7, 3)))


def test_an_axis_that_is_not_cut_may_change_in_any_way() -> None:
    assert shaped(lambda shape, dtype: ((2 * shape[0], 5), dtype))(np.zeros((8, 3))).shape == (16, 5)
    assert shaped(lambda shape, dtype: ((shape[0] * shape[1],), dtype))(np.zeros((8, 3))).shape == (24,)


def test_axes_that_depend_on_each_other_are_refused() -> None:
    wide = shaped(lambda shape, dtype: ((shape[0] * shape[1], shape[1]), dtype))
    assert wide(np.zeros((8, 3))).shape == (24, 3)
    tall = shaped(lambda shape, dtype: ((shape[0] * shape[1], 2 * shape[1]), dtype), halo=1)
    assert "changes an axis" in refused(tall, (8, 3))
    turned = shaped(lambda shape, dtype: (shape[::-1], dtype))
    assert "changes an axis" in refused(turned, (8, 3))


def test_an_output_is_named() -> None:
    pair = shaped(
        lambda shape, dtype: [(shape, dtype), ((shape[0] // 3, shape[1]), dtype)], outputs=("all", "third")
    )
    assert refused(pair, (8, 4)).startswith(
        "job shaped: its result third has 1/3 of the input's length along axis 0"
    )
    assert [one.shape for one in pair(np.zeros((9, 4)))] == [(9, 4), (3, 4)]


def test_the_next_length_divides_for_every_output() -> None:
    pair = shaped(lambda shape, dtype: [((shape[0] // 2,), dtype), ((shape[0] // 3 * 2,), dtype)], outputs=2)
    assert "its result output1 has 1/2 of " in refused(pair, (9,))
    for length in (8, 9):
        assert "expected a multiple of 6, such as 12" in refused(pair, (length,))
    assert [one.shape for one in pair(np.zeros(12))] == [(6,), (8,)]


def test_steps_are_refused_for_a_result_of_another_length_that_feeds_nothing() -> None:
    @meshrun.map_blocks(
        outputs=("all", "small"), feeds=("block", None),
        out=lambda shape, dtype: [(shape, dtype), ((shape[0] // 2, *shape[1:]), dtype)],
    )  # fmt: skip
    def pair(block: Any) -> Any:
        return block, block[::2]

    with pytest.raises(UserError, match="job pair cannot take steps: its result small has other lengths"):
        pair.iterate(np.zeros((8, 3)), steps=2)


def test_a_function_must_return_what_was_declared() -> None:
    @meshrun.map_blocks(out=of_half)
    def wrong(block: Any) -> Any:
        return block[::2]

    with pytest.raises(RunError, match=r"wrong shape: got \(8, 6\), expected \(8, 3\)"):
        wrong(np.zeros((16, 6)))
