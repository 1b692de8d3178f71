"""`meshrun validate --simulate` under a launcher: one verdict, by rank 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshrun.launch.cli.main import main
from meshrun.runner.comm.mpi import MpiComm

pytestmark = pytest.mark.mpi
WORDS = ["validate", "--quick", "--rungs", "gpu", "--simulate"]


@pytest.mark.parametrize(
    ("fleet", "status"), [("hosts=1,gpus=2", 0), ("hosts=1,gpus=8,fault=gpu:h0:1:0.6", 2)]
)
def test_one_verdict_and_its_status_on_every_rank(
    fleet: str, status: int, comm: MpiComm, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = main([*WORDS, fleet, "-J", str(folder / "r.json")])
    shown = comm.allgather(capfd.readouterr().out)
    assert comm.allgather(ended) == [status] * comm.size
    assert shown[1:] == [""] * (comm.size - 1)
    assert shown[0].count("simulated, no real machine was measured") == 1
    assert [path.name for path in folder.iterdir()] == ["r.json"]


def test_an_error_is_told_once(comm: MpiComm, capfd: pytest.CaptureFixture[str]) -> None:
    ended = main([*WORDS, "hosts=0"])
    written = capfd.readouterr()
    assert comm.allgather(ended) == [3] * comm.size
    errors, shown = comm.allgather(written.err), comm.allgather(written.out)
    assert [text.count("hosts") > 0 for text in errors] == [True] + [False] * (comm.size - 1)
    assert [text.startswith("UNKNOWN: ") for text in shown] == [True] + [False] * (comm.size - 1)
