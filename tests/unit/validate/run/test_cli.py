"""What the command sets before its ranks begin."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from meshrun.jobs.validate import cli
from meshrun.jobs.validate.plan import Plan, for_cpus
from meshrun.launch.cli.main import main


def test_a_load_on_tensor_cores_is_planned_for_real_gpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[float] = []

    def run(*arguments: Any) -> int:
        plans.append(arguments[-2].plan.tensor_seconds)
        return 0

    monkeypatch.setattr("meshrun.jobs.validate.run.run.run", run)
    monkeypatch.setattr("meshrun.jobs.validate.run.run.rehearse_once", run)
    monkeypatch.setattr(cli, "run_as_rank", lambda body, handler, **named: body(None, handler))
    for words in ([], ["--soak", "1h"], ["--quick"], ["--simulate", "hosts=2,gpus=8"]):
        assert main(["validate", *words]) == 0
    assert plans == [3.0, 60.0, 1.5, 0.0]
    assert for_cpus(Plan(tensor_seconds=3.0)).tensor_seconds == 0.0


@pytest.mark.parametrize(
    ("words", "before", "after"),
    [([], None, "0"), ([], "1", "1"), (["--device", "cpu"], None, None)],
)
def test_flows_leave_through_their_own_nic(
    words: list[str], before: str | None, after: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL reads the variable when the first communicator is made, so it is set before that."""
    name, seen = "NCCL_P2P_PXN_LEVEL", []
    monkeypatch.setenv(name, "to be restored")
    if before is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, before)

    def run_as_rank(*arguments: object, **named: object) -> int:
        seen.append(os.environ.get(name))
        return 0

    monkeypatch.setattr(cli, "run_as_rank", run_as_rank)
    assert main(["validate", *words]) == 0
    assert seen == [after]
    assert os.environ.get(name) == before


def test_a_defect_is_unknown_and_not_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def defective(*arguments: object) -> None:
        raise ZeroDivisionError("of a defect")

    monkeypatch.setattr("meshrun.jobs.validate.run.run.measure_simulated", defective)
    assert main(["validate", "--simulate", "hosts=2"]) == 3
    printed = capsys.readouterr()
    assert printed.out.startswith("UNKNOWN: ZeroDivisionError: of a defect")
    assert "Traceback" not in printed.err
    assert main(["validate", "--simulate", "hosts=2", "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_a_baseline_that_could_not_be_saved_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("meshrun.jobs.validate.baseline.json.write_file", full)
    path = tmp_path / "base.json"
    assert main(["validate", "--simulate", "hosts=2", "--quick", "--save-baseline", str(path)]) == 3
    assert capsys.readouterr().out.startswith(
        f"UNKNOWN: not saved: cannot write the baseline {path}: got No s"
    )
    assert list(tmp_path.iterdir()) == []
