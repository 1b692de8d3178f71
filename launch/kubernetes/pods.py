"""The pods of a job, and the layout of their image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

# As in the Containerfile.
PYTHON = "/opt/meshrun/bin/python"
USER = 1000
HOME = "/home/mpiuser"
SSHD = ("/usr/sbin/sshd", "-De")

PREFIXES = ("", "K", "M", "G", "T")
MEMORY = re.compile(r"(\d+(?:\.\d+)?)((?:[KMGT]i)?|[kMGT])")

Implementation = Literal["openmpi", "mpich", "intel"]
Kind = Literal["mpijob", "job", "jobset", "trainjob"]
CleanPods = Literal["Running", "All", "None"]
Toleration = Mapping[str, str]


@dataclass(frozen=True)
class Pods:
    """The pods of a job: contents, placement and time limits.

    gpu_resource: resource of which each rank gets one; None for ranks on CPUs. rdma, shm, memory, cpu: for
    each pod with ranks, in Kubernetes quantities; /dev/shm counts as memory. volumes: claims and their mount
    paths. time_limit, start_timeout: seconds for the whole job, and for its pods to start and answer by ssh.
    clean_pods: which pods of an MPIJob to delete at its end. kind: of job; None: a Job for one host, else an
    MPIJob. annotations: of pods with ranks. topology_required, topology_preferred: label of nodes that is the
    level of Kueue's topology in which pods with ranks must or should be together. nvlink_domain: put them
    into one NVLink domain, with a ComputeDomain. host_network: they use their node's network. hugepages: size
    of a page, and amount for each of them. image_pull_secrets: names of Secrets. ssh_secret: the Secret with
    a JobSet's keys. root: the image's user is root instead of the Containerfile's `USER`. python: path in the
    image, in the same folder as meshrun and mpiexec.
    """

    image: str
    name: str = "meshrun"
    namespace: str | None = None
    queue: str | None = None
    gpu_resource: str | None = "nvidia.com/gpu"
    rdma: Mapping[str, int] = field(default_factory=dict)
    shm: str = "16Gi"
    memory: str | None = None
    cpu: str | None = None
    volumes: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    service_account: str | None = None
    time_limit: int | None = None
    start_timeout: int = 300
    clean_pods: CleanPods = "Running"
    mpi: Implementation = "openmpi"
    root: bool = False
    python: str = PYTHON
    kind: Kind | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    topology_required: str | None = None
    topology_preferred: str | None = None
    nvlink_domain: bool = False
    host_network: bool = False
    hugepages: tuple[str, str] | None = None
    image_pull_secrets: tuple[str, ...] = ()
    ssh_secret: str | None = None

    @property
    def user(self) -> int:
        """Number of the user that runs ssh and the ranks."""
        return 0 if self.root else USER

    @property
    def ssh_folder(self) -> str:
        """Folder for the operator's keys: in the home of the user that sshd and ssh run as."""
        return "/root/.ssh" if self.root else f"{HOME}/.ssh"

    def beside_python(self, program: str) -> str:
        return str(Path(self.python).with_name(program))


def memory_bytes(text: str) -> float:
    """Bytes of a quantity such as 16Gi, 512Mi or 2G. Raises ValueError."""
    match = MEMORY.fullmatch(text)
    if not match:
        raise ValueError(f"expected a size such as 16Gi, not {text!r}")
    number, prefix = match.groups()
    base = 1024 if prefix.endswith("i") else 1000
    return float(number) * float(base ** PREFIXES.index(prefix[:1].upper()))
