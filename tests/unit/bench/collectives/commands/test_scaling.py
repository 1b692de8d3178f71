"""One operation on 1, 2, 4, ... ranks of one launch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshrun import World
from meshrun.jobs.bench.collectives.commands import scaling
from meshrun.jobs.bench.collectives.commands.scaling import (
    ScalingPoint,
    efficiency,
    measure_single_rank,
    near_first,
    rank_counts,
)
from meshrun.jobs.bench.collectives.config import BenchOptions, SweepSettings
from meshrun.jobs.bench.collectives.output import plots
from meshrun.jobs.bench.collectives.results import PlacementResult, ResultRow
from meshrun.runner.comm.collectives.api import Call
from meshrun.runner.errors import UserError
from meshrun.runner.world.failure import FailureHandler

DOOR = SimpleNamespace(colour=False, columns=None, words=("meshrun", "bench", "scale"))


@pytest.mark.parametrize(
    ("ranks", "counts"),
    [
        (1, [1]),
        (2, [1, 2]),
        (3, [1, 2, 3]),
        (4, [1, 2, 4]),
        (6, [1, 2, 4, 6]),
        (8, [1, 2, 4, 8]),
        (9, [1, 2, 4, 8, 9]),
    ],
)
def test_powers_of_two_and_all_ranks(ranks: int, counts: list[int]) -> None:
    assert rank_counts(ranks) == counts


@pytest.mark.parametrize(
    ("hosts", "order"),
    [
        (["a", "a", "b", "b"], [0, 1, 2, 3]),
        (["a", "b", "a", "b"], [0, 2, 1, 3]),  # as --map-by node places them
        (["b", "a", "c", "a", "b", "c"], [0, 4, 1, 3, 2, 5]),
        (["a"], [0]),
    ],
)
def test_hosts_are_filled_one_after_another(on_ranks: Any, hosts: list[str], order: list[int]) -> None:
    assert on_ranks(len(hosts), near_first, hosts=hosts) == [order] * len(hosts)


@pytest.fixture
def scaled(on_ranks: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Any]:
    """Return the lines printed and the rungs recorded by scaling an operation. plot: a file's name."""

    def run(
        ranks: int, operation: str, *, hosts: Sequence[str] | None = None, wrap: Any = None,
        plot: str | None = None, **settings: Any,
    ) -> tuple[list[list[str]], list[dict[str, Any]]]:  # fmt: skip
        file = tmp_path / "scale.json"
        file.unlink(missing_ok=True)
        chosen = {"minbytes": 1024, "maxbytes": 1024, "stepfactor": 2, "iters": 2} | settings
        drawn = str(tmp_path / plot) if plot else None
        options = BenchOptions((operation,), SweepSettings(**chosen), output_file=str(file), plot=drawn)

        def body(world: World) -> Any:
            try:
                return scaling.run(world, FailureHandler(), options, DOOR)
            except scaling.WrongResults as wrong:
                return wrong  # every rank ends in order, and rank 0 has printed everything

        done = on_ranks(ranks, body, hosts=hosts, wrap=wrap)
        if isinstance(done[0], scaling.WrongResults):
            assert {str(wrong) for wrong in done} == {str(done[0])}
            raise done[0]
        assert done == [{"command": "bench scale", "operations": [operation], "ranks": ranks}] * ranks
        lines = [line.split() for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
        return lines, json.loads(file.read_text())["rungs"]

    return run


def test_every_number_of_ranks_is_measured_near_first(scaled: Any) -> None:
    """Two hosts, ranks placed cyclically: the first two ranks measured are of one host."""
    lines, rungs = scaled(4, "all_reduce", hosts=["a", "b", "a", "b"], maxbytes=2048)
    assert [(line[0], line[1], line[2]) for line in lines] == [
        ("1", "1", "1024"), ("1", "1", "2048"),
        ("2", "1", "1024"), ("2", "1", "2048"),
        ("4", "2", "1024"), ("4", "2", "2048"),
    ]  # fmt: skip
    assert [(rung["ranks"], rung["hosts"], rung["row"]["size"]) for rung in rungs] == [
        tuple(map(int, line[:3])) for line in lines
    ]
    assert [rung["requested"] for rung in rungs] == [1024, 2048] * 3
    # At 1 rank nothing is on a bus. The wrong column counts no wrong element.
    assert [rung["row"]["out_of_place"]["busbw"] > 0 for rung in rungs] == [False] * 2 + [True] * 4
    assert {line[8] for line in lines} == {"0"}


def test_efficiency_is_against_the_fewest_ranks_that_share_a_bus(scaled: Any) -> None:
    _, rungs = scaled(4, "all_reduce", maxbytes=2048)
    assert [rung["efficiency"] for rung in rungs[:4]] == [None, None, 1.0, 1.0]
    for four, two in zip(rungs[4:], rungs[2:4], strict=True):
        ratio = four["row"]["out_of_place"]["busbw"] / two["row"]["out_of_place"]["busbw"]
        assert four["efficiency"] == pytest.approx(ratio)
        assert four["efficiency"] != 1.0


def row(busbw: float, size: int = 1024, datatype: str = "float", reduction: str = "sum") -> ResultRow:
    measured = PlacementResult(1e-6, 1e-6, busbw, busbw, 0)
    return ResultRow(size, 0, datatype, reduction, -1, measured, measured)


def test_sizes_that_ranks_round_differently_are_compared_all_the_same() -> None:
    """1 MiB in three parts is 16 bytes less, and is still compared with 1 MiB in two."""
    rungs = [ScalingPoint(1, 1, 1 << 20, row(0.0), None), ScalingPoint(2, 1, 1 << 20, row(8.0, 1 << 20), 1.0)]
    assert efficiency(rungs, 3, 1 << 20, row(6.0, (1 << 20) - 16)) == 0.75


def test_rows_are_compared_with_their_own_kind() -> None:
    two = [("int8", "sum", 1.0), ("int8", "max", 2.0), ("double", "sum", 4.0), ("double", "max", 5.0)]
    rungs = [ScalingPoint(2, 1, 1024, row(busbw, 1024, kind, op), 1.0) for kind, op, busbw in two]
    assert [efficiency(rungs, 4, 1024, row(1.0, 1024, kind, op)) for kind, op, _ in two] == [
        1.0, 0.5, 0.25, 0.2,
    ]  # fmt: skip
    assert efficiency(rungs, 4, 2048, row(1.0, 1024, "int8")) == 1.0  # the first of its size
    assert efficiency([], 1, 1024, row(1.0)) is None
    assert efficiency([ScalingPoint(2, 1, 1024, row(0.0), None)], 4, 1024, row(1.0)) is None


def test_three_ranks_have_an_efficiency_of_their_own(scaled: Any) -> None:
    _, rungs = scaled(3, "all_gather", minbytes=1000, maxbytes=1000)
    sizes = [(rung["ranks"], rung["requested"], rung["row"]["size"]) for rung in rungs]
    assert sizes == [(1, 1000, 992), (2, 1000, 992), (3, 1000, 960)]
    two, three = (rung["row"]["out_of_place"]["busbw"] for rung in rungs[1:])
    assert rungs[2]["efficiency"] == pytest.approx(three / two)


@pytest.mark.parametrize("drawn", ["scale.svg", "scale.png", "scale.html"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_one_rank_can_be_drawn_too(scaled: Any, tmp_path: Path, ranks: int, drawn: str) -> None:
    scaled(ranks, "all_gather", plot=drawn)
    assert (tmp_path / drawn).stat().st_size > 1000


def test_a_plot_has_a_point_for_each_number_of_ranks(scaled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest size and the first type, whatever the rounding by ranks."""
    kept: list[Any] = []
    monkeypatch.setattr(plots, "plot_scaling", lambda points, target, title: kept.append((points, title)))
    settings = {"minbytes": 500, "maxbytes": 1000, "datatypes": ("half", "double")}
    _, rungs = scaled(3, "all_gather", plot="scale.svg", **settings)
    [(points, title)] = kept
    chosen = [rung for rung in rungs if rung["requested"] == 1000 and rung["row"]["datatype"] == "half"]
    assert [(point.ranks, point.busbw, point.efficiency) for point in points] == [
        (rung["ranks"], rung["row"]["out_of_place"]["busbw"], rung["efficiency"]) for rung in chosen[1:]
    ]
    assert [point.ranks for point in points] == [2, 3]
    assert title == "all_gather of 1000 B, half: bandwidth by number of ranks"


def test_wrong_data_are_reported_with_the_number_of_ranks(
    scaled: Any, disturbed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cyclic placement: the two ranks of host a are ranks 0 and 2 of the world."""

    def spoil(call: Call) -> None:
        call.recv.bytes(4)[...] ^= 1

    def wrap(group: Any) -> Any:
        return disturbed(group, after=spoil) if (group.size, group.rank) == (2, 1) else group

    with pytest.raises(scaling.WrongResults, match=r"^wrong data with 2 ranks$") as raised:
        scaled(4, "all_gather", hosts=["a", "b", "a", "b"], wrap=wrap)
    assert (raised.value.everywhere, raised.value.exit_code) == (True, 7)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert [(line[0], line[8]) for line in lines] == [("1", "0"), ("2", "1"), ("4", "0")]


@pytest.mark.parametrize(
    ("ranks", "operation", "settings", "text"),
    [
        (2, "broadcast", {"root": 1}, "there is no such root: got -r 1, expected at most 0"),
        (3, "hypercube", {}, "got 3 ranks, expected a power of two"),
        (2, "all_reduce", {"memory": True}, "-M: needs NCCL and GPUs"),
        (2, "all_reduce", {"minbytes": 1 << 59, "maxbytes": 1 << 60}, "the smallest size does not fit"),
    ],
)
def test_what_not_every_number_of_ranks_can_do_all_ranks_hear_of(
    on_ranks: Any, ranks: int, operation: str, settings: dict[str, Any], text: str
) -> None:
    """Also numbers of ranks that would be measured later."""
    options = BenchOptions((operation,), SweepSettings(**({"minbytes": 8, "maxbytes": 8} | settings)))

    def body(world: World) -> str:
        with pytest.raises(UserError) as refused:
            scaling.run(world, FailureHandler(), options, DOOR)
        assert refused.value.everywhere
        return str(refused.value)

    sentences = on_ranks(ranks, body)
    assert all(text in sentence for sentence in sentences)


def test_what_one_cpu_does_alone(on_ranks: Any) -> None:
    [alone] = on_ranks(1, lambda world: measure_single_rank(world, 1 << 20))
    assert alone.local > 0
    assert (alone.to_device, alone.to_host) == (None, None)


def test_what_one_gpu_does_alone(on_ranks: Any) -> None:
    """Copies in its memory, from the host and to it, of the largest size measured."""

    class Backend:
        asynchronous = True
        uploaded = downloaded = 0

        def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
            return np.zeros(shape, dtype)

        host_empty = empty

        def upload(self, host: Any, device: Any) -> None:
            self.uploaded += device.nbytes
            np.copyto(device, host)

        def download(self, device: Any, host: Any) -> None:
            self.downloaded += host.nbytes
            np.copyto(host, device)

        def copy_rate(self) -> float:
            return 3e12

        def synchronize(self) -> None:
            pass

    def body(world: World) -> Any:
        world.backend = backend = Backend()
        return measure_single_rank(world, 1000), backend.uploaded, backend.downloaded

    [(alone, uploaded, downloaded)] = on_ranks(1, body)
    assert alone.local == 3000.0
    assert alone.to_device > 0
    assert alone.to_host > 0
    assert (uploaded, downloaded) == (scaling.REPEATS * 1000,) * 2
