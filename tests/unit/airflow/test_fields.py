"""Files of the flow's fields: as h5py and Zarr read them, against the film, the body and the first state."""

from __future__ import annotations

import math
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from meshrun.jobs.airflow.airflow import airflow
from meshrun.jobs.airflow.observers.field_file import FieldFile, GridField
from meshrun.jobs.airflow.observers.film import SPEED
from meshrun.jobs.airflow.observers.snapshots import Snapshots, count_snapshots
from meshrun.jobs.airflow.shapes.shape import Placement, read
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.options.step_options import SaveInterval, StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.region import Region
from meshrun.runner.report.colors import NOT_A_NUMBER, indices, palette
from meshrun.runner.run.execute import Options, run
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.world.world import open_world

zarr = pytest.importorskip("zarr")

SMALL = {"size": "64x32", "length": 8.0, "place": "0.3,0.4", "reynolds": 20.0, "steps": 50, "every": 25}
NAMES = ("velocity", "pressure", "solid")
Array = np.ndarray[Any, Any]


def blow(folder: Path, fields: str, shape: str = "cylinder", **options: Any) -> Any:
    chosen = {**SMALL, "fields": folder / fields, "forces_every": 10, **options}
    return airflow.run(shape, folder / "film", device="cpu", **chosen)["result"]


def contents(path: Path) -> dict[str, Array]:
    """The arrays of a file; vectors with three components, everything with an axis of steps."""
    if path.suffix == ".zarr":
        group = zarr.open_group(path, mode="r")
        found = {name: np.asarray(group[name]) for name in NAMES}
        found["velocity"] = np.pad(
            found["velocity"],
            [(0, 0)] * (found["velocity"].ndim - 1) + [(0, 3 - found["velocity"].shape[-1])],
        )
        return {**found, "solid": found["solid"][None], "steps": np.asarray(group["time"])}
    with h5py.File(path) as file:
        found = {name: file["VTKHDF/PointData"][name][()] for name in NAMES}
        return {**found, "steps": file["VTKHDF/Steps/Values"][()]}


@pytest.mark.parametrize("suffix", [".vtkhdf", ".h5", ".zarr"])
def test_the_fields_are_those_of_the_film(tmp_path: Path, suffix: str) -> None:
    result = blow(tmp_path, f"f{suffix}", fields_every=20)
    found = contents(tmp_path / f"f{suffix}")
    assert found["steps"].tolist() == [0, 20, 40, 50]
    assert (result["snapshots"], result["first_snapshot"]) == (4, 0)
    picture = np.asarray(Image.open(tmp_path / "film" / "frame-000050.png"))
    speed = np.sqrt(np.sum(np.square(found["velocity"][-1]), axis=-1))
    expected = indices(np.where(found["solid"][0] == 1, np.nan, speed), 0.0, SPEED * 0.1)[::-1]
    colors = np.frombuffer(palette("viridis", (70, 70, 70)), np.uint8).reshape(-1, 3)
    shown = np.asarray(Image.open(tmp_path / "film" / "frame-000050.png").convert("RGB"))
    assert picture.size
    assert (expected == NOT_A_NUMBER).any()
    assert np.abs(shown.astype(int) - colors[expected]).max() <= 4  # of the next colour, at a border of two
    # Before the first step an eddy turns clockwise around the body, as the film shows it. Rows count from
    # the floor.
    up, along = found["velocity"][0, ..., 1], found["velocity"][0, ..., 0] - 0.1
    assert up[19, 13] > 0.005
    assert up[19, 24] < -0.005
    assert along[24, 19] > 0.005
    assert up[0] == pytest.approx(np.zeros(64), abs=1e-6)
    assert not found["velocity"][..., 2].any()


@pytest.mark.parametrize("suffix", [".h5", ".zarr"])
@pytest.mark.parametrize("grid", ["3x1", "2x2"])
def test_the_ranks_change_no_bit(tmp_path: Path, suffix: str, grid: str) -> None:
    def take(name: str, chosen: str) -> None:
        options = Options(device="cpu", grid=chosen, steps=StepOptions(50, every=25))
        count = math.prod(int(n) for n in chosen.split("x"))
        fields = tmp_path / f"{name}{suffix}"
        words = {"size": "64x31", "length": 8.0, "reynolds": 20.0, "fields": fields, "fields_every": 30}

        def rank(control: Control) -> Any:
            world = open_world("cpu", control=control)
            return run(airflow, ["cylinder"], [tmp_path / f"{name}.gif"], words, options, world=world)

        run_ranks(count, rank, timeout=60)

    take("one", "1x1")
    take("more", grid)
    one, more = (contents(tmp_path / f"{name}{suffix}") for name in ("one", "more"))
    for name, values in one.items():
        assert np.array_equal(values, more[name]), name
    if suffix == ".zarr":  # each rank has chunks of its own
        group = zarr.open_group(tmp_path / "more.zarr", mode="r")
        assert group["pressure"].chunks[1] < 31


def test_three_axes_are_turned_and_not_mirrored(tmp_path: Path) -> None:
    options = {"size": "24x12x10", "length": 4.0, "place": "0.4,0.35,0.6", "steps": 4, "every": 4}
    blow(tmp_path, "f.vtkhdf", "sphere", **options)
    with h5py.File(tmp_path / "f.vtkhdf") as file:
        group = file["VTKHDF"]
        assert group.attrs["Type"] == b"ImageData"
        assert group.attrs["WholeExtent"].tolist() == [0, 23, 0, 11, 0, 9]
        assert group.attrs["Origin"].tolist() == [0.5, 0.5, 0.5]
        assert group["Steps"].attrs["NSteps"] == 1
        solid = group["PointData/solid"][0]
        assert group["PointData/velocity"].shape == (1, 10, 12, 24, 3)
        assert group["PointData/velocity"][0, ..., 0].mean() > 0.08
    body = read("sphere", Placement("24x12x10", "0.4,0.35,0.6", 4.0, "z"))
    expected = body.solid(Region((0, 0, 0), body.shape))
    assert np.array_equal(solid, expected[::-1, ::-1])
    assert not np.array_equal(solid, expected)


def test_a_series_of_a_run_that_stops_early_has_its_steps_only(tmp_path: Path) -> None:
    fields = [
        GridField("velocity", np.dtype("f4"), "u", 2),
        GridField("pressure", np.dtype("f4"), "u"),
        GridField("solid", np.dtype("u1"), "u", steady=True),
    ]
    for suffix in (".vtkhdf", ".zarr"):
        file = FieldFile(tmp_path / f"f{suffix}", (2, 3), fields, 5, 1, "run")
        file.create()
        whole = Region((0, 0), (2, 3))
        for number in range(2):
            for one in fields[: 2 if number else 3]:
                more = (file.components(one),) if one.components else ()
                file.write(number, one, whole, np.full((2, 3, *more), number + 1, one.dtype))
        file.complete([0, 7])
        found = contents(tmp_path / f"f{suffix}")
        assert found["steps"].tolist() == [0, 7]
        assert found["pressure"].tolist() == [[[n] * 3] * 2 for n in (1, 2)]
        assert [path.name for path in tmp_path.iterdir() if "run" in path.name] == []


def lose_power(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    observe = Snapshots.observe

    def fail(self: Snapshots, stepper: Any) -> bool:
        if stepper.done == step:
            raise RunError("lost power", everywhere=True)
        return observe(self, stepper)

    monkeypatch.setattr(Snapshots, "observe", fail)


@pytest.mark.parametrize("suffix", [".h5", ".zarr"])
def test_a_run_that_fails_changes_no_file_and_goes_on_with_its_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Twice, on other numbers of ranks; the snapshot after the first checkpoint is written again."""
    blow(tmp_path, f"whole{suffix}", fields_every=10)
    whole = contents(tmp_path / f"whole{suffix}")
    shutil.rmtree(tmp_path / "film")
    blow(tmp_path, f"f{suffix}")
    old = contents(tmp_path / f"f{suffix}")
    shutil.rmtree(tmp_path / "film")

    def go(grid: str, resume: bool) -> Any:
        chosen = Options(
            device="cpu", grid=grid, stream=StreamOptions(resume=resume),
            steps=StepOptions(50, every=25, checkpoint=SaveInterval(steps=15)),
        )  # fmt: skip
        names = ("size", "length", "place", "reynolds")
        words = {name: SMALL[name] for name in names} | {
            "fields": tmp_path / f"f{suffix}",
            "fields_every": 10,
        }

        def rank(control: Control) -> Any:
            world = open_world("cpu", control=control)
            return run(airflow, ["cylinder"], [tmp_path / "film"], words, chosen, world=world)

        return run_ranks(math.prod(int(n) for n in grid.split("x")), rank, timeout=60)[0]["result"]

    for grid, step in (("1x1", 30), ("3x1", 50)):
        with monkeypatch.context() as patch:
            lose_power(patch, step)
            with pytest.raises(RunError, match="lost power"):
                go(grid, step == 50)
        assert np.array_equal(contents(tmp_path / f"f{suffix}")["velocity"], old["velocity"])
        assert len(list(tmp_path.glob(".f*.partial"))) == 1
    result = go("1x2", True)
    assert (result["snapshots"], result["first_snapshot"]) == (6, 0)
    found = contents(tmp_path / f"f{suffix}")
    for name, values in whole.items():
        assert np.array_equal(values, found[name]), name
    assert not list(tmp_path.glob(".*.partial"))


@pytest.mark.parametrize("suffix", [".h5", ".zarr"])
def test_a_file_in_the_working_folder_is_left_for_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"fields_every": 10, "checkpoint": 15}
    with monkeypatch.context() as patch:
        lose_power(patch, 40)
        with pytest.raises(RunError, match="lost power"):
            blow(Path(), f"f{suffix}", **options)
    assert len(list(tmp_path.glob(f".f{suffix}.*.partial"))) == 1
    assert blow(Path(), f"f{suffix}", **options, resume=True)["first_snapshot"] == 0


@pytest.mark.parametrize(
    ("change", "first", "words"),
    [
        ({"fields_every": 20}, 40, "every was 10"),
        ({"steps": 60}, 30, "last was 50"),
        ({"fields": "g.h5"}, 30, "path was"),
        ({}, 30, "its unfinished file is not there"),
    ],
)
def test_a_series_that_cannot_go_on_begins_at_the_checkpoint_and_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: dict[str, Any],
    first: int,
    words: str,
) -> None:
    options = {"fields_every": 10, "checkpoint": 15}
    with monkeypatch.context() as patch:
        lose_power(patch, 40)
        with pytest.raises(RunError, match="lost power"):
            blow(tmp_path, "f.h5", **options)
    (unfinished,) = tmp_path.glob(".f.h5.*.partial")
    if not change:
        unfinished.unlink()
    name = change.pop("fields", "f.h5")
    result = blow(tmp_path, name, **{**options, **change}, resume=True)
    assert result["first_snapshot"] == first
    assert contents(tmp_path / name)["steps"][0] == first
    assert re.search(rf"begin at step 30: ({words})", caplog.text)


def test_a_snapshot_is_written_while_further_steps_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is not written before a step is taken."""
    write, advance, advanced = FieldFile.write, Stepper.advance, threading.Event()

    def late(self: FieldFile, *values: Any) -> None:
        assert advanced.wait(60)
        write(self, *values)

    def take(self: Stepper, steps: int, *, last: bool = False, ahead: int = 0) -> None:
        advance(self, steps, last=last, ahead=ahead)
        advanced.set()

    monkeypatch.setattr(FieldFile, "write", late)
    monkeypatch.setattr(Stepper, "advance", take)
    assert blow(tmp_path, "f.h5", fields_every=20)["snapshots"] == 4


def test_a_snapshot_that_cannot_be_written_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: FieldFile, *values: Any) -> None:
        raise RunError("the disk is full")

    monkeypatch.setattr(FieldFile, "write", fail)
    with pytest.raises(RunError, match="the disk is full"):
        blow(tmp_path, "f.zarr", fields_every=20)
    assert not list(tmp_path.glob(".*.partial"))


def test_a_run_that_fails_before_its_first_checkpoint_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_power(monkeypatch, 10)
    with pytest.raises(RunError, match="lost power"):
        blow(tmp_path, "f.h5", fields_every=10, checkpoint=15)
    assert not list(tmp_path.glob(".*.partial"))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"fields": Path("f.vti")}, "unknown format of fields"),
    ({"fields": "film.h5:/name"}, "unknown format"),
    ({"fields": Path("nowhere/f.h5")}, "does not exist"),
    ({"fields": None, "fields_every": 5}, "without a file"),
    ({"fields": "f.h5", "fields_every": 0}, "number of steps"),
    ({"fields": "film"}, "same file"),
    ({"fields": "other.h5"}, "holds other arrays"),
    ({"fields": "other.zarr"}, "holds other arrays"),
    ({"fields": "f.h5", "fields_every": 1, "steps": 10**9}, "do not fit the disk"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_a_file_that_cannot_be_written_is_refused(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["mine"] = np.ones(3)
    zarr.create_group(tmp_path / "other.zarr").create_array("mine", data=np.ones(3))
    if isinstance(options.get("fields"), str):
        options = {**options, "fields": tmp_path / options["fields"]}
    with pytest.raises(UserError, match=words):
        airflow.run("cylinder", tmp_path / "film", device="cpu", **{**SMALL, **options})
    assert not (tmp_path / "film").exists()
    assert not (tmp_path / "f.h5").exists()


@pytest.mark.parametrize(
    ("first", "every", "last", "count"),
    [(0, 20, 50, 4), (30, 20, 80, 3), (40, 20, 80, 3), (0, 100, 50, 2), (0, None, 50, 1)],
)
def test_the_number_of_snapshots(first: int, every: int | None, last: int, count: int) -> None:
    assert count_snapshots(first, every, last) == count
