"""The model's bytes and messages are those that move, on ranks as threads, and its memory is enough."""

from __future__ import annotations

import sys
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pairs import pairs_by_day
from stream_cases import run_on

from meshrun.jobs.transforms.fft_job import fft
from meshrun.jobs.transforms.forecast import forecast_transpose
from meshrun.jobs.transforms.transpose_job import transpose_job
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import UserError
from meshrun.runner.forecast.machine import nominal_cpu
from meshrun.runner.forecast.place import Place, links_of
from meshrun.runner.plan import redistribution
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.group import Group
from meshrun.runner.world.world import open_world

AMPLE = 1 << 40


def moved(folder: Path, job: Any, ranks: int, parameters: dict[str, Any]) -> list[tuple[int, int]]:
    """Bytes and messages that each rank sends to others."""
    sent = [[0, 0] for _ in range(ranks)]

    def rank(control: Control) -> None:
        world = open_world("cpu", control=control)
        exchange = Group.start_exchange

        def counted(self: Group, sends: Any, receives: Any) -> Any:
            others = [array for peer, array in sends if peer != self.rank and array.size]
            sent[world.rank][0] += sum(array.nbytes for array in others)
            sent[world.rank][1] += len(others)
            return exchange(self, sends, receives)

        counting = type("Counting", (Group,), {"start_exchange": counted})
        world.start_exchange = counted.__get__(world)  # type: ignore[method-assign]
        grid = world.grid

        def counted_grid(*sides: int) -> Any:
            found = grid(*sides)
            for group in found.groups:
                group.__class__ = counting
            return found

        world.grid = counted_grid  # type: ignore[method-assign]
        run(job, folder / "in.npy", folder / "out.npy", parameters, Options(), world=world)

    run_ranks(ranks, rank)
    return [(one, messages) for one, messages in sent]


@pytest.mark.parametrize(
    ("job", "dtype", "parameters"),
    [
        (transpose_job, "f4", {}),
        (fft, "c8", {}),
        (fft, "f4", {}),  # converted
        (fft, "f8", {"real": True}),
        (fft, "c16", {"real": True, "inverse": True}),
        (fft, "f4", {"axes": "1,2", "keep_order": False}),
    ],
)
@pytest.mark.parametrize("library", ["scipy", "numpy"])
def test_what_needs_no_exchange_fits_less_memory(
    tmp_path: Path,
    job: Any,
    dtype: str,
    parameters: dict[str, Any],
    library: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that Python and NumPy allocate, of one rank."""
    if library == "numpy":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    shape = (64, 60, 56)
    np.save(tmp_path / "in.npy", np.ones(shape, dtype))
    machine = nominal_cpu(cores=1, memory=AMPLE)
    place = Place(machine, links_of(machine, 1, None, None), 1, 1, AMPLE)
    memory = job.forecast(place, [(shape, dtype)], **job.complete(parameters)).memory
    measured: list[int] = []
    module = sys.modules[job.function.__module__]
    read, write = module.read_block, module.write_block

    def reads(*given: Any) -> Any:
        measured.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.reset_peak()
        return read(*given)

    def writes(*given: Any) -> Any:
        measured.append(tracemalloc.get_traced_memory()[1])
        return write(*given)

    monkeypatch.setattr(module, "read_block", reads)
    monkeypatch.setattr(module, "write_block", writes)
    tracemalloc.start()
    try:
        record = run_on(
            1, job, tmp_path / "in.npy", tmp_path / "out.npy", parameters=parameters, host_memory=memory
        )
    finally:
        tracemalloc.stop()
    assert measured[1] - measured[0] <= memory + 100_000
    assert record["result"].get("passes", 1) == 1
    with pytest.raises(UserError, match="does not fit") if job is fft else nullcontext():
        record = run_on(
            1, job, tmp_path / "in.npy", tmp_path / "out.npy", parameters=parameters, host_memory=memory - 1
        )
        assert record["result"]["passes"] == 2


@pairs_by_day(
    ranks=[2, 3, 4, 8, 16],
    shape=[(48, 48, 96), (17, 23, 19)],  # the second has nothing that divides
    job__parameters=[
        (transpose_job, {"axes": "2,0,1"}),
        (transpose_job, {"axes": "0,2,1"}),  # nothing moves
        (fft, {"decomposition": "slab"}),
        (fft, {"decomposition": "pencil"}),
        (fft, {"axes": "1,2"}),  # a batch
    ],
)
def test_the_models_bytes_and_messages_are_those_that_move(
    tmp_path: Path,
    job: Any,
    parameters: dict[str, Any],
    shape: tuple[int, ...],
    ranks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if parameters.get("decomposition") == "pencil" and ranks < 4:
        pytest.skip("pencils need a grid")
    monkeypatch.setattr(redistribution, "LEAST", 4096)  # several parts, as of large arrays
    np.save(tmp_path / "in.npy", np.ones(shape, "c8"))
    machine = nominal_cpu(cores=ranks, memory=AMPLE)
    place = Place(machine, links_of(machine, ranks, None, None), ranks, 1, AMPLE)
    forecast = job.forecast(place, [(shape, "c8")], **job.complete(parameters))
    exchanges = [stage for stage in forecast.stages if stage.name == "exchange"]
    sent = moved(tmp_path, job, ranks, parameters)
    amount, messages = (sum(getattr(one, name) for one in exchanges) for name in ("amount", "messages"))
    assert max(found for _, found in sent) == messages
    most = max(found for found, _ in sent)
    if shape[0] == 48:
        assert most == amount
    else:  # the largest block's share of the others
        assert 0.8 * amount <= most <= 1.1 * amount


def test_a_cpus_transpose_takes_a_time_of_each_cell_and_of_new_memory() -> None:
    """Of a cell of any size, in one thread, however many cores a rank has; a GPU's takes one of each byte."""

    def seconds(shape: tuple[int, int], dtype: str, cores: int = 2, passes: int = 1) -> float:
        machine = nominal_cpu(cores, AMPLE)
        place = Place(machine, links_of(machine, 1, None, None), 1, 1, AMPLE)
        found = forecast_transpose(place, shape, np.dtype(dtype), (1, 0), 0, passes, 2)
        (stage,) = [one for one in found.stages if one.name == "transpose"]
        return stage.seconds

    small = seconds((1024, 1024), "f4")
    assert small == pytest.approx(3e-9 * 1024**2)
    assert seconds((1024, 1024), "c16", cores=64) == pytest.approx(small)
    large = seconds((4096, 4096), "f8")
    assert large == pytest.approx(3e-9 * 4096**2 + 8 * 4096**2 / 8e9)
    assert seconds((4096, 4096), "f8", passes=8) == pytest.approx(3e-9 * 4096**2)  # each in kept memory
