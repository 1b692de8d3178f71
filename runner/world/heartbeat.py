"""Detect hosts that send nothing, because they are frozen or disconnected; MPI may wait for them forever."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from meshrun.runner import files
from meshrun.runner.errors import RunError
from meshrun.runner.spelling import command_option
from meshrun.runner.system.launcher import slurm_job
from meshrun.runner.world import helper_process
from meshrun.runner.world.run_status import lost_note, signed_note
from meshrun.runner.world.watchdog.channel import host_addresses, interface_address
from meshrun.runner.world.watchdog.report import ranks_text
from meshrun.runner.world.world import Rank, World

NOTE_TIMEOUT = 1.0  # seconds to write a note of the loss: the file system may be lost with the host
PROCESS = "meshrun.runner.world.heartbeat_process"


class Heartbeat:
    """Watches the other hosts until this process ends. Collective. Does nothing on a single host.

    seconds: for which a host may send nothing. on_loss: called in a thread, with the error that ends all
    ranks. token: of the run, for `write_lost_note`. warnings: on rank 0, one for each host that could not
    connect and is therefore not watched.
    """

    def __init__(
        self, world: World, seconds: float, on_loss: Callable[[RunError], None], token: str | None = None
    ) -> None:
        self.warnings: list[str] = []
        self._world, self._seconds, self._on_loss = world, seconds, on_loss
        self._token = token
        self._folder = Path(files.working_directory())  # a job may change the working directory
        self._process: subprocess.Popen[str] | None = None
        first = first_rank_per_host(world.ranks)
        if len(first) > 1:
            self._begin(first)

    def _begin(self, first: Sequence[int]) -> None:
        world, control = self._world, self._world.control
        offer: dict[str, Any] = {}
        if world.rank == 0:
            token = secrets.token_hex(16)
            address = interface_address(world.network)
            setting = {"token": token, "seconds": self._seconds, "others": len(first) - 1, "address": address}
            message = self._start(setting)
            if "port" in message:
                candidates = [address] if address else host_addresses()
                offer = {**message, "token": token, "candidates": candidates, "seconds": self._seconds}
            else:
                self.warnings.append(f"no host is watched: {message['error']}")
        offer = control.broadcast(offer)
        if not offer:
            return
        error = ""
        if world.rank in first[1:]:
            error = self._start({**offer, "rank": world.rank}).get("error", "")
        for rank, reason in enumerate(control.allgather(error)):
            if reason and world.rank == 0:
                host = world.ranks[rank].host
                self.warnings.append(f"host {host} is not watched, it cannot connect to rank 0: {reason}")
        if self._process is not None:
            threading.Thread(target=self._listen, name="heartbeat", daemon=True).start()

    def _start(self, setting: dict[str, Any]) -> dict[str, Any]:
        """Start the heartbeat process with `setting`; returns its first message, or {"error": reason}."""
        process = helper_process.start(PROCESS, "heartbeat", setting)
        if isinstance(process, str):
            return {"error": process}
        self._process = process
        return helper_process.first_message(process, "heartbeat")

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            lost = json.loads(line).get("lost", ())
            if lost:
                failure = lost_hosts_error(self._world.ranks, lost, self._seconds)
                note = threading.Thread(
                    target=write_lost_note, args=(self._folder, str(failure), self._token), daemon=True
                )
                note.start()
                note.join(NOTE_TIMEOUT)
                self._on_loss(failure)


def first_rank_per_host(ranks: Sequence[Rank]) -> list[int]:
    """The first rank of every host."""
    hosts: dict[str, int] = {}
    for number, rank in enumerate(ranks):
        hosts.setdefault(rank.host_id, number)
    return sorted(hosts.values())


def write_lost_note(folder: Path, sentence: str, token: str | None = None) -> None:
    """In a Slurm job, write `sentence` to a file, because the job's output may no longer work.

    token: of the run, for the process that reads the file.
    """
    if job := slurm_job():
        with contextlib.suppress(OSError):
            files.write_file(folder / lost_note(job), signed_note(job, sentence, token))


def lost_hosts_error(ranks: Sequence[Rank], lost: Sequence[int], seconds: float) -> RunError:
    """The error for the loss of the hosts whose first ranks are `lost`."""
    names = []
    for number in lost:
        there = [i for i, rank in enumerate(ranks) if rank.host_id == ranks[number].host_id]
        names.append(f"{ranks[number].host} ({ranks_text(there)})")
    return RunError(
        f"host {', '.join(names)} silent for {seconds:g} s",
        hint=f"check the host's power, network and load; raise {command_option('host_timeout')} "
        "if hosts may pause for longer",
    )
