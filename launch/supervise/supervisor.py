"""Watching over the launcher's process: its output passed on, signals handed down, nothing left running."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launch.supervise import shared_memory
from launch.supervise.cleanup import RUN_MARK, end_strays
from launch.supervise.judge import Account, Conclude, Outcome, judge, no_answer
from launch.supervise.launcher_output import NoiseFilter
from launch.supervise.status_lines import Told

if TYPE_CHECKING:
    from runner.verdict import RunDirectory

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 5.0  # seconds that the launcher has to end its ranks in order
CLAIMED = 2.0  # seconds that the launcher has to end once a rank has told a failure; MPICH's may never
STRAY_OUTPUT = 1.0  # seconds of reading on after the launcher's end, when a process still holds its pipes
TAIL = 1 << 16  # bytes of the ranks' last words kept
# Clear the line, show the cursor: a rank that was ended could not.
AFTER_PROGRESS_BAR = "\r\x1b[K\x1b[?25h"
SHORT = 24  # characters; launchers add up to 70 of their own
LEASH = (sys.executable, "-I", "-S", str(Path(__file__).with_name("exec_with_parent.py")))


def supervise(
    started: Callable[[Path, Path], tuple[list[str], dict[str, str]]],
    columns: int | None = None,
    *,
    token: str | None = None,
    debug: bool = False,
    elsewhere: Callable[[Path, Path, float], list[str]] | None = None,
    account: Account | None = None,
    conclude: Conclude = no_answer,
) -> int:
    """Run a launcher, watch it, judge the run and clean up after it; the run's exit status.

    started: its words and environment, given the run's directory and a private folder with a short path.
    token: of the lines by which ranks tell what belongs into the directory, where they cannot write there.
    elsewhere: cleans up on other hosts, given the same two and the seconds since the start; those that do
    not answer. account, conclude: as `judge` takes them.
    """
    from runner.launcher import working_directory
    from runner.verdict import RunDirectory, RunLines

    working_directory()  # where it is gone, launchers have no words for it
    run = RunDirectory.create()
    sockets = socket_folder()
    segments = shared_memory.segments()
    begun = time.monotonic()
    sys.stdout.flush()  # what the ranks say goes straight to the file descriptor
    in_order = False
    try:
        words, environment = started(run.path, sockets)
        outcome = watch(words, environment, token)
        if columns is not None and outcome.status:
            sys.stderr.write(AFTER_PROGRESS_BAR)
        lost = elsewhere(run.path, sockets, time.monotonic() - begun) if elsewhere else []
        status = judge(run, outcome, debug, lost, account, conclude)
        in_order = status == outcome.status == 0
        return status
    finally:
        if not in_order:
            shared_memory.remove_orphans(segments)
        if token:
            RunLines(token).forget()  # of a rank that was killed before it could
        for folder in (run.path, sockets):
            shutil.rmtree(folder, ignore_errors=True)


def watch(command: Sequence[str], environment: Mapping[str, str], token: str | None = None) -> Outcome:
    """Run the launcher to its end; whatever happens, no process of the run is left on this machine.

    token: of the lines on stderr that are meant for the run's directory.

    The ranks run in a session of their own, so that a Ctrl-C reaches them once and through the
    launcher, which is the one that knows them all. The first signal ends the run in order, the
    second, or `GRACE` seconds, at once.
    """
    from runner.verdict import RunDirectory

    watched = _Watched(RunDirectory(Path(environment[RUN_MARK])), token)
    with handlers(watched.signalled):
        try:
            watched.start(command, environment)
            watched.relay()
        except KeyboardInterrupt:  # the second signal
            pass
        finally:
            end_strays(environment[RUN_MARK])
    return watched.outcome()


class _Watched:
    def __init__(self, run: RunDirectory, token: str | None) -> None:
        self.run = run
        self.told = Told(run, token) if token else None
        self.process: subprocess.Popen[bytes] | None = None
        self.interrupted: signal.Signals | None = None
        self.abandoned = False
        self.deadline = float("inf")
        self.filters = {1: NoiseFilter(), 2: NoiseFilter()}
        self.said = b""

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [*LEASH, str(os.getpid()), *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        if self.interrupted:
            self.process.terminate()

    def signalled(self, number: int, _: object) -> None:
        if self.interrupted:
            if self.process is None or self.abandoned:
                return
            self.abandoned = True
            raise KeyboardInterrupt
        self.interrupted = signal.Signals(number)
        self.deadline = time.monotonic() + GRACE
        if self.process is not None:
            # SIGTERM for any of them: Open MPI and MPICH pass a SIGINT on to the ranks and wait.
            self.process.terminate()

    def relay(self) -> None:
        """Pass on both streams until both have ended, or nobody is left who should write to them."""
        assert self.process is not None
        with selectors.DefaultSelector() as selector:
            for stream, target in ((self.process.stdout, 1), (self.process.stderr, 2)):
                assert stream is not None
                selector.register(stream, selectors.EVENT_READ, target)
            while selector.get_map() and time.monotonic() < self.deadline:
                for key, _ in selector.select(timeout=0.1):
                    chunk = os.read(key.fd, 1 << 16)
                    said = self.told.feed(chunk) if self.told and key.data == 2 else chunk
                    self._pass_on(key.data, self.filters[key.data].feed(said))
                    if not chunk:
                        selector.unregister(key.fileobj)
                if self.deadline == float("inf") and self.run.failure() is not None:
                    self.deadline = time.monotonic() + CLAIMED
                if self.process.poll() is not None:
                    self.deadline = min(self.deadline, time.monotonic() + STRAY_OUTPUT)
        if self.told:
            self._pass_on(2, self.filters[2].feed(self.told.finish()))
        for target, noise_filter in self.filters.items():
            self._pass_on(target, noise_filter.finish())
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, min(self.deadline - time.monotonic(), GRACE)))

    def _pass_on(self, target: int, text: bytes) -> None:
        if target == 2:
            self.said = (self.said + text)[-TAIL:]
        pass_on(target, text)

    def outcome(self) -> Outcome:
        assert self.process is not None
        noise = b"".join(each.withheld for each in self.filters.values())
        return Outcome(
            self.process.wait(),
            self.interrupted,
            noise.decode(errors="replace"),
            self.said.decode(errors="replace"),
        )


def pass_on(target: int, text: bytes) -> None:
    """Write all of `text` to a file descriptor."""
    # Nobody reads any more (`| head -1`): the run goes on, for the sake of its output file.
    with contextlib.suppress(BrokenPipeError):
        while text:
            text = text[os.write(target, text) :]


@contextlib.contextmanager
def handlers(handler: Callable[[int, object], None]) -> Iterator[None]:
    """`handler` for the signals that would end this process; a signal that is ignored (nohup) stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    listener = signal.set_wakeup_fd(-1)  # a rank's own, where this process has been one
    before = {number: signal.getsignal(number) for number in SIGNALS}
    changed = {number: old for number, old in before.items() if old is not signal.SIG_IGN}
    for number in changed:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in changed.items():
            signal.signal(number, old)
        signal.set_wakeup_fd(listener)


def socket_folder() -> Path:
    """A new private folder with a short path: with the temporary files, or in /tmp if that path is long."""
    home = tempfile.gettempdir()
    if len(home) > SHORT and os.access("/tmp", os.W_OK | os.X_OK):
        home = "/tmp"
    return Path(tempfile.mkdtemp(prefix="mr", dir=home))
