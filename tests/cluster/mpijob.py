"""An MPIJob run as the operator would have it run, without a cluster: every pod is a host of hosts.py.

What pods get from the manifest, from the image and from the operator (mpi_job_controller.go of
kubeflow/mpi-operator v0.8.2), they get here: names, the hostfile, variables, ssh keys as a secret mounts
them, the user, a /tmp of their own, 64 MiB of /dev/shm unless memory is mounted there. The image is this
machine's file system with the user and the ssh settings of the Containerfile; so the manifest names a Python
that this machine has.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hosts import Hosts
from namespaces import call

import meshrun

ROOT = Path(__file__).parents[2]
DOMAIN = "{name}.{namespace}.svc"
RETRY = "-o ConnectionAttempts=10"
PRINTF = re.compile(r"printf '%s\\n' ((?:'[^']*' )+)> (\S+)")

# User, ssh settings and keys of a pod; a secret's files are root's, and all may read them. Arguments: folder
# of the keys, the user's name, number and home.
SET_UP = """
set -eu
keys=$1 name=$2 number=$3 home=$4
sed -i "/^[^:]*:[^:]*:$number:/d" /etc/passwd
echo "$name:x:$number:$number::$home:/bin/sh" >>/etc/passwd
echo "$name:*:20000:0:99999:7:::" >>/etc/shadow
{apart}
mkdir "$home" "$home/.ssh"
cp "$keys/id_rsa" "$keys/id_rsa.pub" "$home/.ssh"
cp "$keys/id_rsa.pub" "$home/.ssh/authorized_keys"
chmod 644 "$home/.ssh"/*
cp "$keys/.sshd_config" "$home"
cp "$keys/meshrun.conf" /etc/ssh/ssh_config
if [ -e "$keys/hostfile" ]; then mkdir -p /etc/mpi; cp "$keys/hostfile" /etc/mpi; fi
{hidden}
"""


def image(containerfile: str) -> tuple[dict[str, str], dict[str, str]]:
    """The files that a Containerfile's last stage writes by printf, by name, and its variables."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^\s*#.*\n", "", containerfile))
    last = joined[joined.rindex("\nFROM ") :]
    files = {Path(path).name: "\n".join([*shlex.split(lines), ""]) for lines, path in PRINTF.findall(last)}
    words = [word for line in last.splitlines() if line.startswith("ENV ") for word in shlex.split(line[4:])]
    return files, dict(word.split("=", 1) for word in words)


def needed() -> list[Path]:
    """The outermost folders of this Python, its environment and this project, wherever each lies."""
    places = {Path(sys.prefix), Path(sys.base_prefix), Path(meshrun.__path__[0]).parent}
    places |= {place.resolve() for place in places}
    return [place for place in sorted(places) if not places & {*place.parents}]


def opened(folders: Sequence[Path]) -> list[str]:
    """Shell commands after which any user can get to these folders, on this host alone."""
    ways = sorted({each for folder in folders for each in (folder, *folder.parents)})
    barred = [each for each in ways if not each.stat().st_mode & stat.S_IXOTH]
    lines = []
    for number, top in enumerate(each for each in barred if not {*barred} & {*each.parents}):
        upper, work, place = f"/run/opened{number}", f"/run/opened{number}.work", shlex.quote(str(top))
        lines.append(f"mkdir {upper} {work}")
        options = f"lowerdir={place},upperdir={upper},workdir={work}"
        lines.append(f"mount -t overlay -o {options} overlay {place}")
    return [*lines, *(f"chmod 755 {shlex.quote(str(each))}" for each in barred)]


def hidden(place: str, mode: str, folders: Sequence[Path]) -> list[str]:
    """Shell commands that make a folder empty on this host, but for these folders where they lie below it."""
    kept = [folder for folder in folders if Path(place) in folder.parents]
    before, after = [], []
    for number, folder in enumerate(kept):
        aside, name = f"/run{place}{number}", shlex.quote(str(folder))
        before += [f"mkdir {aside}", f"mount --rbind {name} {aside}"]
        after += [f"mkdir -p {name}", f"mount --move {aside} {name}"]
    return [*before, f"mount -t tmpfs -o mode={mode} tmpfs {place}", *after]


def expand(text: str, variables: Mapping[str, str]) -> str:
    """As the kubelet does in commands and values: $(NAME) of a variable that there is, and $$ for $."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)


def operators_variables(implementation: str, slots: int) -> dict[str, str]:
    """What the operator adds to the launcher's container, after the manifest's own."""
    added = {
        "OpenMPI": {
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
            "OMPI_MCA_plm_rsh_args": RETRY,
            "OMPI_MCA_orte_set_default_slots": str(slots),
        },
        "Intel": {
            "I_MPI_HYDRA_HOST_FILE": "/etc/mpi/hostfile",
            "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": RETRY,
            "I_MPI_PERHOST": str(slots),
        },
        "MPICH": {"HYDRA_HOST_FILE": "/etc/mpi/hostfile", "HYDRA_LAUNCH_EXTRA_ARGS": RETRY},
    }[implementation]
    devices = {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
    return {"K_MPI_JOB_ROLE": "launcher", **added, **devices}


@dataclass
class MpiJob:
    """The pods of an MPIJob, a context manager that has them up, without anything running in them.

    manifest: as plain dicts. folder: is made, its path must be short.
    """

    manifest: dict[str, Any]
    folder: Path
    _workers: list[subprocess.Popen[bytes]] = field(default_factory=list, init=False)
    _undo: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    def __enter__(self) -> MpiJob:
        with contextlib.ExitStack() as undo:
            names = (self.launcher, *self.workers)
            self.hosts = undo.enter_context(Hosts(self.folder / "h", names, self._shm(), self._domain()))
            self._set_up()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()  # and the workers' sshd ends with its host
        for process in self._workers:
            process.wait()

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def launcher(self) -> str:
        return f"{self.name}-launcher"

    @property
    def workers(self) -> list[str]:
        return [f"{self.name}-worker-{i}" for i in range(self._replica("Worker")["replicas"])]

    def hostfile(self) -> str:
        slots = self._spec["slotsPerWorker"]
        form = "{} slots={}\n" if self._spec["mpiImplementation"] == "OpenMPI" else "{}:{}\n"
        return "".join(form.format(f"{worker}.{self._domain()}", slots) for worker in self.workers)

    def start_worker(self, name: str) -> None:
        """Run the worker's container."""
        self._workers.append(self._run(name, "Worker", {"K_MPI_JOB_ROLE": "worker"}))

    def start_launcher(
        self, command: list[str] | None = None, without: tuple[str, ...] = ()
    ) -> subprocess.Popen[bytes]:
        """Run the launcher's container; its log is on stdout.

        command: another one than the manifest's. without: variables of the manifest to leave out.
        """
        added = operators_variables(self._spec["mpiImplementation"], self._spec["slotsPerWorker"])
        return self._run(self.launcher, "Launcher", added, command, without)

    def _run(
        self,
        host: str,
        role: str,
        added: Mapping[str, str],
        command: list[str] | None = None,
        without: tuple[str, ...] = (),
    ) -> subprocess.Popen[bytes]:
        container = self._container(role)
        variables = {"HOSTNAME": host, "HOME": str(self._home), **image(CONTAINERFILE)[1]}
        for each in container.get("env", []):
            if each["name"] not in without:
                variables[each["name"]] = expand(each["value"], variables)
        variables |= added
        words = command or [
            expand(word, variables) for word in [*container["command"], *container.get("args", [])]
        ]
        user = container["securityContext"]
        identity = [f"--reuid={user['runAsUser']}", f"--regid={user['runAsGroup']}", "--clear-groups"]
        given = ["env", "-i", f"--chdir={self._home}", *(f"{k}={v}" for k, v in variables.items())]
        return subprocess.Popen(
            self.hosts.command(host, ["setpriv", *identity, *given, *words]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if role == "Launcher" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            bufsize=0,  # so that what has been read of a log is no more than its lines
        )

    def _set_up(self) -> None:
        keys = self.folder / "k"
        keys.mkdir()
        # As the operator: an elliptic key, by the name of another.
        call(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-N", "", "-f", str(keys / "id_rsa")])
        for name, text in image(CONTAINERFILE)[0].items():
            (keys / name).write_text(text)
        user = self._container("Worker")["securityContext"]["runAsUser"]
        words = [str(keys), self._home.name, str(user), str(self._home)]
        folders = needed()
        set_up = SET_UP.format(
            apart="\n".join([*opened(folders), *hidden("/home", "755", folders)]),
            hidden="\n".join(hidden("/tmp", "1777", folders)),
        )
        for host in (*self.workers, self.launcher):
            if host == self.launcher:  # only there
                (keys / "hostfile").write_text(self.hostfile())
            done = self.hosts.run(host, ["sh", "-c", set_up, "set_up", *words])
            assert done.returncode == 0, done.stderr

    def _shm(self) -> str:
        """The size of a worker's /dev/shm, as mount(8) takes it."""
        pod = self._replica("Worker")["template"]["spec"]
        memory = {
            each["name"]: each["emptyDir"]["sizeLimit"] for each in pod["volumes"] if "emptyDir" in each
        }
        mounted = [
            each["name"] for each in pod["containers"][0]["volumeMounts"] if each["mountPath"] == "/dev/shm"
        ]
        sizes = [memory[name] for name in mounted if name in memory]
        return sizes[0].removesuffix("i").lower() if sizes else "64m"

    def _domain(self) -> str:
        return DOMAIN.format(name=self.name, namespace=self.manifest["metadata"].get("namespace", "default"))

    def _container(self, role: str) -> dict[str, Any]:
        found: dict[str, Any] = self._replica(role)["template"]["spec"]["containers"][0]
        return found

    def _replica(self, role: str) -> dict[str, Any]:
        found: dict[str, Any] = self._spec["mpiReplicaSpecs"][role]
        return found

    @property
    def _spec(self) -> dict[str, Any]:
        found: dict[str, Any] = self.manifest["spec"]
        return found

    @property
    def _home(self) -> Path:
        return Path(self._spec["sshAuthMountPath"]).parent


CONTAINERFILE = (ROOT / "Containerfile").read_text()
