"""A recorded communicator does what the communicator does, and every rank's record says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from runner.comm.recorded import RecordedControl, unrecorded
from runner.comm.threads import ThreadComm, run_ranks
from runner.recorder import ring
from runner.recorder.ring import Recorder

ABOUT = {"run": "r", "size": 3, "host": "n1", "device": "CPU", "command": ""}


def test_operations_of_all_kinds(tmp_path: Path) -> None:
    def work(comm: ThreadComm) -> Any:
        recorder = Recorder(ring.file_of("r", comm.rank, tmp_path), {**ABOUT, "rank": comm.rank})
        control = RecordedControl(comm, recorder)
        control.barrier()
        assert control.broadcast(comm.rank) == 0
        assert control.allgather(comm.rank) == [0, 1, 2]
        total = np.array([float(comm.rank)])
        control.all_reduce(total, "sum")
        assert total == 3
        arrived = np.empty(2)
        right, left = (comm.rank + 1) % 3, (comm.rank - 1) % 3
        control.exchange([(right, np.full(2, comm.rank))], [(left, arrived)]).wait()
        half = control.split(comm.rank % 2)
        half.barrier()
        assert unrecorded(control) is comm
        found = ring.read(recorder.path)
        recorder.close()
        return found

    recordings = run_ranks(3, work)
    for rank, found in enumerate(recordings):
        names = [str(one) for one in found.operations]
        assert names == [
            "barrier 1",
            "broadcast 2",
            "allgather 3",
            "all_reduce 4",
            "exchange",
            "wait for messages",
            "split 5",
            "barrier 1",
        ]
        assert all(one.left is not None for one in found.operations)
        assert found.operations[4].moved == 32
        assert found.messages == {("world", (rank + 1) % 3): (1, 0), ("world", (rank - 1) % 3): (0, 1)}
        assert found.operations[-1].group == f"world/1.{rank % 2}"
        assert found.groups[f"world/1.{rank % 2}"].members == ((1,) if rank % 2 else (0, 2))
