"""The launcher's command of an MPIJob, run with what the operator gives its pods, by this Python's MPI."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hosts import problem
from kubernetes_schema import problems
from mpijob import MpiJob

from meshrun.launch.kubernetes import manifest
from meshrun.launch.kubernetes.pods import Implementation, Pods
from meshrun.launch.mpi.launcher import find
from meshrun.launch.spec import LaunchSpec, make_spec
from meshrun.launch.supervise.judge import Outcome, judge
from meshrun.launch.supervise.status_lines import StatusLines
from meshrun.runner.world.run_status import RunDirectory

TOKEN = "f00d"
BENCH = ("bench", "all_reduce", "--device", "cpu", "-b", "8", "-e", "1K", "-f", "8", "-n", "2", "-w", "1")
VENDORS: dict[str, Implementation] = {"Open MPI": "openmpi", "MPICH": "mpich", "Intel MPI": "intel"}
WAITING = b"waiting for ssh to pi-worker-1.pi.default.svc, attempt 1"
LIMIT = 120.0  # seconds: a run that takes so long is stuck
MENDED = ("PRTE_MCA_prte_default_hostfile", "PRTE_MCA_prte_keep_fqdn_hostnames", "PRTE_MCA_plm_ssh_args")


@pytest.fixture
def folder(refuse: Callable[[str | None], None]) -> Iterator[Path]:
    """For the pods; with a short path."""
    refuse(problem())
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as name:
        yield Path(name)


@dataclass
class Ended:
    """A launcher pod that has ended: its exit status, what people saw of its log, and what ranks told."""

    status: int
    log: str
    run: RunDirectory

    @property
    def hosts(self) -> list[str]:
        """Where the ranks were, in their order."""
        told = [self.run.rank_of(int(file.name[4:].partition("@")[0]), file.name.partition("@")[2])
                for file in self.run.path.glob("pid-*")]  # fmt: skip
        return [rank["host"] for rank in sorted(filter(None, told), key=lambda rank: int(rank["rank"]))]

    @property
    def verdict(self) -> int:
        return judge(self.run, Outcome(self.status, None, "", self.log))


def mpi() -> Implementation:
    return VENDORS[find().vendor]


def job(spec: LaunchSpec, **pods: Any) -> dict[str, Any]:
    (made,) = manifest.documents(
        spec,
        Pods("none", name="pi", gpu_resource=None, shm="256Mi", mpi=mpi(), python=sys.executable, **pods),
        TOKEN,
    )
    assert problems(made) == []
    return made


def end(process: subprocess.Popen[bytes], folder: Path, said: bytes = b"") -> Ended:
    """said: what was read of its log before."""
    try:
        log, _ = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    (folder / "run").mkdir()
    run = RunDirectory(folder / "run")
    told = StatusLines(run, TOKEN)
    text = told.feed(said + log) + told.finish()
    return Ended(process.returncode, text.decode(errors="replace"), run)


@pytest.mark.mpi_library
def test_ranks_run_on_the_workers_and_tell_the_verdict(folder: Path) -> None:
    with MpiJob(job(make_spec(BENCH, (2, 2))), folder) as pods:
        for worker in pods.workers:
            pods.start_worker(worker)
        ended = end(pods.start_launcher(), folder)
    assert ended.hosts == ["pi-worker-0", "pi-worker-0", "pi-worker-1", "pi-worker-1"], ended.log
    assert ended.verdict == 0, ended.log
    assert "1024" in ended.log


@pytest.mark.mpi_library
def test_variables_reach_the_ranks_as_they_are(folder: Path) -> None:
    spec = make_spec(BENCH, (2, 1), settings={"NCCL_DEBUG": "WARN", "PRICE": "$$(HOME) 7"})
    made = job(spec)
    container = made["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    words = container["args"]
    tell = "import os; print(os.uname().nodename, os.environ['NCCL_DEBUG'], os.environ['PRICE'])"
    container["args"] = [*words[: words.index(sys.executable)], sys.executable, "-c", tell]
    with MpiJob(made, folder) as pods:
        for worker in pods.workers:
            pods.start_worker(worker)
        ended = end(pods.start_launcher(), folder)
    said = sorted(line for line in ended.log.splitlines() if "WARN" in line)
    assert said == ["pi-worker-0 WARN $$(HOME) 7", "pi-worker-1 WARN $$(HOME) 7"], ended.log


@pytest.mark.mpi_library
def test_a_rank_that_fails_is_the_verdict(folder: Path) -> None:
    spec = make_spec(("run", "laplacian", "/nowhere/in.npy", "/nowhere/out.npy", "--device", "cpu"), (2, 1))
    with MpiJob(job(spec), folder) as pods:
        for worker in pods.workers:
            pods.start_worker(worker)
        ended = end(pods.start_launcher(), folder)
    assert ended.verdict == 2, ended.log
    assert "meshrun: the output's folder does not exist: got /nowhere" in ended.log


def test_a_late_worker_is_waited_for(folder: Path) -> None:
    with MpiJob(job(make_spec(BENCH, (2, 1))), folder) as pods:
        pods.start_worker("pi-worker-0")
        launcher = pods.start_launcher()
        assert launcher.stdout is not None
        said = b""
        while WAITING not in said and (line := launcher.stdout.readline()):
            said += line
        pods.start_worker("pi-worker-1")
        ended = end(launcher, folder, said)
    assert ended.hosts == ["pi-worker-0", "pi-worker-1"], ended.log
    assert ended.verdict == 0, ended.log
    assert WAITING.decode() in ended.log


def test_a_missing_worker_ends_the_job_with_its_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MpiJob(job(make_spec(BENCH, (2, 1)), start_timeout=3), folder) as pods:
        pods.start_worker("pi-worker-0")
        ended = end(pods.start_launcher(), folder)
    assert ended.status == 1
    assert ended.hosts == []
    assert "meshrun: no answer by ssh from pi-worker-1.pi.default.svc in " in ended.log
    assert "kubectl describe pod pi-worker-1" in ended.log
    assert "no answer by ssh from pi-worker-0" not in ended.log
    assert ended.verdict == 1
    assert capsys.readouterr().err == ""  # all is said in the log


@pytest.mark.skipif(find().vendor != "Open MPI", reason="a fault of the operator with Open MPI 5")
def test_without_the_mended_variables_ranks_run_in_the_launcher_pod(folder: Path) -> None:
    """Which the preflight notices; without its expectation the job would succeed."""
    made = job(make_spec(BENCH, (2, 1)))
    words = made["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["args"]
    program = words[words.index(sys.executable) :]
    with MpiJob(made, folder) as pods:
        for worker in pods.workers:
            pods.start_worker(worker)
        command = [words[0], "--map-by", ":OVERSUBSCRIBE", "-n", "2", *program]
        ended = end(pods.start_launcher(command, without=MENDED), folder)
    assert ended.status == 6  # bench's for a mistake of whoever started it
    assert "on a different number of hosts than planned: got 1: pi-launcher, expected 2" in ended.log
