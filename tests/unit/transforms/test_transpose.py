"""Transposes of blocks and of files against numpy.transpose, on ranks as threads."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_cases import DTYPES, mixed_up, part, same, whole
from PIL import Image
from stream_cases import run_on

import meshrun
from meshrun.jobs.transforms.transpose import as_matrix, permuted
from meshrun.jobs.transforms.transpose_job import transpose_job
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.storage.formats.registry import open_source
from meshrun.runner.world.group import Group
from meshrun.runner.world.world import World, open_world


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("shape", [(7, 11), (1, 5), (3, 4, 5), (0, 3), (2, 3, 1, 4)])
def test_blocks_by_every_permutation(shape: tuple[int, ...], ranks: int) -> None:
    array = whole(shape)

    def case(world: World) -> None:
        for order in permutations(range(len(shape))):
            for split, to_split in ((0, 0), (1, len(shape) - 1)):
                block = meshrun.transpose(
                    part(array, world, split), world, axes=order, split=split, to_split=to_split
                )
                same(block, part(array.transpose(order), world, to_split))
                assert block.flags.c_contiguous

    run_ranks(ranks, lambda comm: case(open_world("cpu", control=comm)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype: str) -> None:
    array = whole((5, 6), dtype)

    def case(world: World) -> None:
        same(meshrun.transpose(part(array, world, 0), world), part(array.T, world, 0))

    run_ranks(3, lambda comm: case(open_world("cpu", control=comm)))
    same(meshrun.transpose(array), array.T)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [(({"axes": (0, 1)}, {"axes": (1, 0)}), "axes"), (({"to_split": 0}, {"to_split": 1}), "to_split")],
)
def test_ranks_that_ask_for_different_results_are_told(arguments: Any, what: str) -> None:
    def case(world: World) -> None:
        with pytest.raises(UserError, match=f"the ranks' {what} differ: got "):
            meshrun.transpose(np.zeros((2, 4)), world, **arguments[world.rank])

    run_ranks(2, lambda comm: case(open_world("cpu", control=comm)))


def test_blocks_of_several_tiles() -> None:
    array = whole((3, 150, 301))
    for order in permutations(range(3)):
        same(permuted(array, order), array.transpose(order))
    same(permuted(array[:, ::2], (2, 1, 0)), array[:, ::2].T)


def test_which_permutations_are_one_matrix() -> None:
    assert as_matrix((4, 5), (1, 0)) == (4, 5)
    assert as_matrix((4, 5, 6), (1, 2, 0)) == (4, 30)
    assert as_matrix((4, 5, 6), (2, 0, 1)) == (20, 6)
    assert as_matrix((4, 1, 6), (2, 1, 0)) == (4, 6)
    assert as_matrix((4, 5, 6), (0, 2, 1)) is None
    assert as_matrix((4, 5, 6), (2, 1, 0)) is None
    assert as_matrix((4, 5), (0, 1)) is None
    assert as_matrix((1, 1), (1, 0)) is None


def transposed(folder: Path, array: np.ndarray, ranks: int, suffix: str = ".npy", **options: Any) -> Any:
    np.save(folder / "in.npy", array)
    target = folder / f"out{suffix}"
    record = run_on(ranks, transpose_job, folder / "in.npy", target, verify="full", **options)
    assert record["verify"]["cells"] >= array.size
    return record["result"], np.asarray(open_source(target).array[...])


@pytest.mark.parametrize(
    ("shape", "axes", "ranks"),
    [
        ((7, 9), None, 1),
        ((7, 9), "1,0", 3),
        ((2, 9), "-1,0", 5),
        ((3, 4, 5), "0,2,1", 2),
        ((4, 0), None, 2),
        ((6,), None, 4),
    ],
)
def test_files(tmp_path: Path, shape: tuple[int, ...], axes: str | None, ranks: int) -> None:
    array = whole(shape)
    _, got = transposed(tmp_path, array, ranks, parameters={"axes": axes})
    same(got, array.transpose([int(axis) for axis in axes.split(",")] if axes else None))


@pytest.mark.parametrize("suffix", [".raw", ".h5", ".zarr"])
def test_formats(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip({".h5": "h5py", ".zarr": "zarr"}.get(suffix, "numpy"))
    array = whole((6, 5), "float32")
    np.save(tmp_path / "in.npy", array)
    if suffix == ".raw":
        run_on(2, transpose_job, tmp_path / "in.npy", tmp_path / "out.raw", verify="sample")
        same(np.fromfile(tmp_path / "out.raw", "f4").reshape(5, 6), array.T)
    else:
        same(transposed(tmp_path, array, 2, suffix)[1], array.T)


def test_a_file_in_another_byte_order_is_written_in_the_machines(tmp_path: Path) -> None:
    array = whole((6, 5), "float32")
    np.save(tmp_path / "in.npy", array.astype(array.dtype.newbyteorder()))
    run_on(2, transpose_job, tmp_path / "in.npy", tmp_path / "out.npy", verify="full")
    got = np.load(tmp_path / "out.npy")
    assert got.dtype.isnative
    same(got, array.T)


def test_a_picture(tmp_path: Path) -> None:
    picture = np.random.default_rng(1).integers(0, 255, (9, 4, 3), np.uint8)
    Image.fromarray(picture).save(tmp_path / "in.png")
    files = tmp_path / "in.png", tmp_path / "out.png"
    run_on(2, transpose_job, *files, parameters={"axes": "1,0,2"}, verify="full")
    same(np.asarray(Image.open(files[1])), picture.transpose(1, 0, 2))


@pytest.mark.parametrize("axes", ["1,0,2", "2,1,0", "0,2,1"])
def test_an_array_larger_than_memory_passes_in_parts(tmp_path: Path, axes: str) -> None:
    array = whole((130, 150, 40))
    result, got = transposed(tmp_path, array, 2, parameters={"axes": axes}, host_memory=4 << 20)
    assert result["passes"] >= (2 if axes == "0,2,1" else 4)  # which moves nothing to other ranks
    same(got, array.transpose([int(axis) for axis in axes.split(",")]))


def test_ranks_with_different_memory_take_the_passes_of_the_least(tmp_path: Path) -> None:
    array = whole((512, 768), "float64")
    np.save(tmp_path / "in.npy", array)

    def rank(control: Control) -> Any:
        options = Options(stream=StreamOptions(host_memory=(4, 1, 16)[control.rank] << 20))
        world = open_world("cpu", control=control)
        return run(transpose_job, tmp_path / "in.npy", tmp_path / "out.npy", {}, options, world=world)

    record = run_ranks(3, rank)[0]
    assert record["result"]["passes"] == 8
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), array.T)


@pytest.mark.parametrize("mutant", ["swapped", "twice"])
def test_the_check_notices(tmp_path: Path, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = Group.start_exchange

    def wrong(self: Group, sends: Any, receives: Any) -> Any:
        return exchange(self, mixed_up(sends, self.rank, mutant), receives)

    monkeypatch.setattr(Group, "start_exchange", wrong)
    with pytest.raises(
        RunError, match=r"verification failed: cell \[\d, \d\] of the transposed array is wrong"
    ):
        transposed(tmp_path, whole((6, 6)), 3)
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize(
    ("shape", "options", "sentence"),
    [
        ((3, 4), {"parameters": {"axes": "1"}}, "no permutation: got 1, expected each of 0, 1 once"),
        ((3, 4), {"parameters": {"axes": "1,1"}}, "no permutation: got 1, 1"),
        ((3, 4), {"parameters": {"axes": "0,2"}}, "no permutation: got 0, 2"),
        ((3, 4), {"parameters": {"axes": "a"}}, "--axes does not parse: got 'a'"),
        ((), {}, "an array without axes cannot be transposed"),
        ((300000, 2), {"host_memory": 1 << 20}, "one row of the output does not fit the memory"),
    ],
)
def test_what_cannot_be_transposed(
    tmp_path: Path, shape: tuple[int, ...], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        transposed(tmp_path, np.ones(shape), 1, **options)
    with pytest.raises(UserError, match="no such axis to split: got 2"):
        run_ranks(
            1, lambda comm: meshrun.transpose(np.ones((3, 4)), open_world("cpu", control=comm), to_split=2)
        )


def test_a_format_that_is_not_written_in_parts(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    with pytest.raises(UserError, match=r"out.zarr cannot be transposed in parts"):
        transposed(tmp_path, whole((400, 300)), 1, ".zarr", host_memory=1 << 20)
