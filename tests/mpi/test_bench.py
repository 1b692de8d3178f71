"""`meshrun bench` on MPI's ranks, host memory: mpiexec -n 3 python -m pytest --with-mpi tests/mpi."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.jobs.bench.collectives import checks
from meshrun.jobs.bench.collectives.commands import pingpong, scaling
from meshrun.jobs.bench.collectives.commands.run import run
from meshrun.jobs.bench.collectives.config import BenchOptions, SweepSettings
from meshrun.jobs.bench.collectives.specs import SPECS
from meshrun.jobs.measure.exit_codes import WrongResults
from meshrun.launch.cli.cli_context import CliContext
from meshrun.runner.comm.collectives.api import DATATYPES, REDUCTIONS, Datatype
from meshrun.runner.errors import UserError
from meshrun.runner.system.launcher import BY_HAND
from meshrun.runner.world.failure import FailureHandler
from meshrun.runner.world.world import World

pytestmark = pytest.mark.mpi
SIZES = [64, 1024, 16384, 262144]
SMALL = SweepSettings(minbytes=64, maxbytes=262144, stepfactor=16, iters=3)
ONE_SIZE = replace(SMALL, minbytes=4096, maxbytes=4096, iters=2)
DOOR = CliContext(BY_HAND, words=("bench", "test"))

Measure = Callable[..., list[list[str]]]


@pytest.fixture
def measured(world: World, capfd: pytest.CaptureFixture[str]) -> Measure:
    """The rows, as their cells, that rank 0 prints; the same on every rank. The others print nothing."""

    def call(asked: BenchOptions, body: Any = run) -> list[list[str]]:
        capfd.readouterr()
        body(world, FailureHandler(rank=world.own_rank), asked, DOOR)
        text = world.control.allgather(capfd.readouterr().out)
        assert text[1:] == [""] * (world.size - 1)
        assert "\x1b" not in text[0]
        return [line.split() for line in text[0].splitlines() if line and not line.startswith("#")]

    return call


def fits(operation: str, ranks: int) -> bool:
    return operation != "hypercube" or ranks & (ranks - 1) == 0


def wrong(rows: list[list[str]]) -> set[str]:
    """What the two columns #wrong hold."""
    return {cell for row in rows for cell in (row[-5], row[-1])}


@pytest.mark.mpi_library
@pytest.mark.parametrize("operation", SPECS)
def test_every_operation_is_right(world: World, measured: Measure, operation: str) -> None:
    if not fits(operation, world.size):
        with pytest.raises(UserError, match="a power of two") as refused:
            measured(BenchOptions((operation,), SMALL))
        assert refused.value.everywhere
        return
    rows = measured(BenchOptions((operation,), SMALL))
    assert len(rows) == len(SIZES)
    expected = {"0"} if SPECS[operation].in_place else {"0", "N/A"}
    assert wrong(rows) == expected


@pytest.mark.mpi_library
@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "reduce"])
def test_every_type_and_reduction_is_right(world: World, measured: Measure, operation: str) -> None:
    settings = replace(ONE_SIZE, datatypes=tuple(DATATYPES), reductions=REDUCTIONS, root=world.size - 1)
    rows = measured(BenchOptions((operation,), settings))
    assert {(row[2], row[3]) for row in rows} == {(d, r) for d in DATATYPES for r in REDUCTIONS}
    assert wrong(rows) == {"0"}


@pytest.mark.parametrize("operation", ["alltoallv", "broadcast", "gather", "sendrecv"])
@pytest.mark.parametrize("datatype", ["int8", "bfloat16", "f8e4m3", "double"])
def test_other_types_are_carried(measured: Measure, operation: str, datatype: str) -> None:
    rows = measured(BenchOptions((operation,), replace(ONE_SIZE, datatypes=(datatype,), unalign=1)))
    assert wrong(rows) == ({"0"} if SPECS[operation].in_place else {"0", "N/A"})
    assert rows[0][2] == datatype


def test_every_root_in_turn(world: World, measured: Measure) -> None:
    rows = measured(BenchOptions(("broadcast",), replace(ONE_SIZE, root=-1)))
    assert [int(row[4]) for row in rows] == [*range(world.size)]


@pytest.mark.parametrize(
    "changes",
    [{"blocking": 1}, {"blocking": 2}, {"blocking": 3}, {"agg_iters": 4}, {"average": 0}, {"average": 3},
     {"report_cputime": True}, {"warmup_iters": 0}, {"check": 3}, {"unalign": 1}, {"timeout": 60},
     {"timeout": 60, "blocking": 1}],
    ids=str,
)  # fmt: skip
def test_ways_to_time(measured: Measure, changes: dict[str, Any]) -> None:
    assert wrong(measured(BenchOptions(("all_reduce",), replace(ONE_SIZE, **changes)))) == {"0"}


def test_cycles(measured: Measure) -> None:
    rows = measured(BenchOptions(("all_reduce",), replace(SMALL, run_cycles=2)))
    assert [int(row[0]) for row in rows] == 2 * SIZES


def test_all_of_them_skip_what_does_not_fit(
    world: World, capfd: pytest.CaptureFixture[str], folder: Path
) -> None:
    asked = BenchOptions(tuple(SPECS), ONE_SIZE, output_file=str(folder / "out.json"))
    run(world, FailureHandler(rank=world.own_rank), asked, DOOR)
    text = world.control.broadcast(capfd.readouterr().out)
    expected = [name for name in SPECS if fits(name, world.size)]
    assert re.findall(r"starting: (\w+)_perf", text) == expected
    assert ("# hypercube: skipped" in text) == (len(expected) < len(SPECS))
    assert [path.name for path in folder.iterdir()] == ["out.json"]
    assert [*json.loads((folder / "out.json").read_text())["operations"]] == expected


def test_the_record(world: World, measured: Measure, folder: Path) -> None:
    """nccl-tests' keys, and per rank what it does not tell."""
    asked = BenchOptions(
        ("all_reduce",), SMALL, output_file=str(folder / "out.json"), json_lines=str(folder / "lines")
    )
    measured(asked)
    record = json.loads((folder / "out.json").read_text())
    assert record.keys() == {
        "version", "start_time", "args", "env", "nccl_version", "config", "results", "out_of_bounds",
        "average_bus_bandwidth", "errors", "end_time", "meshrun",
    }  # fmt: skip
    assert [device["rank"] for device in record["config"]["devices"]] == [*range(world.size)]
    assert [row["size"] for row in record["results"]] == SIZES
    for row in record["results"]:
        assert row.keys() == {
            "size", "count", "type", "redop", "root", "out_of_place", "in_place", "actual_iterations",
            "experiment_name", "meshrun",
        }  # fmt: skip
        assert len(row["meshrun"]["in_place"]["seconds_by_rank"]) == world.size
        assert row["in_place"]["time"] > 0
    lines = [json.loads(line) for line in (folder / "lines").read_text().splitlines()]
    assert [line["size"] for line in lines] == SIZES
    assert [line["out_of_place"] for line in lines] == [row["out_of_place"] for row in record["results"]]


def test_single_iterations(world: World, measured: Measure, folder: Path) -> None:
    settings = replace(ONE_SIZE, iters=5, per_iter_timing=True, per_iter_skip=2)
    (row,) = measured(BenchOptions(("all_reduce",), settings, output_file=str(folder / "out.json")))
    assert len(row) == 5 + 2 * 8
    (result,) = json.loads((folder / "out.json").read_text())["results"]
    single = result["in_place_per_iter"]
    assert single["skipped_iterations"] == 2
    assert len(single["times_us"]) == 5
    assert 0 < single["min_us"] <= single["p50_us"] <= single["max_us"]


def test_groups_are_named(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    asked = BenchOptions(("all_reduce",), ONE_SIZE, split="MOD2", names=True)
    run(world, FailureHandler(rank=world.own_rank), asked, DOOR)
    text = world.control.broadcast(capfd.readouterr().out)
    groups = dict(re.findall(r"group (\d) \(ranks (\S+)\) in place:", text))
    seats = re.findall(r"^#  Rank +(\d+) Group +(\d+) ", text, re.M)
    assert seats == [(str(rank), str(rank % 2)) for rank in range(world.size)]
    ranks = {str(color): ",".join(map(str, range(color, world.size, 2))) for color in (0, 1)}
    assert groups == (ranks if world.size > 1 else {})
    assert "slowest: rank " in text
    assert "# Out of bounds values : 0 OK" in text


@pytest.mark.mpi_library
@pytest.mark.parametrize("split", ["DIV2", "AND 1", "OR 1"])
def test_every_way_to_split_is_right(measured: Measure, split: str) -> None:
    assert wrong(measured(BenchOptions(("all_reduce",), ONE_SIZE, split=split))) == {"0"}


def test_groups_of_different_sizes_take_no_turns_as_roots(world: World, measured: Measure) -> None:
    """One group would have more rows than the other, and wait for ever."""
    asked = BenchOptions(("broadcast",), replace(ONE_SIZE, root=-1), split="MOD2")
    if world.size % 2 == 0 or world.size == 1:
        assert measured(asked)
        return
    with pytest.raises(UserError, match="-r -1 uses the ranks of all groups in turn") as refused:
        measured(asked)
    assert refused.value.everywhere


def test_a_group_that_is_no_hypercube(world: World, measured: Measure) -> None:
    """Also where the smallest group is one: of 5 ranks, 0 to 2 are a group of three."""
    if world.size != 5:
        pytest.skip("5 ranks")
    with pytest.raises(UserError, match=r"got 3 ranks, expected a power of two"):
        measured(BenchOptions(("hypercube",), ONE_SIZE, split="DIV3"))


@pytest.mark.mpi_library
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (BenchOptions(("broadcast",), replace(SMALL, root=9)), "there is no such root"),
        (BenchOptions(("all_reduce",), replace(SMALL, cudagraph=2)), "-G: needs NCCL and GPUs"),
        (BenchOptions(("all_reduce",), replace(SMALL, memory=True)), "-M: needs NCCL and GPUs"),
        (BenchOptions(("all_reduce",), SMALL, output_file="/nowhere/a.json"), "cannot write /nowhere/a.json"),
        (BenchOptions(("all_reduce",), SMALL, json_lines="/nowhere/a"), "cannot write /nowhere/a"),
        (BenchOptions(("all_reduce",), SMALL, split="MOD0"), "the split does not parse"),
        (BenchOptions(("alltoallv",), SMALL, matrix=Path("/nowhere")), "the traffic matrix /nowhere"),
        (BenchOptions(("all_reduce",), replace(SMALL, minbytes=1 << 50, maxbytes=1 << 50)), "does not fit"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_rank_refuses_alike(
    world: World, capfd: pytest.CaptureFixture[str], asked: BenchOptions, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        run(world, FailureHandler(rank=world.own_rank), asked, DOOR)
    assert capfd.readouterr().out == ""
    world.control.barrier()  # nobody is left behind


def test_too_slow_on_average(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        WrongResults, match=r"all_reduce: average bus bandwidth .* below 0\.9 of 1e\+09"
    ) as slow:
        run(
            world,
            FailureHandler(rank=world.own_rank),
            BenchOptions(("all_reduce",), ONE_SIZE, min_busbw=1e9),
            DOOR,
        )
    assert (slow.value.exit_code, slow.value.everywhere) == (7, True)
    if world.rank == 0:
        assert re.search(r"^# Avg bus bandwidth    : \S+ FAILED$", capfd.readouterr().out, re.M)


@pytest.mark.mpi_library
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "broadcast", "alltoall"])
def test_wrong_data_is_named(
    world: World, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """One bit, in element 17 of what the last rank has got."""
    culprit, element, verify = world.size - 1, 17, checks.verify

    def disturbed(memory: Any, datatype: Datatype, segments: Any) -> Any:
        if world.rank == culprit:
            memory[element * datatype.itemsize] ^= np.uint8(4)
        return verify(memory, datatype, segments)

    monkeypatch.setattr(checks, "verify", disturbed)
    with pytest.raises(WrongResults, match=f"{operation}: wrong data") as failure:
        run(
            world, FailureHandler(rank=world.own_rank), BenchOptions((operation,), ONE_SIZE, names=True), DOOR
        )
    assert (failure.value.exit_code, failure.value.everywhere) == (7, True)
    text = world.control.broadcast(capfd.readouterr().out)
    (line,) = re.findall(r"^#   (wrong: rank .* out of place: .*)$", text, re.M)
    assert line.startswith(f"wrong: rank {culprit} (host {world.here.host}, CPU) out of place: 1 element, ")
    assert f"first at {element}: got " in line
    assert "1 bit flipped" in line
    assert ("data of rank 0" in line) == (operation != "all_reduce")
    assert re.search(r"^# Out of bounds values : [12] FAILED$", text, re.M)
    row = next(line.split() for line in text.splitlines() if line and not line.startswith("#"))
    assert wrong([row]) == ({"1"} if SPECS[operation].in_place else {"1", "N/A"})


def test_pingpong(world: World, measured: Measure) -> None:
    asked = BenchOptions(("pingpong",), ONE_SIZE, pairs="all")
    if world.size == 1:
        with pytest.raises(UserError, match="pingpong needs two ranks"):
            measured(asked, pingpong.run)
        return
    rows = measured(asked, pingpong.run)
    pairs = [(a, b) for a in range(world.size) for b in range(a + 1, world.size)]
    assert [(int(row[3]), int(row[4])) for row in rows] == pairs
    assert {row[-1] for row in rows} == {"0"}
    for bad in ("0-9", "0-0", "a-b", "0", "0-1-2", ""):
        with pytest.raises(UserError, match="--pairs does not parse"):
            measured(replace(asked, pairs=bad), pingpong.run)


def test_scale(world: World, measured: Measure) -> None:
    rows = measured(BenchOptions(("all_reduce",), ONE_SIZE), scaling.run)
    assert sorted({int(row[0]) for row in rows}) == sorted(
        {1, *(n for n in (2, 4) if n <= world.size), world.size}
    )
