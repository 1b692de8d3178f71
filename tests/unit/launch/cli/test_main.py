"""What the command makes of its words: options of jobs, ranks to start, sentences for mistakes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from importlib.metadata import entry_points as entry_points_of
from pathlib import Path
from typing import Any

import pytest

import meshrun.runner.world.rank_process
from meshrun.launch.cli import errors
from meshrun.launch.cli.cli_context import terminal_columns
from meshrun.launch.cli.main import command, main
from meshrun.launch.cli.plugins import SUMMARIES
from meshrun.launch.mpi import local
from meshrun.launch.spec import UNWATCHED
from meshrun.launch.supervise.supervisor import Supervision
from meshrun.runner.comm.collectives.api import OPERATIONS
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.job import discover
from meshrun.runner.options.run_options import COMMON, run_rows
from meshrun.runner.run.execute import Options
from meshrun.runner.system import launcher
from meshrun.runner.system.launcher import BY_HAND, Started
from meshrun.runner.world.run_status import RunDirectory

JOB = '''
from pathlib import Path
from typing import Literal
import meshrun

@meshrun.map_blocks(halo=1)
def edges(block, *, gain: float = 1.5, bin_count: int = 4, sharp: bool = False,
          mode: Literal["soft", "hard"] = "soft", weights: Path | None = None, label: str = "x"):
    """Edges of an image.

    Works on rows and columns.

    gain: the factor that edges
        are multiplied by.
    """
    return block[1:-1]

@meshrun.map_blocks
def scale(block, *, factor: float):
    """Multiply."""
    return block * factor
'''


@dataclass
class Calls:
    """What the command would have had others do."""

    ran: list[dict[str, Any]] = field(default_factory=list)
    started: list[tuple[int, tuple[str, ...], dict[str, Any]]] = field(default_factory=list)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for _, *names in (*launcher.VARIABLES, *launcher.RANK_ONLY):
        for name in names:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    monkeypatch.setattr(errors, "LINGER", 0.0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()

    def run(
        job: Any, input: list[str], output: list[str], parameters: Any, options: Options, **rest: Any
    ) -> int:
        found.ran.append(
            {
                "job": job.name,
                "input": input,
                "output": output,
                "parameters": parameters,
                "options": options,
                **rest,
            }
        )
        return 0

    def start(ranks: int, words: tuple[str, ...], supervision: Supervision, **rest: Any) -> int:
        assert supervision.conclude.args == (words,)
        watched = {
            "debug": supervision.debug,
            "restarts": supervision.restarts,
            "start_timeout": supervision.start_timeout,
        }
        watching = vars(rest.pop("watching", UNWATCHED))
        found.started.append((ranks, words, {**watched, **watching, **rest}))
        return 0

    monkeypatch.setattr("meshrun.runner.run.entry.main", run)
    monkeypatch.setattr(local, "start", start)
    return found


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "edges.py"
    path.write_text(JOB)
    return path


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run words that must be refused: exit status 2 and one sentence, which is returned."""

    def run(*words: str) -> str:
        assert main(words) == 2
        written = capsys.readouterr()
        assert written.out == ""
        lines = written.err.splitlines()
        assert len(lines) == 1, written.err
        assert lines[0].startswith("meshrun: ")
        return lines[0]

    return run


def run_edges(calls: Calls, *words: str) -> dict[str, Any]:
    assert main(["run", "edges.py:edges", "in.npy", "out.npy", *words]) == 0
    return calls.ran[-1]


@pytest.mark.usefixtures("job_file")
def test_a_job_gets_its_defaults(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/configuration")
    ran = run_edges(calls)
    assert ran["parameters"] == {
        "gain": 1.5,
        "bin_count": 4,
        "sharp": False,
        "mode": "soft",
        "weights": None,
        "label": "x",
    }
    assert ran["options"] == Options(rates=Path("/configuration/meshrun/rates.json"))
    assert (ran["job"], ran["input"], ran["output"]) == ("edges", ["in.npy"], ["out.npy"])
    assert (ran["started"], ran["columns"]) == (BY_HAND, None)


@pytest.mark.usefixtures("job_file")
@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--gain", "-2e-3"], "gain", -0.002),
        (["--bin-count", "7"], "bin_count", 7),
        (["--sharp"], "sharp", True),
        (["--no-sharp"], "sharp", False),
        (["--mode", "hard"], "mode", "hard"),
        (["--weights", "w.npy"], "weights", Path("w.npy")),
        (["--label", ""], "label", ""),
    ],
)
def test_a_jobs_parameters_are_options(calls: Calls, words: list[str], name: str, value: object) -> None:
    found = run_edges(calls, *words)["parameters"][name]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.usefixtures("job_file")
@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--device", "cpu"], "device", "cpu"),
        (["--json", "r.json"], "json", "r.json"),
        (["--verify"], "verify", "sample"),
        (["--verify", "full"], "verify", "full"),
        (["--verify=off"], "verify", "off"),
        (["--grid", "2x2"], "grid", "2x2"),
        (["--boundary", "wrap"], "boundary", "wrap"),
        (["--cval", "-1"], "cval", -1.0),
        (["--overlap"], "overlap", True),
        (["--no-overlap"], "overlap", False),
        (["--oversubscribe"], "oversubscribe", True),
        (["--debug"], "debug", True),
    ],
)
def test_every_job_has_the_runners_options(calls: Calls, words: list[str], name: str, value: object) -> None:
    assert getattr(run_edges(calls, *words)["options"], name) == value


@pytest.mark.usefixtures("job_file")
def test_verify_alone_takes_no_file_for_its_value(calls: Calls) -> None:
    assert main(["run", "edges.py:edges", "--verify", "in.npy", "out.npy"]) == 0
    assert (calls.ran[0]["input"], calls.ran[0]["options"].verify) == (["in.npy"], "sample")


@pytest.mark.usefixtures("job_file")
def test_a_missing_output_is_left_to_the_runner(calls: Calls) -> None:
    assert main(["run", "edges.py:edges", "in.npy"]) == 0
    assert calls.ran[0]["output"] == []


@pytest.mark.usefixtures("job_file", "calls")
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--bogus"], "--bogus"),
        (["-n"], "-n"),
        (["-n", "0", "jobs"], "-n"),
        (["-n", "two", "jobs"], "'two'"),
        (["-n", "2", "jobs"], "-n"),
        (["rnu", "x"], "rnu"),
        (["run"], "Missing command. Try: meshrun run --help"),
        (["run", "nosuchjob", "in"], "nosuchjob"),
        (["run", "nosuchfile.py", "in"], "nosuchfile.py"),
        (["run", "edges.py", "in"], "declares 2 jobs: expected one of edges.py:edges, edges.py:scale"),
        (["run", "edges.py:nosuch", "in"], "nosuch"),
        (["run", "nosuch.module:edges", "in"], "module nosuch.module does not exist"),
        (["plan", "nosuch.module:edges", "in"], "module nosuch.module does not exist"),
        (["run", "edges.py:edges"], "INPUT"),
        (["run", "edges.py:edges", "a", "b", "c"], "c"),
        (["run", "edges.py:edges", "a", "b", "--bin-count", "many"], "'many'"),
        (["run", "edges.py:edges", "a", "b", "--gain", "much"], "'much'"),
        (["run", "edges.py:edges", "a", "b", "--mode", "loud"], "'loud'"),
        (["run", "edges.py:edges", "a", "b", "--boundary", "edge"], "'edge'"),
        (["run", "edges.py:edges", "a", "b", "--verify=some"], "'some'"),
        (["run", "edges.py:edges", "a", "b", "--nosuch"], "--nosuch"),
        (["run", "edges.py:edges", "a", "b", "--sharp=1"], "--sharp"),
        (["run", "edges.py:edges", "a", "b", "--cval", ""], "--cval"),
        (["run", "edges.py:scale", "a", "b"], "--factor"),
        (["run", "edges.py:edges", "a", "b", "--gian", "2"], "Try: meshrun run edges.py:edges --help"),
        (
            ["run", "edges.py:edges", "a", "b", "--gain"],
            "an argument. Try: meshrun run edges.py:edges --help",
        ),
        (["run", "edges.py:edges", "a", "--no-sharp=1"], "a value. Try: meshrun run edges.py:edges --help"),
        (["doctor", "--json"], "an argument. Try: meshrun doctor --help"),
        (["-n"], "an argument. Try: meshrun --help"),
        (["selftest", "--device", "gpu"], "'gpu'"),
    ],
)
def test_a_mistake_is_one_sentence(refused: Callable[..., str], words: list[str], named: str) -> None:
    assert named in refused(*words)


@pytest.mark.usefixtures("job_file", "calls")
@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("run -n 2 edges.py:edges a b", "meshrun -n 2 run edges.py:edges a b"),
        ("run -n2 edges.py:edges a b", "meshrun -n 2 run edges.py:edges a b"),
        ("run --ranks=2 edges.py:edges a b", "meshrun -n 2 run edges.py:edges a b"),
        ("run edges.py:edges a b --gain 2 --ranks 4", "meshrun -n 4 run edges.py:edges a b --gain 2"),
        ("run edges.py:edges a b -n", "meshrun -n N run edges.py:edges a b"),
        ("doctor -n 2", "meshrun -n 2 doctor"),
    ],
)
def test_n_behind_the_command_is_told_its_place(refused: Callable[..., str], typed: str, meant: str) -> None:
    sentence = refused(*typed.split())
    assert sentence.endswith(f", the number of ranks, goes before the command. Try: {meant}")


@pytest.mark.usefixtures("job_file", "calls")
@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("run edges.py:edges a b --on-failure resume", "--on-failure goes before the command. "
         "Try: meshrun -n N --on-failure resume --max-restarts 3 run edges.py:edges ..."),
        ("run edges.py:edges a b --max-restarts 2", "--max-restarts goes before the command. "
         "Try: meshrun -n N --on-failure resume --max-restarts 3 run edges.py:edges ..."),
        ("--on-failure resume run edges.py:edges a b", "--on-failure resume: this command starts no ranks; "
         "add -n N, 2 or more. Try: meshrun --help"),
        ("-n 1 --on-failure resume run edges.py:edges a b", "--on-failure resume: this command starts no "
         "ranks; add -n N, 2 or more. Try: meshrun --help"),
        ("--on-failure resume launch mpirun --hosts a -j 2 -- run edges.py:edges a b",
         "--on-failure goes after launch mpirun or launch local. Try: meshrun --help"),
        ("launch slurm -j 1x2 --on-failure resume -- run edges.py:edges a b",
         "No such option '--on-failure'. Try: meshrun launch slurm --help"),
        ("launch mpirun --hosts a -j 2 --on-failure resume -- selftest",
         "--on-failure resume continues a `run`; `selftest` has nothing to continue"),
        ("-n 2 --on-failure resume selftest", "--on-failure resume continues a `run`; `selftest` has nothing "
         "to continue. Try: meshrun --help"),
        ("-n 2 --on-failure again run edges.py:edges a b", "'again' is not one of 'stop', 'resume'"),
        ("-n 2 --on-failure resume --max-restarts 0 run edges.py:edges a b", "0 is not in the range x>=1"),
    ],
)  # fmt: skip
def test_on_failure_needs_ranks_to_start(refused: Callable[..., str], typed: str, sentence: str) -> None:
    assert sentence in refused(*typed.split())


@pytest.mark.usefixtures("job_file")
def test_n_of_what_no_ranks_run_is_no_option(refused: Callable[..., str]) -> None:
    assert refused("jobs", "-n", "2") == "meshrun: No such option '-n'. Try: meshrun jobs --help"
    sentence = refused("plan", "edges.py:edges", "a", "-n", "2")
    assert sentence == (
        "meshrun: No such option '-n'. Did you mean '--ranks'? Try: meshrun plan edges.py:edges --help"
    )
    assert "goes before" not in refused("run", "edges.py:edges", "a", "b", "-nothing")


def test_the_help_has_a_sentence_for_every_command_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    ours = {
        entry.name: entry
        for entry in entry_points_of(group="meshrun.commands")
        if entry.value.startswith(("meshrun.launch.", "meshrun.jobs."))
    }
    assert {"bench", "doctor", "launch", "plan", "validate"} <= set(ours)
    assert main(["--help"]) == 0
    rows = dict(
        line.split(maxsplit=1) for line in capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    )
    assert {*ours, "run", "jobs", "selftest"} <= set(rows)
    for name, sentence in rows.items():
        if name in ours or name in command.commands:
            assert re.fullmatch(r"[A-Z][a-z]+ [^.]*\.", sentence), f"{name}  {sentence}"
    # What is said of a command is said of one that there is.
    assert set(SUMMARIES) == {entry.value for entry in ours.values()}


@pytest.mark.parametrize(
    "line", ["import nosuchmodule", "x = nosuchname", "1 / 0", "def (", "raise OSError('x')"]
)
def test_a_job_that_cannot_be_imported_is_one_sentence(
    refused: Callable[..., str], job_file: Path, line: str
) -> None:
    job_file.write_text(line)
    assert "edges.py" in refused("run", "edges.py:edges", "a", "b")


def test_debug_adds_the_traceback(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job_file.write_text("1 / 0")
    assert main(["run", "edges.py:edges", "a", "--debug"]) == 2
    errors = capsys.readouterr().err
    assert "Traceback" in errors
    assert errors.splitlines()[-1].startswith("meshrun: ")


@pytest.mark.usefixtures("job_file")
def test_a_jobs_help_tells_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "edges.py:edges", "--help-all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "Usage: meshrun run edges.py:edges [OPTIONS] INPUT OUTPUT",
        "Edges of an image.",
        "Works on rows and columns.",
        "Options of this job:",
        "--gain FLOAT",
        "[default: 1.5]",
        "--bin-count INTEGER",
        "--sharp / --no-sharp",
        "--mode [soft|hard]",
        "--boundary [reflect|mirror|nearest|constant|wrap]",
        "--verify [sample|full]",
    ):
        assert part in text
    assert text.count("the factor that edges") == 1


@pytest.mark.parametrize("job", discover.names())
def test_a_jobs_short_help_fits_a_terminal(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", job, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 50
    for option in [*COMMON[:4], "chunk_bytes", "help_all"]:
        assert sum(f"  --{option.replace('_', '-')}" in line for line in lines) == 1


def test_the_whole_help_has_every_option_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Also with -n, which starts no ranks for it."""
    assert main(["-n", "2", "run", "heat", "--help-all"]) == 0
    text = capsys.readouterr().out
    for row in run_rows():
        flag = rf"^  (?:-v, )?--{row.name.replace('_', '-')}[ ,]"
        assert len(re.findall(flag, text, re.MULTILINE)) == 1, row.name
    titles = re.findall(r"^(\w.*):$", text, re.MULTILINE)
    assert titles == ["Options of this job", "Run", "Files", "Steps", "Streaming", "Debug", "Help"]


@pytest.mark.usefixtures("job_file")
def test_a_required_parameter_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "edges.py:scale", "--help"])
    assert "[required]" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in ("run", "jobs", "selftest"))
    assert "--run-dir" not in text
    assert "--tty" not in text


def test_the_help_of_run_tells_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    text = capsys.readouterr().out
    assert "Usage: meshrun run JOB INPUT [OUTPUT] [OPTIONS]" in text
    assert "FILE.py:NAME" in text
    assert "MODULE:NAME" in text


@pytest.mark.usefixtures("job_file")
def test_n_starts_ranks_with_the_same_words(calls: Calls) -> None:
    words = ("run", "edges.py:edges", "in.npy", "out.npy", "--gain", "2", "--debug")
    assert main(["-n", "4", *words]) == 0
    clocks = {"start_timeout": 60.0, **vars(UNWATCHED)}
    assert main(["-n", "4", "--on-failure", "resume", "--max-restarts", "2", *words]) == 0
    assert calls.started == [(4, words, {"debug": True, "restarts": n, **clocks}) for n in (0, 2)]
    assert main(["-n", "4", "--stall-timeout", "30", *words]) == 0
    assert main(["-n", "4", "--metrics", "9400", *words]) == 0
    assert main(["-n", "4", "--watch", *words]) == 0
    assert calls.started[2:] == [
        (4, words, {"debug": True, "restarts": 0, **clocks, "stall_timeout": 30.0}),
        (4, words, {"debug": True, "restarts": 0, **clocks, "metrics": ("", 9400)}),
        (4, words, {"debug": True, "restarts": 0, **clocks, "watch": True}),
    ]
    assert calls.ran == []


@pytest.mark.usefixtures("job_file")
def test_n_1_is_this_process(calls: Calls) -> None:
    assert main(["-n", "1", "run", "edges.py:edges", "in.npy", "out.npy"]) == 0
    assert calls.ran[0]["started"].ranks == 1
    assert calls.started == []


@pytest.mark.usefixtures("job_file")
def test_n_with_help_starts_nothing(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-n", "4", "run", "edges.py:edges", "--help"]) == 0
    assert "--gain" in capsys.readouterr().out
    assert calls.started == []


@pytest.mark.usefixtures("job_file")
def test_a_rank_started_by_us_starts_none(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    ours = ["--run-dir", str(tmp_path), "--tty", "93", "-n", "2"]
    assert main([*ours, "run", "edges.py:edges", "a", "b"]) == 0
    assert calls.started == []
    assert (calls.ran[0]["started"], calls.ran[0]["columns"]) == (Started(2, str(tmp_path)), 93)


@pytest.mark.usefixtures("job_file")
def test_a_rank_without_a_launchers_variables_starts_none_either(calls: Calls, tmp_path: Path) -> None:
    assert main(["--run-dir", str(tmp_path), "-n", "2", "run", "edges.py:edges", "a", "b"]) == 0
    assert calls.started == []


@pytest.mark.usefixtures("job_file")
@pytest.mark.parametrize(
    ("size", "rank"),
    [
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("PMI_SIZE", "PMI_RANK"),
        ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ],
)
def test_n_that_contradicts_the_launcher_is_refused_once(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], size: str, rank: str
) -> None:
    words = ["-n", "4", "run", "edges.py:edges", "a", "b"]
    monkeypatch.setenv(size, "2")
    for number in (0, 1):
        monkeypatch.setenv(rank, str(number))
        assert main(words) == 2
        errors = capsys.readouterr().err
        assert ("meshrun -n 4 contradicts" in errors) is (number == 0)
        assert errors.count("\n") == (1 if number == 0 else 0)
    assert calls == Calls()


@pytest.mark.usefixtures("job_file")
def test_n_that_agrees_with_the_launcher_runs(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("PMI_RANK", "3")
    assert main(["-n", "4", "run", "edges.py:edges", "a", "b"]) == 0
    assert calls.ran[0]["started"].ranks == 4


@pytest.mark.usefixtures("job_file")
def test_a_shell_from_srun_may_start_ranks(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0")):
        monkeypatch.setenv(name, value)
    assert main(["-n", "4", "run", "edges.py:edges", "a", "b"]) == 0
    assert len(calls.started) == 1


def test_mistakes_are_told_by_rank_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    for number in (1, 0):
        monkeypatch.setenv("PMI_RANK", str(number))
        assert main(["run", "nosuchjob", "a"]) == 2
        assert ("nosuchjob" in capsys.readouterr().err) is (number == 0)


def test_with_a_run_directory_the_first_rank_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--run-dir", str(tmp_path), "-n", "2", "run", "nosuchjob", "a"]
    told = []
    for _ in range(2):
        assert main(words) == 2
        told.append(capsys.readouterr().err.count("nosuchjob"))
    assert told == [1, 0]
    failure = RunDirectory(tmp_path).failure()
    assert failure is not None
    assert failure["exit_code"] == 2
    assert "nosuchjob" in failure["sentence"]


def raising(failure: BaseException) -> Callable[..., int]:
    def run(*_: object, **__: object) -> int:
        raise failure

    return run


@pytest.mark.usefixtures("job_file")
@pytest.mark.parametrize(
    ("failure", "status", "sentence"),
    [
        (UserError("no such thing", got="x"), 2, "meshrun: no such thing: got x\n"),
        (RunError("it broke"), 1, "meshrun: it broke\n"),
        (KeyboardInterrupt(), 130, "meshrun: interrupted\n"),
    ],
)
def test_what_a_command_raises_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failure: BaseException,
    status: int,
    sentence: str,
) -> None:
    monkeypatch.setattr("meshrun.runner.run.entry.main", raising(failure))
    assert main(["run", "edges.py:edges", "a", "b"]) == status
    assert capsys.readouterr().err == sentence


@pytest.mark.usefixtures("job_file")
def test_a_runs_exit_status_is_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshrun.runner.run.entry.main", lambda *_, **__: 7)
    assert main(["run", "edges.py:edges", "a", "b"]) == 7


def entry_points(monkeypatch: pytest.MonkeyPatch, group: str, **values: str) -> None:
    made = [EntryPoint(name, value, group) for name, value in values.items()]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: made)


def test_jobs_are_listed_with_their_summaries(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job_file: Path
) -> None:
    monkeypatch.syspath_prepend(str(job_file.parent))
    entry_points(
        monkeypatch,
        "meshrun.jobs",
        edges="edges:edges",
        gone="nosuchmodule:x",
        no_attribute="edges:nosuch",
        scale_by="edges:scale",
    )
    assert main(["jobs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "edges         Edges of an image."
    assert lines[1].startswith("gone          cannot be loaded: ")
    assert "nosuchmodule" in lines[1]
    assert lines[2].startswith("no_attribute  cannot be loaded: ")
    assert lines[3] == "scale_by      Multiply."


BROKEN_PLUGINS = {
    "assertion": "assert False, 'no licence'",
    "exit": "raise SystemExit(3)",
    "own_error": "class Odd(Exception): pass\nraise Odd('very\\nodd')",
    "half": "def broken(:",
    "memory": "raise MemoryError",
    "interrupt": "raise BaseException('base')",
}


@pytest.mark.parametrize("plugin", BROKEN_PLUGINS)
def test_a_plug_in_that_raises_at_import_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    refused: Callable[..., str],
    plugin: str,
) -> None:
    module = f"plugin_{plugin}"
    (tmp_path / f"{module}.py").write_text(BROKEN_PLUGINS[plugin] + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    entry_points(
        monkeypatch,
        "meshrun.jobs",
        odd=f"{module}:job",
        statistics="meshrun.jobs.filters.statistics:statistics",
    )
    assert main(["jobs"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"odd         cannot be loaded: job odd ({module}:job) cannot be imported")
    assert second.startswith("statistics  Count, extremes")
    assert f"job odd ({module}:job) cannot be imported" in refused("run", "odd", "in.npy")
    entry_points(monkeypatch, "meshrun.commands", odd=f"{module}:odd")
    assert f"the command odd ({module}:odd) cannot be imported" in refused("odd")


def test_further_commands_are_loaded_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more_commands.py").write_text(
        "import click\n@click.command()\n@click.pass_obj\n"
        "def bench(door):\n    return 40 + door.started.ranks\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    entry_points(monkeypatch, "meshrun.commands", bench="more_commands:bench", broken="nosuchmodule:x")
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "bench" in text
    assert "broken" in text
    assert main(["-n", "1", "bench"]) == 41


@pytest.mark.parametrize("value", ["nosuchmodule:x", "os:nosuch", "os:getpid"])
def test_a_further_command_that_cannot_be_loaded_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str], value: str
) -> None:
    entry_points(monkeypatch, "meshrun.commands", bench=value)
    assert f"the command bench ({value})" in refused("bench")


def test_columns_are_the_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert terminal_columns() is None
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((77, 20)))
    assert terminal_columns() == 77
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((0, 0)))
    assert terminal_columns() == 80, "a terminal that does not tell its size is one"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("run statistics /in.npy", 2),
        ("doctor", 2),
        ("bench all_reduce", 6),  # as for every mistake in its words
        ("validate", 3),
        ("selftest", 2),
        ("launch slurm --print --mpi pmix -j 1x2 -- selftest", 2),
        ("launch local -j 2 -- selftest", 2),
        ("-n 2 selftest", 2),
        ("run job.py:smooth in.npy out.npy", 2),
        ("run transpose in.npy out.npy", 2),
    ],
)
def test_a_working_directory_that_is_gone_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: str,
    status: int,
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setenv("PWD", "/of/another/process")
    monkeypatch.setattr(meshrun.runner.world.rank_process, "on_termination", lambda _: None)
    gone.rmdir()
    assert main(words.split()) == status
    told = capsys.readouterr().err
    of_the_machine = re.compile(r"meshrun: (mpi: |warning: 2 ranks share 1 core: )")
    lines = [line for line in told.splitlines() if not of_the_machine.match(line)]
    assert lines == [f"meshrun: the working directory is gone: got {gone}. Try: cd to one that exists"]


@pytest.mark.parametrize("words", [["--help"], ["jobs"], ["run", "--help"]])
def test_what_needs_no_working_directory_works_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(words) == 0


@dataclass
class Selftest:
    """A stand-in for the runner's part of the self-test, and what it was asked."""

    alone: int = 0
    together: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture
def selftest(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> Selftest:
    part = Selftest()

    def test(**asked: Any) -> int:
        part.asked.append(asked)
        return part.alone

    def start(ranks: int, words: list[str], supervision: Supervision) -> int:
        calls.started.append((ranks, tuple(words), {"debug": supervision.debug}))
        return part.together

    monkeypatch.setattr("meshrun.runner.run.installation.selftest.main", test)
    monkeypatch.setattr("meshrun.runner.run.installation.selftest.launcher_ranks", lambda device: 3)
    monkeypatch.setattr("meshrun.launch.mpi.launcher.find", lambda: "Some MPI (/opt/mpiexec)")
    monkeypatch.setattr(local, "start", start)
    return part


@pytest.mark.parametrize(("alone", "together"), [(0, 0), (1, 0), (0, 1), (0, 2)])
def test_selftest_ends_with_a_verdict_over_both_parts(
    selftest: Selftest, calls: Calls, capsys: pytest.CaptureFixture[str], alone: int, together: int
) -> None:
    selftest.alone, selftest.together = alone, together
    works = alone == together == 0
    assert main(["selftest", "--device", "cpu"]) == (0 if works else 1)
    assert calls.started == [(3, ("selftest", "--device", "cpu"), {"debug": False})]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == (
        f"This installation {'works' if works else 'does NOT work'}: "
        f"one rank {'FAILED' if alone else 'passed'}, "
        f"3 ranks under Some MPI (/opt/mpiexec) {'FAILED' if together else 'passed'}."
    )


def test_selftest_says_so_when_there_is_no_launcher(
    selftest: Selftest, calls: Calls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("meshrun.launch.mpi.launcher.find", raising(UserError("no MPI launcher found")))
    assert main(["selftest"]) == 0
    assert selftest.asked[0]["started"].ranks == 1
    assert calls.started == []
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "This installation works: one rank passed; one rank only: no MPI launcher found"


def test_selftest_under_a_launcher_is_the_ranks_part(
    selftest: Selftest, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    assert main(["selftest"]) == 0
    assert selftest.asked == [{"mutate": False, "device": "auto", "started": BY_HAND, "debug": False}]
    assert calls.started == []


def test_mutations_run_in_one_process(selftest: Selftest, calls: Calls, refused: Callable[..., str]) -> None:
    assert main(["selftest", "--mutate"]) == 0
    assert selftest.asked[0]["mutate"] is True
    assert calls.started == []
    os.environ["PMI_SIZE"] = "2"
    try:
        assert "--mutate" in refused("selftest", "--mutate")
    finally:
        del os.environ["PMI_SIZE"]


@pytest.mark.parametrize("value", ["-1", "nan", "soon"])
def test_a_stall_timeout_is_a_number_of_seconds(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--stall-timeout", value, "jobs"]) == 2
    assert "--stall-timeout" in capsys.readouterr().err


def test_an_option_that_is_an_input_says_how_it_becomes_one(
    refused: Callable[..., str], job_file: Path
) -> None:
    job_file.write_text(
        "import meshrun\n\n\n@meshrun.map_blocks\ndef scaled(block, rate):\n    return block * rate\n"
    )
    said = refused("run", "edges.py:scaled", "in.npy", "out.npy", "--rate", "2")
    assert said.startswith(
        "meshrun: --rate is an input of this job, not an option. Write `def scaled(block, *, rate)`, "
        "if rate is a number: parameters before `*` are inputs"
    )


@pytest.mark.parametrize(
    ("typed", "ranks", "words"),
    [
        ("bench all_reduce -b 8 -g 8", 8, "bench all_reduce -b 8 -g 8"),
        ("all_reduce_perf -b 8 -e 8G -f 2 -g 4 -t 2", 8, "bench all_reduce -b 8 -e 8G -f 2 -g 4 -t 2"),
        ("reduce_scatter_perf_mpi -g2", 2, "bench reduce_scatter -g2"),
        ("-n 3 alltoall_perf -g 1", 3, "bench alltoall -g 1"),
    ],
)
def test_commands_of_nccl_tests_start_ranks(calls: Calls, typed: str, ranks: int, words: str) -> None:
    assert main(typed.split()) == 0
    assert [(started, tuple(found)) for started, found, _ in calls.started] == [(ranks, tuple(words.split()))]


def test_every_program_of_nccl_tests_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for name in OPERATIONS:
        assert main([f"{name}_perf", "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"Usage: meshrun bench {name} ")
    assert main(["gather_perf", "-g", "2", "--help"]) == 0, "which starts no ranks"


def test_an_interactive_step_of_slurm_starts_ranks(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}.items():
        monkeypatch.setenv(name, value)
    assert main(["all_reduce_perf", "-g", "2"]) == 0
    assert [ranks for ranks, *_ in calls.started] == [2]


@pytest.mark.parametrize(
    ("variables", "typed", "hint"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "reduce_perf -b 8 -g 2", "mpirun -np 8 meshrun bench reduce -b 8"),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, "bench all_reduce -t 2", "mpirun -np 2 meshrun bench all_reduce"),
        ({"PMI_SIZE": "2", "SLURM_STEP_ID": "0"}, "gather_perf -g 2", "srun --ntasks 4 meshrun bench gather"),
        ({"PMI_SIZE": "2"}, "bench gather -g 2", "mpirun -np 4 meshrun bench gather"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0"}, "bench gather -g 2",
         "srun --ntasks 4 meshrun bench gather"),
        ({"PMIX_RANK": "0"}, "bench gather -g 2", "mpirun -np 2 meshrun bench gather"),
        ({}, "-n 2 bench gather -g 4 -b 1M", "meshrun -n 4 bench gather -b 1M"),
        ({}, "launch local -j 2 -- gather_perf -g 4", "-j 1x4 -- bench gather"),
    ],
)  # fmt: skip
def test_ranks_that_are_started_twice(
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., str],
    variables: dict[str, str],
    typed: str,
    hint: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert refused(*typed.split()).endswith(f" Try: {hint}")
    assert calls == Calls()
