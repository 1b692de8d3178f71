"""A plan as a batch script for Slurm: what to ask for, and the one srun that starts the ranks."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Literal

from launch.local import PROGRAM, plan_words
from launch.mpirun import OVER_TCP, wanted
from launch.plan import Plan

# Of a rank: its own thread, those that read and write files, and NCCL's, which feeds the network.
CPUS_PER_RANK = 4
INDEX = "%a"  # of a task of an array, in words as in file names
PER_TASK = "One GPU to each task: where Slurm shuts the others off, NCCL copies through the host's memory."
# After srun, of a job that may be started again.
AGAIN = """\
status=$?
# Ranks miss a host before Slurm does, which would call the job failed, and not start it again. Three times at
# most: a host that Slurm does not miss at all may be given to the job for ever.
if [ $status -ne 0 ] && [ -e "$lost" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 3 ]; then
    scontrol requeue "$job"
fi
exit $status"""
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Job:
    """What Slurm must know beside the plan; texts as sbatch's options of the same names take them.

    mpi: how srun joins the ranks (`srun --mpi`). folder: the working directory, at the same path in a
    container. gpus: one for each rank. bind_gpus: "node", every rank sees the GPUs of its host and takes its
    own by local rank; "task", each sees one. cpus_per_task: cores of a rank. exclusive: no other job on
    the hosts. container: an image, for Pyxis. srun_args: further words for srun. output: a file
    name with %j, or %A and %a for the tasks of an array.
    """

    mpi: str
    folder: str
    gpus: bool = True
    bind_gpus: Literal["node", "task"] = "node"
    cpus_per_task: int = CPUS_PER_RANK
    exclusive: bool = False
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    constraint: str | None = None
    array: str | None = None
    dependency: str | None = None
    requeue: bool = False
    container: str | None = None
    container_mounts: str | None = None
    srun_args: tuple[str, ...] = ()
    output: str | None = None

    def __post_init__(self) -> None:
        if self.container_mounts and not self.container:
            raise ValueError("--container-mounts without --container")
        if self.array and INDEX not in self.output_file:
            raise ValueError(f"--output {self.output}: {INDEX} is to tell the tasks of the array apart")

    @property
    def output_file(self) -> str:
        return self.output or ("meshrun-%A_%a.out" if self.array else "meshrun-%j.out")


def script(plan: Plan, job: Job, token: str | None = None) -> str:
    """The batch script. ValueError where a value does not fit on a line of it.

    token: of the lines by which ranks tell their verdict in the output; None where nobody reads them.
    """
    exported = [f"export {name}={value}" for name, value in _exports(plan, job)]
    attempt = [_attempt(token)] if job.requeue else []
    again = [AGAIN] if job.requeue else []
    options = " \\\n    ".join(["srun", *_grouped(plan, job), _program(plan, job, token)])
    said = f"# {PER_TASK}\n" if job.gpus and job.bind_gpus == "task" else ""
    sections = [
        "\n".join(["#!/bin/bash", *_requests(plan, job)]),
        *attempt,
        "\n".join(exported),
        said + options,
        *again,
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def srun(plan: Plan, job: Job, token: str | None = None) -> list[str]:
    """The words that start the ranks in the allocation around this process, beside other steps of it."""
    options = shlex.split(" ".join(_grouped(plan, job)))
    return ["srun", "--overlap", *options, *program(plan, job, token), *plan.words]


def defaults(job: Job) -> dict[str, str]:
    """What ranks get where the environment says nothing.

    Nothing for MPICH: its one variable for that, FI_PROVIDER, would move NCCL's OFI plugin too.
    """
    return OVER_TCP if job.mpi.startswith("pmix") else {}


def program(plan: Plan, job: Job, token: str | None) -> list[str]:
    """What each rank is, before the words of the command; in a container, the image's own."""
    start = ["meshrun"] if job.container else list(PROGRAM)
    return [*start, *plan_words(plan, token)]


def _requests(plan: Plan, job: Job) -> list[str]:
    """What is asked for. No --signal: at the time limit Slurm sends SIGTERM by itself and then waits, 30 s by
    default; an earlier one, rounded by up to a minute, ends a short job before it has begun."""
    values = {
        "job-name": "meshrun",
        "nodes": str(plan.hosts),
        "ntasks-per-node": str(plan.per_host),
        "cpus-per-task": str(job.cpus_per_task),
        "gpus-per-node": str(plan.per_host) if job.gpus else None,
        "partition": job.partition,
        "account": job.account,
        "time": job.time,
        "constraint": job.constraint,
        "array": job.array,
        "dependency": job.dependency,
        "output": job.output_file,
    }
    flags = {
        "exclusive": job.exclusive,
        "kill-on-invalid-dep=yes": job.dependency is not None,  # else it waits for ever
        "open-mode=append": job.requeue,
        "requeue": job.requeue,
        "no-requeue": not job.requeue,
    }
    valued = [f"--{name}={_line(name, value)}" for name, value in values.items() if value is not None]
    return [
        f"#SBATCH {word}" for word in (*valued, *(f"--{name}" for name, wanted in flags.items() if wanted))
    ]


def _line(name: str, value: str) -> str:
    if CONTROL.search(value):
        raise ValueError(f"--{name} {value!r}: a line of a script has no control characters")
    return shlex.quote(value)


def _exports(plan: Plan, job: Job) -> list[tuple[str, str]]:
    firm = wanted(plan)
    yielding = [
        (name, f'"${{{name}:-{value}}}"') for name, value in defaults(job).items() if name not in firm
    ]
    return yielding + [(name, shlex.quote(value)) for name, value in sorted(firm.items())]


def _attempt(token: str | None) -> str:
    # A job that is started again begins with this line: what an attempt before it has told is void.
    from runner.run_status import LINE, lost_note

    # SLURM_JOB_ID of one task of an array is the array's own, and means all of it to scontrol.
    job = "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
    lines = [f'job="{job}"', f'lost="{lost_note("$job")}"', 'rm -f "$lost"']
    if token:
        lines.append(f"printf '\\{ord(LINE[0]):03o}%s\\n' '{LINE[1:]} {token} attempt 0' >&2")
    return "\n".join(lines)


def _grouped(plan: Plan, job: Job) -> list[str]:
    """srun's options, those of one purpose on a line. All are said again: not every one is inherited."""
    per_host = str(plan.per_host)
    place = [f"--nodes={plan.hosts}", f"--ntasks={plan.ranks}", f"--ntasks-per-node={per_host}"]
    # On hosts of its own the job has more cores than it asked for.
    cores = f"$((SLURM_CPUS_ON_NODE / {per_host}))" if job.exclusive else str(job.cpus_per_task)
    gpus = [f"--gpus-per-node={per_host}"] if job.gpus else []
    gpus += ["--gpus-per-task=1"] if job.gpus and job.bind_gpus == "task" else []
    # Ranks in the order of hosts. A rank with a GPU may run on all of the job's cores, those near the GPU
    # too; a rank without stays on its own.
    order = ["--distribution=block:block", f"--cpu-bind={'none' if job.gpus else 'cores'}"]
    end = ["--kill-on-bad-exit=1", "--wait=60", "--export=ALL"]
    lines = [place, gpus, order, end, *([word] for word in _container(plan, job)), list(job.srun_args)]
    first = f"--mpi={shlex.quote(job.mpi)} --cpus-per-task={cores}"
    return [first, *(shlex.join(line) for line in lines if line)]


def _container(plan: Plan, job: Job) -> list[str]:
    if job.container is None:
        return []
    mounts = [f"{job.folder}:{job.folder}", *([job.container_mounts] if job.container_mounts else [])]
    # The home's Python packages would hide the image's, and the image's variables those of the run.
    names = ",".join(name for name, _ in _exports(plan, job))
    words = [f"--container-image={job.container}", f"--container-mounts={','.join(mounts)}"]
    words += [f"--container-workdir={job.folder}", "--no-container-mount-home"]
    return [*words, f"--container-env={names}"] if names else words


def _program(plan: Plan, job: Job, token: str | None) -> str:
    words = " ".join(_indexed(word) if job.array else shlex.quote(word) for word in plan.words)
    return f"{shlex.join(program(plan, job, token))} \\\n    {words}"


def _indexed(word: str) -> str:
    """`word` for the shell, with the index of the array's task where it says %a."""
    parts = [shlex.quote(part) if part else "" for part in word.split(INDEX)]
    return '"$SLURM_ARRAY_TASK_ID"'.join(parts) or "''"
