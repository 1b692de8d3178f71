"""The runs of this user on this host, from their flight recorders: for `meshrun status`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshrun.runner.recorder import process, ring
from meshrun.runner.recorder.ring import Operation
from meshrun.runner.recorder.snapshot import RankSnapshot, snapshots
from meshrun.runner.report.units import counted
from meshrun.runner.world.metrics.families import HostRanks, RankReading
from meshrun.runner.world.stuck import gpu_states
from meshrun.runner.world.stuck.explain import explain, waits_for

CALM = 1.0  # seconds without an operation on any rank, after which it is told who waits for whom


@dataclass(frozen=True)
class RunState:
    """One run. about: of its first rank here. ranks: those on this host. age: seconds since it began."""

    about: Mapping[str, Any]
    ranks: Sequence[RankSnapshot]
    age: float
    folder: Path

    @property
    def run_id(self) -> str:
        return str(self.about["run"])

    @property
    def command(self) -> str:
        return str(self.about["command"])

    @property
    def size(self) -> int:
        return int(self.about["size"])

    @property
    def remarks(self) -> list[str]:
        """What to say below the table: ranks that are elsewhere, and why nothing progresses."""
        here = {rank.rank for rank in self.ranks}
        elsewhere = self.size - len(here)
        remarks = gpu_states.sentences([rank for rank in self.ranks if isinstance(rank.gpu, str)])
        if elsewhere:
            are = "has ended or is on another host" if elsewhere == 1 else "have ended or are on other hosts"
            remarks.append(f"{counted(elsewhere, 'more rank')} {are} (meshrun status there)")
        bad = any(rank.state in ("stopped", "dead") for rank in self.ranks)
        is_calm = min(rank.idle for rank in self.ranks) > CALM
        if not elsewhere and (bad or (is_calm and waits_for({rank.rank: rank for rank in self.ranks}))):
            remarks += explain(self.ranks, self.size).sentences
        return remarks

    def read_ranks(self) -> list[RankReading]:
        """Return what the run's metrics are made of: the readings of its ranks on this host."""
        gpus = {rank.rank: rank.gpu for rank in self.ranks}
        readings = HostRanks(self.run_id, [rank.rank for rank in self.ranks], folder=self.folder).read()
        return [replace(one, gpu=gpus[one.rank]) for one in readings]

    def last_operations(self, rank: int, count: int) -> list[Operation]:
        """Return a rank's last operations, the latest first."""
        found = ring.read(ring.file_of(self.run_id, rank, self.folder))
        return found.operations[: -count - 1 : -1] if found else []


def running(folder: Path = ring.FOLDER) -> list[RunState]:
    """Return this user's runs on this host, the oldest first, with the states of their GPUs.

    Those of other namespaces of processes, such as a container that shares /dev/shm, are left out: their
    processes cannot be asked from here.
    """
    process.remove_stale(folder)
    paths: dict[str, list[Path]] = {}
    gpus: dict[str, dict[int, str]] = {}
    about: dict[str, Mapping[str, Any]] = {}
    here = ring.namespace()
    for path in ring.files_of(folder=folder):
        found = ring.about_of(path)
        if found and found["namespace"] == here:
            paths.setdefault(found["run"], []).append(path)
            about.setdefault(found["run"], found)
            if isinstance(uuid := found.get("gpu"), str) and uuid:
                gpus.setdefault(found["run"], {})[found["rank"]] = uuid
    runs = [
        RunState(about[run], ranks, time.time() - about[run]["time"], folder)
        for run, files in paths.items()
        if (ranks := _with_gpus(snapshots(files), gpus.get(run, {})))
    ]
    return sorted(runs, key=lambda run: -run.age)


def _with_gpus(ranks: Sequence[RankSnapshot], uuids: Mapping[int, str]) -> list[RankSnapshot]:
    states = gpu_states.read_states(uuids)
    return [replace(one, gpu=states.get(one.rank)) for one in ranks]
