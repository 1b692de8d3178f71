"""`bench memory pool`: its workload on allocators whose faults are known, host pools, the lesson."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.jobs.bench.lessons import show
from meshrun.jobs.bench.lessons.pool import lesson as pool
from meshrun.jobs.bench.lessons.pool.host_pools import FreeLists, Malloc, rounded
from meshrun.jobs.bench.lessons.pool.lesson import digits, thinned
from meshrun.jobs.bench.lessons.pool.workload import AllocationStep, Moment, account, play, workload
from meshrun.jobs.bench.lessons.protocol import Context
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.device.raw.memory import GpuProperties
from meshrun.runner.errors import UserError
from meshrun.runner.world.world import single_rank_world


class Arena:
    """Allocate first fit, and grow if nothing fits."""

    label = "arena"

    def __init__(self, room: int = 1 << 40) -> None:
        self.room, self.end = room, 0
        self.live: dict[int, int] = {}
        self.unsettled = self.settled = 0

    def allocate(self, nbytes: int) -> int:
        at = 0
        for begin, size in sorted(self.live.items()):
            if begin - at >= nbytes:
                break
            at = begin + size
        if at + nbytes > self.room:
            raise UserError("the arena failed to allocate memory")
        self.live[at] = nbytes
        self.end = max(self.end, at + nbytes)
        self.unsettled += 1
        return at

    def release(self, handle: int) -> None:
        del self.live[handle]

    def address(self, handle: int) -> int:
        return handle

    def settle(self, handle: int | None = None) -> None:
        self.settled += 1

    def reserved(self) -> int:
        return self.end

    def trim(self) -> None:
        self.end = max((begin + size for begin, size in self.live.items()), default=0)

    def close(self) -> None:
        assert not self.live, "something was not released"


@given(st.integers(1, 1 << 34), st.integers(1, 80), st.integers(0, 99))
def test_the_workload_keeps_to_its_limit_and_releases_everything(most: int, count: int, seed: int) -> None:
    live: dict[int, int] = {}
    for step in workload(most, count, seed):
        if step.release:
            assert live.pop(step.name) == step.nbytes
        else:
            assert step.name not in live
            live[step.name] = step.nbytes
            assert 1 <= step.nbytes <= max(most // 8, 1)
        assert sum(live.values()) <= most
    assert live == {}


def test_the_workload_is_the_same_for_all_and_fills_its_limit() -> None:
    steps = workload(1 << 30, 500)
    assert steps == workload(1 << 30, 500)
    assert steps != workload(1 << 30, 500, seed=1)
    assert sum(not step.release for step in steps) == 500
    assert account(Arena(), steps, lambda: 0, settle=False).live > 0.9 * (1 << 30)


def test_sizes_are_log_uniform() -> None:
    sizes = [step.nbytes for step in workload(1 << 33, 4000) if not step.release]  # 1 KiB to 1 GiB
    for power in range(10, 30, 5):
        share = sum(1 << power <= size < 1 << power + 5 for size in sizes) / len(sizes)
        assert 0.2 < share < 0.3


def test_the_account_of_a_pool_with_a_hole() -> None:
    """10, 30 and 10 are allocated; the 30 are released; 40 do not fit: 90 held for 60 in use."""
    steps = [
        AllocationStep(0, 10), AllocationStep(1, 30), AllocationStep(2, 10), AllocationStep(1, 30, True),
        AllocationStep(3, 40), AllocationStep(4, 30), AllocationStep(0, 10, True),
        AllocationStep(2, 10, True), AllocationStep(3, 40, True), AllocationStep(4, 30, True),
    ]  # fmt: skip
    arena = Arena()
    found = account(arena, steps, lambda: 7, settle=False)
    assert [(moment.live, moment.reserved) for moment in found.moments] == [
        (10, 10), (40, 40), (50, 50), (20, 50), (60, 90), (90, 90), (80, 90), (70, 90), (30, 90), (0, 90)
    ]  # fmt: skip
    assert {moment.used for moment in found.moments} == {7}
    assert found.live == 90
    assert found.peak == Moment(60, 90, 7), "when it first held the most"
    assert found.peak.fragmentation == pytest.approx(1 / 3)
    assert (found.left, found.trimmed, found.overlaps) == (90, 0, ())
    assert arena.live == {}


def test_a_pool_that_holds_nothing_is_not_fragmented() -> None:
    assert Moment(0, 0, 0).fragmentation == 0


class Twice(Arena):
    """Return the memory of the first allocation for the second one."""

    def allocate(self, nbytes: int) -> int:
        at = super().allocate(nbytes)
        return at - 1 if len(self.live) == 2 else at

    def release(self, handle: int) -> None:
        self.live.pop(handle, None) or self.live.pop(handle + 1)


def test_memory_that_is_given_out_twice_is_noticed() -> None:
    steps = [
        AllocationStep(0, 16),
        AllocationStep(1, 8),
        AllocationStep(1, 8, True),
        AllocationStep(0, 16, True),
    ]
    found = account(Twice(), steps, lambda: 0, settle=False)
    assert found.overlaps == ("arena: 8 bytes at 0xf overlap 16 in use at 0x0",)


@pytest.mark.parametrize("place", ["below", "above", "within", "around", "same"])
def test_every_kind_of_overlap(place: str) -> None:
    begin, size = {
        "below": (90, 20),
        "above": (119, 9),
        "within": (105, 2),
        "around": (90, 90),
        "same": (100, 20),
    }[place]
    given_out = iter([100, begin])

    class Placed(Arena):
        def allocate(self, nbytes: int) -> int:
            return next(given_out)

        def release(self, handle: int) -> None:
            pass

    assert (
        len(
            account(
                Placed(), [AllocationStep(0, 20), AllocationStep(1, size)], lambda: 0, settle=False
            ).overlaps
        )
        == 1
    )


def test_a_pool_that_refuses_gets_back_what_it_gave() -> None:
    arena = Arena(room=100)
    with pytest.raises(UserError, match="the arena failed to allocate memory"):
        play(arena, [AllocationStep(0, 60), AllocationStep(1, 60)], settle=False)
    arena.close()


def test_settling_is_after_every_step_or_at_the_end() -> None:
    steps = [
        AllocationStep(0, 1),
        AllocationStep(1, 1),
        AllocationStep(0, 1, True),
        AllocationStep(1, 1, True),
    ]
    for settle, count in ((False, 1), (True, 5)):
        arena = Arena()
        assert play(arena, steps, settle=settle) > 0
        assert arena.settled == count


@given(st.integers(1, 1 << 40))
def test_sizes_of_buffers(nbytes: int) -> None:
    size = rounded(nbytes)
    assert nbytes <= size
    assert size < 1.25 * nbytes or size - nbytes < 64
    assert rounded(size) == size


def test_free_lists_use_again_what_was_released() -> None:
    pool = FreeLists(1 << 20)
    first = pool.allocate(1000)
    place = pool.address(first)
    second = pool.allocate(1000)
    assert pool.address(second) != place
    pool.release(first)
    assert pool.address(pool.allocate(1024)) == place
    assert pool.reserved() == 2048
    pool.release(second)
    pool.trim()
    assert pool.reserved() == 1024


def test_free_lists_give_back_rather_than_hold_too_much() -> None:
    pool = FreeLists(10000)
    pool.release(pool.allocate(8192))
    kept = pool.allocate(4096)
    assert pool.reserved() == 4096
    pool.release(kept)


@pytest.mark.parametrize("make", [Malloc, lambda: FreeLists(1 << 24)], ids=["malloc", "free lists"])
def test_host_pools_keep_what_is_written(make: Callable[[], Any]) -> None:
    pool, chance = make(), random.Random(3)
    live: list[tuple[Any, int]] = []
    for number in range(400):
        if live and chance.random() < 0.45:
            buffer, byte = live.pop(chance.randrange(len(live)))
            assert (buffer == byte).all()
            pool.release(buffer)
        else:
            buffer = pool.allocate(chance.randrange(1, 20000))
            pool.settle(buffer)
            buffer[...] = number % 251
            live.append((buffer, number % 251))
        assert pool.reserved() >= sum(buffer.nbytes for buffer, _ in live) or make is Malloc
    for buffer, _ in live:
        pool.release(buffer)
    pool.trim()
    assert pool.reserved() == 0


def context(box: Any = None, maxbytes: int = 1 << 18, **options: Any) -> Context:
    return Context(single_rank_world(CpuBackend()), box, samples=1, maxbytes=maxbytes, options=options)


def test_the_lesson_on_a_host() -> None:
    found = pool.measure(context())
    assert found.mismatches == ()
    assert [row[0] for row in found.tables[0].rows] == ["1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB"]
    assert [table.title for table in found.tables[:2]] == ["np.empty", "free lists"]
    assert all(one["again_settled"] > 0 for one in found.facts["times"])
    by_pool = {one["pool"]: one for one in found.facts["workload"]}
    assert by_pool["np.empty"]["peak_live"] == by_pool["free lists"]["peak_live"] <= 1 << 18
    assert by_pool["np.empty"]["left"] == 0
    assert by_pool["free lists"]["left"] == by_pool["free lists"]["peak_reserved"]
    assert by_pool["free lists"]["trimmed"] == 0
    assert 0 < by_pool["free lists"]["fragmentation"] < 1
    assert "moments" not in by_pool["np.empty"]
    assert "[" not in show.text(found)
    json.loads(show.record(found, []))


def test_a_pool_is_empty_before_the_first_pass_only() -> None:
    class Counted(Arena):
        def trim(self) -> None:
            assert not self.live
            super().trim()
            journal.append("trim")

        def allocate(self, nbytes: int) -> int:
            journal.append("allocate")
            return super().allocate(nbytes)

    journal: list[str] = []
    found = pool.pass_times(Counted(), [AllocationStep(0, 8), AllocationStep(0, 8, True)], 2)
    assert journal == ["trim", "allocate", "allocate", "allocate"] * 2
    assert min(found.first, found.again, found.alone) > 0


def test_watching_shows_memory_over_the_run() -> None:
    found = pool.measure(context(watch=True))
    held, process = found.tables[-2:]
    assert held.title.startswith("Held over the run, 9 is ")
    assert [row[0] for row in held.rows] == ["requested", "np.empty", "free lists"]
    assert held.rows[2][1][-1] == "9", "free lists keep everything"
    assert process.title.startswith("This process's memory over the run")
    assert [chart.y for chart in found.charts[1:]] == ["held (MiB)", "in use (MiB)"]
    assert all(len(one["moments"]) == 600 for one in found.facts["workload"])


def test_a_drawing_of_digits() -> None:
    assert digits([0, 5, 10], 10) == "049"
    assert digits([0, 0], 0) == "00"
    assert len(digits(range(1001), 1000)) <= 50
    assert digits(range(1001), 1000)[-1] == "9"
    assert thinned([3, 1, 2, 5, 4], 2) == [(1, 3), (4, 5)]
    assert thinned([3, 1], 200) == [(1, 3), (2, 1)]


class FakeBox:
    """The part of a box that the lesson uses."""

    def __init__(self) -> None:
        self.gpus = [GpuProperties(0, "made up", "GPU-0", "", 4, 1 << 30, 0, None)]
        self.entered = False

    @contextmanager
    def on(self, gpu: int) -> Iterator[None]:
        self.entered = True
        yield
        self.entered = False

    def free_memory(self, gpu: int) -> int:
        assert self.entered
        return 1 << 29


@pytest.fixture
def arenas(monkeypatch: pytest.MonkeyPatch) -> list[Arena]:
    """Replace the GPU's pools."""
    made: list[Arena] = [Arena(), Arena()]
    made[1].label = "another"

    def open_pools(most: int) -> Sequence[Arena]:
        made[0].room = most
        return made

    monkeypatch.setattr("meshrun.jobs.bench.lessons.pool.lesson.open_pools", open_pools)
    return made


def test_the_lesson_on_a_gpu(arenas: list[Arena]) -> None:
    found = pool.measure(context(FakeBox(), maxbytes=1 << 16, watch=True))
    assert found.mismatches == ()
    assert found.tables[0].titles[-1] == "release+sync (us)"
    assert "GPU 0, made up" in found.title
    assert found.tables[-1].title == "The GPU's memory in use over the run, 9 is 512 MiB"
    assert all(arena.live == {} for arena in arenas)
    first = found.facts["workload"][0]
    assert first["peak_reserved"] == first["left"] > first["peak_live"]
    assert first["fragmentation"] > 0


def test_no_more_than_a_quarter_of_what_is_free(arenas: list[Arena], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuBackend, "free_memory", lambda self: 1 << 18)
    found = pool.measure(context(FakeBox(), maxbytes=1 << 30))
    assert found.facts["most"] == 1 << 16
    assert arenas[0].room == 1 << 17
    assert found.tables[0].rows[-1][0] == "64 KiB"
    assert (
        "At most 64 KiB were allocated at a time, a quarter of free memory, instead of 1 GiB."
        in found.explanation
    )


def test_a_pool_that_gives_memory_out_twice_fails_the_lesson(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshrun.jobs.bench.lessons.pool.lesson.open_pools", lambda most: [Twice()])
    assert pool.measure(context(FakeBox(), maxbytes=1 << 14)).mismatches
    monkeypatch.setattr("meshrun.jobs.bench.lessons.pool.lesson.open_pools", lambda most: [Twice()])
    unchecked = Context(single_rank_world(CpuBackend()), FakeBox(), samples=1, check=False, maxbytes=1 << 14)
    assert pool.measure(unchecked).mismatches == ()
