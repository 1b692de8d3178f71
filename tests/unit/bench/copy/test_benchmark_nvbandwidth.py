"""benchmarks/nvbandwidth.py with stand-ins for both programs: its inputs, results and refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "nvbandwidth.py"
BOTH = "device_to_device_bidirectional_memcpy_read_ce"


def their_case(name: str, rows: list[list[str]], status: str = "Passed") -> dict[str, Any]:
    return {"name": name, "status": status, "bandwidth_matrix": rows}


def our_case(name: str, matrices: list[Any], status: str = "Passed") -> dict[str, Any]:
    return {
        "name": name,
        "status": status,
        "matrices": [{"values": one} for one in matrices],
        "wrong": ["bad"],
    }


THEIRS = [
    their_case("host_to_device_memcpy_ce", [["50", "40"]]),
    their_case(BOTH, [["N/A", "1"], ["2", "N/A"], ["N/A", "3"], ["4", "N/A"], ["N/A", "5"], ["6", "N/A"]]),
    {"name": "one_to_all_read_ce", "status": "Waived"},
]
OURS = [
    our_case("host_to_device_memcpy_ce", [[[51.0, 30.0]]]),
    our_case(BOTH, [[[None, 1.0], [2.0, None]], [[None, 3.0], [4.0, None]], [[None, 5.0], [6.0, None]]]),
    our_case("one_to_all_read_ce", [[[None, None]]], "Waived"),
]


def program(folder: Path, name: str, body: str) -> Path:
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport json, sys\n{body}\n")
    path.chmod(0o755)
    return path


def side_by_side(
    folder: Path, theirs: list[Any] = THEIRS, ours: list[Any] = OURS, *words: str
) -> subprocess.CompletedProcess[str]:
    output = {"nvbandwidth": {"version": "v0.8", "testcases": theirs}}
    kept = {"meshrun": "1.0", "hosts": [{"gpus": [{"name": "H200"}], "testcases": ours}]}
    log = f"open({str(folder / 'log')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')"
    their = program(folder, "nvbandwidth", f"{log}\nprint('NOTE')\nprint(json.dumps({output!r}))")
    wrote = "open(sys.argv[sys.argv.index('-J') + 1], 'w').write(json.dumps(kept))"
    options = "int(sys.argv[sys.argv.index('-s') + 1].rstrip('M')) << 20"
    our = program(folder, "meshrun", f"{log}\nkept = {kept!r}\nkept['buffer_bytes'] = {options}\n{wrote}")
    command = [
        sys.executable,
        str(SCRIPT),
        "--nvbandwidth",
        str(their),
        "--meshrun",
        str(our),
        "--rounds",
        "2",
    ]
    cases = ["--cases", "host_to_device_memcpy_ce", BOTH, "one_to_all_read_ce"]
    return subprocess.run([*command, *cases, *words], capture_output=True, text=True, check=False, timeout=60)


def test_ratios_of_every_matrix(tmp_path: Path) -> None:
    ended = side_by_side(tmp_path, THEIRS, OURS, "--json", str(tmp_path / "found.json"))
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [
        "host_to_device_memcpy_ce",
        f"{BOTH}_read1",
        f"{BOTH}_read2",
        f"{BOTH}_total",
    ]
    assert lines[1].split()[1:] == ["40.50", "45.00", "GB/s", "0.885", "(0.750", "..", "1.020)", "*"]
    assert lines[-1] == "3 of 4 matrices within 0.98 .. 1.02"
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["rounds"] == 2
    assert found["cases"][3]["cells"][1] == {"row": 1, "column": 0, "meshrun": 6.0, "nvbandwidth": 6.0}


def test_the_same_is_asked_of_both_and_turns_are_taken(tmp_path: Path) -> None:
    side_by_side(
        tmp_path, THEIRS, OURS, "--mebibytes", "64", "--copies", "8", "--samples", "5", "--ranks", "2"
    )
    first, second, third, fourth = (tmp_path / "log").read_text().splitlines()
    assert first == fourth.replace(fourth.split()[-1], first.split()[-1])
    assert second == third
    assert first.startswith(
        "-n 2 bench copy -s 64M -n 5 --copies 8 --device cuda -t host_to_device_memcpy_ce -t "
    )
    assert second == f"-j -b 64 -i 5 --loopCount 8 -t host_to_device_memcpy_ce {BOTH} one_to_all_read_ce"


@pytest.mark.parametrize(
    ("theirs", "ours", "output"),
    [
        (
            [their_case("host_to_device_memcpy_ce", [["1"]], "Error")],
            OURS,
            "nvbandwidth: host_to_device_memcpy_ce: Error",
        ),
        (THEIRS, [our_case(BOTH, [], "Error")], f"meshrun: {BOTH}: bad"),
        (THEIRS[1:], OURS, "host_to_device_memcpy_ce: one program measured cells that the other did not"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, theirs: Any, ours: Any, output: str) -> None:
    ended = side_by_side(tmp_path, theirs, ours)
    assert ended.returncode == 1
    assert output in ended.stderr
