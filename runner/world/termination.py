"""Signals that end this process: from a launcher, from a user, and when its parent process ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from meshrun.runner.processes import TERMINATING

PR_SET_PDEATHSIG = 1  # prctl(2)


def end_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent ends.

    Without this, the ranks of a killed Open MPI launcher keep running.
    """
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def on_termination(action: Callable[[], None]) -> None:
    """Call `action` and exit with 128 + signal number when a terminating signal arrives.

    A Python signal handler runs only in the main thread, which may block in an MPI call forever. Therefore a
    thread reads signal numbers from the wake-up file descriptor. That descriptor reports every signal with a
    Python handler; signals not in TERMINATING, such as a job's own SIGUSR1, are skipped. Signals in
    TERMINATING end the run even if a job sets a handler for them, unless they were ignored before (nohup).

    Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    terminating = [number for number in TERMINATING if signal.getsignal(number) is not signal.SIG_IGN]
    for number in terminating:
        signal.signal(number, lambda *_: None)

    def wait() -> None:
        while (number := os.read(reader, 1)[0]) not in terminating:
            pass
        try:
            action()
        finally:  # also if `action` fails, for example because stderr is closed
            os._exit(128 + number)

    threading.Thread(target=wait, name="termination", daemon=True).start()
