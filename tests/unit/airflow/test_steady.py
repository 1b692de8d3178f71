"""`--until steady`: when it stops, that neither ranks nor a resumed run change that, and what is refused.

The sums by which it stops are exact, and the same for every split.
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from meshrun.jobs.airflow.airflow import airflow
from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.lattice import D2Q9
from meshrun.jobs.airflow.observers.steady import LARGEST, UntilSteady, relative_change, squares
from meshrun.jobs.airflow.shapes.shape import Placement, read
from meshrun.jobs.airflow.tunnel import Tunnel
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.options.step_options import NamedRule, SaveInterval, StepOptions, parse_until
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.region import Region
from meshrun.runner.report.summary import render
from meshrun.runner.run.execute import Options, run
from meshrun.runner.steps.observers.checkpoints import Checkpoints
from meshrun.runner.world.world import open_world

EVERY = 40  # steps in which the flow passes the body: length / speed
TOLERANCE = 0.03  # reached after a few of them
WORDS = {"size": "48x24", "length": 4.0, "reynolds": 20.0, "surface": "cells"}


def blow(
    folder: Path,
    grid: str = "1x1",
    *,
    steps: int = 2000,
    resume: bool = False,
    more: Any = (),
    **options: Any,
) -> Any:
    """The record of a run on as many ranks as the grid has blocks."""
    chosen = Options(
        device="cpu",
        grid=grid,
        steps=StepOptions(steps, **{"every": 1000, "until": NamedRule("steady", TOLERANCE), **options}),
        stream=StreamOptions(resume=resume),
    )
    words = {**WORDS, **dict(more)}

    def rank(control: Control) -> Any:
        world = open_world("cpu", control=control)
        return run(airflow, ["cylinder"], [folder / "film"], words, chosen, world=world)

    return run_ranks(math.prod(int(n) for n in grid.split("x")), rank, timeout=60)[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An undisturbed run on one rank that becomes steady, with the fields of each comparison."""
    folder = tmp_path_factory.mktemp("whole")
    return blow(folder, more={"fields": folder / "f.h5", "fields_every": EVERY}) | {"folder": folder}


def test_the_run_stops_when_the_velocity_has_changed_by_less_than_the_tolerance(whole: Any) -> None:
    """Computed from the file of fields, which has the velocity of every cell."""
    with h5py.File(whole["folder"] / "f.h5") as file:
        velocity = file["VTKHDF/PointData/velocity"][()].astype(float)
        steps = file["VTKHDF/Steps/Values"][()]
    body = read("cylinder", Placement(WORDS["size"], length=WORDS["length"]))
    tunnel = Tunnel(body, D2Q9, "slip", "uniform", 0.1, np.dtype(np.float32))
    kinds = tunnel.cells(Region((0, 0), body.shape))[::-1]
    fluid = (kinds == Cell.FLUID) | (kinds == Cell.DAMPED)
    norms = [np.linalg.norm(one[fluid]) for one in velocity]
    changes = [
        np.linalg.norm((b - a)[fluid]) / norm
        for a, b, norm in zip(velocity[:-1], velocity[1:], norms[1:], strict=True)
    ]
    expected = next(n for n, change in enumerate(changes, 1) if change <= TOLERANCE)
    assert expected > 3
    assert steps[-1] == whole["steps"]["steps"] == expected * EVERY
    assert whole["steps"]["until"] == {
        "tolerance": TOLERANCE,
        "change": pytest.approx(changes[expected - 1], rel=1e-6),
        "reached": True,
        "field": "velocity",
        "over": EVERY,
    }
    assert whole["result"]["steady"]
    assert whole["result"]["strouhal_reason"] == "the flow is steady"
    assert "steady: the velocity changed by" in render(whole)


@pytest.mark.parametrize("grid", ["2x2", pytest.param("1x3", marks=pytest.mark.nightly)])
def test_no_split_changes_the_change(tmp_path: Path, whole: Any, grid: str) -> None:
    found = blow(tmp_path, grid)
    assert found["steps"]["until"] == whole["steps"]["until"]
    assert found["steps"]["steps"] == whole["steps"]["steps"]
    assert found["result"]["drag"] == whole["result"]["drag"]


@pytest.mark.parametrize("save", [30, EVERY])  # between two comparisons, and at each of them
def test_a_run_that_is_resumed_on_other_ranks_stops_at_the_same_step(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch, save: int
) -> None:
    stop = whole["steps"]["steps"]
    observe = UntilSteady.observe

    def fail(self: UntilSteady, stepper: Any) -> bool:
        if stepper.done == stop:
            raise RunError("lost power", everywhere=True)
        return observe(self, stepper)

    monkeypatch.setattr(UntilSteady, "observe", fail)
    with pytest.raises(RunError, match="lost power"):
        blow(tmp_path, "2x1", checkpoint=SaveInterval(steps=save))
    monkeypatch.undo()
    found = blow(tmp_path, "1x2", checkpoint=SaveInterval(steps=save), resume=True)
    assert found["steps"]["first"] == (stop - 1) // save * save > stop - EVERY - save
    assert found["steps"]["steps"] == stop
    assert found["steps"]["until"] == whole["steps"]["until"]
    assert found["result"]["drag"] == whole["result"]["drag"]


def test_the_step_at_which_a_run_stops_gets_no_checkpoint(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed before its output is complete would go on from it."""

    def fail(self: Checkpoints) -> None:
        raise RunError("lost power", everywhere=True)

    monkeypatch.setattr(Checkpoints, "remove", fail)
    with pytest.raises(RunError, match="lost power"):
        blow(tmp_path, checkpoint=SaveInterval(steps=EVERY))
    stop = whole["steps"]["steps"]
    kept = sorted(one.name for one in (tmp_path / "film.checkpoint").iterdir())
    assert f"step-{stop - EVERY}" in kept
    assert f"step-{stop}" not in kept


def test_a_flow_that_is_not_steady_yet_takes_all_steps_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    found = blow(tmp_path / "a", steps=120, until=NamedRule("steady", 1e-9))
    assert found["steps"]["steps"] == 120
    assert not found["steps"]["until"]["reached"]
    assert not found["result"]["steady"]
    assert "not steady: the velocity changed by" in render(found)
    (tmp_path / "b").mkdir()
    found = blow(tmp_path / "b", steps=30)
    assert found["steps"]["until"]["change"] is None
    assert "compared every 40 steps; take more steps" in render(found)


def test_a_flow_that_is_to_become_steady_has_a_later_last_step_and_no_fewer_frames() -> None:
    from meshrun.jobs.airflow import airflow as module

    body = read("cylinder", Placement(size="100x64"))
    tunnel = Tunnel(body, D2Q9, "slip", "uniform", 0.1, np.dtype(np.float32))
    options = module._options(StepOptions(until=NamedRule("steady")), tunnel)
    assert (options.steps, options.every) == (40000, 40)


@pytest.mark.parametrize(
    ("until", "words"),
    [
        ("steady:0", r"'steady:0' has no tolerance; expected a number between 0 and 1"),
        ("steady:-1e-5", "has no tolerance"),
        ("steady:1", "has no tolerance"),
        ("steady:nan", "has no tolerance"),
        ("steady:", "has no tolerance"),
        ("steady:slow", "has no tolerance"),
        ("calm", r"'calm' is no tolerance; expected 0 or more, .*, or steady, or"),
        ("nan", "is no tolerance"),
        (-1e-3, "is no tolerance"),
    ],
)
def test_a_tolerance_that_is_none_is_refused(tmp_path: Path, until: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        airflow.run("cylinder", tmp_path / "film", device="cpu", until=until, steps=10, **WORDS)


def test_a_sum_of_squares_is_exact_to_a_unit_for_each_value_and_the_same_in_any_order() -> None:
    random = np.random.default_rng(0)
    values = random.standard_normal(5000) * 10.0 ** random.uniform(-9, 0, 5000)
    exact = sum(Fraction(one) ** 2 for one in values.tolist())
    high, low, left_out = squares(values, np).tolist()
    assert left_out == 0
    assert abs(Fraction(high, 2**30) + Fraction(low, 2**60) - exact) <= 5000 * Fraction(1, 2**60)
    parts = np.sum([squares(one, np) for one in np.array_split(random.permutation(values), 7)], axis=0)
    assert parts.tolist() == [high, low, left_out]


def test_a_change_of_the_last_bit_of_one_cell_is_seen() -> None:
    changed = np.zeros((100, 100))
    changed[3, 4] = 2.0**-27  # of 0.1 in float32
    sums = np.array([[squares(changed, np), squares(np.full((100, 100), 0.1), np)]])
    assert relative_change(ThreadComm(), sums) == pytest.approx(2.0**-27 / 10)


@pytest.mark.parametrize("value", [math.nan, math.inf, math.sqrt(LARGEST)])
def test_a_value_that_is_no_flows_is_no_steady_state_on_any_rank(value: float) -> None:
    def rank(control: Control) -> float:
        values = np.full(9, 0.1)
        values[4] = value if control.rank == 1 else 0.1
        return relative_change(control, np.array([[squares(np.zeros(9), np), squares(values, np)]]))

    assert all(math.isnan(one) for one in run_ranks(3, rank))


def test_air_at_rest_is_steady() -> None:
    none = squares(np.zeros(4), np)
    assert relative_change(ThreadComm(), np.array([[none, none]])) == 0
    assert relative_change(ThreadComm(), np.array([[squares(np.full(4, 0.1), np), none]])) == math.inf


def test_what_is_parsed() -> None:
    assert parse_until("steady") == NamedRule("steady")
    assert parse_until("steady:2e-6") == NamedRule("steady", 2e-6)
    assert parse_until("0") == 0.0
