"""The rows of --csv."""

from __future__ import annotations

import pytest

from meshrun.jobs.bench.collectives.config import SweepSettings
from meshrun.jobs.bench.collectives.output.rows_csv import line, titles
from meshrun.jobs.bench.collectives.results import Header, PlacementResult, RankDevice, ResultRow

HEADER = Header(
    "all_reduce_perf", 22809, 'NCCL 2.28.9, "own"', (RankDevice(0, 0, 7, "n1", 0, "", "H200"),) * 2
)
ROW = ResultRow(
    1 << 20,
    1 << 18,
    "float",
    "sum",
    -1,
    PlacementResult(34.5e-6, 1.5e-6, 30.393, 45.589, 3),
    PlacementResult(1e-6, 2e-6, float("inf"), 0.1 + 0.2, None),
)
OUT = "program,backend,ranks,size_bytes,count,type,redop,root,"


def test_golden() -> None:
    assert titles(SweepSettings()) == (
        f"{OUT}out_of_place_time_us,out_of_place_algbw_gb_per_s,out_of_place_busbw_gb_per_s,out_of_place_wrong,"
        "in_place_time_us,in_place_algbw_gb_per_s,in_place_busbw_gb_per_s,in_place_wrong\n"
    )
    assert line(SweepSettings(), HEADER, ROW) == (
        'all_reduce_perf,"NCCL 2.28.9, ""own""",2,1048576,262144,float,sum,-1,'
        "34.5,30.393,45.589,3,1.0,inf,0.30000000000000004,\n"
    )


def test_times_until_the_calls_are_queued_have_their_own_title() -> None:
    settings = SweepSettings(report_cputime=True)
    assert titles(settings).split(",")[8] == "out_of_place_cputime_us"
    assert float(line(settings, HEADER, ROW).split(",")[9]) == pytest.approx(1.5)
