"""An output is there when a run says so, is no other run's, and replaces nothing that is protected."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stream_cases import run_on

import meshrun
from meshrun.runner.errors import MeshrunError, RunError, UserError
from meshrun.runner.lock import hold


@meshrun.map_blocks
def copied(block: Any) -> Any:
    return block.copy()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.npy"
    np.save(path, np.arange(6.0).reshape(3, 2))
    return path


def names(source: Path) -> list[str]:
    return sorted(path.name for path in source.parent.iterdir())


def writing(write: Callable[[Path], object]) -> Any:
    """A job whose rank 1 writes its output."""

    @meshrun.job
    def writes(world: Any, output: Path) -> dict[str, int]:
        if world.rank == 1:
            write(output)
        return {"ranks": world.size}

    return writes


def save(output: Path) -> None:
    np.save(output, np.full(4, 7.0))


@pytest.mark.parametrize("old", [False, True])
def test_a_job_that_writes_nothing_fails(source: Path, old: bool) -> None:
    if old:
        source.with_name("never.npy").write_text("old")
    before = names(source)
    with pytest.raises(
        RunError, match=r"job writes returned without writing its output .*never\.npy: got no"
    ):
        run_on(2, writing(lambda output: None), source, source.with_name("never.npy"), json=f"{source}.json")
    assert names(source) == before


def test_what_a_job_writes_gets_the_outputs_name(source: Path) -> None:
    target = source.with_name("out.npy")
    target.write_text("old")
    record = run_on(2, writing(save), source, target)
    assert record["output"] == str(target)
    assert np.load(target).tolist() == [7.0] * 4
    assert names(source) == ["in.npy", "out.npy"]


def test_a_folder_and_an_array_in_a_container_too(source: Path) -> None:
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")

    def store(output: Path) -> None:
        zarr.create_array(output, data=np.arange(4))

    def dataset(output: Path) -> None:
        file, _, name = str(output).rpartition(":")
        with h5py.File(file, "w") as container:
            container[name] = np.arange(3)

    for _ in "12":  # the second replaces the first
        run_on(2, writing(store), source, source.with_name("out.zarr"))
        run_on(2, writing(dataset), source, Path(f"{source.with_name('out.h5')}:/group/a"))
    with h5py.File(source.with_name("out.h5")) as container:
        assert container["group/a"][...].tolist() == [0, 1, 2]
    assert zarr.open_array(source.with_name("out.zarr"))[...].tolist() == [0, 1, 2, 3]
    assert names(source) == ["in.npy", "out.h5", "out.zarr"]


def test_a_job_that_fails_leaves_the_old_output_and_nothing_else(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(output: Path) -> None:
        save(output)
        raise ZeroDivisionError("half-way")

    monkeypatch.setattr("meshrun.runner.world.failure.GRACE", 0.0)
    source.with_name("out.npy").write_text("old")
    with pytest.raises((ZeroDivisionError, MeshrunError)):
        run_on(2, writing(half), source, source.with_name("out.npy"))
    assert source.with_name("out.npy").read_text() == "old"
    assert [name for name in names(source) if not name.endswith(".lock")] == ["in.npy", "out.npy"]


@pytest.mark.parametrize("job", [copied, writing(save)], ids=["map", "job"])
def test_two_runs_in_memory_do_not_write_one_output(source: Path, job: Any) -> None:
    target = source.with_name("out.npy")
    release = hold(target)
    with pytest.raises(UserError, match=r"another run is writing .*out\.npy"):
        run_on(2, job, source, target)
    release()
    run_on(2, job, source, target)
    assert names(source) == ["in.npy", "out.npy"]


def test_a_run_holds_its_output_while_it_works(source: Path) -> None:
    target, refused = source.with_name("out.npy"), []

    @meshrun.map_blocks
    def nested(block: Any) -> Any:
        try:
            hold(target)
        except UserError as failure:
            refused.append(failure.what)
        return block.copy()

    run_on(1, nested, source, target)
    assert set(refused) == {f"another run is writing {target}"}


def test_so_does_a_run_over_a_folder_of_images(source: Path) -> None:
    images = source.with_name("images")
    images.mkdir()
    source.rename(images / "in.npy")
    release = hold(source.with_name("out"))
    with pytest.raises(UserError, match="another run is writing"):
        run_on(1, copied, images, source.with_name("out"))
    release()


@pytest.mark.parametrize("name", ["out.npy", "out.zarr"])
@pytest.mark.parametrize("options", [{}, {"chunk_bytes": 64}], ids=["in memory", "streamed"])
def test_a_write_protected_output_is_refused_before_the_work(source: Path, name: str, options: Any) -> None:
    if name == "out.zarr":
        pytest.importorskip("zarr")
    target = source.with_name(name)
    run_on(1, copied, source, target)
    before = target.stat()
    target.chmod(0o555 if target.is_dir() else 0o444)
    with pytest.raises(UserError, match=rf"the output is write-protected: got .*chmod u\+w .*{name}"):
        run_on(2, copied, source, target, **options)
    assert (target.stat().st_ino, target.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert names(source) == ["in.npy", name]
    target.chmod(0o755)
    run_on(1, copied, source, target)


@pytest.mark.parametrize("option", ["json", "timeline"])
def test_so_is_a_write_protected_record(source: Path, option: str) -> None:
    kept = source.with_name("kept.json")
    kept.touch(0o444)
    with pytest.raises(UserError, match="is write-protected"):
        run_on(1, copied, source, source.with_name("out.npy"), **{option: str(kept)})
    assert names(source) == ["in.npy", "kept.json"]


@pytest.mark.parametrize("options", [{}, {"chunk_bytes": 64}], ids=["in memory", "streamed"])
def test_the_longest_name_that_an_output_can_have(source: Path, options: Any) -> None:
    longest = "a" * (233 - 4)
    run_on(2, copied, source, source.with_name(f"{longest}.npy"), **options)
    assert np.load(source.with_name(f"{longest}.npy")).shape == (3, 2)
    with pytest.raises(UserError, match=r"the output's name is too long: got 234 bytes, expected 233, since"):
        run_on(2, copied, source, source.with_name(f"a{longest}.npy"), **options)
    assert names(source) == sorted(["in.npy", f"{longest}.npy"])


def test_an_images_name_can_be_too_long_for_an_output(source: Path) -> None:
    images = source.with_name("images")
    images.mkdir()
    source.rename(images / f"{'ä' * 115}.npy")
    with pytest.raises(UserError, match=r"the output .*ä\.npy's name is too long: got 234 bytes"):
        run_on(1, copied, images, source.with_name("out"))
    assert names(source) == ["images"]


@pytest.mark.parametrize("name", ["run.html", "run.json"])
def test_a_timeline_on_a_full_disk_fails_the_run_whose_output_is_complete(source: Path, name: str) -> None:
    source.with_name(name).symlink_to("/dev/full")
    target = source.with_name("out.npy")
    with pytest.raises(RunError, match=r"out\.npy is complete, but cannot write the timeline .*No space"):
        run_on(2, copied, source, target, chunk_bytes=64, timeline=str(source.with_name(name)))
    assert np.load(target).shape == (3, 2)
    assert os.readlink(source.with_name(name)) == "/dev/full"
    assert names(source) == sorted(["in.npy", "out.npy", name])


def test_a_record_to_a_device_goes_there(source: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    run_on(1, copied, source, source.with_name("out.npy"), json=str(pipe))
    assert json.loads(os.read(reader, 1 << 16))["job"] == "copied"
    os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize("options", [{}, {"chunk_bytes": 48}], ids=["in memory", "in chunks"])
@pytest.mark.parametrize("name", ["out.npy", "out.h5", "out.h5:/b", "out.zarr"])
def test_what_killed_runs_have_left_of_an_output_is_removed(
    source: Path, name: str, options: dict[str, Any]
) -> None:
    file = name.partition(":")[0]
    stem, suffix = file.split(".")
    run = "0123456789ab"
    for gone in (f".{file}.{run}.partial", f".{file}.{run}.steps.partial", f".{stem}.{run}.partial.{suffix}"):
        (source.parent / gone).mkdir()
    others = [f".other.{suffix}.{run}.partial", f".{file}.{run}.kept", f".{file}.mine.partial"]
    for other in others:
        (source.parent / other).touch()
    copied.run(source, source.parent / name, **options)
    assert names(source) == sorted([*others, "in.npy", file])
