"""What the GPUs of a stuck run do, by NVML or by one that does not answer."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import nvml
import pytest
from stalled_ranks import COMPUTING, WAITING, setting

from meshrun.runner.recorder import process
from meshrun.runner.recorder.snapshot import from_json, to_json
from meshrun.runner.world import helper_process
from meshrun.runner.world.run_status import RunDirectory
from meshrun.runner.world.stuck import gpu_states, monitor, monitor_process
from meshrun.runner.world.stuck.monitor import HostMonitor
from meshrun.runner.world.stuck.monitor_process import Lead

BUSY = {"busy": 100.0, "power": 412.4, "SM clock": 1980.0, "temperature": 61.0}
IDLE = {"busy": 0.0, "power": 118.0, "SM clock": 345.0, "temperature": 33.0}


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        ((), {"busy": 97, "power": 412.4, "SM clock": 1980, "temperature": 61}),
        (("busy", "power"), {"SM clock": 1980, "temperature": 61}),
        (("busy", "power", "clock", "temperature"), "NVML reports nothing"),
        (("handle",), f"NVML, {nvml.UUID}: NotSupported"),
        (("init",), "NVML: NotSupported"),
    ],
)
def test_readings(
    failing: tuple[str, ...], expected: dict[str, float] | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_states, "TIMEOUT", 60.0)
    with nvml.loaded(nvml.AtWork([], {name: nvml.NotSupported() for name in failing})):
        assert gpu_states.read_states({3: nvml.UUID}) == {3: expected}


def test_a_driver_that_does_not_answer_does_not_hold_up_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a host's GPUs may be lost: they have one time-out together."""
    monkeypatch.setattr(gpu_states, "TIMEOUT", 1.0)
    over = threading.Event()

    def read(uuid: str) -> dict[str, float]:
        if uuid == "lost":
            over.wait()
        return BUSY

    monkeypatch.setattr(gpu_states, "read_state", read)
    uuids = dict.fromkeys(range(1, 31), "lost")
    begin = time.monotonic()
    late = dict.fromkeys(uuids, "NVML has not answered within 1 s")
    assert gpu_states.read_states({0: "fine", **uuids}) == {0: BUSY, **late}
    assert time.monotonic() - begin < len(uuids) * gpu_states.TIMEOUT
    over.set()


def test_a_host_answers_in_time_although_neither_python_nor_a_gpu_does() -> None:
    """Otherwise all of its ranks would count as silent."""
    assert process.ANSWER_TIMEOUT + gpu_states.TIMEOUT < monitor_process.ANSWER_TIMEOUT


def test_the_process_that_asks_finds_the_packages_of_the_rank(tmp_path: Path) -> None:
    """It is started without packages, and NVML's bindings are one."""
    (tmp_path / "bindings.py").write_text("gpus = {}")
    asks = (
        "from meshrun.runner.world.stuck import monitor_process as process\n"
        "def watch(look, monitor):\n"
        "    import bindings\n"
        "    print(monitor.gpus | bindings.gpus)\n"
        "process.watch = watch\n"
        "process.main()"
    )
    words = helper_process.command(monitor_process.__name__)
    words[-1] = words[-1].partition(" from meshrun.runner.world")[0] + f"\n{asks}"
    given = {**setting(RunDirectory(tmp_path)), "rank": 0, "hosts": {}, "token": "", "address": ""}
    given |= {"gpus": {"3": "GPU-a"}, "path": [str(tmp_path)]}
    done = subprocess.run(words, input=json.dumps(given) + "\n", capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "{3: 'GPU-a'}"


def test_a_line_for_those_that_do_the_same() -> None:
    ranks = [replace(WAITING, rank=rank, gpu=gpu) for rank, gpu in enumerate(
        [BUSY, {**BUSY, "busy": 99.0, "power": 390.0}, IDLE, "GPU is lost", {"busy": 40.0}, {"power": 3.0},
         BUSY, None]
    )]  # fmt: skip
    assert gpu_states.sentences(ranks) == [
        "the GPUs of ranks 0-1, 6 are busy: 99 to 100 %, 390 to 412 W, SM clock 1980 MHz, 61 C",
        "the GPU of rank 2 is idle: 0 %, 118 W, SM clock 345 MHz, 33 C",
        "the GPU of rank 3 is in an unknown state: GPU is lost",
        "the GPU of rank 4 is busy in part: 40 %",
        "the GPU of rank 5 is in an unknown state: 3 W",
    ]
    assert gpu_states.sentences([WAITING, COMPUTING]) == []


@pytest.mark.parametrize("gpu", [None, {}, BUSY, "GPU is lost", ""])
def test_the_state_goes_to_another_host(gpu: dict[str, float] | str | None) -> None:
    sent = replace(WAITING, gpu=gpu)
    assert from_json(json.loads(json.dumps(to_json(sent)))) == sent


@pytest.mark.parametrize("gpu", [3, [1], {"busy": "very"}, {"busy": None}, 0, []])
def test_what_is_no_state_is_refused(gpu: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        from_json({**json.loads(json.dumps(to_json(WAITING))), "gpu": gpu})


def test_a_stall_is_reported_with_what_the_gpus_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(monitor, "snapshots", lambda _: [WAITING, COMPUTING])
    monkeypatch.setattr(monitor.ring, "files_of", lambda *_: [])
    monkeypatch.setattr(gpu_states, "TIMEOUT", 60.0)
    states = {"GPU-a": IDLE, "GPU-b": BUSY}
    monkeypatch.setattr(gpu_states, "read_state", states.__getitem__)
    monkeypatch.setattr(HostMonitor, "progress", lambda _: {0: 9, 1: 8})
    watched = HostMonitor("abc", gpus={0: "GPU-a", 1: "GPU-b"})
    lead = Lead(setting(RunDirectory(tmp_path), seconds=0.0), watched, None)
    lead.look()
    assert lead.look()
    lines = capsys.readouterr().err.splitlines()
    assert lines[2:4] == [
        "meshrun:   the GPU of rank 0 is idle: 0 %, 118 W, SM clock 345 MHz, 33 C",
        "meshrun:   the GPU of rank 1 is busy: 100 %, 412 W, SM clock 1980 MHz, 61 C",
    ]
