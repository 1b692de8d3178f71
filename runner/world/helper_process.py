"""Processes beside a rank, which run when the rank does not: the heartbeat and the monitor of stalls.

Each gets its setting as one line of JSON on standard input, which ends with the rank, and writes messages,
one line of JSON each, to standard output.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def start(script: str, name: str, setting: Mapping[str, Any]) -> subprocess.Popen[str] | str:
    """Start a script as the process `name`; returns why if it cannot be started."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", script],
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
