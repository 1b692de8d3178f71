"""The batch script of a launch: the request to Slurm, and the srun command that starts the ranks."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Literal

from meshrun.launch.mpi.environment import OVER_TCP, required_variables
from meshrun.launch.mpi.rank_command import PROGRAM, spec_options
from meshrun.launch.slurm.output_file import JOB_NAME, letters
from meshrun.launch.spec import LaunchSpec

# For the threads of a rank: its own, those that read and write files, and NCCL's for the network.
CPUS_PER_RANK = 4
INDEX = "%a"  # the index of an array task, in arguments as in file names
PER_TASK = "One GPU per task: if Slurm hides the other GPUs, NCCL copies through host memory."
# After srun, in a job that may be restarted.
AGAIN = """\
status=$?
# Ranks detect a lost host before Slurm does, and the job would fail instead of being requeued. At most three
# times: Slurm may assign a lost host that it does not detect to the job again and again.
if [ $status -ne 0 ] && [ -f "$lost" ] && [ -O "$lost" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 3 ]; then
    scontrol requeue "$job"
fi
exit $status"""
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class JobRequest:
    """The request to Slurm besides the specification; texts as for sbatch's options of the same names.

    mpi: how srun connects the ranks (`srun --mpi`). folder: the working directory, at the same path in a
    container. gpus: one for each rank. bind_gpus: "node": every rank sees all GPUs of its host and uses the
    one of its local rank; "task": each sees one. cpus_per_task: cores of a rank. exclusive: no other job on
    the hosts. segment: hosts that a block topology places into one block. requeue: "expedite" for Slurm's
    expedited requeue. container: an image, for Pyxis. srun_args: more arguments for srun. output: a file name
    by sbatch's patterns, such as %j, or %A and %a for the tasks of an array.
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
    nodelist: str | None = None
    exclude: str | None = None
    qos: str | None = None
    reservation: str | None = None
    mem: str | None = None
    signal: str | None = None
    array: str | None = None
    dependency: str | None = None
    segment: int | None = None
    requeue: bool | Literal["expedite"] = False
    container: str | None = None
    container_mounts: str | None = None
    srun_args: tuple[str, ...] = ()
    output: str | None = None

    def __post_init__(self) -> None:
        if self.container_mounts and not self.container:
            raise ValueError("--container-mounts without --container")
        if self.output is not None and not self.output.strip():
            raise ValueError("--output is empty")
        if "\\" in self.output_file:
            raise ValueError(f"--output {self.output}: Slurm does not take a backslash literally")
        if self.array and INDEX[1] not in letters(self.output_file):
            raise ValueError(
                f"--output {self.output}: must contain {INDEX}, to separate the tasks of the array"
            )

    @property
    def output_file(self) -> str:
        return self.output or ("meshrun-%A_%a.out" if self.array else "meshrun-%j.out")


def script(spec: LaunchSpec, job: JobRequest, token: str | None = None) -> str:
    """The batch script. Raises ValueError if a value contains control characters, or segments are unequal.

    token: of the ranks' status lines in the output; None if no process reads them.
    """

    from meshrun.runner.spelling import command_option

    if job.segment and spec.hosts % job.segment:
        raise ValueError(
            f"{command_option('segment', job.segment)} does not divide the {spec.hosts} hosts, which Slurm "
            "requires"
        )
    exported = [f"export {name}={value}" for name, value in _exports(spec, job)]
    again = [AGAIN] if job.requeue else []
    words = " ".join(_indexed(word) if job.array else shlex.quote(word) for word in spec.words)
    ranks = shlex.join(program(spec, job, token))
    options = " \\\n    ".join(["srun", *_grouped(spec, job), ranks, words])
    comment = f"# {PER_TASK}\n" if job.gpus and job.bind_gpus == "task" else ""
    sections = [
        "\n".join(["#!/bin/bash", *_requests(spec, job)]),
        _attempt(job, token),
        "\n".join(exported),
        comment + options,
        *again,
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def srun(spec: LaunchSpec, job: JobRequest, token: str | None = None) -> list[str]:
    """The srun command that starts the ranks in the current allocation, concurrently with other steps."""
    options = shlex.split(" ".join(_grouped(spec, job)))
    return ["srun", "--overlap", *options, *program(spec, job, token), *spec.words]


def defaults(job: JobRequest) -> dict[str, str]:
    """Default values of the ranks' variables.

    None for MPICH: its only such variable, FI_PROVIDER, would affect NCCL's OFI plugin too.
    """
    return OVER_TCP if job.mpi.startswith("pmix") else {}


def program(spec: LaunchSpec, job: JobRequest, token: str | None) -> list[str]:
    """The program of each rank, before the command; in a container, the image's own."""
    start = ["meshrun"] if job.container else list(PROGRAM)
    return [*start, *spec_options(spec, token)]


def _requests(spec: LaunchSpec, job: JobRequest) -> list[str]:
    """The #SBATCH lines. --signal only if asked for: at the time limit Slurm sends SIGTERM anyway and then
    waits, 30 s by default; an earlier signal, rounded by up to a minute, would end a short job before it
    starts."""
    values = {
        "job-name": JOB_NAME,
        "nodes": str(spec.hosts),
        "ntasks-per-node": str(spec.per_host),
        "cpus-per-task": str(job.cpus_per_task),
        "gpus-per-node": str(spec.per_host) if job.gpus else None,
        "partition": job.partition,
        "account": job.account,
        "time": job.time,
        "constraint": job.constraint,
        "nodelist": job.nodelist,
        "exclude": job.exclude,
        "qos": job.qos,
        "reservation": job.reservation,
        "mem": job.mem,
        "signal": job.signal,
        "array": job.array,
        "dependency": job.dependency,
        "segment": None if job.segment is None else str(job.segment),
        "output": job.output_file,
    }
    flags = {
        "exclusive": job.exclusive,
        "kill-on-invalid-dep=yes": job.dependency is not None,  # otherwise it would wait forever
        "open-mode=append": bool(job.requeue),
        "requeue": job.requeue is True,
        "requeue=expedite": job.requeue == "expedite",
        "no-requeue": not job.requeue,
    }
    valued = [f"--{name}={_line(name, value)}" for name, value in values.items() if value is not None]
    return [
        f"#SBATCH {word}" for word in (*valued, *(f"--{name}" for name, wanted in flags.items() if wanted))
    ]


def _line(name: str, value: str) -> str:
    if CONTROL.search(value):
        raise ValueError(f"--{name} {value!r}: control characters are not allowed in a script")
    return shlex.quote(value)


def _exports(spec: LaunchSpec, job: JobRequest) -> list[tuple[str, str]]:
    required = required_variables(spec)
    optional = [
        (name, f'"${{{name}:-{value}}}"') for name, value in defaults(job).items() if name not in required
    ]
    return optional + [(name, shlex.quote(value)) for name, value in sorted(required.items())]


def _attempt(job: JobRequest, token: str | None) -> str:
    from meshrun.runner.world.run_status import lost_note

    lines = []
    if job.requeue:
        # For one task of an array, scontrol would take SLURM_JOB_ID as the whole array.
        number = "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
        lines = [f'job="{number}"', f'lost="{lost_note("$job")}"', 'rm -f "$lost"']
    if token:
        mark = attempt_mark(token, "%s")
        lines.append(f"printf '\\{ord(mark[0]):03o}{mark[1:]}\\n' \"$SLURM_JOB_ID\" >&2")
    return "\n".join(lines)


def attempt_mark(token: str, number: str) -> str:
    """The line with which each attempt of job `number` begins its output, and which invalidates the reports
    of the previous attempt."""
    from meshrun.runner.world.run_status import LINE

    return f"{LINE} {token} attempt {number}"


def open_mode(job: JobRequest) -> str:
    """Whether Slurm truncates an output file that exists, or appends to it."""
    return "append" if job.requeue else "truncate"


def _grouped(spec: LaunchSpec, job: JobRequest) -> list[str]:
    """srun's options, grouped by purpose. All are repeated, because srun does not inherit all of sbatch's."""
    per_host = str(spec.per_host)
    place = [f"--nodes={spec.hosts}", f"--ntasks={spec.ranks}", f"--ntasks-per-node={per_host}"]
    # On exclusive hosts the job has more cores than it requested.
    cores = f"$((SLURM_CPUS_ON_NODE / {per_host}))" if job.exclusive else str(job.cpus_per_task)
    gpus = [f"--gpus-per-node={per_host}"] if job.gpus else []
    gpus += ["--gpus-per-task=1"] if job.gpus and job.bind_gpus == "task" else []
    # Ranks in the order of hosts. A rank with a GPU may run on all cores of the job, including those near its
    # GPU; a rank without one stays on its own cores.
    order = ["--distribution=block:block", f"--cpu-bind={'none' if job.gpus else 'cores'}"]
    end = ["--kill-on-bad-exit=1", "--wait=60", "--export=ALL"]
    lines = [place, gpus, order, end, *([word] for word in _container(spec, job)), list(job.srun_args)]
    first = f"--mpi={shlex.quote(job.mpi)} --cpus-per-task={cores}"
    return [first, *(shlex.join(line) for line in lines if line)]


def _container(spec: LaunchSpec, job: JobRequest) -> list[str]:
    if job.container is None:
        return []
    mounts = [f"{job.folder}:{job.folder}", *([job.container_mounts] if job.container_mounts else [])]
    # Python packages in the home folder would hide the image's, and the image's variables the run's.
    names = ",".join(name for name, _ in _exports(spec, job))
    words = [f"--container-image={job.container}", f"--container-mounts={','.join(mounts)}"]
    words += [f"--container-workdir={job.folder}", "--no-container-mount-home"]
    return [*words, f"--container-env={names}"] if names else words


def _indexed(word: str) -> str:
    """`word` quoted for the shell, with %a replaced by the index of the array task."""
    parts = [shlex.quote(part) if part else "" for part in word.split(INDEX)]
    return '"$SLURM_ARRAY_TASK_ID"'.join(parts) or "''"
