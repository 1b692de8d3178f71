"""What Slurm's reasons and errors mean: why a job waits or was rejected, how a task ended, what to type."""

from __future__ import annotations

import re
import signal

from meshrun.launch.supervise.judge import HINTS, MEMORY

# Reasons that pass by themselves.
NORMAL = (
    "BeginTime", "Cleaning", "Dependency", "JobArrayTaskLimit", "Licenses", "None", "Priority", "Prolog",
    "Resources",
)  # fmt: skip
SIZE = (
    "a smaller -j or --cpus-per-task, or another --partition; sinfo --format='%P %D %c %G' shows their hosts"
)
NO_GPUS = "--no-gpus, or GPUs in the allocation: salloc --gpus-per-node=N"
# Words in a reason or in an error, and what to type; the first that is there counts.
REMEDIES = (
    ("generic resource|gres", NO_GPUS),
    ("doesn't allow an argument", "--requeue without =expedite, which this Slurm does not have"),
    ("invalid ?qos", "another --qos; sacctmgr show assoc user=$USER format=account,qos shows yours"),
    (
        "reservation",
        "another --reservation; scontrol show reservation lists them, with their hosts and users",
    ),
    ("invalid node name|node name", "another --nodelist or --exclude; sinfo --Node lists the hosts"),
    ("memory|MaxMem", "a smaller --mem; sinfo --format='%P %m' shows the memory of hosts in MB"),
    ("invalid number of nodes", "as many hosts for -j as in --nodelist"),
    ("--signal", "--signal USR1@60; kill -l lists the signals"),
    ("processors requested|Only allocated", "a smaller -j or --cpus-per-task, or a larger allocation"),
    ("PartitionConfig|NodeLimit|node configuration", SIZE),
    ("time ?limit", "a shorter --time, or another --partition; sinfo --format='%P %l' shows their limits"),
    ("DOWN|NotAvail|PartitionInactive|PartitionDown", "sinfo --list-reasons; another --partition"),
    ("held", "scontrol release, with the number of the job"),
    ("Constraint|feature", "another --constraint; sinfo --format='%P %f' shows the features of hosts"),
    ("Account|Assoc|QOS", "another --account, or a smaller -j; sacctmgr show assoc user=$USER shows limits"),
)
SIGNALS = {signal.strsignal(number): int(number) for number in signal.valid_signals()}
EXIT_CODE = re.compile(r"Exited with exit code (\d+)")
# "srun: error: c2: task 3: Killed"; of several tasks, the first.
TASK_ENDS = re.compile(r"^srun: error: (\S+): tasks? (\d+)[\d,-]*: (.+)$", re.MULTILINE)
NOT_STARTED = re.compile(r"^srun: error: task (\d+) launch failed: (.+)$", re.MULTILINE)
NO_STEP = re.compile(
    r"^srun: error: (?:Unable to (?:create|allocate|confirm)[^:]*: |(?=Only allocated ))(.+)$", re.MULTILINE
)
PMI2_DAMAGED = "mpi/pmi2: value not properly terminated"  # slurmstepd's error
NOT_PMI2 = "run it again, or use Open MPI, which Slurm starts by PMIx; meshrun help launch"
BY_SLURM = ("Terminated", "Exited with exit code 143")  # how ranks end when another has failed


def remedy(text: str, otherwise: str) -> str:
    """What to type after a reason or an error of Slurm. otherwise: for those that are not known."""
    return next((hint for words, hint in REMEDIES if re.search(words, text, re.IGNORECASE)), otherwise)


def task_end(text: str) -> tuple[str, str | None] | None:
    """The task that failed first according to srun, and a hint; None if srun reports none."""
    if PMI2_DAMAGED in text:
        return "MPICH's ranks could not exchange their addresses through Slurm's PMI-2", NOT_PMI2
    if match := NO_STEP.search(text):
        return f"srun cannot start the ranks: {match[1]}", remedy(match[1], "scontrol show job $SLURM_JOB_ID")
    if match := NOT_STARTED.search(text):
        return f"rank {match[1]} could not be started: {match[2]}", "see the log of slurmd on its host"
    for host, task, end in TASK_ENDS.findall(text):
        if not end.startswith(BY_SLURM):
            return f"[rank {task}, host {host}] ended too early: {end}", _hint(end)
    return None


def _hint(end: str) -> str | None:
    """The hint for the end of a task, by its signal, which may be in an exit code; None without a signal."""
    if "out of memory" in end.lower():
        return MEMORY
    if match := EXIT_CODE.match(end):
        return HINTS.get(int(match[1]) - 128)
    return HINTS.get(SIGNALS.get(end.removesuffix(" (core dumped)"), 0))
