"""`meshrun doctor` on MPI's ranks, which have no GPU: mpiexec -n 3 python -m pytest --with-mpi tests/mpi."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from meshrun.runner.comm.mpi import MpiComm
from meshrun.runner.errors import UserError
from meshrun.runner.run.installation.doctor import SCHEMA, main
from meshrun.runner.system.launcher import BY_HAND, Started
from meshrun.runner.world import rank_process
from meshrun.runner.world.preflight.inspection import PreflightFailed, gather_surveys, preflight
from meshrun.runner.world.preflight.rank_table import render
from meshrun.runner.world.preflight.survey import Survey
from meshrun.runner.world.world import World, open_world

pytestmark = pytest.mark.mpi


@pytest.fixture(autouse=True)
def still_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process goes on afterwards: its signals stay as they are."""
    monkeypatch.setattr(rank_process, "on_termination", lambda _: None)
    monkeypatch.setattr(rank_process, "end_with_parent", lambda: None)


@pytest.mark.mpi_library
def test_every_rank_has_the_facts_of_all_in_order(world: World) -> None:
    surveys = gather_surveys(world.control, world.ranks, world.backend)
    assert [survey.rank for survey in surveys] == list(range(world.size))
    places = [(place.host, place.host_id, place.local, place.pid) for place in world.ranks]
    assert [(one.host, one.host_id, one.local_rank, one.pid) for one in surveys] == places
    mine = surveys[world.rank]
    assert (mine.pid, mine.cpus) == (os.getpid(), tuple(sorted(os.sched_getaffinity(0))))
    assert mine.mpi == world.control.library
    assert world.control.allgather(surveys) == [surveys] * world.size


def rows(text: str, survey: Survey) -> list[str]:
    """The lines of that rank in the table."""
    cells = [survey.host, str(survey.rank), str(survey.local_rank)]
    return [line for line in text.splitlines() if line.split()[:3] == cells]


def test_the_table_has_a_line_for_every_rank(world: World) -> None:
    surveys = gather_surveys(world.control, world.ranks, world.backend)
    text = render(surveys)
    assert text.startswith(f"{world.size} rank")
    assert [len(rows(text, survey)) for survey in surveys] == [1] * world.size


def test_it_shows_everything_once_and_writes_it(
    comm: MpiComm, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = folder / "facts.json"
    assert main(Started(ranks=comm.size, hosts=1, per_host=comm.size), "cpu", file) == 0
    written = capfd.readouterr()
    shown = comm.allgather(written.out)
    assert shown[1:] == [""] * (comm.size - 1)
    assert "FAILURE" not in shown[0]
    comm.barrier()
    record = json.loads(file.read_text())
    assert record.keys() == {"schema", "kind", "version", "ranks", "problems", "settings"}
    assert record["schema"] == SCHEMA
    assert [one["rank"] for one in record["ranks"]] == list(range(comm.size))
    assert [one["pid"] for one in record["ranks"]] == comm.allgather(os.getpid())
    assert record["ranks"][0].keys() == asdict(Survey(0, "", "", 0, 0)).keys()
    lines = [f"warning: {problem['what']}" for problem in record["problems"]] or ["nothing is wrong"]
    assert all(f"\n{line}" in shown[0] for line in lines)
    assert list(folder.iterdir()) == [file]


def test_what_would_fail_a_run_is_shown_and_is_its_exit_status(
    comm: MpiComm, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The facts are shown all the same, and written."""
    file = folder / "facts.json"
    assert main(Started(hosts=3, per_host=comm.size + 1, network="nosuch0"), "cpu", file) == 2
    written = capfd.readouterr()
    shown, told = comm.broadcast((written.out, written.err))
    expected = [
        "the ranks are on a different number of hosts than planned",
        "hosts have a different number of ranks than planned",
        "hosts cannot be reached on the chosen network, nosuch0",
    ]
    assert [line.partition(":")[0] for line in shown.splitlines() if line.startswith("FAILURE: ")] == [
        "FAILURE"
    ] * len(expected)
    for what in expected:
        assert f"\nFAILURE: {what}: got " in shown
        assert what in told
    assert told.count("meshrun: ") == 1
    assert comm.rank == 0 or (written.out, written.err) == ("", "")
    failures = [one["what"] for one in json.loads(file.read_text())["problems"] if not one["warning"]]
    assert failures == expected


def test_a_run_is_refused_for_the_same_on_every_rank_alike(comm: MpiComm) -> None:
    check = preflight(Started(hosts=3, network="nosuch0"))
    if comm.size == 1:
        assert open_world("cpu", control=comm, check=check).size == 1
        return
    with pytest.raises(PreflightFailed, match="a different number of hosts") as unfit:
        open_world("cpu", control=comm, check=check)
    assert unfit.value.everywhere
    assert len(set(comm.allgather(str(unfit.value)))) == 1


def test_a_rank_with_other_settings_is_named(comm: MpiComm, monkeypatch: pytest.MonkeyPatch) -> None:
    if comm.size == 1:
        pytest.skip("several ranks")
    last = comm.size - 1
    if comm.rank == last:
        monkeypatch.setenv("NCCL_ALGO", "Ring")
    with pytest.raises(UserError, match=f"different settings of NCCL_ALGO.*Ring on rank {last} ") as unfit:
        open_world("cpu", control=comm, check=preflight(BY_HAND))
    assert unfit.value.everywhere
