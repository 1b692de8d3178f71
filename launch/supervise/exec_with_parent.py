"""Become another program, one that the kernel ends when the process that started it is gone.

    python leash.py PARENT_PID PROGRAM ARGUMENT ...

Whoever kills the command outright (a test's timeout does) would leave the launcher and every rank
running. A program of its own, because code between fork and exec is unsafe in Python.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def become(parent: int, command: list[str]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    if os.getppid() == parent:  # it may have gone before the kernel was told
        os.execv(command[0], command)


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
