"""Command lines of a careless user: one sentence, the right exit status, no traceback, nothing measured."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from meshrun.launch.cli.main import main
from meshrun.launch.mpi.rank_command import PROGRAM

HERE = ["-b", "8", "-e", "8", "-n", "1", "--device", "cpu"]
SLURM = ["launch", "slurm", "-j", "2x2", "--mpi", "pmix", "--print"]
REFUSED: list[tuple[int, list[str], str]] = [
    (6, ["bench", "all_reduce", "-b"], "'-b' requires an argument. Try: meshrun bench all_reduce --help"),
    (6, ["bench", "all_reduce", *HERE, "--link-rate", "nan"], "'nan' is not a finite number"),
    (6, ["bench", "all_reduce", *HERE, "--link-rate", "inf"], "'inf' is not a finite number"),
    (6, ["bench", "alltoallv", *HERE, "--spread", "nan"], "'nan' is not a finite number"),
    (6, ["bench", "alltoallv", *HERE, "--spread", "-1"], "-1.0 is not in the range 0<=x<=1"),
    (6, ["bench", "alltoallv", *HERE, "--spread", "7"], "7.0 is not in the range 0<=x<=1"),
    (6, ["bench", "alltoallv", *HERE, "--matrix-scale", "0"], "0.0 is not in the range x>0"),
    (6, ["bench", "memory"], "Missing command. Try: meshrun bench memory --help"),
    (6, ["bench", "memory", "transpose", "--shape", "9999999x9999999", "--device", "cpu"], "nothing was mea"),
    (6, ["bench", "memory", "matmul", "--side", "9999999", "--device", "cpu"], "nothing was measured"),
    (3, ["validate", "--rungs"], "'--rungs' requires an argument. Try: meshrun validate --help"),
    (3, ["validate", "-T", "nan", "--simulate", "hosts=2"], "'nan' is not a finite number"),
    (3, ["validate", "-T", "x", "--simulate", "hosts=2"], "'x' is not a valid float"),
    (3, ["validate", "--simulate", "hosts=2", "-J", "a.json", "--save-baseline", "./a.json"], "one file for"),
    (3, ["validate", "--simulate", "hosts=2", "-J", "a.json", "--html", "../here/a.json"], "one file for"),
    (2, [*SLURM, "--srun-args", "it's", "--", "selftest"], "--srun-args it's: No closing quotation"),
    (2, [*SLURM, "--time", "never", "--", "selftest"], "'never' is not a time limit"),
    (2, [*SLURM, "--array", "x", "--output", "%a", "--", "selftest"], "'x' is not a list of indices"),
    (2, ["launch", "kubernetes", "-j", "2", "--image", "i", "--time-limit", "99999999d", "--", "selftest"],
     "at most 2147483647 s"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "words", "says"),
    REFUSED,
    ids=lambda value: " ".join(value)[:70] if isinstance(value, list) else None,
)
def test_it_is_refused(
    status: int,
    words: list[str],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(words) == status
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("words", [
    ["--time", "90"], ["--time", "1:30"], ["--time", "1:00:00"], ["--time", "2-12"], ["--time", "2-12:30:00"],
    ["--time", "unlimited"], ["--array", "0-9%2"], ["--array", "1,3,5-7:2"],
])  # fmt: skip
def test_what_slurm_takes(words: list[str]) -> None:
    assert main([*SLURM, *words, "--", "selftest"]) == 0


REHEARSAL = ["validate", "--simulate", "hosts=1,gpus=2,noise=0", "--rungs", "gpu"]


@pytest.mark.parametrize("option", ["-J", "--html", "--junit", "--prometheus"])
def test_a_report_that_cannot_be_written_is_told(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk is met when it is written to. The verdict is unknown; the screen has what was found."""
    assert main([*REHEARSAL, option, "/dev/full"]) == 3
    said = capsys.readouterr()
    assert said.out.startswith("UNKNOWN: cannot write /dev/full: No space left on device\n2 ranks on 1 host")
    assert said.err == ""


def test_the_other_reports_tell_of_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*REHEARSAL, "-J", str(tmp_path / "a.json"), "--html", "/dev/full"]) == 3
    assert json.loads((tmp_path / "a.json").read_text())["status"] == "unknown"


@pytest.mark.parametrize(("status", "words"), [(1, ["jobs"]), (3, REHEARSAL)])
def test_standard_output_on_a_full_disk_is_one_sentence(status: int, words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [*PROGRAM, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert ended.stderr == "meshrun: cannot write: No space left on device\n"
    assert ended.returncode == status
