"""Watch the recorders of this host's ranks, from a process of their own that runs when they do not."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshrun.runner.recorder import ring
from meshrun.runner.recorder.process import process_state
from meshrun.runner.recorder.snapshot import RankSnapshot, snapshots
from meshrun.runner.world import helper_process
from meshrun.runner.world.run_status import RunLines
from meshrun.runner.world.stuck import gpu_states, nccl_ras
from meshrun.runner.world.watch.readings import HostReadings
from meshrun.runner.world.watchdog.channel import LOOPBACK, host_addresses, interface_address

if TYPE_CHECKING:
    from meshrun.runner.system.launcher import Started
    from meshrun.runner.world.world import World

STALL_TIMEOUT = 300.0  # seconds without progress
_KEPT: list[subprocess.Popen[str]] = []  # their pipes close when this process ends, which ends them
WATCHING: list[subprocess.Popen[str]] = []  # those of them that name slow parts
PROCESS = "meshrun.runner.world.stuck.monitor_process"


@dataclass
class HostMonitor:
    """The recorders of this host's ranks of one run. gpus: UUIDs of their GPUs, by rank. readings: of the
    same ranks, to name slow ones; None: they are not watched."""

    run_id: str
    folder: Path = ring.FOLDER
    gpus: Mapping[int, str] = field(default_factory=dict)
    readings: HostReadings | None = None
    ended: set[int] = field(default_factory=set)
    _ranks: set[int] = field(default_factory=set)

    def progress(self) -> dict[int, int]:
        """Return the number of operations of each rank; ranks that have ended normally are left out."""
        counts = {}
        for path in ring.files_of(self.run_id, self.folder):
            count = ring.count_of(path)
            if count is not None:
                counts[int(path.name.rpartition("_")[2])] = count
        self._ranks |= counts.keys()
        self.ended = self._ranks - counts.keys()
        return counts

    def snapshots(self) -> list[RankSnapshot]:
        found = snapshots(ring.files_of(self.run_id, self.folder))
        uuids = {one.rank: self.gpus[one.rank] for one in found if one.rank in self.gpus}
        states = gpu_states.read_states(uuids)
        return [replace(one, gpu=states.get(one.rank)) for one in found]

    def pids(self) -> list[int]:
        """Return the processes of the ranks that live."""
        found = []
        for path in ring.files_of(self.run_id, self.folder):
            about = ring.about_of(path)
            if about and process_state(about["pid"], about["start"]) != "dead":
                found.append(about["pid"])
        return found

    def remove(self) -> None:
        """Remove the files of ranks that were killed; once none of them lives."""
        for path in ring.files_of(self.run_id, self.folder):
            path.unlink(missing_ok=True)
        RunLines(self.run_id, has_reader=False).remove_claim()  # without a run directory


def start(world: World, started: Started, *, stalls: bool = True) -> list[str]:
    """Start the monitors of a run of several ranks, a process on each host. Collective; returns warnings on
    rank 0. stalls: watch for them, unless the user does not want that."""
    seconds = STALL_TIMEOUT if started.stall_timeout is None else started.stall_timeout
    if seconds <= 0 or not stalls:
        seconds = math.inf
    if world.size == 1 or world.recorder is None or (seconds == math.inf and not started.watch):
        return []
    first: dict[str, int] = {}
    for number, rank in enumerate(world.ranks):
        first.setdefault(rank.host_id, number)
    leads = world.rank == 0
    gpus = {
        str(number): rank.device.uuid
        for number, rank in enumerate(world.ranks)
        if rank.host_id == world.here.host_id and rank.device.uuid
    }
    setting: dict[str, Any] = {
        "run_id": world.run_id,
        "seconds": seconds,
        "chosen": started.stall_timeout is not None,
        "run": started.run,
        "ras": nccl_ras.place(world.run_id) if world.here.device.kind == "cuda" else None,
        "size": world.size,
        "gpus": gpus,
        "path": [folder for folder in sys.path if folder] if gpus else [],
        "watch": [[rank.host, f"GPU {rank.device.index}" if rank.device.uuid else ""] for rank in world.ranks]
        if started.watch
        else [],
        "hosts": {str(number): world.ranks[number].host for number in first.values()},
    }
    offer: dict[str, Any] = {}
    if leads:
        token = secrets.token_hex(16)
        address = interface_address(world.network)
        answer = _start({**setting, "rank": 0, "token": token, "address": address}, waits=len(first) > 1)
        candidates = [address] if address else host_addresses()
        offer = {**answer, "token": token, "candidates": candidates, "host": os.uname().nodename}
    if len(first) > 1:
        offer = world.control.broadcast(offer)
    error: str = offer.get("error", "")
    if not error and len(first) > 1:
        reason = ""
        if not leads and world.rank in first.values():
            near = [LOOPBACK] if offer["host"] == os.uname().nodename else []
            place = {**offer, "candidates": [*near, *offer["candidates"]]}
            reason = _start({**setting, **place, "rank": world.rank}).get("error", "")
        reasons = world.control.allgather(reason)
        named = [f"host {world.ranks[rank].host}: {why}" for rank, why in enumerate(reasons) if why]
        error = "; ".join(named)
    return [f"a stall of this run would not be noticed: {error}"] if error else []


def slow_parts() -> list[dict[str, Any]]:
    """Return the slow parts that the monitors in `WATCHING` have named since the last call."""
    parts = []
    for process in WATCHING:
        assert process.stdout is not None
        pipe, text = process.stdout.fileno(), b""
        os.set_blocking(pipe, False)
        with contextlib.suppress(BlockingIOError):  # all has been read
            while chunk := os.read(pipe, 1 << 16):
                text += chunk
        messages = [json.loads(line) for line in text.splitlines()]
        parts += [message["slow"] for message in messages if "slow" in message]
    return parts


def _start(setting: dict[str, Any], *, waits: bool = True) -> dict[str, Any]:
    """Start the monitor process of this host; returns its first message, or {"error": reason}.

    waits: for that message, which takes a tenth of a second and says where other hosts can connect.
    """
    process = helper_process.start(PROCESS, "monitor", setting)
    if isinstance(process, str):
        return {"error": process}
    _KEPT.append(process)
    if setting["watch"]:
        WATCHING.append(process)
    return helper_process.first_message(process, "monitor") if waits else {}
