"""Execute a program that the kernel terminates when its parent process ends.

    python exec_with_parent.py PARENT_PID PROGRAM ARGUMENT ...

Otherwise a `kill -9` of the command would leave the launcher and every rank running. It is a separate program
because running Python code between fork and exec is unsafe.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def exec_with_parent(parent: int, command: list[str]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    if os.getppid() == parent:  # it may have ended before prctl
        os.execv(command[0], command)


if __name__ == "__main__":
    exec_with_parent(int(sys.argv[1]), sys.argv[2:])
