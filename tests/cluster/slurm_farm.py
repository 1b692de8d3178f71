"""A real Slurm on this machine: munged, slurmctld and one slurmd a node, as children of the tests.

A node is a slurmd in UTS, IPC, PID and mount namespaces of its own, with a host name, a boot id and a
/dev/shm: MPI and jobs see several hosts, and to kill a node is to kill all that runs on it. The nodes share
the machine's network and processors. Their GPUs are device files with no driver behind them: Slurm hands them
out as on a real node, and nobody can open them.

Every process dies with the thread that brought the cluster up: even kill -9 leaves no more than the folder.

Debian: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge libpmix-dev
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from namespaces import PATH, child, signal_each, wait_for

PATIENCE = 60  # seconds for a daemon to do what takes it a tenth of one on an idle machine
LONGEST_FOLDER = 60  # characters: a socket's path has at most 108
NVIDIA = 195  # major number of its device files
DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("srun", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "setpriv", "unshare", "mount")
CONTAINED = ("setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
MUNGE_FILES = ("key-file=munge/key", "socket=munge/socket", "pid-file=munge/pid", "seed-file=munge/seed")
MUNGED = ("munged", "--foreground", "--force", "--log-file=munge/log", *[f"--{file}" for file in MUNGE_FILES])
READY = ("idle", "mix", "alloc")

# A node's process 1. Slurm's PMIx plugin names its folder after job and step alone, so each node has its own
# place for it. The shell stays, in the foreground, to take the status of job steps, which slurmd disowns.
NODE = """
set -e
echo "$1" >/proc/sys/kernel/hostname
cat /proc/sys/kernel/random/uuid >"boot_id.$1"
mount --bind "boot_id.$1" /proc/sys/kernel/random/boot_id
mount --bind hosts /etc/hosts
mount -t tmpfs tmpfs pmix
mount -t tmpfs tmpfs /dev/shm
slurmd -D -f "$SLURM_CONF" -N "$1" || exit
"""

# config_overrides: a node has the processors that are written here, not those of this machine.
CONFIGURATION = """\
ClusterName=farm
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthInfo=socket={folder}/munge/socket
MailProg=/bin/true
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/log/%n
SlurmdParameters=config_overrides
SlurmdTimeout={slurmd_timeout}
MessageTimeout=5
ReturnToService=2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
KillWait=3
GresTypes=gpu
PartitionName=gpu Nodes=ALL Default=YES
"""


class SlurmError(Exception):
    """A daemon that did not start, with its last words, or a question that Slurm did not answer."""


@dataclass(frozen=True)
class Job:
    """A job of the queue, in squeue's words: state PENDING, RUNNING or COMPLETING, nodes such as c[1-2]."""

    id: int
    state: str
    nodes: str
    reason: str
    name: str


@dataclass
class Slurm:
    """A cluster; a context manager that has it up. To be used in one thread.

    folder: is made, holds all there is of the cluster on disk, and goes with it; a path of at most 60
    characters, because sockets are made below it. nodes: their names. gpus, cpus: what each node has.
    slurmd_timeout: seconds that a node may be silent. The default is as short as a busy machine allows, and
    Slurm gives up a dead node after some 10 s; its own default is 300.
    """

    folder: Path
    nodes: Sequence[str] = ("c1", "c2")
    gpus: int = 4
    cpus: int = 8
    slurmd_timeout: int = 3
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False, repr=False)
    _ports: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    _undo: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False, repr=False)

    def __post_init__(self) -> None:
        self.folder = self.folder.absolute()
        if len(str(self.folder)) > LONGEST_FOLDER:
            raise ValueError(f"{self.folder}: more than {LONGEST_FOLDER} characters")

    def __enter__(self) -> Slurm:
        self.up()
        return self

    def __exit__(self, *error: object) -> None:
        self.down()

    def up(self) -> None:
        """Start everything; returns when every node is idle. Nothing is left up when that fails."""
        with contextlib.ExitStack() as undo:
            self.folder.mkdir(mode=0o755)
            undo.callback(shutil.rmtree, self.folder)
            names = ("slurmctld", *self.nodes)
            self._ports = dict(zip(names, free_ports(len(names)), strict=True))
            self._write_files()
            undo.callback(self._end_all)
            self._start("munged", *MUNGED)
            self._wait("munged", (self.folder / "munge" / "socket").is_socket)
            self._start("slurmctld", "slurmctld", "-D", "-i", "-f", self.environment["SLURM_CONF"])
            self._wait("slurmctld", lambda: _listens(self._ports["slurmctld"]))
            self.start_node(*self.nodes)
            self._undo = undo.pop_all()

    def down(self) -> None:
        """End everything at once, jobs too, and remove every file; nothing to do when nothing is up."""
        self._undo.close()

    @property
    def environment(self) -> dict[str, str]:
        """What a command needs, besides an ordinary environment, to find this Slurm."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(
        self, words: Sequence[str], timeout: float = 60, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, such as srun, to its end, in a folder that goes with the cluster.

        subprocess.TimeoutExpired after `timeout` seconds; a job that the command has started goes on.
        """
        return subprocess.run(
            words,
            check=False,
            timeout=timeout,
            env={**os.environ, **self.environment, **environment},
            cwd=self.folder / "work",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def kill_node(self, name: str) -> None:
        """Let a node fail: its slurmd and everything below it is gone when this returns.

        The kernel still closes their connections. Slurm itself takes the node for down later.
        """
        _end(self._daemons.pop(name))

    def start_node(self, *names: str) -> None:
        """Start a node that was killed, or several; returns when Slurm has them."""
        for name in names:
            # Empty, as of a node without a disk: PMIx's files of a job's attempt are in the way of the next.
            shutil.rmtree(self.folder / "spool" / name)
            (self.folder / "spool" / name).mkdir()
            self._start(name, "sh", "-c", NODE, "sh", name, unshared=("--uts", "--ipc"))
        for name in names:
            self._wait(name, functools.partial(self._is_ready, name))

    @property
    def missing(self) -> list[str]:
        """Nodes that were killed."""
        return [node for node in self.nodes if node not in self._daemons]

    def jobs(self) -> list[Job]:
        """The queue, by job number."""
        done = self.run(["squeue", "--noheader", "--sort=i", "--format=%A|%T|%N|%r|%j"])
        if done.returncode:
            raise SlurmError(done.stderr.strip())
        rows = (line.split("|", 4) for line in done.stdout.splitlines())
        return [Job(int(number), *others) for number, *others in rows]

    def log(self, daemon: str) -> str:
        """What "munged", "slurmctld" or a node, by its name, has said so far; the node's job steps too."""
        return (self.folder / "log" / daemon).read_text(errors="replace")

    def _write_files(self) -> None:
        spool = [f"spool/{node}" for node in self.nodes]
        for name in ("log", "munge", "state", "spool", *spool, "dev", "pmix", "work"):
            (self.folder / name).mkdir()
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        for index in range(self.gpus):
            device = os.makedev(NVIDIA, index)
            os.mknod(self.folder / "dev" / f"nvidia{index}", stat.S_IFCHR | 0o666, device)
        host = os.uname().nodename
        configuration = CONFIGURATION.format(
            folder=self.folder, host=host, port=self._ports["slurmctld"], slurmd_timeout=self.slurmd_timeout
        )
        resources = f"CPUs={self.cpus} RealMemory=4000" + (f" Gres=gpu:{self.gpus}" if self.gpus else "")
        for node in self.nodes:
            configuration += f"NodeName={node} NodeAddr=127.0.0.1 Port={self._ports[node]} {resources}\n"
        files = {
            "slurm.conf": configuration,
            "gres.conf": "".join(f"Name=gpu File={self.folder}/dev/nvidia{i}\n" for i in range(self.gpus)),
            "mpi.conf": f"PMIxCliTmpDirBase={self.folder}/pmix\n",
            "cgroup.conf": "CgroupPlugin=autodetect\n",
            "hosts": " ".join(["127.0.0.1 localhost", *self.nodes, host]) + "\n",
        }
        for name, text in files.items():
            (self.folder / name).write_text(text)

    def _is_ready(self, node: str) -> bool:
        """Whether slurmctld counts on a node whose slurmd listens: for a while it also does on a dead one."""
        state = ["sinfo", "--noheader", f"--nodes={node}", "--format=%t"]
        return _listens(self._ports[node]) and self.run(state).stdout.strip() in READY

    def _start(self, name: str, *words: str, unshared: Sequence[str] = ()) -> None:
        with open(self.folder / "log" / name, "ab") as log:
            self._daemons[name] = subprocess.Popen(
                [*CONTAINED, *unshared, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"PATH": PATH, **self.environment},
                start_new_session=True,  # Ctrl-C is for the tests, which then take the cluster down
            )

    def _end_all(self) -> None:
        while self._daemons:
            _end(self._daemons.popitem()[1])

    def _wait(self, daemon: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            ended = [name for name, process in self._daemons.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                name, what = (ended[0], "ended") if ended else (daemon, f"not ready in {PATIENCE} s")
                raise SlurmError("\n".join([f"{name}: {what}", *self.log(name).splitlines()[-10:]]))
            time.sleep(0.01)


@contextlib.contextmanager
def temporary(slurmd_timeout: int = Slurm.slurmd_timeout) -> Iterator[Slurm]:
    """A cluster in a folder of its own with a short path."""
    with (
        tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder,
        Slurm(Path(folder, "s"), slurmd_timeout=slurmd_timeout) as made,
    ):
        yield made


def free_ports(count: int) -> list[int]:
    """Free TCP ports, below those that the kernel gives to outgoing connections."""
    found: list[int] = []
    for port in random.sample(range(20000, 30000), 1000):
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind(("", port))
            found.append(port)
        if len(found) == count:
            return found
    raise SlurmError(f"{len(found)} free TCP ports, expected {count}")


@functools.cache
def problem() -> str | None:
    """Why no such Slurm can be had on this machine, in one sentence; None when one can."""
    if os.geteuid() != 0:
        return "only root can start a Slurm with nodes in namespaces"
    if missing := [name for name in (*DAEMONS, *COMMANDS) if shutil.which(name, path=PATH) is None]:
        return f"a Slurm of our own needs {', '.join(missing)}, not installed here"
    # Slurm's plugin opens the name without a version, which only development packages have.
    if _refusal(sys.executable, "-c", "import ctypes; ctypes.CDLL('libpmix.so')"):
        return "srun --mpi=pmix needs libpmix.so (Debian: libpmix-dev), not installed here"
    trial = "echo t >/proc/sys/kernel/hostname; mount -t tmpfs tmpfs /dev/shm"
    if refusal := _refusal(*CONTAINED, "--uts", "--ipc", "sh", "-e", "-c", trial):
        return f"this machine refuses nodes in namespaces: {refusal}"
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        try:
            os.mknod(Path(folder, "gpu"), stat.S_IFCHR, os.makedev(NVIDIA, 0))
        except OSError as reason:
            return f"this machine refuses device files: {reason.strerror}"
    return None


def _refusal(*words: str) -> str:
    """The last line of what a command says when it fails; empty when it succeeds."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={"PATH": PATH})
    said = done.stderr.strip() or f"exit status {done.returncode}"
    return said.splitlines()[-1] if done.returncode else ""


def _listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def _end(daemon: subprocess.Popen[bytes]) -> None:
    """Kill all in a daemon's PID namespace; returns when the last process has gone."""

    def gone() -> bool:
        # Process 1 takes the others along. unshare, which waits for it, is left to end by itself.
        signal_each(filter(None, [child(daemon)]), signal.SIGKILL)
        return daemon.poll() is not None

    wait_for(gone, f"process {daemon.pid} to end")
