"""Query the state of jobs and nodes with Slurm's commands."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

from meshrun.launch.supervise.query import query

HINT = "run it on a login node of the cluster; use meshrun launch mpirun for hosts reachable by ssh"
GONE = "GONE"  # not a state of Slurm: Slurm no longer knows the job
OVER = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "REVOKED", "TIMEOUT", GONE,
)  # fmt: skip
FIELD = re.compile(r"(?:^|\s)(JobId|ArrayJobId|ArrayTaskId|JobState|Reason|NodeList|ExitCode)=(\S+)")
JOB_NAME = re.compile(r" JobName=(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class JobState:
    """A job, or one task of an array. id: "17", "17_3"; "17_[4-9]" for tasks not yet started.

    number: of this job or task, unlike `id` without an array's. name: the job's.
    """

    id: str
    state: str
    reason: str = "None"
    exit_code: str = "0:0"
    nodes: str = ""
    number: str = ""
    name: str = ""

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def succeeded(self) -> bool:
        return self.state == "COMPLETED" and self.exit_code == "0:0"


def states(text: str) -> list[JobState]:
    """The jobs in the output of `scontrol show job`."""
    return [_state(record) for record in re.split(r"\n\s*\n", text) if "JobState=" in record]


def _state(record: str) -> JobState:
    values = {name: "" if value == "(null)" else value for name, value in FIELD.findall(record)}
    index, name = values.get("ArrayTaskId"), JOB_NAME.search(record)
    number = job = values["JobId"]
    if index is not None:
        job = f"{values['ArrayJobId']}_{index if index.isdecimal() else f'[{index}]'}"
    reason, code, nodes = (
        values.get("Reason", "None"),
        values.get("ExitCode", "0:0"),
        values.get("NodeList", ""),
    )
    return JobState(job, values["JobState"], reason, code, nodes, number, name[1] if name else "")


def query_job(number: str) -> list[JobState] | str:
    """The states of a job, one for each task of an array, [] if Slurm no longer knows it; or an error
    text."""
    done = query([program("scontrol"), "show", "job", number])
    if done.returncode and "Invalid job id" in done.stdout + done.stderr:
        return []
    return last_line(done) if done.returncode else states(done.stdout)


def failed_nodes(nodes: str) -> list[str]:
    """Those of `nodes` (in Slurm's notation) that do not answer."""
    words = ["--noheader", "--Node", f"--nodes={nodes}", "--states=down,no_respond", "--format=%N"]
    return query([program("sinfo"), *words]).stdout.split()


def program(name: str) -> str:
    """The path of one of Slurm's commands. Raises UserError if it is not installed."""
    from meshrun.runner.errors import UserError

    path = shutil.which(name)
    if path is None:
        raise UserError(
            f"no {name} on PATH: Slurm is not installed here",
            hint=f"{HINT}; Debian's package is slurm-client",
        )
    return path


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The error of a command of Slurm, without the reference to its help that follows an unknown option."""
    lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith('Try "')]
    return lines[-1] if lines else f"exit status {done.returncode}"
