"""Jobs that take several inputs, and create an output whose parts all ranks write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stream_cases import run_on

import meshrun
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.region import Region


def check_sum(world: Any, inputs: Any, output: Any, mode: str, *, factor: int) -> dict[str, Any]:
    left, right = (np.asarray(one.array) for one in inputs)
    if not np.array_equal(output.array, factor * (left + right)):
        raise RunError("the sum is wrong", everywhere=True)
    return {"mode": mode, "against": "the sum in NumPy"}


@meshrun.job(inputs=("left", "right"), verify=check_sum)
def added(world: Any, inputs: Any, create: Any, memory: int, *, factor: int = 1, wrong: bool = False) -> Any:
    """Add two arrays of one axis."""
    left, _ = inputs
    sink = create(left.shape, left.dtype, chunks=(2,))
    for first in range(2 * world.rank, left.shape[0], 2 * world.size):
        part = Region((first,), (min(first + 2, left.shape[0]),))
        parts = [np.empty(part.shape, one.dtype) for one in inputs]
        for one, values in zip(inputs, parts, strict=True):
            one.read(part, values)
        sink.write(part, factor * (parts[0] + parts[1]) + (1 if wrong and first == 2 else 0))
    return {"memory": memory}


@meshrun.job
def forgets(world: Any, create: Any) -> None:
    """Create nothing."""


@meshrun.job
def gray(world: Any, create: Any) -> None:
    """Create an image."""
    create((3, 4), np.dtype(np.uint8))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    np.save(tmp_path / "left.npy", np.arange(7.0))
    np.save(tmp_path / "right.npy", np.ones(7))
    return [tmp_path / "left.npy", tmp_path / "right.npy"]


def names(files: list[Path]) -> list[str]:
    return sorted(path.name for path in files[0].parent.iterdir())


@pytest.mark.parametrize("suffix", ["npy", "zarr", "h5"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_every_rank_writes_its_parts(files: list[Path], suffix: str, ranks: int) -> None:
    target = files[0].with_name(f"out.{suffix}")

    record = run_on(ranks, added, files, [target], verify="sample", parameters={"factor": 3})
    values = meshrun_array(target)
    np.testing.assert_array_equal(values, 3 * np.arange(1.0, 8.0))
    assert record["verify"] == {"mode": "sample", "against": "the sum in NumPy"}
    assert [one["name"] for one in record["inputs"]] == ["left", "right"]
    assert record["outputs"][0]["shape"] == [7]
    assert names(files) == ["left.npy", f"out.{suffix}", "right.npy"]


def meshrun_array(path: Path) -> Any:
    from meshrun.runner.storage.formats.registry import open_source

    source = open_source(path)
    values = np.empty(source.shape, source.dtype)
    source.read(Region((0,), source.shape), values)
    return values


def test_a_wrong_output_is_not_left(files: list[Path]) -> None:
    with pytest.raises(RunError, match="the sum is wrong"):
        run_on(2, added, files, [files[0].with_name("out.npy")], verify="full", parameters={"wrong": True})
    assert names(files) == ["left.npy", "right.npy"]


def test_an_output_that_is_written_whole_is_refused(files: list[Path]) -> None:
    with pytest.raises(UserError, match=r"writes its output in parts.*\.png"):
        run_on(2, gray, files[:1], [files[0].with_name("out.png")])


def test_a_job_that_creates_nothing_fails(files: list[Path]) -> None:
    with pytest.raises(RunError, match="returned without creating its output"):
        run_on(2, forgets, files[:1], [files[0].with_name("out.npy")])


def test_the_number_of_files_is_checked(files: list[Path]) -> None:
    with pytest.raises(UserError, match="job added takes 2 inputs and writes 1 output"):
        run_on(1, added, files[:1], [files[0].with_name("out.npy")])


TYPES: list[Any] = ["f8", "float64", float, np.float64, np.dtype(np.float64), ">f8"]


@pytest.mark.parametrize("dtype", TYPES, ids=repr)
def test_a_dtype_is_whatever_numpy_makes_one_of(files: list[Path], dtype: Any) -> None:
    @meshrun.job
    def doubled(world: Any, input: Any, create: Any) -> None:
        block = 2 * meshrun.read_block(world, input)
        meshrun.write_block(world, block, create(np.array(input.shape), dtype), np.int64(0))  # type: ignore[arg-type]

    run_on(2, doubled, files[:1], [files[0].with_name("out.npy")])
    np.testing.assert_array_equal(np.load(files[0].with_name("out.npy")), 2 * np.arange(7.0))


@pytest.mark.parametrize(
    ("shape", "dtype", "chunks", "says"),
    [
        ((7,), "f9", None, "a dtype that is none of numbers: got 'f9'"),
        ((7,), None, None, "a dtype that is none of numbers: got None"),
        ((7,), object, None, "a dtype that is none of numbers"),
        ((7,), "U5", None, "a dtype that is none of numbers"),
        ((-7,), "f8", None, r"a shape that no array can have: got \(-7,\)"),
        ((7.5,), "f8", None, "a shape that no array can have"),
        (((7,), 2), "f8", None, "a shape that no array can have"),
        ("7", "f8", None, "a shape that no array can have"),
        ((1,) * 99, "f8", None, "a shape that no array can have"),
        ((7,), "f8", (2, 2), "chunks and a shape of different numbers of axes"),
        ((7,), "f8", "2", "chunks that no array can have"),
    ],
)
def test_an_array_that_cannot_be_created_is_named(
    files: list[Path], shape: Any, dtype: Any, chunks: Any, says: str
) -> None:
    @meshrun.job
    def makes(world: Any, input: Any, create: Any) -> None:
        create(shape, dtype, chunks)

    with pytest.raises(UserError, match=f"job makes: create got {says}"):
        run_on(2, makes, files[:1], [files[0].with_name("out.npy")])
    assert names(files) == ["left.npy", "right.npy"]


@meshrun.job(outputs=("low", "high"))
def two(world: Any, input: Any, create: Any, *, calls: int = 2) -> None:
    block = meshrun.read_block(world, input)
    for number in range(calls):
        meshrun.write_block(world, block + number, create(input.shape, block.dtype))


def test_several_outputs(files: list[Path]) -> None:
    outs = [files[0].with_name("low.npy"), files[0].with_name("high.npy")]
    record = run_on(2, two, files[:1], outs)
    for number, out in enumerate(outs):
        np.testing.assert_array_equal(np.load(out), np.arange(7.0) + number)
    assert [(one["name"], one["path"], one["shape"]) for one in record["outputs"]] == [
        ("low", str(outs[0]), [7]),
        ("high", str(outs[1]), [7]),
    ]
    assert names(files) == ["high.npy", "left.npy", "low.npy", "right.npy"]


@pytest.mark.parametrize(
    ("calls", "outs", "says"),
    [
        (3, ("a.npy", "b.npy"), r"job two calls create more often than it has outputs: got call 3"),
        (1, ("a.npy", "b.npy"), r"job two returned without creating its output .*b\.npy"),
        (2, ("a.h5:/a", "a.h5:/b"), "job two writes two outputs to one file"),
    ],
)
def test_outputs_that_are_not_created_once(
    files: list[Path], calls: int, outs: tuple[str, str], says: str
) -> None:
    """No output is left behind, not even one that is complete."""
    with pytest.raises((UserError, RunError), match=says):
        run_on(2, two, files[:1], [files[0].parent / out for out in outs], parameters={"calls": calls})
    assert names(files) == ["left.npy", "right.npy"]


def test_several_outputs_that_the_job_does_not_create() -> None:
    with pytest.raises(UserError, match="job plain has several outputs and does not create them"):

        @meshrun.job(outputs=2)
        def plain(world: Any) -> None:
            pass


def test_a_block_that_is_no_array_is_named(files: list[Path]) -> None:
    @meshrun.job
    def lists(world: Any, input: Any, create: Any) -> None:
        meshrun.write_block(world, [1.0, 2.0], create(2, "f8"))

    with pytest.raises(UserError, match="a block is not an array: got list"):
        run_on(2, lists, files[:1], [files[0].with_name("out.npy")])
