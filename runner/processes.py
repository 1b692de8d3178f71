"""What /proc says of processes and their host: how one is, when it began, mapped files, and the boot."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

PROCESSES, MAPS = Path("/proc"), Path("/proc/self/maps")
BOOT = Path("/proc/sys/kernel/random/boot_id")
TERMINATING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the signals that end a run


@dataclass(frozen=True)
class ProcessStat:
    """Fields of /proc/PID/stat (proc_pid_stat(5)). state: its letter, such as "R" or "Z". start: when the
    process began, in clock ticks after boot: another process with the same number began later."""

    name: str
    state: str
    start: int

    @property
    def has_ended(self) -> bool:
        """Whether it is dead, or waits to be reaped."""
        return self.state in "ZX"


def process_stat(pid: int, processes: Path = PROCESSES) -> ProcessStat | None:
    """Read a process's state; None for a process that there is not, or that this one may not see."""
    try:
        text = (processes / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    before, _, after = text.rpartition(")")  # the name may contain anything
    fields = after.split()
    return ProcessStat(before.partition("(")[2], fields[0], int(fields[19]))


def boot_id() -> str:
    """Return the random id that this host got when it booted; "" if it cannot be read."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


def mapped_files(maps: Path = MAPS) -> list[str]:
    """Return the files mapped into this process, such as its shared libraries, sorted.

    A file that has been removed ends in " (deleted)". Raises OSError where there is no /proc.
    """
    lines = maps.read_text(errors="surrogateescape").splitlines()
    return sorted({line.split(maxsplit=5)[-1] for line in lines if "/" in line})
