"""The metrics of one host's ranks, from their flight recorders and what the kernel and NVML say of them.

Names and units follow Prometheus' conventions: base units, and `_total` for what only grows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from meshrun.runner.processes import PROCESSES
from meshrun.runner.recorder import ring
from meshrun.runner.recorder.process import process_state
from meshrun.runner.recorder.ring import DEVICE_WAIT, WAIT, Recording, Total
from meshrun.runner.world.stuck import gpu_states
from meshrun.runner.world.stuck.gpu_states import GpuState

Kind = Literal["counter", "gauge"]
STATES = ("running", "waiting", "disk", "stopped", "dead", "ended")
EXCHANGE = "exchange"  # messages between pairs of ranks; other operations of communicators are collectives
FILES = {"read": ("read", "read of chunk"), "write": ("write", "write of chunk")}  # phases by direction
# By metric: the reading of `gpu_states`, and its unit.
GPU_READINGS = {
    "gpu_utilization_ratio": ("busy", 0.01),
    "gpu_power_watts": ("power", 1.0),
    "gpu_temperature_celsius": ("temperature", 1.0),
    "gpu_sm_clock_hertz": ("SM clock", 1e6),
}
# The kind of each metric and what it measures. It is served with `meshrun_` before its name, and `_total`
# after a counter's.
METRICS: dict[str, tuple[Kind, str]] = {
    "run_info": ("gauge", "The run with its command and meshrun's version; always 1."),
    "run_ranks": ("gauge", "Ranks of the run, on all hosts."),
    "run_start_time_seconds": ("gauge", "When the ranks were connected, in seconds since the epoch."),
    "rank_info": ("gauge", "A rank with its device; always 1."),
    "rank_state": ("gauge", "1 for the state of the rank's process, 0 for the others."),
    "rank_idle_seconds": ("gauge", "Time since the rank entered or left an operation."),
    "process_cpu_seconds": ("counter", "Processor time of the rank's process, all threads."),
    "process_resident_memory_bytes": ("gauge", "Resident memory of the rank's process."),
    "steps": ("counter", "Time steps taken."),
    "steps_planned": ("gauge", "Time steps that this run is to take."),
    "phases": ("counter", "Phases, steps and stages of chunks begun."),
    "phase_seconds": ("counter", "Time in phases, of which one may be inside another."),
    "phase_bytes": ("counter", "Bytes that phases read and write."),
    "file_bytes": ("counter", "Bytes read from and written to files."),
    "file_seconds": ("counter", "Time in reads and writes of files."),
    "communication_operations": ("counter", "Collectives, exchanges and waits begun."),
    "communication_seconds": ("counter", "Time in these operations."),
    "communication_bytes": ("counter", "Bytes that they send and receive."),
    "messages": ("counter", "Messages that were posted."),
    "wait_seconds": ("counter", "Time in waits for messages, in collectives, and in waits for the device."),
    "gpu_utilization_ratio": ("gauge", "Share of the last second in which a kernel ran."),
    "gpu_power_watts": ("gauge", "Power of the rank's GPU."),
    "gpu_temperature_celsius": ("gauge", "Temperature of the rank's GPU."),
    "gpu_sm_clock_hertz": ("gauge", "Clock of the GPU's multiprocessors."),
}


@dataclass
class Family:
    """All samples of a metric.

    Parameters
    ----------
    name: without the `_total` of a counter.
    kind: "counter" or "gauge".
    help: what the metric measures.
    samples: values by their labels, which all have the same names.
    """

    name: str
    kind: Kind
    help: str
    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)


@dataclass(frozen=True)
class RankReading:
    """What is known of one rank. state: one of STATES. cpu: seconds of its process; None if it has ended.
    memory: bytes; likewise. gpu: None if it has none."""

    rank: int
    recording: Recording
    state: str
    cpu: float | None = None
    memory: float | None = None
    gpu: GpuState | None = None


@dataclass
class HostRanks:
    """The ranks of one run on this host.

    Parameters
    ----------
    run_id: of the run.
    ranks: numbers of the ranks that are here.
    gpus: UUIDs of their GPUs, by rank.
    folder: of the recorders.
    """

    run_id: str
    ranks: Iterable[int]
    gpus: Mapping[int, str] = field(default_factory=dict)
    folder: Path = ring.FOLDER
    _last: dict[int, Recording] = field(default_factory=dict)

    def read(self) -> list[RankReading]:
        """Return what is known of each rank; one that has ended keeps what was read last."""
        readings = []
        gpus = gpu_states.read_states(self.gpus)
        for rank in self.ranks:
            recording = ring.read(ring.file_of(self.run_id, rank, self.folder))
            if recording is None:
                if rank in self._last:
                    readings.append(RankReading(rank, self._last[rank], "ended"))
                continue
            self._last[rank] = recording
            pid = recording.about["pid"]
            state = process_state(pid, recording.about.get("start"))
            cpu, memory = process_usage(pid) if state != "dead" else (None, None)
            readings.append(RankReading(rank, recording, state, cpu, memory, gpus.get(rank)))
        return readings


def process_usage(pid: int, processes: Path = PROCESSES) -> tuple[float | None, float | None]:
    """Return a process's processor seconds, of all its threads, and its resident bytes; None if it has
    ended."""
    try:
        fields = (processes / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
    except (OSError, ValueError, IndexError):
        return None, None
    return ticks / os.sysconf("SC_CLK_TCK"), float(pages * os.sysconf("SC_PAGE_SIZE"))


def waits(recording: Recording) -> dict[str, float]:
    """Return the seconds that a rank has waited so far, for messages, for collectives and for its device.

    A collective counts from its entry until it is left: the wait for the last rank, and the transfer.
    """
    communication = recording.communication
    collectives = [one.seconds for name, one in communication.items() if name not in (WAIT, EXCHANGE)]
    none = Total(0, 0.0)
    return {
        "messages": communication.get(WAIT, none).seconds,
        "collectives": sum(collectives),
        "device": recording.totals.get(DEVICE_WAIT, none).seconds,
    }


def steps_taken(recording: Recording) -> int:
    """Return the time steps that a rank has taken."""
    return sum(total.steps for total in recording.totals.values())


@dataclass
class FamilyTable:
    """Families by name, to which samples are added."""

    made: dict[str, Family] = field(default_factory=dict)

    def add(self, name: str, value: float | None, **labels: str) -> None:
        """Add a sample of one of METRICS; None: there is none."""
        if value is not None:
            family = self.made.setdefault(name, Family(name, *METRICS[name]))
            family.samples.append((labels, float(value)))


def families(readings: Iterable[RankReading]) -> list[Family]:
    """Return the metrics of ranks. Metrics without a sample are left out."""
    table = FamilyTable()
    for reading in readings:
        _add_process(table, reading)
        _add_work(table, reading)
        _add_communication(table, reading)
        if isinstance(reading.gpu, Mapping):
            _add_gpu(table, str(reading.rank), reading.gpu)
    return list(table.made.values())


def plain(found: Iterable[Family]) -> dict[str, list[dict[str, Any]]]:
    """Return the samples of families as values for JSON, by name: their labels, and "value"."""
    return {family.name: [{**labels, "value": value} for labels, value in family.samples] for family in found}


def _add_process(table: FamilyTable, reading: RankReading) -> None:
    """Add who a rank is, and how its process is."""
    about, operations, rank = reading.recording.about, reading.recording.operations, str(reading.rank)
    device, gpu = str(about["device"]), str(about.get("gpu", ""))
    table.add("rank_info", 1, rank=rank, device=device, gpu_uuid=gpu)
    for state in STATES:
        table.add("rank_state", state == reading.state, rank=rank, state=state)
    if reading.state != "ended":
        ages = [item.entered if item.left is None else item.left for item in operations]
        idle = max(min(ages, default=reading.recording.age), 0.0)
        table.add("rank_idle_seconds", idle, rank=rank)
    table.add("process_cpu_seconds", reading.cpu, rank=rank)
    table.add("process_resident_memory_bytes", reading.memory, rank=rank)


def _add_work(table: FamilyTable, reading: RankReading) -> None:
    """Add a rank's steps, its phases and stages, and its reads and writes of files."""
    recording, rank = reading.recording, str(reading.rank)
    if "step" in recording.totals:
        table.add("steps", steps_taken(recording), rank=rank)
    if recording.planned:
        table.add("steps_planned", recording.planned, rank=rank)
    for name, total in recording.totals.items():
        if name != DEVICE_WAIT:
            table.add("phases", total.entered, rank=rank, phase=name)
            table.add("phase_seconds", total.seconds, rank=rank, phase=name)
            table.add("phase_bytes", total.moved, rank=rank, phase=name)
    for direction, names in FILES.items():
        if totals := [recording.totals[name] for name in names if name in recording.totals]:
            table.add("file_bytes", sum(one.moved for one in totals), rank=rank, direction=direction)
            table.add("file_seconds", sum(one.seconds for one in totals), rank=rank, direction=direction)


def _add_communication(table: FamilyTable, reading: RankReading) -> None:
    """Add what a rank exchanges with others, and how long it waits."""
    recording, rank = reading.recording, str(reading.rank)
    for name, total in recording.communication.items():
        table.add("communication_operations", total.entered, rank=rank, operation=name)
        table.add("communication_seconds", total.seconds, rank=rank, operation=name)
        table.add("communication_bytes", total.moved, rank=rank, operation=name)
    counts = recording.messages.values()
    table.add("messages", sum(sent for sent, _ in counts), rank=rank, direction="sent")
    table.add("messages", sum(received for _, received in counts), rank=rank, direction="received")
    for reason, seconds in waits(recording).items():
        table.add("wait_seconds", seconds, rank=rank, reason=reason)


def _add_gpu(table: FamilyTable, rank: str, gpu: Mapping[str, float]) -> None:
    """Add the readings of a rank's GPU; those that NVML does not report are absent."""
    for metric, (reading, unit) in GPU_READINGS.items():
        if reading in gpu:
            table.add(metric, gpu[reading] * unit, rank=rank)
