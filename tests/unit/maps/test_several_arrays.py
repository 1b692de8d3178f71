"""Jobs with several inputs and outputs: in memory, streamed and called, against one NumPy expression."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshrun
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.report.summary import render
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

PAD = {"reflect": "symmetric", "mirror": "reflect", "nearest": "edge", "wrap": "wrap"}


@meshrun.map_blocks(halo=1, outputs=("after", "old"), boundary="wrap")
def wave(now: Any, before: Any, *, speed: float = 0.5) -> Any:
    centre = now[1:-1, 1:-1]
    sides = now[:-2, 1:-1] + now[2:, 1:-1] + now[1:-1, :-2] + now[1:-1, 2:] - 4 * centre
    return 2 * centre - before[1:-1, 1:-1] + speed**2 * sides, centre.copy()


@meshrun.map_blocks(halo=((2, 1), (0, 1)), outputs=2)
def advect(field: Any, velocity: Any, mask: Any) -> Any:
    """Three dtypes and two numbers of axes; each neighbour has a weight of its own."""
    rows, columns = field.shape[0] - 3, field.shape[1] - 1
    total = np.zeros((rows, columns))
    for i in range(4):
        for j in range(2):
            part = (slice(i, i + rows), slice(j, j + columns))
            total += (3 * i + j + 1) * field[part] * velocity[part][..., j] * mask[part]
    return total, velocity[2 : rows + 2, :columns].astype(np.int16)


def expected_advect(field: Any, velocity: Any, mask: Any, boundary: str) -> list[Any]:
    widths = ((2, 1), (0, 1))
    mode: Any = PAD[boundary]
    return list(
        advect.function(
            np.pad(field, widths, mode), np.pad(velocity, (*widths, (0, 0)), mode), np.pad(mask, widths, mode)
        )
    )


def saved(folder: Path, *arrays: Any) -> list[Path]:
    paths = [folder / f"in{number}.npy" for number in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        np.save(path, array)
    return paths


def on_ranks(ranks: int, job: Any, inputs: Any, outputs: Any, **options: Any) -> dict[str, Any]:
    def rank(control: Control) -> Any:
        return run(
            job,
            inputs,
            outputs,
            {},
            Options(device="cpu", **options),
            world=open_world("cpu", control=control),
        )

    return run_ranks(ranks, rank)[0]


@given(data=st.data())
def test_fields_of_other_dtypes_and_axes_are_cut_alike(data: st.DataObject, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("fields")
    shape = data.draw(st.tuples(st.integers(3, 14), st.integers(2, 9)))
    boundary = data.draw(st.sampled_from(sorted(PAD)))
    ranks, grid = data.draw(st.sampled_from([(1, None), (2, None), (3, "3"), (4, "2x2"), (2, "1x2")]))
    stream = data.draw(st.sampled_from([StreamOptions(), StreamOptions(depth=2)]))
    random = np.random.default_rng(data.draw(st.integers(0, 9)))
    field = random.integers(0, 9, shape).astype(np.float32)
    velocity = random.integers(-4, 5, (*shape, 2)).astype(np.float64)
    mask = random.integers(0, 2, shape).astype(bool)
    inputs, outputs = saved(folder, field, velocity, mask), [folder / "a.npy", folder / "b.npy"]
    record = on_ranks(
        ranks, advect, inputs, outputs, boundary=boundary, grid=grid, stream=stream, verify="full"
    )
    for output, expected in zip(outputs, expected_advect(field, velocity, mask, boundary), strict=True):
        found = np.load(output)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    assert [one["name"] for one in record["inputs"]] == ["field", "velocity", "mask"]
    assert [one["dtype"] for one in record["outputs"]] == ["float64", "int16"]


def test_a_call_takes_and_returns_several_arrays() -> None:
    now, before = np.random.default_rng(1).random((2, 20, 30))
    after, old = wave(now, before, speed=0.25)
    expected = wave.function(np.pad(now, 1, "wrap"), np.pad(before, 1, "wrap"), speed=0.25)
    np.testing.assert_array_equal(after, expected[0])
    np.testing.assert_array_equal(old, now)
    with pytest.raises(meshrun.UserError, match="wave takes 2 arrays: got 1, expected now, before"):
        wave(now)


def test_a_filled_result_is_like_the_input_that_it_feeds(tmp_path: Path) -> None:
    @meshrun.map_blocks(outputs=2)
    def both(small: Any, large: Any, *, out: Any) -> None:
        first, second = out
        first[...] = small + 1
        second[...] = large * 2

    small, large = np.arange(6, dtype=np.uint8).reshape(3, 2), np.ones((3, 2, 4))
    on_ranks(2, both, saved(tmp_path, small, large), [tmp_path / "a.npy", tmp_path / "b.npy"], verify="full")
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), small + 1)
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), large * 2)


def test_the_summary_names_every_file_that_was_written(tmp_path: Path) -> None:
    outputs = [tmp_path / "a.npy", tmp_path / "b.npy"]
    record = on_ranks(1, wave, saved(tmp_path, *np.ones((2, 5, 4))), outputs, verify="full")
    assert f"wrote {outputs[0]}, {outputs[1]}\n" in render(record)
    assert "20 cells in 4 boxes)" in render(record)


def refused(job: Any, *paths: Any, **options: Any) -> str:
    with pytest.raises(meshrun.MeshrunError) as failure:
        run(job, *paths, {}, Options(device="cpu", **options), world=open_world("cpu"))
    return str(failure.value)


def test_inputs_of_different_shapes_are_refused_by_name(tmp_path: Path) -> None:
    inputs = saved(tmp_path, np.zeros((4, 5)), np.zeros((4, 6)))
    assert refused(wave, inputs, [tmp_path / "a.npy", tmp_path / "b.npy"]).startswith(
        "job wave: its inputs have different shapes: got now 4x5, before 4x6, "
        "expected the same lengths along the first 2 axes"
    )


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (3, "got 3 files: NOW = f0.npy; BEFORE = f1.npy; AFTER = f2.npy; OLD is missing"),
        (
            5,
            "got 5 files: NOW = f0.npy; BEFORE = f1.npy; AFTER = f2.npy; OLD = f3.npy; f4.npy is",
        ),
        (0, "got 0 files: NOW is missing; BEFORE is missing;"),
    ],
)
def test_a_wrong_number_of_files_is_listed_by_name(count: int, said: str) -> None:
    files = [f"f{number}.npy" for number in range(count)]
    sentence = refused(wave, files[:2], files[2:])
    assert sentence.startswith("job wave takes 2 inputs and writes 2 outputs: " + said)
    assert "expected NOW BEFORE AFTER OLD" in sentence


def test_two_outputs_are_two_files(tmp_path: Path) -> None:
    inputs = saved(tmp_path, np.zeros((4, 5)), np.zeros((4, 5)))
    assert refused(wave, inputs, [tmp_path / "a.npy"] * 2).startswith("two outputs are the same file")


def test_a_wrong_number_of_results_is_named(tmp_path: Path) -> None:
    @meshrun.map_blocks(outputs=2)
    def one(block: Any) -> Any:
        return block + 1

    @meshrun.map_blocks
    def two(block: Any) -> Any:
        return block, block

    inputs = saved(tmp_path, np.zeros((4, 5)))
    outputs = [tmp_path / "a.npy", tmp_path / "b.npy"]
    assert "job one did not return 2 results: got 1 (ndarray), expected a tuple: output1, output2" in refused(
        one, inputs, outputs
    )
    sentence = refused(two, inputs, outputs[:1])
    assert "did not return an array: got 2 results" in sentence
    assert "Try: outputs=2 in the decorator" in sentence
    assert not any(output.exists() for output in outputs)


def test_a_wrong_cell_is_named_with_its_output(tmp_path: Path) -> None:
    calls = []

    @meshrun.map_blocks(outputs=("plus", "minus"), split_dependent=True)
    def unsteady(block: Any) -> Any:
        calls.append(1)
        return block + 1, block - len(calls)

    sentence = refused(
        unsteady, saved(tmp_path, np.zeros((4, 5))), [tmp_path / "a.npy", tmp_path / "b.npy"], verify="full"
    )
    assert "verification failed: cell [0, 0] of minus, computed by" in sentence


@pytest.mark.parametrize(
    ("outputs", "feeds", "said"),
    [
        (0, None, "outputs is neither a number of results nor their names"),
        (("a", "a"), None, "outputs is neither a number of results nor their names"),
        (2.0, None, "outputs is neither a number of results nor their names"),
        ([["a"]], None, "outputs is neither a number of results nor their names"),
        (1, 3, "feeds must name one input, or None, for each output"),
        (2, ("now",), "feeds must name one input, or None, for each output"),
        (2, ("now", "now"), "feeds must name one input, or None, for each output"),
        (2, ("now", "later"), "feeds must name one input, or None, for each output"),
    ],
)
def test_a_wrong_declaration_is_refused(outputs: Any, feeds: Any, said: str) -> None:
    with pytest.raises(meshrun.UserError, match=said):
        meshrun.map_blocks(outputs=outputs, feeds=feeds)(lambda now, before: (now, before))


def test_a_number_before_the_star_is_said_to_be_an_input(tmp_path: Path) -> None:
    @meshrun.map_blocks
    def scaled(block: Any, rate: Any) -> Any:
        return block * rate

    hint = r"Try: `def scaled\(block, \*, rate\)`, if rate is a number: parameters before `\*` are inputs"
    (path,) = saved(tmp_path, np.ones((4, 3)))
    with pytest.raises(meshrun.UserError, match=hint):
        scaled.run(path, tmp_path / "out.npy")
    with pytest.raises(meshrun.UserError, match=hint):
        scaled.run([path, path], tmp_path / "out.npy", rate=2.0)


@pytest.mark.parametrize(
    ("shape", "index", "halo"),
    [
        ((8, 9), (slice(1, -1),), r"halo=\(1,\) .* along axis 1,"),
        ((8, 9), (slice(None), slice(1, -1)), r"halo=\(0, 1\) .* along axis 0,"),
        ((8, 9, 5), (slice(1, -1),), r"halo=\(1,\) .* along axes 1 and 2,"),
        ((8, 9, 3), (slice(1, -1), slice(1, -1)), r"halo=\(1, 1\) .* along axis 2,"),
    ],
)
def test_a_result_that_keeps_a_halo_names_the_axis(
    tmp_path: Path, shape: tuple[int, ...], index: Any, halo: str
) -> None:
    job = meshrun.map_blocks(halo=1)(lambda block: block[index] * 2)
    with pytest.raises(meshrun.RunError, match=f"the wrong shape: .* Try: {halo}"):
        job(np.ones(shape))
