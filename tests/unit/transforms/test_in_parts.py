"""Redistributions in parts: every cell moves once, inputs stay, and messages travel beside work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import transform_cases as cases
from exchange_cases import part, same, whole

import meshrun
from meshrun.runner.arrays.redistribute import exchange_in_parts
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.plan import redistribution
from meshrun.runner.plan.grid import bounds
from meshrun.runner.plan.redistribution import change_split, count_parts
from meshrun.runner.transforms.fourier import Local, carry_out
from meshrun.runner.transforms.plan import Passage, Transform, plan_transform
from meshrun.runner.world.group import Group
from meshrun.runner.world.world import World, open_world

NAMES = ("fft", "ifft", "rfft", "irfft")


class Queue(CpuBackend):
    """Follows the calls for a device that queues work. events: what was issued, in order."""

    asynchronous = True

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def mark(self) -> Any:
        self.events.append("mark")
        return len(self.events)

    @contextmanager
    def beside(self, mark: Any) -> Iterator[None]:
        self.events.append("beside")
        yield


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redistributions have parts whatever their size."""
    monkeypatch.setattr(redistribution, "LEAST", 1)


def on_ranks(ranks: int, case: Callable[[World], Any], queue: bool = False) -> list[Any]:
    def rank(comm: Any) -> Any:
        world = open_world("cpu", control=comm)
        if queue:
            world.backend = Queue([])
        return case(world)

    return run_ranks(ranks, rank)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("shape", [(7, 11, 5), (1, 9, 4), (0, 3, 2), (8, 2, 6)])
def test_every_cell_moves_once(shape: tuple[int, ...], ranks: int) -> None:
    array = whole(shape)

    def case(world: World) -> None:
        for old, new, third in permutations(range(3)):
            for along in (old, new, third):
                for parts in (1, 2, 5):
                    cuts = change_split(shape, old, new, along, ranks, parts)
                    block = part(array, world, old)
                    wanted = part(array, world, new)
                    got = np.full(wanted.shape, -1, wanted.dtype)
                    exchange_in_parts(
                        world,
                        cuts,
                        lambda number, cuts=cuts, block=block: block[cuts.sent_cells(world.rank, number)],
                        lambda number, cuts=cuts, got=got: got[cuts.received_cells(world.rank, number)],
                        lambda number, landed: None,
                    )
                    same(got, wanted)

    on_ranks(ranks, case)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(7, 11), (9, 6, 10), (5, 1, 3), (4, 3, 2, 5)])
def test_transforms_in_parts(name: str, shape: tuple[int, ...], queue: bool) -> None:
    dtype = "float32" if name == "rfft" else "complex128"
    axes = tuple(range(len(shape)))
    on_ranks(3, lambda world: cases.transforms(world, name, shape, axes, dtype=dtype), queue)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_pencils_in_parts(name: str, axes: tuple[int, ...]) -> None:
    shape = (10, 9, 12)
    array = cases.random_array(shape, "float64" if name == "rfft" else "complex128")
    real: Any = {"rfft": "forward", "irfft": "inverse"}.get(name, "")
    last = {"rfft": shape[axes[-1]] // 2 + 1, "irfft": 2 * shape[axes[-1]] - 1}.get(name, 0)
    wanted = cases.expected(name, array, axes, "backward", last if name == "irfft" else None)
    plan = plan_transform(shape, axes, 6, real=real, length=last, decomposition="pencil")

    def case(world: World) -> None:
        grid = world.grid(*plan.grid)
        local = Local(np, name in ("ifft", "irfft"), real, "backward", last)
        mine = plan.first[world.rank]
        block = array[tuple(slice(a, b) for a, b in zip(mine.start, mine.stop, strict=True))]
        got = carry_out(plan, list(grid.groups), local, block)
        place = plan.last[world.rank]
        expected = wanted[tuple(slice(a, b) for a, b in zip(place.start, place.stop, strict=True))]
        np.testing.assert_allclose(got, expected, atol=1e-9)

    before = array.copy()
    on_ranks(6, case)
    same(array, before)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize("ranks", [2, 5])
def test_transposes_in_parts(ranks: int, queue: bool) -> None:
    array = whole((13, 6, 7))

    def case(world: World) -> None:
        for order in permutations(range(3)):
            for split in range(3):
                for to_split in range(3):
                    block = meshrun.transpose(
                        part(array, world, split), world, axes=order, split=split, to_split=to_split
                    )
                    same(block, part(array.transpose(order), world, to_split))

    on_ranks(ranks, case, queue)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", NAMES)
def test_the_callers_array_stays(name: str) -> None:
    array = cases.random_array((6, 8, 10), "float32" if name == "rfft" else "complex64")

    def case(world: World) -> None:
        block = part(array, world, 0).copy()
        before = block.copy()
        for axes in ((0, 1, 2), (1, 2), (0,), (1,)):
            getattr(meshrun, name)(block, world, axes=axes)
            same(block, before)

    on_ranks(2, case)
    on_ranks(1, case)


@pytest.mark.parametrize("queue", [False, True])
def test_messages_travel_beside_work(queue: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Part 1 is made ready, and part 0 finished, between the start of an exchange and its end."""
    events: list[str] = []
    start = Group.start_exchange

    class Noted:
        def __init__(self, pending: Any) -> None:
            self.pending = pending

        def wait(self) -> None:
            events.append("wait")
            self.pending.wait()

    def noted(self: Group, sends: Any, receives: Any) -> Any:
        if self.rank == 0:
            events.append("start")
            return Noted(start(self, sends, receives))
        return start(self, sends, receives)

    monkeypatch.setattr(Group, "start_exchange", noted)
    array = whole((6, 6))

    def case(world: World) -> None:
        note = events.append if world.rank == 0 else lambda event: None
        if queue and world.rank == 0:
            world.backend = Queue(events)
        cuts = change_split((6, 6), 0, 1, 1, 2, 2)
        exchange_in_parts(
            world,
            cuts,
            lambda number: (note(f"ready {number}"), part(array, world, 0))[1],
            lambda number: np.empty((6, len(range(*bounds(3, 2, number)))), array.dtype),
            lambda number, landed: note(f"finish {number}"),
        )

    on_ranks(2, case)
    first, second = ["ready 1"], ["finish 0"]
    if queue:  # the side stream's messages wait for the mark only, which is recorded before the work
        exchange = ["beside", "start", "wait"]
        assert events == ["ready 0", "mark", *first, *exchange, "mark", *second, *exchange, "finish 1"]
    else:
        assert events == ["ready 0", "start", *first, "wait", "start", *second, "wait", "finish 1"]


def test_the_number_of_parts() -> None:
    assert count_parts((1024, 1024, 1024), 0, 1, 2, 2, 8) == redistribution.PARTS
    assert count_parts((256, 256), 0, 1, 0, 2, 8) == 1  # a message of 128 KiB is not cut
    assert count_parts((1 << 20, 6, 4), 0, 1, 1, 2, 8) == 3  # of a rank's three cells
    assert count_parts((0, 6), 0, 1, 0, 2, 8) == 1


@pytest.mark.parametrize(
    ("shape", "ranks", "real", "hidden"),
    [
        ((64, 64, 64), 2, "", 2),  # slabs: planes of the first axis, with their two transforms
        ((64, 64, 33), 2, "forward", 2),
        ((64, 64), 2, "", 1),
        ((64, 64, 64), 256, "", 3),  # pencils: no transform is beside nothing
    ],
)
def test_what_is_hidden(shape: tuple[int, ...], ranks: int, real: Any, hidden: int) -> None:
    plan = plan_transform(shape, range(len(shape)), ranks, real=real, length=shape[-1] // 2 + 1)
    steps = plan.steps
    beside = [stage for step in steps if isinstance(step, Passage) for stage in (*step.before, *step.after)]
    every = [*beside, *(step for step in steps if isinstance(step, Transform))]
    assert sum(len(stage.axes) for stage in beside) == hidden
    assert sorted(axis for stage in every for axis in stage.axes) == list(range(len(shape)))
    assert len(plan.exchanges) == sum(isinstance(step, Passage) for step in steps)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("along", [0, 1, 2])
def test_nothing_is_packed_or_kept_while_messages_travel(along: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rank sends to others is packed, and what it keeps is copied, beside the messages of another
    part: on a GPU not in the stream of the messages."""
    start = Group.start_exchange
    peers: list[int] = []

    def noted(self: Group, sends: Any, receives: Any) -> Any:
        assert all(array.flags.c_contiguous for _, array in sends)
        peers.extend(peer for peer, _ in (*sends, *receives) if self.rank == 1)
        return start(self, sends, receives)

    monkeypatch.setattr(Group, "start_exchange", noted)
    array = whole((6, 9, 4))

    def case(world: World) -> None:
        cuts = change_split(array.shape, 0, 1, along, 3, 2)
        block, wanted = part(array, world, 0), part(array, world, 1)
        got = np.full(wanted.shape, -1, wanted.dtype)
        exchange_in_parts(
            world,
            cuts,
            lambda number: block[cuts.sent_cells(world.rank, number)],
            lambda number: got[cuts.received_cells(world.rank, number)],
            lambda number, landed: None,
        )
        same(got, wanted)

    on_ranks(3, case)
    assert set(peers) == {0, 2}
