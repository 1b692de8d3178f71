"""`meshrun launch slurm` and the batch scripts on a real Slurm: runs, verdicts, faults, what is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import slurm_farm
from processes import DEADLOCK, launcher_problem, nightly, own_lines, wait_for
from slurm_farm import Slurm

from meshrun.launch.mpi import library as mpi_library
from meshrun.launch.mpi.rank_command import PROGRAM
from meshrun.launch.slurm import pmi

SCRIPTS = Path(__file__).parents[2] / "slurm"
# A cluster of device files: jobs may ask for GPUs, and nobody can compute on them. More ranks than cores.
ENVIRONMENT = {
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    # MPICH 5 passes the addresses of all of UCX's transports through Slurm's PMI-2. Where they are long,
    # every second start fails: "value not properly terminated in client request", with bytes of other memory.
    "UCX_TLS": "tcp,self,posix",
}
JOB = """
import os
import signal
import time
from pathlib import Path

import meshrun

@meshrun.map_blocks(split_dependent=True)
def wait(block, *, seconds: float = 0.0, dies: int = -1):
    \"\"\"Note what this rank is, and wait.\"\"\"
    task, gpus = os.environ["SLURM_PROCID"], os.environ.get("NOTE", os.environ.get("CUDA_VISIBLE_DEVICES"))
    Path("rank-" + task).write_text(f"{os.environ['SLURMD_NODENAME']} {gpus}")
    if int(task) == dies:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0 if Path("again").exists() else seconds)
    return block
"""
WAIT = ("run", "job.py:wait", "in.npy", "out.npy", "--device", "cpu")


@pytest.fixture(scope="session")
def way(refuse: Callable[[str | None], None]) -> str:
    """srun's --mpi for the MPI of this Python."""
    library = mpi_library.loaded()
    refuse(slurm_farm.problem() or launcher_problem())
    if library is None:
        refuse("no MPI that mpi4py loads")
        raise AssertionError
    return pmi.ACCEPTED[library.vendor][0]


@pytest.fixture
def slurm(slurm: Slurm, way: str) -> Slurm:
    """With a job and its input in an otherwise empty folder."""
    return with_job(slurm)


@pytest.fixture
def slow_slurm(slow_slurm: Slurm, way: str) -> Slurm:
    return with_job(slow_slurm)


def with_job(cluster: Slurm) -> Slurm:
    work = cluster.folder / "work"
    for path in work.iterdir():
        path.unlink()
    (work / "job.py").write_text(JOB)
    np.save(work / "in.npy", np.arange(64 * 48, dtype=np.float32).reshape(64, 48))
    return cluster


def launch(*words: str) -> list[str]:
    return [*PROGRAM, "launch", "slurm", *words]


def run(slurm: Slurm, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return slurm.run(launch(*words), timeout=DEADLOCK, **ENVIRONMENT, **environment)


def seen(slurm: Slurm) -> dict[str, str]:
    """What ranks have noted of themselves: host, and CUDA_VISIBLE_DEVICES."""
    return {path.name.removeprefix("rank-"): path.read_text() for path in slurm.folder.glob("work/rank-*")}


@contextlib.contextmanager
def running(slurm: Slurm, *words: str, ranks: int = 4) -> Iterator[subprocess.Popen[str]]:
    """The command, once all ranks of its job are in their kernel."""
    command = subprocess.Popen(
        words,
        env={**os.environ, **slurm.environment, **ENVIRONMENT, "TMPDIR": str(slurm.folder / "work")},
        cwd=slurm.folder / "work",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: command.poll() is not None or len(seen(slurm)) == ranks)
        yield command
    finally:
        command.kill()
        command.communicate()


def left(slurm: Slurm) -> list[str]:
    """What nobody asked for in the working directory, which is everyone's TMPDIR too."""
    # The note is of a rank that was killed before it could remove it.
    wanted = ("job.py", "in.npy", "meshrun-*.out", "meshrun-*-failure.json", "rank-*")
    return [path.name for path in (slurm.folder / "work").iterdir() if not any(map(path.match, wanted))]


@pytest.mark.mpi_library
def test_the_edge_filter_on_two_hosts(slurm: Slurm, way: str) -> None:
    words = ("run", "laplacian", "in.npy", "out.npy", "--device", "cpu", "--verify")
    done = run(slurm, "-j", "2x2", "--no-gpus", "--", *words)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "4 ranks on 2 hosts (CPU)" in done.stdout
    assert "verified" in done.stdout
    assert "\x1e" not in done.stdout, "what ranks tell the command is not for people"
    assert np.load(slurm.folder / "work" / "out.npy").shape == (64, 48)
    mpi, submitted, *_ = own_lines(done.stderr)
    assert mpi.startswith(f"meshrun: mpi: {way}, for ")
    assert re.search(r"its output goes to meshrun-\d+\.out$", submitted)


def test_bandwidth_between_two_hosts_into_a_file_of_an_earlier_job(slurm: Slurm) -> None:
    row = "        8192          2048     float     sum      -1     1.00    9.99    9.99       0\n"
    old = slurm.folder / "work" / "my output c1"
    old.write_text(row * 1000)
    words = ("bench", "all_reduce", "--device", "cpu", "-b", "1K", "-e", "4K", "-n", "2", "-w", "1")
    done = run(slurm, "-j", "2x1", "--no-gpus", "--output", "my output %N", "--", *words)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "# Out of bounds values : 0 OK" in done.stdout
    assert re.findall(r"^ +(\d+) +\d+ +float ", done.stdout, re.MULTILINE) == ["1024"]
    hosts = {line.split()[8] for line in done.stdout.splitlines() if line.startswith("#  Rank ")}
    assert hosts == {"c1", "c2"}
    assert "9.99" not in old.read_text()


def test_options_of_sbatch(slurm: Slurm) -> None:
    done = run(slurm, "-j", "1x1", "--no-gpus", "--nodelist", "c[1-2]", "--", *WAIT)
    assert done.returncode == 2, done.stdout
    assert "Try: as many hosts for -j as in --nodelist" in done.stderr
    place = ("--exclude", "c1", "--mem", "64M", "--signal", "USR1@60")
    done = run(slurm, "-j", "1x1", "--no-gpus", *place, "--", *WAIT)
    assert done.returncode == 0, done.stderr + done.stdout
    assert [text.split()[0] for text in seen(slurm).values()] == ["c2"]
    done = run(slurm, "-j", "1x1", "--no-gpus", "--requeue=expedite", "--time", "1", "--", *WAIT)
    before = "doesn't allow an argument. Try: --requeue without =expedite, which this Slurm does not have"
    assert done.returncode == 0 or before in done.stderr, done.stderr


def test_an_output_in_no_folder_is_refused(slurm: Slurm) -> None:
    done = run(slurm, "-j", "1x1", "--no-gpus", "--output", "logs/run.log", "--", "selftest")
    assert done.returncode == 2
    assert "--output logs/run.log: folder " in done.stderr
    assert not slurm.jobs()


@pytest.mark.parametrize(("bind", "visible"), [nightly("node", ("0,1", "0,1")), ("task", ("0", "1"))])
def test_gpus_of_a_rank(slurm: Slurm, bind: str, visible: tuple[str, str]) -> None:
    done = run(slurm, "-j", "2x2", "--bind-gpus", bind, "--", *WAIT)
    assert done.returncode == 0, done.stderr + done.stdout
    first, second = visible
    assert seen(slurm) == {"0": f"c1 {first}", "1": f"c1 {second}", "2": f"c2 {first}", "3": f"c2 {second}"}


def test_a_job_in_the_allocation_around_it(slurm: Slurm) -> None:
    words = launch("-j", "2x2", "--no-gpus", "-x", "NOTE=mine", "--", *WAIT)
    done = slurm.run(["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=4", *words], **ENVIRONMENT)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "starting a step with srun" in done.stderr
    assert set(seen(slurm).values()) == {"c1 mine", "c2 mine"}
    assert not list(slurm.folder.glob("work/*.out"))


def test_an_allocation_without_gpus_is_named(slurm: Slurm) -> None:
    words = launch("-j", "1x1", "--", *WAIT)
    done = slurm.run(["salloc", "--quiet", "--nodes=1", *words], **ENVIRONMENT)
    assert done.returncode == 1
    assert "meshrun: srun cannot start the ranks: Invalid generic resource (gres)" in done.stderr
    assert "Try: --no-gpus, or GPUs in the allocation" in done.stderr


def test_each_task_of_an_array_has_its_verdict(slurm: Slurm) -> None:
    words = ("run", "job.py:wait", "in.npy", "out-%a.npy", "--device", "cpu", "--dies", "%a")
    done = run(slurm, "-j", "1x2", "--no-gpus", "--array", "1-2", "--", *words)
    assert done.returncode == 1, done.stderr
    assert [path.name for path in slurm.folder.glob("work/out-*")] == ["out-2.npy"]
    told = [line for line in done.stderr.splitlines() if "output in" in line or "[rank" in line]
    assert len(told) == 3, done.stderr
    assert "meshrun: [rank 1, host c" in told[0]
    assert "_1: failed, output in " in told[1]
    assert "_2: complete, output in " in told[2]


@pytest.mark.mpi_library
def test_the_wrong_mpi_is_refused_by_name(slurm: Slurm, way: str) -> None:
    wrong = {"pmix": "pmi2", "pmi2": "pmix"}[way]
    done = run(slurm, "-j", "2x1", "--no-gpus", "--mpi", wrong, "--", *WAIT)
    assert done.returncode == 2
    assert f"--mpi {wrong}: " in done.stderr
    assert "so 2 ranks would be 2 runs. Try: --mpi " + way in done.stderr
    assert not slurm.jobs()


@pytest.mark.mpi_library
def test_ranks_that_do_not_find_each_other_refuse_to_run(slurm: Slurm) -> None:
    done = run(slurm, "-j", "2x1", "--no-gpus", "--srun-args", "--mpi=none", "--", *WAIT)
    assert done.returncode == 2, done.stderr + done.stdout
    assert "srun started 2 processes, but MPI connects only 1 of them" in done.stdout
    assert "srun --mpi=pmix (Open MPI) or --mpi=pmi2" in done.stdout
    assert not seen(slurm)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("-j", "2x1", "--", "run", "nothing"), "unknown job"),
        (
            ("-j", "2x1", "--partition", "x", "--", *WAIT),
            "rejected the job: got sbatch: error: Batch job",
        ),
        (("-j", "1x1", "--mpi", "pmi9", "--", *WAIT), "this Slurm has no --mpi pmi9"),
    ],
)
def test_mistakes_are_found_before_anything_runs(slurm: Slurm, words: tuple[str, ...], reason: str) -> None:
    done = run(slurm, *words)
    assert done.returncode == 2
    assert reason in done.stderr
    assert not slurm.jobs()


@pytest.mark.mpi_library
def test_a_rank_that_is_killed_is_named(slurm: Slurm) -> None:
    done = run(slurm, "-j", "2x2", "--no-gpus", "--", *WAIT, "--seconds", "300", "--dies", "3")
    assert done.returncode == 1
    assert "meshrun: [rank 3, host c2] ended too early: Killed" in done.stderr
    assert left(slurm) == []


@pytest.mark.mpi_library
@pytest.mark.parametrize("number", [signal.SIGINT, nightly(signal.SIGTERM)], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_job_is_gone(slurm: Slurm, number: signal.Signals) -> None:
    words = launch("-j", "2x2", "--no-gpus", "--", *WAIT, "--seconds", "300")
    with running(slurm, *words) as command:
        command.send_signal(number)
        _, errors = command.communicate(timeout=DEADLOCK)
    assert command.returncode == 128 + number, errors
    assert f"interrupted by {number.name}: job" in errors
    assert not slurm.jobs()
    assert left(slurm) == []


@pytest.fixture
def hears_sighup() -> Iterator[None]:
    """As nohup, under which this may run, does not."""
    handler = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, handler)


def test_a_lost_terminal_leaves_the_job(slurm: Slurm, hears_sighup: None) -> None:
    words = launch("-j", "2x2", "--no-gpus", "--", *WAIT, "--seconds", "300")
    with running(slurm, *words) as command:
        command.send_signal(signal.SIGHUP)
        _, errors = command.communicate(timeout=DEADLOCK)
    assert command.returncode == 128 + signal.SIGHUP, errors
    assert "the job continues: squeue --job " in errors
    assert [job.state for job in slurm.jobs()] == ["RUNNING"]


def test_a_job_that_someone_else_cancels(slurm: Slurm) -> None:
    words = launch("-j", "2x2", "--no-gpus", "--", *WAIT, "--seconds", "300")
    with running(slurm, *words) as command:
        slurm.run(["scancel", str(slurm.jobs()[0].id)])
        _, errors = command.communicate(timeout=DEADLOCK)
    assert command.returncode == 1
    assert "ended as CANCELLED" in errors
    assert left(slurm) == []


def test_a_job_that_slurm_starts_again_is_judged_by_its_last_attempt(slurm: Slurm) -> None:
    words = launch("-j", "2x2", "--no-gpus", "--requeue", "--", *WAIT, "--seconds", "300")
    with running(slurm, *words) as command:
        (slurm.folder / "work" / "again").touch()
        job = str(slurm.jobs()[0].id)
        slurm.run(["scontrol", "requeue", job])
        wait_for(lambda: [job.state for job in slurm.jobs()] == ["PENDING"])
        # By itself in two minutes; within the second in which an attempt was ended, the next is refused.
        slurm.run(["scontrol", "update", f"JobId={job}", "StartTime=now+2"])
        output, errors = command.communicate(timeout=DEADLOCK)
    assert command.returncode == 0, output + errors
    assert sorted(left(slurm)) == ["again", "out.npy"]
    assert (slurm.folder / "work" / f"meshrun-{job}.out").read_text().count(" attempt ") == 2


@pytest.mark.parametrize(
    ("script", "words"),
    [
        pytest.param(
            "array_job",
            ("run", "laplacian", "in.npy", "out.npy", "--device", "cpu"),
            marks=pytest.mark.mpi_library,
        ),
        (
            "bandwidth",
            ("bench", "all_reduce", "--device", "cpu", "-b", "1K", "-e", "1K", "-n", "1", "-w", "0"),
        ),
    ],
)
def test_the_batch_scripts_run(slurm: Slurm, way: str, script: str, words: tuple[str, ...]) -> None:
    meshrun = slurm.folder / "work" / "meshrun"
    meshrun.write_text(f'#!/bin/sh\nexec {PROGRAM[0]} {PROGRAM[1]} "$@"\n')
    meshrun.chmod(0o755)
    sizes = ("--ntasks-per-node=2", "--gpus-per-node=2", "--output=said")
    batch = ["sbatch", "--parsable", *sizes, str(SCRIPTS / f"{script}.sbatch"), *words]
    done = slurm.run(batch, MESHRUN_MPI=way, MESHRUN=str(meshrun), **ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not slurm.jobs())
    said = (slurm.folder / "work" / "said").read_text()
    assert "JobState=COMPLETED" in slurm.run(["scontrol", "show", "job", done.stdout.strip()]).stdout, said
    assert ("4 ranks on 2 hosts" if script == "array_job" else "# Out of bounds values : 0 OK") in said


@pytest.mark.parametrize("script", ["array_job_container", "bandwidth_container"])
def test_slurm_understands_the_scripts_for_containers(slurm: Slurm, script: str) -> None:
    batch = [
        "sbatch",
        "--test-only",
        "--gpus-per-node=4",
        "--ntasks-per-node=2",
        str(SCRIPTS / f"{script}.sbatch"),
    ]
    done = slurm.run(batch)
    assert done.returncode == 0, done.stderr
    assert "on nodes c[1-2] in partition gpu" in done.stderr


def test_a_killed_node_that_slurm_misses_is_named(slurm: Slurm) -> None:
    """The first, which has the script."""
    words = launch("-j", "2x2", "--no-gpus", "--host-timeout", "60", "--", *WAIT, "--seconds", "300")
    with running(slurm, *words) as command:
        slurm.kill_node("c1")
        output, errors = command.communicate(timeout=DEADLOCK)
    assert command.returncode == 1, errors
    assert "ended as NODE_FAIL" in errors
    assert "c1 failed" in errors, output + errors


@pytest.mark.parametrize(
    "node", [nightly("c2"), "c1"], ids=["not the first", "the first, which has the script"]
)
def test_a_killed_node_that_slurm_still_waits_for_is_named(slow_slurm: Slurm, node: str) -> None:
    words = launch("-j", "2x2", "--no-gpus", "--host-timeout", "3", "--", *WAIT, "--seconds", "300")
    with running(slow_slurm, *words) as command:
        slow_slurm.kill_node(node)
        output, errors = command.communicate(timeout=DEADLOCK)
    assert command.returncode == 1, errors
    ranks = {"c1": "0-1", "c2": "2-3"}[node]
    assert f"meshrun: host {node} (ranks {ranks}) silent for 3 s" in output + errors
    assert left(slow_slurm) == []


def test_a_job_that_loses_a_node_is_started_again(slow_slurm: Slurm) -> None:
    words = launch(
        "-j", "2x2", "--no-gpus", "--requeue", "--host-timeout", "3", "--", *WAIT, "--seconds", "300"
    )
    with running(slow_slurm, *words) as command:
        job = str(slow_slurm.jobs()[0].id)
        (slow_slurm.folder / "work" / "again").touch()
        slow_slurm.kill_node("c2")
        wait_for(
            lambda: command.poll() is not None or [job.state for job in slow_slurm.jobs()] != ["RUNNING"]
        )
        slow_slurm.start_node("c2")  # until then, or until Slurm misses it, the attempt is not over
        wait_for(
            lambda: command.poll() is not None or [job.state for job in slow_slurm.jobs()] == ["PENDING"]
        )
        slow_slurm.run(["scontrol", "update", f"JobId={job}", "StartTime=now+2"])
        output, errors = command.communicate(timeout=DEADLOCK)
    assert command.returncode == 0, output + errors
    assert "host c2 (ranks 2-3) silent for 3 s" in output
    assert sorted(left(slow_slurm)) == ["again", "out.npy"]
