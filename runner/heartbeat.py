"""Notices hosts that go silent, frozen or cut off, which MPI may wait for without end."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from runner import files
from runner.errors import RunError
from runner.launcher import slurm_job
from runner.run_status import lost_note
from runner.watch_channel import addresses
from runner.watch_report import ranges
from runner.world import Rank, World

NOTE = 1.0  # seconds for a note of the loss: the file system may be lost with the host
PROCESS = str(Path(__file__).with_name("heartbeat_process.py"))


class Heartbeat:
    """Watches the other hosts from now on; collective. Does nothing on a single host.

    Until this process ends. seconds: how long a host may be silent. on_loss: called in a thread, with
    the failure to end all ranks with. warnings: on rank 0, of hosts that could not be connected, which
    nobody watches.
    """

    def __init__(self, world: World, seconds: float, on_loss: Callable[[RunError], None]) -> None:
        self.warnings: list[str] = []
        self._world, self._seconds, self._on_loss = world, seconds, on_loss
        self._folder = Path.cwd()  # a job may change it
        self._process: subprocess.Popen[str] | None = None
        first = first_ranks(world.ranks)
        if len(first) > 1:
            self._begin(first)

    def _begin(self, first: Sequence[int]) -> None:
        world, control = self._world, self._world.control
        offer: dict[str, Any] = {}
        if world.rank == 0:
            token = secrets.token_hex(16)
            told = self._start({"token": token, "seconds": self._seconds, "others": len(first) - 1})
            if "port" in told:
                offer = {**told, "token": token, "candidates": addresses(), "seconds": self._seconds}
            else:
                self.warnings.append(f"no host is watched: {told['apart']}")
        offer = control.broadcast(offer)
        if not offer:
            return
        apart = ""
        if world.rank in first[1:]:
            apart = self._start({**offer, "rank": world.rank}).get("apart", "")
        for rank, reason in enumerate(control.allgather(apart)):
            if reason and world.rank == 0:
                host = world.ranks[rank].host
                self.warnings.append(f"host {host} is not watched, it cannot connect to rank 0: {reason}")
        if self._process is not None:
            threading.Thread(target=self._listen, name="heartbeat", daemon=True).start()

    def _start(self, setting: dict[str, Any]) -> dict[str, Any]:
        """The process, with this setting; the first thing that it tells, or why it tells nothing."""
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", PROCESS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        except OSError as failure:  # a limit on processes, say
            return {"apart": f"no process for the heartbeat: {failure.strerror}"}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and what it told is empty
            self._process.stdin.write(json.dumps(setting))
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        told: dict[str, Any] = (
            json.loads(line) if line else {"apart": "the heartbeat's process ended at once"}
        )
        return told

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            lost = json.loads(line).get("lost", ())
            if lost:
                failure = lost_hosts(self._world.ranks, lost, self._seconds)
                note = threading.Thread(target=leave_note, args=(self._folder, str(failure)), daemon=True)
                note.start()
                note.join(NOTE)
                self._on_loss(failure)


def first_ranks(ranks: Sequence[Rank]) -> list[int]:
    """The first rank of every host."""
    hosts: dict[str, int] = {}
    for number, rank in enumerate(ranks):
        hosts.setdefault(rank.host_id, number)
    return sorted(hosts.values())


def leave_note(folder: Path, sentence: str) -> None:
    """Write to a file what a Slurm job's output may not get any more; elsewhere nothing."""
    if job := slurm_job():
        with contextlib.suppress(OSError):
            files.write_file(folder / lost_note(job), f"meshrun: {sentence}\n")


def lost_hosts(ranks: Sequence[Rank], lost: Sequence[int], seconds: float) -> RunError:
    """What to tell of the hosts whose first ranks these are."""
    told = []
    for number in lost:
        there = [i for i, rank in enumerate(ranks) if rank.host_id == ranks[number].host_id]
        told.append(f"{ranks[number].host} (rank{'s' * (len(there) > 1)} {ranges(there)})")
    return RunError(
        f"host {', '.join(told)} silent for {seconds:g} s",
        hint="the host's power, network and load; --host-timeout where hosts may be silent for longer",
    )
