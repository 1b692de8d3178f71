"""The pods of a manifest: their containers, volumes, rights and placement.

Pure functions that return plain dicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshrun.launch.kubernetes.pods import USER, Pods
from meshrun.launch.spec import LaunchSpec

PROJECT = {"app.kubernetes.io/name": "meshrun"}
JOB = "app.kubernetes.io/instance"  # labels of every pod: its job,
ROLE = "app.kubernetes.io/component"  # and whether it runs mpiexec
LAUNCHER, WORKER = "launcher", "worker"

Document = dict[str, Any]


def template(pods: Pods, role: str, content: Document, *, ranks: bool) -> Document:
    """A pod with one container. ranks: it runs ranks, and gets the volumes, node selector and tolerations."""
    # The default /dev/shm of a pod has 64 MiB, too little for NCCL and MPICH.
    volumes: list[Document] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": pods.shm}}]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    for number, (claim, path) in enumerate(pods.volumes.items() if ranks else ()):
        volumes.append({"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": f"volume-{number}", "mountPath": path})
    spec: Document = {
        "enableServiceLinks": False,  # a service named nccl would define a variable NCCL_PORT
        "containers": [{**content, "volumeMounts": mounts}],
        "volumes": volumes,
    }
    if ranks and pods.node_selector:
        spec["nodeSelector"] = dict(pods.node_selector)
    if ranks and pods.tolerations:
        spec["tolerations"] = [dict(toleration) for toleration in pods.tolerations]
    if pods.service_account:
        spec["serviceAccountName"] = pods.service_account
    else:
        spec["automountServiceAccountToken"] = False  # ranks do not talk to the cluster
    return {"metadata": {"labels": {**PROJECT, JOB: pods.name, ROLE: role}}, "spec": spec}


def container(
    pods: Pods,
    *,
    command: Sequence[str],
    limits: Mapping[str, str],
    args: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    ranks: bool = False,
) -> Document:
    user = 0 if pods.root else USER
    # Removes the limit on pinned memory for root; other users have the container runtime's limit.
    added = {"add": ["IPC_LOCK"]} if ranks and pods.rdma else {}
    dropped = {} if pods.root else {"drop": ["ALL"]}  # root's sshd changes user, group and root folder
    security: Document = {
        "runAsUser": user,
        "runAsGroup": user,
        "runAsNonRoot": not pods.root,
        "allowPrivilegeEscalation": False,
        **({"capabilities": {**dropped, **added}} if dropped or added else {}),
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    made: Document = {"name": "meshrun", "image": pods.image, "command": list(command)}
    if args:
        made["args"] = list(args)
    if variables:
        made["env"] = [{"name": name, "value": escaped(variables[name])} for name in sorted(variables)]
    if limits:
        made["resources"] = {"limits": dict(limits)}
    return {**made, "securityContext": security}


def limits(spec: LaunchSpec, pods: Pods) -> dict[str, str]:
    """Resource limits of a pod with ranks, which are also its requests (required for devices)."""
    gpus = {pods.gpu_resource: str(spec.per_host)} if pods.gpu_resource else {}
    sizes = {name: value for name, value in (("cpu", pods.cpu), ("memory", pods.memory)) if value}
    return {**gpus, **{name: str(count) for name, count in pods.rdma.items()}, **sizes}


def literal(words: Sequence[str]) -> list[str]:
    return [escaped(word) for word in words]


def escaped(text: str) -> str:
    """Escape `text` for Kubernetes, which replaces $(NAME) by a variable and $$ by $."""
    return text.replace("$", "$$")
