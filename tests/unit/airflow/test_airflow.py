"""The job `airflow`: films and forces that no split of the domain changes, and what is refused."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from queued_device import QueuedBackend

from meshrun.jobs.airflow import airflow as module
from meshrun.jobs.airflow import units
from meshrun.jobs.airflow.airflow import airflow
from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.lattice import D2Q9, D3Q19
from meshrun.jobs.airflow.moments import equilibrium, momentum
from meshrun.jobs.airflow.observers.film import SOLID, FlowFrames, draw_lines, isolines
from meshrun.jobs.airflow.shapes.bodies import Body
from meshrun.jobs.airflow.shapes.shape import Placement, read
from meshrun.jobs.airflow.tunnel import Tunnel
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.options.step_options import SaveInterval, StepOptions
from meshrun.runner.plan.chunking import MemoryUse
from meshrun.runner.region import Region
from meshrun.runner.report.colors import NOT_A_NUMBER
from meshrun.runner.run import prepare, step_run
from meshrun.runner.run.execute import Options, run
from meshrun.runner.steps.observers.frames import Frames
from meshrun.runner.world.world import open_world

SMALL = {"size": "64x32", "length": 8.0, "reynolds": 20.0, "steps": 60, "every": 20, "forces_every": 10}


def blow(folder: Path, name: str, shape: str = "cylinder", **options: Any) -> Any:
    return airflow.run(shape, folder / name, device="cpu", **{**SMALL, **options})


def frames(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("*.png"))]


@pytest.mark.parametrize(
    ("draw", "surface"),
    [
        ("speed", "interpolated"),
        ("vorticity", "cells"),
        ("pressure", "interpolated"),
        *[pytest.param(draw, "cells", marks=pytest.mark.nightly) for draw in ("speed", "pressure")],
        pytest.param("vorticity", "interpolated", marks=pytest.mark.nightly),
    ],
)
def test_the_ranks_change_no_bit(tmp_path: Path, surface: str, draw: str) -> None:
    options = {"surface": surface, "draw": draw, "sides": "walls", "inlet": "parabolic"}
    one = blow(tmp_path, "one", forces=tmp_path / "one.csv", **options)
    two = blow(tmp_path, "two", forces=tmp_path / "two.csv", **options, ranks=2)  # cuts the body
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    assert frames(tmp_path / "one") == frames(tmp_path / "two")
    assert one["result"]["drag"] == two["result"]["drag"] > 1
    rows = list(csv.reader((tmp_path / "one.csv").open()))
    assert [row[0] for row in rows] == ["step", "10", "20", "30", "40", "50"]


def test_three_axes_in_two_storages(tmp_path: Path) -> None:
    options = {"size": "32x16x16", "length": 5.0, "steps": 20, "every": 10, "shape": "sphere"}
    wide = blow(tmp_path, "wide", **options)
    narrow = blow(tmp_path, "narrow", **options, storage="float16")
    assert wide["result"]["drag"] == pytest.approx(narrow["result"]["drag"], rel=0.01)
    assert wide["dtype"] == "float32"
    assert narrow["dtype"] == "float16"
    assert len(frames(tmp_path / "wide")) == 3


def test_a_picture_is_the_body_and_stands_in_the_film_as_it_is(tmp_path: Path) -> None:
    drawn = np.full((32, 64), 255, np.uint8)
    drawn[10:16, 20:24] = 0
    Image.fromarray(drawn).save(tmp_path / "body.png")
    record = blow(tmp_path, "film", shape=str(tmp_path / "body.png"), size=None, length=None)
    picture = np.asarray(Image.open(tmp_path / "film" / "frame-000060.png").convert("RGB"))
    solid = (picture == np.array(SOLID)).all(axis=2)
    assert np.array_equal(solid, drawn == 0)
    assert record["result"]["length"] == 6


@contextmanager
def power_lost_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a run fail at the frame of a step."""
    observe = Frames.observe

    def fail(self: Frames, stepper: Any) -> bool:
        if stepper.done == step:
            raise RunError("lost power")
        return observe(self, stepper)

    with monkeypatch.context() as patched:
        patched.setattr(Frames, "observe", fail)
        yield


def test_a_run_that_fails_is_resumed_to_the_same_film(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blow(tmp_path, "whole")
    with power_lost_at(40, monkeypatch), pytest.raises(RunError, match="lost power"):
        blow(tmp_path, "film", checkpoint=20)
    with pytest.raises(UserError, match="left checkpoints"):
        blow(tmp_path, "film", checkpoint=20)
    with pytest.raises(UserError, match=r"parameters|computed"):
        blow(tmp_path, "film", checkpoint=20, resume=True, speed=0.05)
    record = blow(tmp_path, "film", checkpoint=20, resume=True, ranks=2)
    assert record["steps"]["first"] == 20
    assert frames(tmp_path / "film") == frames(tmp_path / "whole")


@pytest.mark.parametrize(
    ("more", "grids"),
    [
        ({"shape": "cylinder"}, ["2x2"]),
        ({"shape": "cylinder", "surface": "cells", "storage": "float16"}, ["1x1"]),
        ({"shape": "sphere", "size": "32x24x20", "length": 5.0}, ["1x1x1"]),
    ],
)
def test_in_one_copy_the_film_and_the_forces_are_the_same(
    tmp_path: Path, more: dict[str, Any], grids: list[str]
) -> None:
    options = {"steps": 24, "every": 12, "forces_every": 4, **more}
    two = blow(tmp_path, "two", **options, forces=tmp_path / "two.csv")
    assert two["steps"]["copies"] == 2
    for grid in grids:
        ranks = math.prod(map(int, grid.split("x")))
        force = tmp_path / f"{grid}.csv"
        one = blow(tmp_path, grid, **options, forces=force, ranks=ranks, grid=grid, copies="one")
        assert one["steps"]["copies"] == 1
        assert frames(tmp_path / grid) == frames(tmp_path / "two")
        assert force.read_text() == (tmp_path / "two.csv").read_text()


def test_a_checkpoint_is_resumed_in_any_number_of_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blow(tmp_path, "whole")
    with power_lost_at(40, monkeypatch), pytest.raises(RunError, match="lost power"):
        blow(tmp_path, "film", checkpoint=15, copies="one")
    record = blow(tmp_path, "film", checkpoint=15, resume=True, ranks=2, copies="two")
    assert record["steps"]["first"] == 30
    assert frames(tmp_path / "film") == frames(tmp_path / "whole")


def test_a_domain_that_fits_only_once_is_in_memory_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = (30 + 2) * (64 + 2)
    two = 2 * cells * 9 * 4 + cells
    blow(tmp_path, "all", size="64x30", copies="two", steps=4)
    for place in (prepare, step_run):
        monkeypatch.setattr(place, "limits", lambda world, options: MemoryUse(two - 1, two - 1))
    with pytest.raises(UserError, match=rf"got {two:,} bytes.*at most {two - 1:,}.*or copies='one'"):
        blow(tmp_path, "film", size="64x30", copies="two", steps=4)
    assert blow(tmp_path, "film", size="64x30", steps=4)["steps"]["copies"] == 1
    assert frames(tmp_path / "film") == frames(tmp_path / "all")


@pytest.mark.parametrize("surface", ["interpolated", "cells"])
def test_a_resumed_run_has_the_forces_of_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, surface: str
) -> None:
    whole = blow(tmp_path, "whole", forces=tmp_path / "whole.csv", surface=surface)
    options = {"forces": tmp_path / "film.csv", "surface": surface, "checkpoint": 25}
    with power_lost_at(40, monkeypatch), pytest.raises(RunError, match="lost power"):
        blow(tmp_path, "film", **options)
    again = blow(tmp_path, "film", **options, resume=True, ranks=3)
    assert again["steps"]["first"] == 25
    assert (tmp_path / "film.csv").read_text() == (tmp_path / "whole.csv").read_text()
    assert again["result"] == whole["result"]
    assert again["warnings"] == []


def test_a_resumed_run_of_other_samples_says_where_its_forces_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with power_lost_at(40, monkeypatch), pytest.raises(RunError, match="lost power"):
        blow(tmp_path, "film", checkpoint=20)
    options = {"checkpoint": 20, "resume": True, "forces": tmp_path / "film.csv", "forces_every": 5}
    (warning,) = blow(tmp_path, "film", **options)["warnings"]
    assert warning == "the forces begin at step 20: they were sampled every 10 steps before"
    rows = list(csv.reader((tmp_path / "film.csv").open()))
    assert [int(row[0]) for row in rows[1:]] == list(range(25, 60, 5))


def test_vorticity_is_counter_clockwise_and_twice_the_turn() -> None:
    """A turn of 0.001 radians a step, counter-clockwise as seen in the picture, whose rows count down."""
    rows, columns = np.mgrid[0:9, 0:9].astype(float)
    velocity = [-0.001 * (columns - 4), 0.001 * (rows - 4)]
    cells = [*equilibrium(D2Q9, np.zeros((9, 9)), velocity), np.zeros((9, 9), np.uint8)]
    cells[-1][0, 0] = Cell.SOLID
    content = FlowFrames(D2Q9, np.dtype(np.float32), "vorticity", 0.1, 9.0)

    def at(name: str, shift: tuple[int, int]) -> Any:
        y, x = shift
        return content.value(name, [one[1 + y : 8 + y, 1 + x : 8 + x] for one in cells], np)

    assert content.pixels(at, np)[0] == pytest.approx(np.full((7, 7), 0.002), rel=1e-5)


@pytest.mark.parametrize(("axis", "place"), [("z", 0.25), ("y", 0.5), ("x", 0.75)])
def test_vorticity_of_a_plane_is_counter_clockwise_as_the_picture_shows_it(axis: str, place: float) -> None:
    """A turn of 0.001 radians a step in each of the planes, seen with rows downwards."""
    z, y, x = np.mgrid[0:8, 0:8, 0:8].astype(float)
    rows, columns, along = {"z": (y, x, (1, 2)), "y": (z, x, (0, 2)), "x": (y, z, (1, 0))}[axis]
    velocity = [np.zeros((8, 8, 8))] * 3
    velocity[along[0]], velocity[along[1]] = -0.001 * (columns - 4), 0.001 * (rows - 4)
    plane = module._plane(f"{axis}={place}", Body("none", (8, 8, 8), 8.0, 1.0))
    assert plane == ("zyx".index(axis), int(place * 8))
    content = FlowFrames(D3Q19, np.dtype(np.float32), "vorticity", 0.1, 8.0, plane=plane)
    stored = [*equilibrium(D3Q19, np.zeros((8, 8, 8)), velocity), np.zeros((8, 8, 8), np.uint8)]
    cut = [np.take(one, plane[1], plane[0]) for one in stored]

    def at(name: str, shift: tuple[int, int]) -> Any:
        r, c = shift
        return content.value(name, [one[1 + r : 7 + r, 1 + c : 7 + c] for one in cut], np)

    assert content.pixels(at, np)[0] == pytest.approx(np.full((6, 6), 0.002), rel=1e-5)


def test_a_film_shows_the_chosen_plane(tmp_path: Path) -> None:
    options = {"size": "32x20x16", "length": 6.0, "place": "0.4,0.5,0.5", "steps": 2, "every": 2}
    solid = {}
    for cut in ("z=0.5", "y=0.5", "x=0.4", "x=0.9"):
        folder = cut.replace(".", "")
        blow(tmp_path, folder, shape="sphere", slice=cut, **options)
        picture = np.asarray(Image.open(tmp_path / folder / "frame-000002.png").convert("RGB"))
        solid[cut] = (picture == 70).all(axis=2)
    assert {cut: one.shape for cut, one in solid.items()} == {
        "z=0.5": (20, 32), "y=0.5": (16, 32), "x=0.4": (20, 16), "x=0.9": (20, 16)
    }  # fmt: skip
    assert not solid["x=0.9"].any()
    assert all(solid[cut].sum() > 20 for cut in ("z=0.5", "y=0.5", "x=0.4"))


def test_isolines_are_where_the_value_passes_a_level() -> None:
    values = np.array([[0.0, 0.4, 0.6, 1.0, np.nan, 9.0]] * 3)
    assert isolines(values, 0, 1, 1).tolist() == [[False, True, False, False, False, False]] * 3
    assert not isolines(np.full((3, 4), 0.3), 0, 1, 9).any()
    assert isolines(values.T, 0, 1, 1)[:, 0].tolist() == [False, True, False, False, False, False]


def test_lines_have_a_colour_of_their_own() -> None:
    picture = np.array([[253, 254], [0, NOT_A_NUMBER]], np.uint8)
    draw_lines(picture, np.array([[False, False], [True, False]]))
    assert picture.tolist() == [[253, 253], [254, NOT_A_NUMBER]]
    content = FlowFrames(D2Q9, np.dtype(np.float32), "speed", 0.1, 8.0)
    plain, lined = (replace(content, isolines=count).palette("viridis") for count in (0, 3))
    assert len(plain) == len(lined) == 768
    assert lined[762:765] == b"\xff\xff\xff" != plain[762:765]
    assert lined[:762] + lined[765:] == plain[:762] + plain[765:]
    assert replace(content, isolines=3).palette("coolwarm")[762:765] == bytes((16, 16, 16))


def test_isolines_change_only_the_pixels_on_them_and_no_rank_changes_them(tmp_path: Path) -> None:
    plain = blow(tmp_path, "plain", draw="speed")
    blow(tmp_path, "lines", draw="speed", isolines=6)
    blow(tmp_path, "pressure", draw="speed", isolines=6, isolines_of="pressure", ranks=2)
    blow(tmp_path, "alone", draw="speed", isolines=6, isolines_of="pressure")
    assert plain["steps"]["frames"] == 4
    assert frames(tmp_path / "pressure") == frames(tmp_path / "alone")
    last = {
        name: np.asarray(Image.open(tmp_path / name / "frame-000060.png").convert("RGB"))
        for name in ("plain", "lines", "pressure")
    }
    white = (last["lines"] == 255).all(axis=2)
    assert 20 < white.sum() < white.size / 4
    one, other = (last[name][~white].astype(int) for name in ("lines", "plain"))
    assert abs(one - other).max() <= 2  # one of the 256 colours is that of the lines
    assert not np.array_equal(white, (last["pressure"] == 255).all(axis=2))


def test_the_tunnel_is_the_same_in_parts() -> None:
    body = read("cylinder", Placement(size="40x24", length=8))
    tunnel = Tunnel(body, D2Q9, "walls", "parabolic", 0.1, np.dtype(np.float32))
    whole = Region((0, 0), (24, 40))
    parts = [Region((0, 0), (24, 13)), Region((0, 13), (24, 40))]
    for compute in (tunnel.cells, tunnel.wind, lambda region: tunnel.population(3, region)):
        assert np.array_equal(np.concatenate([compute(part) for part in parts], 1), compute(whole))
    kinds = tunnel.cells(whole)
    assert set(np.unique(kinds)) == {int(kind) for kind in tunnel.kinds}
    assert (kinds[0] == Cell.SOLID).all()
    wind = tunnel.wind(whole)[1:-1, 0]
    assert wind.max() <= 1
    assert tunnel.greatest * wind.mean() == pytest.approx(0.1, rel=0.01)  # the mean velocity


@pytest.mark.parametrize(("inlet", "lattice"), [("uniform", D2Q9), ("parabolic", D2Q9), ("parabolic", D3Q19)])
def test_the_flow_starts_in_equilibrium_with_the_wind(inlet: Any, lattice: Any) -> None:
    size = "40x24" if lattice.axes == 2 else "40x24x12"
    body = read("none", Placement(size=size))
    tunnel = Tunnel(body, lattice, "walls", inlet, 0.1, np.dtype(np.float32))
    whole = Region((0,) * lattice.axes, body.shape)
    along = tunnel.greatest * tunnel.wind(whole).astype(float)
    velocity = [np.zeros(body.shape)] * (lattice.axes - 1) + [along]
    for number, one in enumerate(equilibrium(lattice, np.zeros(body.shape), velocity)):
        np.testing.assert_allclose(tunnel.population(number, whole), one, rtol=0, atol=2e-8)


@pytest.mark.parametrize("size", ["80x60", "80x40x12"])
@pytest.mark.parametrize("sides", ["slip", "walls", "periodic"])
def test_what_disturbs_the_start_is_an_eddy_that_makes_no_sound(size: str, sides: Any) -> None:
    """It has no divergence, and ends before the sides, the inlet and the outflow."""
    body = read("cylinder", Placement(size=size, length=10, place="0.3,0.45"))
    lattice = D2Q9 if len(body.shape) == 2 else D3Q19
    tunnel = Tunnel(body, lattice, sides, "uniform", 0.1, np.dtype(np.float32))
    whole = Region((0,) * lattice.axes, body.shape)
    parts = [Region((*whole.start[:-1], a), (*whole.stop[:-1], b)) for a, b in ((0, 23), (23, 80))]
    start = [tunnel.population(number, whole) for number in range(lattice.size)]
    for number, one in enumerate(start):
        cut = np.concatenate([tunnel.population(number, part) for part in parts], -1)
        np.testing.assert_array_equal(cut, one)
    *_, across, along = momentum(lattice, start)
    fluid = ~body.solid(whole)
    eddy = np.where(fluid, np.hypot(across, along - 0.1), 0)
    edge = np.ones(eddy.shape[-2:], bool)
    edge[1:-1, 1:-1] = False
    assert eddy[..., edge].max() < 1e-7
    assert 0.005 < eddy.max() <= 0.0101
    divergence = np.gradient(across, axis=-2) + np.gradient(along, axis=-1)
    inner = np.ones(fluid.shape, bool)
    for shift, axis in ((1, -1), (-1, -1), (1, -2), (-1, -2)):
        inner &= np.roll(fluid, shift, axis)
    assert abs(divergence[inner & fluid]).max() < 0.02 * eddy.max()


def test_walls_without_friction_stand_on_all_sides_of_three_axes() -> None:
    body = Body("none", (8, 9, 20), 9.0, 1.0)
    kinds = Tunnel(body, D3Q19, "slip", "uniform", 0.1, np.dtype(np.float32)).cells(
        Region((0, 0, 0), body.shape)
    )
    assert (kinds[1:-1, [0, -1], 3] == [Cell.SLIP, Cell.SLIP_END]).all()
    assert (kinds[[0, -1], 1:-1, 3] == np.array([[Cell.SLIP_Z], [Cell.SLIP_Z_END]])).all()
    assert (kinds[1:-1, 1:-1, 0] == Cell.MOVING).all()
    assert (kinds[1:-1, 1:-1, -1] == Cell.OUTFLOW).all()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"speed": 0.2}, "Mach number"),
    ({"reynolds": 1e5}, "would burst"),
    ({"reynolds": -3.0}, "positive number"),
    ({"reynolds": 1e-30}, "too viscous for float32.*Try: a Reynolds number of .* or more"),
    ({"lattice": "D3Q19"}, "a lattice of 3 axes: got a domain of 64x32 cells"),
    ({"size": "64x32x32", "lattice": "D2Q9"}, "a lattice of 2 axes"),
    ({"shape": "teapot"}, "unknown SHAPE"),
    ({"shape": "airfoil:24"}, "airfoil"),
    ({"shape": "none", "forces": Path("forces.csv")}, "no body"),
    ({"forces": Path("forces.xls")}, "unknown format of forces"),
    ({"place": "0.02,0.5"}, "inlet"),
    ({"length": 40.0}, r"blocks|cut"),
    ({"frames": "other.gif"}, "its OUTPUT is the film"),
    ({"boundary": "wrap"}, "boundary"),
    ({"steps_per_exchange": 4}, "steps_per_exchange"),
    ({"forces_every": 0}, "forces"),
    ({"forces_every": 60, "forces": Path("forces.csv")}, "no sample.*at most 59"),
    ({"shape": "none", "forces_every": 5}, "forces_every does not apply"),
    (
        {"shape": "none", "forces_every": None, "place": "0.5,0.5"},
        "place does not move.*Try: leave place out",
    ),
    ({"shape": "none", "forces_every": None, "surface": "interpolated"}, "surface='interpolated'"),
    ({"up": "y"}, "up does not apply.*STL"),
    ({"input_shape": "3x3"}, "input_shape.*not apply"),
    ({"slice": "z=0.5"}, "two axes"),
    ({"slice": "w=0.5", "size": "32x32x32"}, "no plane"),
    ({"slice": "z=1.5", "size": "32x32x32"}, "no plane"),
    ({"isolines": -1}, "number of lines"),
    ({"isolines": 1000}, "number of lines"),
    ({"isolines_of": "pressure"}, "isolines_of does not apply.*Try: isolines=12, isolines_of='pressure'"),
    ({"size": "1000000x1000000"}, "do not fit the memory of the ranks.*hosts, or a smaller size"),
    ({"size": "9000000x9000000", "length": None}, "do not fit the memory of the ranks.*hosts"),
    ({"size": "99999999x99999999"}, "more cells than any machine holds"),
    ({"ranks": 2, "grid": "3x1"}, "grid does not use every rank"),
    ({"ranks": 2, "grid": "1x1x2"}, "grid names more axes"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_what_cannot_be_computed_is_refused_before_the_first_step(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        blow(tmp_path, "film", **{"shape": "cylinder", **options})
    assert not (tmp_path / "film").exists()


@pytest.mark.parametrize("name", [".", "/", "..", "sub/.."])
def test_a_film_without_a_name_of_its_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="OUTPUT has no name of its own") as caught:
        airflow.run("cylinder", name, device="cpu", **SMALL)
    assert "rm -r" not in str(caught.value)


def test_a_picture_made_larger_than_memory_is_refused_before_it_is_made(tmp_path: Path) -> None:
    drawn = np.full((32, 64), 255, np.uint8)
    drawn[10:16, 20:24] = 0
    Image.fromarray(drawn).save(tmp_path / "body.png")
    size: dict[str, Any] = {"size": "4000000x2000000", "length": None}
    with pytest.raises(UserError, match="do not fit the memory of the ranks: got 288,000,000,000,000 bytes"):
        blow(tmp_path, "film", shape=str(tmp_path / "body.png"), **size)


def test_files_that_would_replace_each_other_are_refused(tmp_path: Path) -> None:
    drawn = np.full((32, 64), 255, np.uint8)
    drawn[10:16, 20:24] = 0
    shape = tmp_path / "body.png"
    Image.fromarray(drawn).save(shape)
    before = shape.read_bytes()
    size: dict[str, Any] = {"size": None, "length": None}
    with pytest.raises(UserError, match="forces and OUTPUT name the same file"):
        blow(tmp_path, "film.png", forces=tmp_path / "film.png")
    with pytest.raises(UserError, match="forces and SHAPE name the same file"):
        blow(tmp_path, "film", shape=str(shape), forces=shape, **size)
    with pytest.raises(UserError, match="fields and json name the same file"):
        blow(tmp_path, "film", fields=tmp_path / "out.h5", json=tmp_path / "out.h5")
    with pytest.raises(UserError, match="surface='interpolated'"):
        blow(tmp_path, "film", shape=str(shape), surface="interpolated", **size)
    assert shape.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["body.png"]


def test_a_body_among_the_damped_columns_is_warned_of(tmp_path: Path) -> None:
    """Forces are those of links from fluid cells. Columns 59 to 62 are damped, 58 is beside them."""
    options = {"length": 6.0, "surface": "cells"}
    near = blow(tmp_path, "near", place=f"{55 / 64},0.5", **options)
    assert near["warnings"] == []
    over = blow(tmp_path, "over", place=f"{57 / 64},0.5", **options)
    (warning,) = over["warnings"]
    assert "the last 6 columns" in warning


def test_a_run_without_a_film_has_the_same_forces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = {name: value for name, value in SMALL.items() if name != "every"}
    filmed = blow(tmp_path, "film", forces=tmp_path / "filmed.csv")
    for output in (["-"], []):
        record = airflow.run("cylinder", *output, device="cpu", forces=tmp_path / "bare.csv", **words)
        assert record["output"] is None
        assert record["steps"]["frames"] == 0
        assert record["result"] == filmed["result"]
        assert (tmp_path / "bare.csv").read_bytes() == (tmp_path / "filmed.csv").read_bytes()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["bare.csv", "film", "filmed.csv"]
    airflow.run("cylinder", device="cpu", checkpoint=20, **words)
    assert not (tmp_path / "airflow.checkpoint").exists()  # as the run is complete


@pytest.mark.parametrize(
    ("name", "value"),
    [("draw", "pressure"), ("isolines", 3), ("every", 10), ("frame_range", "0:1"), ("frame_colors", "gray")],
)
def test_options_of_a_film_are_refused_without_one(name: str, value: Any) -> None:
    words = {key: one for key, one in SMALL.items() if key != "every"}
    option = name.replace("_", "-")
    with pytest.raises(UserError, match=f"{option} does not apply: there is no film|{name} does not apply"):
        airflow.run("cylinder", device="cpu", **words, **{name: value})


def test_the_reference_and_the_window_of_averages_are_told(tmp_path: Path) -> None:
    flat = blow(tmp_path, "flat", forces=tmp_path / "forces.csv")["result"]
    assert flat["reference_length"] == 8
    assert flat["averaged_steps"] == [30, 50]
    rows = list(csv.DictReader((tmp_path / "forces.csv").open()))[2:]
    lift = np.array([float(row["lift"]) for row in rows])
    assert flat["lift_rms"] == pytest.approx(lift.std())
    assert flat["lift_amplitude"] == pytest.approx((lift.max() - lift.min()) / 2)
    deep = blow(tmp_path, "deep", shape="sphere", size="32x16x16", length=5.0, steps=20)["result"]
    assert deep["reference_area"] == pytest.approx(math.pi * 25 / 4)


def test_the_pressure_coefficients_at_the_body_are_those_of_the_fields(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    words = {"steps": 400, "every": 400, "fields": tmp_path / "f.h5"}
    one, more = (
        blow(tmp_path, name, **words, ranks=ranks)["result"] for name, ranks in (("one", 1), ("more", 3))
    )
    names = ("free_stream_pressure", "greatest_pressure_coefficient", "least_pressure_coefficient")
    assert [one[name] for name in names] == [more[name] for name in names]
    with h5py.File(tmp_path / "f.h5") as file:
        pressure = file["VTKHDF/PointData/pressure"][-1].astype(float)
        solid = file["VTKHDF/PointData/solid"][-1] != 0
    assert one["free_stream_pressure"] == pytest.approx(pressure[1:-1, 1].mean(), abs=1e-9)
    beside = np.zeros_like(solid)
    for shift in ((a, b) for a in (-1, 0, 1) for b in (-1, 0, 1)):
        beside |= np.roll(solid, shift, (0, 1))
    found = (pressure[beside & ~solid] - one["free_stream_pressure"]) / (0.1**2 / 2)
    assert one["greatest_pressure_coefficient"] == pytest.approx(found.max(), rel=1e-5)
    assert one["least_pressure_coefficient"] == pytest.approx(found.min(), rel=1e-5)
    assert 1 < found.max() < 2.5  # in front of a cylinder at Reynolds number 20, between close sides
    assert found.min() < -0.4


def test_the_forces_on_each_of_two_bodies_add_up_on_any_ranks(tmp_path: Path) -> None:
    solid = np.zeros((48, 64), np.uint8)
    solid[8:14, 16:22] = solid[30:38, 20:26] = solid[38, 26] = 1  # the second one has a corner of its own
    np.save(tmp_path / "two.npy", solid)
    words = {"shape": str(tmp_path / "two.npy"), "size": None, "length": 6.0}
    one = blow(tmp_path, "one", forces=tmp_path / "one.csv", **words)["result"]
    more = blow(tmp_path, "more", forces=tmp_path / "more.csv", **words, ranks=3)["result"]
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "more.csv").read_bytes()
    assert more == one
    rows = list(csv.DictReader((tmp_path / "one.csv").open()))
    assert list(rows[0]) == ["step", "time", "drag", "lift", "drag_1", "lift_1", "drag_2", "lift_2"]
    for row in rows:
        for name in ("drag", "lift"):  # of 6, 9 and 15 rows
            whole = 6 * float(row[f"{name}_1"]) + 9 * float(row[f"{name}_2"])
            assert 15 * float(row[name]) == pytest.approx(whole, rel=1e-9)
    assert one["drag_1"] != one["drag_2"]
    assert one["drag_1"] == pytest.approx(np.mean([float(row["drag_1"]) for row in rows[2:]]))


@pytest.mark.parametrize(("sides", "fraction"), [("walls", 0.5), ("periodic", 1.0)])
def test_sounds_between_the_sides_have_the_frequencies_of_standing_waves(sides: Any, fraction: float) -> None:
    body = read("cylinder", Placement(size="100x62", length=10))
    tunnel = Tunnel(body, D2Q9, sides, "uniform", 0.05, np.dtype(np.float32))
    height = 60 if sides == "walls" else 62
    sound = fraction * math.sqrt(1 / 3) / height * 10 / 0.05
    assert tunnel.sounds[:2] == pytest.approx([sound, 2 * sound], rel=0.01)
    assert Tunnel(body, D2Q9, "slip", "uniform", 0.05, np.dtype(np.float32)).sounds == []


@pytest.mark.parametrize(
    ("name", "words"), [("film.bmp", "unknown format of frames"), ("film.npy", "pictures")]
)
def test_a_film_that_cannot_be_written_is_refused(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        blow(tmp_path, name)


@pytest.mark.parametrize(
    ("shape", "every"), [("cylinder", 25), ("airfoil:0012", 10), ("airfoil:0012@30", 25)]
)
def test_forces_are_sampled_often_enough_for_the_eddies_of_a_body(shape: str, every: int) -> None:
    """An airfoil sheds eddies of the size of its height: by its chord, their periods have few samples."""
    body = read(shape, Placement(size="200x128", length=40))
    tunnel = Tunnel(body, D2Q9, "slip", "uniform", 0.1, np.dtype(np.float32))
    samples = module._samples(tunnel, "auto", None, StepOptions(1000))
    assert samples is not None
    assert samples.every == pytest.approx(every, abs=1)


def test_steps_and_frames_have_defaults() -> None:
    body = read("cylinder", Placement(size="100x64"))
    tunnel = Tunnel(body, D2Q9, "slip", "uniform", 0.1, np.dtype(np.float32))
    options = module._options(module.StepOptions(), tunnel)
    assert (options.steps, options.every, options.check_finite) == (4000, 40, 40)
    # Without frames, small fields are rarely looked at: it takes as long as many of their steps.
    for size, expected in (("100x64", 2000), ("8192x4096", 3276), ("8192x8192", 50)):
        tunnel = replace(tunnel, body=read("cylinder", Placement(size=size)))
        given = StepOptions(400 if size == "8192x8192" else None)
        assert module._options(given, tunnel, filmed=False).check_finite == expected
    given = StepOptions(400, checkpoint=SaveInterval(steps=20))
    assert module._options(given, tunnel, filmed=False).check_finite == 4


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_flow_that_bursts_ends_with_its_step_and_cell_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(units.MOST_CELL_REYNOLDS, "bgk", 1e9)
    options = {"reynolds": 1e6, "steps": 400, "every": 50, "collision": "bgk", "checkpoint": 50}
    with pytest.raises(
        RunError, match=r"f0 is not finite after step \d+: cell \[\d+, \d+\], on \[rank 0"
    ) as burst:
        blow(tmp_path, "film", **options)
    step = int(str(burst.value).partition("after step ")[2].partition(":")[0])
    kept = [int(one.name.removeprefix("step-")) for one in (tmp_path / "film.checkpoint").glob("step-*")]
    assert max(kept) == step - 50


@pytest.mark.parametrize("devices", [False, True])
@pytest.mark.parametrize(("grid", "pixels"), [("2x2", 1024), ("3x1", 13)])
def test_pixels_at_the_borders_of_blocks_are_those_of_one_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grid: str, pixels: int, devices: bool
) -> None:
    """No rank has all cells that they are computed from. Each pixel is 4 bytes for each quantity shown."""
    monkeypatch.setattr("meshrun.runner.steps.observers.frames.PIXELS", pixels)
    fetch, fetched = Frames._fetch, []

    def counted(self: Frames, cells: Any, *, fresh: bool) -> Any:
        fetched.append(cells.nbytes)
        return fetch(self, cells, fresh=fresh)

    monkeypatch.setattr(Frames, "_fetch", counted)
    words = {
        "size": "48x31", "length": 6.0, "reynolds": 20.0, "surface": "cells", "draw": "vorticity",
        "isolines": 4, "isolines_of": "pressure",
    }  # fmt: skip

    def film(name: str, chosen: str) -> None:
        options = Options(device="cpu", grid=chosen, steps=StepOptions(20, every=10))

        def rank(control: Control) -> None:
            world = open_world("cpu", control=control)
            if devices:
                world.backend = QueuedBackend()
            run(airflow, ["cylinder"], [tmp_path / name], words, options, world=world)

        run_ranks(math.prod(int(n) for n in chosen.split("x")), rank, timeout=60)

    film("one", "1x1")
    stride = -(-48 // pixels)
    assert fetched == [2 * 4 * -(-46 // stride) * -(-29 // stride)] * 3
    film("more", grid)
    assert frames(tmp_path / "one") == frames(tmp_path / "more")
