"""The verdict over a run that has ended: who is believed, what is said, what is cleaned up."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest

from meshrun.launch.slurm.reasons import task_end
from meshrun.launch.supervise.judge import MEMORY, Outcome, find_loss, judge
from meshrun.runner.world.run_status import RunDirectory

KILLED = "prterun noticed that process rank 1 with PID 4711 on node n1 exited on signal 9 (Killed)."
LEFT = "Process name: [prterun-vm-6461@1,1] Exit code: 3"
MPICH_KILLED = """
=   PID 4711 RUNNING AT n1
=   EXIT CODE: 9
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def outcome(
    status: int = 0, launcher_output: str = "", tail: str = "", interrupted: signal.Signals | None = None
) -> Outcome:
    return Outcome(status, interrupted, launcher_output, tail)


def fail(run: RunDirectory, status: int = 1, rank: int = 0) -> None:
    run.claim_failure({"exit_code": status, "sentence": f"[rank {rank}] no good", "rank": rank})


def test_the_record_and_a_good_status_are_success(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    run.complete({})
    assert judge(run, outcome()) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("number", "hint"), [(signal.SIGBUS, "df -h /tmp /dev/shm"), (signal.SIGXFSZ, "ulimit -f unlimited")]
)
def test_a_launcher_without_room_for_its_files_gets_a_hint(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], number: int, hint: str
) -> None:
    assert judge(run, outcome(-number)) == 1
    said = capsys.readouterr().err
    assert f"({signal.Signals(number).name}) of the launcher" in said
    assert f"Try: {hint}" in said


def test_a_good_status_without_the_record_is_not(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge(run, outcome()) == 1
    assert "got exit status 0 of the launcher, no completion record" in capsys.readouterr().err


def test_a_bad_status_is_not_either_though_there_is_a_record(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    run.complete({})
    assert judge(run, outcome(3, LEFT)) == 1
    assert "[rank 1] ended too early, exit status 3: got exit status 3" in capsys.readouterr().err


def test_a_signal_after_the_record_is_a_warning(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    run.complete({})
    assert judge(run, outcome(137, KILLED)) == 0
    assert "warning: the run was complete when this happened: [rank 1, host n1]" in capsys.readouterr().err


@pytest.mark.parametrize("status", [1, 2])
def test_a_claimed_failure_outweighs_everything(
    run: RunDirectory, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run.complete({})
    fail(run, status)
    assert judge(run, outcome(0, tail="meshrun: [rank 0] no good\n")) == status
    assert capsys.readouterr().err == ""


def test_a_claimed_failure_that_was_not_heard_is_told(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(run)
    judge(run, outcome(1))
    assert capsys.readouterr().err == "meshrun: [rank 0] no good\n"


@pytest.mark.parametrize(("rank", "told"), [(0, True), (1, False)])
def test_a_killed_rank_is_named_beside_the_failure_that_it_caused(
    run: RunDirectory, rank: int, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(run, rank=rank)
    assert judge(run, outcome(137, KILLED, tail=f"meshrun: [rank {rank}] no good\n")) == 1
    assert ("[rank 1, host n1] killed by signal 9 (SIGKILL)" in capsys.readouterr().err) is told


def test_a_rank_that_mpichs_launcher_may_have_killed_is_not(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(run)
    judge(run, outcome(9, MPICH_KILLED, tail="meshrun: [rank 0] no good\n"))
    assert capsys.readouterr().err == ""


def test_a_process_gets_its_rank(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    run.register(5, "gpu-host", 4711)
    judge(run, outcome(9, MPICH_KILLED))
    assert (
        "[rank 5, host gpu-host] killed by signal 9 (SIGKILL), possibly by MPICH's" in capsys.readouterr().err
    )


def test_an_unknown_process_keeps_its_number(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    judge(run, outcome(9, MPICH_KILLED))
    assert "[process 4711, host n1] killed by" in capsys.readouterr().err


def test_a_real_time_signal_is_a_number(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    judge(run, outcome(170, KILLED.replace("signal 9 (Killed)", "signal 42 (RTMIN+8)")))
    assert "killed by signal 42" in capsys.readouterr().err


@pytest.mark.parametrize("debug", [False, True])
def test_the_launchers_words_are_shown_once_when_nothing_better_is_known(
    run: RunDirectory, debug: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    judge(run, outcome(1, "a banner without sense\n"), debug)
    assert capsys.readouterr().err.count("a banner without sense") == 1


def test_a_launcher_whose_words_are_shown_is_asked_for_its_account(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    said = outcome(137, tail="srun: error: c2: task 3: Killed\n")
    assert judge(run, said, explain=task_end) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("meshrun: [rank 3, host c2] ended too early: Killed: got exit status 137")
    assert line.endswith("Try: " + MEMORY)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_rank_that_a_signal_has_ended_in_order_is_no_riddle(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    """MPICH's launcher only passes its exit status on, if MPI was finalized."""
    assert judge(run, outcome(128 + number)) == 1
    assert capsys.readouterr().err.startswith(f"meshrun: a rank was ended by {number.name}: got exit status")


@pytest.mark.parametrize("program", ["prterun", "mpirun"])
def test_a_launcher_that_refuses_root(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], program: str
) -> None:
    assert judge(run, outcome(1, tail=f"{program} has detected an attempt to run as root.\n")) == 1
    assert capsys.readouterr().err == (
        "meshrun: Open MPI's launcher does not run as root. Try: OMPI_ALLOW_RUN_AS_ROOT=1 "
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 meshrun ...\n"
    )


def test_an_account_of_nothing(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert judge(run, outcome(137, tail="srun: job 7 queued\n"), explain=task_end) == 1
    assert "the run failed, and no rank reported why" in capsys.readouterr().err


def test_the_launchers_own_words_come_after_ours(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge(run, outcome(213, "no daemon\nanywhere\n")) == 1
    ours, *rest = capsys.readouterr().err.splitlines()
    assert ours.startswith("meshrun: the run failed, and no rank reported why: got exit status 213")
    assert rest == ["no daemon", "anywhere"]


UNREACHABLE = """\
At least one pair of MPI processes are unable to reach each other for
MPI communications.  This means that no Open MPI device has indicated
"""


def test_ranks_that_cannot_reach_each_other(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judge(run, outcome(14, UNREACHABLE)) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("meshrun: MPI could not start: its ranks cannot reach each other. Try: ")
    monkeypatch.setattr("resource.getrlimit", lambda _: (300_000, resource.RLIM_INFINITY))
    assert judge(run, outcome(14, UNREACHABLE)) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence == (
        "meshrun: MPI could not start: its ranks cannot reach each other: "
        "got a limit of 300,000 bytes a file, expected room for MPI's shared memory. Try: ulimit -f unlimited"
    )


def test_a_signal_that_mpichs_launcher_has_merged_with_its_own_is_not_taken_for_the_end_of_a_rank(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    merged = MPICH_KILLED.replace("Killed (signal 9)", "Terminated (signal 15)")
    run.register(0, "n1", 4711)  # which the launcher has killed
    assert judge(run, outcome(15, merged)) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith(
        "meshrun: [host n1] a rank was killed by signal 6 (SIGABRT) or signal 7 (SIGBUS) or signal 15 "
        "(SIGTERM); MPICH's launcher does not tell which rank. Try: PYTHONFAULTHANDLER=1"
    )


MPICH_NOT_STARTED = """\
Abort(337790351): Fatal error in internal_Init_thread: Other MPI error, error stack:
MPID_Init(549)...........:
MPIDI_UCX_init_worker(86):  ucx function returned with failed status(No resources are available)
"""


def test_mpich_that_could_not_start_is_told_rather_than_the_ranks_that_its_launcher_killed(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge(run, outcome(143, MPICH_NOT_STARTED + MPICH_KILLED)) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith(
        "meshrun: MPI could not start: ucx function returned with failed status(No resources are available)."
    )
    assert find_loss(run, outcome(143, MPICH_NOT_STARTED + MPICH_KILLED)) is None


def test_an_interrupt_is_128_and_the_signal(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert judge(run, outcome(1, KILLED, interrupted=signal.SIGINT)) == 130
    assert capsys.readouterr().err == "meshrun: interrupted by SIGINT: every rank has ended\n"


def test_the_unfinished_output_goes(run: RunDirectory, tmp_path: Path) -> None:
    partial = tmp_path / ".out.partial"
    partial.touch()
    run.note_partial(partial)
    judge(run, outcome(137, KILLED))
    assert not partial.exists()


def test_a_killed_rank_is_lost_and_the_others_may_go_on(run: RunDirectory) -> None:
    lost = find_loss(run, outcome(137, KILLED))
    assert lost is not None
    assert lost.rank == 1
    fail(run, rank=1)  # it said so itself
    assert find_loss(run, outcome(137, KILLED)) == lost


@pytest.mark.parametrize("why", ["complete", "interrupted", "another failure", "an exit status"])
def test_what_is_no_loss_of_a_rank(run: RunDirectory, why: str) -> None:
    if why == "complete":
        run.complete({})
    if why == "another failure":
        fail(run, rank=0)
    by = signal.SIGINT if why == "interrupted" else None
    assert find_loss(run, outcome(137, LEFT if why == "an exit status" else KILLED, interrupted=by)) is None


SILENT = "host n2 (rank 1) silent for 4 s"


def test_a_host_that_no_longer_answers_is_lost_whatever_the_others_say_of_it(run: RunDirectory) -> None:
    for output in ("", KILLED):
        lost = find_loss(run, outcome(0, output), ["n2"])
        assert lost is not None
        assert "host n2 no longer answers. Try: check" in lost.sentence
    fail(run, rank=0)
    lost = find_loss(run, outcome(1, tail="meshrun: [rank 0] no good\n"), ["n2"])
    assert lost is not None
    assert "host n2 no longer answers" in lost.sentence
    assert find_loss(run, outcome(1)) is None


def test_a_lost_host_is_named_once(run: RunDirectory) -> None:
    run.claim_failure({"exit_code": 1, "sentence": SILENT, "rank": 0})
    told = find_loss(run, outcome(1, tail=f"meshrun: {SILENT}\n"), ["n2"])
    assert told is not None
    assert told.sentence == ""
    for tail, lost in (("", ["n2"]), (SILENT, ["n2", "n3"])):
        loss = find_loss(run, outcome(1, tail=tail), lost)
        assert loss is not None
        assert f"host {', '.join(lost)} no longer answers" in loss.sentence


@pytest.mark.parametrize("why", ["complete", "interrupted", "a mistake in the command"])
def test_a_run_that_would_not_go_on_has_lost_nothing(run: RunDirectory, why: str) -> None:
    if why == "complete":
        run.complete({})
    if why == "a mistake in the command":
        fail(run, 2)
    by = signal.SIGINT if why == "interrupted" else None
    assert find_loss(run, outcome(1, interrupted=by), ["n2"]) is None


def test_of_the_signals_that_mpich_may_mean_the_one_with_a_remedy_gives_the_hint(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = MPICH_KILLED.replace("Killed (signal 9)", "Unknown signal 15 (signal 15)")
    assert judge(run, outcome(9, ended)) == 1
    said = capsys.readouterr().err
    assert "SIGBUS" in said
    assert "df -h /dev/shm" in said
