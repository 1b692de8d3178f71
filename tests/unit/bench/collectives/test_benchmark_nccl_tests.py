"""The side-by-side scripts in benchmarks/: their inputs, results and refusals.

The stand-ins are programs that print tables in nccl-tests' layout: times are 10 us on a first run and 1 us
more each run, stretched for the one that plays meshrun.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"

HEADER = """\
# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid   4711 on    gpuhost device  0 [0000:18:00] NVIDIA H200
#  Rank  1 Group  0 Pid   4712 on    gpuhost device  1 [0000:2a:00] NVIDIA H200
# libnccl: /opt/site/lib/libnccl.so.2 2.28.9
#
"""
GROUP = "     time   algbw   busbw  #wrong"
UNITS = "     (us)  (GB/s)  (GB/s)        "
HEADER += f"#{'out-of-place':>73}{'in-place':>31}          \n"
HEADER += f"#       size         count      type   redop    root{GROUP}{GROUP} \n"
HEADER += f"#        (B)    (elements)                          {UNITS}{UNITS} \n"
FOOTER = """\
# Out of bounds values : 0 OK
# Collective test concluded: all_reduce_perf
"""


def line(size: int, out: str, within: str, wrong: str = "0", wrong_within: str = "0") -> str:
    first = f"{size:12}  {size // 4:12}  {'float':>8}  {'sum':>6}  {-1:6}"
    return (
        f"{first}  {out:>7}  {'0.00':>6}  {'1e+03':>6}  {wrong:>6}"
        f"  {within:>7}  {'0.00':>6}  {'12.34':>6}  {wrong_within:>6}\n"
    )


@pytest.fixture
def side(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("side_by_side", monkeypatch)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("nccl_tests", monkeypatch)


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a script of benchmarks/ so that it finds its neighbours."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(name)


def test_rows_are_read_and_other_lines_are_passed_over(side: ModuleType) -> None:
    text = (
        HEADER
        + "NCCL version 2.28.9+cuda13.0\n"
        + line(0, "0.15", "0.14")
        + line(1024, "12.34", "23456.7", wrong_within="N/A")
        + line(8 << 30, "1.2e+06", "2500000")
        + FOOTER
    )
    rows = side.rows_of("it", text)
    assert [row.what for row in rows] == [(0, 0, "float"), (1024, 256, "float"), (8 << 30, 2 << 30, "float")]
    assert [row.microseconds for row in rows] == [(0.15, 0.14), (12.34, 23456.7), (1.2e6, 2.5e6)]
    assert [row.wrong for row in rows] == [(0, 0), (0, None), (0, 0)]


@pytest.mark.parametrize("wrong", [("2", "0"), ("0", "1e+06")])
def test_wrong_values_are_refused(side: ModuleType, wrong: tuple[str, str]) -> None:
    with pytest.raises(side.Failed, match=r"meshrun found wrong values at sizes \[16\]"):
        side.rows_of("meshrun", HEADER + line(8, "1.00", "1.00") + line(16, "1.00", "1.00", *wrong))


def test_a_table_without_rows_is_refused(side: ModuleType) -> None:
    with pytest.raises(side.Failed, match="meshrun printed no row"):
        side.rows_of("meshrun", HEADER + FOOTER)


def test_the_header_is_kept_without_host_process_and_paths(side: ModuleType) -> None:
    kept = side.header_of(HEADER + line(8, "1.00", "1.00") + FOOTER)
    assert kept[0] == "# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809"
    assert kept[4] == "#  Rank  0 Group  0 Pid - on - device  0 [0000:18:00] NVIDIA H200"
    assert kept[6] == "# libnccl: libnccl.so.2 2.28.9"
    assert not re.search(r"gpuhost|471[12]|/opt|concluded", "\n".join(kept))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/usr/bin/mpirun", "mpirun"),
        ("a (GB/s) N/A 1/2 https://x.org/y", "a (GB/s) N/A 1/2 https://x.org/y"),
        ("PATH=/a/b:/c/d '/e/f' /g", "PATH=d 'f' g"),
    ],
)
def test_only_absolute_paths_are_cut(side: ModuleType, text: str, left: str) -> None:
    assert side.scrubbed(text) == left


def rounds_of(side: ModuleType, *times: tuple[str, str]) -> list[list[Any]]:
    """One size of 0, one of 1 MiB; a pair of times each round."""
    return [side.rows_of("it", line(0, "0.01", "0.00") + line(1 << 20, out, within)) for out, within in times]


def test_ratios_are_of_medians_and_a_size_of_0_has_none(script: ModuleType, side: ModuleType) -> None:
    rounds = {
        "meshrun": rounds_of(side, ("11.00", "5.00"), ("90.00", "6.00"), ("12.00", "7.00")),
        "nccl-tests": rounds_of(side, ("10.00", "8.00"), ("1.00", "8.00"), ("20.00", "9.00")),
    }
    nothing, nothing_within, out, within = script.compare(rounds)
    assert (nothing["ratio"], nothing_within["ratio"]) == (None, None)
    assert out["meshrun"] == {"median": 12, "min": 11, "max": 90}
    assert out["nccl-tests"] == {"median": 10, "min": 1, "max": 20}
    assert (out["size"], out["placement"], out["ratio"]) == (1 << 20, "out-of-place", 1.2)
    assert (within["placement"], within["ratio"]) == ("in-place", 0.75)


def test_the_summary_parts_at_one_mebibyte(script: ModuleType) -> None:
    sizes = [(8, 1.5), (4096, 1.1), ((1 << 20) - 4, 1.2), (1 << 20, 0.9), (2 << 20, 1.0), (0, None)]
    summary = script.summary_of([{"size": size, "ratio": ratio} for size, ratio in sizes])
    assert summary == {
        ">= 1 MiB": {"median": 0.95, "min": 0.9, "max": 1.0},
        "< 1 MiB": {"median": 1.2, "min": 1.1, "max": 1.5},
    }


def test_nothing_measured_makes_an_empty_summary(script: ModuleType) -> None:
    assert script.summary_of(script.compare({"meshrun": [], "nccl-tests": []})) == {}


STAND_IN = """\
import os, sys, time
from pathlib import Path
log = Path(os.environ["STAND_IN_LOG"])
with log.open("a") as file:
    file.write(f"{NAME} {os.environ.get('LD_LIBRARY_PATH')} {' '.join(sys.argv[1:])}\\n")
before = [line.split()[0] for line in log.read_text().splitlines()].count(NAME) - 1
BODY
print(HEADER, end="")
for size in (0, 8, 1 << 20):
    print(ROW.format(size, size // 4, 10.0 * STRETCH + before, size / 1e6 + 10.0))
print("# Out of bounds values : 0 OK")
"""
ROW = (
    "{0:12d}  {1:12d}     float     sum      -1  {2:7.2f}    0.00    0.00       0"
    "  {3:7.2f}    0.00    0.00     N/A"
)


def stand_in(
    path: Path, name: str, stretch: float = 1.0, body: str = "", library: str = "22809", row: str = ROW
) -> None:
    """A program at `path` that logs its call under `name` and prints a table."""
    header = HEADER.replace("nccl-library=22809", f"nccl-library={library}")
    constants = f"NAME, STRETCH, ROW = {name!r}, {stretch}, {row!r}\nHEADER = {header!r}\n"
    path.write_text(f"#!{sys.executable}\n{constants}{STAND_IN.replace('BODY', body)}")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with nvidia-smi for two GPUs, a launcher, and both programs for two operations."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nprintf 'NVIDIA H200, 580.1.2\\nNVIDIA H200, 580.1.2\\n'\n")
    launch = tmp_path / "launch"
    launch.write_text('#!/bin/sh\n[ "$1" = -np ] && [ "$2" = 2 ] || exit 9\nshift 2\nexec "$@"\n')
    for program in (smi, launch):
        program.chmod(0o755)
    stand_in(tmp_path / "meshrun", "ours", 1.5)
    for operation in ("all_reduce", "sendrecv"):
        stand_in(tmp_path / f"{operation}_perf", operation)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/site/lib")
    monkeypatch.setenv("NCCL_TOPO_FILE", "/site/etc/topology.xml")
    return tmp_path


def run(
    machine: Path, *words: str, ops: tuple[str, ...] = ("all_reduce",)
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        BENCHMARKS / "nccl_tests.py",
        "--nccl-tests",
        machine,
        "--json",
        machine / "out",
    ]
    command += ["--meshrun", machine / "meshrun", "--launcher", f"{machine}/launch -np {{ranks}}"]
    return subprocess.run([*command, *words, "--ops", *ops], capture_output=True, text=True, check=False)


def log(machine: Path) -> list[str]:
    return (machine / "log").read_text().splitlines()


def test_both_programs_take_turns_with_the_same_options_and_library(machine: Path) -> None:
    done = run(machine, "--rounds", "3", "-e", "1M", "--graph", "-n", "7", "--libnccl", str(machine))
    assert done.returncode == 0, done.stderr
    order = [call.split()[0] for call in log(machine)]
    assert order == ["ours", "all_reduce", "all_reduce", "ours", "ours", "all_reduce"]
    options = "-b 8 -e 1M -f 2 -G 1 -n 7"
    assert set(log(machine)) == {
        f"ours {machine}:/site/lib bench all_reduce {options}",
        f"all_reduce {machine}:/site/lib {options}",
    }


def test_the_record_holds_every_time_and_no_trace_of_the_machine(machine: Path) -> None:
    done = run(machine, "--rounds", "3")
    assert done.returncode == 0, done.stderr
    text = (machine / "out").read_text()
    assert not re.search(r"/site|/opt|gpuhost|471[12]", text)
    assert str(machine) not in text
    record = json.loads(text)
    assert (record["gpus"], record["driver"]) == (["NVIDIA H200"] * 2, ["580.1.2"])
    assert record["environment"] == {"NCCL_TOPO_FILE": "topology.xml"}
    found = record["operations"]["all_reduce"]
    assert found["rounds"] == 3
    assert found["failure"] is None
    assert found["commands"]["nccl-tests"] == "launch -np 2 all_reduce_perf -b 8 -e 8G -f 2"
    assert found["commands"]["meshrun"] == "launch -np 2 meshrun bench all_reduce -b 8 -e 8G -f 2"
    assert "nccl-library=22809" in found["headers"]["meshrun"][0]
    assert found["microseconds"]["meshrun"]["out-of-place"] == [[15 + late] * 3 for late in range(3)]
    assert found["microseconds"]["nccl-tests"]["in-place"] == [[10, 10, 11.05]] * 3
    # Medians are those of the second of three rounds: 16 over 11 us; in place both are the same.
    assert found["summary"]["< 1 MiB"] == pytest.approx(
        {"median": (16 / 11 + 1) / 2, "min": 1, "max": 16 / 11}
    )
    assert {row["size"]: row["ratio"] for row in found["sizes"] if row["placement"] == "out-of-place"} == {
        0: None,
        8: pytest.approx(16 / 11),
        1 << 20: pytest.approx(16 / 11),
    }


def test_each_cycle_of_a_program_counts_as_a_round(machine: Path) -> None:
    """A stand-in's -N: it prints its sizes once more, 2 us slower."""
    again = "if '-N' in sys.argv:\n    sizes, slower = (0, 8, 1 << 20) * 2, [0] * 3 + [2] * 3\n"
    rows = (
        "for size, more in zip(sizes, slower):\n    print(ROW.format(size, size // 4, 10.0 + more, 10.0))\n"
    )
    for program in ("meshrun", "all_reduce_perf"):
        stand_in(machine / program, program, body=f'print(HEADER, end="")\n{again}{rows}sys.exit()')
    done = run(machine, "--rounds", "2", "--cycles", "2")
    assert done.returncode == 0, done.stderr
    assert log(machine)[0].endswith("-b 8 -e 8G -f 2 -N 2")
    found = json.loads((machine / "out").read_text())["operations"]["all_reduce"]
    assert found["rounds"] == 4
    assert found["microseconds"]["meshrun"]["out-of-place"] == [[10] * 3, [12] * 3] * 2


def test_the_summary_is_printed_last(machine: Path) -> None:
    done = run(machine, "--rounds", "1", ops=("all_reduce", "sendrecv"))
    assert done.returncode == 0, done.stderr
    last = [line.split() for line in done.stdout.splitlines()[-2:]]
    assert last == [
        ["all_reduce", "1", *("1.250", "1.000", "1.500") * 2],
        ["sendrecv", "1", *("1.300", "1.000", "1.600") * 2],
    ]
    assert "16.00 (16.00 .. 16.00)" in done.stdout


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"library": "22705"}, "different versions of NCCL: {'meshrun': ['22809'], 'nccl-tests': ['22705']}"),
        (
            {"body": "sys.exit('no device at /dev/gpu0')"},
            "nccl-tests ended with exit code 1: no device at gpu0",
        ),
        ({"row": "nothing"}, "nccl-tests printed no row"),
        ({"row": ROW.replace("float", " half")}, "got (0, 0, 'float'), expected (0, 0, 'half')"),
        (
            {"row": ROW.replace("0.00       0  {3", "0.00       5  {3")},
            "found wrong values at sizes [0, 8, 1048576]",
        ),
    ],
)
def test_what_cannot_be_compared_fails_alone(machine: Path, change: dict[str, str], sentence: str) -> None:
    stand_in(machine / "all_reduce_perf", "all_reduce", **change)
    done = run(machine, "--rounds", "2", ops=("all_reduce", "sendrecv"))
    assert done.returncode == 1
    assert sentence in done.stderr
    found = json.loads((machine / "out").read_text())["operations"]
    assert sentence in found["all_reduce"]["failure"]
    assert (found["all_reduce"]["rounds"], found["sendrecv"]["rounds"]) == (0, 2)
    assert len([call for call in log(machine) if call.startswith("all_reduce")]) == 1


def test_a_program_that_is_missing_is_named(machine: Path) -> None:
    done = run(machine, "--launcher", "no-such-launcher -np {ranks}")
    assert done.returncode == 1
    assert "all_reduce: meshrun did not start" in done.stderr


def test_no_round_begins_that_would_not_fit(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rounds of 2 s are 4 of 5."""
    now, ends = [100.0], []

    def take_turn(turn: Any, number: int, cycles: int, environment: Any, end: float) -> None:
        ends.append(end)
        now[0] += 2

    monkeypatch.setattr(script, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(script, "take_turn", take_turn)
    assert len(list(script.take_turns({"all_reduce": script.Turns({})}, 9, 1, 5.0, {}))) == 2
    assert ends == [105.0] * 2
    assert "out of time before round 3 of all_reduce" in capsys.readouterr().err


def test_without_time_nothing_is_measured(machine: Path) -> None:
    done = run(machine, "--budget-seconds", "-1")
    assert done.returncode == 0, done.stderr
    assert "out of time before round 1 of all_reduce" in done.stderr
    assert not (machine / "log").exists()


def test_a_program_that_hangs_is_ended_with_its_children(
    side: ModuleType, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is up when there are two of it."""
    body = f"os.fork(); Path({str(machine)!r}, str(os.getpid())).touch(); time.sleep(100)"
    stand_in(machine / "all_reduce_perf", "all_reduce", body=body)

    def children() -> list[int]:
        return [int(path.name) for path in machine.iterdir() if path.name.isdigit()]

    class Hanging(subprocess.Popen):  # type: ignore[type-arg]
        def communicate(self, input: Any = None, timeout: float | None = None) -> Any:
            wait_for(lambda: len(children()) == 2)
            return super().communicate(input, 0 if timeout == 7 else timeout)

    monkeypatch.setattr(subprocess, "Popen", Hanging)
    with pytest.raises(side.Failed, match="nccl-tests was stopped: not done in the 7 s that were left"):
        side.output_of("nccl-tests", [str(machine / "all_reduce_perf")], os.environ, 7.0)
    wait_for(lambda: not any(map(alive, children())))


def wait_for(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def alive(process: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_without_nvidia_smi_there_is_no_record(machine: Path) -> None:
    (machine / "nvidia-smi").write_text("#!/bin/sh\necho no driver >&2\nexit 9\n")
    done = run(machine)
    assert done.returncode == 1
    assert "nvidia-smi ended with exit code 9: no driver" in done.stderr
    assert not (machine / "log").exists()


def test_the_c_loop_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    host = load("host_allreduce", monkeypatch)
    assert host.loop_table("1048576 49.55\n2097152 74.35\n") == {1 << 20: 49.55, 2 << 20: 74.35}


def test_host_ratios_take_the_out_of_place_times(monkeypatch: pytest.MonkeyPatch) -> None:
    host = load("host_allreduce", monkeypatch)
    ours = [
        host.table(HEADER + line(1 << 20, time, "99.00", "N/A", "N/A")) for time in ("3.00", "5.00", "4.00")
    ]
    (row,) = host.compare({"meshrun": ours, "C loop": [{1 << 20: time} for time in (5.0, 5.0, 6.0)]})
    assert (row["size"], row["ratio"]) == (1 << 20, 0.8)
    assert row["meshrun"] == {"median": 4, "min": 3, "max": 5}


def test_hosts_with_different_sizes_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    host = load("host_allreduce", monkeypatch)
    with pytest.raises(host.Failed, match="different sizes"):
        host.compare({"meshrun": [{8: 1.0}], "C loop": [{8: 1.0, 16: 1.0}]})
