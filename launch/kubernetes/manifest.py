"""The Kubernetes manifest of a launch: an MPIJob (kubeflow.org/v2beta1), or for one host a plain Job.

Pure functions that return plain dicts. The MPIJob operator provides a hostfile and variables to the launcher
pod, and ssh keys to all pods; `launcher_script` corrects wrong variables.
"""

from __future__ import annotations

from typing import Any

from meshrun.launch.kubernetes.launcher_script import (
    HOSTFILE,
    launcher_on_one_host,
    program,
    script,
    variables_between_hosts,
    words_between_hosts,
)
from meshrun.launch.kubernetes.pod_template import (
    LAUNCHER,
    PROJECT,
    WORKER,
    Document,
    container,
    limits,
    literal,
    template,
)
from meshrun.launch.kubernetes.pods import HOME, SSHD, Implementation, Pods
from meshrun.launch.spec import LaunchSpec

IMPLEMENTATIONS: dict[Implementation, str] = {"openmpi": "OpenMPI", "mpich": "MPICH", "intel": "Intel"}
QUEUE = "kueue.x-k8s.io/queue-name"
TOKEN = "MESHRUN_TOKEN"  # of the status lines in the launcher pod's log
KEPT = 3600  # seconds until an ended job is deleted
LAUNCHER_LIMITS = {"cpu": "1", "memory": "1Gi"}


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
    launcher = container(
        pods,
        command=["/bin/sh", "-c", script(pods.mpi), "await_hosts", HOSTFILE, str(pods.start_timeout)],
        args=literal([*words_between_hosts(spec, pods), *program(spec, pods, token)]),
        variables=variables_between_hosts(spec, pods) | _token_variable(token),
        limits=LAUNCHER_LIMITS,
    )
    settings = [] if pods.root else ["-f", f"{HOME}/.sshd_config"]
    worker = container(pods, command=[*SSHD, *settings], limits=limits(spec, pods), ranks=True)
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
                    "template": template(pods, LAUNCHER, launcher, ranks=False),
                },
                "Worker": {
                    "replicas": spec.hosts,
                    "restartPolicy": "Never",
                    "template": template(pods, WORKER, worker, ranks=True),
                },
            },
        },
    }


def _job(spec: LaunchSpec, pods: Pods, token: str | None) -> Document:
    """A plain Job: all ranks in one pod, without operator or ssh."""
    launcher = launcher_on_one_host(pods)
    ranks = container(
        pods,
        command=literal([*launcher.command(spec.ranks), *program(spec, pods, token)]),
        variables={**launcher.settings(pods.root), **spec.settings} | _token_variable(token),
        limits=limits(spec, pods),
        ranks=True,
    )
    pod = template(pods, LAUNCHER, ranks, ranks=True)
    pod["spec"]["restartPolicy"] = "Never"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(pods),
        "spec": {**_policy(pods), "template": pod},
    }


def _metadata(pods: Pods) -> Document:
    namespace = {"namespace": pods.namespace} if pods.namespace else {}
    queue = {QUEUE: pods.queue} if pods.queue else {}
    return {"name": pods.name, **namespace, "labels": {**PROJECT, **queue}}


def _policy(pods: Pods) -> Document:
    """Do not restart: a silently repeated measurement is invalid."""
    deadline = {"activeDeadlineSeconds": pods.time_limit} if pods.time_limit else {}
    return {"backoffLimit": 0, "ttlSecondsAfterFinished": KEPT, **deadline}


def _token_variable(token: str | None) -> dict[str, str]:
    return {TOKEN: token} if token else {}
