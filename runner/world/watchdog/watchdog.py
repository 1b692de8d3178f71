"""Abort a stuck run and report the operation in which it is stuck and the ranks that have not entered or left
it.

The main thread of a stuck rank may block in an MPI barrier, in NCCL, in a device synchronisation or in
Python; its process may be stopped, its host down. Therefore a daemon thread in every rank watches the main
thread's progress, and these threads connect to rank 0's over TCP (`channel`). When one of them sees no
progress within the time-out, rank 0 requests the positions of all ranks, reports them (`report`) and
orders all ranks to end. Ranks that receive no answer from rank 0 end by themselves.

The last process ends at most 10 s plus the time-out after the last progress. If a main thread holds the
GIL all this time, in an extension that does not release it, its rank's watching thread does not run either,
and the other ranks report that rank as not answering.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence

from meshrun.runner.comm.api import Control
from meshrun.runner.errors import Exit, RunError, first_line
from meshrun.runner.world.watchdog.channel import (
    LOOPBACK,
    Connection,
    Hub,
    Message,
    connect,
    host_addresses,
    interface_address,
    network_stack,
)
from meshrun.runner.world.watchdog.progress import MeasurementProgress, StallTimer
from meshrun.runner.world.watchdog.report import Position, format_own_report, format_report

__all__ = ["MeasurementProgress", "Watchdog"]


# Seconds. The longest path to the end is POLL_INTERVAL + ANSWER_TIMEOUT + REPORT_TIMEOUT to rank 0's order,
# then ABORT_TIMEOUT + FLUSH_TIMEOUT + FORWARD_DELAY + END_TIMEOUT + LAUNCHER_TIMEOUT. Without rank 0 it is
# POLL_INTERVAL + ORDER_TIMEOUT + 3/4, then REPORT_TIMEOUT + FLUSH_TIMEOUT + FORWARD_DELAY + END_TIMEOUT. Both
# are at most 10.
POLL_INTERVAL = 0.25  # between two checks of progress
ANSWER_TIMEOUT = 2.5  # for the ranks to send rank 0 their positions
REPORT_TIMEOUT = 1.5  # to write the report
ABORT_TIMEOUT = 2.0  # to abort communicators
END_TIMEOUT = 2.0  # to end the ranks through the launcher
FLUSH_TIMEOUT = 0.5  # to flush stdout and stderr
FORWARD_DELAY = 0.25  # for the launcher to forward output: MPICH's drops it when a rank ends
ORDER_TIMEOUT = 4.75  # for rank 0's order to arrive, plus up to 3/4 depending on the rank
LAUNCHER_TIMEOUT = 1.0  # for the launcher to end a rank after rank 0 has ended


class Watchdog(MeasurementProgress):
    """Aborts the run unless every rank makes progress. Collective.

    Parameters
    ----------
    names: each rank's name in the report, in rank order.
    seconds: time-out at one position.
    on_report: called with the report on rank 0, or with one line on a rank that gets no answer from rank 0.
    It must write everything that a launcher needs, because the rank ends when it returns. end: ends all ranks
    with a status, through the launcher; may hang or return. network: the interface between hosts; None for
    any.

    Raises RunError, on every rank, if rank 0 cannot listen. warnings: on every rank, one for each rank that
    cannot connect to rank 0; such ranks are missing in a report.
    """

    def __init__(
        self,
        control: Control,
        names: Sequence[str],
        seconds: float,
        *,
        on_report: Callable[[str], None],
        end: Callable[[int], None],
        network: str | None = None,
    ) -> None:
        super().__init__()
        self._rank, self._names = control.rank, names
        self._on_report, self._end = on_report, end
        self._timer = StallTimer(seconds)
        self._stopped = threading.Event()
        self._hub = Hub(secrets.token_hex(16))
        self._connection: Connection | None = None
        self._unconnected: dict[int, str] = {}
        follow = self._lead if self._rank == 0 else self._follow
        self._thread = threading.Thread(target=follow, name="watchdog", daemon=True)
        if control.size > 1:
            self._connect(control, network)
        if not self._thread.is_alive():
            self._thread.start()

    @property
    def warnings(self) -> list[str]:
        return [
            f"[{self._names[rank]}] the watchdog cannot connect to rank 0: {reason}"
            for rank, reason in self._unconnected.items()
        ]

    def _connect(self, control: Control, network: str | None) -> None:
        stacks = control.allgather(network_stack())
        address = LOOPBACK if len(set(stacks)) == 1 else interface_address(network)
        offer = self._listen(control.size, address) if self._rank == 0 else None
        failure, candidates, port, token = control.broadcast(offer)
        if failure:
            raise RunError("rank 0 cannot listen for the watchdogs", why=failure, everywhere=True)
        reason = ""
        if self._rank:
            near = [LOOPBACK] if stacks[self._rank] == stacks[0] and LOOPBACK not in candidates else []
            outcome = connect([*near, *candidates], port, token, self._rank)
            if isinstance(outcome, Connection):
                self._connection = outcome
            else:
                reason = outcome
        reasons = control.allgather(reason)
        self._unconnected = {rank: reason for rank, reason in enumerate(reasons) if reason}

    def _listen(self, size: int, address: str) -> tuple[str, list[str], int, str]:
        """Listen on `address`, or on all; returns an error, the addresses to try, the port and the token."""
        try:
            port = self._hub.listen(size, address)
        except OSError as reason:
            return first_line(reason), [], 0, ""
        self._thread.start()  # the thread accepts connections
        return "", [address] if address else host_addresses(), port, self._hub.token

    def stop(self) -> None:
        super().stop()
        self._stopped.set()
        self._thread.join(2 * POLL_INTERVAL)

    def _is_stalled(self) -> bool:
        return self._timer.is_over(self._current, time.monotonic(), self.grace)

    # On rank 0.

    def _lead(self) -> None:
        while not self._stopped.is_set():
            messages = [message for _, message in self._hub.poll(POLL_INTERVAL)]
            if any("reported" in message for message in messages):
                os._exit(Exit.STUCK)  # this process was stopped in between, and another rank has reported
            if any("stuck" in message for message in messages) or self._is_stalled():
                self._report_and_end()
        self._hub.close()

    def _report_and_end(self) -> None:
        states = self._collect_positions()
        silent = {
            rank: self._unconnected.get(rank) or self._hub.disconnected.get(rank, "frozen, or its host gone")
            for rank in range(len(self._names))
            if rank not in states
        }
        text = format_report(self._names, states, silent, self._timer.timeout + self.grace)
        _within(REPORT_TIMEOUT, lambda: self._on_report(text))
        self._hub.broadcast({"end": Exit.STUCK})
        _within(ABORT_TIMEOUT, self.abort)
        self._exit()

    def _collect_positions(self) -> dict[int, Position | None]:
        """The positions of the ranks that answer in time."""
        self._hub.broadcast({"where": True})
        states = {0: self._position()}
        until = time.monotonic() + ANSWER_TIMEOUT
        while self._hub.connections.keys() - states.keys() and (left := until - time.monotonic()) > 0:
            for rank, message in self._hub.poll(left):
                if "state" in message:
                    state = message["state"]
                    states[rank] = None if state is None else Position(*state)
        return states

    # On the other ranks.

    def _follow(self) -> None:
        alarmed: float | None = None  # when this rank began to wait for rank 0's order
        while not self._stopped.is_set():
            for message in self._receive():
                if "where" in message:
                    self._send({"state": self._position()})
                    alarmed = alarmed or time.monotonic()
                if "end" in message:
                    self._end_on_order()
            if alarmed is None and self._is_stalled():
                self._send({"stuck": True})
                alarmed = time.monotonic()
            if alarmed is not None and time.monotonic() - alarmed > self._wait():
                self._end_alone()
        self._send({"bye": True})

    def _end_on_order(self) -> None:
        """Abort the device's work and exit once rank 0 has, unless the launcher ends this rank first.

        A launcher that finds a rank gone kills the others, and MPICH's then returns the signal's number
        instead of a status. So rank 0 ends first, through the launcher.
        """
        until = time.monotonic() + ABORT_TIMEOUT + FLUSH_TIMEOUT + FORWARD_DELAY + END_TIMEOUT
        _within(ABORT_TIMEOUT, self.abort)
        _within(FLUSH_TIMEOUT, _flush)
        while self._connection is not None and time.monotonic() < until:
            self._receive()
        time.sleep(LAUNCHER_TIMEOUT)
        os._exit(Exit.STUCK)

    def _receive(self) -> list[Message]:
        if self._connection is None:
            self._stopped.wait(POLL_INTERVAL)
            return []
        messages = self._connection.receive(POLL_INTERVAL)
        if messages is None:
            self._connection.close()
            self._connection = None
        return messages or []

    def _send(self, message: Message) -> None:
        if self._connection is not None:
            self._connection.send(message)

    def _wait(self) -> float:
        """Seconds to wait for the order; least on rank 1, so that the launcher ends the others before they
        report."""
        return ORDER_TIMEOUT + 0.75 * self._rank / len(self._names)

    def _end_alone(self) -> None:
        self._send({"reported": True})
        line = format_own_report(self._names[self._rank], self._position(), self._timer.timeout + self.grace)
        _within(REPORT_TIMEOUT, lambda: self._on_report(line))
        self._exit()

    # On all ranks.

    def _position(self) -> Position | None:
        state = self._current
        return None if state is None else Position(*state)

    def _exit(self) -> None:
        _within(FLUSH_TIMEOUT, _flush)
        time.sleep(FORWARD_DELAY)
        _within(END_TIMEOUT, lambda: self._end(Exit.STUCK))
        os._exit(Exit.STUCK)


def _within(seconds: float, action: Callable[[], None]) -> None:
    """Call `action` in a thread, and wait at most `seconds` for it."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(seconds)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
