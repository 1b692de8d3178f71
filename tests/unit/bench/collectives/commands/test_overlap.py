"""Calls on several communicators and beside a kernel, on ranks whose times are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshrun import World
from meshrun.jobs.bench.cli import KERNELS
from meshrun.jobs.bench.collectives.commands import overlap
from meshrun.jobs.bench.collectives.commands.overlap import Load
from meshrun.jobs.bench.collectives.config import BenchOptions, SweepSettings
from meshrun.jobs.bench.collectives.measure import at_size, kinds
from meshrun.jobs.bench.collectives.session import Bench, opened, within_memory
from meshrun.jobs.measure.exit_codes import WrongResults
from meshrun.runner.device.api import Device
from meshrun.runner.errors import UserError
from meshrun.runner.world.failure import FailureHandler
from meshrun.runner.world.watchdog.watchdog import MeasurementProgress

CONTEXT = SimpleNamespace(colour=False, columns=None, words=("bench",))
GPU = Device("cuda", "a GPU", memory=80 << 30, compute_capability=90)
CALL, KERNEL = 2**-17, 2**-12  # seconds alone: 7.6 and 244 us


def nothing(world: World) -> Load:
    return Load("pause", "nothings/s", 1.0, lambda: None)


def settings(**more: Any) -> SweepSettings:
    return SweepSettings(**{"minbytes": 16, "maxbytes": 256, "stepfactor": 16, "iters": 2} | more)


@pytest.fixture
def measured(
    on_ranks: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Return the printed text and the record of `bench overlap` on two ranks."""

    def run(
        operation: str = "all_reduce",
        communicators: int = 2,
        times: Callable[[int, int, int], tuple[float, float, float]] | None = None,
        wrap: Callable[[Any, int], Any] | None = None,
        **more: Any,
    ) -> tuple[str, dict[str, Any]]:
        file = str(tmp_path / "overlap.json")
        options = BenchOptions((operation,), settings(**more), output_file=file, steady=False)

        def body(world: World) -> Any:
            world.ranks = tuple(replace(rank, device=GPU) for rank in world.ranks)
            plain, made = world.collectives, 0

            def collectives(group: Any, **ignored: Any) -> Any:
                nonlocal made
                made += 1
                return wrap(plain(group), made) if wrap else plain(group)

            world.collectives = collectives
            try:
                return overlap.run(world, FailureHandler(), options, CONTEXT, communicators, "product")
            except WrongResults as wrong:
                return wrong

        def timed(
            first: Bench, benches: Sequence[Bench], point: Any, calls: int, load: Load, launches: int
        ) -> tuple[float, float, float]:
            plain_timed(first, benches, point, calls, load, launches)  # whose calls are checked
            assert times is not None
            return times(len(benches) * calls, launches, len(benches))

        plain_timed = overlap.timed
        monkeypatch.setitem(overlap.LOADS, "product", nothing)
        if times:
            monkeypatch.setattr(overlap, "timed", timed)
        done = on_ranks(2, body)
        if isinstance(done[0], WrongResults):
            raise done[0]
        assert done[0] == {"command": "bench overlap", "operations": [operation], "ranks": 2}
        return capsys.readouterr().out, json.loads(Path(file).read_text())

    return run


def parallel(calls: int, launches: int, communicators: int) -> tuple[float, float, float]:
    """Calls of several communicators take half as long again as those of one; kernels hide them all."""
    spent = CALL * calls / max(communicators, 1) * (1.5 if communicators > 1 else 1)
    kernels = KERNEL * launches
    return max(spent, kernels), spent, kernels


def serial(calls: int, launches: int, communicators: int) -> tuple[float, float, float]:
    """Nothing overlaps."""
    spent, kernels = CALL * calls, KERNEL * launches
    total = spent + kernels
    return total, total if calls else 0.0, total if launches else 0.0


def test_what_overlaps(measured: Any) -> None:
    text, record = measured(times=parallel)
    rows = record["rows"]
    assert [row["size"] for row in rows] == [16, 256]
    for row in rows:
        assert row["calls"] == 525  # more than 4 ms
        assert row["launches"] == 17  # as long
        assert row["alone"] == pytest.approx(CALL)
        assert row["together"] == pytest.approx(1.5 * CALL)
        assert row["together_busbw"] == pytest.approx(2 / 1.5 * row["alone_busbw"])
        assert row["beside"] == pytest.approx(CALL)
        assert row["kernel"] == row["kernel_beside"] == pytest.approx(1 / KERNEL)
        assert row["hidden"] == pytest.approx(1.0)
        assert row["wrong"] == 0
    assert rows[1]["alone_busbw"] == pytest.approx(256 / CALL / 1e9)  # 2 (n - 1) / n is 1
    printed = [" ".join(line.split()) for line in text.splitlines() if not line.startswith("#")]
    assert printed == [
        "16 float sum 7.63 0.00 11.44 0.00 7.63 0.00 4096.00 4096.00 100 0",
        "256 float sum 7.63 0.03 11.44 0.04 7.63 0.03 4096.00 4096.00 100 0",
    ]
    assert "# Overlap of all_reduce on 2 ranks: 2 communicators; beside it, a pause" in text


def test_what_does_not_overlap(measured: Any) -> None:
    _, record = measured(times=serial)
    for row in record["rows"]:
        assert row["together"] == pytest.approx(2 * row["alone"])
        assert row["together_busbw"] == pytest.approx(row["alone_busbw"])
        assert row["hidden"] == pytest.approx(0.0, abs=1e-9)
        assert row["beside"] > 1.9 * row["alone"]
        assert row["kernel_beside"] < 0.6 * row["kernel"]


def test_one_communicator_has_no_columns_for_several(measured: Any) -> None:
    text, record = measured("alltoall", communicators=1, times=parallel)
    assert "together" not in text
    assert all(row["together"] is None for row in record["rows"])


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter", "sendrecv", "broadcast"])
def test_on_real_ranks_the_data_is_right(measured: Any, operation: str) -> None:
    _, record = measured(operation, communicators=3, iters=5)
    assert [row["wrong"] for row in record["rows"]] == [0, 0]
    assert all(row["alone"] > 0 and row["together"] > 0 and row["beside"] > 0 for row in record["rows"])


@pytest.mark.parametrize("bad", [1, 2])
def test_wrong_data_of_any_communicator_is_noticed(measured: Any, disturbed: Any, bad: int) -> None:
    def spoil(call: Any) -> None:
        call.recv.bytes(4)[...] ^= 1

    def wrap(group: Any, number: int) -> Any:
        return disturbed(group, after=spoil) if number == bad and group.rank == 1 else group

    with pytest.raises(WrongResults, match=r"all_reduce: wrong data, in \d checks on single ranks"):
        measured(times=parallel, wrap=wrap)


def test_without_checks_nothing_is_called_right(measured: Any) -> None:
    text, record = measured(times=parallel, check=0)
    assert [row["wrong"] for row in record["rows"]] == [None, None]
    assert text.splitlines()[-6].split()[-1] == "N/A"


def test_calls_and_kernels_are_issued_in_turn_and_alike_on_all_ranks(on_ranks: Any, disturbed: Any) -> None:
    def body(world: World) -> list[str]:
        order: list[str] = []
        plain = world.collectives

        def collectives(group: Any, **ignored: Any) -> Any:
            name = "ab"[len(named)]
            named.append(name)
            return disturbed(plain(group), before=lambda call, name=name: order.append(name))

        named: list[str] = []
        world.collectives = collectives
        options = BenchOptions(("all_reduce",), settings(maxbytes=16), steady=False)
        with ExitStack() as stack:
            where = world, world.control, options, "all_reduce", MeasurementProgress(), [0, 0]
            benches = [stack.enter_context(opened(*where)).bench for _ in range(2)]
            load = Load("kernel", "", 1.0, lambda: order.append("k"))
            point = at_size(benches[0], next(kinds(benches[0])), 16, in_place=False)
            overlap.timed(benches[0], benches, point, 4, load, 2)
            overlap.timed(benches[0], (), point, 0, load, 3)
        return order

    found = on_ranks(2, body)
    untimed = ["a", "b", "k"]
    assert found == 2 * [[*untimed, *"kababkabab", "k", *"kkk"]]


@pytest.mark.parametrize(
    ("seconds", "calls", "expected"), [(1e-3, 20, 80), (1.0, 20, 20), (1e-9, 20, 2000), (0.0, 1, 2000)]
)
def test_so_many_calls_that_they_take_some_time(seconds: float, calls: int, expected: int) -> None:
    assert overlap.more_calls(seconds, calls) == expected


def test_sessions_at_once_share_the_memory(on_ranks: Any) -> None:
    def body(world: World) -> int:
        world.ranks = tuple(replace(rank, device=GPU) for rank in world.ranks)
        wanted = SweepSettings(minbytes=8, maxbytes=1 << 60)
        return within_memory(world, world.control, wanted, share=4)[0].maxbytes

    assert on_ranks(1, body) == [(25 << 30) // 4]


def test_host_memory_is_refused(on_ranks: Any) -> None:
    def body(world: World) -> None:
        options = BenchOptions(("all_reduce",), settings())
        overlap.run(world, FailureHandler(), options, CONTEXT, 2, "product")

    with pytest.raises(UserError, match="overlap needs GPUs: in host memory nothing else runs until"):
        on_ranks(1, body)


def test_the_kernels_of_the_command_line_exist() -> None:
    assert {*KERNELS} == {*overlap.LOADS}
