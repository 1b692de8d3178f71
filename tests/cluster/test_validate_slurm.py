"""The health check and batch job of `meshrun validate` in a real Slurm; meshrun and GPUs are stand-ins."""

from __future__ import annotations

import contextlib
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import slurm_farm
from processes import wait_for
from slurm_farm import Slurm

SCRIPTS = Path(__file__).parents[2] / "slurm"
SENTENCE = "host c1, GPU 3: its NIC at 61 % of its siblings (29.1 of 48.0 GB/s, flows, 4 partners)"
# Seconds between two health checks. With 1, slurmctld, which looks once a second, begins one each time and
# never pings, and a node that is resumed does not respond until it is pinged.
INTERVAL = 2

# A node is critical where there is a file critical.NODE.CONTEXT.
MESHRUN = """#!/bin/sh
context=${{SLURM_SCRIPT_CONTEXT:-health}}
echo "$context $*" >>"{here}/calls.$SLURMD_NODENAME"
[ -e "{here}/critical.$SLURMD_NODENAME.$context" ] || {{ echo "OK: fine"; exit 0; }}
echo "CRITICAL: {sentence}"
exit 2
"""
# Notes what the check has to say.
LOGGER = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
echo "$2" >>"{here}/log"
"""
DRIVER = """#!/bin/sh
if [ "$1" = -L ]; then for i in 0 1 2 3; do echo "GPU $i: NVIDIA H200 (UUID: GPU-$i)"; done; fi
"""
# The nodes of the farm share a file system, and its slurm.conf is not where Slurm would look.
SETTINGS = """
MESHRUN={here}/meshrun
MESHRUN_LOCK={here}/lock.$SLURMD_NODENAME
PATH={here}/bin:$PATH
export SLURM_CONF={slurm}/slurm.conf
"""
HEALTH_CHECK = f"""
HealthCheckProgram={{here}}/check
HealthCheckInterval={INTERVAL}
HealthCheckNodeState=ANY
"""
PROLOG = """
Prolog={here}/check
PrologFlags=Alloc
"""
# Ranks that leave with the verdict as their exit status, one after the other.
RANK = """#!/bin/sh
while [ $# -gt 1 ]; do [ "$1" != -J ] || report=$2; shift; done
[ "$SLURM_PROCID" != 0 ] || {{ echo "CRITICAL: {sentence}"; echo '{{"status": "critical"}}' >"$report"; }}
sleep "0.$SLURM_PROCID"
exit 2
"""


@dataclass(frozen=True)
class Cluster:
    slurm: Slurm
    here: Path

    def critical(self, node: str, context: str) -> Path:
        return self.here / f"critical.{node}.{context}"

    def calls(self, node: str, context: str) -> list[str]:
        file = self.here / f"calls.{node}"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.startswith(f"{context} ")]

    def wait_for_skips(self, count: int, words: str) -> None:
        """Wait for so many more checks that do not measure, because of what begins with `words`.

        After one, no earlier check goes on: a node's checks exclude each other.
        """
        file, sentence = self.here / "log", re.compile(f"{re.escape(words)}.*: not measured")

        def skips() -> int:
            return len(sentence.findall(file.read_text())) if file.exists() else 0

        before = skips()
        wait_for(lambda: skips() >= before + count)

    def show(self, node: str) -> dict[str, str]:
        lines = self.slurm.run(["scontrol", "show", "node", node]).stdout.splitlines()
        words = [word for line in lines if "Reason=" not in line for word in line.split()]
        reasons = [line.strip() for line in lines if "Reason=" in line]
        return dict(word.split("=", 1) for word in [*words, *reasons] if "=" in word)

    def undrain(self, node: str) -> subprocess.CompletedProcess[str]:
        words = ["sh", str(SCRIPTS / "healthcheck.sh"), "--undrain", node]
        return self.slurm.run(words, MESHRUN_CONF=str(self.here / "settings"))


@contextlib.contextmanager
def configured(extra: str) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder, pytest.MonkeyPatch.context() as patch:
        here = Path(folder)
        here.chmod(0o755)
        (here / "bin").mkdir()
        check = f"#!/bin/sh\nMESHRUN_CONF={here}/settings exec sh {SCRIPTS}/healthcheck.sh\n"
        programs = {
            "meshrun": MESHRUN.format(here=here, sentence=SENTENCE),
            "rank": RANK.format(sentence=SENTENCE),
            "check": check,
            "bin/nvidia-smi": DRIVER,
            "bin/logger": LOGGER.format(here=here),
        }
        for name, text in programs.items():
            (here / name).write_text(text)
            (here / name).chmod(stat.S_IRWXU)
        (here / "settings").write_text(SETTINGS.format(here=here, slurm=here / "s"))
        patch.setattr(slurm_farm, "CONFIGURATION", slurm_farm.CONFIGURATION + extra.format(here=here))
        with Slurm(here / "s", slurmd_timeout=300) as slurm:  # no test here loses a node
            yield Cluster(slurm, here)


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[Cluster]:
    """With the script as HealthCheckProgram."""
    with configured(HEALTH_CHECK) as made:
        yield made


@pytest.fixture(scope="module")
def with_prolog(slurm_here: None) -> Iterator[Cluster]:
    """With the script as Prolog, and without health checks."""
    with configured(PROLOG) as made:
        yield made


def test_a_node_is_drained_with_the_parts_name_and_resumed(cluster: Cluster) -> None:
    wait_for(lambda: bool(cluster.calls("c1", "health")))
    assert cluster.show("c1")["State"] == "IDLE"
    cluster.critical("c1", "health").touch()
    wait_for(lambda: "DRAIN" in cluster.show("c1")["State"])
    cluster.critical("c1", "health").unlink()
    assert cluster.show("c1")["Reason"].startswith(f"meshrun: {SENTENCE} [")
    assert cluster.show("c2")["State"] == "IDLE"
    assert cluster.undrain("c2").returncode == 1
    done = cluster.undrain("c1")
    assert (done.returncode, done.stdout) == (
        0, f"meshrun: c1 is resumed; it was drained for: {SENTENCE}\n",
    )  # fmt: skip
    wait_for(lambda: cluster.show("c1")["State"] == "IDLE")  # and responds
    assert "Reason" not in cluster.show("c1")


def test_what_a_person_has_drained_stays_so(cluster: Cluster) -> None:
    words = ["scontrol", "update", "nodename=c2", "state=drain", "reason=disk [ticket 7]"]
    assert cluster.slurm.run(words).returncode == 0
    cluster.critical("c2", "health").touch()
    cluster.wait_for_skips(1, "c2 is IDLE+DRAIN")
    before = cluster.calls("c2", "health")
    cluster.wait_for_skips(2, "c2 is IDLE+DRAIN")
    cluster.critical("c2", "health").unlink()
    assert cluster.calls("c2", "health") == before
    assert cluster.show("c2")["Reason"].startswith("disk [ticket 7] [")
    done = cluster.undrain("c2")
    assert (done.returncode, "disk [ticket 7]" in done.stdout) == (1, True)
    cluster.slurm.run(["scontrol", "update", "nodename=c2", "state=resume"])
    wait_for(lambda: cluster.show("c2")["State"] == "IDLE")


def test_a_node_with_a_job_is_not_disturbed(cluster: Cluster) -> None:
    words = ["srun", "--nodelist=c1", "--gpus-per-node=1", "sleep", "600"]
    with subprocess.Popen(words, env={"PATH": slurm_farm.PATH, **cluster.slurm.environment}):
        try:
            cluster.wait_for_skips(1, "c1 has jobs")
            before = cluster.calls("c1", "health")
            cluster.wait_for_skips(2, "c1 has jobs")
            assert cluster.calls("c1", "health") == before
        finally:
            cluster.slurm.run(["scancel", "--user=root"])
    wait_for(lambda: cluster.show("c1")["State"] == "IDLE")


def test_the_batch_jobs_exit_status_is_the_verdict(with_prolog: Cluster) -> None:
    """Although its ranks leave with a bad one, not all at once."""
    words = ["sbatch", "--wait", "--parsable", "--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=4"]
    done = with_prolog.slurm.run(
        [*words, str(SCRIPTS / "validate.sbatch")], MESHRUN_MPI="none", MESHRUN=str(with_prolog.here / "rank")
    )
    work = with_prolog.slurm.folder / "work"
    job = done.stdout.strip()
    said = (work / f"validate-{job}.out").read_text()
    assert done.returncode == 2, said
    assert f"CRITICAL: {SENTENCE}" in said.splitlines()
    assert (work / f"validate-{job}.json").exists()


def test_a_job_is_requeued_and_its_node_keeps_our_reason(with_prolog: Cluster) -> None:
    before = with_prolog.calls("c2", "prolog_slurmd")
    for gpus in (1, 4):  # a job with one of four has neighbours
        words = ["srun", "--nodelist=c2", f"--gpus-per-node={gpus}", "hostname"]
        assert with_prolog.slurm.run(words).stdout == "c2\n"
    assert with_prolog.calls("c2", "prolog_slurmd") == [
        *before,
        "prolog_slurmd -n 4 validate --quick --rungs gpu,host,pairs,node",
    ]
    wait_for(lambda: with_prolog.show("c2")["State"] == "IDLE")  # the epilog has ended
    with_prolog.critical("c2", "prolog_slurmd").touch()
    with_prolog.slurm.run(["sbatch", "--nodelist=c2", "--gpus-per-node=4", "--wrap=true"])
    wait_for(lambda: "DRAIN" in with_prolog.show("c2")["State"])
    with_prolog.critical("c2", "prolog_slurmd").unlink()
    wait_for(lambda: [job.state for job in with_prolog.slurm.jobs()] == ["PENDING"])
    assert with_prolog.show("c2")["Reason"].startswith(f"meshrun: {SENTENCE} [")
    with_prolog.slurm.run(["scancel", "--user=root"])
    wait_for(lambda: not with_prolog.slurm.jobs())
    assert with_prolog.undrain("c2").returncode == 0
    # Slurm may still wait for a node that has failed a job to answer its next ping.
    wait_for(lambda: with_prolog.show("c2")["State"] in ("IDLE", "IDLE+NOT_RESPONDING"))
