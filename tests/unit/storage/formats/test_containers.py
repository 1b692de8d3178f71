"""Several results in one Zarr store or HDF5 file: they appear together, and what else is in it stays."""

from __future__ import annotations

import errno
import importlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.lock import hold
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.storage.formats import containers
from meshrun.runner.world.world import open_world

h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")
zarr_module = importlib.import_module("meshrun.runner.storage.formats.zarr")

SUFFIXES = (".zarr", ".h5")
NOW, BEFORE = np.random.default_rng(3).random((2, 24, 6))
FAILING: set[int] = set()  # first rows of the blocks at which the function raises


@meshrun.map_blocks(halo=1, outputs=("after", "old"), boundary="wrap", feeds=("now", "before"))
def wave(now: Any, before: Any, *, here: meshrun.BlockContext, speed: float = 0.5) -> Any:
    if here.offset[0] in FAILING:
        raise ZeroDivisionError("wave")
    centre = now[1:-1, 1:-1]
    sides = now[:-2, 1:-1] + now[2:, 1:-1] + now[1:-1, :-2] + now[1:-1, 2:] - 4 * centre
    return 2 * centre - before[1:-1, 1:-1] + speed**2 * sides, centre.copy()


def expected(steps: int = 1, now: Any = NOW, before: Any = BEFORE) -> tuple[Any, Any]:
    for _ in range(steps):
        sides = sum(np.roll(now, shift, axis) for axis in (0, 1) for shift in (1, -1)) - 4 * now
        now, before = 2 * now - before + 0.25 * sides, now
    return now, before


MODES: dict[str, dict[str, Any]] = {
    "in memory": {},
    "streamed": {"stream": StreamOptions(chunk_bytes=800, depth=2)},
    "steps": {"steps": StepOptions(steps=5)},
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chunks of four rows; failures without delay."""
    monkeypatch.setattr(zarr_module, "CHUNK", 4 * 6 * 8)
    monkeypatch.setattr("meshrun.runner.world.failure.GRACE", 0.0)
    monkeypatch.setattr(CpuBackend, "copy_rate", lambda self: 1e9)
    FAILING.clear()
    yield
    FAILING.clear()


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    np.save(tmp_path / "now.npy", NOW)
    np.save(tmp_path / "before.npy", BEFORE)
    return [tmp_path / "now.npy", tmp_path / "before.npy"]


def on_ranks(ranks: int, inputs: Any, outputs: Any, job: Any = wave, **options: Any) -> dict[str, Any]:
    def rank(control: Control) -> Any:
        world = open_world("cpu", control=control)
        return run(job, inputs, outputs, {}, Options(device="cpu", **options), world=world)

    return run_ranks(ranks, rank)[0]


def refused(inputs: Any, *outputs: Any, **options: Any) -> str:
    with pytest.raises(meshrun.MeshrunError) as failure:
        on_ranks(1, inputs, list(outputs), **options)
    return str(failure.value)


def container(folder: Path, suffix: str, **more: Any) -> Path:
    """A container with attributes, an empty group, and arrays of several kinds: `u` and others."""
    path = folder / f"fields{suffix}"
    if suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.attrs["dx"] = 0.25
            file.create_group("empty").attrs["why"] = "kept"
            file["u"] = np.arange(7.0)
            file["deep/flat"] = np.arange(6).reshape(2, 3)
            file["deep/packed"] = np.arange(50).reshape(10, 5)
            file["deep"].attrs["unit"] = "m"
            file["deep/flat"].attrs["scale"] = [1, 2]
            file["alias"] = h5py.SoftLink("/deep/flat")
        return path
    root = zarr.open_group(path, mode="w", **more)
    root.attrs["dx"] = 0.25
    root.create_group("empty").attrs["why"] = "kept"
    for name, shape in (("u", (7,)), ("deep/flat", (2, 3)), ("deep/packed", (10, 5))):
        array = root.create_array(name, shape=shape, chunks=tuple(-(-n // 2) for n in shape), dtype="f8")
        array[...] = np.arange(np.prod(shape)).reshape(shape)
    root["deep"].attrs["unit"] = "m"
    root["deep/flat"].attrs["scale"] = [1, 2]
    return path


def others(path: Path, *written: str) -> dict[str, Any]:
    """Everything in a container but the arrays `written`: values as bytes, attributes, links."""
    found: dict[str, Any] = {}
    if path.suffix == ".h5":
        with h5py.File(path, "r") as file:
            found[""] = dict(file.attrs)
            if "alias" in file:
                found["alias"] = file.get("alias", getlink=True).path

            def look(name: str, node: Any) -> None:
                value = node[...].tobytes() if isinstance(node, h5py.Dataset) else None
                attributes = {key: np.asarray(one).tolist() for key, one in node.attrs.items()}
                found[name] = (type(node).__name__, value, attributes)

            file.visititems(look)
    else:
        for file in path.rglob("*"):
            if file.is_file():
                found[str(file.relative_to(path))] = file.read_bytes()
    inside = tuple(f"{name}/" for name in written)
    return {key: value for key, value in found.items() if key not in written and not key.startswith(inside)}


def array(path: Path, name: str) -> Any:
    if path.suffix == ".h5":
        with h5py.File(path, "r") as file:
            return file[name][...]
    return zarr.open_array(path, path=name, mode="r")[...]


def at(path: Path, name: str) -> Path:
    return Path(f"{path}:{name}")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- what is written


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_two_results_make_one_container(
    tmp_path: Path, inputs: list[Path], suffix: str, ranks: int, mode: str
) -> None:
    path = tmp_path / f"out{suffix}"
    record = on_ranks(ranks, inputs, [at(path, "after"), at(path, "old")], verify="full", **MODES[mode])
    for name, wanted in zip(("after", "old"), expected(5 if mode == "steps" else 1), strict=True):
        np.testing.assert_allclose(array(path, name), wanted, rtol=1e-12)
    assert (record["stream"] is not None) == (mode == "streamed" or (suffix == ".zarr" and mode != "steps"))
    assert names(tmp_path) == ["before.npy", "now.npy", path.name]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_else_is_in_the_container_stays(
    tmp_path: Path, inputs: list[Path], suffix: str, ranks: int, mode: str
) -> None:
    path = container(tmp_path, suffix)
    before = others(path, "u", "deep/new")
    on_ranks(ranks, inputs, [at(path, "u"), at(path, "deep/new")], verify="full", **MODES[mode])
    for name, wanted in zip(("u", "deep/new"), expected(5 if mode == "steps" else 1), strict=True):
        np.testing.assert_allclose(array(path, name), wanted, rtol=1e-12)
    assert others(path, "u", "deep/new") == before
    assert names(tmp_path) == ["before.npy", path.name, "now.npy"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_result_replaces_an_input_of_the_same_container(
    tmp_path: Path, inputs: list[Path], suffix: str, ranks: int, mode: str
) -> None:
    path = tmp_path / f"fields{suffix}"
    on_ranks(1, inputs, [at(path, "now"), at(path, "before")])  # one step, to have a container
    fields = [at(path, "now"), at(path, "before")]
    on_ranks(ranks, fields, fields, verify="full", overwrite_input=True, **MODES[mode])
    for name, wanted in zip(("now", "before"), expected(6 if mode == "steps" else 2), strict=True):
        np.testing.assert_allclose(array(path, name), wanted, rtol=1e-12)
    assert names(tmp_path) == ["before.npy", path.name, "now.npy"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_input_that_stays_in_the_container_has_not_changed(
    tmp_path: Path, inputs: list[Path], suffix: str, mode: str
) -> None:
    """Its files are linked into the new store while they are read, which changes their status."""
    path = tmp_path / f"fields{suffix}"
    fields = [at(path, "now"), at(path, "before")]
    on_ranks(1, inputs, fields)
    time.sleep(0.02)  # more than the resolution of a file's times
    on_ranks(3, fields, [at(path, "after"), at(path, "old")], verify="full", **MODES[mode])
    for name, wanted in zip(("after", "old"), expected(6 if mode == "steps" else 2), strict=True):
        np.testing.assert_allclose(array(path, name), wanted, rtol=1e-12)
    np.testing.assert_allclose(array(path, "now"), expected()[0])


def test_outputs_may_be_in_several_containers(tmp_path: Path, inputs: list[Path]) -> None:
    @meshrun.map_blocks(outputs=3)
    def three(now: Any, before: Any) -> Any:
        return now + before, now - before, now * before

    targets = [tmp_path / "a.h5:x", tmp_path / "b.npy", tmp_path / "a.h5:y"]
    on_ranks(3, inputs, targets, three, verify="full")
    np.testing.assert_array_equal(array(tmp_path / "a.h5", "x"), NOW + BEFORE)
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), NOW - BEFORE)
    np.testing.assert_array_equal(array(tmp_path / "a.h5", "y"), NOW * BEFORE)


def test_chunks_of_other_arrays_are_not_copied(tmp_path: Path, inputs: list[Path]) -> None:
    path = container(tmp_path, ".zarr")
    chunk = path / "deep" / "packed" / "c" / "0" / "0"
    before = chunk.stat()
    on_ranks(1, inputs, [at(path, "a"), at(path, "b")])
    assert chunk.stat().st_ino == before.st_ino
    assert chunk.stat().st_nlink == 1


@pytest.mark.parametrize("reason", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_a_store_is_copied_where_there_are_no_hard_links(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    path = container(tmp_path, ".zarr")
    before = others(path)

    def no_links(*_: Any, **__: Any) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(containers.os, "link", no_links)
    on_ranks(1, inputs, [at(path, "a"), at(path, "b")], verify="full")
    assert others(path, "a", "b") == before
    np.testing.assert_allclose(array(path, "a"), expected()[0])


def test_a_file_is_copied_where_the_kernel_does_not(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = container(tmp_path, ".h5")
    before = others(path)

    def no_copy(*_: Any) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(containers.os, "copy_file_range", no_copy)
    on_ranks(1, inputs, [at(path, "a"), at(path, "b")], verify="full")
    assert others(path, "a", "b") == before


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_permissions_stay(tmp_path: Path, inputs: list[Path], suffix: str) -> None:
    path = container(tmp_path, suffix)
    path.chmod(0o700 if suffix == ".zarr" else 0o600)
    mode = path.stat().st_mode
    on_ranks(1, inputs, [at(path, "a"), at(path, "b")])
    assert path.stat().st_mode == mode


def test_an_array_replaced_by_one_as_large_does_not_make_the_file_larger(
    tmp_path: Path, inputs: list[Path]
) -> None:
    path = tmp_path / "fields.h5"
    fields = [at(path, "now"), at(path, "before")]
    on_ranks(1, inputs, [*fields])
    with h5py.File(path, "a") as file:
        file["other"] = np.arange(5)
    sizes = set()
    for _ in range(4):
        on_ranks(1, fields, fields, overwrite_input=True)
        sizes.add(path.stat().st_size)
    assert len(sizes) == 1


def test_a_file_of_replaced_arrays_alone_is_not_copied(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fields.h5"
    fields = [at(path, "deep/now"), at(path, "deep/before")]
    on_ranks(1, inputs, fields)
    copied: list[Path] = []
    original = containers.copy_file
    monkeypatch.setattr(
        "meshrun.runner.storage.formats.hdf5.copy_file",
        lambda old, new: (copied.append(old), original(old, new)),
    )
    on_ranks(1, fields, fields, overwrite_input=True)
    assert copied == []
    with h5py.File(path, "a") as file:
        file["deep"].attrs["unit"] = "m"
    on_ranks(1, fields, fields, overwrite_input=True)
    assert copied == [path]
    with h5py.File(path) as file:
        assert file["deep"].attrs["unit"] == "m"


@pytest.mark.parametrize("version", [2, 3])
def test_consolidated_metadata_lists_the_new_arrays(
    tmp_path: Path, inputs: list[Path], version: Any, recwarn: pytest.WarningsRecorder
) -> None:
    path = container(tmp_path, ".zarr", zarr_format=version)
    zarr.consolidate_metadata(path)
    recwarn.clear()
    on_ranks(1, inputs, [at(path, "u"), at(path, "deep/new")], verify="full")
    assert not [one for one in recwarn if "Consolidated" in str(one.message)]
    root = zarr.open_consolidated(path, mode="r")
    assert root["u"].shape == NOW.shape
    assert root["deep/new"].metadata.zarr_format == version
    np.testing.assert_allclose(root["deep/new"][...], NOW)
    assert root["deep/flat"].attrs["scale"] == [1, 2]


def test_a_store_without_consolidated_metadata_gets_none(tmp_path: Path, inputs: list[Path]) -> None:
    path = container(tmp_path, ".zarr")
    on_ranks(1, inputs, [at(path, "u"), at(path, "v")])
    assert zarr.open_group(path, mode="r").metadata.consolidated_metadata is None


# ---- a run that fails


@pytest.mark.parametrize("mode", ["in memory", "streamed"])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_failed_run_leaves_the_container_as_it_was(
    tmp_path: Path, inputs: list[Path], suffix: str, ranks: int, mode: str
) -> None:
    path = container(tmp_path, suffix)
    whole = path.read_bytes() if suffix == ".h5" else others(path)
    FAILING.update(range(1, 24))
    if ranks == 1 and mode == "in memory":
        FAILING.add(0)
    with pytest.raises((ZeroDivisionError, meshrun.MeshrunError)):
        on_ranks(ranks, inputs, [at(path, "u"), at(path, "deep/new")], **MODES[mode])
    assert (path.read_bytes() if suffix == ".h5" else others(path)) == whole
    if mode == "in memory" and suffix == ".h5":
        assert names(tmp_path) == ["before.npy", path.name, "now.npy"]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_streamed_run_goes_on(tmp_path: Path, inputs: list[Path], suffix: str, ranks: int) -> None:
    path = container(tmp_path, suffix)
    before, outputs = others(path, "u", "deep/new"), [at(path, "u"), at(path, "deep/new")]
    FAILING.update(range(12, 16))
    with pytest.raises((ZeroDivisionError, meshrun.MeshrunError)):
        on_ranks(ranks, inputs, outputs, **MODES["streamed"])
    FAILING.clear()
    assert f".{path.name}.stream.partial" in names(tmp_path)
    assert "an earlier run of" in refused(inputs, *outputs, **MODES["streamed"])
    again = StreamOptions(chunk_bytes=800, depth=2, resume=True)
    swapped = refused(inputs, *reversed(outputs), stream=again)
    assert 'got containers.after.array "deep/new", containers.old.array "u"' in swapped
    record = on_ranks(4 - ranks, inputs, outputs, stream=again, verify="full")
    assert record["stream"]["chunks"] > record["stream"]["resumed"] >= (2 if ranks == 1 else 0)
    for name, wanted in zip(("u", "deep/new"), expected(), strict=True):
        np.testing.assert_allclose(array(path, name), wanted, rtol=1e-12)
    assert others(path, "u", "deep/new") == before
    assert names(tmp_path) == ["before.npy", path.name, "now.npy"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_was_added_since_is_not_lost_by_resuming(
    tmp_path: Path, inputs: list[Path], suffix: str
) -> None:
    path = container(tmp_path, suffix)
    FAILING.update(range(12, 16))
    with pytest.raises((ZeroDivisionError, meshrun.MeshrunError)):
        on_ranks(1, inputs, [at(path, "u"), at(path, "v")], **MODES["streamed"])
    FAILING.clear()
    if suffix == ".h5":
        with h5py.File(path, "a") as file:
            file["added"] = np.arange(9)
    else:
        zarr.create_array(path, name="added", shape=(9,), dtype="f8")[...] = 1
    again = StreamOptions(chunk_bytes=800, depth=2, resume=True)
    sentence = refused(inputs, at(path, "u"), at(path, "v"), stream=again)
    assert "containers.after.bytes" in sentence
    assert "to start from the beginning: rm -r" in sentence
    assert array(path, "added").shape == (9,)


def test_a_link_in_the_place_of_a_resumed_array_is_not_written_through(
    tmp_path: Path, inputs: list[Path]
) -> None:
    path, victim = container(tmp_path, ".zarr"), tmp_path / "victim"
    victim.mkdir()
    FAILING.update(range(12, 16))
    with pytest.raises((ZeroDivisionError, meshrun.MeshrunError)):
        on_ranks(1, inputs, [at(path, "deep/new"), at(path, "v")], **MODES["streamed"])
    FAILING.clear()
    deep = tmp_path / ".fields.zarr.stream.partial" / "deep"
    deep.rename(victim / "deep")
    deep.symlink_to(victim / "deep")
    again = StreamOptions(chunk_bytes=800, depth=2, resume=True)
    sentence = refused(inputs, at(path, "deep/new"), at(path, "v"), stream=again)
    assert "is not of a run of yours: got a link to" in sentence


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("mode", MODES)
def test_what_another_program_adds_meanwhile_is_not_lost(
    tmp_path: Path, inputs: list[Path], suffix: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = container(tmp_path, suffix)
    from meshrun.runner.run import map_run, step_run

    original = map_run.commit

    def add_first(context: Any, sinks: Any) -> None:
        if suffix == ".h5":
            with h5py.File(path, "a") as file:
                file["added"] = np.arange(9)
        else:
            zarr.create_array(path, name="added", shape=(9,), dtype="f8")
        original(context, sinks)

    monkeypatch.setattr(map_run, "commit", add_first)
    monkeypatch.setattr(step_run, "commit", add_first)
    sentence = refused(inputs, at(path, "u"), at(path, "v"), **MODES[mode])
    assert sentence.startswith(f"{path} changed while this run wrote a new version of it")
    assert array(path, "added").shape == (9,)
    (new,) = tmp_path.glob(".fields.*.kept")
    assert str(new) in sentence
    assert not list(tmp_path.glob(".fields.*.partial"))
    assert array(path, "u").shape == (7,)


def test_a_store_whose_run_is_killed_at_its_rename_is_never_without_its_name(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = container(tmp_path, ".zarr")
    seen: list[bool] = []
    original = os.rename

    def look(one: Any, other: Any) -> None:
        seen.append(path.is_dir())
        original(one, other)
        seen.append(path.is_dir())

    monkeypatch.setattr(os, "rename", look)
    on_ranks(1, inputs, [at(path, "u"), at(path, "v")])
    assert seen == [True, True]


def test_stores_are_renamed_also_where_they_cannot_be_exchanged(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = container(tmp_path, ".zarr")
    before = others(path, "u")
    monkeypatch.setattr("meshrun.runner.storage.formats.registry.exchange", lambda one, other: False)
    on_ranks(1, inputs, [at(path, "u"), at(path, "v")])
    assert others(path, "u", "v") == before
    assert names(tmp_path) == ["before.npy", path.name, "now.npy"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_one_run_at_a_time_writes_a_container(tmp_path: Path, inputs: list[Path], suffix: str) -> None:
    path = container(tmp_path, suffix)
    let_go = hold(path)
    assert f"another run is writing {path}" in refused(inputs, at(path, "a"), at(path, "b"))
    let_go()
    on_ranks(1, inputs, [at(path, "a"), at(path, "b")])


# ---- no room


@pytest.mark.parametrize("links", [True, False])
def test_a_disk_without_room_for_a_copy_is_named(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """A store needs room only where there are no hard links."""
    path = container(tmp_path, ".zarr")

    def no_links(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not links:
        monkeypatch.setattr(containers.os, "link", no_links)
    monkeypatch.setattr(containers, "free_bytes", lambda path: 100)
    before = others(path)
    if links:
        on_ranks(1, inputs, [at(path, "a"), at(path, "b")])
        return
    sentence = refused(inputs, at(path, "a"), at(path, "b"))
    assert sentence.startswith(f"{path} cannot be copied, to keep its other arrays: got 100 bytes free")
    assert "its file system has no hard links" in sentence
    assert others(path) == before
    assert names(tmp_path) == ["before.npy", path.name, "now.npy"]


def test_a_disk_without_room_for_a_copy_of_a_file_is_named(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = container(tmp_path, ".h5")
    monkeypatch.setattr(containers, "free_bytes", lambda path: 100)
    sentence = refused(inputs, at(path, "a"), at(path, "b"))
    size = path.stat().st_size
    assert sentence.startswith(
        f"{path} cannot be copied, to keep its other arrays: "
        f"got 100 bytes free on its disk, expected {size:,}"
    )
    assert names(tmp_path) == ["before.npy", path.name, "now.npy"]


# ---- what is refused before any work


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("out.h5", "out.h5"),
        ("out.h5", "out.h5:/data"),
        ("out.h5:/u", "out.h5:u/"),
        ("out.h5:/a//u", "out.h5:a/./u"),
        ("out.zarr", "out.zarr"),
        ("out.zarr:u", "out.zarr:/u"),
    ],
)
def test_two_outputs_are_two_arrays(tmp_path: Path, inputs: list[Path], first: str, second: str) -> None:
    sentence = refused(inputs, tmp_path / first, tmp_path / second)
    assert sentence.startswith("two outputs are the same array")
    assert names(tmp_path) == ["before.npy", "now.npy"]


@pytest.mark.parametrize(
    ("first", "second"),
    [("out.h5:/a", "out.h5:/a/u"), ("out.zarr:a/u/v", "out.zarr:a/u"), ("out.zarr", "out.zarr:a")],
)
def test_an_output_is_not_within_another(tmp_path: Path, inputs: list[Path], first: str, second: str) -> None:
    assert "one output is inside another" in refused(inputs, tmp_path / first, tmp_path / second)


def test_a_container_has_one_path(tmp_path: Path, inputs: list[Path]) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    sentence = refused(inputs, tmp_path / "out.h5:a", tmp_path / "link" / "out.h5:b")
    assert sentence.startswith("two outputs name one file by different paths")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_array_cannot_be_where_something_else_is(tmp_path: Path, inputs: list[Path], suffix: str) -> None:
    path = container(tmp_path, suffix)
    assert "u is an array, which cannot hold others" in refused(inputs, at(path, "u/x"), at(path, "v"))
    for group in ("deep", "empty"):
        assert f"{group} is a group" in refused(inputs, at(path, group), at(path, "v"))
    if suffix == ".zarr":
        assert "holds other arrays, which would be lost" in refused(inputs, path, tmp_path / "b.npy")


def test_a_store_that_is_one_array_holds_no_others(tmp_path: Path, inputs: list[Path]) -> None:
    path = tmp_path / "one.zarr"
    zarr.create_array(path, shape=(3,), dtype="f4")
    assert "one.zarr is an array, which cannot hold others" in refused(inputs, at(path, "a"), at(path, "b"))
    on_ranks(1, inputs, [path, tmp_path / "b.npy"])
    np.testing.assert_allclose(zarr.open_array(path, mode="r")[...], expected()[0])


@pytest.mark.parametrize("name", ["../a", "a/../b", "zarr.json", "a/.zarray"])
def test_names_that_zarr_cannot_have(tmp_path: Path, inputs: list[Path], name: str) -> None:
    sentence = refused(inputs, tmp_path / f"out.zarr:{name}", tmp_path / "out.zarr:x")
    assert "cannot be the name of a Zarr array" in sentence
    assert names(tmp_path) == ["before.npy", "now.npy"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_nothing_is_written_through_a_link(tmp_path: Path, inputs: list[Path], suffix: str) -> None:
    path, elsewhere = container(tmp_path, suffix), tmp_path / f"elsewhere{suffix}"
    if suffix == ".h5":
        with h5py.File(elsewhere, "w") as file:
            file.create_group("group")
        with h5py.File(path, "a") as file:
            file["link"] = h5py.ExternalLink(str(elsewhere), "/group")
    else:
        zarr.open_group(elsewhere, mode="w")
        (path / "link").symlink_to(elsewhere)
    before = others(elsewhere)
    assert "link is a link" in refused(inputs, at(path, "link/a"), at(path, "b"))
    (tmp_path / f"other{suffix}").symlink_to(path)
    sentence = refused(inputs, tmp_path / f"other{suffix}:a", tmp_path / f"other{suffix}:b")
    assert f"other{suffix} is a link" in sentence
    assert str(path) in sentence
    on_ranks(1, inputs, [at(path, "link"), at(path, "b")])  # the link itself is replaced
    np.testing.assert_allclose(array(path, "link"), expected()[0])
    assert others(elsewhere) == before


def test_a_link_to_a_store_is_replaced_by_one_that_is_whole(tmp_path: Path, inputs: list[Path]) -> None:
    zarr.create_array(tmp_path / "real.zarr", shape=(3,), dtype="f4")
    (tmp_path / "out.zarr").symlink_to(tmp_path / "real.zarr")
    on_ranks(1, inputs, [tmp_path / "out.zarr", tmp_path / "b.npy"])
    assert not (tmp_path / "out.zarr").is_symlink()
    assert names(tmp_path) == ["b.npy", "before.npy", "now.npy", "out.zarr", "real.zarr"]


def test_a_group_of_a_name_that_a_partial_file_would_have_stays(tmp_path: Path, inputs: list[Path]) -> None:
    path = container(tmp_path, ".zarr")
    zarr.open_group(path, mode="a").create_group("some.partial")
    on_ranks(1, inputs, [at(path, "a"), at(path, "b")])
    assert "some.partial" in zarr.open_group(path, mode="r")


def test_two_names_of_one_hdf5_group_are_no_two_arrays(tmp_path: Path, inputs: list[Path]) -> None:
    path = container(tmp_path, ".h5")
    with h5py.File(path, "a") as file:
        file["same"] = file["deep"]
    sentence = refused(inputs, at(path, "deep/a"), at(path, "same/a"))
    assert "same/a cannot be created" in sentence
    assert names(tmp_path) == ["before.npy", path.name, "now.npy"]


def test_a_job_that_writes_its_own_file_replaces_the_whole(tmp_path: Path, inputs: list[Path]) -> None:
    @meshrun.job
    def own(world: Any, input: Any, output: Any) -> None:
        raise AssertionError("not called")

    path = container(tmp_path, ".h5")
    with pytest.raises(meshrun.UserError, match="holds other arrays, which would be lost"):
        on_ranks(1, inputs[:1], [at(path, "u")], own)
