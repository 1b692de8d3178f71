"""A recorded communicator does what the communicator does, and every rank's record says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.comm.recorded import Trail, record_operations
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.recorder import ring
from meshrun.runner.recorder.ring import Recorder
from meshrun.runner.report.phases import Phases
from meshrun.runner.report.spans import Spans

ABOUT = {"run": "r", "size": 3, "host": "n1", "device": "CPU", "command": ""}


def test_operations_of_all_kinds(tmp_path: Path) -> None:
    def work(control: ThreadComm) -> Any:
        recorder = Recorder(ring.file_of("r", control.rank, tmp_path), {**ABOUT, "rank": control.rank})
        record_operations(control, Trail(recorder, "world", range(3)))
        control.barrier()
        assert control.broadcast(control.rank) == 0
        assert control.allgather(control.rank) == [0, 1, 2]
        total = np.array([float(control.rank)])
        control.all_reduce(total, "sum")
        assert total == 3
        arrived = np.empty(2)
        right, left = (control.rank + 1) % 3, (control.rank - 1) % 3
        control.exchange([(right, np.full(2, control.rank))], [(left, arrived)]).wait()
        half = control.split(control.rank % 2)
        half.barrier()
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


def test_device_arrays_have_a_communicator_of_their_own(tmp_path: Path) -> None:
    recorder = Recorder(ring.file_of("r", 0, tmp_path), {**ABOUT, "rank": 0})
    control, arrays = ThreadComm(), ThreadComm()
    trail = Trail(recorder, "world", [0])
    record_operations(control, trail)
    record_operations(arrays, trail.on_device())
    control.barrier()
    arrays.all_reduce(np.ones(3), "sum")
    found = ring.read(recorder.path)
    recorder.close()
    assert found is not None
    assert [(str(one), one.group) for one in found.operations] == [
        ("barrier 1", "world"),
        ("all_reduce 1", "world on device"),
    ]


def test_a_communicator_has_at_most_one_trail(tmp_path: Path) -> None:
    first, second = (
        Recorder(ring.file_of(run, 0, tmp_path), {**ABOUT, "rank": 0, "run": run}) for run in ("a", "b")
    )
    control = ThreadComm()
    for recorder in (first, second):
        record_operations(control, Trail(recorder, "world", [0]))
        control.barrier()
        control.exchange([], []).wait()
    record_operations(control, None)
    control.barrier()
    for recorder in (first, second):
        found = ring.read(recorder.path)
        recorder.close()
        assert found is not None
        assert [str(one) for one in found.operations] == ["barrier 1", "exchange", "wait for messages"]
    assert control.trail is None


def test_phases_and_stages_of_chunks_are_operations(tmp_path: Path) -> None:
    recorder = Recorder(ring.file_of("r", 0, tmp_path), {**ABOUT, "rank": 0})
    with Phases(lambda: None, recorder)("kernel", 100):
        pass
    with pytest.raises(ValueError, match="broken"), Phases(lambda: None, recorder)("write"):
        raise ValueError("broken")
    spans = Spans(recorder=recorder)
    with spans("kernel", 0, 7):
        pass
    found = ring.read(recorder.path)
    recorder.close()
    assert found is not None
    assert [str(one) for one in found.operations] == [
        "kernel",
        "wait for the device",
        "write",
        "kernel of chunk 1",
    ]
    assert all(one.left is not None for one in found.operations)
    assert len(spans.found) == 1
