"""The metrics of a host's ranks: what recorders say is served, and both of Prometheus' formats are valid."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from meshrun.runner.recorder import ring
from meshrun.runner.recorder.ring import DEVICE_WAIT, WAIT, Recorder
from meshrun.runner.world.metrics import families as module
from meshrun.runner.world.metrics.endpoint_process import RunMetrics
from meshrun.runner.world.metrics.families import HostRanks, families
from meshrun.runner.world.metrics.labels import scheduler_labels

ABOUT = {"run": "abc", "size": 4, "host": "n1", "device": "GPU 0", "gpu": "GPU-1", "command": 'run "edges"\n'}
LABELS = {"run": "abc", "host": "n1", "slurm_job": "17_3"}


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(ring.file_of("abc", 2, tmp_path), {**ABOUT, "rank": 2})
    yield recorder
    recorder.close()


def served(folder: Path, host: HostRanks | None = None) -> RunMetrics:
    return RunMetrics(host or HostRanks("abc", [2, 3], folder=folder), LABELS, 4, "1.2")


def values(folder: Path, host: HostRanks | None = None) -> dict[str, float]:
    """Return the samples of the text format, read by Prometheus' own parser: `name{label,...}` without the
    labels of the run."""
    registry = CollectorRegistry()
    registry.register(served(folder, host))
    found = {}
    for family in parse_text(generate_latest(registry).decode()):
        for sample in family.samples:
            assert sample.labels.items() >= LABELS.items()
            words = [value for name, value in sorted(sample.labels.items()) if name not in LABELS]
            found[f"{sample.name}{{{','.join(words)}}}"] = sample.value
    return found


def work(recorder: Recorder) -> None:
    """Record two steps with an exchange, a collective, and a read and a write of files."""
    world = recorder.group("world", range(4))
    recorder.plan_steps(10)
    for _ in range(2):
        step = recorder.enter(recorder.name("step"), 0, 0, 1)
        recorder.count(world, 3, 1, 2)
        recorder.leave(recorder.enter(recorder.name("exchange"), 64, world))
        waiting = recorder.enter(recorder.name(WAIT), 0, world)
        time.sleep(0.01)
        recorder.leave(waiting)
        recorder.leave(step, 5)
    recorder.leave(recorder.enter(recorder.name("all_reduce"), 8, world, 1))
    recorder.leave(recorder.enter(recorder.name(DEVICE_WAIT)))
    recorder.leave(recorder.enter(recorder.name("read"), 1000))
    recorder.leave(recorder.enter(recorder.name("read of chunk"), 24, 0, 1))
    recorder.leave(recorder.enter(recorder.name("write"), 500))


def test_steps_waits_messages_and_files_are_served(own: Recorder, tmp_path: Path) -> None:
    work(own)
    found = values(tmp_path)
    assert found["meshrun_run_ranks{}"] == 4
    assert found["meshrun_steps_total{2}"] == 10
    assert found["meshrun_steps_planned{2}"] == 10
    assert found["meshrun_phases_total{step,2}"] == 2
    assert found["meshrun_phase_seconds_total{step,2}"] >= 0.02
    assert found["meshrun_communication_operations_total{exchange,2}"] == 2
    assert found["meshrun_communication_bytes_total{exchange,2}"] == 128
    assert found["meshrun_messages_total{sent,2}"] == 2
    assert found["meshrun_messages_total{received,2}"] == 4
    assert found["meshrun_file_bytes_total{read,2}"] == 1024
    assert found["meshrun_file_bytes_total{write,2}"] == 500
    waited = {reason: found[f"meshrun_wait_seconds_total{{2,{reason}}}"] for reason in ("messages", "device")}
    assert 0.02 <= waited["messages"] <= found["meshrun_phase_seconds_total{step,2}"]
    assert 0 < waited["device"] < 0.02
    assert found["meshrun_rank_state{2,running}"] == 1
    assert found["meshrun_process_cpu_seconds_total{2}"] > 0
    assert found["meshrun_process_resident_memory_bytes{2}"] > 1e6
    assert not any(name.endswith("{3}") for name in found)  # which has no recorder


def test_openmetrics_is_valid_and_names_follow_its_rules(own: Recorder, tmp_path: Path) -> None:
    work(own)
    registry = CollectorRegistry()
    registry.register(served(tmp_path))
    text = openmetrics_text(registry).decode()
    parsed = list(parse_openmetrics(text))  # raises ValueError for what the standard forbids
    assert text.endswith("# EOF\n")
    assert len({family.name for family in parsed}) == len(parsed)
    for family in parsed:
        assert family.documentation.endswith(".")
        assert re.fullmatch(r"meshrun_[a-z_]+", family.name)
        assert not re.search(r"millisec|_ms$|_mb$|percent", family.name)  # base units
        assert len({tuple(sorted(sample.labels)) for sample in family.samples}) == 1
    (run,) = [family for family in parsed if family.name == "meshrun_run_info"]
    assert run.samples[0].labels["command"] == 'run "edges"\n'


def test_a_counter_does_not_fall_when_an_open_operation_ends(
    own: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = own.enter(own.name("read"))
    metrics = served(tmp_path)

    def seconds() -> float:
        (found,) = [one for one in metrics.read() if one.name == "meshrun_phase_seconds"]
        return found.samples[0][1]

    with monkeypatch.context() as late:
        late.setattr(ring, "_now", lambda: time.monotonic_ns() + 10**9)
        first = seconds()
    own.leave(entry)
    assert first > 1
    assert seconds() == first


def test_a_rank_that_has_ended_keeps_its_counters(own: Recorder, tmp_path: Path) -> None:
    work(own)
    host = HostRanks("abc", [2], folder=tmp_path)
    before = values(tmp_path, host)
    own.close()
    after = values(tmp_path, host)
    assert (before["meshrun_rank_state{2,ended}"], after["meshrun_rank_state{2,ended}"]) == (0, 1)
    assert after["meshrun_steps_total{2}"] == before["meshrun_steps_total{2}"]
    assert "meshrun_rank_idle_seconds{2}" not in after


@pytest.mark.parametrize(
    ("number", "state"), [(signal.SIGSTOP, "stopped"), (signal.SIGKILL, "dead"), (None, "waiting")]
)
def test_a_rank_that_is_stopped_or_killed_is_told(
    number: signal.Signals | None, state: str, tmp_path: Path
) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom meshrun.runner.recorder.ring import Recorder\n"
        f"Recorder(Path({str(ring.file_of('abc', 2, tmp_path))!r}), { ({**ABOUT, 'rank': 2})!r})\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if number is not None:
            process.send_signal(number)
        until = time.monotonic() + 20
        found: dict[str, float] = {}
        while not found.get(f"meshrun_rank_state{{2,{state}}}") and time.monotonic() < until:
            found = values(tmp_path)
            time.sleep(0.02)
        process.kill()
    assert [name for name, value in found.items() if "rank_state" in name and value] == [
        f"meshrun_rank_state{{2,{state}}}"
    ]
    assert ("meshrun_process_cpu_seconds_total{2}" in found) == (state != "dead")


def test_gpus_are_served_in_base_units(
    own: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.plan_steps(1)
    state = {"busy": 40.0, "power": 512.5, "SM clock": 1980.0, "temperature": 61.0}
    monkeypatch.setattr(module.gpu_states, "read_states", lambda uuids: dict.fromkeys(uuids, state))
    found = values(tmp_path, HostRanks("abc", [2], {2: "GPU-1"}, tmp_path))
    assert {name: value for name, value in found.items() if "gpu" in name} == {
        "meshrun_gpu_utilization_ratio{2}": 0.4,
        "meshrun_gpu_power_watts{2}": 512.5,
        "meshrun_gpu_sm_clock_hertz{2}": 1.98e9,
        "meshrun_gpu_temperature_celsius{2}": 61.0,
    }
    monkeypatch.setattr(module.gpu_states, "read_states", lambda uuids: dict.fromkeys(uuids, "no NVML"))
    assert not any("gpu" in one.name for one in families(HostRanks("abc", [2], {2: "G"}, tmp_path).read()))


def test_jobs_of_schedulers_are_labels(tmp_path: Path) -> None:
    none = tmp_path / "none"
    assert scheduler_labels({}, none) == {}
    assert scheduler_labels({"SLURM_JOB_ID": "17"}, none) == {"slurm_job": "17"}
    task = {"SLURM_JOB_ID": "20", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}
    assert scheduler_labels(task, none) == {"slurm_job": "17_3"}
    (tmp_path / "namespace").write_text("science\n")
    pods = {
        "heat-launcher": "heat",
        "heat-launcher-x7k2p": "heat",
        "heat-worker-12": "heat",
        "wave-0": "wave",
    }
    for pod, job in {**pods, "alone": "alone"}.items():
        assert scheduler_labels({}, tmp_path, pod) == {
            "kubernetes_job": job,
            "kubernetes_pod": pod,
            "kubernetes_namespace": "science",
        }
    assert (
        scheduler_labels({"K_MPI_JOB_ROLE": "worker"}, none)["kubernetes_pod"]
        == (os.uname().nodename.partition(".")[0])
    )
