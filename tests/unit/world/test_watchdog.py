"""The watchdog: what it reports of any mixture of ranks, and how its threads find and answer each other.

Ranks here are threads; ends of processes are tested with real ranks in tests/faults/test_stuck.py.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.errors import RunError
from meshrun.runner.world.watchdog import channel, watchdog
from meshrun.runner.world.watchdog.channel import LOOPBACK, Connection, Handshake, Hub, connect
from meshrun.runner.world.watchdog.progress import MeasurementProgress, StallTimer
from meshrun.runner.world.watchdog.report import (
    BEFORE,
    DONE,
    INSIDE,
    Position,
    format_own_report,
    format_report,
    ranges,
)
from meshrun.runner.world.watchdog.watchdog import Watchdog

SUM = "all_reduce float sum, 1048576 B, out-of-place"
NEXT = "all_reduce float sum, 1048576 B, in-place"


def names(count: int) -> list[str]:
    return [f"rank {rank}, host c{rank // 8}, GPU {rank % 8}" for rank in range(count)]


def before(doing: str = "", sequence: int = 5, label: str = SUM) -> Position:
    return Position(sequence, BEFORE, 0, label, doing)


def inside(iteration: int, sequence: int = 5, label: str = SUM) -> Position:
    return Position(sequence, INSIDE, iteration, label, "")


def done(doing: str = "", sequence: int = 5, label: str = SUM) -> Position:
    return Position(sequence, DONE, 0, label, doing)


# The report.


def test_one_rank_has_not_entered() -> None:
    states: dict[int, Position | None] = dict.fromkeys(range(8), inside(7))
    states[2] = inside(6)
    assert format_report(names(8), states, {}, 20).splitlines() == [
        f"stuck: {SUM}, iteration 7: no progress for 20 s",
        "  not entered: rank 2, host c0, GPU 2 (in iteration 6)",
        "  entered, not finished: ranks 0-1, 3-7 (7 of 8)",
    ]


def test_a_rank_that_prepares_while_the_others_are_at_the_barrier() -> None:
    states: dict[int, Position | None] = dict.fromkeys(range(8), before("at the barrier"))
    states[3] = before("initialising data")
    assert format_report(names(8), states, {}, 2.5).splitlines() == [
        f"stuck: {SUM}: no progress for 2.5 s",
        "  not entered: rank 3, host c0, GPU 3 (initialising data)",
        "  not entered: ranks 0-2, 4-7 (7 of 8) (at the barrier)",
    ]


def test_every_kind_of_rank_at_once() -> None:
    states: dict[int, Position | None] = {
        0: before("at the barrier", 6, NEXT),
        1: inside(19),
        2: inside(20),
        3: done("at the barrier"),
        4: before("initialising data"),
        5: None,
        6: done("", 4, NEXT),
        7: before("", 5),
    }
    silent = {8: "frozen, or its host gone", 9: "its process ended"}
    assert format_report(names(10), states, silent, 1).splitlines() == [
        f"stuck: {SUM}, iteration 20: no progress for 1 s",
        "  not entered: rank 1, host c0, GPU 1 (in iteration 19)",
        "  not entered: rank 4, host c0, GPU 4 (initialising data)",
        f"  not entered: rank 6, host c0, GPU 6 (all iterations done of {NEXT})",
        "  not entered: rank 7, host c0, GPU 7 (before the first iteration)",
        "  entered, not finished: rank 2, host c0, GPU 2",
        f"  finished: rank 0, host c0, GPU 0 (at the barrier of {NEXT})",
        "  finished: rank 3, host c0, GPU 3 (all iterations done, at the barrier)",
        "  measuring nothing: rank 5, host c0, GPU 5",
        "  no answer: rank 8, host c1, GPU 0 (frozen, or its host gone)",
        "  no answer: rank 9, host c1, GPU 1 (its process ended)",
    ]


def test_who_went_ahead_is_not_blamed() -> None:
    """A root that has sent everything waits at the next barrier; the others are the ones that are stuck."""
    states: dict[int, Position | None] = dict.fromkeys(range(1, 4), inside(3))
    states[0] = before("at the barrier", 6, NEXT)
    headline, *rest = format_report(names(4), states, {}, 9).splitlines()
    assert headline == f"stuck: {SUM}, iteration 3: no progress for 9 s"
    assert rest[0].startswith("  entered, not finished: rank 1,")
    assert rest[1].startswith("  finished: rank 0, host c0, GPU 0 (at the barrier of")


def test_nobody_is_in_an_iteration() -> None:
    finished: dict[int, Position | None] = {0: done("at the barrier"), 1: done("checking")}
    assert format_report(names(2), finished, {}, 1).splitlines() == [
        f"stuck: {SUM}: no progress for 1 s",
        "  finished: rank 0, host c0, GPU 0 (all iterations done, at the barrier)",
        "  finished: rank 1, host c0, GPU 1 (all iterations done, checking)",
    ]


def test_no_rank_knows() -> None:
    headline, nothing, silent = format_report(names(2), {0: None}, {1: "its process ended"}, 3).splitlines()
    assert headline == "stuck: no rank reports its position, 3 s after the last progress"
    assert nothing == "  measuring nothing: rank 0, host c0, GPU 0"
    assert silent == "  no answer: rank 1, host c0, GPU 1 (its process ended)"


@pytest.mark.parametrize("seed", range(20))
def test_a_thousand_ranks_in_twenty_lines_each_accounted_for_once(seed: int) -> None:
    draw = random.Random(seed)
    places = [before("at the barrier"), before("initialising data"), done(), None]
    places += [inside(iteration) for iteration in range(1, 20)]
    places += [before(f"reading {n}", 6 + n, NEXT) for n in range(20)]
    states = {rank: draw.choice(places) for rank in range(0, 1024, 1 + seed % 3)}
    silent = {rank: f"reason {draw.randrange(30)}" for rank in range(1024) if rank not in states}
    lines = format_report(names(1024), states, silent, 60).splitlines()
    assert len(lines) <= 21
    assert max(map(len, lines)) < 250
    counts = [
        int(line.rpartition(" of 1024)")[0].rpartition("(")[2]) for line in lines if " of 1024)" in line
    ]
    named = sum(line.count(", host ") for line in lines)
    assert sum(counts) + named == 1024


def test_the_biggest_group_comes_last_and_small_ones_are_not_lost_among_many() -> None:
    states: dict[int, Position | None] = dict.fromkeys(range(1000), inside(9))
    states |= {rank: before(f"reading block {rank}") for rank in range(10, 20)}
    states[500] = inside(8)
    lines = format_report(names(1000), states, {}, 1).splitlines()
    assert len(lines) == 6
    assert lines[4] == "  not entered: ranks 13-19, 500 (8 of 1000) (at other points)"
    assert lines[5].startswith("  entered, not finished: ranks 0-9, 20-499, 501-999")


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([3, 4], "3-4"),
        ([0, 1, 2, 5], "0-2, 5"),
        ([1, 3, 5], "1, 3, 5"),
        (range(1024), "0-1023"),
        (range(0, 48, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, ..."),
        (range(0, 24, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22"),
    ],
)
def test_ranges(ranks: list[int], text: str) -> None:
    assert ranges(ranks) == text


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (
            inside(4),
            f"stuck: {SUM}, iteration 4: no progress for 2 s; [rank 1] had entered it and not finished",
        ),
        (before("at the barrier"), f"stuck: {SUM}: no progress for 2 s; [rank 1] had not entered it, at the"),
        (done(), f"stuck: {SUM}: no progress for 2 s; [rank 1] had finished it; rank 0 does not answer"),
        (None, "stuck: rank 0 requested the position of [rank 1] and no longer answers"),
    ],
)
def test_the_line_of_a_rank_that_rank_0_does_not_answer(state: Position | None, text: str) -> None:
    assert format_own_report("rank 1", state, 2).startswith(text)


# Where a rank is, and for how long.


def test_progress_in_the_order_of_a_measurement() -> None:
    progress = MeasurementProgress()
    steps = [
        lambda: progress.begin(SUM, "initialising data"),
        lambda: progress.before("at the barrier"),
        lambda: progress.enter(1),
        lambda: progress.enter(2),
        lambda: progress.done("at the barrier"),
        lambda: progress.begin(NEXT),
    ]
    seen = []
    for step in steps:
        step()
        assert progress._current is not None
        seen.append(Position(*progress._current))
    assert seen == [
        before("initialising data", 1),
        before("at the barrier", 1),
        inside(1, 1),
        inside(2, 1),
        done("at the barrier", 1),
        before("", 2, NEXT),
    ]
    positions = [state[:3] for state in seen[1:]]
    assert positions == sorted(set(positions))
    progress.pause()
    assert progress._current is None


def looks(timer: StallTimer, state: object, begin: float, end: float, tick: float = 0.25) -> list[bool]:
    count = round((end - begin) / tick)
    return [timer.is_over(state, begin + tick * n) for n in range(1, count + 1)]


def test_the_timer_is_over_when_one_state_has_lasted() -> None:
    timer = StallTimer(2.0)
    assert looks(timer, (1,), 0, 2.0) == [False] * 8
    same = (1, 2)
    timer = StallTimer(2.0)
    found = looks(timer, same, 0, 2.5)
    assert found == [False] * 8 + [True] * 2


def test_grace_is_time_on_top() -> None:
    timer, state = StallTimer(2.0), (1,)
    assert not any(looks(timer, state, 0, 4.0, tick=0.5)[:3])
    assert not timer.is_over(state, 4.5, grace=5.0)
    assert timer.is_over(state, 4.75)


def test_any_new_state_is_progress_even_an_equal_one() -> None:
    timer, progress = StallTimer(1.0), MeasurementProgress()
    for turn in range(20):
        progress.enter(1)
        assert not any(looks(timer, progress._current, turn, turn + 1.0))


def test_nothing_measured_never_lasts_too_long() -> None:
    assert not any(looks(StallTimer(1.0), None, 0, 100))


def test_time_that_this_process_did_not_run_does_not_count() -> None:
    timer, state = StallTimer(10.0), (1,)
    assert not any(looks(timer, state, 0, 5))
    assert not timer.is_over(state, 1000.0)  # stopped from the terminal, and continued
    assert any(looks(timer, state, 1000.0, 1006.0))


# The channel.


@pytest.fixture
def hub() -> Iterator[Hub]:
    opened = Hub("secret")
    yield opened
    opened.close()


def poll_until(hub: Hub, enough: int) -> list[tuple[int, dict[str, object]]]:
    said: list[tuple[int, dict[str, object]]] = []
    deadline = time.monotonic() + 30
    while len(said) < enough:
        assert time.monotonic() < deadline
        said += hub.poll(0.1)
    return said


def served(hub: Hub, stop: threading.Event) -> threading.Thread:
    thread = threading.Thread(target=lambda: [list(hub.poll(0.05)) for _ in iter(stop.is_set, True)])
    thread.start()
    return thread


def test_a_thousand_ranks_connect_and_answer(hub: Hub) -> None:
    count = 1000
    port = hub.listen(count)
    stop = threading.Event()
    server = served(hub, stop)
    lines: list[Connection | str] = []
    workers = [
        threading.Thread(
            target=lambda part: lines.extend(connect([LOOPBACK], port, "secret", r) for r in part),
            args=(range(start, count, 20),),
        )
        for start in range(20)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    stop.set()
    server.join()
    assert [line for line in lines if isinstance(line, str)] == []
    assert sorted(hub.connections) == list(range(count))
    hub.broadcast({"where": True})
    for line in lines:
        assert isinstance(line, Connection)
        assert line.receive(5) == [{"where": True}]
        line.send({"state": None})
    answers = poll_until(hub, count)
    assert sorted(rank for rank, _ in answers) == list(range(count))
    for line in lines:
        assert isinstance(line, Connection)
        line.close()


@pytest.mark.parametrize(
    "words",
    [
        b'{"token": "wrong", "rank": 1}\n{"stuck": true}\n',
        b'{"rank": 1}\n{"stuck": true}\n',
        b'{"rank": 1, "challenge": "00", "proof": "00"}\n{"stuck": true}\n',
        b'{"rank": true, "challenge": "00", "proof": "\xc3\xa9"}\n{"stuck": true}\n',
        b'{"token": "secret"}\n{"stuck": true}\n',
        b"GET / HTTP/1.1\r\n\r\n",
        b"[1, 2]\n",
        b'"token"\n',
        b"\xff\xfe\n",
        b"[" * 60000 + b"\n",
        b"x" * 200_000,
        b"",
    ],
    ids=lambda words: words[:20],
)
def test_strangers_are_ignored(hub: Hub, words: bytes) -> None:
    port = hub.listen(2)
    with socket.create_connection((LOOPBACK, port)) as stranger:
        try:
            stranger.sendall(words)
            stranger.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # thrown out already
        said = [message for _ in range(5) for message in hub.poll(0.1)]
    assert said == []
    assert hub.connections == {}
    assert hub.disconnected == {}


class Wire:
    """A relay between a rank and the hub that keeps what passes, as who listens on the network would."""

    def __init__(self, port: int) -> None:
        self.passed: dict[str, bytes] = {"peer": b"", "root": b""}
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self._target = port
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._relay, daemon=True).start()

    def _relay(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection((LOOPBACK, self._target))
        self._ends = [near, far]
        for one, other, of in ((near, far, "peer"), (far, near, "root")):
            threading.Thread(target=self._copy, args=(one, other, of), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket, of: str) -> None:
        try:
            while chunk := one.recv(1 << 16):
                self.passed[of] += chunk
                for byte in chunk:  # in pieces as small as can be
                    other.sendall(bytes([byte]))
        except OSError:
            return

    def inject(self, text: bytes) -> None:
        self._ends[1].sendall(text)

    def close(self) -> None:
        for each in (self._listener, *self._ends):
            each.close()


@dataclass
class Sniffed:
    """A rank's connection through a wire, after one message."""

    wire: Wire
    connection: Connection


@pytest.fixture
def sniffed(hub: Hub) -> Iterator[Sniffed]:
    wire = Wire(hub.listen(2))
    stop = threading.Event()
    server = served(hub, stop)
    connection = connect([LOOPBACK], wire.port, "secret", 3)
    stop.set()
    server.join()
    assert isinstance(connection, Connection)
    connection.send({"state": None})
    assert poll_until(hub, 1) == [(3, {"state": None})]
    yield Sniffed(wire, connection)
    connection.close()
    wire.close()


def test_the_secret_is_not_sent_and_messages_arrive_in_pieces(hub: Hub, sniffed: Sniffed) -> None:
    assert sniffed.wire.passed["peer"].endswith(b'{"state": null}\n')
    assert b"secret" not in b"".join(sniffed.wire.passed.values())
    hub.broadcast({"where": True})
    until(lambda: sniffed.connection.receive(0.1) == [{"where": True}])


@pytest.mark.parametrize("kind", ["the same message again", "an invented message", "one of another number"])
def test_what_is_put_into_a_connection_ends_it_unheard(hub: Hub, sniffed: Sniffed, kind: str) -> None:
    last = sniffed.wire.passed["peer"].splitlines(keepends=True)[-1]
    texts = {
        "the same message again": last,
        "an invented message": b'{"stuck": true}\n',
        "one of another number": last.replace(b"null", b"true"),
    }
    sniffed.wire.inject(texts[kind])
    deadline = time.monotonic() + 30
    while hub.connections:
        assert time.monotonic() < deadline
        assert list(hub.poll(0.1)) == []
    assert hub.disconnected == {3: "its process ended"}


def test_a_whole_conversation_again_admits_nobody(hub: Hub, sniffed: Sniffed) -> None:
    admitted = dict(hub.connections)
    with socket.create_connection((LOOPBACK, hub._listener.getsockname()[1])) as stranger:  # type: ignore[union-attr]
        stranger.sendall(sniffed.wire.passed["peer"])
        assert [message for _ in range(5) for message in hub.poll(0.05)] == []
    assert hub.connections == admitted


def test_silent_strangers_are_bounded_in_number_and_shut_nobody_out(hub: Hub) -> None:
    port = hub.listen(2)
    strangers = [socket.create_connection((LOOPBACK, port)) for _ in range(channel.MIN_STRANGERS - 1)]
    stop = threading.Event()
    server = served(hub, stop)
    strangers += [socket.create_connection((LOOPBACK, port)) for _ in range(3 * channel.MIN_STRANGERS)]
    connection = connect([LOOPBACK], port, "secret", 1)
    stop.set()
    server.join()
    assert isinstance(connection, Connection)
    assert len(hub._strangers) <= channel.MIN_STRANGERS
    assert list(hub.connections) == [1]
    for each in (*strangers, connection):
        each.close()


def test_a_silent_stranger_is_dropped(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "HANDSHAKE_TIMEOUT", 0.1)
    port = hub.listen(2)
    with socket.create_connection((LOOPBACK, port)) as stranger:
        stranger.settimeout(0.01)
        deadline = time.monotonic() + 30
        heard = b"-"
        while heard:
            assert time.monotonic() < deadline
            assert list(hub.poll(0.02)) == []
            try:
                heard = stranger.recv(1024)
            except TimeoutError:
                continue
    assert hub.disconnected == {}


def test_ranks_of_one_host_meet_on_the_loopback_only(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[str] = []
    listen = Hub.listen

    def heard(self: Hub, peers: int, address: str = "") -> int:
        addresses.append(address)
        return listen(self, peers, address)

    monkeypatch.setattr(Hub, "listen", heard)

    def rank_main(comm: ThreadComm) -> list[str]:
        dog = make(comm, ends)
        comm.barrier()
        dog.stop()
        return dog.warnings

    assert run_ranks(2, rank_main) == [[], []]
    assert addresses == [LOOPBACK]


def test_an_interface_has_an_address() -> None:
    assert channel.interface_address("lo") == LOOPBACK
    assert channel.interface_address("none-of-that-name") == channel.interface_address(None) == ""


def test_who_leaves_and_who_is_lost(hub: Hub) -> None:
    port = hub.listen(2)
    stop = threading.Event()
    server = served(hub, stop)
    polite, lost = (connect([LOOPBACK], port, "secret", rank) for rank in (1, 2))
    stop.set()
    server.join()
    assert isinstance(polite, Connection)
    assert isinstance(lost, Connection)
    polite.send({"bye": True})
    lost.close()
    deadline = time.monotonic() + 30
    while hub.connections:
        assert time.monotonic() < deadline
        assert list(hub.poll(0.1)) == []
    assert hub.disconnected == {1: "it had no measurements left", 2: "its process ended"}
    polite.close()


def test_connect_says_why_it_could_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "CONNECT_TIMEOUT", 0.3)
    assert connect([], 1, "secret", 1) == "rank 0's host has no address but the loopback"
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        # Somebody listens there and says nothing.
        found = connect([LOOPBACK], port, "secret", 1)
        assert found == f"{LOOPBACK} port {port}: another program listens there, not rank 0"
    assert connect([LOOPBACK], port, "secret", 1) == f"{LOOPBACK} port {port}: Connection refused"


def test_the_next_address_is_tried(hub: Hub) -> None:
    port = hub.listen(1)
    stop = threading.Event()
    server = served(hub, stop)
    line = connect(["127.0.0.9.invalid", LOOPBACK], port, "secret", 1)
    stop.set()
    server.join()
    assert isinstance(line, Connection)
    line.close()


def test_addresses_lead_here_and_not_to_the_loopback(hub: Hub) -> None:
    found = channel.host_addresses()
    assert len(found) == len(set(found)) <= channel.MAX_CANDIDATES
    port = hub.listen(len(found))
    for address in found:
        assert not address.startswith("127.")
        with socket.create_connection((address, port), 5):
            pass


# Whole watchdogs, on ranks that are threads; the end of a process is replaced.


@dataclass
class Ends:
    """What ended whom. exits: (rank, status), in order."""

    exits: list[tuple[str, int]]
    reports: list[tuple[int, str]]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    happened = Ends([], [])

    def leave(status: int) -> None:
        happened.exits.append((threading.current_thread().name, status))
        raise SystemExit(status)  # ends this thread

    told = threading.excepthook  # pytest's, which takes that for a failure

    def tell(what: threading.ExceptHookArgs) -> None:
        if what.exc_type is not SystemExit:
            told(what)

    monkeypatch.setattr(threading, "excepthook", tell)
    monkeypatch.setattr(watchdog.os, "_exit", leave)
    short = {
        "POLL_INTERVAL": 0.02,
        "ABORT_TIMEOUT": 0.2,
        "FLUSH_TIMEOUT": 0.2,
        "END_TIMEOUT": 0.2,
        "LAUNCHER_TIMEOUT": 0.1,
    }
    for name, seconds in short.items():
        monkeypatch.setattr(watchdog, name, seconds)
    return happened


def make(comm: ThreadComm, ends: Ends, seconds: float = 0.5, abort: object = None) -> Watchdog:
    dog = Watchdog(
        comm,
        names(comm.size),
        seconds,
        on_report=lambda text: ends.reports.append((comm.rank, text)),
        end=lambda status: ends.exits.append((f"launcher by rank {comm.rank}", status)),
    )
    if callable(abort):
        dog.abort = abort
    dog._thread.name = f"rank {comm.rank}"
    return dog


def until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_a_stuck_rank_ends_all_and_the_launcher_hears_it_first(ends: Ends) -> None:
    def rank_main(comm: ThreadComm) -> list[str]:
        dog = make(comm, ends)
        dog.begin(SUM, "initialising data")
        dog.enter(1)
        if comm.rank != 2:
            dog.enter(2)
        until(lambda: not dog._thread.is_alive())
        return dog.warnings

    assert run_ranks(4, rank_main) == [[]] * 4
    ((rank, text),) = ends.reports
    assert rank == 0
    assert text.splitlines()[1:] == [
        "  not entered: rank 2, host c0, GPU 2 (in iteration 1)",
        "  entered, not finished: rank 0, host c0, GPU 0; rank 1, host c0, GPU 1; rank 3, host c0, GPU 3",
    ]
    assert ends.exits[:2] == [("launcher by rank 0", 4), ("rank 0", 4)]
    assert sorted(ends.exits[2:]) == [("rank 1", 4), ("rank 2", 4), ("rank 3", 4)]


def test_progress_keeps_everyone_alive_and_stop_ends_the_threads(ends: Ends) -> None:
    def rank_main(comm: ThreadComm) -> bool:
        dog = make(comm, ends)
        for size in range(3):
            dog.begin(f"{SUM} {size}")
            for iteration in range(10):
                dog.enter(iteration + 1)
                time.sleep(0.05)
            dog.done()
        dog.pause()
        time.sleep(1.0)  # twice what is allowed between two steps
        comm.barrier()
        dog.stop()
        until(lambda: not dog._thread.is_alive())
        return True

    assert run_ranks(3, rank_main) == [True] * 3
    assert ends == Ends([], [])


def test_a_hanging_abort_does_not_stop_the_end(ends: Ends) -> None:
    for_ever = threading.Event()

    def rank_main(comm: ThreadComm) -> None:
        dog = make(comm, ends, abort=for_ever.wait)
        dog.begin(SUM)
        until(lambda: not dog._thread.is_alive())

    run_ranks(2, rank_main)
    for_ever.set()
    assert {rank for rank, _ in ends.exits} == {"rank 0", "rank 1", "launcher by rank 0"}


def test_a_silent_rank_0_is_not_waited_for(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "ORDER_TIMEOUT", 0.3)
    monkeypatch.setattr(Watchdog, "_report_and_end", lambda self: self._stopped.wait())

    def rank_main(comm: ThreadComm) -> None:
        dog = make(comm, ends)
        dog.begin(SUM)
        dog.enter(3)
        if comm.rank:
            until(lambda: not dog._thread.is_alive())
        comm.barrier()
        dog.stop()

    run_ranks(3, rank_main)
    assert sorted(rank for rank, _ in ends.reports) == [1, 2]
    for rank, text in ends.reports:
        assert text == (
            f"stuck: {SUM}, iteration 3: no progress for 0.5 s; [{names(3)[rank]}] had entered it and not "
            "finished; rank 0 does not answer: frozen or gone"
        )
    assert {rank for rank, _ in ends.exits} >= {"rank 1", "rank 2"}


def test_without_rank_0_the_first_of_the_others_waits_least(ends: Ends) -> None:
    """So that the launcher ends the others before they report."""

    def rank_main(comm: ThreadComm) -> float:
        dog = make(comm, ends)
        comm.barrier()
        dog.stop()
        return dog._wait()

    waits = run_ranks(4, rank_main)[1:]
    assert waits == sorted(waits)
    assert max(waits) < min(waits) + 3 / 4
    assert len(set(waits)) == 3


def test_a_rank_0_that_wakes_up_after_the_others_have_told_adds_nothing(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its process was stopped, and the launcher continues it to end it."""
    monkeypatch.setattr(watchdog, "ORDER_TIMEOUT", 0.3)
    frozen, poll = threading.Event(), Hub.poll

    def poll_later(self: Hub, seconds: float) -> Iterator[tuple[int, dict[str, object]]]:
        if self.connections:
            frozen.wait()
        return poll(self, seconds)

    def rank_main(comm: ThreadComm) -> None:
        dog = make(comm, ends)
        monkeypatch.setattr(Hub, "poll", poll_later)
        comm.barrier()
        if comm.rank:
            dog.begin(SUM)
            until(lambda: not dog._thread.is_alive())
        comm.barrier()
        frozen.set()
        until(lambda: not dog._thread.is_alive())

    run_ranks(2, rank_main)
    assert [rank for rank, _ in ends.reports] == [1]
    assert ends.exits[-1] == ("rank 0", 4)


def test_a_rank_that_cannot_connect_is_told_and_reported(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def unless_1(candidates: list[str], port: int, token: str, rank: int) -> Connection | str:
        return "no route" if rank == 1 else connect(candidates, port, token, rank)

    monkeypatch.setattr(watchdog, "connect", unless_1)
    monkeypatch.setattr(watchdog, "ORDER_TIMEOUT", 60.0)

    def rank_main(comm: ThreadComm) -> list[str]:
        dog = make(comm, ends)
        dog.begin(SUM)
        dog.enter(1)
        if comm.rank != 1:
            until(lambda: not dog._thread.is_alive())
        comm.barrier()
        dog.stop()
        return dog.warnings

    sentence = "[rank 1, host c0, GPU 1] the watchdog cannot connect to rank 0: no route"
    assert run_ranks(3, rank_main) == [[sentence]] * 3
    ((_, text),) = ends.reports
    assert text.endswith("\n  no answer: rank 1, host c0, GPU 1 (no route)")


def test_rank_0_that_cannot_listen_is_an_error_everywhere(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Hub, peers: int, address: str = "") -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Hub, "listen", refuse)

    def rank_main(comm: ThreadComm) -> str:
        with pytest.raises(RunError, match="cannot listen") as caught:
            make(comm, ends)
        assert caught.value.everywhere
        return str(caught.value)

    found = run_ranks(2, rank_main)
    assert len(set(found)) == 1
    assert "Too many open files" in found[0]


def test_a_rank_alone_opens_no_port(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Hub, "listen")
    dog = make(ThreadComm(), ends)
    dog.begin(SUM)
    dog.enter(5)
    until(lambda: not dog._thread.is_alive())
    assert ends.reports == [
        (
            0,
            f"stuck: {SUM}, iteration 5: no progress for 0.5 s\n"
            "  entered, not finished: rank 0, host c0, GPU 0",
        )
    ]
    assert ends.exits == [("launcher by rank 0", 4), ("rank 0", 4)]


def test_what_rank_0_says_at_once_is_not_lost() -> None:
    """Proof and messages may come in one piece."""
    with socket.create_server((LOOPBACK, 0)) as listener:

        def answer() -> None:
            accepted, _ = listener.accept()
            root = Connection(accepted)
            root.send({"challenge": root.challenge})
            greeting = root.first(5)
            assert greeting is not None
            handshake = Handshake("secret", root.challenge, greeting["challenge"], 1)
            pieces: list[bytes] = []
            root._socket = Pieces(pieces)  # type: ignore[assignment]
            root.send({"proof": handshake.proof("root")})
            root.secure(handshake, "root", "peer")
            root.send({"where": True})
            root.send({"end": 4})
            accepted.sendall(b"".join(pieces))
            accepted.close()

        thread = threading.Thread(target=answer)
        thread.start()
        line = connect([LOOPBACK], listener.getsockname()[1], "secret", 1)
        thread.join()
    assert isinstance(line, Connection)
    assert line.receive() == [{"where": True}, {"end": 4}]
    line.close()


@dataclass
class Pieces:
    """Keeps what is sent."""

    sent: list[bytes]

    def sendall(self, data: bytes) -> None:
        self.sent.append(data)
