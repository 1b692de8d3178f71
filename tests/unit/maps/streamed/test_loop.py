"""Chunks on their way: how many at once, in which memory, and what happens when one fails."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from queued_device import QueuedBackend

import meshrun
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.maps.streamed.cpu_engine import HostEngine
from meshrun.runner.maps.streamed.endpoints import Endpoints, Step
from meshrun.runner.maps.streamed.gpu_engine import DeviceEngine
from meshrun.runner.maps.streamed.loop import stream
from meshrun.runner.plan.chunks import Chunks
from meshrun.runner.plan.task import plan_task
from meshrun.runner.report.spans import STAGES, Spans
from meshrun.runner.storage.formats.registry import open_sink, open_source
from meshrun.runner.world.world import single_rank_world

PATIENCE = 60  # seconds after which a thread that waits for others fails its test
Act = Callable[[int], None]


@pytest.fixture(autouse=True)
def threads_end() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def nothing(number: int) -> None:
    pass


@dataclass
class Scripted:
    """An engine whose steps are the test's; it notes what is under way, and the order of the computed."""

    read: Act = nothing
    compute_: Act = nothing
    finish_: Act = nothing
    write: Act = nothing
    parts: int = 1
    begun: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    most: int = 0
    made: int = 0

    def slots(self, count: int) -> list[Any]:
        self.made += count
        return [SimpleNamespace(number=-1) for _ in range(count)]

    def join(self) -> None:
        pass

    def begin(self, slot: Any, number: int) -> list[Step]:
        slot.number = number
        self.begun.append(number)
        self.most = max(self.most, len(self.begun) - len(self.released))
        return [Step("read", 5, lambda: self.read(number))] * self.parts

    def compute(self, slot: Any, idle: Callable[[], None]) -> None:
        self.compute_(slot.number)
        self.computed.append(slot.number)

    def finish(self, slot: Any) -> list[Step]:
        number = slot.number
        self.finish_(number)
        return [Step("write", 3, lambda: self.write(number))] * self.parts

    def release(self, slot: Any) -> None:
        self.released.append(slot.number)


def flow(
    engine: Any, numbers: Iterable[int], *, depth: int = 3, threads: int = 2, **more: Any
) -> tuple[Spans, list[int]]:
    """The spans of a run of these chunks, and their numbers in the order in which they were finished."""
    finished: list[int] = []
    begin = time.monotonic()

    def hangs() -> None:
        assert time.monotonic() < begin + PATIENCE, "nothing happens any more"

    given = {"spans": Spans(), "finished": finished.append, "idle": hangs} | more
    stream(engine, numbers=numbers, depth=depth, threads=threads, **given)
    return given["spans"], finished


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [0, 1, 3, 10])
def test_every_chunk_goes_through_once_and_no_more_than_depth_at_a_time(depth: int, count: int) -> None:
    engine = Scripted(parts=3)
    spans, finished = flow(engine, range(count), depth=depth)
    assert sorted(finished) == sorted(engine.computed) == engine.begun == list(range(count))
    assert finished == engine.released
    assert engine.made == depth
    assert engine.most == min(depth, count)
    seen = Counter((span.stage, span.chunk, span.moved) for span in spans.found)
    assert seen == {
        (stage, n, moved): 1 for n in range(count) for stage, moved in (("read", 15), ("write", 9))
    }


def test_as_many_chunks_as_depth_are_under_way_at_once() -> None:
    flow(Scripted(read=waits_for_others(3)), range(9), depth=3, threads=3)


def test_parts_of_a_chunk_are_read_at_once() -> None:
    flow(Scripted(read=waits_for_others(3), parts=3), [0], threads=3)


def waits_for_others(count: int) -> Act:
    meeting = threading.Barrier(count)

    def wait(number: int) -> None:
        meeting.wait(PATIENCE)

    return wait


def test_a_chunk_that_waits_for_the_device_leaves_a_thread_to_read() -> None:
    """The first one waits in `finish` until the second, which is read meanwhile, is computed."""
    waits, computed = threading.Event(), threading.Event()

    def read(number: int) -> None:
        assert number == 0 or waits.wait(PATIENCE)

    def finish(number: int) -> None:
        waits.set()
        assert computed.wait(PATIENCE)

    engine = Scripted(read, lambda number: computed.set() if number else None, finish)
    _, finished = flow(engine, range(2), depth=2, threads=1)
    assert sorted(finished) == [0, 1]


def test_chunks_are_computed_in_the_order_in_which_they_are_read() -> None:
    computed = threading.Event()

    def slow_first(number: int) -> None:
        if number == 0:
            assert computed.wait(PATIENCE)

    engine = Scripted(read=slow_first, compute_=lambda number: computed.set())
    flow(engine, range(4), depth=2)
    assert engine.computed[0] == 1


def test_who_waits_is_poked() -> None:
    poked = threading.Event()

    def wait(number: int) -> None:
        assert poked.wait(PATIENCE)

    flow(Scripted(read=wait), range(2), idle=poked.set)


def test_a_dealer_is_asked_only_for_what_there_is_room_for() -> None:
    engine = Scripted()
    ahead = []

    def dealer() -> Iterator[int]:
        for number in range(8):
            ahead.append(number - len(engine.released))
            yield number

    flow(engine, dealer(), depth=2)
    assert max(ahead) <= 1


class Broken(Exception):
    pass


def breaks_at(bad: int) -> Act:
    def step(number: int) -> None:
        if number == bad:
            raise Broken(number)

    return step


@pytest.mark.parametrize("step", ["read", "compute_", "finish_", "write"])
@pytest.mark.parametrize("bad", [0, 4, 9])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_failure_is_raised_and_nothing_hangs(step: str, bad: int, depth: int) -> None:
    engine = Scripted(**{step: breaks_at(bad)}, parts=2)
    finished: list[int] = []
    with pytest.raises(Broken):
        flow(engine, range(10), depth=depth, finished=finished.append)
    assert bad not in finished
    assert set(finished) == set(engine.released)
    if depth == 1:
        assert finished == list(range(bad))


@pytest.mark.parametrize("depth", [1, 3])
def test_a_thread_that_cannot_join_is_a_failure(depth: int) -> None:
    """Such as one that does not get the device."""

    class Apart(Scripted):
        def join(self) -> None:
            raise Broken("apart")

    with pytest.raises(Broken, match="apart"):
        flow(Apart(), range(10), depth=depth)


@pytest.mark.parametrize("where", ["finished", "idle", "dealt"])
def test_a_failure_of_who_called_is_raised(where: str) -> None:
    failed = threading.Event()

    def fail(*_: Any) -> None:
        failed.set()
        raise Broken(where)

    def dealer() -> Iterator[int]:
        yield 0
        if where == "dealt":
            fail()

    def read(number: int) -> None:
        if where == "idle":
            assert failed.wait(PATIENCE)

    more = {} if where == "dealt" else {where: fail}
    with pytest.raises(Broken, match=where):
        flow(Scripted(read=read), dealer(), **more)


def test_the_first_failure_is_the_one_that_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    first = threading.Event()

    class Events(SimpleQueue):  # type: ignore[type-arg]
        def put(self, event: Any) -> None:  # type: ignore[override]
            super().put(event)
            first.set()

    def fail(number: int) -> None:
        if number == 1:
            raise Broken("first")
        assert first.wait(PATIENCE)
        raise Broken("second")

    monkeypatch.setattr("meshrun.runner.maps.streamed.loop.SimpleQueue", Events)

    with pytest.raises(Broken, match="first"):
        flow(Scripted(read=fail), range(4), depth=2, threads=2)


def test_what_is_under_way_has_ended_when_a_failure_is_raised() -> None:
    """Whoever gets it may close files and give memory back."""
    under_way, ended, broke = threading.Event(), threading.Event(), threading.Event()

    def read(number: int) -> None:
        if number == 0:
            under_way.set()
            assert broke.wait(PATIENCE)
            time.sleep(0.1)
            ended.set()

    def compute(number: int) -> None:
        assert under_way.wait(PATIENCE)
        broke.set()
        raise Broken(number)

    with pytest.raises(Broken):
        flow(Scripted(read=read, compute_=compute), range(2), depth=2)
    assert ended.is_set()


def test_no_chunk_is_begun_after_a_failure() -> None:
    engine = Scripted(compute_=breaks_at(2))
    with pytest.raises(Broken):
        flow(engine, range(100), depth=2)
    assert len(engine.begun) <= 4


# ---- the engines themselves


def endpoints_of(folder: Path, backend: Any, *, halo: int = 1, rows: int = 4) -> Endpoints:
    """A sum of neighbours of 19 rows of 6 float32, as float64."""
    np.save(folder / "in.npy", np.arange(114, dtype=np.float32).reshape(19, 6))
    source = open_source(folder / "in.npy")

    @meshrun.map_blocks(halo=(halo, 0))
    def neighbours(block: Any) -> Any:
        shape = (block.shape[0] - 2 * halo, block.shape[1])
        return sum(block[i : i + shape[0]].astype(np.float64) for i in range(2 * halo + 1))

    task = plan_task(neighbours, {}, [(source.shape, source.dtype)], 1).with_results(
        [((6,), np.dtype(np.float64))]
    )
    sink = open_sink(folder / "out.npy", *task.known[0], "stream")
    sink.create()
    return Endpoints(
        single_rank_world(backend), task, Chunks(task.partition, rows), [source], [sink], Spans()
    )


def moved(endpoints: Endpoints) -> dict[tuple[str, int], int]:
    """What each stage of each chunk has to move, from the definition."""
    found: dict[tuple[str, int], int] = {}
    for number, region in enumerate(endpoints.chunks[n] for n in range(len(endpoints.chunks))):
        halo = endpoints.task.widths[0][0]
        read = min(region.stop[0] + halo, 19) - max(region.start[0] - halo, 0)
        rows = region.shape[0]
        result = rows * 6 * 8
        found |= {("read", number): read * 6 * 4, ("write", number): result}
        found["kernel", number] = (rows + 2 * halo) * 6 * 4 + result
        if endpoints.world.backend.asynchronous:
            found |= {("to device", number): read * 6 * 4, ("from device", number): result}
    return found


@pytest.mark.parametrize("halo", [0, 1])
@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(CpuBackend, id="host"),
        pytest.param(QueuedBackend, id="device"),
        pytest.param(lambda: QueuedBackend(late=False), id="prompt device"),
    ],
)
def test_each_stage_of_each_chunk_is_noted_once_with_its_bytes(
    tmp_path: Path, backend: Callable[[], Any], halo: int
) -> None:
    endpoints = endpoints_of(tmp_path, backend(), halo=halo)
    engine = DeviceEngine(endpoints) if endpoints.world.backend.asynchronous else HostEngine(endpoints)
    flow(engine, range(len(endpoints.chunks)), spans=endpoints.spans)
    assert Counter((span.stage, span.chunk) for span in endpoints.spans.found) == Counter(
        moved(endpoints).keys()
    )
    assert {(span.stage, span.chunk): span.moved for span in endpoints.spans.found} == moved(endpoints)
    for number in range(len(endpoints.chunks)):
        mine = sorted(
            (s for s in endpoints.spans.found if s.chunk == number), key=lambda s: STAGES.index(s.stage)
        )
        times = [time for span in mine for time in (span.begin, span.end)]
        assert times == sorted(times), "a stage began before the one before it had ended"


def test_buffers_are_made_once_and_used_again(tmp_path: Path) -> None:
    device = QueuedBackend()
    endpoints = endpoints_of(tmp_path, device, rows=1)
    flow(DeviceEngine(endpoints), range(19), depth=2, spans=endpoints.spans)
    assert sorted(device.allocated) == [6 * 8] * 2 + [3 * 6 * 4] * 2


@pytest.mark.parametrize("backend", [CpuBackend, QueuedBackend])
def test_cells_that_a_function_leaves_out_are_poison_not_another_chunks(
    tmp_path: Path, backend: Callable[[], Any]
) -> None:
    @meshrun.map_blocks
    def every_second(block: Any, *, out: Any) -> None:
        out[:, ::2] = block[:, ::2]

    endpoints = endpoints_of(tmp_path, backend(), halo=0)
    task = plan_task(every_second, {}, [((19, 6), np.dtype(np.float32))], 1)
    sink = open_sink(tmp_path / "other.npy", *task.known[0], "stream")
    sink.create()
    endpoints = replace(endpoints, task=task, sinks=[sink])
    engine = DeviceEngine(endpoints) if endpoints.world.backend.asynchronous else HostEngine(endpoints)
    flow(engine, range(len(endpoints.chunks)), depth=1, spans=endpoints.spans)
    found = open_source(sink.partial).array
    np.testing.assert_array_equal(found[:, ::2], endpoints.sources[0].array[:, ::2])
    assert np.isnan(found[:, 1::2]).all()
