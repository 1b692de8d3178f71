"""The pods of a manifest: their containers, volumes, rights and placement.

Pure functions that return plain dicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshrun.launch.kubernetes.launcher_script import (
    HOSTFILE,
    program,
    script,
    variables_between_hosts,
    words_between_hosts,
)
from meshrun.launch.kubernetes.pods import HOME, SSHD, Pods
from meshrun.launch.spec import LaunchSpec

PROJECT = {"app.kubernetes.io/name": "meshrun"}
JOB = "app.kubernetes.io/instance"  # labels of every pod: its job,
ROLE = "app.kubernetes.io/component"  # and whether it runs mpiexec
LAUNCHER, WORKER = "launcher", "worker"
TOKEN = "MESHRUN_TOKEN"  # of the status lines in the launcher pod's log
LAUNCHER_LIMITS = {"cpu": "1", "memory": "1Gi"}
CLIQUE = "nvidia.com/gpu.clique"  # label of nodes: their NVLink domain and its partition
CHANNEL = "nvlink-domain"  # name of a pod's claim to an IMEX channel of its domain
TOPOLOGY = "kueue.x-k8s.io/podset-{}-topology"  # annotation of pods; with "required" or "preferred"

Document = dict[str, Any]


def template(pods: Pods, role: str, content: Document, *, ranks: bool) -> Document:
    """A pod with one container. ranks: it runs ranks, and gets what the user chose for these pods."""
    # The default /dev/shm of a pod has 64 MiB, too little for NCCL and MPICH.
    volumes: list[Document] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": pods.shm}}]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    for number, (claim, path) in enumerate(pods.volumes.items() if ranks else ()):
        volumes.append({"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": f"volume-{number}", "mountPath": path})
    if ranks and pods.hugepages:
        volumes.append({"name": "hugepages", "emptyDir": {"medium": f"HugePages-{pods.hugepages[0]}"}})
        mounts.append({"name": "hugepages", "mountPath": "/dev/hugepages"})
    spec: Document = {
        "enableServiceLinks": False,  # a service named nccl would define a variable NCCL_PORT
        "containers": [{**content, "volumeMounts": mounts}],
        "volumes": volumes,
    }
    if ranks and pods.node_selector:
        spec["nodeSelector"] = dict(pods.node_selector)
    if ranks and pods.tolerations:
        spec["tolerations"] = [dict(toleration) for toleration in pods.tolerations]
    if ranks and pods.host_network:
        # Without this policy, the pod would ask the node's name server, which knows no pods.
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if ranks and pods.nvlink_domain:
        # All workers in one NVLink domain, and in one partition of it.
        workers = {"labelSelector": {"matchLabels": {JOB: pods.name, ROLE: role}}, "topologyKey": CLIQUE}
        spec["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [workers]}}
        spec["resourceClaims"] = [{"name": CHANNEL, "resourceClaimTemplateName": claim_template(pods)}]
    if pods.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in pods.image_pull_secrets]
    if pods.service_account:
        spec["serviceAccountName"] = pods.service_account
    else:
        spec["automountServiceAccountToken"] = False  # ranks do not talk to the cluster
    metadata: Document = {"labels": {**PROJECT, JOB: pods.name, ROLE: role}}
    if ranks and (annotations := _annotations(pods)):
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": spec}


def keys_volume(pods: Pods, pod: Document) -> None:
    """Mount the ssh keys of the user's Secret into a pod, under the names that MPIJobs give them."""
    files = {
        "ssh-privatekey": ("id_rsa",),
        "ssh-publickey": ("id_rsa.pub", "authorized_keys"),
    }
    items = [{"key": key, "path": path} for key, paths in files.items() for path in paths]
    # The files belong to root. fsGroup lets a group read them, which ssh accepts for any other user's key.
    secret = {"secretName": pods.ssh_secret, "defaultMode": 0o400, "items": items}
    pod["spec"]["volumes"].append({"name": "keys", "secret": secret})
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": "keys", "mountPath": pods.ssh_folder})
    if not pods.root:
        pod["spec"]["securityContext"] = {"fsGroup": pods.user}


def launcher_container(
    spec: LaunchSpec, pods: Pods, token: str | None, hosts: str = "", name: str = "meshrun"
) -> Document:
    """The container that runs mpiexec. hosts: shell commands that write the hostfile, if nobody else does."""
    return container(
        pods,
        name=name,
        command=["/bin/sh", "-c", hosts + script(pods.mpi), "await_hosts", HOSTFILE, str(pods.start_timeout)],
        args=literal([*words_between_hosts(spec, pods), *program(spec, pods, token)]),
        variables={**variables_between_hosts(spec, pods), **({TOKEN: token} if token else {})},
        limits=LAUNCHER_LIMITS,
    )


def worker_container(spec: LaunchSpec, pods: Pods, name: str = "meshrun") -> Document:
    """The container of the ranks of one host: an ssh server."""
    settings = [] if pods.root else ["-f", f"{HOME}/.sshd_config"]
    return container(pods, name=name, command=[*SSHD, *settings], limits=limits(spec, pods), ranks=True)


def container(
    pods: Pods,
    *,
    command: Sequence[str],
    limits: Mapping[str, str],
    args: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    ranks: bool = False,
    name: str = "meshrun",
) -> Document:
    # Removes the limit on pinned memory for root; other users have the container runtime's limit.
    added = {"add": ["IPC_LOCK"]} if ranks and pods.rdma else {}
    dropped = {} if pods.root else {"drop": ["ALL"]}  # root's sshd changes user, group and root folder
    security: Document = {
        "runAsUser": pods.user,
        "runAsGroup": pods.user,
        "runAsNonRoot": not pods.root,
        "allowPrivilegeEscalation": False,
        **({"capabilities": {**dropped, **added}} if dropped or added else {}),
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    made: Document = {"name": name, "image": pods.image, "command": list(command)}
    if args:
        made["args"] = list(args)
    if variables:
        made["env"] = [{"name": each, "value": escaped(variables[each])} for each in sorted(variables)]
    claims = {"claims": [{"name": CHANNEL}]} if ranks and pods.nvlink_domain else {}
    if limits or claims:
        made["resources"] = {"limits": dict(limits), **claims}
    return {**made, "securityContext": security}


def limits(spec: LaunchSpec, pods: Pods) -> dict[str, str]:
    """Resource limits of a pod with ranks, which are also its requests (required for devices)."""
    gpus = {pods.gpu_resource: str(spec.per_host)} if pods.gpu_resource else {}
    sizes = {name: value for name, value in (("cpu", pods.cpu), ("memory", pods.memory)) if value}
    pages = {f"hugepages-{pods.hugepages[0]}": pods.hugepages[1]} if pods.hugepages else {}
    return {**gpus, **{name: str(count) for name, count in pods.rdma.items()}, **sizes, **pages}


def claim_template(pods: Pods) -> str:
    """Name of the claims to a channel, which the driver makes for a ComputeDomain."""
    return f"{pods.name}-channel"


def _annotations(pods: Pods) -> dict[str, str]:
    levels = {"required": pods.topology_required, "preferred": pods.topology_preferred}
    topology = {TOPOLOGY.format(how): level for how, level in levels.items() if level}
    return {**pods.annotations, **topology}


def literal(words: Sequence[str]) -> list[str]:
    return [escaped(word) for word in words]


def escaped(text: str) -> str:
    """Escape `text` for Kubernetes, which replaces $(NAME) by a variable and $$ by $."""
    return text.replace("$", "$$")
