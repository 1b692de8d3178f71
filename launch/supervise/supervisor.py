"""Run a launcher: forward its output, pass on signals, judge the run, leave nothing running."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from meshrun.launch.spec import START_TIMEOUT, LaunchSpec
from meshrun.launch.supervise import shared_memory
from meshrun.launch.supervise.cleanup import RUN_MARK, end_strays, remove_topologies
from meshrun.launch.supervise.judge import Conclude, Explain, Outcome, find_loss, judge, no_answer
from meshrun.launch.supervise.launcher_output import OutputFilter
from meshrun.launch.supervise.status_lines import StatusLines

if TYPE_CHECKING:
    from meshrun.launch.supervise.clock import Clocks
    from meshrun.runner.world.run_status import RunDirectory

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 5.0  # seconds for the launcher to end its ranks
CLAIMED = 2.0  # seconds for the launcher to end after a rank has reported a failure; MPICH's may never end
LOOK_INTERVAL = 0.25  # seconds between two looks at the clocks
STRAY_OUTPUT = 1.0  # seconds to continue reading after the launcher's end, if a process still holds its pipes
TAIL = 1 << 16  # bytes kept of the ranks' last output
# Clear the line and show the cursor, which a terminated rank could not do.
AFTER_PROGRESS_BAR = "\r\x1b[K\x1b[?25h"
SHORT = 24  # longest path, in characters; launchers append up to 70
EXEC_WITH_PARENT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("exec_with_parent.py")))


class LossError(Exception):
    """A rank or a host was lost, and the others can go on; the sentence, "" if it has been printed.

    left: what to start again. resumable: the run has kept results with which it continues. keeps_files: such
    or others, without which it begins again.
    """

    def __init__(self, sentence: str, left: LaunchSpec, resumable: bool, keeps_files: bool) -> None:
        super().__init__(sentence)
        self.left, self.resumable, self.keeps_files = left, resumable, resumable or keeps_files


@dataclass(frozen=True)
class Supervision:
    """How a run is watched and concluded.

    columns: the width of a progress bar that ranks may draw; None for no bar. debug: show the launcher's own
    messages. conclude: as for `judge`. restarts: how often to start again with what is left after a rank or a
    host was lost, for a command `run`. start_timeout: as for `Clocks`.
    """

    columns: int | None = None
    debug: bool = False
    conclude: Conclude = no_answer
    restarts: int = 0
    start_timeout: float = START_TIMEOUT


USUAL = Supervision()


def supervise(
    prepare: Callable[[Path, Path], tuple[list[str], dict[str, str]]],
    supervision: Supervision = USUAL,
    *,
    token: str | None = None,
    mpich: bool = False,
    clean_up_hosts: Callable[[Path, Path, float], list[str]] | None = None,
    explain: Explain | None = None,
    restart: LaunchSpec | None = None,
    clocks: Callable[[RunDirectory], Clocks] | None = None,
) -> int:
    """Run a launcher to its end, judge the run and clean up after it; returns the run's exit status.

    prepare: returns the launcher's command and environment, given the run's directory and a private folder
    with a short path. token: of the status lines of ranks that cannot write to the run's directory. mpich:
    the launcher is MPICH's; no other one leaves descriptions of this host. clean_up_hosts: cleans up on other
    hosts, given the same two and the seconds since the start, and returns those that do not answer. explain:
    as for `judge`. restart: what is run, to raise LossError with what is left of it after a loss, instead of
    judging the run; None to judge it in any case. clocks: makes the clocks of the run.
    """
    from meshrun.runner.files import working_directory, write_file
    from meshrun.runner.world.run_status import RunDirectory, RunLines

    working_directory()  # launchers do not report that it does not exist
    segments = shared_memory.segments()
    shared_memory.remove_stale(segments)
    if mpich:
        remove_topologies()
    begun = time.monotonic()
    sys.stdout.flush()  # the ranks' output is written directly to the file descriptor
    succeeded = False
    run = RunDirectory.create()
    folders = [run.path]
    try:
        folders.append(sockets := socket_folder())
        write_file(run.path / "also", str(sockets))  # to be removed with it if this process is killed
        command, environment = prepare(run.path, sockets)
        outcome = watch_launcher(command, environment, token, clocks(run) if clocks else None)
        if supervision.columns is not None and outcome.status:
            sys.stderr.write(AFTER_PROGRESS_BAR)
        lost = clean_up_hosts(run.path, sockets, time.monotonic() - begun) if clean_up_hosts else []
        loss = find_loss(run, outcome, lost) if restart else None
        if restart and loss and (left := restart.without(lost, loss.rank)):
            run.remove_leftovers()
            raise LossError(loss.sentence, left, bool(run.recovery_hint()), run.keeps_files())
        status = judge(run, outcome, supervision.debug, lost, explain, supervision.conclude)
        succeeded = status == outcome.status == 0
        return status
    finally:
        if not succeeded:
            run.remove_leftovers()
            shared_memory.remove_orphans(segments)
            if mpich:
                remove_topologies()
        if token:
            RunLines(token).remove_claim()  # of a rank that was killed before it could
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def watch_launcher(
    command: Sequence[str],
    environment: Mapping[str, str],
    token: str | None = None,
    clocks: Clocks | None = None,
) -> Outcome:
    """Run the launcher to its end; in all cases, no process of the run is left on this machine.

    token: of the status lines on stderr, which go to the run's directory. clocks: end the run when a time-out
    has passed.

    The ranks run in their own session, so that Ctrl-C reaches them only once, through the launcher. The first
    signal terminates the launcher; a second one, or `GRACE` seconds, kills all processes.
    """
    from meshrun.runner.world.run_status import RunDirectory

    watched = _WatchedLauncher(RunDirectory(Path(environment[RUN_MARK])), token, clocks)
    with signal_handlers(watched.signalled):
        try:
            watched.start(command, environment)
            watched.relay()
        except KeyboardInterrupt:  # the second signal
            pass
        finally:
            end_strays(environment[RUN_MARK])
            watched.close()
    return watched.outcome()


class _WatchedLauncher:
    def __init__(self, run: RunDirectory, token: str | None, clocks: Clocks | None) -> None:
        self.run, self.clocks = run, clocks
        self.next_look = 0.0
        self.status_lines = StatusLines(run, token) if token else None
        self.process: subprocess.Popen[bytes] | None = None
        self.interrupted: signal.Signals | None = None
        self.abandoned = False
        self.deadline = float("inf")
        self.filters = {1: OutputFilter(), 2: OutputFilter()}
        self.output_tail = b""

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [*EXEC_WITH_PARENT, str(os.getpid()), *command],
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
            # SIGTERM for any signal, because Open MPI and MPICH forward SIGINT to the ranks and wait.
            self.process.terminate()

    def relay(self) -> None:
        """Forward both streams until both have ended, or the launcher and a time-out have."""
        assert self.process is not None
        with selectors.DefaultSelector() as selector:
            for stream, target in ((self.process.stdout, 1), (self.process.stderr, 2)):
                assert stream is not None
                selector.register(stream, selectors.EVENT_READ, target)
            while selector.get_map() and time.monotonic() < self.deadline:
                for key, _ in selector.select(timeout=0.1):
                    chunk = os.read(key.fd, 1 << 16)
                    text = self.status_lines.feed(chunk) if self.status_lines and key.data == 2 else chunk
                    self._pass_on(key.data, self.filters[key.data].feed(text))
                    if not chunk:
                        selector.unregister(key.fileobj)
                if self.deadline == float("inf") and self.run.failure() is not None:
                    self.deadline = time.monotonic() + CLAIMED
                self._look_at_clocks()
                if self.process.poll() is not None:
                    self.deadline = min(self.deadline, time.monotonic() + STRAY_OUTPUT)
        if self.status_lines:
            self._pass_on(2, self.filters[2].feed(self.status_lines.finish()))
        for target, output_filter in self.filters.items():
            self._pass_on(target, output_filter.finish())
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, min(self.deadline - time.monotonic(), GRACE)))

    def close(self) -> None:
        """Close the pipes; what processes that are gone have left in them is not read."""
        for stream in (self.process.stdout, self.process.stderr) if self.process else ():
            if stream is not None:
                stream.close()

    def _look_at_clocks(self) -> None:
        """End a run of which a time-out has passed; all of its processes are killed."""
        now = time.monotonic()
        if self.clocks is None or self.deadline < float("inf") or now < self.next_look:
            return
        self.next_look = now + LOOK_INTERVAL
        found = self.clocks.failure()
        if found is None:
            return
        rank, sentence = found
        self.run.report_failure({"exit_code": self.run.exit_status(), "sentence": sentence, "rank": rank})
        self.deadline = now
        end_strays(str(self.run.path))

    def _pass_on(self, target: int, text: bytes) -> None:
        if target == 2:
            self.output_tail = (self.output_tail + text)[-TAIL:]
        pass_on(target, text)

    def outcome(self) -> Outcome:
        assert self.process is not None
        own = b"".join(each.withheld for each in self.filters.values())
        return Outcome(
            self.process.wait(),
            self.interrupted,
            own.decode(errors="replace"),
            self.output_tail.decode(errors="replace"),
        )


def pass_on(target: int, text: bytes) -> None:
    """Write all of `text` to a file descriptor."""
    # If the reader closes the pipe (`| head -1`), or a log's disk is full, the run continues to complete its
    # output file. Of standard output, which may be a result, what is missing is an error.
    with contextlib.suppress(BrokenPipeError if target != 2 else OSError):
        while text:
            text = text[os.write(target, text) :]


@contextlib.contextmanager
def signal_handlers(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Install `handler` for the signals that would end this process; ignored ones (nohup) stay ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    listener = signal.set_wakeup_fd(-1)  # set if this process has been a rank
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
    """A new private folder with a short path, in the folder for temporary files or in /tmp."""
    home = tempfile.gettempdir()
    if len(home) > SHORT and os.access("/tmp", os.W_OK | os.X_OK):
        home = "/tmp"
    return Path(tempfile.mkdtemp(prefix="mr", dir=home))
