"""The metrics of one host's ranks, from their flight recorders and what the kernel and NVML say of them.

Names and units follow Prometheus' conventions: base units, and `_total` for what only grows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

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
MEGA = 1e6


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

    def add(self, name: str, kind: Kind, help: str, value: float | None, **labels: str) -> None:
        """Add a sample; None: there is none."""
        if value is not None:
            self.made.setdefault(name, Family(name, kind, help)).samples.append((labels, float(value)))

    def gauge(self, name: str, help: str, value: float | None, **labels: str) -> None:
        self.add(name, "gauge", help, value, **labels)

    def counter(self, name: str, help: str, value: float | None, **labels: str) -> None:
        self.add(name, "counter", help, value, **labels)


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


def _add_process(table: FamilyTable, reading: RankReading) -> None:
    """Add who a rank is, and how its process is."""
    about, operations, rank = reading.recording.about, reading.recording.operations, str(reading.rank)
    what = "A rank with its device; always 1."
    gpu = str(about.get("gpu", ""))
    table.gauge("rank_info", what, 1.0, rank=rank, device=str(about["device"]), gpu_uuid=gpu)
    what = "1 for the state that the rank's process is in, 0 for the others."
    for state in STATES:
        table.gauge("rank_state", what, state == reading.state, rank=rank, state=state)
    if reading.state != "ended":
        ages = [item.entered if item.left is None else item.left for item in operations]
        idle = max(min(ages, default=reading.recording.age), 0.0)
        table.gauge("rank_idle_seconds", "Time since the rank entered or left an operation.", idle, rank=rank)
    what = "Processor time of the rank's process, all threads."
    table.counter("process_cpu_seconds", what, reading.cpu, rank=rank)
    what = "Resident memory of the rank's process."
    table.gauge("process_resident_memory_bytes", what, reading.memory, rank=rank)


def _add_work(table: FamilyTable, reading: RankReading) -> None:
    """Add a rank's steps, its phases and stages, and its reads and writes of files."""
    recording, rank = reading.recording, str(reading.rank)
    if "step" in recording.totals:
        table.counter("steps", "Time steps taken.", steps_taken(recording), rank=rank)
    if recording.planned:
        table.gauge("steps_planned", "Time steps that this run is to take.", recording.planned, rank=rank)
    for name, total in recording.totals.items():
        if name != DEVICE_WAIT:
            labels = {"rank": rank, "phase": name}
            table.counter("phases", "Phases, steps and stages of chunks begun.", total.entered, **labels)
            table.counter("phase_seconds", "Time in phases; they may be nested.", total.seconds, **labels)
            table.counter("phase_bytes", "Bytes that phases read and write.", total.moved, **labels)
    for direction, names in FILES.items():
        if totals := [recording.totals[name] for name in names if name in recording.totals]:
            labels = {"rank": rank, "direction": direction}
            moved, seconds = sum(one.moved for one in totals), sum(one.seconds for one in totals)
            table.counter("file_bytes", "Bytes read from and written to files.", moved, **labels)
            table.counter("file_seconds", "Time in reads and writes of files.", seconds, **labels)


def _add_communication(table: FamilyTable, reading: RankReading) -> None:
    """Add what a rank exchanges with others, and how long it waits."""
    recording, rank = reading.recording, str(reading.rank)
    for name, total in recording.communication.items():
        labels = {"rank": rank, "operation": name}
        table.counter("communication_operations", "Operations of communicators.", total.entered, **labels)
        table.counter("communication_seconds", "Time in these operations.", total.seconds, **labels)
        table.counter("communication_bytes", "Bytes that they send and receive.", total.moved, **labels)
    sent = sum(count for count, _ in recording.messages.values())
    received = sum(count for _, count in recording.messages.values())
    for direction, count in (("sent", sent), ("received", received)):
        table.counter("messages", "Messages that were posted.", count, rank=rank, direction=direction)
    what = "Time in which the rank waits for messages, in collectives, or for its device."
    for reason, seconds in waits(recording).items():
        table.counter("wait_seconds", what, seconds, rank=rank, reason=reason)


def _add_gpu(table: FamilyTable, rank: str, gpu: Mapping[str, float]) -> None:
    """Add the readings of a rank's GPU; those that NVML does not report are absent."""
    if "busy" in gpu:
        what = "Share of the last second in which a kernel ran."
        table.gauge("gpu_utilization_ratio", what, gpu["busy"] / 100, rank=rank)
    table.gauge("gpu_power_watts", "Power of the rank's GPU.", gpu.get("power"), rank=rank)
    table.gauge("gpu_temperature_celsius", "Its temperature.", gpu.get("temperature"), rank=rank)
    if "SM clock" in gpu:
        table.gauge("gpu_sm_clock_hertz", "Clock of its multiprocessors.", gpu["SM clock"] * MEGA, rank=rank)
