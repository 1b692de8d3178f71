"""Processes beside a rank, which run when the rank does not: the heartbeat and the monitor of stalls.

Each gets its setting as one line of JSON on standard input, which ends with the rank, and writes messages,
one line of JSON each, to standard output. The rank uses `start` and `first_message`, the process the others.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parents[3])  # the folder that has the package meshrun


def command(module: str) -> list[str]:
    """Return the command that calls `main` of a module, which loads in a moment: without site-packages."""
    script = f"import sys; sys.path.append({ROOT!r}); from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", script]


def start(module: str, name: str, setting: Mapping[str, Any]) -> subprocess.Popen[str] | str:
    """Start `main` of a module as the process `name`; returns why if it cannot be started."""
    try:
        process = subprocess.Popen(
            command(module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a launcher that kills a rank's process group leaves it, to clean up
        )
    except OSError as failure:  # for example a limit on processes
        return f"cannot start the {name} process: {failure.strerror}"
    # At a normal end: the helper may be stopped, and a launcher waits while it holds our streams.
    atexit.register(process.kill)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended, and its output is empty
        process.stdin.write(json.dumps(setting) + "\n")
        process.stdin.flush()
    return process


def first_message(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    """Wait for the first message of the process `name`; {"error": reason} if it ends without one."""
    assert process.stdout is not None
    line = process.stdout.readline()
    message: dict[str, Any] = json.loads(line) if line else {"error": f"the {name} process ended immediately"}
    return message


def read_setting() -> dict[str, Any]:
    """Return the process's setting; from now on, only the end of its rank ends it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    line = b""
    while not line.endswith(b"\n") and (chunk := os.read(0, 1 << 16)):
        line += chunk
    setting: dict[str, Any] = json.loads(line)
    return setting


def rank_has_ended() -> bool:
    """Whether the rank that has started this process has ended, which closes the pipe."""
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable) and not os.read(0, 1)


def write_message(message: Mapping[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the rank has ended, and reads nothing
        os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")
