"""Ends a run that is stuck, and says where: what was under way, who had not entered it, who had not left.

The main thread of a stuck rank may sit in an MPI barrier, in NCCL, in a device synchronisation or in
Python; its process may be stopped, its host gone. So in every rank a daemon thread watches the main
thread's progress, and the threads talk over TCP to rank 0's (`watch_channel`). When one sees no
progress for the time allowed, rank 0 asks all where they are, reports (`watch_report`), and orders
the end. Ranks that rank 0 does not answer end by themselves.

From the last progress to the last process gone takes at most 10 s more than the time allowed. A
main thread that holds Python's lock all the while, in an extension that does not release it, also stops its
rank's watching thread: the other ranks report that rank as giving no answer.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence

from runner.comm import Control
from runner.errors import RunError, first_line
from runner.watch_channel import LOOPBACK, Hub, Line, Message, addresses, connect
from runner.watch_progress import Patience, Progress
from runner.watch_report import State, compose, compose_alone

__all__ = ["Progress", "Watchdog"]

STATUS = 4  # nccl-tests' exit status of a time-out

# Seconds. The longest ways: TICK + ANSWERS + REPORT to rank 0's order, then ABORT + FLUSH + HEARD + END +
# LAST; and TICK + ALONE + 3/4 to a rank's giving up, then REPORT + FLUSH + HEARD + END. Both are 10 at most.
TICK = 0.25  # between two looks
ANSWERS = 2.5  # that rank 0 waits for the ranks to say where they are
REPORT = 1.5  # to write the report
ABORT = 2.0  # to abort communicators
END = 2.0  # to end through the launcher
FLUSH = 0.5  # to write out what Python still holds for stdout and stderr
HEARD = 0.25  # for the launcher to pass on what is written: MPICH's drops it when a rank ends
ALONE = 4.75  # until a rank gives up waiting for rank 0's order; up to 3/4 more, by rank
LAST = 1.0  # for the launcher to end a rank that rank 0 has left behind


class Watchdog(Progress):
    """Watches that every rank makes progress; collective.

    Parameters
    ----------
    names: each rank's name for people, in rank order.
    seconds: how long a rank may stay at one point.
    on_report: gets the report, on rank 0; on another rank, where rank 0 does not answer, one line. Whatever a
        launcher must find has to be written by it: ranks end as soon as it returns.
    end: ends all ranks with a status, through the launcher; may hang or return.

    Raises RunError, on every rank, when rank 0 cannot listen. warnings: on every rank, of ranks that
    cannot connect to rank 0; what they do will be missing in a report.
    """

    def __init__(
        self,
        control: Control,
        names: Sequence[str],
        seconds: float,
        *,
        on_report: Callable[[str], None],
        end: Callable[[int], None],
    ) -> None:
        super().__init__()
        self._rank, self._names = control.rank, names
        self._on_report, self._end = on_report, end
        self._patience = Patience(seconds)
        self._stopped = threading.Event()
        self._hub = Hub(secrets.token_hex(16))
        self._line: Line | None = None
        self._apart: dict[int, str] = {}
        follow = self._lead if self._rank == 0 else self._follow
        self._thread = threading.Thread(target=follow, name="watchdog", daemon=True)
        if control.size > 1:
            self._connect(control)
        if not self._thread.is_alive():
            self._thread.start()

    @property
    def warnings(self) -> list[str]:
        return [
            f"[{self._names[rank]}] the watchdog cannot connect to rank 0: {reason}"
            for rank, reason in self._apart.items()
        ]

    def _connect(self, control: Control) -> None:
        offer = self._listen(control.size) if self._rank == 0 else None
        failure, host, candidates, port, token = control.broadcast(offer)
        if failure:
            raise RunError("rank 0 cannot listen for the watchdogs", got=failure, everywhere=True)
        reason = ""
        if self._rank:
            near = [LOOPBACK] if host == os.uname().nodename else []
            outcome = connect([*near, *candidates], port, token, self._rank)
            if isinstance(outcome, Line):
                self._line = outcome
            else:
                reason = outcome
        reasons = control.allgather(reason)
        self._apart = {rank: reason for rank, reason in enumerate(reasons) if reason}

    def _listen(self, size: int) -> tuple[str, str, list[str], int, str]:
        try:
            port = self._hub.listen(size)
        except OSError as reason:
            return first_line(reason), "", [], 0, ""
        self._thread.start()  # it accepts
        return "", os.uname().nodename, addresses(), port, self._hub.token

    def stop(self) -> None:
        super().stop()
        self._stopped.set()
        self._thread.join(2 * TICK)

    def _over(self) -> bool:
        return self._patience.over(self._state, time.monotonic(), self.grace)

    # Rank 0.

    def _lead(self) -> None:
        while not self._stopped.is_set():
            said = [message for _, message in self._hub.poll(TICK)]
            if any("told" in message for message in said):
                os._exit(STATUS)  # this process was stopped, and the others could not wait
            if any("stuck" in message for message in said) or self._over():
                self._conclude()
        self._hub.close()

    def _conclude(self) -> None:
        states = self._ask()
        silent = {
            rank: self._apart.get(rank) or self._hub.gone.get(rank, "frozen, or its host gone")
            for rank in range(len(self._names))
            if rank not in states
        }
        text = compose(self._names, states, silent, self._patience.seconds + self.grace)
        _within(REPORT, lambda: self._on_report(text))
        self._hub.say({"end": STATUS})
        _within(ABORT, self.abort)
        self._leave()

    def _ask(self) -> dict[int, State | None]:
        """Where every rank is that answers in time."""
        self._hub.say({"where": True})
        states = {0: self._where()}
        until = time.monotonic() + ANSWERS
        while self._hub.lines.keys() - states.keys() and (left := until - time.monotonic()) > 0:
            for rank, message in self._hub.poll(left):
                if "state" in message:
                    state = message["state"]
                    states[rank] = None if state is None else State(*state)
        return states

    # The other ranks.

    def _follow(self) -> None:
        alarmed: float | None = None  # since when this rank expects rank 0's order
        while not self._stopped.is_set():
            for message in self._heard():
                if "where" in message:
                    self._tell({"state": self._where()})
                    alarmed = alarmed or time.monotonic()
                if "end" in message:
                    self._obey()
            if alarmed is None and self._over():
                self._tell({"stuck": True})
                alarmed = time.monotonic()
            if alarmed is not None and time.monotonic() - alarmed > self._wait():
                self._give_up()
        self._tell({"bye": True})

    def _obey(self) -> None:
        """Abort, and go when rank 0 has gone, unless the launcher comes first.

        A launcher that finds one rank gone kills the others: MPICH's then returns the signal's number
        rather than a status. So rank 0 speaks to it first.
        """
        until = time.monotonic() + ABORT + FLUSH + HEARD + END
        _within(ABORT, self.abort)
        _within(FLUSH, _flush)
        while self._line is not None and time.monotonic() < until:
            self._heard()
        time.sleep(LAST)
        os._exit(STATUS)

    def _heard(self) -> list[Message]:
        if self._line is None:
            self._stopped.wait(TICK)
            return []
        messages = self._line.receive(TICK)
        if messages is None:
            self._line.close()
            self._line = None
        return messages or []

    def _tell(self, message: Message) -> None:
        if self._line is not None:
            self._line.send(message)

    def _wait(self) -> float:
        """Rank 1 goes first: the launcher then ends the others, and one line is read instead of all."""
        return ALONE + 0.75 * self._rank / len(self._names)

    def _give_up(self) -> None:
        self._tell({"told": True})
        line = compose_alone(self._names[self._rank], self._where(), self._patience.seconds + self.grace)
        _within(REPORT, lambda: self._on_report(line))
        self._leave()

    # All.

    def _where(self) -> State | None:
        state = self._state
        return None if state is None else State(*state)

    def _leave(self) -> None:
        _within(FLUSH, _flush)
        time.sleep(HEARD)
        _within(END, lambda: self._end(STATUS))
        os._exit(STATUS)


def _within(seconds: float, action: Callable[[], None]) -> None:
    """Call `action`, and wait for it no longer than that."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(seconds)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
