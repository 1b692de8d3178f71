"""What the hosts of these tests are made of: processes in namespaces, and what /proc says of them.

Processes are numbered as in the PID namespace of the tests, which sees those below it too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"  # sshd and ip are not on every user's
PATIENCE = 30  # seconds; on an idle machine nothing here takes one

T = TypeVar("T")
Process = subprocess.Popen[str] | subprocess.Popen[bytes]


class HostsError(Exception):
    """The machine did not do what was asked of it."""


def hold(words: Sequence[str], log: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a process that does not outlive this thread, and that Ctrl-C at the terminal does not reach."""
    with open(log or os.devnull, "wb") as output:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env={"PATH": PATH},
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def call(words: Sequence[str], text: str | None = None, check: bool = True) -> None:
    done = subprocess.run(
        words, input=text, check=False, capture_output=True, text=True, env={"PATH": PATH}, timeout=PATIENCE
    )
    if check and done.returncode:
        raise HostsError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


def ip(pid: int, *lines: str, check: bool = True) -> None:
    """ip(8) commands in a process's network namespace; without `check`, each is tried."""
    force = [] if check else ["-force"]
    call(["nsenter", f"--net=/proc/{pid}/ns/net", "ip", *force, "-batch", "-"], "\n".join(lines), check)


def tc(pid: int, line: str) -> None:
    """One tc(8) command in a process's network namespace."""
    call(["nsenter", f"--net=/proc/{pid}/ns/net", "tc", *line.split()])


def wait_for(probe: Callable[[], T], what: str, process: Process | None = None, log: Path | None = None) -> T:
    """What `probe` returns as soon as that is true; HostsError when `process` ends before, or in 30 s."""
    deadline = time.monotonic() + PATIENCE
    while not (found := probe()):
        if time.monotonic() > deadline or (process is not None and process.poll() is not None):
            said = log.read_text(errors="replace").strip() if log else ""
            raise HostsError(f"waited in vain for {what}{': ' if said else ''}{said}")
        time.sleep(0.002)
    return found


def signal_each(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def namespace(pid: int | str, kind: str) -> str:
    """The identity of a process's "net", "pid" ... namespace, empty when the process is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""


def members(init: int) -> list[int]:
    """All processes in the PID namespace of `init`; none when it is gone."""
    wanted = namespace(init, "pid")
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [pid for pid in pids if wanted and namespace(pid, "pid") == wanted]


def entrances(members: Sequence[int]) -> set[int]:
    """The parents outside, nsenter and unshare: one that sees its child stopped stops itself."""
    return {parent(pid) for pid in members} - {0, 1, *members}


def released(holder: Process, waiting: Iterable[int]) -> bool:
    """Whether `holder` has ended, which it does when all others who wait for processes in the namespace
    have taken their status; they cannot while they are stopped."""
    signal_each(waiting, signal.SIGCONT)
    return holder.poll() is not None


def child(process: Process) -> int:
    """The first child of a process started here; 0 when it has none, or has ended."""
    if process.poll() is not None:
        return 0
    return int((_read(process.pid, f"task/{process.pid}/children").split() or ["0"])[0])


def state(pid: int) -> str:
    """A process's state, a letter as in ps(1); "X" when it is gone."""
    return (_status(pid) or ["X"])[0]


def parent(pid: int) -> int:
    """A process's parent, 0 when it is gone."""
    return int((_status(pid) or ["X", "0"])[1])


def command_name(pid: int) -> str:
    return _read(pid, "comm").strip()


def command_line(pid: int) -> str:
    return _read(pid, "cmdline").replace("\0", " ").strip()


def serves_ssh(holder: Process) -> bool:
    """Whether port 22 is listened on (state 0A) in the network namespace of its child."""
    return "00000000:0016 00000000:0000 0A" in _read(child(holder), "net/tcp")


def bytes_sent_and_received(pid: int) -> tuple[int, int]:
    """What eth0 of a process's network namespace has counted."""
    counts = _read(pid, "net/dev").partition("eth0:")[2].split()
    return int(counts[8]), int(counts[0])


def _status(pid: int) -> list[str]:
    """/proc/PID/stat after the command's name: state, parent ..."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    """What /proc says of a process; nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
