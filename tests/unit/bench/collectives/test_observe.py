"""What --show-tuning and --wires observe: calls after the timed ones; what the log and the counters say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from meshrun import World
from meshrun.jobs.bench.collectives import session
from meshrun.jobs.bench.collectives.config import BenchOptions, SweepSettings
from meshrun.jobs.bench.collectives.measure import sweep
from meshrun.jobs.bench.collectives.observe import observed_traffic, wire_counts
from meshrun.jobs.bench.collectives.output.nccl_tests_json import json_line
from meshrun.jobs.bench.collectives.results import WireTraffic
from meshrun.jobs.bench.collectives.session import Bench, Point
from meshrun.runner.comm.collectives.api import DATATYPES, NcclChoice
from meshrun.runner.errors import UserError
from meshrun.runner.world.watchdog.watchdog import MeasurementProgress

POINT = {"datatype": DATATYPES["float"], "reduction": "sum", "root": 0, "in_place": False, "elements": 16}


class Telling:
    """Collectives whose library tells a choice for each call that is made while it is observed."""

    library = 22809
    label = "NCCL 2.28.9"

    def __init__(self, inner: Any) -> None:
        self.inner, self.open, self.made = inner, None, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def bind(self, call: Any) -> Any:
        make = self.inner.bind(call)

        def made() -> None:
            self.made += 1
            if self.open is not None:
                self.open.append(NcclChoice("Ring", "LL" if call.count < 16 else "Simple", call.count))
            make()

        return made

    @contextmanager
    def observed(self) -> Iterator[list[NcclChoice]]:
        assert self.rank == 0
        found: list[NcclChoice] = []
        self.open = found
        yield found
        self.open = None


@pytest.fixture
def rows(on_ranks: Any) -> Any:
    """Measure two sizes on two ranks, with options; returns every rank's (header, rows, calls made)."""

    def run(wrap: Any, **options: Any) -> list[Any]:
        def body(world: World) -> Any:
            sizes = SweepSettings(minbytes=8, maxbytes=128, stepfactor=16, iters=2, warmup_iters=0)
            wanted = BenchOptions(("all_reduce",), sizes, steady=False, **options)
            with session.opened(
                world, world.control, wanted, "all_reduce", MeasurementProgress(), [0, 0]
            ) as opened:
                measured = list(sweep(opened.bench))
            return opened.header, measured, getattr(opened.bench.group, "made", None)

        found: list[Any] = on_ranks(2, body, wrap=wrap)
        return found

    return run


def test_each_row_has_the_choice_of_one_call_on_every_rank(rows: Any) -> None:
    for header, measured, _ in rows(Telling, show_tuning=True):
        assert any("from NCCL's log" in sentence for sentence in header.assumptions)
        for row, choice in zip(
            measured, [NcclChoice("Ring", "LL", 2), NcclChoice("Ring", "Simple", 32)], strict=True
        ):
            assert row.out_of_place.choices == row.in_place.choices == (choice,)


def test_nothing_is_observed_without_the_option(rows: Any) -> None:
    plain, shown = rows(Telling)[0], rows(Telling, show_tuning=True)[0]
    assert [row.out_of_place.choices for row in plain[1]] == [None, None]
    assert shown[2] - plain[2] == 4  # two sizes, two placements


def test_a_library_that_does_not_tell(rows: Any) -> None:
    header, measured, _ = rows(None, show_tuning=True)[0]
    assert "algorithm, protocol, channels: not reported by threads of one process, host memory" in (
        header.assumptions
    )
    assert [row.in_place.choices for row in measured] == [(), ()]


def test_the_record_has_choices_only_if_asked_for(rows: Any) -> None:
    for options, keys in (({}, False), ({"show_tuning": True}, True)):
        header, measured, _ = rows(Telling, **options)[0]
        more = json.loads(json_line(SweepSettings(), header, measured[0]))["meshrun"]["in_place"]
        assert ("choices" in more) is keys
    assert more["choices"] == [{"algorithm": "Ring", "protocol": "LL", "channels": 2}]


def test_a_log_of_the_user_is_not_overwritten(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG_FILE", "mine.log")
    rows(Telling)
    with pytest.raises(UserError, match=r"got NCCL_DEBUG_FILE=mine.log. Try: without NCCL_DEBUG_FILE"):
        rows(Telling, show_tuning=True)


# Bytes on wires. The counters of these ranks go up by what their calls move.


def counted(bench_on: Any, operation: str, size: int = 1, wires: bool = True, **settings: Any) -> list[Any]:
    """Each rank's traffic of one operation of 64 bytes, by counters that follow the calls."""

    def body(bench: Bench) -> Any:
        bench.wires = wires
        moved: Counter[str] = Counter()
        bind = bench.group.bind

        def counting(call: Any) -> Any:
            make = bind(call)

            def made() -> None:
                moved["sent"] += 64
                moved["received"] += 192
                make()

            return made

        bench.group.bind = counting

        def read(world: World) -> Any:
            wire, other = ("nvlink", f"rank {world.rank}", "NVLink 4"), ("rdma", "n1", "mlx5_0 port 1")
            found = {wire: (1e9 + moved["sent"], 5.0 + moved["received"])}
            if world.rank == 0:  # one that is reset in between, and one that appears
                found[other] = (9.0, 9.0) if not moved else (1.0, 9.0)
                found |= {("ip", "n1", "eth7"): (1.0, 1.0)} if moved else {}
            return found

        point = Point(bench.counts(64, DATATYPES["float"]), **POINT)
        return observed_traffic(bench, point, read)

    found: list[Any] = bench_on(size, operation, body, **settings)
    return found


def test_bytes_of_one_operation_on_every_rank(bench_on: Any) -> None:
    wanted = tuple(WireTraffic("nvlink", f"rank {rank}", "NVLink 4", 64.0, 192.0) for rank in (0, 1))
    for settings in ({"iters": 5}, {"iters": 2, "agg_iters": 3}):
        assert counted(bench_on, "all_reduce", 2, **settings) == [wanted, wanted]


def test_no_bytes_are_counted_without_the_option(bench_on: Any) -> None:
    assert counted(bench_on, "all_reduce", wires=False) == [None]


def test_the_network_is_counted_once_a_host(on_ranks: Any) -> None:
    found = on_ranks(3, wire_counts, hosts=["a", "a", "b"])
    assert [{owner for _, owner, _ in counts} for counts in found] == [{"a"}, set(), {"b"}]
    assert ("ip", "a", "lo") in found[0]
