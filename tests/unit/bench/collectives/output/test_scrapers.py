"""The regular expressions by which fleet validators read nccl-tests' text find the same numbers in ours."""

from __future__ import annotations

import re

import pytest

from meshrun.jobs.bench.collectives.config import SweepSettings
from meshrun.jobs.bench.collectives.output.names import names
from meshrun.jobs.bench.collectives.output.nccl_tests_text import footer, header, row
from meshrun.jobs.bench.collectives.results import (
    Footer,
    Header,
    Iterations,
    PlacementResult,
    RankDevice,
    RankMismatch,
    ResultRow,
    SplitGroup,
)

GIB = 1 << 30
SEATS = tuple(
    RankDevice(rank, 0, 6899 + rank, f"gpu-node-{rank // 2}", rank % 2, "0000:1b:00", "NVIDIA H200")
    for rank in range(4)
)
HEADER = Header(
    "all_reduce_perf",
    22809,
    "NCCL 2.28.9, /usr/lib/libnccl.so.2",
    SEATS,
    ("all_reduce: ring assumed (Ring)",),
)
FINDING = RankMismatch(3, "gpu-node-1", "GPU 1", 12, 4711, "1.5 (0x3fc00000)", "2.5 (0x40200000)", 2, 1)
GROUPS = (SplitGroup(0, (0, 1), 1e-5, 1.0, 2.0, 0), SplitGroup(1, (2, 3), 2e-5, 1.0, 1.0, 0))


def measured(time_us: float, algbw: float, busbw: float, wrong: int | None, timed: bool) -> PlacementResult:
    return PlacementResult(
        time_us * 1e-6,
        1e-6,
        algbw,
        busbw,
        wrong,
        by_rank=(time_us * 1e-6,) * 4,
        findings=(FINDING,) if wrong else (),
        iterations=Iterations((time_us * 1e-6,) * 3, ()) if timed else None,
        arrival_skew=(0.0, 1e-6, 0.0, 0.0),
        groups=GROUPS,
    )


def printed(timed: bool = False, named: bool = False, minimum: float | None = None, failures: int = 0) -> str:
    """Three sizes: 8 B, 1 MiB with 3 wrong elements in place, 1 GiB with none checked in place."""
    settings = SweepSettings(minbytes=8, maxbytes=GIB, stepfactor=2, per_iter_timing=timed)
    rows = [
        ResultRow(size, size // 4, "float", "sum", -1, measured(*out, 0, timed), measured(*inside, timed))
        for size, out, inside in (
            (8, (12.34, 0.0, 0.0), (11.98, 0.0, 0.0, 0)),
            (1 << 20, (34.5, 30.39, 45.59), (33.2, 31.58, 47.37, 3)),
            (GIB, (3504.2, 306.42, 459.63), (3498.0, 306.96, 460.44, None)),
        )
    ]
    lines = [row(settings, one) + (names(one, HEADER) if named else "") for one in rows]
    end = footer(settings, Footer(failures, 168.8381, minimum), HEADER.program)
    return header(settings, HEADER) + "".join(lines) + end


FORMS = {
    "plain": printed(),
    "per iteration": printed(timed=True),
    "with names": printed(named=True),
}
AVERAGE = {
    "GoogleCloudPlatform/cluster-health-scanner nccl_startup.py": (
        r"# Avg bus bandwidth\s*:\s*(\d+)",
        "168",
    ),
    "GoogleCloudPlatform/PerfKitBenchmarker nccl_benchmark.py": (
        r"Avg bus bandwidth\s+: ([0-9\.]+)",
        "168.838",
    ),
    "GoogleCloudPlatform/ramble nccl-tests": (
        r"\s*Avg bus bandwidth\s+:\s+(?P<bw>[0-9]+\.?[0-9]+)",
        "168.838",
    ),
    "ROCm/cvs rccl_lib.py": (r"(?i)#\sAvg bus bandwidth\s+:\s+([0-9\.]+)", "168.838"),
    "eth-cscs/cscs-reframe-tests xccl_tests.py": (r"Avg bus bandwidth\s*:\s*(?P<gbs>\S+)", "168.838"),
    "aws-samples/awsome-distributed-training nccl_to_csv.py": (
        r"# Avg bus bandwidth\s*:\s*(\d+\.?\d*)",
        "168.838",
    ),
}
NUMBER = r"[0-9]+\.?[0-9]+"
RAMBLE = ("[0-9]+", "[0-9]+", r"\S+", r"\S+", r"\S+", *(NUMBER,) * 3, r"\S+", *(NUMBER,) * 3, r"\S+")
ROWS = {
    "aws-samples/awsome-distributed-training nccl_to_csv.py": (
        r"^\s*(\d+)\s+(\d+)\s+(float|double|int|half)\s+(sum|prod|max|min|none)\s+(-?\d+)\s+(\d+\.?\d*)\s+"
        r"(\d+\.?\d*)\s+(\d+\.?\d*)\s+(\d+|N/A)\s+(\d+\.?\d*)\s+(\d+\.?\d*)\s+(\d+\.?\d*)\s+(\d+|N/A)"
    ),
    "GoogleCloudPlatform/ramble nccl-tests": "".join(rf"\s+({column})" for column in RAMBLE),
}


def line_with(text: str, words: str) -> str:
    (found,) = (line for line in text.splitlines() if words in line)
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("project", AVERAGE)
def test_the_average(project: str, form: str) -> None:
    expression, value = AVERAGE[project]
    assert re.findall(expression, FORMS[form]) == [value]


@pytest.mark.parametrize("form", FORMS)
def test_the_average_by_fields_of_its_line(form: str) -> None:
    lines = FORMS[form].splitlines()
    # oracle-quickstart/oci-hpc active_healthcheck.py: every line with these words, its sixth field
    assert [line.split()[5] for line in lines if "Avg bus bandwidth" in line] == ["168.838"]
    # Azure/azurehpc-health-checks azure_nccl_allreduce.nhc: the first line with "bandwidth", its sixth field
    assert next(line for line in lines if "bandwidth" in line).split()[5] == "168.838"
    # scitix/sichek nccl_perftest.go: what follows the first colon, up to a blank
    assert line_with(FORMS[form], "Avg bus bandwidth").split(":")[1].strip().split(" ")[0] == "168.838"
    # facebookresearch/gcm check_nccl.py: the first number of that line
    found = re.search(r"[-+]?(\d*\.*\d+)", line_with(FORMS[form], "Avg bus bandwidth"))
    assert found is not None
    assert float(found.group()) == 168.838


@pytest.mark.parametrize("project", ROWS)
def test_rows(project: str) -> None:
    for form in ("plain", "with names"):
        found = [" ".join(groups) for groups in re.findall(ROWS[project], FORMS[form], re.MULTILINE)]
        assert found == [
            "8 2 float sum -1 12.34 0.00 0.00 0 11.98 0.00 0.00 0",
            "1048576 262144 float sum -1 34.50 30.39 45.59 0 33.20 31.58 47.37 3",
            "1073741824 268435456 float sum -1 3504.20 306.42 459.63 0 3498.00 306.96 460.44 N/A",
        ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("in_place", [False, True])
def test_superbench_finds_its_columns_by_their_titles(form: str, in_place: bool) -> None:
    """microsoft/superbenchmark cuda_nccl_bw_performance.py: from the last line with "out-of-place" to the
    last with "Out of bounds values"; the columns counted from the end of the titles."""
    lines = FORMS[form].splitlines()
    begin = max(number for number, line in enumerate(lines) if "out-of-place" in line)
    end = max(number for number, line in enumerate(lines) if "Out of bounds values" in line)
    titles: list[str] = []
    found = []
    for line in lines[begin + 1 : end]:
        if not titles and "time" in line and "busbw" in line:
            titles = re.sub(r" +", " ", line[1:].strip(" ")).split(" ")
            continue
        cells = re.sub(r" +", " ", line.strip(" ")).split(" ")
        if titles and re.match(r"\d+", cells[0]):
            place = -1 - titles[::-1].index("busbw") if in_place else titles.index("busbw") - len(titles)
            found.append((int(cells[titles.index("size")]), float(cells[place])))
    rates = (0.0, 47.37, 460.44) if in_place else (0.0, 45.59, 459.63)
    assert found == list(zip((8, 1 << 20, GIB), rates, strict=True))


@pytest.mark.parametrize("form", ["plain", "with names"])
def test_cloudai_reads_titles_rows_and_devices(form: str) -> None:
    """NVIDIA/cloudai report_generation_strategy.py and performance_report_generation_strategy.py."""
    text = FORMS[form]
    assert re.search(r"out-of-place|in-place", text)
    assert re.search(
        r"\b(size\s+count\s+type\s+redop\s+root\s+"
        r"time\s+algbw\s+busbw\s+#wrong\s+time\s+"
        r"algbw\s+busbw\s+#wrong)\b",
        text,
        re.IGNORECASE,
    )
    lines = [line.strip() for line in text.splitlines()]
    cells = [re.split(r"\s+", line) for line in lines if re.match(r"^\d", line)]
    assert [len(row) for row in cells] == [13, 13, 13]
    assert [row[7] for row in cells] == ["0.00", "45.59", "459.63"]
    assert [row[11] for row in cells] == ["0.00", "47.37", "460.44"]
    devices = [line for line in lines if "Rank" in line and "device" in line and "NVIDIA" in line]
    hosts = [re.findall(r"on\s+([\w\d\-.]+)\s+device\s+(\d+)", line) for line in devices]
    assert hosts == [[(f"gpu-node-{rank // 2}", str(rank % 2))] for rank in range(4)]
    models = [re.findall(r"NVIDIA\s+(.+?)(?=\s*$|\s+\[|\s+device)", line) for line in devices]
    assert models == [["H200"]] * 4


@pytest.mark.parametrize(
    ("expression", "good", "bad"),
    [
        pytest.param(
            r"Out of bounds values\s*:\s*0\s*OK", [[]], [], id="eth-cscs/cscs-reframe-tests xccl_tests.py"
        ),
        pytest.param(
            r"\s*Out of bounds values\s*:\s+(?P<count>[0-9]+)",
            [["0"]],
            [["2"]],
            id="GoogleCloudPlatform/ramble",
        ),
    ],
)
def test_out_of_bounds(expression: str, good: list[list[str]], bad: list[list[str]]) -> None:
    for failures, expected in ((0, good), (2, bad)):
        text = printed(named=True, failures=failures)
        assert [list(found.groups()) for found in re.finditer(expression, text)] == expected


def test_failed_stands_in_failures_alone() -> None:
    """Azure/azurehpc-health-checks and DCGM take any line with this word for a failure."""
    assert all("FAILED" not in text for text in FORMS.values())
    assert printed(failures=1).count("FAILED") == 1
    assert printed(minimum=200.0).count("FAILED") == 1


def test_a_line_for_each_rank() -> None:
    """GoogleCloudPlatform/PerfKitBenchmarker nccl_benchmark.py."""
    for text in FORMS.values():
        ranks = re.findall(r"(Rank\s+\d+) (.*)", text)
        assert [rank for rank, _ in ranks] == [f"Rank  {rank}" for rank in range(4)]


def test_lines_of_our_own_are_comments_without_the_words_that_are_searched_for() -> None:
    added = set(FORMS["with names"].splitlines()) - set(FORMS["plain"].splitlines())
    assert len(added) > 3
    for line in added:
        assert line.startswith("#   ")
        assert not re.search(r"out-of-place|in-place|bandwidth|FAILED|Out of bounds|\btime\b|Rank", line)
