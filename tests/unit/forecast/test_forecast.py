"""What a run is forecast to take: tables worked out by hand, and what holds for any array and machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_cases import run_on

import meshrun
from meshrun.runner.compiler.result_type import with_known_results
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.forecast.machine import Machine, Rate, nominal, nominal_cpu
from meshrun.runner.forecast.maps import record
from meshrun.runner.forecast.model import Forecast, by_ranks, compare, enough, forecast
from meshrun.runner.forecast.table import render
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.chunking import FILLS, ON_DEVICE
from meshrun.runner.plan.task import Task, plan_task
from meshrun.runner.report.spans import STAGES
from meshrun.runner.report.summary import render_comparison
from meshrun.runner.run.execute import Options, run

RATES = {
    "read": 10, "write": 5, "read and write": 12, "host memory": 100, "kernel": 100,
    "to device": 8, "from device": 4, "both directions": 10, "host to device": 12, "host from device": 12,
}  # fmt: skip
GPUS = Machine(
    "G", 4, 8, 2, 1 << 30, 1 << 20, (1.0, 2.0), {name: Rate(float(rate)) for name, rate in RATES.items()}
)
CPUS = replace(GPUS, gpus=0, cores=4)


def task(shape: tuple[int, ...], ranks: int, *, halo: Any = 0, grid: str | None = None) -> Task:
    job = meshrun.map_blocks(halo=halo, boundary="nearest")(identity)
    return settled(plan_task(job, {}, [(shape, np.dtype(np.uint8))], ranks, grid=grid))


def settled(cut: Task) -> Task:
    return with_known_results(cut, CpuBackend())


def identity(block: Any, *, out: Any) -> None:
    """Copy."""


def rows(found: Forecast) -> dict[str, tuple[str, int, float]]:
    return {row.name: (row.of, row.bytes, round(row.seconds, 6)) for row in found.rows}


def test_in_one_piece_the_stages_add_up() -> None:
    found = forecast(task((64, 10), 2), GPUS)
    assert rows(found) == {
        "read": ("host", 640, 64.0),
        "to device": ("host", 640, 53.333333),  # one GPU alone: 320 / 8 = 40
        "kernel": ("GPU", 640, 6.4),
        "from device": ("GPU", 320, 80.0),  # the host: 640 / 12 = 53.3
        "write": ("host", 640, 128.0),
    }
    assert found.seconds == pytest.approx(64 + 160 / 3 + 6.4 + 80 + 128)
    assert (found.limit.name, found.start) == ("write", 1.0 + 2 * 2.0)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_gpu_that_is_kept_busy_gets_chunks(missing: int) -> None:
    large = replace(GPUS, memory=1 << 40, device_memory=1 << 40)
    rows = 2 * FILLS * ON_DEVICE // 1024 - 2 * missing  # on two ranks
    assert forecast(task((rows, 1024), 2), large).part.streamed == (not missing)
    assert not forecast(task((rows, 1024), 2), replace(large, gpus=0, cores=4)).part.streamed


def test_streamed_the_slowest_sets_the_pace() -> None:
    found = forecast(task((64, 10), 2), GPUS, 1, StreamOptions(chunk_bytes=80))
    shared = {"read and write", "both directions", "host memory"}
    assert (found.part.chunks, found.part.chunk_rows) == (4, 8)
    assert {name: row for name, row in rows(found).items() if name in shared} == {
        "read and write": ("host", 1280, 106.666667),
        "both directions": ("GPU", 640, 64.0),
        "host memory": ("host", 2 * 1280 + 1280, 38.4),  # a copy reads and writes; DMA does one of both
    }
    one_chunk = (64 + 160 / 3 + 6.4 + 80 + 128) / 4
    assert found.fill == pytest.approx(one_chunk - 128 / 4)
    assert found.seconds == pytest.approx(128 + found.fill)


def test_every_chunk_is_read_with_its_halo() -> None:
    found = forecast(task((64, 10), 2, halo=(1, 2)), GPUS, 1, StreamOptions(chunk_bytes=14 * 10))
    assert found.part.chunk_rows == 8  # and 2 of halo, of 14 cells
    assert found.part.moved["read"] == 4 * 10 * 10  # the halo along columns is made of what was read
    assert found.part.moved["kernel"] == 4 * (10 * 14 + 8 * 10)
    assert found.part.host_moved["read"] == (64 + 8 * 2 - 2) * 10  # beyond the array's edges nothing is
    one_piece = forecast(task((64, 10), 2, halo=(1, 2)), GPUS)
    assert one_piece.part.moved["read"] == 320  # the halo comes from the other rank
    assert one_piece.part.moved["kernel"] == 34 * 14 + 320


def test_a_halo_along_an_axis_that_is_cut_is_read() -> None:
    cut, options = task((64, 10), 2, halo=(0, 2), grid="1x2"), StreamOptions(chunk_bytes=8 * 9)
    found = forecast(cut, GPUS, 1, options, grid="1x2")
    assert found.part.chunk_rows == 8
    assert found.part.moved["read"] == 8 * 8 * (5 + 2)


def test_a_device_too_small_streams_and_the_chunks_fit_it() -> None:
    small = replace(GPUS, device_memory=1000)
    found = forecast(task((64, 10), 1), small)
    assert found.part.streamed
    assert found.part.memory.device <= 800
    assert not forecast(task((64, 10), 8), small, 2).part.streamed


def test_the_cores_of_a_cpu_copy_and_compute() -> None:
    found = forecast(task((64, 10), 2), CPUS, 1, StreamOptions(chunk_bytes=80))
    assert rows(found)["kernel"] == ("host", 1280, 12.8)  # two cores: 6.4 each
    assert rows(found)["cores"] == ("host", 0, (2 * (64 + 128) + 12.8) / 4)
    assert {"to device", "from device", "both directions"}.isdisjoint(rows(found))


def test_ranks_of_another_host_take_nothing_from_this_one() -> None:
    one, two = (forecast(task((64, 10), 4), GPUS, hosts) for hosts in (1, 2))
    assert [rows(found)["read"][1] for found in (one, two)] == [640, 320]
    assert (one.start, two.start) == (9.0, 5.0)


def test_when_one_gpu_beats_eight() -> None:
    free = {**GPUS.rates, "read": Rate(1e9), "write": Rate(1e9)}
    limited = by_ranks(forecast(task((64, 10), 8), GPUS), task((64, 10), 8), GPUS)
    assert [one.ranks for one in limited] == [1, 2, 4, 8]
    # From four on the host's links are full; three stages of one GPU alone are 80, 12.8 and 160 seconds.
    assert [round(one.total, 1) for one in limited] == [447.8, 336.7, 310.9, 317.3]
    assert enough(limited) == 4
    quick = replace(GPUS, rates={name: rate for name, rate in free.items() if not name.startswith("host ")})
    unlimited = by_ranks(forecast(task((640, 10), 8), quick), task((640, 10), 8), quick)
    assert enough(unlimited) == 8
    slow = replace(quick, start=(0.0, 1e6))
    assert enough(by_ranks(forecast(task((640, 10), 8), slow), task((640, 10), 8), slow)) == 1


def test_counts_between_powers_of_two_and_grids() -> None:
    cut = task((60, 12), 6, grid="2x3")
    found = by_ranks(forecast(cut, GPUS), cut, GPUS)
    assert [(one.ranks, one.grid) for one in found] == [(1, (1, 1)), (2, (2, 1)), (4, (4, 1)), (6, (2, 3))]


def test_a_result_that_is_not_declared_is_seen_by_a_call() -> None:
    @meshrun.map_blocks(halo=(1, 0))
    def halves(block: Any) -> Any:
        return (block[1:-1] / 2).sum(axis=-1)

    found = settled(plan_task(halves, {}, [((50, 40, 3), np.dtype(np.int16))], 5))
    assert found.results == (((50, 40), np.dtype(np.float64)),)

    @meshrun.map_blocks
    def wrong(block: Any) -> Any:
        return block[:0]

    with pytest.raises(RunError, match="wrong shape"):
        settled(plan_task(wrong, {}, [((50, 40), np.dtype(np.int16))], 5))


def test_a_chunk_that_fits_no_memory_is_refused() -> None:
    with pytest.raises(UserError, match="does not fit the device memory"):
        forecast(task((64, 10), 1), GPUS, 1, StreamOptions(device_memory=10))
    with pytest.raises(UserError, match="less than a row with the halo"):
        forecast(task((64, 10), 1, halo=(1, 0)), GPUS, 1, StreamOptions(chunk_bytes=29))


machines = st.sampled_from([GPUS, CPUS, nominal("h200"), nominal("a100"), nominal_cpu(2, 1 << 34)])
streaming = st.builds(StreamOptions, chunk_bytes=st.none() | st.integers(500, 3000), depth=st.integers(1, 4))


@given(
    st.integers(1, 300), st.integers(1, 9), st.integers(0, 2), st.integers(1, 12), st.integers(1, 3),
    machines, streaming,
)  # fmt: skip
def test_the_floor_is_no_less_than_any_stage_and_all_is_done(
    length: int, width: int, halo: int, ranks: int, hosts: int, machine: Machine, options: StreamOptions
) -> None:
    if halo > min(length, width):
        return
    found = forecast(task((length, width), ranks, halo=halo), machine, min(hosts, ranks), options)
    assert found.seconds >= max(row.seconds for row in found.rows)
    assert found.fill >= 0
    assert ranks * found.part.moved["write"] >= length * width
    for stage in STAGES:
        assert found.part.moved[stage] <= found.part.host_moved[stage]
    if hosts == 1:
        assert found.part.host_moved["write"] == length * width
        assert found.part.host_moved["read"] >= length * width


@meshrun.map_blocks(halo=((1, 2), (0, 3), (0, 0)))
def reads_around(block: Any, other: Any, *, out: Any) -> None:
    out[...] = block[1:-2, :-3] + other[1:-2, 3:]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("boundary", ["reflect", "constant", "wrap"])
@pytest.mark.parametrize("chunk_bytes", [None, 1, 5, 23])
@pytest.mark.parametrize("cut_columns", [False, True])
def test_a_run_reads_the_bytes_of_its_plan(
    tmp_path: Path, ranks: int, boundary: Any, chunk_bytes: int | None, cut_columns: bool
) -> None:
    """Also at the edges of the array, where a chunk's halo is no part of the file."""
    files = [tmp_path / "a.npy", tmp_path / "b.npy"]
    for file, dtype in zip(files, (np.float32, np.int16), strict=True):
        np.save(file, np.ones((23, 8, 2), dtype))
    grid = f"1x{ranks}" if cut_columns else None
    columns = 8 if not cut_columns or ranks == 1 else -(-8 // ranks)
    size = None if chunk_bytes is None else (chunk_bytes + 3) * (columns + 3) * 2 * 6
    options = StreamOptions(chunk_bytes=size)
    record = run_on(
        ranks, reads_around, files, tmp_path / "out.npy", grid=grid, boundary=boundary, chunk_bytes=size
    )
    inputs = [((23, 8, 2), np.dtype(np.float32)), ((23, 8, 2), np.dtype(np.int16))]
    cut = settled(plan_task(reads_around, {}, inputs, ranks, grid=grid, boundary=boundary))
    planned = forecast(cut, nominal_cpu(2, 1 << 34), 1, options, grid=grid).part
    assert planned.streamed == (size is not None) == (record["stream"] is not None)
    assert planned.host_moved["read"] == record["phases"]["read"]["bytes"]
    assert planned.host_moved["write"] == record["phases"]["write"]["bytes"]
    assert planned.moved["read"] <= planned.host_moved["read"] <= ranks * planned.moved["read"]


@given(st.integers(1, 2000), st.integers(1, 40), machines, st.none() | st.integers(8, 4000))
def test_twice_the_ranks_have_no_more_bytes_each(
    length: int, ranks: int, machine: Machine, chunk: int | None
) -> None:
    options = StreamOptions(chunk_bytes=chunk)
    few, many = (forecast(task((length, 8), n), machine, 1, options).part for n in (ranks, 2 * ranks))
    assert all(many.moved[stage] <= few.moved[stage] for stage in STAGES)


def test_what_a_run_took_beside_its_forecast() -> None:
    found = forecast(task((64, 10), 2), GPUS)
    measured = {"write": (320, 160.0), "read": (320, 64.0)}
    compared = compare(found, measured, 400.0)
    assert [(row["stage"], row["fraction"]) for row in compared] == [
        ("read", 1.0),
        ("write", 0.8),
        ("run", found.seconds / 400),
    ]
    lines = render_comparison(compared).splitlines()
    assert [line.split()[-2:] for line in lines[1:3]] == [["100", "%"], ["80", "%"]]


def test_the_text_names_the_limit_and_how_many_are_enough() -> None:
    cut = task((64, 10), 8)
    options = StreamOptions(chunk_bytes=80)
    found = record(by_ranks(forecast(cut, GPUS, 1, options), cut, GPUS, options), cut, GPUS, options)
    text = render(found)
    assert "limited by: write, 5 B/s of a host (nominal)" in text
    assert "each rank: streamed, 1 chunk of 8 rows" in text
    assert "nominal rates" in text
    assert f"{found['enough_ranks']} GPU" in text
    assert found["seconds"] == found["by_ranks"][-1]["seconds"]
    measured = replace(GPUS, date="2025-01-31", host="n1")
    assert "rates measured on n1, 2025-01-31" in render(record([forecast(cut, GPUS)], cut, measured, options))


@pytest.mark.parametrize(("name", "foreseen"), [("out.npy", True), ("out.png", False)])
def test_pictures_are_not_foreseen(tmp_path: Path, name: str, foreseen: bool) -> None:
    np.save(tmp_path / "in.npy", np.zeros((64, 48), np.uint8))
    record = run(meshrun.map_blocks()(identity), tmp_path / "in.npy", tmp_path / name, {}, Options())
    assert (record["plan"] is not None) == foreseen
