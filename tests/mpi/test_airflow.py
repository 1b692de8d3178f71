"""The job `airflow` on MPI's ranks: mpiexec -n 3 python -m pytest --with-mpi tests/mpi/test_airflow.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshrun.jobs.airflow.airflow import airflow
from meshrun.jobs.airflow.observers.steady import UntilSteady
from meshrun.runner.comm.threads import ThreadComm
from meshrun.runner.errors import RunError
from meshrun.runner.options.step_options import NamedRule, SaveInterval, StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import World, open_world

pytestmark = pytest.mark.mpi


def blow(world: World, film: Path, *, resume: bool = False, grid: str | None = None, **more: Any) -> Any:
    options = Options(
        device="cpu", grid=grid, stream=StreamOptions(resume=resume),
        steps=StepOptions(2000, every=1000, until=NamedRule("steady", 0.03), **more),
    )  # fmt: skip
    words = {"size": "48x24", "length": 4.0, "reynolds": 20.0}
    return run(airflow, ["cylinder"], [film], words, options, world=world)


def test_a_flow_becomes_steady_at_the_same_step_on_any_ranks_and_after_a_failure(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_rank() -> Any:
        return blow(open_world("cpu", control=ThreadComm()), folder / "alone")

    alone = world.on_root(one_rank)
    observe = UntilSteady.observe

    def fail(self: UntilSteady, stepper: Any) -> bool:
        if stepper.done == alone["steps"]["steps"]:
            raise RunError("as if the power went", everywhere=True)
        return observe(self, stepper)

    monkeypatch.setattr(UntilSteady, "observe", fail)
    with pytest.raises(RunError, match="as if the power went"):
        blow(world, folder / "film", checkpoint=SaveInterval(steps=30))
    monkeypatch.undo()
    found = blow(world, folder / "film", resume=True, grid="0x0", checkpoint=SaveInterval(steps=30))
    assert found["steps"]["first"] > 0
    assert found["steps"]["until"] == alone["steps"]["until"]
    assert found["steps"]["until"]["reached"]
    assert found["steps"]["steps"] == alone["steps"]["steps"]
    assert found["result"]["drag"] == alone["result"]["drag"]
