"""The Slurm of the tests is a real one, its nodes fail as real ones do, and it leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import slurm_farm
from processes import wait_for
from slurm_farm import Slurm, SlurmError

pytestmark = pytest.mark.nightly
FOUR_TASKS = ("srun", "--label", "--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4")
SHOW_GPUS = ("sh", "-c", "echo ${CUDA_VISIBLE_DEVICES-unset}")
ALL, NONE = ["0,1,2,3"] * 4, ["unset"] * 4
# A process that its job's shell has let go of, as a hung rank may be.
STRAY = "setsid sleep 300 & touch started; wait"
PARENT = """
import sys, time
from pathlib import Path
from slurm_farm import Slurm
with Slurm(Path(sys.argv[1]), nodes=("c1",)) as slurm:
    slurm.run(["sbatch", f"--wrap={sys.argv[2]}"])
    time.sleep(300)
"""


@pytest.fixture(scope="module")
def slurm_farm_up(slurm_here: None) -> Iterator[Slurm]:
    """One that nothing else has used."""
    with slurm_farm.temporary() as made:
        yield made


@pytest.fixture
def folder(slurm_here: None) -> Iterator[Path]:
    """Where a test puts a cluster of its own: does not exist yet."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as parent:
        yield Path(parent, "own")


def traces(folder: Path) -> list[str]:
    """Processes that belong to a cluster in `folder`, and mounts below it, in any namespace."""
    found = []
    for file in ("cmdline", "environ", "mountinfo"):
        for path in Path("/proc").glob(f"[0-9]*/{file}"):
            with contextlib.suppress(OSError):  # ended meanwhile
                if os.fsencode(folder) in path.read_bytes():
                    found.append(str(path))
    return found


def states(slurm: Slurm) -> dict[str, str]:
    lines = slurm.run(["sinfo", "--noheader", "-N", "--format=%N %t"]).stdout.splitlines()
    return dict(line.split() for line in lines)


def state_of(slurm: Slurm, job: int) -> str:
    words = slurm.run(["scontrol", "--oneliner", "show", "job", str(job)]).stdout.split()
    return next(word.removeprefix("JobState=") for word in words if word.startswith("JobState="))


@contextlib.contextmanager
def running(slurm: Slurm, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command whose job runs, all its tasks too: each has made a file named started-NODE."""
    for file in (slurm.folder / "work").glob("started-*"):
        file.unlink()
    task = "touch started-$SLURMD_NODENAME; sleep 300"
    process = subprocess.Popen(
        [*words, "sh", "-c", task],
        env={**os.environ, **slurm.environment},
        cwd=slurm.folder / "work",
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: len(list((slurm.folder / "work").glob("started-*"))) == len(slurm.nodes))
        yield process
    finally:
        process.kill()
        process.communicate()


def test_every_node_is_idle_once_it_is_up(slurm: Slurm) -> None:
    assert states(slurm) == {"c1": "idle", "c2": "idle"}


def test_nodes_are_different_hosts(slurm: Slurm) -> None:
    identity = "hostname; cat /proc/sys/kernel/random/boot_id; touch /dev/shm/$SLURMD_NODENAME; ls /dev/shm"
    done = slurm.run(["srun", "--nodes=2", "--label", "sh", "-c", identity])
    seen = [
        [line[3:] for line in done.stdout.splitlines() if line.startswith(f"{rank}: ")] for rank in range(2)
    ]
    assert [(host, files) for host, _, *files in seen] == [("c1", ["c1"]), ("c2", ["c2"])], done.stderr
    boot_ids = {boot_id for _, boot_id, *_ in seen}
    assert len(boot_ids | {Path("/proc/sys/kernel/random/boot_id").read_text().strip()}) == 3
    assert not Path("/dev/shm/c1").exists()


def test_both_ways_for_mpi_to_start_ranks_are_there(slurm: Slurm) -> None:
    listed = slurm.run(["srun", "--mpi=list"])
    assert {"pmix", "pmi2"} <= set((listed.stdout + listed.stderr).split())
    variables = {"pmix": "PMIX_RANK", "pmi2": "PMI_RANK", "none": "SLURM_PROCID"}
    for way, variable in variables.items():
        words = ["srun", "--nodes=2", "--ntasks-per-node=2", f"--mpi={way}", "printenv", variable]
        done = slurm.run(words)
        assert sorted(done.stdout.split()) == ["0", "1", "2", "3"], done.stderr
    assert slurm.run(["srun", "printenv", "PMIX_RANK", "PMI_RANK"]).stdout == "", "not the default"


@pytest.mark.parametrize(
    ("options", "on_a_node"),
    [
        ((), ALL),
        (("--gpus-per-task=1",), ["0", "1", "2", "3"]),
        (("--gpu-bind=single:1",), ["0", "1", "2", "3"]),
        (("--gpu-bind=map_gpu:3,2,1,0",), ["3", "2", "1", "0"]),
        (("--gpus-per-node=0",), NONE),
    ],
    ids=["all", "per task", "single", "map", "none"],
)
def test_gpus_are_handed_out_as_on_a_real_node(
    slurm: Slurm, options: tuple[str, ...], on_a_node: list[str]
) -> None:
    done = slurm.run([*FOUR_TASKS, *options, *SHOW_GPUS])
    told = sorted(done.stdout.splitlines())
    assert told == [f"{rank}: {gpus}" for rank, gpus in enumerate(on_a_node * 2)], done.stderr


def test_gpus_that_are_not_there_are_refused(slurm: Slurm) -> None:
    done = slurm.run(["srun", "--nodes=1", "--gpus-per-node=5", "true"])
    assert done.returncode == 1
    assert "Requested node configuration is not available" in done.stderr


def test_a_batch_job_returns_its_exit_status(slurm: Slurm) -> None:
    done = slurm.run(
        ["sbatch", "--wait", "--nodes=2", "--output=said", "--wrap=srun hostname; echo $MARK; exit 7"],
        MARK="handed on",
    )
    assert done.returncode == 7, done.stderr
    said = (slurm.folder / "work" / "said").read_text().splitlines()
    assert sorted(said) == ["c1", "c2", "handed on"]


def test_a_cancelled_job_ends_everywhere(slurm: Slurm) -> None:
    with running(slurm, "srun", "--nodes=2", "--job-name=a|b", "--exclusive") as srun:
        waiting = slurm.run(["sbatch", "--parsable", "--nodes=2", "--job-name=next", "--wrap=true"]).stdout
        first, second = slurm.jobs()
        assert (first.state, first.nodes, first.name) == ("RUNNING", "c[1-2]", "a|b")
        assert (second.id, second.state, second.nodes, second.name) == (int(waiting), "PENDING", "", "next")
        slurm.run(["scancel", str(second.id), str(first.id)])
        _, errors = srun.communicate(timeout=60)
        assert srun.returncode != 0
        assert "CANCELLED" in errors
    wait_for(lambda: not slurm.jobs())
    assert [state_of(slurm, job.id) for job in (first, second)] == ["CANCELLED", "CANCELLED"]


def test_a_failed_node_takes_what_ran_on_it(folder: Path) -> None:
    with Slurm(folder, nodes=("c1",), gpus=0) as slurm:
        slurm.run(["sbatch", f"--wrap={STRAY}"])
        wait_for((folder / "work" / "started").exists)
        slurm.kill_node("c1")
        left = {Path(trace).with_name("comm").read_text().strip() for trace in traces(folder)}
        assert left == {"unshare", "munged", "slurmctld", "slurmscriptd"}
        assert "Launching batch job 1" in slurm.log("c1")


def test_down_leaves_nothing(folder: Path) -> None:
    here = Path("/proc/self/mountinfo").read_text()
    slurm = Slurm(folder)
    slurm.down()
    slurm.up()
    try:
        slurm.run(["sbatch", "--nodes=2", f"--wrap=srun sh -c '{STRAY}' & {STRAY}"])
        wait_for((folder / "work" / "started").exists)
        assert traces(folder)
        assert Path("/proc/self/mountinfo").read_text() == here
        with pytest.raises(FileExistsError):
            Slurm(folder).up()
        assert states(slurm)["c1"] in slurm_farm.READY, "a second cluster in one folder harms the first"
    finally:
        slurm.down()
    slurm.down()
    assert not traces(folder)
    assert not folder.exists()


def test_nothing_outlives_tests_that_are_killed(folder: Path) -> None:
    path = str(Path(slurm_farm.__file__).parent)
    words = [sys.executable, "-c", PARENT, str(folder), STRAY]
    with subprocess.Popen(words, env={**os.environ, "PYTHONPATH": path}) as parent:
        try:
            wait_for((folder / "work" / "started").exists)
        finally:
            parent.kill()
    wait_for(lambda: not traces(folder))


@pytest.mark.parametrize(("taken", "daemon"), [(0, "slurmctld"), (2, "c2")])
def test_a_daemon_that_does_not_start_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, taken: int, daemon: str
) -> None:
    with socket.socket() as occupied:
        occupied.bind(("", 0))
        ports = slurm_farm.free_ports(3)
        ports[taken] = occupied.getsockname()[1]
        monkeypatch.setattr(slurm_farm, "free_ports", lambda count: ports)
        with pytest.raises(SlurmError, match=rf"(?s){daemon}: ended.*Address already in use"):
            Slurm(folder).up()
    assert not traces(folder)
    assert not folder.exists()


def test_a_path_too_long_for_sockets_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 60 characters"):
        Slurm(Path("/tmp", "t" * 60))


def test_what_a_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    examine = slurm_farm.problem.__wrapped__
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert examine() == "only root can start a Slurm with nodes in namespaces"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(slurm_farm, "PATH", "/nowhere")
    assert "needs munged, slurmctld, slurmd, srun" in str(examine())
