"""A forecast and a run with the same facts: streamed or not, the same chunks, and memory that holds them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from decided import streamed
from hypothesis import HealthCheck, event, example, given, reject, settings
from hypothesis import strategies as st
from queued_device import QueuedBackend

import meshrun
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import UserError
from meshrun.runner.forecast.machine import Machine, nominal, nominal_cpu
from meshrun.runner.forecast.model import forecast
from meshrun.runner.maps.streamed import chunk_agreement
from meshrun.runner.maps.streamed.chunk_agreement import chunks_of
from meshrun.runner.maps.streamed.endpoints import Endpoints
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan import chunking
from meshrun.runner.plan.chunking import FileTraits, has_own_grid, streamed_grid
from meshrun.runner.plan.chunks import Chunks
from meshrun.runner.plan.task import Task, plan_task
from meshrun.runner.report.spans import Spans
from meshrun.runner.run import map_run, prepare
from meshrun.runner.run.prepare import limits
from meshrun.runner.world.world import World, open_world


def declared(block: Any, *, out: Any) -> None: ...


def larger(block: Any) -> Any:
    """A result that is not declared, of wider cells."""
    return block


def shorter(block: Any, *, out: Any) -> None: ...


def longer(block: Any, *, out: Any) -> None: ...


OUT = {
    shorter: lambda shape, dtype: ((shape[0] // 3, *shape[1:]), WIDE),
    longer: lambda shape, dtype: ((shape[0] // 2 * 5, *shape[1:]), dtype),
}
UNIT = {shorter: 3, longer: 2}  # rows that stay together
WIDE = np.dtype(np.complex128)


@dataclass(frozen=True)
class Facts:
    shape: tuple[int, ...]
    widths: tuple[tuple[int, int], ...]
    function: Any
    ranks: int
    gpus: int  # of the host; 0: ranks compute on its cores
    memory: int
    device_memory: int
    options: StreamOptions
    files: FileTraits
    grid: str | None
    keep_whole: bool

    def cut(self, ranks: int, grid: str | None) -> Task:
        out = OUT.get(self.function)
        job = meshrun.map_blocks(halo=self.widths, boundary="nearest", out=out)(self.function)
        return plan_task(job, {}, [(self.shape, np.dtype(np.float32))], ranks, grid=grid)

    @property
    def whole(self) -> Task:
        """Cut into a block for each rank."""
        return self.cut(self.ranks, None if has_own_grid(self.grid, self.ranks) else self.grid)

    @property
    def machine(self) -> Machine:
        if not self.gpus:
            return nominal_cpu(4, self.memory)
        known = nominal("h200")
        return replace(known, gpus=self.gpus, memory=self.memory, device_memory=self.device_memory)

    def source(self) -> Any:
        return SimpleNamespace(
            parallel=self.files.parallel, chunks=self.files.source_chunks, path=Path("in.tiff")
        )

    def sink(self) -> Any:
        return SimpleNamespace(parallel=True, chunks=self.files.sink_chunks, path=Path("out.zarr"))


def known(task: Task) -> Task:
    return task if task.results else task.with_results([(task.shape[task.leading :], WIDE)])


NONE = ((0, 0), (0, 0))
KEPT_WHOLE = Facts(
    (24, 24), NONE, declared, 1, 1, 1 << 22, 1 << 18, StreamOptions(), FileTraits(), None, keep_whole=True
)


@st.composite
def facts(draw: st.DrawFn) -> Facts:
    shape = tuple(draw(st.lists(st.integers(1, 24), min_size=1, max_size=3)))
    function = draw(st.sampled_from([declared, larger, shorter, longer]))
    shape = (-(-shape[0] // UNIT.get(function, 1)) * UNIT.get(function, 1), *shape[1:])
    if draw(st.integers(0, 9)) == 0:
        shape = (*shape[:-1], 0)
    widths = tuple((draw(st.integers(0, min(n, 2))), draw(st.integers(0, min(n, 2)))) for n in shape)
    ranks = draw(st.integers(1, 4))
    gpus = draw(st.integers(0, 4))
    memory = draw(st.integers(100, 4_000_000))
    options = StreamOptions(
        chunk_bytes=draw(st.none() | st.integers(200, 9000)),
        host_memory=draw(st.none() | st.integers(min(memory, 2000), memory)),
        device_memory=draw(st.none() | st.integers(2000, 90_000)),
        depth=draw(st.none() | st.integers(1, 4)),
    )
    chosen = draw(st.integers(0, len(shape)))
    numbers = "x".join(str(draw(st.integers(1, 3))) for _ in range(chosen))
    grid = draw(st.sampled_from([None, "x".join("0" * max(chosen, 1)), numbers or None]))
    chunked_output = draw(st.booleans())
    files = FileTraits(
        parallel=draw(st.integers(0, 9)) > 0,
        chunked_output=chunked_output,
        source_chunks=draw(st.none() | st.tuples(*(st.integers(1, max(n, 1)) for n in shape))),
        sink_chunks=tuple(draw(st.integers(1, max(n, 1))) for n in shape) if chunked_output else None,
    )
    if chunked_output:
        grid = None  # which a run refuses
    if draw(st.booleans()):
        options = StreamOptions()
    device_memory = draw(st.integers(100, 300_000))
    return Facts(
        shape, widths, function, ranks, gpus, memory, device_memory, options, files, grid, draw(st.booleans())
    )


def world_of(control: Any, given: Facts) -> World:
    """One whose ranks share GPUs as evenly as can be."""
    world = open_world("cpu", control=control)
    if given.gpus:
        world.backend = QueuedBackend(memory=given.device_memory)
        # All ranks' memory is taken to be that of those which share a GPU with most others.
        sharing = -(-given.ranks // given.gpus)
        world.ranks = tuple(
            replace(rank, device=replace(rank.device, uuid=str(rank.number // sharing)))
            for rank in world.ranks
        )
    return world


def decided_by_run(given: Facts) -> tuple[Chunks, int] | str | None:
    """The chunks, and the bytes of a rank's buffers; None: in one piece; or the error."""

    def rank(control: Any) -> tuple[Chunks, int] | None:
        world, source, sink = world_of(control, given), given.source(), given.sink()
        target = Path("out.zarr" if given.files.chunked_output else "out.npy")
        if not streamed(world, given.whole, source, given.options, target, keep_whole=given.keep_whole):
            return None
        text, blocks = streamed_grid(given.grid, given.ranks)
        task = known(given.cut(blocks, text))
        memory = world.gather_calls(lambda: limits(world, given.options))
        found = chunks_of(world, task, [source], [sink], given.options, memory)
        buffers = sum(map(sum, Endpoints(world, task, found, [source], [sink], Spans()).largest))
        return found, buffers * given.options.under_way

    try:
        answers = run_ranks(given.ranks, rank)
    except UserError as error:
        return str(error)
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


def decided_by_forecast(given: Facts) -> tuple[Chunks, int] | str | None:
    """The same; of the bytes, those that it allows for."""
    try:
        part = forecast(
            known(given.whole),
            given.machine,
            1,
            given.options,
            given.files,
            grid=given.grid,
            keep_whole=given.keep_whole,
        ).part
    except UserError as error:
        return str(error)
    if part.cut is None:
        assert not part.streamed
        return None
    return part.cut, part.memory.host


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Chunks of a few rows, of files that need not be there."""
    monkeypatch.setattr(chunking, "ON_DEVICE", 100)
    monkeypatch.setattr(chunking, "ON_HOST", 80)
    monkeypatch.setattr(chunk_agreement, "open_sinks", lambda *_: [SimpleNamespace(parallel=True)])
    monkeypatch.setattr(map_run, "with_trial_results", lambda world, task, sources: known(task))
    return monkeypatch


@settings(
    max_examples=3 * settings.default.max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(facts())
@example(KEPT_WHOLE)
@example(replace(KEPT_WHOLE, keep_whole=False))
def test_a_forecast_decides_as_a_run_does(small: pytest.MonkeyPatch, given: Facts) -> None:
    text, blocks = streamed_grid(given.grid, given.ranks)
    try:
        assert given.whole.shape == given.cut(blocks, text).shape
    except UserError:
        reject()  # the grid suits neither
    small.setattr(prepare, "host_memory", lambda: given.memory)
    run, foreseen = decided_by_run(given), decided_by_forecast(given)
    event(type(run).__name__)
    if not given.files.parallel and given.options.named:
        assert isinstance(run, str)  # which `meshrun plan` refuses likewise
        assert foreseen is None
    elif isinstance(run, tuple):
        assert isinstance(foreseen, tuple)
        assert (foreseen[0].partition, foreseen[0].rows) == (run[0].partition, run[0].rows)
        assert foreseen[1] >= run[1], "more memory than was forecast"
        assert run[0].rows % UNIT.get(given.function, 1) == 0 or not len(run[0])
    else:
        assert foreseen == run
