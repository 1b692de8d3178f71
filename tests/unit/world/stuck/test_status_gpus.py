"""`meshrun status` of ranks with GPUs: what NVML says of each, and why it says nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import nvml
import pytest
from click.testing import CliRunner

from meshrun.launch.cli.running.status import status as status_command
from meshrun.runner.device.api import Device
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.recorder import ring
from meshrun.runner.recorder.ring import Recorder
from meshrun.runner.world import world as world_module
from meshrun.runner.world.stuck import gpu_states
from meshrun.runner.world.stuck import status as status_module
from meshrun.runner.world.world import open_world

READINGS = {"busy": 97, "power": 412.4, "SM clock": 1980, "temperature": 61}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(status_module, "running", partial(status_module.running, tmp_path))
    monkeypatch.setattr(gpu_states, "TIMEOUT", 60.0)
    return tmp_path


@pytest.fixture
def run_of(folder: Path) -> Iterator[Any]:
    opened: list[Recorder] = []

    def make(*uuids: str | None, **other: Any) -> None:
        """A run with a rank for each UUID; None: on a CPU."""
        for rank, uuid in enumerate(uuids):
            device = {"device": "CPU"} if uuid is None else {"device": f"GPU {rank}", "gpu": uuid}
            about = {"run": "abc", "rank": rank, "size": len(uuids), "host": "n", "command": "run edges"}
            path = ring.file_of("abc", rank, folder)
            opened.append(Recorder(path, {**about, **device, **other}))

    yield make
    for recorder in opened:
        recorder.close()


def shown(*words: str) -> str:
    done = CliRunner().invoke(status_command, words, standalone_mode=False, catch_exceptions=False)
    assert done.return_value == 0
    return done.output


def test_the_table_has_a_column_for_them(run_of: Any) -> None:
    run_of(nvml.UUID, None)
    with nvml.loaded(nvml.AtWork([])):
        _, heads, first, second, *_ = shown().splitlines()
    assert heads.endswith("  GPU")
    assert first.endswith("  97 %, 412 W, SM clock 1980 MHz, 61 C")
    assert second[heads.index("GPU") :] == "-"


def test_json_has_their_readings(run_of: Any) -> None:
    run_of(None, nvml.UUID)
    with nvml.loaded(nvml.AtWork([])):
        (run,) = json.loads(shown("--json"))
    assert [rank["gpu"] for rank in run["ranks"]] == [None, READINGS]


def test_why_one_tells_nothing_is_said_below(run_of: Any) -> None:
    run_of(nvml.UUID, "GPU-lost")
    with nvml.loaded(nvml.AtWork([])):
        lines = shown().splitlines()
    assert lines[2].endswith(" 61 C")
    assert lines[3].endswith("  ?")
    assert "  the GPU of rank 1 is in an unknown state: NVML, GPU-lost: Not Found" in lines


def test_of_cpus_nothing_is_asked(run_of: Any) -> None:
    run_of(None, None)
    with nvml.loaded(None):
        assert "GPU" not in shown()


@pytest.mark.parametrize("gpu", [3, "", ["a"], None])
def test_a_file_that_has_no_uuid_is_of_a_cpu(run_of: Any, gpu: Any) -> None:
    run_of(None, gpu=gpu)
    with nvml.loaded(None):
        assert "GPU" not in shown()


def test_a_rank_records_its_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module, "file_of", lambda run, rank: ring.file_of(run, rank, folder))
    opened = open_world("cpu", record="run edges")
    (path,) = ring.files_of(folder=folder)
    about = ring.about_of(path)
    assert about is not None
    assert "gpu" not in about
    opened.recorder.close()
    device = Device("cuda", "H200", index=1, uuid=nvml.UUID)
    monkeypatch.setattr(world_module, "bind_device", lambda *_: OnGpu(device))
    opened = open_world("cpu", record="run edges")
    (path,) = ring.files_of(folder=folder)
    about = ring.about_of(path)
    assert about is not None
    assert (about["device"], about["gpu"], about["pid"]) == ("GPU 1", nvml.UUID, os.getpid())
    opened.recorder.close()


class OnGpu(CpuBackend):
    """A CPU that says it is a GPU."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
