"""`meshrun launch mpirun` as it is typed on one of several hosts."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hosts import Hosts
from processes import DEADLOCK, wait_for

from meshrun.launch.mpi.rank_command import PROGRAM

EVERYONE = "n1,n2,n3"
ROW = re.compile(r" +\d+ +\d+ +float ")
# Ranks of all hosts share this machine's cores, and MPI does not know.
SETTINGS = {"OMPI_MCA_mpi_yield_when_idle": "1"}


@dataclass
class Site:
    """Host n1, where the command runs. notes: a folder that all hosts share."""

    hosts: Hosts
    notes: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    def begin(self, *words: str, before: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start `meshrun launch mpirun` with `words`. before: options before the command."""
        command = [*PROGRAM, *before, "launch", "mpirun", *words]
        with (self.notes / "out").open("w") as out, (self.notes / "err").open("w") as err:
            process = subprocess.Popen(
                self.hosts.command("n1", command),
                env={**os.environ, **SETTINGS},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                text=True,
            )
        self.started.append(process)
        return process

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        process = self.begin(*words)
        try:
            process.wait(DEADLOCK)
        except subprocess.TimeoutExpired:
            left = "\n".join(f"{name}: {self.hosts.processes(name)}" for name in self.hosts.names)
            pytest.fail(f"not ended after {DEADLOCK} s\n{left}\n{self.out}\n{self.errors}")
        return subprocess.CompletedProcess(words, process.returncode, self.out, self.errors)

    def in_full_swing(self, process: subprocess.Popen[str], rows: int = 4) -> None:
        wait_for(lambda: process.poll() is not None or len(ROW.findall(self.out)) >= rows)
        assert process.poll() is None, self.errors

    @property
    def out(self) -> str:
        return (self.notes / "out").read_text()

    @property
    def errors(self) -> str:
        return (self.notes / "err").read_text()

    def nothing_is_left(self, names: Sequence[str] = ("n1", "n2", "n3")) -> None:
        """No process, no session directory and no shared memory on these hosts."""
        for name in names:
            wait_for(lambda name=name: self.hosts.processes(name) == [])  # type: ignore[misc]
            left = {
                "shared memory": self.hosts.files(name),
                "files": self.hosts.files(name, self.hosts.temporary),
            }
            assert not any(left.values()), f"{name}: {left}"
