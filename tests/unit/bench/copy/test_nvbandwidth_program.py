"""`meshrun nvbandwidth`: nvbandwidth's options, and output for the programs that read nvbandwidth's."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
from made_box import MadeHost
from typed import typed

from meshrun.jobs.bench.copy.cases import CASES
from meshrun.jobs.measure.exit_codes import WrongResults
from meshrun.runner.errors import Exit, UserError

NAMES = (
    "device_to_device_memcpy_read_ce",
    "nosuch",
    "device_to_device_bidirectional_memcpy_write_ce",
    "host_device_latency_sm",
    "99",
)
SLOW = 30e9  # of one pair: an outlier, which bench copy would mark


def rate(source: str, target: str) -> float:
    if "host" in (source, target):
        return 50e9
    return SLOW if (source, target) == ("GPU 1", "GPU 0") else 100e9


def host(gpus: int = 2) -> MadeHost:
    return MadeHost(gpus, rate=rate, peers=lambda gpu, other: True)


@pytest.fixture
def text(bench_copy: Any) -> str:
    ended = bench_copy(host(), *NAMES, like_nvbandwidth=True, verbose=True, ranks=2)
    assert isinstance(ended.failure, UserError)
    assert "there are no such test cases: got nosuch, 99" in str(ended.failure)
    return str(ended.text)


def test_golden_text(text: str) -> None:
    latency = re.search(r"^ 0 +(\S+) +(\S+)\n\nSUM host_device_latency_sm (\S+)", text, re.M)
    assert latency is not None
    both = "device_to_device_bidirectional_memcpy_write_ce"
    head, body = text.split("\n\n", 3)[:3], text.split("\n\n", 3)[3]
    assert head == [
        f"nvbandwidth Version: v0.10.0\nBuilt from Git version: meshrun {version('meshrun')}",
        "NOTE: Buffers of 0 MiB are smaller than the default of 512 MiB, and may not reach the peak "
        "bandwidth.\nCUDA Runtime Version: 0\nCUDA Driver Version: 0\nDriver Version: unknown",
        "made\nDevice 0: Made (00000000:10:00)\nDevice 1: Made (00000000:11:00)",
    ]
    assert body.startswith(
        "Running device_to_device_memcpy_read_ce.\n"
        "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n"
        "           0         1\n"
        " 0       N/A     30.00\n"
        " 1    100.00       N/A\n"
        "\n"
        "SUM device_to_device_memcpy_read_ce 130.00\n"
        "MIN device_to_device_memcpy_read_ce 30.00\n"
        "MAX device_to_device_memcpy_read_ce 100.00\n"
        "AVG device_to_device_memcpy_read_ce 65.00\n"
        "COEFFICIENT_OF_VARIATION device_to_device_memcpy_read_ce 0.00\n"
        "\n"
        "ERROR: Testcase nosuch not found!\n"
        f"Running {both}.\n"
        "memcpy CE GPU(row) <-> GPU(column) Write1 bandwidth (GB/s)\n"
    )
    assert [line.split()[1] for line in body.splitlines() if line.startswith("SUM ")][1:4] == [
        f"{both}_write1",
        f"{both}_write2",
        f"{both}_total",
    ]
    assert body.endswith("ERROR: Testcase index 99 out of bound!\n")
    assert not re.search(r"[*#]", text), "what bench copy adds"


def test_superbench_reads_the_text(text: str) -> None:
    """The regular expressions of microsoft/superbenchmark,
    superbench/benchmarks/micro_benchmarks/nvbandwidth.py, each on the lines on which its reader tries it."""
    lines = [line.strip() for line in text.splitlines()]
    ran = [match[1].lower()[:-1] for line in lines if (match := re.match(r"^Running\s+(.+)$", line))]
    assert ran == [NAMES[0], NAMES[2], NAMES[3]]
    headers = [line for line in lines if re.match(r"^(memcpy|memory latency)", line)]
    assert [("bandwidth" in line) for line in headers] == [True, True, True, True, False]
    assert [line[line.find("(row)") - 3 : line.find("(row)")] for line in headers] == ["GPU"] * 4 + ["CPU"]
    assert [line[line.find("(column)") - 3 : line.find("(column)")] for line in headers] == ["GPU"] * 5
    begin = lines.index(headers[0]) + 1
    assert all(re.match(r"^\s*\d", line) for line in lines[begin : begin + 3])
    rows = [line.split() for line in lines[begin + 1 : begin + 3]]
    values = [float(value) for row in rows for value in row[1:] if value != "N/A"]
    assert values == [30.0, 100.0], "a mark on an outlier would be no number"
    sums = [match.groups() for line in lines if (match := re.match(r"SUM (\S+) (\d+\.\d+)", line))]
    assert [name for name, _ in sums][:2] == [NAMES[0], f"{NAMES[2]}_write1"]
    absent = [match[1] for line in lines if (match := re.match(r"ERROR: Testcase (\S+) not found!", line))]
    assert absent == ["nosuch"]


def test_superbench_and_ramble_read_the_list_and_the_sums(text: str) -> None:
    """superbench's expression for `nvbandwidth --list`, which must write nothing on standard error.

    That for sums is of GoogleCloudPlatform/ramble, in its builtin/applications/nvbandwidth/application.py.
    """
    done = typed("nvbandwidth", "--list")
    assert (done.returncode, done.stderr) == (0, "")
    found = re.findall(r"(\d+),\s+([\w_]+):", done.stdout)
    assert found == [(str(number), case.name) for number, case in enumerate(CASES)]
    sums = re.findall(r"SUM\s+(?P<metric>\w+)\s+(?P<value>\d+\.\d+)", text)
    assert sums[0] == (NAMES[0], "130.00")


def alone(line: str, brace: str) -> bool:
    """Whether DCGM takes a line for the first or the last one of the document: tabs, and one brace."""
    return line.strip("\t\n") == brace


def test_dcgm_reads_the_json(bench_copy: Any) -> None:
    """The reader in NVIDIA/DCGM, nvvs/plugin_src/nvbandwidth.

    NVBandwidthPlugin.cpp cuts the document out of the output of -j -v, from the first line with only "{" to
    the last one with only "}". NVBandwidthResult.cpp checks keys and types.
    """
    ended = bench_copy(host(), *NAMES[::2], like_nvbandwidth=True, verbose=True, json=True, output_file="-")
    lines = ended.text.splitlines()
    opening = next(number for number, line in enumerate(lines) if alone(line, "{"))
    closing = max(number for number, line in enumerate(lines) if alone(line, "}"))
    assert (opening, closing) == (0, len(lines) - 1)
    whole = json.loads("\n".join(lines[opening : closing + 1]))["nvbandwidth"]
    assert type(whole["CUDA Runtime Version"]) is int
    assert all(type(whole[key]) is str for key in ("Driver Version", "git_version"))
    first, both, missing = whole["testcases"]
    assert {case["status"].lower() for case in (first, both)} == {"passed"}
    assert first["bandwidth_matrix"] == [["N/A", "30"], ["100", "N/A"]]
    assert [float(value) for row in both["bandwidth_matrix"] for value in row if value != "N/A"]
    assert len(both["bandwidth_matrix"]) == 6, "three matrices, one after the other"
    figures = [first[name] for name in ("sum", "min", "max", "average")]
    assert figures == [pytest.approx(value) for value in (130, 30, 100, 65)]
    assert first["bandwidth_description"] == "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)"
    assert missing == {"name": "99", "status": "ERROR"}, "which DCGM reports as an error"
    assert whole["GPU Device list"] == [
        "0: Made (00000000:10:00): (made)",
        "1: Made (00000000:11:00): (made)",
    ]
    assert whole["version"] == "v0.10.0"


def test_waived_cases_are_no_failure(bench_copy: Any) -> None:
    name = "device_to_device_memcpy_read_ce"
    ended = bench_copy(host(1), name, "38", like_nvbandwidth=True)
    assert ended.failure is None
    why = "it needs two GPUs, and there is 1"
    assert f"\nWaived: {name}: {why}\nRunning device_local_copy.\n" in ended.text
    ended = bench_copy(host(1), name, like_nvbandwidth=True, json=True, output_file="-")
    assert json.loads(ended.text)["nvbandwidth"]["testcases"] == [
        {"name": name, "status": "Waived", "reason": why}
    ]


def test_wrong_data_is_an_error(bench_copy: Any) -> None:
    def spoil(source: str, target: str, array: np.ndarray[Any, Any]) -> None:
        if (source, target) == ("GPU 1", "GPU 0"):
            array[0] ^= 1

    ended = bench_copy(MadeHost(2, spoil=spoil), NAMES[0], like_nvbandwidth=True, json=True, output_file="-")
    assert isinstance(ended.failure, WrongResults)
    assert ended.failure.exit_code == Exit.BENCH_WRONG_RESULTS
    (case,) = json.loads(ended.text)["nvbandwidth"]["testcases"]
    assert case["status"] == "Error"
    assert "cell (0, 1)" in case["error"]


def test_options_have_nvbandwidths_meaning(bench_copy: Any) -> None:
    ended = bench_copy(host(), "0", like_nvbandwidth=True, perf=True, near=False, size=3 << 20, copies=1)
    assert "\n&&&& PERF host_to_device_memcpy_ce 100.00 +GB/s\n" in ended.text
    assert "NOTE: Buffers of 3 MiB are smaller" in ended.text
    assert [box.near - {True} for box in ended.boxes] == [{False}]
    ended = bench_copy(host(), "0", like_nvbandwidth=True)
    assert [box.near for box in ended.boxes] == [{True}]


def test_the_output_of_several_hosts_is_not_mixed(bench_copy: Any) -> None:
    ended = bench_copy(host(1), "0", like_nvbandwidth=True, ranks=2, hosts=["n1", "n2"], others=[host(1)])
    assert "nvbandwidth's output is of one host: got n1, n2. Try: meshrun bench copy" in str(ended.failure)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "-s 512M",
            "-s skips the check of the data and takes no value, but '512M' follows it. -b MIB is the size",
        ),
        ("-t 0 -m 3", "-m reports the mean and takes no value, but '3' follows it"),
        ("-b 512M", "a buffer's size is a number of MiB: got '512M', expected for example -b 512"),
        ("-b 0", "a number of MiB: got '0'"),
        ("-i 0", "0 is not in the range"),
        ("--loopCount 201", "201 is not in the range"),
        ("-n 3", "No such option '-n': -i N is the number of samples"),
        ("--buffer-size 512M", "-b MIB is the size of a buffer"),
        ("--device cpu", "meshrun bench copy --device cpu measures host memory"),
        ("-p nothing", "no test case begins with 'nothing'"),
        ("-t 0 -p host", "both testcase and testcasePrefix"),
        ("host_to_device_memcpy_ce", "unexpected extra argument"),
        ("-t", "requires an argument"),
    ],
)
def test_options_that_mean_something_else(words: str, told: str) -> None:
    done = typed("nvbandwidth", *words.split())
    assert (done.returncode, done.stdout) == (6, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words", ["-b 64", "--bufferSize=64", "-i 5", "-j", "--disableAffinity", "--useMean", "-l"]
)
def test_bench_copy_names_the_command_with_nvbandwidths_options(words: str) -> None:
    done = typed("bench", "copy", *words.split())
    assert done.returncode == 6
    assert re.match(r"meshrun: No such option '\S+': it is nvbandwidth's", done.stderr)
    assert "meshrun nvbandwidth" in done.stderr


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("-t 0 34 -b 64", ["0", "34"]),
        (
            "--testcase host_to_device_memcpy_ce 1 --skipVerification -t 2",
            ["host_to_device_memcpy_ce", "1", "2"],
        ),
        (
            "-p device_local host_device_l -j",
            [
                "host_device_latency_sm",
                *(case.name for case in CASES if case.name.startswith("device_local")),
            ],
        ),
        ("--bufferSize 64 --testcase 3 --disableAffinity --useMean --testSamples 3", ["3"]),
        ("-j -v -t 0 -t 1", ["0", "1"]),
        ("", [case.name for case in CASES]),
    ],
)
def test_several_values_of_an_option(monkeypatch: pytest.MonkeyPatch, words: str, names: list[str]) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        "meshrun.jobs.bench.nvbandwidth.cli.run_on_ranks", lambda *all_of: asked.append(all_of[1]) or 0
    )
    assert typed("nvbandwidth", *words.split()).returncode == 0
    (options,) = asked
    assert list(options.names) == names
    assert options.size == (64 if "64" in words else 512) << 20
    assert (options.check, options.near) == ("Verif" not in words, "Aff" not in words)
    assert options.output_file == ("-" if "-j" in words else None)
