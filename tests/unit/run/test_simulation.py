"""The service `simulate`, with a small solver: heat from a start that is computed, drawn as differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import meshrun
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import UserError
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.region import Region
from meshrun.runner.report.colors import indices, palette
from meshrun.runner.report.summary import render
from meshrun.runner.run.execute import Options, run
from meshrun.runner.steps.observers.additions import Additions, ValueAt
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.storage.formats.registry import ComputedSource
from meshrun.runner.world.world import open_world

SHAPE = (12, 16)


@meshrun.map_blocks(halo=1, boundary="nearest", feeds=("field",))
def melt(field, conductivity, *, rate: float = 0.2):
    centre = field[1:-1, 1:-1]
    sides = field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:]
    return centre + rate * conductivity[1:-1, 1:-1] * (sides - 4 * centre)


def start(region: Region, out: Any) -> None:
    rows, columns = np.ogrid[region.slices[0], region.slices[1]]
    out[...] = np.sin(rows * 0.7 + columns * 1.3) + 0 * rows * columns


def ones(region: Region, out: Any) -> None:
    out[...] = 1


@dataclass
class Slope:
    """Shows the difference of the cells on the right and on the left."""

    name: str = "slope"
    limits: tuple[float, float] = (-1.0, 1.0)
    parts: Sequence[str] = ("product",)
    margin: int = 1

    def palette(self, colors: str) -> bytes:
        return palette("gray", (1, 2, 3))

    def view(self, shape: Any, most: int) -> Any:
        return tuple(slice(1, length - 1, 1) for length in shape)

    def value(self, name: str, cells: Sequence[Any], xp: Any) -> Any:
        assert name == "product"
        return (cells[0] * cells[1]).astype(np.float32)

    def pixels(self, at: ValueAt, xp: Any) -> Any:
        return (at("product", (0, 1)) - at("product", (0, -1)))[None]

    def picture(self, pixels: Any, low: float, high: float) -> Any:
        found = pixels[0].copy()
        found[0, 0] = np.nan
        return indices(found, low, high)


@dataclass
class Sums:
    every: int
    seen: list[tuple[int, float]] = field(default_factory=list)

    def begin(self, stepper: Stepper) -> None: ...

    def next_step(self, done: int) -> int:
        return (done // self.every + 1) * self.every

    def observe(self, stepper: Stepper) -> bool:
        self.seen.append((stepper.done, float(stepper.own(0).sum())))
        return False

    def end(self, stepper: Stepper) -> None: ...


@dataclass
class Calm(Sums):
    """A stopping rule: after its first comparison."""

    compared: str = "heat"
    change: float | None = None
    tolerance: float = 0.5
    reached: bool = False

    def observe(self, stepper: Stepper) -> bool:
        self.change, self.reached = 0.25, True
        return True

    def bytes_kept(self, region: Region) -> int:
        return 0

    def to_save(self, done: int) -> dict[str, Any]:
        return {}

    def restore(self, saved: Any) -> None: ...


def hold_first_row(stepper: Stepper) -> Callable[[Sequence[Any]], None]:
    """Return what sets the first row of the array to 1."""
    plan = stepper.plans[0]

    def hold(blocks: Sequence[Any]) -> None:
        if plan.region.start[0] == 0:
            blocks[0][plan.core][0] = 1

    return hold


@meshrun.job
def thaw(world, argument, simulate, *, rate: float = 0.2, hold: bool = False):
    """Melt.

    rate: of melting.
    """
    sources = [
        ComputedSource(SHAPE, np.dtype(float), one, {"start": argument, "number": number})
        for number, one in enumerate((start, ones))
    ]
    sums = Sums(3)
    options = replace(simulate.options, every=simulate.options.every or 5)
    additions = Additions(Slope(), [sums], hold_first_row if hold else None, until=Calm(6))
    record = simulate(melt, {"rate": rate}, sources, options, additions)
    return {"word": argument, "sums": [total for _, total in sums.seen], "steps": record["steps"]}


def plain(steps: int, rate: float = 0.2, hold: bool = False) -> list[Any]:
    fields = [np.empty(SHAPE)]
    start(Region((0, 0), SHAPE), fields[0])
    for _ in range(steps):
        before = np.pad(fields[-1], 1, "edge")
        if hold:  # the cells beyond the array stay as they were
            before[1, 1:-1] = 1
        fields.append(melt.function(before, np.ones((14, 18)), rate=rate))
    return fields


def slope_pixels(cells: Any) -> Any:
    inner = cells[1:-1]
    found = np.rint(np.clip((inner[:, 2:] - inner[:, :-2] + 1) / 2, 0, 1) * 254)
    return np.rint(found * (255 / 254)).astype(int)


@pytest.mark.parametrize("hold", [False, True])
def test_a_solver_takes_steps_from_a_computed_start_and_draws_what_it_likes(tmp_path: Path, hold) -> None:
    record = thaw.run("warm", tmp_path / "film", steps=10, hold=hold, device="cpu")
    fields = plain(10, hold=hold)
    assert record["result"]["word"] == "warm"
    assert record["result"]["sums"] == pytest.approx([fields[n].sum() for n in (3, 6, 9)], rel=1e-12)
    assert (record["shape"], record["dtype"]) == (list(SHAPE), "float64")
    assert record["steps"]["frames"] == 3
    picture = np.asarray(Image.open(tmp_path / "film" / "frame-000010.png").convert("RGB")).astype(int)
    assert picture.shape == (10, 14, 3)
    assert tuple(picture[0, 0]) == (1, 2, 3)
    expected = slope_pixels(fields[10])
    assert np.abs(picture[..., 0] - expected)[1:].max() == 0


@pytest.mark.parametrize(("until", "last"), [("steady", 6), (0.0, 10), (None, 10)])
def test_a_solvers_own_rule_stops_the_steps_only_where_it_is_named(tmp_path: Path, until, last) -> None:
    record = thaw.run("warm", tmp_path / "film", steps=10, until=until, device="cpu")
    assert record["steps"]["steps"] == last
    assert ("the heat changed by 0.25 of itself in 6 steps, at most 0.5" in render(record)) == (last == 6)


def test_ranks_draw_the_same_film(tmp_path: Path) -> None:
    def rank(control: Control) -> Any:
        world = open_world("cpu", control=control)
        grid = f"1x{control.size}"
        options = Options(device="cpu", grid=grid, steps=StepOptions(steps=10))
        return run(thaw, "warm", tmp_path / grid, {"hold": True}, options, world=world)

    for ranks in (1, 2):
        record = run_ranks(ranks, rank)[0]
        assert record["result"]["steps"] == 10
    for step in (0, 5, 10):
        name = f"frame-{step:06d}.png"
        assert (tmp_path / "1x1" / name).read_bytes() == (tmp_path / "1x2" / name).read_bytes()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"frames": "other.gif"}, "frames"),
    ({"frame_field": "field"}, "slope"),
    ({"boundary": "wrap"}, "boundary"),
    ({"chunk_bytes": "64K"}, "chunk_bytes"),
    ({"hold": True, "steps_per_exchange": 2}, "set before each step"),
    ({"verify": "full"}, "reference"),
    ({}, "steps"),
]


@pytest.mark.parametrize(("more", "word"), REFUSED)
def test_options_that_do_not_apply_are_refused(tmp_path: Path, more: dict[str, Any], word: str) -> None:
    steps = {"steps": 4} if more else {}
    with pytest.raises(UserError) as failure:
        thaw.run("warm", tmp_path / "film", device="cpu", **steps, **more)
    assert word in str(failure.value)
    assert not (tmp_path / "film").exists()


def test_a_film_of_cells_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="as pictures"):
        thaw.run("warm", tmp_path / "film.npy", steps=4, device="cpu")


def test_a_job_without_the_service_has_no_options_of_steps() -> None:
    @meshrun.job
    def other(world, input, *, steps: int = 1): ...

    assert [one.name for one in other.parameters] == ["steps"]
    assert not other.takes_steps
    assert thaw.takes_steps
    assert not thaw.opens_input
