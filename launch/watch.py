"""Watching over the launcher's process: its output passed on, signals handed down, nothing left running."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launch.mpiexec import RUN_MARK
from launch.noise import NoiseFilter
from launch.told import Told

if TYPE_CHECKING:
    from runner.run_status import RunDirectory

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 5.0  # seconds that the launcher has to end its ranks in order
CLAIMED = 2.0  # seconds that the launcher has to end once a rank has told a failure; MPICH's may never
STRAY_OUTPUT = 1.0  # seconds of reading on after the launcher's end, when a process still holds its pipes
TAIL = 1 << 16  # bytes of the ranks' last words kept
LEASH = (sys.executable, "-I", "-S", str(Path(__file__).with_name("leash.py")))


@dataclass(frozen=True)
class Outcome:
    """How the launcher ended.

    status: its exit status, negative for a signal. interrupted: the signal that ended the run.
    noise: what the launcher said of itself. said: the ranks' last words on stderr.
    """

    status: int
    interrupted: signal.Signals | None
    noise: str
    said: str


def watch(command: Sequence[str], environment: Mapping[str, str], token: str | None = None) -> Outcome:
    """Run the launcher to its end; whatever happens, no process of the run is left on this machine.

    token: of the lines on stderr that are meant for the run's directory.

    The ranks run in a session of their own, so that a Ctrl-C reaches them once and through the
    launcher, which is the one that knows them all. The first signal ends the run in order, the
    second, or `GRACE` seconds, at once.
    """
    from runner.run_status import RunDirectory

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


def strays(mark: str, processes: Path = Path("/proc")) -> list[int]:
    """The processes with `mark` as the run's mark in their environment.

    Process groups and sessions do not do: launchers give their ranks new ones.
    """
    wanted = f"{RUN_MARK}={mark}".encode()
    found = []
    for folder in processes.iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):  # ended meanwhile, or another user's
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def end_strays(mark: str) -> None:
    """Kill what is left of a run; the launcher first, so that it starts no more."""
    for _ in range(50):
        left = strays(mark)
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    print(f"meshrun: processes {left} of this run do not end, even when killed", file=sys.stderr)
