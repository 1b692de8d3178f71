"""A body with links, in time steps of the runner: the same forces, to the bit, on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flow_runs import Flow, free, rates, simulate, start

import meshrun
from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.coefficients import coefficients
from meshrun.jobs.airflow.lattice import D2Q9
from meshrun.jobs.airflow.links import find_links, force, momentum, set_slots
from meshrun.jobs.airflow.step import step_job
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.region import Region
from meshrun.runner.run.execute import Options, run
from meshrun.runner.steps.observers.additions import Additions
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.storage.formats.registry import ComputedSource
from meshrun.runner.world.world import open_world

STEPS = 12
Array = np.ndarray[Any, Any]


def job_of(flow: Flow) -> Any:
    """A job that takes the flow's time steps, and whose result is the momentum before each of them."""
    body, inner = flow.body, (slice(1, -1), slice(1, -1))
    solid = body.solid(Region((0, 0), flow.cells.shape))
    cells = np.where(solid, Cell.SOLID, flow.cells).astype(np.uint8)
    wind = np.broadcast_to(flow.profile, cells.shape).astype(np.float32)
    arrays = [*(one[inner] for one in start(flow)), cells, wind]
    fluid = np.pad((cells == Cell.FLUID), 1, mode="wrap")
    step = step_job(D2Q9, set(np.unique(cells).tolist()), profile=True)

    def part_of(array: Array) -> Callable[[Region, Array], None]:
        return lambda region, out: np.copyto(out, array[region.slices])

    @meshrun.job
    def blow(world: Any, argument: str, simulate: Any) -> dict[str, Any]:
        """Blow."""
        totals: list[Array] = []

        def hook(stepper: Stepper) -> Callable[[Sequence[Array]], None]:
            region = stepper.plans[0].region
            around = tuple(slice(a, b + 2) for a, b in zip(region.start, region.stop, strict=True))
            strides = [step // 4 for step in stepper.own(0).strides]
            links = find_links(body, region, D2Q9, fluid=fluid[around], strides=strides)

            def before_step(blocks: Sequence[Array]) -> None:
                set_slots(blocks[: D2Q9.size], links)
                totals.append(momentum(blocks[: D2Q9.size], links, D2Q9))

            return before_step

        sources = [
            ComputedSource(one.shape, one.dtype, part_of(one), {"number": number})
            for number, one in enumerate(arrays)
        ]
        simulate(step, rates(flow), sources, simulate.options, Additions(None, [], hook))
        return {"totals": np.sum(world.control.allgather(np.array(totals)), axis=0).tolist()}

    return blow


@pytest.mark.parametrize("grid", ["2x1", "1x3", "2x2"])
def test_forces_are_the_same_on_any_number_of_ranks(grid: str, tmp_path: Path) -> None:
    flow = free(5, 50, 0.1, (6.0, 8.0))
    expected = simulate(flow, STEPS, 2, "numpy")
    job = job_of(flow)
    chosen = Options(device="cpu", grid=grid, steps=StepOptions(STEPS + 1, every=STEPS))

    def rank(control: Control) -> Any:
        return run(job, ["flow"], [tmp_path / "film"], {}, chosen, world=open_world("cpu", control=control))

    count = int(np.prod([int(n) for n in grid.split("x")]))
    totals = np.array(run_ranks(count, rank, timeout=60)[0]["result"]["totals"])[2::2]
    found = coefficients(
        expected.steps.tolist(), np.array([force(one) for one in totals]), flow.body, flow.speed
    )
    np.testing.assert_array_equal(found.drag, expected.drag)
    np.testing.assert_array_equal(found.lift, expected.lift)
