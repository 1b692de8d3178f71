"""`meshrun launch`: what its words start, and every mistake in them as a sentence before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from meshrun.launch.cli import errors
from meshrun.launch.cli.main import main
from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.launch.mpi import library as mpi_library
from meshrun.launch.mpi import local, mpirun, ssh_hosts
from meshrun.launch.mpi.launcher import Launcher
from meshrun.launch.mpi.library import Library
from meshrun.launch.mpi.rank_command import PROGRAM
from meshrun.launch.spec import UNWATCHED, LaunchSpec
from meshrun.runner.errors import UserError
from meshrun.runner.system import launcher

Started = list[tuple[Any, ...]]
VERDICT = 7  # of what would have been started
BENCH = ("bench", "all_reduce", "-b", "8")


CLOCKS = (60.0, None)  # seconds for all ranks to start, and without progress


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for _, *names in (*launcher.VARIABLES, *launcher.RANK_ONLY):
        for name in names:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(errors, "LINGER", 0.0)
    monkeypatch.setattr(
        mpi_launcher, "find", lambda: Launcher(Path("/opt/mpiexec"), "Open MPI", bundled=False)
    )


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """What would have been: the arguments."""
    found: Started = []

    def start(*arguments: Any, **more: Any) -> int:
        *given, supervision = arguments
        assert isinstance(supervision.conclude, partial)
        more |= {"debug": supervision.debug, "answers": supervision.conclude.args}
        watching = more.pop("watching", UNWATCHED)
        more["clocks"] = supervision.start_timeout, watching.stall_timeout
        if watching.metrics is not None:
            more["metrics"] = watching.metrics
        if supervision.restarts:
            more["restarts"] = supervision.restarts
        found.append((*given, supervision.columns, more))
        return VERDICT

    monkeypatch.setattr(local, "start", start)
    monkeypatch.setattr(mpirun, "start", start)
    return found


@pytest.fixture
def refused(started: Started, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run words that must be refused with nothing started: the sentence."""

    def run(*words: str, status: int = 2) -> str:
        assert main(["launch", *words]) == status
        written = capsys.readouterr()
        assert written.out == ""
        (line,) = written.err.splitlines()
        assert line.startswith("meshrun: ")
        assert started == []
        return line

    return run


# What is started.


def test_local_starts_ranks_here_and_returns_their_verdict(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SETTING", "inherited")
    assert main(["launch", "local", "-j", "4", "-x", "MY_SETTING=a=b", "--", *BENCH]) == VERDICT
    assert started == [(4, BENCH, None, {"debug": False, "answers": (BENCH,), "clocks": CLOCKS})]
    assert launcher.environment()["MY_SETTING"] == "a=b"


def test_local_has_one_rank_unless_told(started: Started) -> None:
    assert main(["launch", "local", "--debug", "--", "selftest"]) == VERDICT
    assert started == [
        (1, ("selftest",), None, {"debug": True, "answers": (("selftest",),), "clocks": CLOCKS})
    ]


def test_mpirun_starts_the_plan_and_returns_the_verdict(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INHERITED", "here")
    words = ["-j", "2x4", "--hosts", "a:8,b:8,c", "-x", "A=1", "-x", "INHERITED", "--set", "B="]
    more = ["--network", "eth1", "--host-timeout", "7.5", "--ssh-timeout", "90", "--debug"]
    assert main(["launch", "mpirun", *words, *more, "--", *BENCH]) == VERDICT
    settings = {"A": "1", "INHERITED": "here", "B": ""}
    spec = LaunchSpec(BENCH, 2, 4, ("a", "b"), settings, "eth1", 7.5)
    assert started == [(spec, None, {"timeout": 90.0, "debug": True, "answers": (BENCH,), "clocks": CLOCKS})]


@pytest.mark.parametrize("target", [["local"], ["mpirun", "--hosts", "a,b"]])
@pytest.mark.parametrize(("words", "restarts"), [([], 3), (["--max-restarts", "5"], 5)])
def test_a_run_may_be_started_again(
    started: Started, target: list[str], words: list[str], restarts: int
) -> None:
    run = ["run", "laplacian", "a.npy", "b.npy"]
    assert main(["launch", *target, "-j", "2", "--on-failure", "resume", *words, "--", *run]) == VERDICT
    assert started[0][-1]["restarts"] == restarts


def test_the_clocks_of_a_run(started: Started) -> None:
    words = ["--start-timeout", "5", "--", "selftest"]
    assert main(["--stall-timeout", "0", "launch", "local", *words]) == VERDICT
    assert started[0][-1]["clocks"] == (5.0, 0.0)
    assert main(["--stall-timeout", "7", "launch", "mpirun", "-j", "1x2", "--hosts", "a", *words]) == VERDICT
    spec, _, more = started[1]
    assert (more["clocks"], spec.stall_timeout) == ((5.0, None), 7.0)


def test_metrics_are_served_by_ranks_that_are_launched(started: Started) -> None:
    assert main(["--metrics", "9400", "launch", "local", "--", "selftest"]) == VERDICT
    assert started[0][-1]["metrics"] == ("", 9400)
    command = ["launch", "mpirun", "-j", "1x2", "--hosts", "a", "--", "selftest"]
    assert main(["--metrics", "[::1]:9400", *command]) == VERDICT
    assert started[1][0].metrics == ("::1", 9400)


def test_mpirun_takes_all_slots_of_a_hostfile(started: Started, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a slots=8\nb:8\n")
    assert main(["launch", "mpirun", "--hostfile", str(file), "--", "selftest"]) == VERDICT
    more = {"timeout": 30.0, "debug": False, "answers": (("selftest",),), "clocks": CLOCKS}
    assert started == [(LaunchSpec(("selftest",), 2, 8, ("a", "b")), None, more)]


def test_the_command_needs_no_dashes_where_it_has_no_options(started: Started) -> None:
    assert main(["launch", "local", "run", "laplacian", "in.npy", "out.npy"]) == VERDICT
    assert started[0][1] == ("run", "laplacian", "in.npy", "out.npy")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["local", "-j", "4", "-x", "A=two words"], ["A='two words'", "/opt/mpiexec", "-n 4"]),
        (
            ["mpirun", "-j", "2x4", "--hosts", "n1,n2", "-x", "A=1"],
            ["--host n1:4,n2:4", "-x A", "A=1", "-n 8"],
        ),
    ],
)
def test_print_shows_it_and_starts_nothing(
    started: Started,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    parts: list[str],
) -> None:
    monkeypatch.setattr(ssh_hosts, "probe_hosts", lambda *_: pytest.fail("hosts were asked"))
    assert main(["launch", *words, "--print", "--", *BENCH]) == 0
    text = capsys.readouterr().out
    assert all(part in text for part in [*parts, *PROGRAM])
    assert text.endswith(f" {' '.join(BENCH)}\n")
    assert started == []


def test_help_of_the_command_is_its_own(started: Started, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "local", "-j", "4", "--", "bench", "all_reduce", "--help"]) == 0
    assert "Usage: meshrun bench all_reduce" in capsys.readouterr().out
    assert started == []


# Mistakes.

COMMANDS = [
    ([], "Missing argument '-- COMMAND ...'"),
    (["nosuch"], "No such command 'nosuch'"),
    (["bench"], "Missing command"),
    (["run"], "Missing command"),
    (["-n", "4", "selftest"], "Missing command before -n; launch starts the ranks, without -n"),
    (["run", "nosuchjob", "a", "b"], "nosuchjob"),
    (["run", "nosuch.py:f", "a", "b"], "nosuch.py does not exist"),
    (["run", "laplacian"], "Missing argument 'INPUT'. Try: meshrun run laplacian --help"),
    (["run", "laplacian", "a", "b", "c"], "unexpected extra argument (c)"),
    (["run", "laplacian", "a", "b", "--verify=some"], "'some'"),
    (["doctor", "--device", "gpu"], "'gpu' is not one of"),
    (["selftest", "--nosuch"], "--nosuch"),
    (["selfest"], "No such command 'selfest'. Did you mean 'selftest'? Try: meshrun"),
    (["jobs"], "`meshrun jobs` starts no ranks"),
    (["launch", "local", "--", "selftest"], "`meshrun launch` starts no ranks"),
    (["bench", "nosuch"], "No such command 'nosuch'"),
    (["bench", "compare", "a", "b"], "`meshrun bench compare` starts no ranks"),
    (["bench", "plot", "a", "--to", "b.svg"], "`meshrun bench plot` starts no ranks"),
    (["kernel", "laplacian", "a"], "`meshrun kernel` starts no ranks"),
]
# Mistakes in the words of bench end with nccl-tests' exit status, whoever starts it.
OF_BENCH = [
    (["bench", "all_reduce", "-b", "many"], "many"),
    (["bench", "all_reduce", "-f", "0"], "0 is not in the range x>=1"),
    (["bench", "all_reduce", "-q"], "No such option '-q'. Try: meshrun bench all_reduce --help"),
]


@pytest.mark.parametrize("target", [["local"], ["local", "--print"], ["mpirun", "--hosts", "a:1"]])
@pytest.mark.parametrize(("words", "reason"), COMMANDS)
def test_a_command_that_ranks_would_not_understand(
    refused: Callable[..., str], target: list[str], words: list[str], reason: str
) -> None:
    assert reason in refused(*target, "--", *words)


@pytest.mark.parametrize(("words", "reason"), OF_BENCH)
def test_a_mistake_in_the_words_of_bench(refused: Callable[..., str], words: list[str], reason: str) -> None:
    assert reason in refused("local", "--", *words, status=6)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "Missing command. Try: meshrun launch --help"),
        (["nowhere", "--", "selftest"], "No such command 'nowhere'"),
        (["--bogus"], "--bogus"),
        (["local", "-j", "2x", "--", "selftest"], "expected HOSTSxGPUS such as 2x8, or GPUS, not '2x'"),
        (["local", "-j", "0", "--", "selftest"], "not '0'"),
        (["local", "-j", "2x4", "--", "selftest"], "2 hosts requested, but this is one"),
        (["local", "--hosts", "a", "--", "selftest"], "--hosts"),
        (["local", "-x", "1A=2", "--", "selftest"], "-x 1A=2: expected NAME=VALUE"),
        (["local", "-x", "=2", "--", "selftest"], "-x =2: expected NAME=VALUE"),
        (["local", "-x", "A B=2", "--", "selftest"], "-x A B=2: expected NAME=VALUE"),
        (
            ["local", "-x", "NO_SUCH_VARIABLE", "--", "selftest"],
            "-x NO_SUCH_VARIABLE: no value given, and not set in this environment",
        ),
        (["local", "selftest", "--device", "cpu"], "No such option '--device'"),
        (["mpirun", "-j", "2x8", "--", "selftest"], "no hosts given; use --hosts a,b or --hostfile FILE"),
        (["mpirun", "--", "selftest"], "the number of ranks is missing: -j HOSTSxGPUS"),
        (["mpirun", "--hosts", "a,b", "--", "selftest"], "the number of ranks is missing"),
        (["mpirun", "--hosts", "a:8,b", "--", "selftest"], "the number of ranks is missing"),
        (["mpirun", "--hosts", "a,,b", "-j", "1", "--", "selftest"], "'' is not a host"),
        (["mpirun", "--hosts", "a,b,a", "-j", "1", "--", "selftest"], "host a is listed twice"),
        (["mpirun", "--hosts", "-oProxyCommand=x", "-j", "1", "--", "selftest"], "is not a host"),
        (["mpirun", "--hosts", "a,b", "-j", "3x1", "--", "selftest"], "3 hosts requested, but only 2 listed"),
        (
            ["mpirun", "--hosts", "a:8,b:4", "-j", "2x8", "--", "selftest"],
            "host b has 4 slots, but 8 ranks are requested",
        ),
        (["mpirun", "--hosts", "a:0", "--", "selftest"], "a host with 0 slots gets no rank"),
        (["mpirun", "--hosts", "a:1", "-x", "-", "--", "selftest"], "-x -: expected NAME=VALUE"),
        (
            ["mpirun", "--hosts", "a:1", "--hostfile", "b", "--", "selftest"],
            "--hosts and --hostfile exclude each other",
        ),
        (["mpirun", "--hostfile", "/no/such/file", "--", "selftest"], "/no/such/file: No such file"),
        (["mpirun", "--hostfile", "/tmp", "--", "selftest"], "'/tmp' is a directory"),
        (["mpirun", "--hosts", "a:1", "--host-timeout", "1", "--", "selftest"], "1.0 is not in the range"),
        (
            ["mpirun", "--hosts", "a:1", "--host-timeout", "soon", "--", "selftest"],
            "'soon' is not a valid number",
        ),
        (
            ["mpirun", "--hosts", "a:1", "--host-timeout", "nan", "--", "selftest"],
            "'nan' is not a valid number",
        ),
        (["mpirun", "--hosts", "a:1", "--host-timeout", "inf", "--", "selftest"], "inf is not in the range"),
        (["mpirun", "--hosts", "a:1", "--ssh-timeout", "0", "--", "selftest"], "0.0 is not in the range"),
        (
            ["mpirun", "--hosts", "a:1", "--ssh-timeout", "nan", "--", "selftest"],
            "'nan' is not a valid number",
        ),
        (
            ["mpirun", "--hosts", "a:1", "--ssh-timeout", "1e9", "--", "selftest"],
            "1000000000.0 is not in the",
        ),
    ],
)
def test_mistakes_in_its_own_words(refused: Callable[..., str], words: list[str], reason: str) -> None:
    assert reason in refused(*words)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a slots=8\n\nb slots 8\n", "line 3: expected HOST slots=N or HOST:N, not 'b slots 8'"),
        ("# racks\n", "contains no hosts"),
        ("a slots=0\n", "line 1: a host with 0 slots"),
        ("a;b\n", "line 1: 'a;b' is not a host"),
        ("a\nb\n", "the number of ranks is missing"),
    ],
)
def test_hostfiles_that_are_none(refused: Callable[..., str], tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    sentence = refused("mpirun", "--hostfile", str(file), "--", "selftest")
    assert reason in sentence
    assert (str(file) in sentence) == (reason != "the number of ranks is missing")


@pytest.mark.parametrize("words", [["local"], ["mpirun", "--hosts", "a:1"]])
def test_a_machine_without_a_launcher(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    def find() -> Launcher:
        raise UserError("no MPI launcher found to start ranks with")

    monkeypatch.setattr(mpi_launcher, "find", find)
    assert main(["launch", *words, "--", "selftest"]) == 2
    assert capsys.readouterr().err == "meshrun: no MPI launcher found to start ranks with\n"


def test_n_before_it_starts_nothing(started: Started, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-n", "2", "launch", "local", "--", "selftest"]) == 2
    assert "`meshrun launch` starts no ranks; remove -n" in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize(
    ("library", "hint"),
    [
        (Library("Open MPI", 5), "--mpi pmix, which Open MPI 5 supports"),
        (Library("MPICH", 4), "--mpi pmi2, which MPICH 4 supports"),
        (None, "--mpi pmix for Open MPI, --mpi pmi2 for MPICH and Intel MPI"),
    ],
)
def test_away_from_a_cluster_printing_suggests_what_to_say(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    library: Library | None,
    hint: str,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mpi_library, "loaded", lambda: library)
    assert main(["launch", "slurm", "--print", "-j", "1x2", "--", "selftest"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(
        f"meshrun: no srun on PATH: Slurm is not installed here. Try: {hint}; run it on a login node"
    )


@pytest.fixture
def conducted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the launcher was started for; a machine of 2 cores and 1 GiB."""
    begun: list[int] = []
    monkeypatch.setattr(mpi_launcher, "cores", lambda: 2)
    monkeypatch.setattr("meshrun.runner.system.host_memory.host_memory", lambda: 1 << 30)
    monkeypatch.setattr(mpi_library, "loaded", lambda: None)
    monkeypatch.setattr(local, "supervise", lambda *_, **__: begun.append(1) or 0)
    return begun


def test_as_many_ranks_as_cores_need_no_words(
    conducted: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-n", "2", "selftest"]) == 0
    assert capsys.readouterr().err == ""
    assert conducted


@pytest.mark.parametrize(("cores", "said"), [(2, "2 cores"), (1, "1 core")])
def test_more_ranks_than_cores_are_told_in_one_line(
    conducted: list[int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    said: str,
) -> None:
    monkeypatch.setattr("meshrun.launch.mpi.launcher.cores", lambda: cores)
    assert main(["-n", "40", "selftest"]) == 0
    assert capsys.readouterr().err == (
        f"meshrun: warning: 40 ranks share {said}: starting and running take longer, "
        "and timings are not meaningful\n"
    )
    assert conducted


@pytest.mark.parametrize("words", [["-n", "1000000"], ["launch", "local", "-j", "1000000", "--"]])
def test_an_absurd_number_of_ranks_is_refused_before_anything_starts(
    conducted: list[int], capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main([*words, "selftest"]) == 2
    assert capsys.readouterr().err == (
        "meshrun: 1,000,000 ranks do not fit into the memory of this machine: got 1,024 MiB, expected "
        "at least 16 MiB for each rank. Try: -n 2, one rank per core, or one per GPU\n"
    )
    assert not conducted
