"""The text of nccl-tests: expected lines as printed by its own printf calls."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.jobs.bench.collectives.config import SweepSettings
from meshrun.jobs.bench.collectives.output.names import names
from meshrun.jobs.bench.collectives.output.nccl_tests_text import (
    TUNING,
    WIDE,
    WIRES,
    colour,
    figure,
    footer,
    header,
    row,
)
from meshrun.jobs.bench.collectives.results import (
    Footer,
    GpuMemoryUse,
    Header,
    Iterations,
    PlacementResult,
    RankDevice,
    RankMismatch,
    ResultRow,
    SplitGroup,
    WireTraffic,
    time_statistics,
)
from meshrun.runner.comm.collectives.api import NcclChoice

HEADER = Header(
    program="all_reduce_perf",
    library=22809,
    backend="NCCL 2.28.9, /usr/lib/libnccl.so.2",
    ranks=(
        RankDevice(0, 0, 71, "c7", 0, "0000:1b:00", "NVIDIA H200"),
        RankDevice(1, 0, 1234567, "a-long-host-name", 11, "0000:43:00", "NVIDIA H200"),
    ),
    assumptions=("all_reduce: ring assumed (NCCL_ALGO=Ring)",),
)
DEVICES = """\
# Using devices
#  Rank  0 Group  0 Pid     71 on         c7 device  0 [0000:1b:00] NVIDIA H200
#  Rank  1 Group  0 Pid 1234567 on a-long-host-name device 11 [0000:43:00] NVIDIA H200
# backend: NCCL 2.28.9, /usr/lib/libnccl.so.2
# all_reduce: ring assumed (NCCL_ALGO=Ring)
#
"""


def of(time_us: float, algbw: float, busbw: float, wrong: int | None = 0, **more: object) -> PlacementResult:
    return replace(PlacementResult(time_us * 1e-6, 1.5e-6, algbw, busbw, wrong), **more)


SMALL = ResultRow(8, 2, "float", "sum", -1, of(12.344, 0, 0), of(9999.996, 0.0008, 0.0016, 3))
LARGE = ResultRow(
    17179869184,
    4294967296,
    "bfloat16",
    "none",
    12,
    of(70123.44, 244.99, 459.36, None),
    of(12345678, 1000.5, 99999.5, 1234567),
    finished=1750000000.0,
)
TIMES = [Iterations(tuple(t * 1e-6 for t in ts), ()) for ts in ((30, 34, 38, 36), (33, 33, 33.2, 33))]
TIMED = ResultRow(
    1048576,
    262144,
    "f8e4m3",
    "mulsum",
    0,
    of(34.5, 30.39, 45.59, iterations=TIMES[0]),
    of(33.2, 31.58, 47.37, iterations=TIMES[1]),
    finished=1750000000.0,
)


def test_columns_of_counted_bytes() -> None:
    """Sums by GPU and by host, of the busiest: 20 us for 3 and 2 MB are 150 and 100 GB/s."""
    wires = (
        WireTraffic("nvlink", "rank 0", "NVLink 0", 2e6, 1e6),
        WireTraffic("nvlink", "rank 0", "NVLink 1", 1e6, 0),
        WireTraffic("nvlink", "rank 1", "NVLink 0", 2e6, 2e6),
        WireTraffic("ip", "n1", "eth0", 0, 400),
    )
    counted = replace(of(20, 1, 1.5), traffic=wires)
    measured = ResultRow(8, 2, "float", "sum", -1, counted, replace(counted, traffic=()))
    text = row(SweepSettings(), measured, (WIRES,))
    assert text == row(SweepSettings(), measured).removesuffix("\n") + (
        "   150.00   100.00        -        -     0.00     0.02" + 6 * "        -" + "\n"
    )
    units = header(SweepSettings(), HEADER, (WIRES,)).splitlines()[-1]
    assert units.split()[-12:] == 12 * ["(GB/s)"]


def test_columns_of_the_library_s_choice() -> None:
    one, other = NcclChoice("NVLSTree", "Simple", 24), NcclChoice("Ring", "Simple", 24)
    told = replace(of(20, 1, 1.5), choices=(one, other))
    measured = ResultRow(8, 2, "float", "sum", -1, told, replace(told, choices=()))
    text = row(SweepSettings(), measured, (TUNING,))
    assert text == row(SweepSettings(), measured).removesuffix("\n") + (
        "  NVLSTree+Ring    Simple        24              -         -         -\n"
    )
    titled = header(SweepSettings(), HEADER, (WIDE, TUNING)).splitlines()
    assert titled[-2].split()[-6:] == 2 * ["algo", "proto", "channels"]
    assert len(titled[-1]) == len(titled[-2])


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (0, 7, "   0.00"),
        (0.004, 7, "   0.00"),
        (9.995, 7, "   9.99"),
        (9999.99, 7, "9999.99"),
        (9999.995, 7, "10000.0"),
        (99999.94, 7, "99999.9"),
        (9999999.4, 7, "9999999"),
        (9999999.5, 7, "1.0e+07"),
        (1.5e10, 7, "1.5e+10"),
        (1.5e100, 7, "1.5e+10"),  # cut, as snprintf cuts
        (999.99, 6, "999.99"),
        (999.995, 6, "1000.0"),
        (9999.94, 6, "9999.9"),
        (999999.4, 6, "999999"),
        (999999.5, 6, " 1e+06"),
        (float("inf"), 6, "   inf"),
        (float("nan"), 7, "    nan"),
    ],
)
def test_a_number_loses_decimals_before_its_column_breaks(value: float, width: int, text: str) -> None:
    assert figure(value, width) == text


@given(st.floats(0, 1e300), st.sampled_from([6, 7]))
def test_a_number_never_breaks_its_column(value: float, width: int) -> None:
    assert len(figure(value, width)) == width


def test_header() -> None:
    settings = SweepSettings(minbytes=8, maxbytes=1 << 33, stepfactor=2)
    assert header(settings, HEADER) == (
        """\
# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 \
validation: 1 graph: 0 unalign: 0
#
"""
        + DEVICES
        + "#                                                              out-of-place          "
        "             in-place          \n"
        "#       size         count      type   redop    root"
        "     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong \n"
        "#        (B)    (elements)                          "
        "     (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         \n"
    )


def test_header_with_all_columns() -> None:
    settings = SweepSettings(
        blocking=2, per_iter_timing=True, per_iter_skip=3, report_cputime=True, report_timestamps=True
    )
    assert header(settings, HEADER) == (
        """\
# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 33554432 maxBytes 33554432 step: 1048576(bytes) warmup iters: 1 iters: 20 \
agg iters: 1 validation: 1 graph: 0 unalign: 0
# Blocking Enabled: wait after each inner iteration (-m), no barrier \n\
# Per-Iteration Report: CUDA event timing; i_* uses max over process rows; \
summary skips first 3 iterations \n\
#
"""
        + DEVICES
        + "#                                                                 out-of-place (+ per-iteration)"
        "                                in-place (+ per-iteration)\n"
        "#       size         count      type   redop    root"
        "  cputime   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%"
        "  cputime   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%           timestamp\n"
        "#        (B)    (elements)                          "
        "     (us)  (GB/s)  (GB/s)             (us)     (us)     (us)      (%)"
        "     (us)  (GB/s)  (GB/s)             (us)     (us)     (us)      (%)   %Y-%m-%d %H:%M:%S\n"
    )


@pytest.mark.parametrize(
    ("blocking", "line"),
    [
        (1, "# Blocking Enabled: wait and barrier after each inner iteration (-m) \n"),
        (
            3,
            "# Blocking Enabled: wait and barrier after each outer iteration (-n); time excludes barrier \n",
        ),
    ],
)
def test_blocking_is_in_the_header(blocking: int, line: str) -> None:
    text = header(SweepSettings(blocking=blocking), HEADER)
    assert text.index(line) < text.index("#\n# Using devices")


def test_without_nccl_no_cuda_events_are_claimed() -> None:
    text = header(SweepSettings(per_iter_timing=True), replace(HEADER, library=0))
    assert "# Per-Iteration Report: host clock timing; i_* uses max over process rows \n" in text


@pytest.mark.parametrize(
    ("measured", "settings", "text"),
    [
        (
            SMALL,
            SweepSettings(),
            "           8             2     float     sum      -1"
            "    12.34    0.00    0.00       0  10000.0    0.00    0.00       3\n",
        ),
        (
            LARGE,
            SweepSettings(),
            " 17179869184    4294967296  bfloat16    none      12"
            "  70123.4  244.99  459.36    N/A  1.2e+07  1000.5  100000  1.23457e+06\n",
        ),
        (
            TIMED,
            SweepSettings(per_iter_timing=True),
            "     1048576        262144    f8e4m3  mulsum       0"
            "    34.50   30.39   45.59       0    30.00    38.00    38.00     8.57"
            "    33.20   31.58   47.37       0    33.00    33.20    33.20     0.26\n",
        ),
        (
            SMALL,
            SweepSettings(report_cputime=True),
            "           8             2     float     sum      -1"
            "     1.50    0.00    0.00       0     1.50    0.00    0.00       3\n",
        ),
    ],
    ids=["small", "large", "per iteration", "cpu time"],
)
def test_row(measured: ResultRow, settings: SweepSettings, text: str) -> None:
    assert row(settings, measured) == text


@pytest.mark.parametrize("measured", [LARGE, TIMED])
def test_a_time_stamp_ends_the_row(measured: ResultRow) -> None:
    stamped = row(SweepSettings(report_timestamps=True), measured)
    plain = row(SweepSettings(), measured).removesuffix("\n")
    assert stamped.startswith(plain)
    assert re.fullmatch(r"  2025-06-1[456] \d\d:\d\d:40\n", stamped.removeprefix(plain))


def test_wide_columns_come_last() -> None:
    late = of(
        20, 1, 1.5, by_rank=(18e-6, 20.5e-6), arrival_skew=(3e-6, -1e-6), wire=311.25, wire_percent=69.2
    )
    wide = ResultRow(8, 2, "float", "sum", -1, late, of(20, 1, 1.5))
    text = row(SweepSettings(), wide, (WIDE,))
    assert text == row(SweepSettings(), wide).removesuffix("\n") + (
        "  311.25   69.20        1    20.50        0     3.00"
        "       -       -        -        -        -        -\n"
    )
    for settings in (SweepSettings(), SweepSettings(report_timestamps=True)):
        plain, titled = (header(settings, HEADER, (WIDE,) * wide).splitlines() for wide in (False, True))
        assert plain[:-2] == titled[:-2]
        assert titled[-2].startswith(plain[-2].rstrip())
        assert titled[-1].startswith(plain[-1].rstrip())
        assert len(titled[-1]) == len(titled[-2])
    assert len(header(SweepSettings(), HEADER, (WIDE,)).splitlines()[-1]) == len(text) - 1


@pytest.mark.parametrize(
    ("known", "settings", "text"),
    [
        (
            Footer(0, 45.1234567),
            SweepSettings(memory=True),
            "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 45.1235 \n#\n"
            "# Collective test concluded: all_reduce_perf\n#\n\n",
        ),
        (
            Footer(2, 45.1234567, minimum_busbw=51, errors=("remote process exited",)),
            SweepSettings(),
            "# Out of bounds values : 2 FAILED\n# Avg bus bandwidth    : 45.1235 FAILED\n#\n"
            "# Collective test concluded: all_reduce_perf\n#\n# error: remote process exited\n",
        ),
        (
            Footer(0, 45.0, minimum_busbw=50, memory=GpuMemoryUse(1 << 30, 1 << 36, 513)),
            SweepSettings(memory=True),
            "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 45 OK\n#\n"
            "# Collective test concluded: all_reduce_perf\n"
            "# GPU memory usage     : Initialization 1.00 GB | User-Allocated 64.0 GB | Collective 513 B "
            "| Total  65.0 GB\n#\n\n",
        ),
    ],
    ids=["unchecked", "failed", "enough"],
)
def test_footer(known: Footer, settings: SweepSettings, text: str) -> None:
    assert footer(settings, known, "all_reduce_perf") == text


def test_errors_come_last() -> None:
    text = footer(SweepSettings(), Footer(0, 1.0, errors=("unhandled system error",)), "x_perf")
    assert text.endswith("#\n# error: unhandled system error\n")


WRONG = RankMismatch(1, "c7", "GPU 3", 12, 4711, "1.5 (0x3fc00000)", "2.5 (0x40200000)", 0, 1)
GROUPS = (
    SplitGroup(0, (0, 1, 2, 8), 10e-6, 20.0, 30.0, 0),
    SplitGroup(1, (3, 5, 7), 20e-6, 10.0, 12.5, None),
    SplitGroup(2, (4,), 3e-3, 9.0, 15.0, 4),
)


def test_names() -> None:
    measured = ResultRow(
        8,
        2,
        "float",
        "sum",
        -1,
        of(1, 1, 1, 12, findings=(WRONG,), by_rank=(10e-6, 20.5e-6), arrival_skew=(1e-6, 12.25e-6)),
        of(1, 1, 1, 1, findings=(replace(WRONG, count=1, source=None, flipped_bits=2),), groups=GROUPS),
    )
    assert names(measured, HEADER) == (
        "#   wrong: rank 1 (host c7, GPU 3) out of place: 12 elements, first at 4711: got 1.5 (0x3fc00000), "
        "expected 2.5 (0x40200000), 1 bit flipped, data of rank 0\n"
        "#   slowest: rank 1 (host a-long-host-name, device 11) out of place: 20.50 us\n"
        "#   last to arrive: rank 1 (host a-long-host-name, device 11) out of place: "
        "12.25 us after the median rank\n"
        "#   wrong: rank 1 (host c7, GPU 3) in place: 1 element, first at 4711: got 1.5 (0x3fc00000), "
        "expected 2.5 (0x40200000), 2 bits flipped\n"
        "#   group 0 (ranks 0-2,8) in place: 10.00 us, busbw 30 GB/s, #wrong 0\n"
        "#   group 1 (ranks 3,5,7) in place: 20.00 us, busbw 12.5 GB/s, #wrong N/A\n"
        "#   group 2 (ranks 4) in place: 3000 us, busbw 15 GB/s, #wrong 4\n"
        "#   groups in place: busbw min 12.5 GB/s (group 1), median 15 GB/s, max 30 GB/s (group 0)\n"
    )


def test_nothing_to_name_is_no_line() -> None:
    assert names(SMALL, HEADER) == ""


@pytest.mark.parametrize(
    ("measured", "settings", "wide"),
    [
        (SMALL, SweepSettings(), False),
        (LARGE, SweepSettings(report_timestamps=True), True),
        (TIMED, SweepSettings(per_iter_timing=True), True),
    ],
)
def test_colour_changes_nothing_that_is_seen(
    measured: ResultRow, settings: SweepSettings, wide: bool
) -> None:
    plain = row(settings, measured, (WIDE,) * wide)
    painted = colour(plain, measured)
    assert painted != plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == plain


def test_wrong_counts_are_red_and_rates_green() -> None:
    painted = colour(row(SweepSettings(), SMALL), SMALL)
    assert re.findall(r"\x1b\[1;31m(\S+)\x1b\[0m", painted) == ["3"]
    timed = replace(TIMED, in_place=replace(TIMED.in_place, wrong=7))
    painted = colour(row(SweepSettings(), timed), timed)
    assert re.findall(r"\x1b\[1;31m(\S+)\x1b\[0m", painted) == ["7"]
    assert re.findall(r"\x1b\[32m(\S+)\x1b\[0m", painted) == ["45.59", "47.37"]


def test_statistics_by_hand() -> None:
    of_four = time_statistics([4.0, 1.0, 3.0, 2.0])
    assert (of_four.min, of_four.max, of_four.avg) == (1.0, 4.0, 2.5)
    assert (of_four.p50, of_four.p95, of_four.p99) == (
        3.0,
        4.0,
        4.0,
    )  # the upper middle one; no interpolation
    assert of_four.stdev == pytest.approx(1.25**0.5)
    assert of_four.cv == pytest.approx(100 * 1.25**0.5 / 2.5)


@pytest.mark.parametrize(
    ("count", "p50", "p95", "p99"), [(1, 1, 1, 1), (20, 11, 19, 20), (100, 51, 95, 99), (101, 51, 96, 100)]
)
def test_percentiles_are_samples(count: int, p50: int, p95: int, p99: int) -> None:
    found = time_statistics(range(1, count + 1))
    assert (found.p50, found.p95, found.p99) == (p50, p95, p99)


def test_skipped_iterations_are_left_out() -> None:
    assert Iterations((9.0, 8.0, 1.0, 2.0), (), skipped=2).summary().max == 2.0


def test_times_of_zero_have_no_variation() -> None:
    assert time_statistics([0.0, 0.0]).cv == 0.0
