"""The heartbeat: who is named and who is not, with the real processes, over the loopback.

A shell stands for the rank beside each process, so that the one which is killed is not pytest.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import RunError
from meshrun.runner.world import heartbeat, helper_process
from meshrun.runner.world.heartbeat import (
    PROCESS,
    Heartbeat,
    first_rank_per_host,
    lost_hosts_error,
    write_lost_note,
)
from meshrun.runner.world.heartbeat_process import SilenceTracker
from meshrun.runner.world.watchdog.channel import LOOPBACK, Connection, Hub, connect
from meshrun.runner.world.world import Rank, World

SECONDS = 1.0  # that a host may be silent
LAST = 1.5  # seconds for a rank to end the run
DEADLINE = 60.0  # seconds; nothing that is waited for takes a sixth of it
TOKEN = "secret"


# Who has been silent for how long.


def watched(**heard: float) -> SilenceTracker:
    return SilenceTracker(10.0, 0.0, {int(name[1:]): then for name, then in heard.items()})


def lost(silence: SilenceTracker, begin: float, end: float, tick: float = 1.0) -> list[int]:
    """Who is, when it is looked every `tick` seconds; nobody before `end`."""
    for n in range(1, round((end - begin) / tick)):
        assert silence.lost(begin + tick * n) == []
    return silence.lost(end)


def test_a_host_is_lost_after_its_time_and_not_before() -> None:
    silence = watched(r4=0.0, r8=0.5)
    assert lost(silence, 0, 10) == []
    assert silence.lost(10.25) == [4]
    assert silence.lost(11) == [4, 8]


def test_a_host_that_is_heard_begins_anew() -> None:
    silence = watched(r4=0.0, r8=0.0)
    assert lost(silence, 0, 9) == []
    silence.hear(4, 9)
    assert silence.lost(11) == [8]


def test_a_host_that_has_left_is_not_lost() -> None:
    silence = watched(r4=0.0, r8=0.0)
    silence.leave(4)
    silence.leave(4)
    assert lost(silence, 0, 11) == [8]


def test_time_that_this_process_slept_through_does_not_count() -> None:
    silence = watched(r4=0.0)
    assert lost(silence, 0, 9) == []
    assert silence.lost(1000.0) == []
    assert lost(silence, 1000, 1001) == []
    assert silence.lost(1001.5) == [4]


def test_nor_is_it_given_to_a_host_that_was_heard_after_it() -> None:
    silence = watched(r4=0.0)
    silence.hear(4, 1000.0)
    assert silence.lost(1000.0) == []
    assert lost(silence, 1000, 1010) == []
    assert silence.lost(1010.5) == [4]


# Processes.


class Started:
    """A process beside a rank, which is a shell; both in a group of their own."""

    def __init__(self, setting: dict[str, Any], before: str) -> None:
        words = ["sh", "-c", f'{before} "$@"; exit 0', "sh", *helper_process.command(PROCESS)]
        pipe = subprocess.PIPE
        self.rank = subprocess.Popen(words, stdin=pipe, stdout=pipe, start_new_session=True)
        self._stdin, self._stdout = self.rank.stdin, self.rank.stdout
        assert self._stdin is not None
        self._stdin.write(json.dumps(setting).encode() + b"\n")
        self._stdin.flush()

    def told(self) -> dict[str, Any]:
        """The next thing that it tells; nothing at its end."""
        assert self._stdout is not None
        readable, _, _ = select.select([self._stdout], [], [], DEADLINE)
        assert readable, "it told nothing"
        line = self._stdout.readline()
        return dict(json.loads(line)) if line else {}

    def leave(self) -> None:
        """The rank ends in order, as far as the process can tell."""
        assert self._stdin is not None
        self._stdin.close()

    def ended(self) -> int:
        return self.rank.wait(DEADLINE)

    def send(self, number: signal.Signals) -> None:
        os.killpg(self.rank.pid, number)

    def process(self) -> int:
        return int(Path(f"/proc/{self.rank.pid}/task/{self.rank.pid}/children").read_text())

    def close(self) -> None:
        if self.rank.poll() is None:
            self.send(signal.SIGKILL)
        self.rank.wait()
        for pipe in (self._stdin, self._stdout):
            assert pipe is not None
            pipe.close()


Start = Callable[..., Started]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Started] = []

    def one(before: str = "", **setting: Any) -> Started:
        made.append(Started({"token": TOKEN, "seconds": SECONDS, "last": LAST, **setting}, before))
        return made[-1]

    yield one
    for each in made:
        each.close()


@pytest.fixture
def lead(start: Start) -> Started:
    return start(others=2)


@pytest.fixture
def port(lead: Started) -> int:
    return int(lead.told()["port"])


@pytest.fixture
def follow(start: Start, port: int) -> Callable[[int], Started]:
    """Another host's process, connected."""

    def one(rank: int) -> Started:
        made = start(candidates=[LOOPBACK], port=port, rank=rank)
        assert made.told() == {"connected": True}
        return made

    return one


@pytest.fixture
def hub() -> Iterator[Hub]:
    opened = Hub(TOKEN)
    yield opened
    opened.close()


def joined(port: int, rank: int) -> Connection:
    line = connect([LOOPBACK], port, TOKEN, rank)
    assert isinstance(line, Connection)
    return line


def beats(line: Connection, count: int) -> None:
    """Be another host, for so many beats of rank 0's."""
    deadline = time.monotonic() + DEADLINE
    heard = 0
    while heard < count:
        assert time.monotonic() < deadline
        line.send({"beat": True})
        messages = line.receive(SECONDS / 10)
        assert messages is not None, "rank 0's process has ended"
        assert all(message == {"beat": True} for message in messages)
        heard += len(messages)


def answered(hub: Hub) -> list[tuple[int, Any]]:
    """Be rank 0's process, for what it hears in a moment."""
    said = list(hub.poll(SECONDS / 10))
    if said:
        hub.broadcast({"beat": True})
    return said


class Beating(threading.Thread):
    """Another host that goes on and on."""

    def __init__(self, line: Connection) -> None:
        super().__init__()
        self._line, self._over = line, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(SECONDS / 10):
            self._line.send({"beat": True})

    def end(self) -> None:
        self._over.set()
        self.join()


def test_rank_0_s_process_tells_its_port_and_beats(port: int) -> None:
    beats(joined(port, 1), 20)


def test_another_host_s_process_connects_and_beats(start: Start, hub: Hub) -> None:
    other = start(candidates=[LOOPBACK], port=hub.listen(1), rank=3)
    said: list[tuple[int, Any]] = []
    deadline = time.monotonic() + DEADLINE
    while len(said) < 12:  # for more than twice as long as it may be silent
        assert time.monotonic() < deadline
        said += answered(hub)
    assert said == [(3, {"beat": True})] * len(said)
    assert other.told() == {"connected": True}
    assert other.rank.poll() is None


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_frozen_or_dead_host_is_named(
    lead: Started, follow: Callable[[int], Started], number: signal.Signals
) -> None:
    sound, gone = follow(8), follow(16)
    gone.send(number)
    assert lead.told() == {"lost": [16]}
    assert sound.rank.poll() is None


def test_a_run_that_rank_0_cannot_end_is_ended_by_the_others_for_the_same_reason(
    lead: Started, follow: Callable[[int], Started]
) -> None:
    sound, gone = follow(8), follow(16)
    gone.send(signal.SIGSTOP)
    assert lead.told() == {"lost": [16]}
    assert sound.told() == {"lost": [16]}


def test_where_rank_0_can_the_others_say_nothing(lead: Started, follow: Callable[[int], Started]) -> None:
    sound, gone = follow(8), follow(16)
    gone.send(signal.SIGSTOP)
    assert lead.told() == {"lost": [16]}
    sound.leave()
    assert sound.told() == {}
    assert sound.ended() == 0


@pytest.mark.parametrize(
    ("variables", "note"),
    [
        ({"SLURM_JOB_ID": "17"}, "meshrun-17.lost"),
        (
            {"SLURM_JOB_ID": "20", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"},
            "meshrun-17_3.lost",
        ),
        ({}, None),
    ],
)
def test_a_loss_is_noted_in_a_slurm_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], note: str | None
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    write_lost_note(tmp_path, "host c2 silent")
    write_lost_note(tmp_path, "host c1 silent")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == (
        {note: "meshrun: host c1 silent\n"} if note else {}
    )


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_frozen_or_dead_rank_0_is_named_by_every_other_host(
    lead: Started, follow: Callable[[int], Started], number: signal.Signals
) -> None:
    others = [follow(8), follow(16)]
    lead.send(number)
    assert [other.told() for other in others] == [{"lost": [0]}] * 2


def test_a_host_whose_rank_ends_in_order_is_not_named(
    lead: Started, follow: Callable[[int], Started]
) -> None:
    first, second = follow(8), follow(16)
    first.leave()
    assert first.told() == {}
    assert first.ended() == 0
    second.send(signal.SIGSTOP)  # the first has been silent for longer
    assert lead.told() == {"lost": [16]}


def test_a_host_that_has_not_connected_is_not_named(port: int, lead: Started) -> None:
    joined(port, 8).send({"beat": True})
    assert lead.told() == {"lost": [8]}  # and the other has never been heard


def test_when_rank_0_ends_the_others_stop(lead: Started, follow: Callable[[int], Started]) -> None:
    others = [follow(8), follow(16)]
    lead.leave()
    for each in (lead, *others):
        assert each.told() == {}
        assert each.ended() == 0


def test_a_rank_that_ends_does_not_wait_for_the_next_beat(start: Start) -> None:
    """The launcher does wait, for all that its ranks have started."""
    patient = start(others=1, seconds=100 * DEADLINE)
    other = start(candidates=[LOOPBACK], port=patient.told()["port"], rank=1, seconds=100 * DEADLINE)
    other.told()
    for each in (other, patient):
        each.leave()
        assert each.told() == {}


def test_rank_0_s_process_that_was_stopped_itself_accuses_nobody(lead: Started, port: int) -> None:
    line = joined(port, 8)
    other = Beating(line)
    lead.send(signal.SIGSTOP)
    time.sleep(2 * SECONDS)
    lead.send(signal.SIGCONT)
    other.end()
    beats(line, 10)
    assert lead.told() == {"lost": [8]}  # now, and not before: it was there to send those beats


def test_another_host_s_process_that_was_stopped_itself_accuses_nobody(start: Start, hub: Hub) -> None:
    other = start(candidates=[LOOPBACK], port=hub.listen(1), rank=8)
    said: list[Any] = []

    def beat_until(enough: int) -> None:
        deadline = time.monotonic() + DEADLINE
        while len(said) < enough:
            assert time.monotonic() < deadline
            said.extend(answered(hub))

    beat_until(1)
    assert other.told() == {"connected": True}
    other.send(signal.SIGSTOP)
    time.sleep(2 * SECONDS)
    other.send(signal.SIGCONT)
    beat_until(len(said) + 4)
    assert other.told() == {"lost": [0]}


def test_a_rank_that_does_not_end_after_the_word_is_killed(lead: Started, port: int) -> None:
    joined(port, 8).send({"beat": True})
    assert lead.told() == {"lost": [8]}
    assert lead.ended() == -signal.SIGKILL


def test_a_rank_that_ends_after_the_word_is_not(lead: Started, port: int) -> None:
    joined(port, 8).send({"beat": True})
    assert lead.told() == {"lost": [8]}
    lead.leave()
    assert lead.ended() == 0


def test_signals_are_for_the_rank(lead: Started, port: int) -> None:
    line = joined(port, 8)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(lead.process(), number)
    beats(line, 5)


def test_a_wrong_token_is_no_host(start: Start, port: int, lead: Started) -> None:
    stranger = start(candidates=[LOOPBACK], port=port, rank=16, token="guessed")
    reason = f"{LOOPBACK} port {port}: another program listens there, not rank 0"
    assert stranger.told() == {"error": reason}
    assert stranger.ended() == 0
    joined(port, 8).send({"beat": True})
    assert lead.told() == {"lost": [8]}


def test_a_rank_0_that_cannot_listen_says_why_and_goes(start: Start) -> None:
    deaf = start("ulimit -n 4;", others=1)
    assert deaf.told() == {"error": "rank 0 cannot listen: Too many open files"}
    assert deaf.ended() == 0


def test_a_host_that_cannot_connect_says_why_and_goes(start: Start) -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
    apart = start(candidates=[LOOPBACK], port=port, rank=8)
    assert apart.told() == {"error": f"{LOOPBACK} port {port}: Connection refused"}
    assert apart.told() == {}
    assert apart.ended() == 0


# Ranks.


CPU = CpuBackend()


def ranks_on(*hosts: str) -> tuple[Rank, ...]:
    return tuple(
        Rank(number, host, f"{host}/boot", hosts[:number].count(host), 100 + number, CPU.device)
        for number, host in enumerate(hosts)
    )


def test_the_first_rank_of_every_host() -> None:
    assert first_rank_per_host(ranks_on("a", "a", "b", "b")) == [0, 2]
    assert first_rank_per_host(ranks_on("a", "b", "c", "a", "b", "c")) == [0, 1, 2]
    assert first_rank_per_host(ranks_on("a")) == [0]


def test_the_lost_are_told_with_their_ranks() -> None:
    ranks = ranks_on("a", "b", "c", "c", "b", "c")
    assert str(lost_hosts_error(ranks, [1, 2], 2.5)) == (
        "host b (ranks 1, 4), c (ranks 2-3, 5) silent for 2.5 s. Try: check the host's "
        "power, network and load; raise --host-timeout if hosts may pause for longer"
    )
    assert str(lost_hosts_error(ranks, [0], 15.0)).startswith("host a (rank 0) silent for 15 s")


class Ranks:
    """What heartbeats tell of simulated ranks. They are threads here, and all have pytest for a process."""

    def __init__(self, *hosts: str) -> None:
        self.ranks = ranks_on(*hosts)
        self.heartbeats: dict[int, Heartbeat] = {}
        self.told: dict[int, str] = {}

    def open(self, seconds: float = SECONDS) -> list[list[str]]:
        """The warnings of every rank."""
        return run_ranks(len(self.ranks), lambda comm: self._open(comm, seconds))

    def _open(self, comm: ThreadComm, seconds: float) -> list[str]:
        def on_loss(failure: RunError) -> None:
            self.end(comm.rank)  # at once: it would kill pytest
            self.told[comm.rank] = str(failure)

        world = World(comm, comm, CPU, self.ranks, "nonce")
        self.heartbeats[comm.rank] = Heartbeat(world, seconds, on_loss)
        return self.heartbeats[comm.rank].warnings

    @property
    def processes(self) -> dict[int, subprocess.Popen[str]]:
        """Beside which ranks there is one."""
        found = {rank: one._process for rank, one in sorted(self.heartbeats.items())}
        return {rank: process for rank, process in found.items() if process is not None}

    def end(self, rank: int) -> None:
        process = self.processes[rank]
        process.kill()
        process.wait()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ranks]]:
    monkeypatch.setattr(heartbeat, "host_addresses", lambda: [LOOPBACK])
    made: list[Ranks] = []

    def call(*hosts: str) -> Ranks:
        made.append(Ranks(*hosts))
        return made[-1]

    yield call
    for ranks in made:
        for rank in ranks.processes:
            ranks.end(rank)


def test_ranks_of_one_host_are_not_watched(
    opened: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "PROCESS", "/nowhere")
    ranks = opened("a", "a", "a")
    assert ranks.open() == [[], [], []]
    assert ranks.processes == {}


def test_a_process_beside_the_first_rank_of_every_host(opened: Callable[..., Ranks]) -> None:
    ranks = opened("a", "b", "a", "b", "c")
    assert ranks.open() == [[]] * 5
    assert list(ranks.processes) == [0, 1, 4]
    for process in ranks.processes.values():
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait(DEADLINE) for process in ranks.processes.values()] == [0, 0, 0]
    assert ranks.told == {}


def test_a_lost_host_is_told_to_rank_0_by_name(opened: Callable[..., Ranks]) -> None:
    ranks = opened("a", "a", "b", "b", "c")
    ranks.open()
    ranks.processes[2].send_signal(signal.SIGSTOP)
    wait_for(lambda: 0 in ranks.told)
    assert ranks.told[0].startswith(f"host b (ranks 2-3) silent for {SECONDS:g} s")


def test_a_lost_rank_0_is_told_to_the_others(opened: Callable[..., Ranks]) -> None:
    ranks = opened("a", "a", "b", "b", "c")
    ranks.open()
    ranks.processes[0].send_signal(signal.SIGSTOP)
    wait_for(lambda: {2, 4} <= ranks.told.keys())
    assert {text.partition(" silent")[0] for text in ranks.told.values()} == {"host a (ranks 0-1)"}
    assert 0 not in ranks.told


def test_a_host_that_cannot_connect_is_a_warning_and_the_others_are_watched(
    opened: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = opened("a", "b", "c")
    run = heartbeat.Heartbeat._start

    def start(self: Heartbeat, setting: dict[str, Any]) -> dict[str, Any]:
        return run(self, {**setting, "candidates": []} if setting.get("rank") == 2 else setting)

    monkeypatch.setattr(Heartbeat, "_start", start)
    reason = "rank 0's host has no address but the loopback"
    warning = f"host c is not watched, it cannot connect to rank 0: {reason}"
    assert ranks.open() == [[warning], [], []]
    ranks.processes[1].send_signal(signal.SIGSTOP)
    wait_for(lambda: 0 in ranks.told)
    assert ranks.told[0].startswith("host b (rank 1) silent")


def test_without_a_process_beside_rank_0_nobody_is_watched_and_it_says_so(
    opened: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "PROCESS", "/nowhere")
    ranks = opened("a", "b")
    assert ranks.open() == [["no host is watched: the heartbeat process ended immediately"], []]
    assert list(ranks.processes) == [0]


def test_where_no_process_can_be_started_nobody_is_watched_and_it_says_so(
    opened: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    ranks = opened("a", "b")
    assert ranks.open() == [
        ["no host is watched: cannot start the heartbeat process: Resource temporarily unavailable"],
        [],
    ]
    assert ranks.processes == {}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
