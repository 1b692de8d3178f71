"""What makes a shell comfortable: names that are almost right, records on standard output, no colours."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from meshrun.launch.cli.main import main

MESHRUN = Path(sys.executable).with_name("meshrun")
JOBS = """
import meshrun

@meshrun.map_blocks
def smooth(block):
    return block

@meshrun.map_blocks
def other(block):
    return block
"""


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("vlidate", "Did you mean 'validate'?"),
        ("launch slrum -j 2x2 -- selftest", "Did you mean 'slurm'?"),
        ("run lapacian a.npy b.npy", "Try: laplacian"),
        ("plan lapacian a.npy", "Try: laplacian"),
        ("run jobs.py:smoth a.npy b.npy", "Try: jobs.py:smooth"),
        ("run laplacian a.npy b.npy --boundary reflct", "Did you mean 'reflect'?"),
        ("run laplacian a.npy b.npy --verfy", "'--verify'"),
        ("run laplacian a.npy b.npy --boundry wrap", "'--boundary'"),
        ("run laplacian a.npy b.npy --dytpe float32", "'--dtype'"),
        ("run laplacian a.npy b.npy --step 3", "'--steps'"),
        ("validate --rugns gpu", "'--rungs'"),
        ("validate --rungs gpu,nod --simulate hosts=2,gpus=2", "Did you mean 'node'?"),
        ("bench all_redcue", "'all_reduce'"),
        ("bench memory transpos", "'transpose'"),
        ("completion zhs", "Did you mean 'zsh'?"),
    ],
)
def test_a_name_that_is_almost_right_is_suggested(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    meant: str,
) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) != 0
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("xyzzy", 2),
        ("run laplacian a.npy b.npy --boundary xyzzy", 2),
        ("run xyzzy a.npy", 2),
        ("run laplacian a.npy b.npy --bogus", 2),
        ("run laplacian a.npy b.npy --quiet", 2),
        ("plan laplacian a.npy --quiet", 2),
        ("validate --quiet", 3),
    ],
)
def test_nothing_is_suggested_for_a_name_that_resembles_none(
    words: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == status
    assert "Did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("run", "run statistics in.npy --json -"),
        ("run", "run laplacian in.npy out.npy --json -"),
        ("plan", "plan laplacian in.npy --ranks 2 --json -"),
        ("doctor", "doctor --device cpu --json -"),
    ],
)
def test_a_record_goes_to_standard_output_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    words: str,
) -> None:
    np.save(tmp_path / "in.npy", np.ones((8, 5), np.float32))
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == kind
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize(
    ("setting", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)]
)
def test_colours_are_left_out_where_they_are_not_wanted(setting: dict[str, str], coloured: bool) -> None:
    """On a terminal, with a table that has colours."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    words = ["bench", "all_reduce", "-b", "1K", "-e", "1K", "--device", "cpu"]
    subprocess.run([MESHRUN, *words], stdout=theirs, env={**kept, **setting}, check=True)
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the terminal has been closed
            break
        if not part:
            break
        text += part
    os.close(ours)
    assert b"busbw" in text
    assert (b"\x1b[" in text) is coloured


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("-n 1.5 run laplacian a.npy b.npy", "'1.5' is not a valid integer. Try:"),
        ("run laplacian a.npy b.npy --verify all", "--verify: got 'all', expected sample or full. Try:"),
        ("kernel", "Missing command. Try: meshrun kernel --help"),
        (
            "completion powershell",
            "Invalid value for 'SHELL': 'powershell' is not one of",
        ),
        (
            "launch local -j 2 -- -n 3 selftest",
            "Missing command before -n; launch starts the ranks",
        ),
        ("launch local -j 2 -- selftset", "Did you mean 'selftest'?"),
        ("selftest --ranks 0", "Try: meshrun -n N selftest"),
        ("run laplacian a.npy", "Try: meshrun run laplacian a.npy OUTPUT"),
    ],
)
def test_the_error_names_what_was_wrong(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert shown.count("\n") == 1
