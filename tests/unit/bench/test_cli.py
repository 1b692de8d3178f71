"""`meshrun bench` as a user types it: one rank, no MPI; output, files and exit status."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
from typed import LAUNCHERS, typed

from meshrun.jobs.bench.collectives.config import SweepSettings
from meshrun.jobs.bench.collectives.output.nccl_tests_json import combined, record
from meshrun.jobs.bench.collectives.results import Footer, Header, PlacementResult, ResultRow
from meshrun.jobs.bench.collectives.specs import SPECS
from meshrun.launch.cli.main import main
from meshrun.launch.mpi.rank_command import PROGRAM
from meshrun.runner.comm.collectives.api import DATATYPES, OPERATIONS
from meshrun.runner.device.cpu import CpuBackend

DEADLOCK = 60  # seconds; nothing here takes a tenth of it
SMALL = ("-b", "8", "-e", "2K", "-f", "4", "-n", "2", "--device", "cpu")
SIZES = [8, 32, 128, 512, 2048]
COLUMNS = 90
FIGURE = r" +\S+"
# size, count, type, redop (blank for hypercube), root, then twice: time, algbw, busbw, #wrong
ROW = re.compile(rf" *(\d+) +(\d+) +(\S+) +(?:(\S+) +)?(-?\d+)((?:{FIGURE}){{4}})((?:{FIGURE}){{4}})")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `meshrun bench` in an empty folder, its output piped."""
    for name in (*LAUNCHERS, *(name for name in os.environ if name.startswith("NCCL_"))):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def command(*words: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return typed("bench", *words, environment=changes)

    return command


def rows_of(text: str) -> list[tuple[str, ...]]:
    """The table's rows; every other line must be a comment or blank."""
    found = []
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        row = ROW.fullmatch(line)
        assert row, line
        found.append(tuple(row.groups()))
    return found


def sizes_of(text: str) -> list[int]:
    return [int(row[0]) for row in rows_of(text)]


@pytest.mark.parametrize("operation", SPECS)
def test_every_operation_runs_on_one_rank(run: Run, operation: str) -> None:
    ended = run(operation, *SMALL)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("# nccl-tests version 2.19.6 ")
    assert lines[1] == f"# Collective test starting: {operation}_perf"
    assert "# backend: one process, host memory" in lines
    assert f"# Collective test concluded: {operation}_perf" in lines
    assert "# Out of bounds values : 0 OK" in lines
    assert "\x1b" not in ended.stdout
    assert len(rows_of(ended.stdout)) == len(SIZES)
    wrong = ["0", "0" if SPECS[operation].in_place else "N/A"]
    assert [[row[n].split()[3] for n in (5, 6)] for row in rows_of(ended.stdout)] == [wrong] * len(SIZES)


def test_all_operations_one_after_another(run: Run) -> None:
    ended = run("all", "-b", "64", "-e", "64", "-n", "1", "--device", "cpu", "-J", "out.json")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.findall(r"test starting: (\w+)_perf", ended.stdout) == list(SPECS)
    assert ended.stdout.count("# Writing JSON output to") == 1
    assert [path.name for path in Path().iterdir()] == ["out.json"]
    documents = json.loads(Path("out.json").read_text())["operations"]
    assert [*documents] == list(SPECS)
    for name, document in documents.items():
        assert document["version"] == 3
        assert document["meshrun"]["program"] == f"{name}_perf"
        assert [row["size"] for row in document["results"]] == [64]
        assert document["errors"] == []


def test_records_of_all_operations_are_compared_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("all.json").write_text(
        combined({"all_reduce": document("all_reduce", 1), "gather": document("gather", 1)})
    )
    Path("slow.json").write_text(
        combined({"all_reduce": document("all_reduce", 1), "gather": document("gather", 2)})
    )
    assert main(["bench", "compare", "all.json", "all.json"]) == 0
    assert main(["bench", "compare", "all.json", "slow.json"]) == 1
    assert "A: all.json, gather" in capsys.readouterr().out
    assert main(["bench", "plot", "all.json", "--to", "all.svg"]) == 0
    assert "all.json, gather, out of place" in Path("all.svg").read_text()
    assert ">Time and bandwidth by size: all.json<" in Path("all.svg").read_text()
    Path("one.json").write_text(document("all_reduce", 1))
    assert main(["bench", "compare", "all.json", "one.json"]) == 6
    assert (
        "the records are of different tests: got all_reduce, gather and a single one"
        in capsys.readouterr().err
    )
    assert main(["bench", "compare", "one.json", "all.json"]) == 6


def document(operation: str, microseconds: float) -> str:
    """The JSON of a run of one operation."""
    header = Header(f"{operation}_perf", 0, "MPI, host memory", ())
    cell = PlacementResult(microseconds * 1e-6, 0.0, 1.0, 1.0, 0)
    row = ResultRow(8, 2, "float", "sum", -1, cell, cell)
    return record(SweepSettings(), header, [row], Footer(0, 1.0), ["meshrun"], {}, 0.0, 1.0)


def test_types_reductions_and_cycles_are_rows(run: Run) -> None:
    ended = run("all_reduce", *SMALL, "-d", "all", "-o", "all", "-N", "2", "-c", "1")
    rows = rows_of(ended.stdout)
    assert ended.returncode == 0
    assert len(rows) == 12 * 6 * len(SIZES) * 2
    assert {row[2] for row in rows} == set(DATATYPES)
    assert {row[3] for row in rows} == {"sum", "prod", "max", "min", "avg", "mulsum"}
    assert [row[0] for row in rows[:10]] == [str(size) for size in 2 * SIZES]
    assert {row[n].split()[3] for row in rows for n in (5, 6)} == {"0"}


def test_without_checks_no_data_is_reported(run: Run) -> None:
    ended = run("all_reduce", *SMALL, "-c", "0", "-w", "0")
    assert ended.returncode == 0
    assert {row[n].split()[3] for row in rows_of(ended.stdout) for n in (5, 6)} == {"N/A"}


def test_more_columns_and_lines_only_with_options(run: Run) -> None:
    plain, wide, named = (run("all_reduce", *SMALL, *more) for more in ([], ["--wide"], ["--names"]))
    assert all(ended.returncode == 0 for ended in (plain, wide, named))
    assert "wire" not in plain.stdout
    assert "wire" in wide.stdout
    assert sizes_of(named.stdout) == sizes_of(plain.stdout) == SIZES
    assert "slowest: rank 0" in named.stdout
    assert "slowest" not in plain.stdout


def test_lines_go_to_a_file_that_can_be_written(run: Run) -> None:
    ended = run("all_reduce", *SMALL, "--json-lines", "-")
    assert (ended.returncode, ended.stdout, [*Path().iterdir()]) == (6, "", [])
    assert ended.stderr == (
        "meshrun: --json-lines writes a file: got -. Try: -J -, which is for standard output\n"
    )
    ended = run("all_reduce", *SMALL, "--csv", "-")
    assert (ended.returncode, ended.stderr.partition(":")[0]) == (6, "meshrun")
    assert "--csv writes a file: got -" in ended.stderr
    for option in ("--json-lines", "--csv"):
        ended = run("all_reduce", *SMALL, option, "/dev/full")
        assert ended.returncode == 1
        assert ended.stderr == "meshrun: cannot write /dev/full: No space left on device\n"


def test_the_csv_has_every_row_of_every_operation_once(run: Run) -> None:
    Path("out.csv").write_text("from an earlier run\n")
    ended = run("all", *SMALL, "--csv", "out.csv")
    assert (ended.returncode, ended.stderr) == (0, "")
    with open("out.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    programs = [f"{name}_perf" for name in OPERATIONS]
    assert [row["program"] for row in rows] == [name for name in programs for _ in SIZES]
    assert [int(row["size_bytes"]) for row in rows] == sizes_of(ended.stdout)
    assert all(float(row["in_place_time_us"]) > 0 for row in rows)
    assert {row["out_of_place_wrong"] for row in rows} == {"0"}


def test_the_record_and_the_lines(run: Run) -> None:
    words = ["all_reduce", *SMALL, "-J", "out.json", "--json-lines", "out.jsonl"]
    Path("out.jsonl").write_text("from an earlier run\n")
    ended = run(*words, NCCL_DEBUG="WARN", SECRET_TOKEN="hush", NCCL_API_KEY="hush")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "# Writing JSON output to out.json\n" in ended.stdout
    text = Path("out.json").read_text()
    record = json.loads(text)
    assert record["version"] == 3
    assert record["args"] == ["bench", *words]
    assert record["env"] == ["NCCL_DEBUG=WARN"]
    assert "hush" not in text
    assert record["errors"] == []
    assert record["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert [row["size"] for row in record["results"]] == SIZES
    assert {"time", "alg_bw", "bus_bw", "nwrong"} == record["results"][0]["out_of_place"].keys()
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [line["size"] for line in lines] == SIZES
    assert lines[0]["in_place"] == record["results"][0]["in_place"]


def test_a_record_is_never_overwritten(run: Run) -> None:
    for _ in range(3):
        assert run("all_reduce", *SMALL, "-J", "out.json").returncode == 0
    assert sorted(path.name for path in Path().iterdir()) == ["out.json", "out.json.0", "out.json.1"]
    for path in Path().iterdir():
        assert json.loads(path.read_text())["results"]


def test_sizes_beyond_memory_are_reduced_and_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuBackend, "free_memory", lambda self: 5 << 20)
    ended = run("all_reduce", "-b", "8", "-e", "102400G", "-f", "1000000000000", "-n", "1", "--device", "cpu")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "# Reducing maxBytes to 1048576 due to memory limitation\n" in ended.stdout
    assert " maxBytes 1048576 " in ended.stdout
    assert sizes_of(ended.stdout) == [8]


def test_too_slow_on_average_is_status_7(run: Run) -> None:
    """On one rank the busbw of all_reduce is 0, below any --min-busbw."""
    ended = run("all_reduce", *SMALL, NCCL_TESTS_MIN_BW="1e6")
    assert ended.returncode == 7
    assert re.search(r"^# Avg bus bandwidth    : 0 FAILED$", ended.stdout, re.M)
    assert ended.stderr.startswith("meshrun: all_reduce: average bus bandwidth 0 GB/s, below 0.9 of 1e+06")
    assert ended.stderr.count("\n") == 1
    ended = run("broadcast", *SMALL, "--min-busbw", "1e-9")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.search(r"^# Avg bus bandwidth    : \S+ OK$", ended.stdout, re.M)


def test_the_split_of_the_environment_applies(run: Run) -> None:
    ended = run("all_reduce", *SMALL, NCCL_TESTS_SPLIT="OR 5")
    assert ended.returncode == 0
    assert re.search(r"^#  Rank  0 Group  5 ", ended.stdout, re.M)


def test_records_are_compared(run: Run) -> None:
    assert run("broadcast", *SMALL, "-J", "a.json").returncode == 0
    record = json.loads(Path("a.json").read_text())
    for row in record["results"]:
        row["in_place"]["time"] *= 3
    Path("b.json").write_text(json.dumps(record))
    same, slower, within = (
        run("compare", *words)
        for words in (("a.json", "a.json"), ("a.json", "b.json"), ("a.json", "b.json", "--tolerance", "2.5"))
    )
    assert (same.returncode, same.stderr) == (0, "")
    assert (slower.returncode, slower.stderr) == (1, "")
    assert (within.returncode, within.stderr) == (0, "")
    worst = r"the worst is 3\.000 times A's, at \d+ B float none, root 0 in place"
    assert re.search(rf"^not ok: 5 of 10 values fail \(tolerance 5 %\); {worst}$", slower.stdout, re.M)


def test_text_and_record_of_one_run_are_the_same(run: Run) -> None:
    ended = run("broadcast", *SMALL, "-J", "a.json")
    Path("a.txt").write_text(ended.stdout)
    compared = run("compare", "a.json", "a.txt", "--tolerance", "0.1")
    assert compared.returncode == 0, compared.stdout


@pytest.mark.parametrize("name", ["out.html", "out.svg", "out.png"])
def test_plots(run: Run, name: str) -> None:
    pytest.importorskip("matplotlib")
    ended = run("broadcast", *SMALL, "--plot", name, "-J", "a.json")
    assert (ended.returncode, ended.stderr) == (0, "")
    drawn = Path(name).read_bytes()
    assert {".html": b"<!DOCTYPE html", ".svg": b"<svg", ".png": b"\x89PNG"}[Path(name).suffix] in drawn[
        :1000
    ]
    ended = run("plot", "a.json", "a.json", "--to", f"both-{name}")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert Path(f"both-{name}").stat().st_size > 1000


def test_scale_on_one_rank_shows_a_copy(run: Run) -> None:
    ended = run("scale", "all_reduce", *SMALL)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.search(r"^# 1 rank: local copy [\d.]+ GB/s", ended.stdout, re.M)


@pytest.mark.parametrize("words", [["--help"], ["all_reduce", "--help"], ["scale", "-h"]])
def test_help_names_the_letters(run: Run, words: list[str]) -> None:
    ended = run(*words)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ("--minbytes" in ended.stdout) == (len(words) > 1)


def test_a_closed_output_does_not_end_the_run(run: Run) -> None:
    """As with `| head -1`."""
    command = " ".join([*PROGRAM, "bench", "all_reduce", *SMALL])
    ended = subprocess.run(
        ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )
    assert "Traceback" not in ended.stderr
    assert ended.stdout.startswith("# nccl-tests version")


# On a terminal.


def on_terminal(*words: str, columns: int = COLUMNS, stdout: Path | None = None) -> tuple[int, str]:
    """Return the exit status and the output to a terminal; stdout: redirect standard output there."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with stdout.open("wb") if stdout else os.fdopen(os.dup(follower), "wb", 0) as target:
        process = subprocess.Popen(
            [*PROGRAM, *words], stdin=follower, stdout=target, stderr=follower, start_new_session=True
        )
    os.close(follower)
    output = b""
    while chunk := read(leader):
        output += chunk
    os.close(leader)
    return process.wait(DEADLOCK), output.decode()


def read(leader: int) -> bytes:
    try:
        return os.read(leader, 1 << 16)
    except OSError:  # Linux's error for a terminal without a writer
        return b""


def seen(output: str) -> list[str]:
    """Return the lines that stay on the screen, without colour and overwritten text."""
    lines = [re.sub(r".*\r\x1b\[K", "", line) for line in output.replace("\r\n", "\n").split("\n")]
    return [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines]


def lengths(lines: list[str]) -> list[int]:
    """Return the lengths of all lines but the average, whose length varies."""
    return [len(line) for line in lines if "bandwidth" not in line]


def test_a_terminal_gets_colour_and_progress_and_the_same_rows(run: Run) -> None:
    status, output = on_terminal("bench", "broadcast", *SMALL)
    assert status == 0
    assert re.findall(r"\[(\d)/5\] broadcast", output) == ["0", "1", "2", "3", "4", "5"]
    assert "\x1b[32m" in output
    plain = run("broadcast", *SMALL).stdout
    shown = "\n".join(seen(output))
    assert "\x1b" not in shown
    assert sizes_of(shown) == sizes_of(plain) == SIZES
    assert lengths(seen(output)) == lengths(plain.split("\n"))
    comments = [line for line in plain.splitlines() if line.startswith("#") and "bandwidth" not in line]
    for line in comments:
        assert re.sub(r"Pid +\d+", "Pid", line) in [
            re.sub(r"Pid +\d+", "Pid", other) for other in seen(output)
        ]


@pytest.mark.parametrize("columns", [1, 20])
def test_the_progress_line_fits_a_narrow_terminal(run: Run, columns: int) -> None:
    status, output = on_terminal("bench", "broadcast", *SMALL, columns=columns)
    assert status == 0
    drawn = re.findall(r"\x1b\[K(\[\d/[^\r\n]*)", output)
    assert all(len(text) < columns for text in drawn)
    assert bool(drawn) == (columns > 1)


def test_a_file_stays_plain_while_the_terminal_shows_progress(run: Run, tmp_path: Path) -> None:
    status, output = on_terminal("bench", "broadcast", *SMALL, stdout=tmp_path / "out.txt")
    assert status == 0
    assert "] broadcast" in output
    assert "".join(seen(output)) == ""
    text = (tmp_path / "out.txt").read_text()
    assert sizes_of(text) == SIZES
    assert not {"\x1b", "\r"} & {*text}


@pytest.mark.parametrize(
    "words",
    [
        ("all_reduce", *SMALL),
        ("all", *SMALL),
        ("scale", "all_reduce", *SMALL),
        ("copy", "--device", "cpu", "-s", "4K", "-n", "1"),
        ("memory", "transpose", "--device", "cpu", "--shape", "64x64"),
    ],
    ids=lambda words: words[0],
)
def test_a_record_on_standard_output_is_alone_there(
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *words, "-J", "-"]) == 0
    shown = capsys.readouterr()
    assert isinstance(json.loads(shown.out), dict)
    assert len(shown.err.splitlines()) > 2  # the table
    assert list(tmp_path.iterdir()) == []
