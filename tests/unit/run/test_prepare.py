"""What the ranks of a run agree on before it reads: an error of one of them is the same error on all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner import lock
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.errors import UserError, is_met_by_all
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run import prepare
from meshrun.runner.run.execute import Options, execute
from meshrun.runner.run.services import job_run
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.world.world import open_world


@meshrun.map_blocks(out=lambda shape, dtype: (shape, dtype))
def same(block: Any) -> Any:
    return block.copy()


@meshrun.job
def counted(world: Any, input: Any, memory: int) -> int:
    """Count the elements."""
    return int(np.prod(input.shape))


@pytest.mark.parametrize(
    ("job", "steps", "module", "name"),
    [
        (same, None, prepare, "join"),
        (same, None, prepare, "plan_alone"),
        (same, None, prepare, "limits"),
        (same, 3, prepare, "check_steps"),
        (same, 3, prepare, "limits"),
        (counted, None, job_run, "join"),
        (counted, None, job_run, "limits"),
    ],
)
@pytest.mark.parametrize("failure", [UserError("rank 1 cannot", got=1), OSError(5, "broken")])
def test_an_error_of_one_rank_is_raised_on_all_before_any_reads(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: Any,
    steps: int | None,
    module: Any,
    name: str,
    failure: Exception,
) -> None:
    original = getattr(module, name)

    def on_rank_1(first: Any, *others: Any) -> Any:
        if getattr(first, "world", first).rank == 1:
            raise failure
        return original(first, *others)

    monkeypatch.setattr(module, name, on_rank_1)
    monkeypatch.setattr("meshrun.runner.run.map_run.load_arrays", pytest.fail)
    np.save(tmp_path / "in.npy", np.zeros((9, 7), np.float32))
    outputs = [tmp_path / "out.npy"] if job is same else []

    def rank(control: ThreadComm) -> str:
        transaction, world = OutputTransaction(), open_world("cpu", control=control)
        options = Options(device="cpu", steps=StepOptions(steps))
        with pytest.raises(type(failure)) as raised:
            execute(world, job, [tmp_path / "in.npy"], outputs, {}, options, transaction=transaction)
        assert is_met_by_all(raised.value)
        transaction.roll_back()
        return str(raised.value)

    assert len(set(run_ranks(3, rank))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.npy"]
    for output in outputs:
        lock.hold(output)()
