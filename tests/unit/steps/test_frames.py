"""Frames of runs that take steps: what is in the files, and what is refused before the first step."""

from __future__ import annotations

import io
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence
from queued_device import QueuedBackend

import meshrun
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.options.choices import COLORS
from meshrun.runner.options.step_options import SaveInterval, StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.task import plan_task
from meshrun.runner.report.colors import NOT_A_NUMBER, indices, palette, value_range
from meshrun.runner.report.summary import render
from meshrun.runner.run.execute import Options, run
from meshrun.runner.steps.observers.frame_view import picture_slices
from meshrun.runner.steps.observers.frames import LINE
from meshrun.runner.storage.formats import frame_files
from meshrun.runner.world.world import open_world

FAILING = [False]  # no variable around a function that looks at it: those make it another job


@meshrun.map_blocks(halo=1, boundary="wrap", outputs=2)
def moves(field: Any, other: Any) -> Any:
    """Shifts by one row; `other` counts steps."""
    return field[:-2, 1:-1], other[1:-1, 1:-1] + 1


def filmed(
    folder: Path, frames: str, steps: int = 6, *, ranks: int = 1, field: Any = None, **options: Any
) -> Any:
    field = np.arange(63.0).reshape(9, 7) if field is None else field
    if not (folder / "a.npy").exists():
        np.save(folder / "a.npy", field)
        np.save(folder / "b.npy", np.zeros(field.shape, np.int16))
    devices, job, grid = (
        options.pop(name, default) for name, default in (("devices", False), ("job", moves), ("grid", None))
    )
    stream = StreamOptions(resume=options.pop("resume", False), chunk_bytes=options.pop("chunk_bytes", None))
    of_steps = StepOptions(steps, frames=str(folder / frames), every=options.pop("every", 2), **options)

    def rank(control: Control) -> Any:
        world = open_world("cpu", control=control)
        if devices:
            world.backend = QueuedBackend()
        count = len(job.arrays)
        inputs, outputs = [folder / "a.npy", folder / "b.npy"], [folder / "c.npy", folder / "d.npy"]
        chosen = Options(device="cpu", grid=grid, steps=of_steps, stream=stream)
        return run(job, inputs[:count], outputs[:count], {}, chosen, world=world)

    return run_ranks(ranks, rank)[0]


def colored(field: Any, low: float, high: float, colors: str = "viridis") -> Any:
    table = np.frombuffer(palette(colors), np.uint8).reshape(256, 3)
    return table[indices(field, low, high)]


@pytest.mark.parametrize("devices", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_folder_has_a_picture_of_every_second_step(tmp_path: Path, ranks: int, devices: bool) -> None:
    record = filmed(tmp_path, "film", ranks=ranks, devices=devices)
    assert record["steps"]["frames"] == 4
    names = sorted(path.name for path in (tmp_path / "film").iterdir())
    assert names == ["frame-000000.png", "frame-000002.png", "frame-000004.png", "frame-000006.png"]
    for step, name in zip((0, 2, 4, 6), names, strict=True):
        found = np.asarray(Image.open(tmp_path / "film" / name).convert("RGB"))
        expected = np.roll(np.arange(63.0).reshape(9, 7), step, 0)
        np.testing.assert_array_equal(found, colored(expected, 0, 62))


@pytest.mark.parametrize("suffix", ["gif", "webp", "png"])
def test_an_animation_has_a_frame_for_every_second_step(tmp_path: Path, suffix: str) -> None:
    filmed(tmp_path, f"film.{suffix}", ranks=2, frame_colors="inferno", frame_range=(0.0, 70.0))
    found = [
        np.asarray(one.convert("RGB"))
        for one in ImageSequence.Iterator(Image.open(tmp_path / f"film.{suffix}"))
    ]
    assert len(found) == 4
    for step, picture in zip((0, 2, 4, 6), found, strict=True):
        expected = colored(np.roll(np.arange(63.0).reshape(9, 7), step, 0), 0, 70, "inferno")
        np.testing.assert_array_equal(picture, expected)
    assert not list(tmp_path.glob(".*.partial"))


def test_a_gif_grows_with_each_frame(tmp_path: Path) -> None:
    """No frame waits for the end of the run; also one like the one before, or with a part that changed."""
    random = np.random.default_rng(0)
    pictures = [random.integers(0, 256, (40, 30), np.uint8) for _ in range(2)]
    pictures += [pictures[-1], pictures[-1].copy(), pictures[-1].copy()]
    pictures[3][17:20, 5:29] = 255
    pictures[4][39, 29] ^= 1
    writer = frame_files.picture_writer(tmp_path / "film.gif", palette("viridis"), "0123456789abcdef")
    table = np.frombuffer(palette("viridis"), np.uint8).reshape(256, 3)
    for number, picture in enumerate(pictures):
        writer.write(number, picture)
        (partial,) = tmp_path.glob(".*.partial")
        with Image.open(io.BytesIO(partial.read_bytes() + b";")) as film:
            assert film.n_frames == number + 1
    writer.close()
    with Image.open(tmp_path / "film.gif") as film:
        assert (film.info["loop"], film.info["duration"]) == (0, 50)
        for one, picture in zip(ImageSequence.Iterator(film), pictures, strict=True):
            np.testing.assert_array_equal(np.asarray(one.convert("RGB")), table[picture])


@pytest.mark.parametrize("devices", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("suffix", ["npy", "zarr"])
def test_an_array_over_time_holds_every_cell(tmp_path: Path, suffix: str, ranks: int, devices: bool) -> None:
    if suffix == "zarr":
        zarr = pytest.importorskip("zarr")
    filmed(tmp_path, f"film.{suffix}", ranks=ranks, devices=devices)
    film = tmp_path / f"film.{suffix}"
    found = np.load(film) if suffix == "npy" else zarr.open_array(film, mode="r")[...]
    expected = [np.roll(np.arange(63.0).reshape(9, 7), step, 0) for step in (0, 2, 4, 6)]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("suffix", ["npy", "zarr"])
def test_a_run_that_stops_early_leaves_a_shorter_film(tmp_path: Path, suffix: str) -> None:
    if suffix == "zarr":
        zarr = pytest.importorskip("zarr")
    filmed(tmp_path, f"film.{suffix}", 1000, until=1e9)
    film = tmp_path / f"film.{suffix}"
    found = np.load(film) if suffix == "npy" else zarr.open_array(film, mode="r")[...]
    expected = [np.roll(np.arange(63.0).reshape(9, 7), step, 0) for step in (0, 2)]
    np.testing.assert_array_equal(found, expected)


def test_another_field_is_chosen_by_name(tmp_path: Path) -> None:
    filmed(tmp_path, "film.npy", frame_field="other", ranks=2)
    found = np.load(tmp_path / "film.npy")
    assert found.dtype == np.int16
    assert [set(frame.ravel()) for frame in found] == [{0}, {2}, {4}, {6}]


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_a_large_field_is_shown_by_every_so_manyth_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    monkeypatch.setattr("meshrun.runner.steps.observers.frames.PIXELS", 4)
    field = np.random.default_rng(0).random((11, 7))
    filmed(tmp_path, "film", 2, ranks=ranks, field=field)
    found = np.asarray(Image.open(tmp_path / "film" / "frame-000002.png").convert("RGB"))
    np.testing.assert_array_equal(
        found, colored(np.roll(field, 2, 0)[::3, ::3], *value_range(field[::3, ::3]))
    )


def test_a_vector_field_shows_its_first_component_and_a_volume_its_middle_plane() -> None:
    flat = meshrun.map_blocks(halo=(1, 1))(lambda block: block[1:-1, 1:-1])
    task = plan_task(flat, {}, [((10, 8, 2), np.dtype(np.float32))], 1)
    assert picture_slices(task, 0) == (slice(0, 10, 1), slice(0, 8, 1), slice(0, 1, 1))
    solid = meshrun.map_blocks(halo=1)(lambda block: block[1:-1, 1:-1, 1:-1])
    task = plan_task(solid, {}, [((10, 8, 6), np.dtype(np.float32))], 2)
    assert picture_slices(task, 0) == (slice(5, 6, 1), slice(0, 8, 1), slice(0, 6, 1))


@pytest.mark.parametrize("grid", [None, "1x2", "1x1x2"])
@pytest.mark.parametrize(
    ("halo", "shape", "view"),
    [
        (0, (10, 8, 25), np.s_[5:6:1, 0:8:1, 0:25:1]),
        (0, (10, 8, 16), np.s_[0:10:1, 0:8:1, 0:1:1]),
        ((1, 1), (10, 8, 25), np.s_[0:10:1, 0:8:1, 0:1:1]),
        (1, (10, 8, 3), np.s_[5:6:1, 0:8:1, 0:3:1]),
        (0, (6, 10, 8, 25), np.s_[3:4:1, 5:6:1, 0:8:1, 0:25:1]),
        (0, (6, 10, 8, 2), np.s_[3:4:1, 0:10:1, 0:8:1, 0:1:1]),
    ],
)
def test_what_a_picture_shows_does_not_depend_on_the_grid(
    halo: Any, shape: tuple[int, ...], view: Any, grid: str | None
) -> None:
    """Without halo, no axis but a short last one differs from the others: the array is a volume."""
    job = meshrun.map_blocks(halo=halo)(lambda block: block)
    task = plan_task(job, {}, [(shape, np.dtype(np.float32))], 2, grid=grid)
    assert picture_slices(task, 0) == view


def test_an_input_with_an_axis_more_than_another_shows_its_first_component() -> None:
    job = meshrun.map_blocks(lambda a, b: (a, b), outputs=2)
    inputs = [((10, 8), np.dtype(np.float32)), ((10, 8, 25), np.dtype(np.float32))]
    assert picture_slices(plan_task(job, {}, inputs, 1), 1) == np.s_[0:10:1, 0:8:1, 0:1:1]


@pytest.mark.parametrize("chunk_bytes", [None, 5000])
@pytest.mark.parametrize("grid", [None, "1x1x2"])
def test_a_volume_without_halo_is_drawn_by_its_middle_plane(
    tmp_path: Path, chunk_bytes: int | None, grid: str | None
) -> None:
    if chunk_bytes is not None and grid is not None:
        return
    job = meshrun.map_blocks(lambda block: block + 1)
    field = np.arange(6.0 * 7 * 20).reshape(6, 7, 20)
    filmed(tmp_path, "film", 2, field=field, job=job, ranks=2, chunk_bytes=chunk_bytes, grid=grid)
    found = np.asarray(Image.open(tmp_path / "film" / "frame-000002.png").convert("RGB"))
    np.testing.assert_array_equal(found, colored(field[3] + 2, *value_range(field[3])))


@pytest.mark.parametrize("chunk_bytes", [None, 5000])
@pytest.mark.parametrize("shape", [(9, 1), (9, 1, 3), (1, 9), (3, 9, 1), (1, 1, 9), (1, 1), (9,)])
def test_a_field_of_one_row_or_column_is_drawn_as_such(
    tmp_path: Path, shape: tuple[int, ...], chunk_bytes: int | None
) -> None:
    axes = 2 if shape == (9, 1, 3) else len(shape)
    own = (slice(1, -1),) * axes
    job = meshrun.map_blocks(halo=(1,) * axes, boundary="nearest")(lambda block: block[own])
    field = np.arange(float(np.prod(shape))).reshape(shape)
    filmed(tmp_path, "film", 2, field=field, job=job, ranks=2, chunk_bytes=chunk_bytes)
    plane = field[..., 0] if axes < len(shape) else field[shape[0] // 2] if len(shape) == 3 else field
    if plane.ndim == 1:
        plane = np.repeat(plane[None], LINE, axis=0)
    found = np.asarray(Image.open(tmp_path / "film" / "frame-000002.png").convert("RGB"))
    np.testing.assert_array_equal(found, colored(plane, *value_range(plane)))


@pytest.mark.parametrize("chunk_bytes", [None, 300])
@pytest.mark.parametrize(("suffix", "stored"), [(".webp", 3), (".png", 3), (".gif", 11), ("", 11)])
def test_frames_that_the_encoder_merges_are_reported(
    tmp_path: Path, suffix: str, stored: int, chunk_bytes: int | None
) -> None:
    """ "11 frames written" was said of a file of 3."""

    @meshrun.map_blocks(halo=((1, 1), (0, 0)), boundary="nearest")
    def settles(block: Any) -> Any:
        return (block[1:-1] + 1).clip(0, 2)

    field = np.zeros((9, 7))
    options = {"job": settles, "every": 1, "frame_range": (0, 2), "chunk_bytes": chunk_bytes}
    record = filmed(tmp_path, f"film{suffix}", 10, field=field, **options)
    steps, film = record["steps"], tmp_path / f"film{suffix}"
    assert (steps["frames"], steps["merged_frames"]) == (11, 11 - stored)
    if suffix:
        with Image.open(film) as opened:
            assert opened.n_frames == stored
    else:
        assert len(list(film.iterdir())) == stored
    said = "11 frames written; 3 in the file, which stores equal frames in a row once"
    assert (said in render(record)) == (stored == 3)


@pytest.mark.parametrize("chunk_bytes", [None, 100])
@pytest.mark.parametrize("frames", ["film", "film.gif", "film.webp"])
def test_pictures_of_a_field_without_cells_are_refused(
    tmp_path: Path, frames: str, chunk_bytes: int | None
) -> None:
    with pytest.raises(UserError, match="no cells") as refused:
        filmed(tmp_path, frames, field=np.zeros((0, 5)), chunk_bytes=chunk_bytes, ranks=2)
    assert "frames" in str(refused.value)
    assert not list(tmp_path.glob("*film*"))
    assert filmed(tmp_path, "film.npy", field=np.zeros((0, 5)))["steps"]["frames"] == 4


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("suffix", ["", ".gif", ".webp"])
@pytest.mark.parametrize("axes", [2, 3])
def test_frames_of_a_run_in_chunks_are_those_of_a_run_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, suffix: str, axes: int
) -> None:
    monkeypatch.setattr("meshrun.runner.steps.observers.frames.PIXELS", 9)
    monkeypatch.setattr("meshrun.runner.steps.observers.frames.ANIMATED", 9)
    field = np.random.default_rng(0).random((40, 7, 3)[:axes])
    job = meshrun.map_blocks(halo=((1, 1), (0, 0)), boundary="wrap")(lambda block: block[:-2] + block[2:])
    expected = filmed(tmp_path, f"film{suffix}", 11, field=field, job=job, every=3)
    record = filmed(
        tmp_path,
        f"chunks{suffix}",
        11,
        field=field,
        job=job,
        every=3,
        ranks=ranks,
        chunk_bytes=field.nbytes // 2,
    )
    assert record["stream"]["chunks"] > 1
    assert (record["steps"]["frames"], record["steps"]["first_frame"]) == (4, 0)
    assert expected["steps"]["frames"] == 4
    found, wanted = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        if not suffix
        else (tmp_path / f"{name}{suffix}").read_bytes()
        for name in ("chunks", "film")
    )
    assert found == wanted


@pytest.mark.filterwarnings("error")
def test_values_far_beyond_the_range_have_its_last_colours() -> None:
    """Those of a simulation that diverges."""
    assert indices(np.array([[-1e308, 0.5, 1e308]]), 0, 1).tolist() == [[0, 127, 254]]


def test_what_is_not_finite_has_a_colour_of_its_own() -> None:
    values = np.array([[0.0, 1.0, np.nan, np.inf, -5.0, 9.0, 0.5]])
    assert indices(values, 0, 1).tolist() == [[0, 254, NOT_A_NUMBER, NOT_A_NUMBER, 0, 254, 127]]
    assert value_range(np.array([np.nan, np.inf])) == (0.0, 1.0)
    assert value_range(np.array([3.0, np.nan])) == (1.5, 4.5)
    assert value_range(np.array([2, 7], np.uint8)) == (2.0, 7.0)


@pytest.mark.parametrize("name", COLORS)
def test_a_colour_map_is_near_matplotlibs(name: str) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    table = np.frombuffer(palette(name), np.uint8).reshape(256, 3)[:255].astype(float)
    expected = matplotlib.colormaps[name](np.linspace(0, 1, 255))[:, :3] * 255
    assert abs(table - expected).max() < 5


def test_frames_that_would_fill_the_disk_are_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 4 * 63 * 8 - 1

    monkeypatch.setattr(frame_files.shutil, "disk_usage", lambda place: Usage)
    with pytest.raises(meshrun.UserError) as failure:
        filmed(tmp_path, "film.npy")
    assert "4 frames do not fit the disk" in str(failure.value)
    assert "got 2,015 bytes free there, expected at least 2,016 bytes. Try: a larger --every" in str(
        failure.value
    )
    assert {path.name for path in tmp_path.iterdir()} == {"a.npy", "b.npy"}


def test_frames_and_an_output_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(meshrun.UserError, match="OUTPUT and --frames name the same file"):
        filmed(tmp_path, "c.npy")
    assert {path.name for path in tmp_path.iterdir()} == {"a.npy", "b.npy"}


@pytest.mark.parametrize("other", [None, "thesis.tex", "frame-000001.txt", "data"])
def test_only_a_folder_of_frames_alone_may_be_suggested_for_removal(
    tmp_path: Path, other: str | None
) -> None:
    folder = tmp_path / "my film"
    folder.mkdir()
    (folder / "frame-000010.png").touch()
    if other is not None:
        (folder / other).mkdir() if other == "data" else (folder / other).touch()
    with pytest.raises(meshrun.UserError, match="is not empty") as caught:
        frame_files.check_frames(folder, resume=False)
    assert ("rm -r" in str(caught.value)) == (other is None)
    assert other is None or other in str(caught.value)
    assert other is not None or f"rm -r '{folder}'" in str(caught.value)


def test_a_folder_of_other_frames_is_refused(tmp_path: Path) -> None:
    (tmp_path / "film").mkdir()
    (tmp_path / "film" / "frame-000000.png").write_bytes(b"an earlier run's")
    with pytest.raises(meshrun.UserError, match=r"the folder of frames .* is not empty"):
        filmed(tmp_path, "film")


def test_a_store_that_holds_other_arrays_is_not_replaced_by_frames(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    zarr.create_array(tmp_path / "film.zarr", name="precious", shape=(3,), dtype="f4")
    with pytest.raises(meshrun.UserError, match=r"holds other arrays, which would be lost.*got precious"):
        filmed(tmp_path, "film.zarr")
    zarr.open_array(tmp_path / "film.zarr", path="precious", mode="r")


@pytest.mark.parametrize(("frames", "what"), [("c.npy", "OUTPUT"), ("a.npy", "INPUT")])
def test_frames_in_the_file_of_an_array_are_refused(tmp_path: Path, frames: str, what: str) -> None:
    with pytest.raises(meshrun.UserError, match=f"{what} and --frames name the same file"):
        filmed(tmp_path, frames)


def test_an_encoder_that_fails_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(self: Any, *_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", save)
    with pytest.raises(meshrun.RunError, match=r"cannot write .*film\.gif: No space left"):
        filmed(tmp_path, "film.gif", 40, every=1)
    assert not (tmp_path / "film.gif").exists()
    assert not (tmp_path / "c.npy").exists()


@pytest.mark.parametrize("frames", ["film.npy", "film.zarr", "film.gif", "film.webp"])
def test_a_run_that_fails_leaves_no_unfinished_frames_and_no_thread(tmp_path: Path, frames: str) -> None:
    """A thread that waits for frames would keep the process from ending."""
    if frames.endswith("zarr"):
        pytest.importorskip("zarr")
    taken: list[int] = []

    @meshrun.map_blocks
    def fails(block: Any) -> Any:
        taken.append(1)
        if len(taken) == 50:
            raise ValueError("as it does")
        return block + 1

    with pytest.raises(ValueError, match="as it does"):
        filmed(tmp_path, frames, 100, every=1, job=fails)
    assert {path.name for path in tmp_path.iterdir()} == {"a.npy", "b.npy"}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("frames")]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("fail", [8, 11])
def test_pictures_from_before_a_checkpoint_are_there_when_the_run_is_resumed(
    tmp_path: Path, ranks: int, fail: int
) -> None:
    """The checkpoint after step 7 comes between a frame and the next one. The colours are the first run's."""
    FAILING[0] = True

    @meshrun.map_blocks(halo=1, boundary="constant", split_dependent=True)
    def fragile(block: Any) -> Any:
        if FAILING[0] and block.max() >= fail:
            raise ValueError("as if the power went")
        return block[1:-1, 1:-1] + 1

    def film(name: str, **more: Any) -> Any:
        field = np.zeros((9, 7))
        return filmed(tmp_path, name, 12, ranks=ranks, field=field, job=fragile, **more)

    with pytest.raises(ValueError, match="power"):
        film("film", every=5, checkpoint=SaveInterval(steps=7))
    FAILING[0] = False
    record = film("film", every=5, checkpoint=SaveInterval(steps=7), resume=True)
    assert (record["steps"]["frames"], record["steps"]["first_frame"]) == (1, 10)
    assert "1 frame written, from step 10 on" in render(record)
    record = film("other", every=5)
    assert (record["steps"]["frames"], record["steps"]["first_frame"]) == (3, 0)
    assert "3 frames written\n" in render(record)
    found, expected = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("film", "other")
    )
    assert sorted(found) == ["frame-000000.png", "frame-000005.png", "frame-000010.png"]
    assert found == expected


@pytest.mark.parametrize("chunk_bytes", [None, 600])
def test_a_run_that_ended_before_its_first_checkpoint_makes_its_frames_again(
    tmp_path: Path, chunk_bytes: int | None
) -> None:
    """`--resume` then starts from the beginning. Frames that the run does not make are another run's."""
    failing, first = [True], tmp_path / "film" / "frame-000000.png"

    @meshrun.map_blocks(halo=1, boundary="constant", split_dependent=True)
    def fragile(block: Any) -> Any:
        if failing[0] and block.max() >= 6:
            while not first.exists():  # frames that are not begun when a run fails are not made
                time.sleep(0.001)
            raise ValueError("as if the power went")
        return block[1:-1, 1:-1] + 1

    def film(name: str, **more: Any) -> Any:
        options = {"checkpoint": SaveInterval(steps=10), "chunk_bytes": chunk_bytes, **more}
        return filmed(tmp_path, name, 12, field=np.zeros((9, 7)), job=fragile, every=5, **options)

    with pytest.raises(ValueError, match="power"):
        film("film")
    failing[0] = False
    with pytest.raises(meshrun.UserError, match=r"the folder of frames .* is not empty: got frame-000000"):
        film("film")
    stray = tmp_path / "film" / "frame-000003.png"
    stray.touch()
    with pytest.raises(meshrun.UserError, match=r"is not empty: got frame-000003.png. Try: rm -r "):
        film("film", resume=True)
    stray.unlink()
    record = film("film", resume=True)
    assert (record["steps"]["frames"], record["steps"]["first_frame"]) == (3, 0)
    film("other")
    found, expected = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("film", "other")
    )
    assert sorted(found) == ["frame-000000.png", "frame-000005.png", "frame-000010.png"]
    assert found == expected


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, (-0.5, 0.5)),  # of the first frame of the first run: 0 everywhere
        ({"frame_range": (0.0, 20.0)}, (0, 20)),
        ({"frame_field": "other"}, (2.0, 6.0)),  # of its own first frame: 4 everywhere
    ],
)
def test_a_resumed_animation_has_the_colours_of_the_first_run(
    tmp_path: Path, more: dict[str, Any], expected: tuple[float, float]
) -> None:
    FAILING[0] = True

    @meshrun.map_blocks(outputs=2)
    def fragile(field: Any, other: Any) -> Any:
        if FAILING[0] and field.max() >= 5:
            raise ValueError("as if the power went")
        return field + 1, other + 1

    start = np.zeros((9, 7))
    checkpoint = SaveInterval(steps=4)
    with pytest.raises(ValueError, match="power"):
        filmed(tmp_path, "film.gif", 8, field=start, job=fragile, every=1, checkpoint=checkpoint)
    FAILING[0] = False
    filmed(
        tmp_path, "film.gif", 8, field=start, job=fragile, every=1, checkpoint=checkpoint, resume=True, **more
    )
    film = [
        np.asarray(one.convert("RGB")) for one in ImageSequence.Iterator(Image.open(tmp_path / "film.gif"))
    ]
    assert len(film) == 5
    for step, picture in zip(range(4, 9), film, strict=True):
        np.testing.assert_array_equal(picture, colored(start + step, *expected))


def test_a_picture_that_cannot_be_finished_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(meshrun.RunError, match=r"cannot write .*film/frame-000000\.png: No space left"):
        filmed(tmp_path, "film")
    assert list((tmp_path / "film").iterdir()) == []


def test_a_picture_that_a_killed_run_has_begun_is_removed(tmp_path: Path) -> None:
    (tmp_path / "film").mkdir()
    stray = tmp_path / "film" / ".frame-000002.png.0123456789abcdef.partial"
    stray.write_bytes(b"half")
    frame_files.PictureFolder(tmp_path / "film", palette("gray"))
    assert not stray.exists()


FFMPEG = """#!/bin/sh
# Stands for ffmpeg: keeps its arguments and its input, and writes both to the file that it is to write.
for last; do :; done
[ -e fails ] && echo "no room for $last" >&2 && exit 3
{ echo "$@"; cat; } > "$last"
"""


def install_ffmpeg(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "bin" / "ffmpeg"
    program.parent.mkdir()
    program.write_text(FFMPEG)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.chdir(folder)


def test_a_film_is_what_ffmpeg_makes_of_the_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_ffmpeg(tmp_path, monkeypatch)
    record = filmed(tmp_path, "film.mp4")
    assert record["steps"]["frames"] == 4
    command, _, frames = (tmp_path / "film.mp4").read_bytes().partition(b"\n")
    assert b"-s 6x8 -r 20" in command  # whole pairs of the 9 rows and 7 columns
    field = np.arange(63.0).reshape(9, 7)
    shown = [colored(np.roll(field, step, axis=0), 0, 62)[:8, :6] for step in (0, 2, 4, 6)]
    assert frames == np.stack(shown).tobytes()


def test_a_film_that_fails_leaves_the_reason_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_ffmpeg(tmp_path, monkeypatch)
    (tmp_path / "fails").touch()
    with pytest.raises(RunError, match=r"ffmpeg cannot write .*film\.mp4: got no room for"):
        filmed(tmp_path, "film.mp4")
    assert not list(tmp_path.glob("*film*"))
    assert not (tmp_path / "c.npy").exists()


def test_without_ffmpeg_a_film_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs the program ffmpeg"):
        filmed(tmp_path, "film.mp4")
    assert not (tmp_path / "c.npy").exists()
