"""An output that is an input, by whatever name, is refused unless --overwrite-input is given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import meshrun
from meshrun.launch.cli.main import main
from meshrun.runner.errors import UserError
from meshrun.runner.run.python_call import share_memory

zarr = pytest.importorskip("zarr")


@meshrun.map_blocks
def plus(block: Any) -> Any:
    return block + 1


@meshrun.map_blocks
def add(block: Any, other: Any) -> Any:
    return block + other


@meshrun.job
def saves(world: Any, input: Any, output: Path, *, table: Path | None = None) -> None:
    np.save(output, np.ones(3))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.zeros((4, 5)))
    np.save("b.npy", np.zeros((4, 5)))
    os.symlink("a.npy", "link.npy")
    os.link("a.npy", "hard.npy")
    os.mkdir("folder")
    os.symlink(tmp_path, "folder/up")
    with h5py.File("f.h5", "w") as file:
        file["x"] = np.zeros(3)
        file["g/y"] = np.zeros(3)
        file["same"] = file["x"]
        file["soft"] = h5py.SoftLink("/g/y")
    with h5py.File("one.h5", "w") as file:
        file["data"] = np.zeros(3)
    os.symlink("f.h5", "f-link.h5")
    root = zarr.open_group("s.zarr", mode="w")
    for name in ("x", "g/y"):
        root.create_array(name, data=np.zeros(3))
    zarr.create_array("t.zarr", data=np.zeros(3))
    os.mkdir("images")
    np.save("images/1.npy", np.zeros(3))
    return tmp_path


SAME = [
    ("a.npy", "a.npy"),
    ("a.npy", "./a.npy"),
    ("a.npy", "folder/../a.npy"),
    ("a.npy", "folder/up/a.npy"),
    ("link.npy", "a.npy"),
    ("a.npy", "link.npy"),
    ("hard.npy", "a.npy"),
    ("a.npy", "hard.npy"),
    ("f.h5:/x", "f.h5:x"),
    ("f.h5:/g/y", "f.h5:/g//y"),
    ("f.h5:/x", "f.h5:/same"),
    ("f.h5:/g/y", "f.h5:/soft"),
    ("one.h5", "one.h5"),
    ("one.h5", "one.h5:/data"),
    ("one.h5:/data", "one.h5"),
    ("f-link.h5:/x", "f.h5:/x"),
    ("s.zarr:x", "s.zarr:/x"),
    ("s.zarr:g/y", "s.zarr:g/y"),
    ("t.zarr", "t.zarr"),
    ("t.zarr", "folder/up/t.zarr"),
]


@pytest.mark.parametrize(("source", "target"), SAME)
def test_the_same_array_by_any_name_is_refused(source: str, target: str, place: Path) -> None:
    absolute = str(place / target)
    for one in (target, absolute):
        with pytest.raises(UserError, match=r"which the run would replace.* overwrite_input=True") as refused:
            plus.run(source, one)
        assert f"OUTPUT {Path(one)} is " in str(refused.value)
    for path in ("a.npy", "hard.npy"):
        assert np.load(path).max() == 0
    plus.run(source, target, overwrite_input=True)
    assert plus.run(target, "out.npy")["shape"]
    assert np.load("out.npy").max() == 2


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("a.npy", "b.npy"),
        ("f.h5:/x", "f.h5:/g/y"),
        ("f.h5:/x", "f.h5:/g/x"),
        ("f.h5:/x", "f.h5:/new"),
        ("f.h5:/x", "one.h5"),
        ("s.zarr:x", "s.zarr:g/x"),
        ("s.zarr:x", "s.zarr:g/y"),
        ("s.zarr:x", "t.zarr"),
        ("images", "edges"),
        ("images", "images/edges"),
    ],
)
def test_other_arrays_are_replaced_without_the_option(source: str, target: str) -> None:
    plus.run(source, target)
    plus.run(source, f"{target}-2" if source == "images" else target)
    assert np.load("images/1.npy").max() == 0


def test_any_of_several_inputs() -> None:
    with pytest.raises(UserError, match=r"OUTPUT b.npy is INPUT b.npy"):
        add.run(["a.npy", "b.npy"], "b.npy")
    assert add.run(["a.npy", "b.npy"], "b.npy", overwrite_input=True)


def test_a_file_that_a_parameter_names_is_an_input() -> None:
    with pytest.raises(UserError, match=r"OUTPUT b.npy is table b.npy, which the run would replace"):
        saves.run("a.npy", "b.npy", table="./b.npy")
    saves.run("a.npy", "b.npy", table=Path("b.npy"), overwrite_input=True)
    assert np.load("b.npy").shape == (3,)


def test_a_job_that_replaces_the_whole_file_replaces_any_array_in_it() -> None:
    with pytest.raises(UserError, match=r"OUTPUT one.h5 is INPUT one.h5:data"):
        saves.run("one.h5", "one.h5")


def test_an_output_inside_an_input_is_refused_and_an_input_inside_an_output() -> None:
    with pytest.raises(UserError, match=r"OUTPUT is an array in t.zarr, which is named with a colon"):
        plus.run("t.zarr", "t.zarr/b.npy", overwrite_input=True)
    np.save("t.zarr/kept.npy", np.zeros(3))
    with pytest.raises(UserError, match=r"OUTPUT t.zarr contains INPUT t.zarr/kept.npy, which the run would"):
        plus.run("t.zarr/kept.npy", "t.zarr")
    with pytest.raises(UserError, match="the output folder images is not empty"):
        plus.run("images", "images", overwrite_input=True)


def test_the_command_has_the_option_and_its_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "laplacian", "a.npy", "a.npy"]) == 2
    said = capsys.readouterr().err
    assert said.endswith("Try: another name for OUTPUT, or --overwrite-input\n")
    assert main(["run", "laplacian", "a.npy", "a.npy", "--overwrite-input"]) == 0
    for words in (["run", "--help"], ["run", "laplacian", "--help"]):
        assert main(words) == 0
        assert "existing OUTPUT is replaced" in " ".join(capsys.readouterr().out.split())


def test_other_files_of_a_run_are_no_input_by_any_name() -> None:
    for name in ("a.npy", "link.npy", "hard.npy"):
        with pytest.raises(UserError, match="INPUT and json name the same file"):
            plus.run("a.npy", "out.npy", json=name)


@pytest.mark.parametrize("view", [lambda a: a, lambda a: a[::-1], lambda a: a[1:-1], lambda a: a.T])
def test_arrays_that_share_memory_are_refused(view: Any) -> None:
    array = np.zeros((6, 6))
    with pytest.raises(UserError, match=r"shares memory with the input block.*overwrite_input=True"):
        plus.run(view(array), array)
    with pytest.raises(UserError, match="shares memory with the input other"):
        add.run([np.zeros((6, 6)), array], array)
    assert array.max() == 0


def test_an_array_may_be_replaced_and_neighbours_are_not_the_same() -> None:
    array = np.arange(12.0)
    plus.run(array, array, overwrite_input=True)
    np.testing.assert_array_equal(array, np.arange(12.0) + 1)
    plus.run(array[:-1], array[1:], overwrite_input=True)
    np.testing.assert_array_equal(array[1:], np.arange(11.0) + 2)
    plus.run(array[::2], array[1::2])
    np.testing.assert_array_equal(array[1::2], array[::2] + 1)


class OnDevice:
    """An array as a device's libraries describe it."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        dense = array.flags.c_contiguous
        strides = None if dense else array.strides
        self.shape, self.dtype = array.shape, array.dtype
        self.__cuda_array_interface__ = {
            "data": (array.ctypes.data, False), "shape": array.shape, "typestr": array.dtype.str,
            "strides": strides, "version": 3,
        }  # fmt: skip


def test_arrays_of_a_device_are_compared_by_their_bytes() -> None:
    array = np.zeros((6, 4))
    whole = OnDevice(array)
    assert share_memory(whole, OnDevice(array[2:]))
    assert share_memory(OnDevice(array[::-1]), OnDevice(array[:1]))
    assert not share_memory(OnDevice(array[:3]), OnDevice(array[3:]))
    assert not share_memory(whole, OnDevice(np.zeros((6, 4))))
    assert not share_memory(OnDevice(array[:0]), whole)
    assert not share_memory(whole, array)
