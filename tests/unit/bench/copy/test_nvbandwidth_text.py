"""Matrices as text, to the character; outliers; shares of the hardware's rate."""

from __future__ import annotations

from typing import Any

import pytest

from meshrun.jobs.bench.copy import nvbandwidth_text, outliers
from meshrun.jobs.bench.copy.cases import BY_NAME
from meshrun.jobs.bench.copy.measure import CaseResult, MatrixCell
from meshrun.jobs.bench.copy.outliers import Peaks
from meshrun.runner.system.links import Reading

NVLINK, PCIE, MEMORY = Reading(450.0, "18 NVLinks"), Reading(63.0, "x16"), Reading(2400.0, "half of it")
LIMITS = [Peaks(NVLINK, PCIE, MEMORY)] * 3


def result(name: str, values: list[list[Any]], gpus: int, **more: Any) -> CaseResult:
    """values: of each row, None where nothing was measured, or a tuple of each matrix's value."""
    case = BY_NAME[name]
    cells = []
    for row, column, transfers in case.cells(gpus):
        value = values[row][column]
        tupled = value if isinstance(value, tuple) or value is None else (value,)
        cells.append(
            MatrixCell(row, column, transfers, tupled, why=more.get("why", "") if value is None else "")
        )
    return CaseResult(case, gpus, tuple(cells), more.get("wrong", ()), more.get("waived", ""))


def test_a_row_for_the_host() -> None:
    assert nvbandwidth_text.text(result("host_to_device_memcpy_ce", [[55.123, 55.2, 55.149]], 3)) == (
        "Running host_to_device_memcpy_ce.\n"
        "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n"
        "           0         1         2\n"
        " 0     55.12     55.20     55.15\n"
        "\n"
        "SUM host_to_device_memcpy_ce 165.47\n"
        "# min 55.12, median 55.15, max 55.20 GB/s\n"
        "\n"
    )


def test_samples_that_vary() -> None:
    """By their standard deviation over their mean: 20 of 100, and 0; the sum of both directions has none."""
    case = BY_NAME["host_to_device_memcpy_ce"]
    samples = [((50.0,), (50.0,), (50.0,)), ((100.0,), (80.0,), (120.0,))]
    cells = [
        MatrixCell(row, column, transfers, (100.0,), samples[column])
        for row, column, transfers in case.cells(2)
    ]
    found = CaseResult(case, 2, tuple(cells))
    assert nvbandwidth_text.summary(found, 0, "key")[2:] == [
        "# samples vary by 10.0% (median; standard deviation / mean), 20.0% in cell (0, 1)"
    ]
    assert cells[1].variation(1) is None
    assert MatrixCell(0, 0, (), (1.0,), ((1.0,),)).variation(0) is None


ODD = [[None, 390.0, 391.0], [392.0, None, 100.0], [393.0, 394.0, None]]


def test_what_is_odd_has_a_star_and_a_sentence() -> None:
    assert nvbandwidth_text.text(result("device_to_device_memcpy_write_sm", ODD, 3), LIMITS) == (
        "Running device_to_device_memcpy_write_sm.\n"
        "memcpy SM GPU(row) <- GPU(column) bandwidth (GB/s)\n"
        "           0         1         2\n"
        " 0       N/A    390.00    391.00\n"
        " 1    392.00       N/A    100.00*\n"
        " 2    393.00    394.00       N/A\n"
        "\n"
        "SUM device_to_device_memcpy_write_sm 2060.00\n"
        "# min 100.00, median 391.50, max 394.00 GB/s\n"
        "# the best, 394.00, is 88% of 450.00 GB/s (18 NVLinks)\n"
        "# * GPU 1 -> GPU 2 by GPU 1: 100.00 GB/s, 74% below the median of 6, 391.50\n"
        "\n"
    )


def test_a_star_takes_no_column_out_of_line() -> None:
    lines = nvbandwidth_text.matrix(
        result("host_to_device_memcpy_ce", [[10.0, 20.0, 55.0, 55.0, 55.0]], 5), 0
    )
    assert lines[1] == " 0     10.00*    20.00*    55.00     55.00     55.00"
    assert lines[1].split()[1:] == ["10.00*", "20.00*", "55.00", "55.00", "55.00"]


def test_on_a_terminal_it_is_red() -> None:
    lines = nvbandwidth_text.matrix(
        result("host_to_device_memcpy_ce", [[10.0, 55.0, 55.0]], 3), 0, colour=True
    )
    assert lines[1] == " 0\x1b[31m     10.00\x1b[0m     55.00     55.00"
    text = nvbandwidth_text.text(result("host_to_device_memcpy_ce", [[10.0, 55.0, 55.0]], 3), colour=True)
    assert "\n# host -> GPU 0: 10.00 GB/s, 82% below the median of 3, 55.00\n" in text


def test_latency_is_odd_where_it_is_long() -> None:
    values = [[None, 1000.0, 1005.0], [1001.0, None, 1101.0], [1002.0, 500.0, None]]
    text = nvbandwidth_text.text(result("device_to_device_latency_sm", values, 3), LIMITS)
    assert " 1   1001.00       N/A   1101.00\n" in text  # 10 % above 1001.5 would be 1101.65
    values[1][2] = 1102.0
    text = nvbandwidth_text.text(result("device_to_device_latency_sm", values, 3), LIMITS)
    assert " 1   1001.00       N/A   1102.00*\n" in text
    assert "# * GPU 1 loading from GPU 2 memory: 1102.00 ns, 10% above the median of 6, 1001.50\n" in text
    assert "the best" not in text


def test_each_direction_and_both() -> None:
    values = [[None, (300.0, 310.0, 610.0)], [(320.0, 150.0, 470.0), None]]
    text = nvbandwidth_text.text(result("device_to_device_bidirectional_memcpy_read_ce", values, 2), LIMITS)
    assert text.count("Running") == 1
    assert [line for line in text.splitlines() if line.startswith("SUM")] == [
        "SUM device_to_device_bidirectional_memcpy_read_ce_read1 620.00",
        "SUM device_to_device_bidirectional_memcpy_read_ce_read2 460.00",
        "SUM device_to_device_bidirectional_memcpy_read_ce_total 1080.00",
    ]
    assert "# the best, 320.00, is 71% of 450.00 GB/s (18 NVLinks)\n" in text
    assert "# * GPU 1 -> GPU 0 by GPU 0: 150.00 GB/s, 35% below the median of 2, 230.00\n" in text
    assert "# * GPU 1 <-> GPU 0: 470.00 GB/s, 13% below the median of 2, 540.00\n" in text
    assert "# the best, 610.00, is 68% of 900.00 GB/s (18 NVLinks, both directions)\n" in text
    assert " 1    150.00*      N/A\n" in text


def test_what_is_not_measured_and_what_is_wrong() -> None:
    one = result(
        "device_to_device_memcpy_read_ce", [[None, None], [1.5, None]], 2, why="no way", wrong=("bad",)
    )
    text = nvbandwidth_text.text(one)
    assert " 0       N/A       N/A\n 1      1.50       N/A\n" in text
    assert text.endswith("# cell (0, 1): no way\n# wrong data: bad\n")


def test_what_is_waived_is_not_shown() -> None:
    assert nvbandwidth_text.text(result("device_to_device_memcpy_read_ce", [], 1, waived="one GPU")) == ""


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([55.0], []),
        ([55.0, 55.0], []),
        ([55.0, 49.6, 55.0], []),
        ([55.0, 49.4, 55.0], [1]),
        ([10.0, 55.0, 20.0, 55.0, 55.0], [0, 2]),
        ([10.0, None, 55.0, 55.0], [0]),
        ([80.0, 55.0, 55.0], []),
    ],
)
def test_odd_is_a_tenth_below_the_median(values: list[Any], expected: list[int]) -> None:
    one = result("host_to_device_memcpy_ce", [values], len(values))
    assert [odd.cell.column for odd in outliers.find_outliers(one, 0)] == expected


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        ({(0, 1), (1, 0)}, "all 2 of these are between GPU 0 and GPU 1"),
        ({(1, 3), (3, 1)}, "all 2 of these are between GPU 1 and GPU 3"),
        ({(1, 0), (1, 2)}, "all 2 of these involve GPU 1, 12 others with it are not slow"),
    ],
)
def test_one_slow_link_is_not_a_slow_gpu(slow: set[tuple[int, int]], expected: str) -> None:
    values = [[None if r == c else 10.0 if (r, c) in slow else 100.0 for c in range(8)] for r in range(8)]
    assert outliers.messages(result("device_to_device_memcpy_read_ce", values, 8), 0)[-1] == expected


def test_many_odd_ones_are_summed_up() -> None:
    values = [[None if r == c else 10.0 if 7 in (r, c) else 100.0 for c in range(8)] for r in range(8)]
    output = outliers.messages(result("device_to_device_memcpy_read_ce", values, 8), 0)
    assert len(output) == outliers.MAX_DESCRIBED + 2
    assert output[-2:] == ["and 8 more of 56", "all 14 of these involve GPU 7"]


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("host_to_device_memcpy_ce", 63.0),
        ("all_to_host_bidirectional_memcpy_sm", 63.0),
        ("device_to_device_memcpy_read_ce", 450.0),
        ("one_to_all_write_sm", 450.0),
        ("device_local_copy", 2400.0),
        ("host_device_latency_sm", None),
        ("host_local_copy", None),
    ],
)
def test_peaks(name: str, rate: float | None) -> None:
    one = result(name, [[1.0] * 3] * 3, 3)
    peak = outliers.peak(one, 0, one.cells[0], LIMITS)
    assert (None if peak is None else peak.rate) == rate


def test_a_pair_is_as_fast_as_its_slower_gpu() -> None:
    limits = [LIMITS[0], Peaks(Reading(200.0, "8 NVLinks"), PCIE, MEMORY)]
    one = result("device_to_device_memcpy_read_ce", [[None, 150.0], [150.0, None]], 2)
    assert outliers.best_of_peak(one, 0, limits) == "the best, 150.00, is 75% of 200.00 GB/s (8 NVLinks)"


def test_a_peak_that_is_passed_is_not_the_way_taken() -> None:
    one = result("host_to_device_memcpy_ce", [[300.0]], 1)
    assert outliers.best_of_peak(one, 0, LIMITS).endswith(
        "476% of 63.00 GB/s (x16); above this link's peak, so traffic uses another path"
    )


def test_a_peak_that_is_not_known_says_why() -> None:
    limits = [Peaks(NVLINK, Reading(None, "NVML: lost"), MEMORY)]
    one = result("host_to_device_memcpy_ce", [[50.0]], 1)
    assert outliers.best_of_peak(one, 0, limits) == "peak unknown (NVML: lost)"


@pytest.mark.parametrize(
    ("identity", "shown"),
    [
        ("0000:2A:00.0", "00000000:2a:00"),
        ("00010000:C3:00.0", "00010000:c3:00"),
        ("2a:00.0", "00000000:2a:00"),
    ],
)
def test_bus_ids_are_nvbandwidths(identity: str, shown: str) -> None:
    assert nvbandwidth_text.bus(identity) == shown
