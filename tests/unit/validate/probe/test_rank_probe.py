"""The probe of ranks, on ranks as threads: measurements, wrong data, and ends."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import dataclasses
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshrun import World
from meshrun.jobs.validate.ladder.ladder import climb_ladder
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.probe import buffers as ranks_buffers
from meshrun.jobs.validate.probe import sampling, single_rank
from meshrun.jobs.validate.probe.api import OPERAND_BYTES, SINGLE_RANK_OPS, LoadReadings, RankPlace, WrongData
from meshrun.jobs.validate.probe.buffers import fit_to_devices
from meshrun.jobs.validate.probe.gpu_load import GpuLoad, LoadQuantity
from meshrun.jobs.validate.probe.multi_rank import RingCommunicators
from meshrun.jobs.validate.probe.rank_probe import RankProbe, gather, host_names, open_probe
from meshrun.runner.comm.collectives.api import Call
from meshrun.runner.comm.collectives.host import HostMark
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.device.raw.memory import Memory
from meshrun.runner.errors import MeshrunError, RunError, UserError
from meshrun.runner.world.watchdog.watchdog import MeasurementProgress
from meshrun.runner.world.world import open_world

KIB, MIB = 1 << 10, 1 << 20
Script = Callable[[RankProbe], Any]


# Bodies of ranks; the tests with MPI ranks and with GPUs use them too.


class Altered:
    """Collectives that run `after(call)` after each call of `nbytes` on this rank."""

    def __init__(self, inner: Any, nbytes: int, after: Callable[[Call], object]) -> None:
        self.inner, self.nbytes, self.after = inner, nbytes, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def bind(self, call: Call) -> Any:
        return self._followed(self.inner.bind(call), call)

    def message(self, call: Call, **ends: Any) -> Any:
        return self._followed(self.inner.message(call, **ends), call)

    def _followed(self, made: Callable[[], object], call: Call) -> Callable[[], object]:
        if call.count * call.datatype.itemsize != self.nbytes:
            return made

        def run() -> None:
            made()
            self.after(call)

        return run


def alter(world: World, nbytes: int, after: Callable[[Call], object]) -> None:
    """Run `after` after every call of `nbytes` on this rank."""
    open_collectives = world.collectives
    world.collectives = lambda group: Altered(open_collectives(group), nbytes, after)


def flip(offset: int) -> Callable[[Call], None]:
    """Flip the lowest bit of the received byte at `offset`."""

    def after(call: Call) -> None:
        call.recv.bytes(offset + 1)[offset] ^= 1

    return after


class Clock(threading.local):
    """A clock for each rank, which only advances when it is read or when a test spends time."""

    look = 0.001
    seconds = 0.0

    def spend(self, seconds: float) -> None:
        self.seconds += seconds

    def read(self) -> float:
        self.spend(self.look)
        return self.seconds


def simulated_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Install the clock for ranks on CPUs."""
    clock = Clock()
    monkeypatch.setattr(CpuBackend, "mark", lambda backend: clock.read())
    monkeypatch.setattr(HostMark, "record", lambda mark: setattr(mark, "seconds", clock.read()))
    return clock


def slow_alone(monkeypatch: pytest.MonkeyPatch, spend: Callable[[World], object]) -> None:
    """Precede each single-rank operation by `spend`, which is timed with it."""
    timed = single_rank.backend_seconds

    def slowly(world: World, queue: Callable[[], object], count: int) -> float:
        return timed(world, lambda: (spend(world), queue()), count)

    monkeypatch.setattr(single_rank, "backend_seconds", slowly)


def lead_or_follow(world: World, script: Script, progress: MeasurementProgress | None = None) -> Any:
    """Run `script` on rank 0 while the others follow. Returns its result on rank 0, None elsewhere."""
    with open_probe(world, progress or MeasurementProgress()) as probe:
        if world.rank:
            return probe.follow()
        with probe.lead():
            return script(probe)


def circle(size: int) -> list[tuple[int, int]]:
    return [(rank, (rank + 1) % size) for rank in range(size)] if size > 1 else []


def everything(probe: RankProbe) -> dict[str, Any]:
    size = probe.world.size
    found: dict[str, Any] = {
        "memory": probe.single_rank("memory", 100 * KIB + 1, 3),
        "product": probe.single_rank("product", 64 * KIB, 3),
        "tensor": probe.single_rank("tensor", 32 * KIB, 3),
        "flows": probe.flows(circle(size), 64 * KIB + 3, 4),
        "rings": probe.rings([range(size)], 64 * KIB, 5),
        "wrong": probe.wrong_data(),
    }
    return found


def unlike_everything(found: dict[str, Any], size: int) -> list[str]:
    """Return what differs from the expected results of `everything`."""
    shapes = {
        "memory": (size, 3),
        "product": (size, 3),
        "tensor": (size, 3),
        "flows": (size if size > 1 else 0, 4),
        "rings": (1, 5),
    }
    faults = [f"{name}: {found[name].shape}" for name, shape in shapes.items() if found[name].shape != shape]
    faults += [name for name in shapes if not (found[name] > 0).all()]
    return faults + [str(wrong) for wrong in found["wrong"]]


def in_groups_of(world: World, groups: tuple[tuple[int, ...], ...]) -> list[int] | None:
    """Return the ranks of this rank's group in communicator order; None without a group."""
    rings = RingCommunicators(world, world.collectives(world.control))
    group = rings.of(groups)
    found = None if group is None else group.control.allgather(world.rank)
    rings.close()
    return found


# Ranks as threads


def ranks(size: int, body: Callable[[World], Any], hosts: Sequence[str] = ("a",)) -> list[Any]:
    """Run `body` on each rank; returns the results. Ranks are assigned to hosts in turn; names may repeat."""

    def main(comm: ThreadComm) -> Any:
        world = open_world("cpu", control=comm)
        numbers = [rank.number % len(hosts) for rank in world.ranks]
        world.ranks = tuple(
            dataclasses.replace(
                rank, host=hosts[host], host_id=f"id{host}", local=numbers[: rank.number].count(host)
            )
            for rank, host in zip(world.ranks, numbers, strict=True)
        )
        return body(world)

    return run_ranks(size, main)


def on_rank_0(size: int, script: Script, prepare: Callable[[World], object] = id) -> Any:
    def body(world: World) -> Any:
        prepare(world)
        return lead_or_follow(world, script)

    return ranks(size, body)[0]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_everything_is_measured_and_right(size: int) -> None:
    assert unlike_everything(on_rank_0(size, everything), size) == []


def test_hosts_and_places() -> None:
    def script(probe: RankProbe) -> Any:
        return host_names(probe.world), probe.hosts, probe.places, probe.unavailable

    names, hosts, places, unavailable = ranks(
        5, lambda world: lead_or_follow(world, script), ["n", "m", "n"]
    )[0]
    assert names == ["n#1", "m", "n#2", "n#1", "m"]
    assert hosts == ["n#1", "m", "n#2"]
    expected = [
        RankPlace(0, 0, 0),
        RankPlace(1, 1, 0),
        RankPlace(2, 2, 0),
        RankPlace(3, 0, 1),
        RankPlace(4, 1, 1),
    ]
    assert [replace(place, model="") for place in places] == expected
    assert all(place.model for place in places)
    assert unavailable == {"host": "ranks on CPUs have no host-to-GPU link"}


@pytest.mark.parametrize("what", ["to_device", "to_host"])
def test_what_a_cpu_cannot_measure(what: Any) -> None:
    assert np.isnan(on_rank_0(2, lambda probe: probe.single_rank(what, KIB, 2))).all()


def test_who_sends_to_whom() -> None:
    """Rank 1 receives and sends, rank 3 only takes part in the barriers."""
    ends: dict[int, set[tuple[int | None, int | None]]] = {}

    def spy(world: World) -> None:
        made = world.collectives(world.control)

        def message(call: Call, **how: Any) -> Any:
            ends.setdefault(world.rank, set()).add((how["send_to"], how["receive_from"]))
            return type(made).message(made, call, **how)

        made.message = message
        world.collectives = lambda group: made

    found = on_rank_0(4, lambda probe: probe.flows([(0, 1), (1, 2)], KIB, 2), spy)
    assert found.shape == (2, 2)
    assert ends == {0: {(1, None)}, 1: {(2, 0)}, 2: {(None, 1)}}


def test_a_slow_rank_is_a_slow_row(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = simulated_clock(monkeypatch)
    slow_alone(monkeypatch, lambda world: clock.spend(0.05 * (world.rank == 2)))

    def prepare(world: World) -> None:
        if world.rank == 2:
            alter(world, KIB, lambda call: clock.spend(0.05))

    def script(probe: RankProbe) -> Any:
        flows = probe.flows([(0, 1), (1, 0), (2, 3)], KIB, 3)
        return probe.single_rank("memory", KIB, 3), flows, probe.rings([[0, 1], [3, 2]], KIB, 3)

    alone, flows, rings = on_rank_0(4, script, prepare)
    assert alone == pytest.approx(np.array([[0.001] * 3, [0.001] * 3, [0.051] * 3, [0.001] * 3]))
    assert flows == pytest.approx(np.array([[0.001] * 3, [0.001] * 3, [0.051] * 3]))
    assert rings == pytest.approx(np.array([[0.001] * 3, [0.051] * 3]))


def test_a_real_clock_measures() -> None:
    def prepare(world: World) -> None:
        if world.rank == 1:
            alter(world, KIB, lambda call: time.sleep(0.02))

    found = on_rank_0(2, lambda probe: probe.flows([(0, 1)], KIB, 2), prepare)
    assert (found >= 0.02).all()


def test_what_a_hypervisor_takes_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 2 is slow because of stolen processors, rank 1 for another reason."""
    clock, mine = simulated_clock(monkeypatch), threading.local()

    def stolen(cores: set[int]) -> float:
        assert cores == os.sched_getaffinity(0)
        return float(getattr(mine, "stolen", 7.0))

    def steal(rank: int) -> None:
        clock.spend(0.06 * (rank in (1, 2)))
        mine.stolen = stolen(os.sched_getaffinity(0)) + 0.06 * (rank == 2)

    slow_alone(monkeypatch, lambda world: steal(world.rank))
    monkeypatch.setattr(sampling, "stolen_seconds", stolen)
    monkeypatch.setattr(sampling, "TOO_SHORT", 0.05)

    def prepare(world: World) -> None:
        alter(world, KIB, lambda call: steal(world.rank))

    def script(probe: RankProbe) -> Any:
        flows = [probe.flows([flow], KIB, 3) for flow in ((0, 3), (3, 1), (2, 3), (3, 2))]
        rings = [probe.rings([group], KIB, 3) for group in ((0, 3), (1, 0), (3, 2))]
        return probe.single_rank("memory", KIB, 3), flows, rings

    alone, flows, rings = on_rank_0(4, script, prepare)
    # At least a tenth of a sample is kept, however much is counted as stolen: 0.0061 s of 0.061 s.
    assert alone[:, 0] == pytest.approx([0.001, 0.061, 0.0061, 0.001])
    assert [found[0, 0] for found in flows] == pytest.approx([0.001, 0.061, 0.0061, 0.0061])
    assert [found[0, 0] for found in rings] == pytest.approx([0.001, 0.061, 0.0061])


@pytest.mark.parametrize("nbytes", [KIB, 3 * MIB])
def test_a_flipped_bit_in_a_flow(nbytes: int) -> None:
    def prepare(world: World) -> None:
        if world.rank == 1:
            alter(world, nbytes, flip(1000))

    def script(probe: RankProbe) -> Any:
        probe.flows([(0, 1), (1, 2), (2, 0)], nbytes, 3)
        return probe.wrong_data(), probe.wrong_data()

    found, later = on_rank_0(3, script, prepare)
    assert [dataclasses.replace(one, got="", expected="") for one in found] == [
        WrongData("flows", 1, 0, nbytes, 1000, 1, "", "")
    ] * 2, "in the first sample and in the last"
    assert later == []
    got, expected = (int(word.split()[0]) for word in (found[0].got, found[0].expected))
    assert got ^ expected == 1
    assert found[0].expected != found[1].expected, "other data each time"


def test_a_flipped_bit_in_a_ring() -> None:
    def prepare(world: World) -> None:
        if world.rank == 3:
            alter(world, 16 * KIB, flip(1002))

    def script(probe: RankProbe) -> Any:
        probe.rings([[0, 1], [2, 3]], 16 * KIB, 1)
        return probe.wrong_data()

    (found,) = on_rank_0(4, script, prepare)
    assert (found.what, found.rank, found.source, found.nbytes) == ("rings", 3, None, 16 * KIB)
    assert (found.offset, found.count) == (1002, 1)


@pytest.mark.parametrize(
    ("what", "offset"), [("memory", 777), ("product", 4 * 777 + 1), ("tensor", 4 * 777 + 1)]
)
def test_a_flipped_bit_alone(what: Any, offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = single_rank.backend_seconds

    def flipping(world: World, queue: Any, count: int) -> float:
        seconds = timed(world, queue, count)
        if world.rank == 1:
            target = queue.keywords.get("out", queue.args[0])
            target.reshape(-1).view(np.uint8)[offset] ^= 4
        return seconds

    monkeypatch.setattr(single_rank, "backend_seconds", flipping)

    def script(probe: RankProbe) -> Any:
        probe.single_rank(what, 64 * KIB, 2)
        return probe.wrong_data()

    first, second = on_rank_0(2, script)
    for found in first, second:
        assert (found.what, found.rank, found.source) == (what, 1, 1)
        assert (found.nbytes, found.offset, found.count) == (64 * KIB, offset, 1)
        assert found.got != found.expected


def test_a_row_of_a_product_that_was_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte is wrong unless it equals the poison by chance."""
    timed = single_rank.backend_seconds

    def dropping(world: World, queue: Any, count: int) -> float:
        a, b = queue.args
        return timed(world, lambda: np.matmul(a[:100], b, out=queue.keywords["out"][:100]), count)

    monkeypatch.setattr(single_rank, "backend_seconds", dropping)
    monkeypatch.setattr(single_rank, "BLOCK", 1000)

    def script(probe: RankProbe) -> Any:
        probe.rings([[0]], 112 * 112 * 4, 1)
        probe.single_rank("product", 112 * 112 * 4, 1)
        return probe.wrong_data()

    (found,) = on_rank_0(1, script)
    assert found.offset == 100 * 112 * 4
    assert found.count == 12 * 112 * 4
    assert "0xa5a5a5a5" in found.got


def test_data_that_never_arrived() -> None:
    """Neither earlier data nor the signal hides it."""

    def prepare(world: World) -> None:
        made = world.collectives(world.control)
        send = made.message
        made.message = lambda call, **ends: (lambda: None) if call.count == KIB else send(call, **ends)
        world.collectives = lambda group: made

    def script(probe: RankProbe) -> Any:
        probe.single_rank("memory", 4 * KIB, 1)
        probe.flows([(1, 0)], KIB, 1)
        return probe.wrong_data()

    (found,) = on_rank_0(2, script, prepare)
    assert (found.rank, found.source, found.offset) == (0, 1, 0)
    assert found.count > 0.9 * KIB
    assert "0xa5" in found.got


def test_the_last_sample_is_checked_too() -> None:
    calls = iter(range(100))

    def prepare(world: World) -> None:
        if world.rank == 0:
            # Two that are not timed come before the four.
            alter(world, KIB, lambda call: flip(9)(call) if next(calls) == 5 else None)

    def script(probe: RankProbe) -> Any:
        probe.flows([(1, 0)], KIB, 4)
        return probe.wrong_data()

    assert [(one.offset, one.count) for one in on_rank_0(2, script, prepare)] == [(9, 1)]


@pytest.mark.parametrize("groups", [((0, 1, 2, 3),), ((3, 1, 0),), ((2, 0), (1, 3)), ((2, 3, 1, 0),)])
def test_the_order_of_a_ring(groups: tuple[tuple[int, ...], ...]) -> None:
    found = ranks(4, lambda world: in_groups_of(world, groups))
    assert found == [next((list(group) for group in groups if rank in group), None) for rank in range(4)]


def journaling(world: World, done: list[str]) -> None:
    """Write in `done` the size of each group whose communicator is opened or closed on this rank."""
    open_collectives = world.collectives

    def journaled(control: Any) -> Any:
        made = open_collectives(control)
        members = control.allgather(world.rank)
        close = made.close

        def closed() -> None:
            done.append(f"close {members}")
            close()

        done.append(f"open {members}")
        made.close = closed
        return made

    world.collectives = journaled


def test_few_communicators_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of each rank, the most recently used; those of ranks that are not asked stay as they are."""
    monkeypatch.setattr("meshrun.jobs.validate.probe.multi_rank.OPEN_GROUPS", 2)
    asked_for = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 1),), ((2, 3), (1, 0)), ((1, 3),), ((0, 1),)]

    def body(world: World) -> Any:
        done: list[str] = []
        everyone = world.collectives(world.control)
        journaling(world, done)
        rings = RingCommunicators(world, everyone)
        for groups in asked_for:
            rings.of(groups)
        assert rings.of(((0, 1, 2, 3),)) is everyone, "open already"
        rings.close()
        return done

    assert ranks(4, body) == [
        [
            "open [0, 1]", "open [0, 2]", "close [0, 2]", "open [1, 0]", "close [0, 1]", "close [1, 0]",
            "open [0, 1]", "close [0, 1]",
        ],
        [
            "open [0, 1]", "open [1, 3]", "close [1, 3]", "open [1, 0]", "close [0, 1]", "open [1, 3]",
            "close [1, 0]", "open [0, 1]", "close [1, 3]", "close [0, 1]",
        ],
        ["open [2, 3]", "open [0, 2]", "close [0, 2]", "close [2, 3]"],
        ["open [2, 3]", "open [1, 3]", "close [1, 3]", "open [1, 3]", "close [2, 3]", "close [1, 3]"],
    ]  # fmt: skip


def test_a_retest_opens_no_communicator_again() -> None:
    """Of six rings measured together, each is measured five times more by itself: more than stay open."""
    groups = [[2 * pair, 2 * pair + 1] for pair in range(6)]

    def body(world: World) -> list[str]:
        done: list[str] = []
        journaling(world, done)

        def script(probe: RankProbe) -> None:
            probe.rings(groups, KIB, 1)
            for _ in range(5):
                for group in groups:
                    probe.rings([group], KIB, 1)
            probe.rings([range(12)], KIB, 1)
            assert probe.wrong_data() == []

        lead_or_follow(world, script)
        return done

    for rank, done in enumerate(ranks(12, body)):
        own, everyone = groups[rank // 2], list(range(12))
        assert done == [f"open {everyone}", f"open {own}", f"close {own}", f"close {everyone}"]


def test_it_measures_inside_lead_only() -> None:
    def body(world: World) -> None:
        with open_probe(world, MeasurementProgress()) as probe:
            if world.rank:
                return probe.follow()
            with pytest.raises(RuntimeError, match="inside `lead`"):
                probe.single_rank("memory", KIB, 1)
            with probe.lead():
                probe.single_rank("memory", KIB, 1)

    ranks(2, body)


@pytest.mark.parametrize(
    "script",
    [
        lambda probe: probe.flows([(0, 1), (0, 2)], KIB, 1),
        lambda probe: probe.flows([(0, 1), (2, 1)], KIB, 1),
        lambda probe: probe.flows([(1, 1)], KIB, 1),
        lambda probe: probe.rings([[0, 1], [1, 2]], KIB, 1),
        lambda probe: probe.rings([[]], KIB, 1),
        lambda probe: probe.single_rank("memory", KIB, 0),
    ],
)
def test_what_cannot_be_asked(script: Script) -> None:
    def caught(probe: RankProbe) -> None:
        with pytest.raises(ValueError):
            script(probe)

    on_rank_0(3, caught)


def test_nothing_to_measure() -> None:
    shapes = on_rank_0(2, lambda probe: (probe.flows([], KIB, 3).shape, probe.rings([], KIB, 3).shape))
    assert shapes == ((0, 3), (0, 3))


def errors(size: int, script: Script, prepare: Callable[[World], object] = id) -> list[BaseException | None]:
    """Return what each rank raised."""

    def body(world: World) -> BaseException | None:
        prepare(world)
        try:
            lead_or_follow(world, script)
        except (MeshrunError, KeyError) as failure:
            return failure
        return None

    return ranks(size, body)


def test_rank_0s_error_ends_all_ranks() -> None:
    def script(probe: RankProbe) -> None:
        probe.single_rank("memory", KIB, 1)
        raise UserError("no such baseline")

    found = errors(3, script)
    assert [str(one) for one in found] == ["no such baseline"] * 3
    assert [getattr(one, "everywhere", None) for one in found] == [True] * 3


def test_a_bug_on_rank_0_lets_the_others_go() -> None:
    def script(probe: RankProbe) -> None:
        raise KeyError("bug")

    found = errors(3, script)
    assert isinstance(found[0], KeyError)
    assert found[1:] == [None, None]


def test_too_little_memory_on_one_rank() -> None:
    """All ranks learn of it, and rank 0 may continue."""

    def prepare(world: World) -> None:
        if world.rank == 1:
            world.backend.free_memory = lambda: 100 * KIB

    def script(probe: RankProbe) -> Any:
        with pytest.raises(UserError) as caught:
            probe.single_rank("memory", MIB, 1)
        return str(caught.value), probe.single_rank("memory", 10 * KIB, 2)

    sentence, seconds = on_rank_0(2, script, prepare)
    assert "[rank 1, host a, CPU] not enough memory" in sentence
    assert "got 51,200 bytes free, expected 2,097,152" in sentence, "half of it is the other rank's"
    assert (seconds > 0).all()
    found = errors(3, lambda probe: probe.single_rank("memory", MIB, 1), prepare)
    assert len({str(one) for one in found}) == 1
    assert found[0] is not None


def test_a_rank_that_fails_alone_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are inside the measurement, and cannot learn that it is over or close with it."""

    def fails(world: World) -> None:
        def refused(call: Call) -> None:
            raise RunError("NCCL failed")

        alter(world, KIB, refused)

    def body(world: World) -> bool:
        fails(world)
        closed = []

        def close(probe: RankProbe) -> None:
            closed.append(probe)

        monkeypatch.setattr(RankProbe, "close", close)
        with pytest.raises(RunError):
            lead_or_follow(world, lambda probe: probe.rings([[0]], KIB, 1))
        return not closed

    assert ranks(1, body) == [True]


def test_counters_are_told_apart_by_host() -> None:
    def body(world: World) -> Any:
        host = world.ranks[world.rank].host_id

        def read() -> dict[tuple[str, str], float | str]:
            return {
                (f"GPU {world.here.local}", "clock"): 100.0 * world.rank,
                ("eth0", "state"): f"up on {host}",
            }

        with open_probe(world, MeasurementProgress(), read) as probe:
            if world.rank:
                return probe.follow()
            with probe.lead():
                return probe.counters()

    found = ranks(4, body, ["n", "n"])[0]
    assert found == {
        ("n#1", "GPU 0", "clock"): 0.0,
        ("n#2", "GPU 0", "clock"): 100.0,
        ("n#1", "GPU 1", "clock"): 200.0,
        ("n#2", "GPU 1", "clock"): 300.0,
        ("n#1", "eth0", "state"): "up on id0",
        ("n#2", "eth0", "state"): "up on id1",
    }
    assert on_rank_0(2, lambda probe: probe.counters()) == {}


class RecordingProgress(MeasurementProgress):
    """Records its states."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[Any] = []

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_current" and hasattr(self, "states"):
            self.states.append(value)


def test_every_rank_is_where_the_others_are() -> None:
    """A watchdog compares these between ranks: the same measurements in the same order on all."""

    def body(world: World) -> Any:
        progress = RecordingProgress()

        def script(probe: RankProbe) -> None:
            probe.flows([(0, 1)], 64 * KIB, 2)
            probe.rings([[2, 0]], KIB, 1)

        lead_or_follow(world, script, progress)
        assert progress.states[-1] is None
        steps = [state and state[:4] for state in progress.states]
        return [step for number, step in enumerate(steps) if step and step != steps[number - 1]]

    found = ranks(3, body)
    assert found[0] == found[1] == found[2]
    labels = list(dict.fromkeys(label for *_, label in found[0]))
    assert labels[:4] == [
        "opening validate",
        "flows 64 KiB, round 1",
        "flows 64 KiB, round 1, sample 1",
        "flows 64 KiB, round 1, sample 2",
    ]
    assert labels[4:] == ["rings 1 KiB, round 2", "rings 1 KiB, round 2, sample 1", "closing validate"]


def test_while_rank_0_thinks_nobody_is_watched() -> None:
    thinking, looked = threading.Event(), threading.Event()

    def body(world: World) -> Any:
        progress = MeasurementProgress()

        def script(probe: RankProbe) -> Any:
            probe.single_rank("memory", KIB, 1)
            thinking.set()
            assert looked.wait(60)
            return progress._current

        if world.rank:
            seen: list[Any] = []

            def look() -> None:
                thinking.wait(60)
                # Rank 1 may still be leaving the measurement.
                deadline = time.monotonic() + 60
                while progress._current is not None and time.monotonic() < deadline:
                    time.sleep(0.001)
                seen.append(progress._current)
                looked.set()

            watcher = threading.Thread(target=look)
            watcher.start()
            lead_or_follow(world, script, progress)
            watcher.join()
            return seen[0]
        return lead_or_follow(world, script, progress)

    assert ranks(2, body) == [None, None]


def test_what_is_under_way_is_aborted_first() -> None:
    """NCCL may wait for it before it aborts another communicator."""

    def body(world: World) -> list[str]:
        aborted: list[str] = []
        open_collectives = world.collectives
        names = iter(["all", "first", "second"])

        def naming(control: Any) -> Any:
            made = open_collectives(control)
            made.abort = partial(aborted.append, next(names))
            return made

        world.collectives = naming
        progress = MeasurementProgress()

        def script(probe: RankProbe) -> list[str]:
            probe.rings([[0, 1]], KIB, 1)
            probe.rings([[1, 0]], KIB, 1)
            progress.abort()
            probe.flows([(0, 1)], KIB, 1)
            progress.abort()
            return aborted

        return lead_or_follow(world, script, progress) or []

    found = ranks(3, body)[0]
    assert found[0] == "second"
    assert found[3] == "all"
    assert sorted(found[:3]) == sorted(found[3:]) == ["all", "first", "second"]


def test_sizes_of_cpus() -> None:
    def body(world: World) -> Plan:
        world.backend.free_memory = lambda: 1 << 40
        return fit_to_devices(world, Plan(ring_bytes=100))

    found = ranks(2, body)
    assert found[0] == found[1]
    assert (found[0].memory_bytes, found[0].product_bytes, found[0].pair_bytes) == (
        32 * MIB,
        4 * MIB,
        4 * MIB,
    )
    assert found[0].ring_bytes == 100
    assert found[0].critical == 0.75
    assert found[0].tolerance == pytest.approx(-math.log(0.75))


def test_ranks_of_quick_that_share_cores_are_suspects_only_if_slower_than_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def body(world: World) -> Plan:
        world.backend.free_memory = lambda: 1 << 40
        return fit_to_devices(world, Plan(quick=True))

    def on_cores(cores: set[int], limit: int) -> Plan:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
        monkeypatch.setattr(ranks_buffers, "host_processors", lambda: limit)
        return ranks(4, body)[0]

    own, shared, limited = on_cores({0, 1, 2, 3}, 8), on_cores({0, 1}, 8), on_cores({*range(8)}, 1)
    assert [one.ranks_per_core for one in (own, shared, limited)] == [1, 2, 4]
    assert (own.critical, shared.critical, limited.critical) == (0.75, 0.375, 0.1875)
    assert limited.blind == own.blind / 4
    assert limited.tolerance == pytest.approx(-math.log(0.1875))


def test_sizes_fit_the_rank_that_has_least() -> None:
    def body(world: World) -> Plan:
        free = 96 * MIB if world.rank == 1 else 1 << 40
        world.backend.free_memory = lambda: free * world.size
        return fit_to_devices(world, Plan())

    found = ranks(3, body)
    assert {(one.memory_bytes, one.product_bytes, one.nic_bytes) for one in found} == {
        (24 * MIB, 4 * MIB, MIB)
    }


def test_no_room_for_any_size() -> None:
    def body(world: World) -> str:
        world.backend.free_memory = lambda: 30 * MIB if world.rank == 1 else 1 << 40
        with pytest.raises(UserError) as caught:
            fit_to_devices(world, Plan())
        assert caught.value.everywhere
        return str(caught.value)

    found = ranks(2, body)
    assert found[0] == found[1]
    assert found[0].startswith("[rank 1, host a, CPU] not enough memory to measure: got 15,728,640")


def test_sizes_of_gpus() -> None:
    def body(world: World) -> Plan:
        as_gpu(world)
        world.backend.free_memory = lambda: 5 * ranks_buffers.GIB
        return fit_to_devices(world, Plan())

    (found,) = ranks(1, body)
    room = 5 * ranks_buffers.GIB // 4
    assert (found.memory_bytes, found.product_bytes, found.pair_bytes) == (1 << 30, 256 * MIB, 256 * MIB)
    assert 2 * max(found.memory_bytes, 2 * found.product_bytes) <= 2 * room
    assert (found.critical, found.tolerance) == (Plan.critical, Plan.tolerance)


class HostBox:
    """A box whose GPU is the host: shared memory is opened in place."""

    shut = ""  # why memory cannot be attached

    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}
        self.attached: set[int] = set()

    def on(self, gpu: int) -> Any:
        return contextlib.nullcontext()

    def array(self, memory: Memory) -> Any:
        return self.kept[memory.address]

    def export(self, memory: Memory) -> bytes:
        return repr((memory.address, memory.nbytes)).encode()

    def attach(self, handle: bytes, nbytes: int, gpu: int) -> Memory:
        if self.shut:
            raise RuntimeError(f"{self.shut}\nand more")
        address, lent = ast.literal_eval(handle.decode())
        assert nbytes <= lent
        self.attached.add(address)
        return Memory(address, nbytes, "device", gpu)

    def allocate(self, kind: str, nbytes: int, gpu: int) -> Memory:
        owner = np.empty(nbytes, np.uint8)
        self.kept[owner.ctypes.data] = owner
        return Memory(owner.ctypes.data, nbytes, kind, gpu)

    def release(self, memory: Memory) -> None:
        if memory.address in self.attached:
            self.attached.remove(memory.address)
        else:
            del self.kept[memory.address]

    def host_array(self, memory: Memory) -> Any:
        return self.kept[memory.address]

    def copy(self, target: Memory, source: Memory, nbytes: int, stream: object) -> None:
        assert nbytes <= min(target.nbytes, source.nbytes)
        ctypes.memmove(target.address, source.address, nbytes)

    def close(self) -> None:
        pass


def host_gemm(
    precision: str, shape: tuple[int, int, int], addresses: tuple[int, int, int], stream: object, sums: str
) -> None:
    (m, n, k), (a, b, c) = shape, addresses

    def matrix(dtype: str, rows: int, columns: int, address: int) -> Any:
        nbytes = rows * columns * np.dtype(dtype).itemsize
        return np.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype).reshape(rows, columns)

    left, right = (matrix(precision, *one).astype(sums) for one in ((m, k, a), (k, n, b)))
    np.matmul(left, right, out=matrix(sums, m, n, c))


def as_gpu(world: World) -> None:
    gpu = dataclasses.replace(world.here.device, kind="cuda", uuid="one")
    world.ranks = tuple(dataclasses.replace(rank, device=gpu) for rank in world.ranks)


def test_what_a_gpu_does_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, in sizes that grow and shrink; then with copies that lose their last byte."""
    monkeypatch.setattr("meshrun.jobs.validate.probe.rank_probe.open_box", HostBox)
    monkeypatch.setitem(sys.modules, "meshrun.runner.device.raw.blas", SimpleNamespace(gemm=host_gemm))
    monkeypatch.setattr(single_rank, "TENSOR_SAMPLE", 0.01)

    def script(probe: RankProbe) -> Any:
        assert probe.unavailable == {}
        sizes = (5 * KIB + 1, 300 * KIB, 64 * KIB)
        right = [probe.single_rank(what, nbytes, 2) for nbytes in sizes for what in SINGLE_RANK_OPS]
        assert probe.wrong_data() == []
        copy = HostBox.copy
        monkeypatch.setattr(HostBox, "copy", lambda box, *ends: copy(box, *ends[:2], ends[2] - 1, None))
        for what in SINGLE_RANK_OPS:
            probe.single_rank(what, KIB, 1)
        return right, probe.wrong_data()

    right, wrong = on_rank_0(1, script, as_gpu)
    assert all((seconds > 0).all() for seconds in right)
    found = [(one.what, one.source, one.offset, one.count, one.got) for one in wrong]
    copies = [what for what in SINGLE_RANK_OPS if what not in OPERAND_BYTES]
    assert found == [(what, 0, KIB - 1, 1, "165 (0xa5)") for what in copies]


def test_a_load_lasts_and_its_readings_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many products as take the time of a sample on the slowest rank; the same number on each."""
    monkeypatch.setattr("meshrun.jobs.validate.probe.rank_probe.open_box", HostBox)
    monkeypatch.setitem(sys.modules, "meshrun.runner.device.raw.blas", SimpleNamespace(gemm=host_gemm))
    monkeypatch.setattr(single_rank, "TENSOR_SAMPLE", 12.0)
    counts: list[list[int]] = [[], [], []]

    def timed(world: World, queue: Callable[[], object], count: int) -> float:
        queue()
        counts[world.rank].append(count)
        return 0.5 if world.rank == 1 else 0.1

    monkeypatch.setattr(single_rank, "backend_seconds", timed)

    def reading(load: GpuLoad) -> contextlib.AbstractContextManager[None]:
        if load.uuid != "GPU-2":  # of which nothing can be read
            load.readings["power"] = LoadQuantity(2, 1300.0, 600.0, 700.0)
            load.readings["SM clock"] = LoadQuantity(2, 3000.0, 1400.0, 1600.0)
            load.readings["temperature"] = LoadQuantity(1, 60.0, 60.0, 60.0)
        return contextlib.nullcontext()

    monkeypatch.setattr(GpuLoad, "reading", reading)

    def script(probe: RankProbe) -> Any:
        before = probe.loads()
        seconds = probe.single_rank("tensor", 8 * KIB, 2)
        return before, seconds, probe.loads(), probe.wrong_data()

    before, seconds, loads, wrong = on_rank_0(3, script, as_gpus)
    assert before == []
    assert wrong == []
    assert seconds.tolist() == [[0.1] * 2, [0.5] * 2, [0.1] * 2]
    assert counts == [[1, 1, 24, 24]] * 3
    assert loads == [LoadReadings(rank, 650.0, 700.0, 1500.0, 1400.0, 60.0, None) for rank in (0, 1)]


def as_gpus(world: World) -> None:
    """Each rank has its own."""
    as_gpu(world)
    world.ranks = tuple(
        dataclasses.replace(rank, device=dataclasses.replace(rank.device, uuid=f"GPU-{rank.number}"))
        for rank in world.ranks
    )


def copies(size: int, script: Script, hosts: Sequence[str] = ("a",)) -> Any:
    def body(world: World) -> Any:
        as_gpus(world)
        return lead_or_follow(world, script)

    return ranks(size, body, hosts)[0]


def test_copies_into_each_others_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """In sizes that grow and shrink; then with copies that lose their last byte."""
    monkeypatch.setattr("meshrun.jobs.validate.probe.rank_probe.open_box", HostBox)

    def script(probe: RankProbe) -> Any:
        assert probe.copies_unavailable() == ""
        around, pair = circle(3), [(2, 0)]
        found = [
            probe.copies(flows, nbytes, 3) for nbytes in (KIB, 3 * MIB + 1, 5) for flows in (around, pair)
        ]
        found.append(probe.copies([], KIB, 3))
        assert probe.wrong_data() == []
        copy = HostBox.copy
        monkeypatch.setattr(HostBox, "copy", lambda box, *ends: copy(box, *ends[:2], ends[2] - 1, None))
        probe.copies(around, KIB, 1)
        return found, probe.wrong_data()

    found, wrong = copies(3, script)
    assert [seconds.shape for seconds in found] == [(3, 3), (1, 3)] * 3 + [(0, 3)]
    assert all((seconds > 0).all() for seconds in found)
    assert sorted((one.what, one.rank, one.source, one.nbytes, one.offset, one.count) for one in wrong) == [
        ("copies", rank, (rank - 1) % 3, KIB, KIB - 1, 1) for rank in range(3)
    ]


def test_a_rank_copies_to_one_other_and_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshrun.jobs.validate.probe.rank_probe.open_box", HostBox)

    def script(probe: RankProbe) -> None:
        for flows in ([(0, 1), (0, 2)], [(0, 2), (1, 2)], [(1, 1)]):
            with pytest.raises(ValueError, match="each rank sends to at most one other"):
                probe.copies(flows, KIB, 1)

    copies(3, script)


def test_only_a_hosts_own_ranks_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshrun.jobs.validate.probe.rank_probe.open_box", HostBox)

    def script(probe: RankProbe) -> Any:
        assert probe.copies_unavailable() == ""
        assert probe._peer_memory is not None
        return sorted(probe._peer_memory.peers)

    assert copies(4, script, ("a", "b")) == [2]


def test_why_there_are_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshrun.jobs.validate.probe.rank_probe.open_box", HostBox)
    monkeypatch.setattr(HostBox, "shut", "peer access is not supported")
    found = copies(2, lambda probe: probe.copies_unavailable())
    whose = "rank 0, host a, GPU 0 cannot open the memory of rank 1, host a, GPU 0"
    assert found == f"{whose}: peer access is not supported"
    assert on_rank_0(2, lambda probe: probe.copies_unavailable()) == "ranks on CPUs have no copy engines"


def test_landings_grow_and_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes: list[HostBox] = []

    def opened_box() -> HostBox:
        boxes.append(HostBox())
        return boxes[-1]

    monkeypatch.setattr("meshrun.jobs.validate.probe.rank_probe.open_box", opened_box)

    def script(probe: RankProbe) -> Any:
        probe.copies(circle(2), KIB, 1)
        probe.copies(circle(2), 5 * MIB, 1)
        return [sorted(array.size for array in box.kept.values()) for box in boxes]

    assert copies(2, script) == [[6 * MIB]] * 2
    assert [(box.kept, box.attached) for box in boxes] == [({}, set())] * 2


@pytest.mark.parametrize("size", [1, 3])
def test_gathered(size: int) -> None:
    def body(world: World) -> Any:
        rows = gather.rows(world.control, np.array([world.rank, 0.5]))
        return rows.tolist(), gather.values(world.control, ["x" * world.rank, float("inf")])

    found = ranks(size, body)
    assert found[0][0] == [[rank, 0.5] for rank in range(size)]
    assert found[0][1] == [["x" * rank, float("inf")] for rank in range(size)]
    assert found[1:] == [([], [])] * (size - 1)


LADDER = Plan(
    rungs=("gpu", "pairs", "node", "host pairs", "rails", "all"), keep_going=True, samples=3,
    retest_samples=4, samples_per_nic=8, max_retests=1, memory_bytes=MIB, product_bytes=64 * KIB,
    pair_bytes=256 * KIB, nic_bytes=256 * KIB, ring_bytes=256 * KIB,
)  # fmt: skip


@pytest.mark.parametrize("slow", [None, 2])
def test_the_whole_ladder(slow: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks on two hosts climb it to a verdict."""
    clock = simulated_clock(monkeypatch)
    monkeypatch.setattr(RankProbe, "wait", lambda probe, seconds: None)  # between retests
    slow_alone(monkeypatch, lambda world: clock.spend(0.001 * (world.rank == slow)))
    hosts = ["a", "b"]
    verdict = ranks(4, lambda world: lead_or_follow(world, lambda probe: climb_ladder(probe, LADDER)), hosts)[
        0
    ]
    results = {rung.name: rung.result for rung in verdict.rungs}
    fine = dict.fromkeys(LADDER.rungs, "ok")
    assert results == {**fine, "host": "not measured", "gpu": "ok" if slow is None else "broken"}
    assert [(one.kind, one.ranks) for one in verdict.findings] == ([] if slow is None else [("gpu", (2,))])
    assert verdict.status == ("ok" if slow is None else "critical")
    rates = {rung.name: rung.rates for rung in verdict.rungs}
    assert rates["gpu"] == pytest.approx({"memory": 2 * MIB / 0.001, "product": 2 * 128**3 / 0.001})
    assert rates["all"] == pytest.approx({"ring": 256 * KIB / 0.001 * 2 * 3 / 4}), "bus bandwidth"
