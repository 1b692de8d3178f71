"""The Kubernetes manifest of a launch: an MPIJob (kubeflow.org/v2beta1), or for one host a plain Job.

Pure functions that return plain dicts. The MPIJob operator provides a hostfile and variables to the launcher
pod, and ssh keys to all pods; `launcher_script` corrects wrong variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshrun.launch.kubernetes.launcher_script import (
    HOSTFILE,
    launcher_on_one_host,
    program,
    script,
    variables_between_hosts,
    words_between_hosts,
)
from meshrun.launch.kubernetes.pods import HOME, SSHD, USER, Implementation, Pods
from meshrun.launch.spec import LaunchSpec

IMPLEMENTATIONS: dict[Implementation, str] = {"openmpi": "OpenMPI", "mpich": "MPICH", "intel": "Intel"}
QUEUE = "kueue.x-k8s.io/queue-name"
PROJECT = {"app.kubernetes.io/name": "meshrun"}
JOB = "app.kubernetes.io/instance"  # labels of every pod: its job,
ROLE = "app.kubernetes.io/component"  # and whether it runs mpiexec
LAUNCHER, WORKER = "launcher", "worker"
TOKEN = "MESHRUN_TOKEN"  # of the status lines in the launcher pod's log
KEPT = 3600  # seconds until an ended job is deleted
LAUNCHER_LIMITS = {"cpu": "1", "memory": "1Gi"}

Document = dict[str, Any]


def document(spec: LaunchSpec, pods: Pods, token: str | None = None) -> Document:
    """The manifest. token: of the ranks' status lines in the log; None if no process reads them."""
    return _mpi_job(spec, pods, token) if spec.hosts > 1 else _job(spec, pods, token)


def text(manifest: Document) -> str:
    """The manifest as YAML, scripts as literal blocks. Raises UserError without PyYAML."""
    from meshrun.runner.errors import UserError

    try:
        import yaml
    except ImportError as reason:
        raise UserError(
            "printing the manifest needs PyYAML, which is not installed",
            hint="pip install 'meshrun[kubernetes]'",
        ) from reason

    def block(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    dumper: Any = type("Dumper", (yaml.SafeDumper,), {})  # representers belong to a class
    dumper.add_representer(str, block)
    dumper.ignore_aliases = lambda *_: True
    return str(yaml.dump(manifest, Dumper=dumper, sort_keys=False, width=110))


def _mpi_job(spec: LaunchSpec, pods: Pods, token: str | None) -> Document:
    """An MPIJob: one rank per GPU in the worker pods; the launcher pod has no ranks and fits on any node."""
    launcher = _container(
        pods,
        command=["/bin/sh", "-c", script(pods.mpi), "await_hosts", HOSTFILE, str(pods.start_timeout)],
        args=_literal([*words_between_hosts(spec, pods), *program(spec, pods, token)]),
        variables=variables_between_hosts(spec, pods) | _token_variable(token),
        limits=LAUNCHER_LIMITS,
    )
    settings = [] if pods.root else ["-f", f"{HOME}/.sshd_config"]
    worker = _container(pods, command=[*SSHD, *settings], limits=_limits(spec, pods), ranks=True)
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": _metadata(pods),
        "spec": {
            "slotsPerWorker": spec.per_host,
            "mpiImplementation": IMPLEMENTATIONS[pods.mpi],
            "sshAuthMountPath": pods.ssh_folder,
            "runPolicy": {"cleanPodPolicy": pods.clean_pods, **_policy(pods)},
            "mpiReplicaSpecs": {
                "Launcher": {
                    "replicas": 1,
                    "restartPolicy": "Never",
                    "template": _template(pods, LAUNCHER, launcher, ranks=False),
                },
                "Worker": {
                    "replicas": spec.hosts,
                    "restartPolicy": "Never",
                    "template": _template(pods, WORKER, worker, ranks=True),
                },
            },
        },
    }


def _job(spec: LaunchSpec, pods: Pods, token: str | None) -> Document:
    """A plain Job: all ranks in one pod, without operator or ssh."""
    launcher = launcher_on_one_host(pods)
    container = _container(
        pods,
        command=_literal([*launcher.command(spec.ranks), *program(spec, pods, token)]),
        variables={**launcher.settings(pods.root), **spec.settings} | _token_variable(token),
        limits=_limits(spec, pods),
        ranks=True,
    )
    template = _template(pods, LAUNCHER, container, ranks=True)
    template["spec"]["restartPolicy"] = "Never"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(pods),
        "spec": {**_policy(pods), "template": template},
    }


def _metadata(pods: Pods) -> Document:
    namespace = {"namespace": pods.namespace} if pods.namespace else {}
    queue = {QUEUE: pods.queue} if pods.queue else {}
    return {"name": pods.name, **namespace, "labels": {**PROJECT, **queue}}


def _policy(pods: Pods) -> Document:
    """Do not restart: a silently repeated measurement is invalid."""
    deadline = {"activeDeadlineSeconds": pods.time_limit} if pods.time_limit else {}
    return {"backoffLimit": 0, "ttlSecondsAfterFinished": KEPT, **deadline}


def _template(pods: Pods, role: str, container: Document, *, ranks: bool) -> Document:
    """A pod with one container. ranks: it runs ranks, and gets the volumes, node selector and tolerations."""
    # The default /dev/shm of a pod has 64 MiB, too little for NCCL and MPICH.
    volumes: list[Document] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": pods.shm}}]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    for number, (claim, path) in enumerate(pods.volumes.items() if ranks else ()):
        volumes.append({"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": f"volume-{number}", "mountPath": path})
    spec: Document = {
        "enableServiceLinks": False,  # a service named nccl would define a variable NCCL_PORT
        "containers": [{**container, "volumeMounts": mounts}],
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


def _container(
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
    container: Document = {"name": "meshrun", "image": pods.image, "command": list(command)}
    if args:
        container["args"] = list(args)
    if variables:
        container["env"] = [{"name": name, "value": _escaped(variables[name])} for name in sorted(variables)]
    if limits:
        container["resources"] = {"limits": dict(limits)}
    return {**container, "securityContext": security}


def _limits(spec: LaunchSpec, pods: Pods) -> dict[str, str]:
    """Resource limits of a pod with ranks, which are also its requests (required for devices)."""
    gpus = {pods.gpu_resource: str(spec.per_host)} if pods.gpu_resource else {}
    sizes = {name: value for name, value in (("cpu", pods.cpu), ("memory", pods.memory)) if value}
    return {**gpus, **{name: str(count) for name, count in pods.rdma.items()}, **sizes}


def _token_variable(token: str | None) -> dict[str, str]:
    return {TOKEN: token} if token else {}


def _literal(words: Sequence[str]) -> list[str]:
    return [_escaped(word) for word in words]


def _escaped(text: str) -> str:
    """Escape `text` for Kubernetes, which replaces $(NAME) by a variable and $$ by $."""
    return text.replace("$", "$$")
