"""`meshrun bench copy` on GPUs: its kernels to the bit, all cases, broken kernels that the check finds."""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshrun
import meshrun.jobs.kernels
from meshrun.jobs.bench.copy import latency
from meshrun.jobs.bench.copy.cases import CASES
from meshrun.jobs.bench.copy.engines import SMALL
from meshrun.jobs.bench.copy.run import CopyOptions, run
from meshrun.jobs.bench.lessons.protocol import Context
from meshrun.jobs.measure import gate
from meshrun.jobs.measure.exit_codes import WrongResults
from meshrun.jobs.measure.timers import gated_event_seconds
from meshrun.launch.mpi.rank_command import PROGRAM
from meshrun.runner.device.raw.box import open_box
from meshrun.runner.errors import RunError

cupy = pytest.importorskip("cupy", reason="needs CuPy")
cuda = pytest.importorskip("meshrun.runner.device.cuda", reason="needs CuPy")

UNITS = (1, 31, 32, 33, 1023, 1025, 4097 * 129)  # of 16 bytes
GUARD = 64  # bytes behind the copied ones
POISON = 0xA5
Launch = Callable[..., None]


def random_bytes(units: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng().integers(0, 256, 16 * units + GUARD, dtype=np.uint8)


def addresses(*arrays: Any) -> tuple[np.uint64, ...]:
    return tuple(np.uint64(array.data.ptr) for array in arrays)


def check_streaming(launch: Launch) -> None:
    for blocks, threads, rounds in itertools.product((1, 3, 33), (1, 31, 512), (0, 1, 11, 12, 13, 25)):
        nbytes = 16 * blocks * threads * rounds
        source = random_bytes(blocks * threads * rounds)
        target = cupy.full(source.size, POISON, cupy.uint8)
        held = cupy.asarray(source)
        launch((blocks,), (threads,), (*addresses(target, held), np.uint64(rounds), np.uint32(2)))
        np.testing.assert_array_equal(target[:nbytes].get(), source[:nbytes])
        assert (target[nbytes:] == POISON).all()


def check_small(launch: Launch) -> None:
    for units in UNITS:
        source = random_bytes(units)
        target = cupy.full(source.size, POISON, cupy.uint8)
        held = cupy.asarray(source)
        launch(*grid(units), (*addresses(target, held), np.uint64(units), np.uint32(3)))
        np.testing.assert_array_equal(target[: 16 * units].get(), source[: 16 * units])
        assert (target[16 * units :] == POISON).all()


def check_split(launch: Launch) -> None:
    for units in UNITS:
        one, other = random_bytes(units), random_bytes(units)
        target, source = cupy.asarray(one), cupy.asarray(other)
        launch(*grid(units), (*addresses(target, source), np.uint64(units), np.uint32(3)))
        odd = np.arange(16 * units) // 512 % 2 == 1
        both = np.where(odd, other[:-GUARD], one[:-GUARD])
        for array, before in ((target, one), (source, other)):
            np.testing.assert_array_equal(array[:-GUARD].get(), both)
            np.testing.assert_array_equal(array[-GUARD:].get(), before[-GUARD:])


def check_chase(launch: Launch) -> None:
    memory = cupy.empty(latency.CHAIN // latency.NODE, cupy.uint64)
    (address,) = addresses(memory)
    memory.set(latency.chain(int(address)))
    last = cupy.zeros(7, cupy.uint64)
    for steps, block in ((1, 0), (7575, 6), (16384, 3), (16385, 5)):
        last[...] = 0
        launch((7,), (1,), (address, np.uint32(steps), np.uint32(block), *addresses(last)))
        expected = np.zeros(7, np.uint64)
        expected[block] = latency.end(int(address), steps)
        np.testing.assert_array_equal(last.get(), expected)


def grid(units: int) -> tuple[tuple[int], tuple[int]]:
    threads = min(units, 1024)
    return (math.ceil(units / threads),), (threads,)


CHECKS = {
    "copy_streaming": check_streaming,
    "copy_small": check_small,
    "copy_split": check_split,
    "chase": check_chase,
}
# Kernel, a line of it, what is there instead, a thing that such a kernel gets wrong.
BROKEN = [
    ("copy_streaming", "for (; left > 0; --left", "for (; left > 1; --left", "leaves the last round out"),
    (
        "copy_streaming",
        "from += threads) held[i] = *from;",
        "from += 0) held[i] = *from;",
        "reads one unit again",
    ),
    (
        "copy_streaming",
        "uint4* to = target + first;",
        "uint4* to = target + first + 1;",
        "writes behind the end",
    ),
    ("copy_small", "if (at >= units) return;", "if (at + 1 >= units) return;", "leaves the last unit out"),
    ("copy_small", "if (at >= units) return;", "if (at > units) return;", "writes one unit too many"),
    ("copy_split", "at / 32 % 2", "at / 32 % 2 == 0", "copies the wrong pieces"),
    ("copy_split", "(odd ? source : target) + at", "source + at", "does not copy back"),
    ("chase", "step < steps", "step + 1 < steps", "takes a step too few"),
]


@pytest.mark.parametrize("name", CHECKS)
def test_a_kernel_moves_every_byte(name: str) -> None:
    CHECKS[name](meshrun.jobs.kernels.load(f"{name}.cu", name))


@pytest.mark.parametrize(("name", "line", "instead", "what"), BROKEN, ids=[what for *_, what in BROKEN])
def test_a_broken_kernel_is_caught(
    broken: Callable[..., Launch], name: str, line: str, instead: str, what: str
) -> None:
    run = broken(f"{name}.cu", name, line, instead)
    with pytest.raises(AssertionError):
        CHECKS[name](run)


def test_a_gate_holds_until_it_is_opened() -> None:
    box = open_box()
    held, stream = gate.Gate(box, 0), box.stream(0)
    try:
        held.hold(0, stream)  # loaded, and open
        box.synchronize(stream)
        with held.closed():
            begin = box.mark(stream)
            held.hold(0, stream)
            end = box.mark(stream)
            time.sleep(0.2)
            assert not stream.done
        box.synchronize(stream)
        assert box.elapsed(begin, end) > 0.1
        held.check()
    finally:
        box.close()


def test_a_gate_that_nobody_opens_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "TIMEOUT", 10**7)
    box = open_box()
    held, stream = gate.Gate(box, 0), box.stream(0)
    try:
        held.hold(0, stream)
        box.synchronize(stream)
        with held.closed():
            held.hold(0, stream)
            box.synchronize(stream)
        with pytest.raises(RunError, match="opened by itself"):
            held.check()
    finally:
        box.close()


def test_calls_are_in_no_time(context: Callable[..., Context]) -> None:
    """A copy of 16 bytes takes the GPU less than this host takes to queue it."""
    made = context()
    box = made.required_box
    source, target = (box.allocate("device", 16, 0) for _ in range(2))
    stream = box.stream(0)

    def issue() -> None:
        time.sleep(1e-4)
        box.copy(target, source, 16, stream)

    assert 0 < gated_event_seconds(box, 0, stream, issue, made.median) < 1e-4


def measured(tmp_path: Path, *names: str, **words: Any) -> Any:
    """The recorded host of a run in this process."""
    path = tmp_path / "copies.json"
    asked = CopyOptions(
        names=names, output_file=str(path), **{"size": 1 << 24, "copies": 2, "samples": 1, **words}
    )
    ending: Any = SimpleNamespace()
    run(meshrun.open_world("cuda"), ending, asked, SimpleNamespace(colour=False, columns=None, words=()))
    (host,) = json.loads(path.read_text())["hosts"]
    return host


@pytest.mark.parametrize("size", [1 << 16, 48, (64 << 20) + 4096], ids=["small", "tiny", "streaming"])
def test_all_cases_of_one_process(tmp_path: Path, size: int) -> None:
    host = measured(tmp_path, size=size)
    assert len(host["gpus"]) == cuda.count()
    assert [case["name"] for case in host["testcases"]] == [case.name for case in CASES]
    for case in host["testcases"]:
        assert case["mismatches"] == []
        if cuda.count() == 1:
            assert (case["status"] == "Waived") is (case["path"] == "peer")
        for cell in case["cells"]:
            if cell["samples"]:
                assert all(value > 0 for values in cell["samples"] for value in values)


@pytest.mark.parametrize(
    ("kernel", "case"),
    [
        ("copy_streaming", "host_to_device_memcpy_sm"),
        ("copy_small", "device_to_host_memcpy_sm"),
        ("copy_split", "host_to_device_bidirectional_memcpy_sm"),
    ],
)
def test_a_case_with_a_broken_kernel_is_wrong(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[..., Launch],
    kernel: str,
    case: str,
) -> None:
    load = meshrun.jobs.kernels.load
    name, line, instead, _ = next(one for one in BROKEN if one[0] == kernel)

    def loaded(file: str, instance: str, options: tuple[str, ...] = ()) -> Launch:
        return (
            broken(f"{name}.cu", name, line, instead) if instance == kernel else load(file, instance, options)
        )

    monkeypatch.setattr(meshrun.jobs.kernels, "load", loaded)
    size = 1 << 16
    if kernel == "copy_streaming":  # enough for it, and a round more than a number of 12, for its last loop
        whole = 16 * 512 * processors()
        size = (12 * math.ceil(SMALL / (12 * whole)) + 1) * whole
    with pytest.raises(WrongResults, match=rf"{case}, cell \(0, 0\), sample 0: .* byte \d+ of the "):
        measured(tmp_path, case, size=size)
    (host,) = json.loads((tmp_path / "copies.json").read_text())["hosts"]
    assert host["testcases"][0]["status"] == "Error"


def processors() -> int:
    found: int = cupy.cuda.Device(0).attributes["MultiProcessorCount"]
    return found


def test_a_process_a_gpu_measures_the_same_cells(tmp_path: Path) -> None:
    gpus = min(cuda.count(), 4)
    if gpus < 2:
        pytest.skip("needs two GPUs")
    path = tmp_path / "copies.json"
    words = ["-s", "64M", "--copies", "2", "-n", "1", "-J", str(path)]
    command = [*PROGRAM, "-n", str(gpus), "bench", "copy", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stderr
    assert not re.search(r"cell \(\d+, \d+\):", ended.stdout), ended.stdout
    (host,) = json.loads(path.read_text())["hosts"]
    assert [gpu["rank_of_host"] for gpu in host["gpus"]] == list(range(gpus))
    assert {case["status"] for case in host["testcases"]} == {"Passed"}
    for case in host["testcases"]:
        filled = sum(value is not None for row in case["matrices"][0]["values"] for value in row)
        pairs = case["name"].startswith("device_to_device")
        assert filled == (gpus * (gpus - 1) if pairs else gpus)


def test_nvbandwidths_output() -> None:
    """Text and JSON of the same cases, with versions of CUDA and of the driver."""
    cases = ["0", "34", "32"] if cuda.count() > 1 else ["0"]  # those between GPUs are waived on one
    words = [*PROGRAM, "nvbandwidth", "-b", "64", "-t", *cases]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"^CUDA Runtime Version: \d{5}$", ended.stdout, re.MULTILINE)
    assert re.search(r"^Driver Version: \d+\.\d+", ended.stdout, re.MULTILINE)
    sums = dict(re.findall(r"^SUM (\w+) (\d+\.\d+)$", ended.stdout, re.MULTILINE))
    ended = subprocess.run([*words, "-j", "-v"], capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stderr
    whole = json.loads(ended.stdout)["nvbandwidth"]
    assert whole["Driver Version"] != "unknown"
    for case in whole["testcases"]:
        assert case["status"] == "Passed"
        assert case["sum"] == pytest.approx(float(sums[case["name"]]), rel=0.5)
        assert 0 < case["min"] <= case["average"] <= case["max"]
