"""What the command sets before its ranks begin."""

from __future__ import annotations

import os

import pytest

from jobs.validate import cli
from launch.cli.main import main


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
