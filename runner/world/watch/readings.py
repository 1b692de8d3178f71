"""Read what the ranks of this host have done so far, from their recorders, /proc and NVML."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshrun.runner.errors import UserError
from meshrun.runner.processes import PROCESSES
from meshrun.runner.recorder import ring
from meshrun.runner.recorder.process import process_state
from meshrun.runner.recorder.ring import Recording
from meshrun.runner.system.counters.processor import stolen_seconds
from meshrun.runner.system.nvml import handle
from meshrun.runner.world.metrics.families import FILES, steps_taken, waits

MAJOR_FAULT = 1e-4  # seconds to read a page that was swapped out, from a fast disk
OPERATIONS = 1  # records to read of a rank, of which only the totals are needed
INTERVAL = 0.99  # seconds between two looks; a little less, as these are taken every half second


@dataclass(frozen=True, slots=True)
class RankCounts:
    """What one rank has done so far, in seconds as in `judge.RankInterval`. at: on the monotonic clock of its
    host. clock, memory_clock: of its GPU at this moment, MHz; 0 if not known."""

    at: float
    steps: int
    waited: float
    files: float
    lost: Mapping[str, float] = field(default_factory=dict)
    clock: float = 0.0
    memory_clock: float = 0.0


@dataclass
class HostReadings:
    """The ranks of one run on this host.

    Parameters
    ----------
    run_id: of the run.
    gpus: UUIDs of the ranks' GPUs, by rank.
    folder: of the recorders.
    processes: /proc.
    """

    run_id: str
    gpus: Mapping[int, str] = field(default_factory=dict)
    folder: Path = ring.FOLDER
    processes: Path = PROCESSES
    _pids: dict[int, tuple[int, int | None]] = field(default_factory=dict)  # process and its start, by rank
    _stopped: dict[int, float] = field(default_factory=dict)
    _shared: dict[int, float] = field(default_factory=dict)
    _polled: float = 0.0
    _read: float = 0.0

    def poll(self) -> None:
        """Count for how long processes are stopped, which the kernel does not; call it about ten times a
        second."""
        now = time.monotonic()
        since, self._polled = min(now - self._polled, 1.0) if self._polled else 0.0, now
        for rank, (pid, start) in self._pids.items():
            if process_state(pid, start, self.processes) == "stopped":
                self._stopped[rank] = self._stopped.get(rank, 0.0) + since

    def is_due(self) -> bool:
        """Whether it is time for the next look."""
        return time.monotonic() - self._read >= INTERVAL

    def read(self) -> dict[int, RankCounts]:
        """Return what each rank has done so far; ranks that have ended are left out."""
        now = time.monotonic()
        since, self._read = now - self._read if self._read else 0.0, now
        recordings: dict[int, Recording] = {}
        for path in ring.files_of(self.run_id, self.folder):
            if recording := ring.read(path, last=OPERATIONS):
                recordings[recording.about["rank"]] = recording
        self._pids = {rank: (one.about["pid"], one.about.get("start")) for rank, one in recordings.items()}
        return {rank: self._counts(rank, one, since) for rank, one in recordings.items()}

    def _counts(self, rank: int, recording: Recording, since: float) -> RankCounts:
        pid, waited = recording.about["pid"], waits(recording)
        steps = steps_taken(recording)
        if not steps:  # of a program or a job without time steps: what the ranks do together
            steps = sum(total.entered for total in recording.communication.values())
        files = [
            recording.totals[name] for names in FILES.values() for name in names if name in recording.totals
        ]
        clock, memory_clock = self._gpu(rank, pid, since)
        return RankCounts(
            recording.about["began"] / 1e9 + recording.age,
            steps,
            waited["messages"] + waited["collectives"],
            sum(total.seconds for total in files),
            {
                "queued": queued_seconds(pid, self.processes),
                "stopped": self._stopped.get(rank, 0.0),
                "stolen": _stolen(pid, self.processes),
                "shared": self._shared.get(rank, 0.0),
                "faults": MAJOR_FAULT * major_faults(pid, self.processes),
            },
            clock,
            memory_clock,
        )

    def _gpu(self, rank: int, pid: int, since: float) -> tuple[float, float]:
        """Return the clocks of a rank's GPU, MHz, and count for how long other processes have used it."""
        if rank not in self.gpus:
            return 0.0, 0.0
        try:
            nvml, gpu = handle(self.gpus[rank])
        except UserError:  # the summary of a run says what its GPUs are; here, nothing is known of them
            return 0.0, 0.0
        clocks = [0.0, 0.0]
        for index, name in enumerate((nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM)):
            with suppress(nvml.NVMLError):
                clocks[index] = float(nvml.nvmlDeviceGetClockInfo(gpu, name))
        self._shared[rank] = self._shared.get(rank, 0.0) + since * others_share(nvml, gpu, pid)
        return clocks[0], clocks[1]


def others_share(nvml: Any, gpu: Any, pid: int) -> float:
    """Return the share of the last second in which other processes than `pid` have used a GPU.

    0 if NVML does not list the process itself: in a container, it has another number, or none is listed.
    """
    with suppress(nvml.NVMLError):
        since = int((time.time() - 1) * 1e6)
        samples = nvml.nvmlDeviceGetProcessUtilization(gpu, since)
        used: dict[int, float] = {}
        for sample in samples:
            used[sample.pid] = max(used.get(sample.pid, 0.0), sample.smUtil / 100)
        if pid in used:
            return min(sum(share for other, share in used.items() if other != pid), 1.0)
    return 0.0


def queued_seconds(pid: int, processes: Path = PROCESSES) -> float:
    """Return for how long the main thread of a process was ready to run and had no processor, in seconds; 0
    if the kernel does not count it."""
    try:
        return int((processes / str(pid) / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def major_faults(pid: int, processes: Path = PROCESSES) -> int:
    """Return how often a process has waited for memory to be read from a disk."""
    try:
        return int((processes / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[9])
    except (OSError, ValueError, IndexError):
        return 0


def _stolen(pid: int, processes: Path) -> float:
    try:
        return stolen_seconds(os.sched_getaffinity(pid), processes)
    except OSError:  # it has ended
        return 0.0
