"""Ranks as threads of this process for the measuring commands, and wrappers of their collectives.

    on_ranks(size, body)                    body(world) on every rank; the results in rank order
    bench_on(size, operation, body, ...)    body(bench) likewise, inside an opened session
    disturbed(group, before, after)         collectives with actions before and after every call
    recorded(bench)                         a bench whose calls, waits and barriers are recorded

`wrap` of the first two wraps every rank's collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import meshrun
from meshrun import World
from meshrun.jobs.bench.collectives import session
from meshrun.jobs.bench.collectives.config import BenchOptions, SweepSettings
from meshrun.jobs.bench.collectives.session import Bench
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.collectives.api import Call, Pointer
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.world.watchdog.watchdog import MeasurementProgress

Wrap = Callable[[Any], Any]


def _nothing(call: Call) -> None:
    pass


class Around:
    """Delegate to `inner` all that a subclass does not define."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Disturbed(Around):
    """Collectives of one rank, with `before(call)` and `after(call)` around every call."""

    def __init__(
        self, inner: Any, before: Callable[[Call], None] = _nothing, after: Callable[[Call], None] = _nothing
    ) -> None:
        super().__init__(inner)
        self.before, self.after = before, after

    def bind(self, call: Call) -> Callable[[], None]:
        return self._around(call, self.inner.bind(call))

    def message(self, call: Call, **peers: int | None) -> Callable[[], None]:
        return self._around(call, self.inner.message(call, **peers))

    def _around(self, call: Call, make: Callable[[], object]) -> Callable[[], None]:
        def made() -> None:
            self.before(call)
            make()
            self.after(call)

        return made


class Recorder(Around):
    """Record one rank's calls by their places, such as "send+64 > recv+64", and its waits.

    A call that finds poison in its result buffer is "fresh"; calls of one group are in braces, those of
    a graph in brackets. queues: calls are carried out no sooner than they are waited for, as on a GPU.
    """

    def __init__(self, inner: Any, send: Any, recv: Any, journal: list[str], queues: bool) -> None:
        super().__init__(inner)
        self.buffers, self.journal, self.asynchronous = {id(send): "send", id(recv): "recv"}, journal, queues
        self.queue: list[Callable[[], object]] = []
        self.capturing = False

    def place(self, place: Pointer) -> str:
        return f"{self.buffers[id(place.buffer)]}+{place.offset}"

    def bind(self, call: Call) -> Callable[[], None]:
        make, words = self.inner.bind(call), f"{self.place(call.send)} > {self.place(call.recv)}"
        result = call.recv.bytes(4)

        def made() -> None:
            self.journal.append(f"{'fresh ' if (result == 0xA5).all() else ''}{words}")
            self.submit(make)

        return made

    def submit(self, make: Callable[[], object]) -> None:
        if self.asynchronous:
            self.queue.append(make)
        else:
            make()

    def grouped(self, calls: Sequence[Callable[[], object]]) -> Callable[[], None]:
        return partial(self.bracketed, "{", "}", calls)

    def captured(self, calls: Sequence[Callable[[], object]]) -> Callable[[], None]:
        before, self.queue = self.queue, []
        self.bracketed("[", "]", calls)
        graph, self.queue = self.queue, before

        def launch() -> None:
            self.journal.append("launch")
            self.queue.extend(graph)

        return launch

    def bracketed(self, opening: str, closing: str, calls: Iterable[Callable[[], object]]) -> None:
        self.journal.append(opening)
        for call in calls:
            call()
        self.journal.append(closing)

    def issue(self, calls: Sequence[Callable[[], object]]) -> None:
        for call in calls:
            call()

    def wait(self, poll: Callable[[], object] | None = None) -> None:
        self.journal.append("wait")
        for make in self.queue:
            make()
            if poll is not None:
                poll()
        self.queue.clear()


class RecordedControl(Around):
    """Record barriers."""

    def __init__(self, inner: Control, journal: list[str]) -> None:
        super().__init__(inner)
        self.journal = journal

    def barrier(self) -> None:
        self.journal.append("barrier")
        self.inner.barrier()


@dataclass
class Recorded:
    """bench: of this rank, recording its calls in `journal`."""

    bench: Bench
    queues: bool = False
    journal: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        bench = self.bench
        for buffer in (bench.send, bench.recv):
            buffer.array[...] = 0  # memory that another test had poisoned would look fresh
        group = Recorder(bench.group, bench.send, bench.recv, self.journal, self.queues)
        everyone: Any = RecordedControl(bench.everyone, self.journal)
        self.bench = replace(bench, group=group, everyone=everyone)


def _on_ranks(
    size: int,
    body: Callable[[World], Any],
    *,
    hosts: Sequence[str] | None = None,
    wrap: Wrap | None = None,
    timeout: float = 60.0,
) -> list[Any]:
    """hosts: the name of each rank's host; one host for all where it is None."""

    def on_rank(control: ThreadComm) -> Any:
        world = meshrun.open_world("cpu", control=control)
        if hosts is not None:
            named = zip(world.ranks, hosts, strict=True)
            world.ranks = tuple(replace(rank, host=host, host_id=host) for rank, host in named)
        if wrap is not None:
            opened = world.collectives
            world.collectives = lambda group, **options: wrap(opened(group, **options))
        return body(world)

    return run_ranks(size, on_rank, timeout)


def _bench_on(
    size: int,
    operation: str,
    body: Callable[[Bench], Any],
    *,
    wrap: Wrap | None = None,
    split: str | None = None,
    spread: float = 1.0,
    matrix: Path | None = None,
    cudagraph: int = 0,
    steady: bool = False,
    **settings: Any,
) -> list[Any]:
    """settings: as `SweepSettings`; by default one size of 64 bytes, one iteration, no warm-up.

    cudagraph: which a session on CPUs would refuse.
    """
    chosen = {"minbytes": 64, "maxbytes": 64, "stepfactor": 2, "iters": 1, "warmup_iters": 0} | settings
    wanted = BenchOptions(
        (operation,), SweepSettings(**chosen), split=split, spread=spread, matrix=matrix, steady=steady
    )

    def on_rank(world: World) -> Any:
        colors = session.colors_of(world, wanted)
        with session.opened(world, world.control, wanted, operation, MeasurementProgress(), colors) as opened:
            opened.bench.settings = replace(opened.bench.settings, cudagraph=cudagraph)
            return body(opened.bench)

    return _on_ranks(size, on_rank, wrap=wrap)


@pytest.fixture(scope="session")
def on_ranks() -> Callable[..., list[Any]]:
    return _on_ranks


@pytest.fixture(scope="session")
def bench_on() -> Callable[..., list[Any]]:
    return _bench_on


@pytest.fixture(scope="session")
def disturbed() -> type[Disturbed]:
    return Disturbed


@pytest.fixture(scope="session")
def recorded() -> type[Recorded]:
    return Recorded
