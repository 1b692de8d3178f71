"""`meshrun bench copy` as a user types it, on a machine without a GPU."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typed import typed

SMALL = ("-s", "64K", "--copies", "2", "--device", "cpu")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return typed("bench", "copy", *words)

    return command


def test_a_cpu_measures_its_own_memory(run: Run) -> None:
    ended = run(*SMALL, "-J", "copies.json", "-n", "2")
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[0] == "# 65,536 bytes a buffer, 2 copies a sample, median of 2 samples, data checked"
    assert "Running host_local_copy." in lines
    assert [line.split()[1] for line in lines if line.startswith("SUM")] == [
        "host_local_copy_alone",
        "host_local_copy_together",
    ]
    whole = json.loads(Path("copies.json").read_text())
    (case,) = whole["hosts"][0]["testcases"]
    assert (case["index"], case["status"], len(case["cells"][0]["samples"])) == (None, "Passed", 2)


def test_other_cases_need_a_gpu(run: Run) -> None:
    ended = run(*SMALL, "-t", "device_to_device_memcpy_read_ce")
    assert ended.returncode == 3
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("meshrun: device_to_device_memcpy_read_ce needs a GPU, and this is a CPU. Try: ")
    ended = run(*SMALL, "-p", "host_to")
    assert ended.returncode == 3
    assert "host_to_device_memcpy_ce (and 7 more) needs a GPU" in ended.stderr


def test_the_list_opens_nothing(run: Run) -> None:
    ended = run("--list")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert " 0, host_to_device_memcpy_ce: " in ended.stdout
    assert "38, device_local_copy: " in ended.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-t", "device_local_cpoy"), "did you mean device_local_copy"),
        (("-t", "99"), "numbered 0 to 43, not 99"),
        (("-p", "nothing"), "begins with 'nothing'"),
        (("-t", "0", "-p", "host"), "-t and -p cannot be combined"),
        (("-s", "0"), "a multiple of 16 bytes, at least 16"),
        (("-s", "100"), "a multiple of 16 bytes"),
        (("-s", "much"), "much"),
        (("--copies", "0"), "--copies"),
        (("--copies", "201"), "--copies"),
        (("-n", "0"), "-n"),
        (("-c", "2"), "-c"),
        (("host_to_device_memcpy_ce",), "unexpected extra argument"),
    ],
)
def test_mistakes_end_at_once_with_nccl_tests_status(words: tuple[str, ...], text: str) -> None:
    ended = typed("bench", "copy", *words)
    assert ended.returncode == 6
    assert text in ended.stderr
    assert ended.stdout == ""


@pytest.mark.parametrize(
    "words", [("-J", "copies.txt"), ("--plot", "copies.pdf"), ("-J", "no/such/folder.json")]
)
def test_outputs_that_cannot_be_are_refused_first(run: Run, words: tuple[str, ...]) -> None:
    ended = run(*SMALL, *words)
    assert ended.returncode == 6
    assert ended.stdout == ""
