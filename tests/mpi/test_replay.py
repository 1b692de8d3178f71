"""`meshrun bench replay` on MPI's ranks: what is recorded is repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.jobs.bench.replay.run import ReplayOptions, run
from meshrun.launch.cli.cli_context import CliContext
from meshrun.runner.comm.clock import clock_offsets
from meshrun.runner.comm.collectives.api import DATATYPES, Call, Pointer
from meshrun.runner.comm.collectives.mpi import MpiCollectives
from meshrun.runner.comm.mpi import MpiComm
from meshrun.runner.comm.recorded import Trail, log_calls, record_operations, write_operations
from meshrun.runner.errors import UserError
from meshrun.runner.recorder import ring
from meshrun.runner.recorder.operations import OperationLog, RankOperations, now
from meshrun.runner.recorder.ring import Recorder
from meshrun.runner.system.launcher import BY_HAND
from meshrun.runner.world.failure import FailureHandler
from meshrun.runner.world.world import World

pytestmark = pytest.mark.mpi
DOOR = CliContext(BY_HAND, words=("bench", "replay"))
ABOUT = {"run": "r", "size": 1, "host": "n1", "device": "CPU", "command": ""}


def converse(control: MpiComm) -> None:
    """Make operations of every kind, one of them in a part of the ranks."""
    size, rank = control.size, control.rank
    control.barrier()
    control.broadcast("x" * 100 if rank == 0 else None)
    control.allgather(rank)
    control.all_reduce(np.ones(1000, np.float32), "max")
    after, before = (rank + 1) % size, (rank - 1) % size
    first = control.exchange([(after, np.zeros(30))], [(before, np.zeros(30))])
    second = control.exchange([(before, np.zeros(7))], [(after, np.zeros(7))])
    second.wait()
    first.wait()
    half = control.split(rank % 2)
    half.all_reduce(np.ones(50), "sum")
    raw = MpiCollectives(control)
    log_calls(raw)
    send, recv = (Pointer(raw.allocate(64 * size)) for _ in range(2))
    for operation in ("all_reduce", "alltoall"):
        raw.issue([raw.bind(Call(operation, send, recv, 8, DATATYPES["float"]))] * 2)
    traffic = tuple(tuple((i + j) % 3 for j in range(size)) for i in range(size))
    raw.issue([raw.bind(Call("alltoallv", send, recv, 0, DATATYPES["float"], traffic=traffic))])
    if size > 1 and rank < 2:
        ends: dict[str, int] = {"send_to": 1} if rank == 0 else {"receive_from": 0}
        raw.issue([raw.message(Call("message", send, recv, 16, DATATYPES["int8"]), **ends)])
    raw.close()
    half.close()


@pytest.fixture
def record(folder: Path, tmp_path: Path) -> Path:
    control, log = MpiComm(), OperationLog()
    recorder = Recorder(ring.file_of("r", control.rank, tmp_path), {**ABOUT, "rank": control.rank})
    record_operations(control, Trail(recorder, "world", range(control.size), log))
    began = now()
    converse(control)
    own = RankOperations("n1", began, now())
    write_operations(
        control, own, clock_offsets(control)[control.rank].offset, "run talk", folder / "talk.json"
    )
    record_operations(control, None)
    recorder.close()
    control.close()
    return folder / "talk.json"


@pytest.mark.parametrize("gaps", [True, False])
def test_what_is_recorded_is_repeated(
    world: World, folder: Path, record: Path, gaps: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    options = ReplayOptions(record, gaps, 2, str(folder / f"{gaps}.json"))
    run(world, FailureHandler(rank=world.own_rank), options, DOOR)
    shown = capfd.readouterr().out
    assert (shown != "") is (world.rank == 0)
    world.control.barrier()  # rank 0 has written its file
    document = json.loads((folder / f"{gaps}.json").read_text())
    size = world.size

    def calls(side: dict[str, Any]) -> dict[tuple[str, int], int]:
        return {(kind["operation"], kind["bytes"]): kind["calls"] for kind in side["kinds"]}

    assert calls(document["here"]) == calls(document["recorded"])
    expected = {("all_reduce", 4000): size, ("all_reduce", 400): size, ("exchange", 240): size,
                ("exchange", 56): size, ("barrier", 0): size, ("all_reduce", 32): 2 * size,
                ("alltoall", 32): 2 * size}  # fmt: skip
    assert expected.items() <= calls(document["here"]).items()
    assert calls(document["here"]).get(("message", 16), 0) == (2 if size > 1 else 0)
    assert sum(count for (name, _), count in calls(document["here"]).items() if name == "alltoallv") == size
    for side in (document["recorded"], document["here"]):
        assert side["wire"] > 0
        assert side["wire"] + side["waiting"] + side["rest"] >= side["total"] * 0.999


def test_a_record_of_more_ranks(world: World, folder: Path, record: Path) -> None:
    document = json.loads(record.read_text())
    if world.rank == 0:
        more = dict(document)
        barrier = [0.0, 1.0, "barrier", "all", 0]
        more["ranks"] = [{**document["ranks"][0], "operations": [barrier]}] * (world.size + 1)
        more["groups"] = {"all": [[0, 1, world.size + 1]]}
        (folder / "more.json").write_text(json.dumps(more))
    world.control.barrier()
    with pytest.raises(UserError, match=rf"of {world.size + 1} ranks.*-n {world.size + 1} bench replay"):
        run(world, FailureHandler(rank=world.own_rank), ReplayOptions(folder / "more.json"), DOOR)


def test_a_record_of_fewer_ranks(
    world: World, folder: Path, record: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The last rank has no part, and still takes part in opening and closing."""
    log = (
        "n1:1:9 [0] NCCL INFO AllReduce: opCount 2 sendbuff 0x1 recvbuff 0x2 count 64 datatype 7 op 0 root 0 "
    )
    if world.rank == 0:
        (folder / "log").write_text(f"{log}comm 0x5 [nranks={max(world.size - 1, 1)}] stream 0x9\n")
    world.control.barrier()
    capfd.readouterr()
    run(world, FailureHandler(rank=world.own_rank), ReplayOptions(folder / "log"), DOOR)
    if world.rank == 0:
        shown = capfd.readouterr().out
        assert "The log has no times" in shown
        assert ("have no part" in shown) is (world.size > 1)
