"""The Kubernetes manifest of a launch: an MPIJob (kubeflow.org/v2beta1), or for one host a plain Job.

Pure functions that return plain dicts. The operator of MPIJobs gives the launcher pod a hostfile and
variables, and all pods ssh keys; `launcher_script` corrects what it sets wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launch.kubernetes.launcher_script import (
    HOSTFILE,
    launcher_on_one_host,
    program,
    script,
    variables_between_hosts,
    words_between_hosts,
)
from launch.kubernetes.pods import HOME, SSHD, USER, Implementation, Pods
from launch.spec import LaunchSpec

IMPLEMENTATIONS: dict[Implementation, str] = {"openmpi": "OpenMPI", "mpich": "MPICH", "intel": "Intel"}
QUEUE = "kueue.x-k8s.io/queue-name"
PROJECT = {"app.kubernetes.io/name": "meshrun"}
JOB = "app.kubernetes.io/instance"  # labels of every pod: of which job it is,
ROLE = "app.kubernetes.io/component"  # and whether mpiexec runs in it
LAUNCHER, WORKER = "launcher", "worker"
TOKEN = "MESHRUN_TOKEN"  # of the lines by which the launcher pod tells how the run went
KEPT = 3600  # seconds that an ended job can be looked at
LAUNCHER_LIMITS = {"cpu": "1", "memory": "1Gi"}

Document = dict[str, Any]


def document(spec: LaunchSpec, pods: Pods, token: str | None = None) -> Document:
    """The manifest. token: of the ranks' status lines in the log; None where no process reads them."""
    return _mpi_job(spec, pods, token) if spec.hosts > 1 else _job(spec, pods, token)


def text(manifest: Document) -> str:
    """The manifest as YAML, scripts as blocks; UserError without a YAML library."""
    from runner.errors import UserError

    try:
        import yaml
    except ImportError as reason:
        raise UserError(
            "the manifest is printed as YAML, and PyYAML is not installed",
            hint="pip install 'meshrun[kubernetes]'",
        ) from reason

    def block(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    dumper: Any = type("Dumper", (yaml.SafeDumper,), {})  # representers are the class's
    dumper.add_representer(str, block)
    dumper.ignore_aliases = lambda *_: True
    return str(yaml.dump(manifest, Dumper=dumper, sort_keys=False, width=110))


def _mpi_job(spec: LaunchSpec, pods: Pods, token: str | None) -> Document:
    """Slots are GPUs: each worker pod has as many ranks. The launcher pod has none and fits on any node."""
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
    """All ranks in one pod: no operator, no ssh."""
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
    """Once, and not again: a measurement that is repeated in silence is none."""
    deadline = {"activeDeadlineSeconds": pods.time_limit} if pods.time_limit else {}
    return {"backoffLimit": 0, "ttlSecondsAfterFinished": KEPT, **deadline}


def _template(pods: Pods, role: str, container: Document, *, ranks: bool) -> Document:
    """A pod with one container. ranks: it has some, and so goes where GPUs are and has the volumes."""
    # A pod's own /dev/shm has 64 MiB, too little for NCCL and for MPICH.
    volumes: list[Document] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": pods.shm}}]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    for number, (claim, path) in enumerate(pods.volumes.items() if ranks else ()):
        volumes.append({"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": f"volume-{number}", "mountPath": path})
    spec: Document = {
        "enableServiceLinks": False,  # of a service called nccl there would be a variable NCCL_PORT
        "containers": [{**container, "volumeMounts": mounts}],
        "volumes": volumes,
    }
    if ranks and pods.node_selector:
        spec["nodeSelector"] = dict(pods.node_selector)
    if ranks and pods.tolerations:
        spec["tolerations"] = [dict(toleration) for toleration in pods.tolerations]
    if pods.service_account:
        spec["serviceAccountName"] = pods.service_account
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
    security: Document = {"runAsUser": user, "runAsGroup": user}
    if ranks and pods.rdma:
        # Pinned memory without a limit, for root: others have the container runtime's own limit.
        security["capabilities"] = {"add": ["IPC_LOCK"]}
    container: Document = {"name": "meshrun", "image": pods.image, "command": list(command)}
    if args:
        container["args"] = list(args)
    if variables:
        container["env"] = [{"name": name, "value": _escaped(variables[name])} for name in sorted(variables)]
    if limits:
        container["resources"] = {"limits": dict(limits)}
    return {**container, "securityContext": security}


def _limits(spec: LaunchSpec, pods: Pods) -> dict[str, str]:
    """Of a pod with ranks; they are its requests as well, as they must be for devices."""
    gpus = {pods.gpu_resource: str(spec.per_host)} if pods.gpu_resource else {}
    sizes = {name: value for name, value in (("cpu", pods.cpu), ("memory", pods.memory)) if value}
    return {**gpus, **{name: str(count) for name, count in pods.rdma.items()}, **sizes}


def _token_variable(token: str | None) -> dict[str, str]:
    return {TOKEN: token} if token else {}


def _literal(words: Sequence[str]) -> list[str]:
    return [_escaped(word) for word in words]


def _escaped(text: str) -> str:
    """`text` so that Kubernetes leaves it alone: it replaces $(NAME) by a variable, and $$ by $."""
    return text.replace("$", "$$")
