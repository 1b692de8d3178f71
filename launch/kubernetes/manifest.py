"""The Kubernetes manifest of a launch: a Job on one node; an MPIJob, a JobSet or a TrainJob on several.

Pure functions that return plain dicts. The operator of MPIJobs and the Trainer provide a hostfile, variables
and ssh keys; `launcher_script` corrects wrong variables. JobSets provide names only, so the launcher writes
its hostfile, and the keys are in a Secret of the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrun.launch.kubernetes.launcher_script import launcher_on_one_host, program, write_hosts
from meshrun.launch.kubernetes.pod_template import (
    LAUNCHER,
    PROJECT,
    TOKEN,
    WORKER,
    Document,
    claim_template,
    container,
    keys_volume,
    launcher_container,
    limits,
    literal,
    template,
    worker_container,
)
from meshrun.launch.kubernetes.pods import Implementation, Kind, Pods
from meshrun.launch.spec import LaunchSpec

IMPLEMENTATIONS: dict[Implementation, str] = {"openmpi": "OpenMPI", "mpich": "MPICH", "intel": "Intel"}
QUEUE = "kueue.x-k8s.io/queue-name"
KEPT = 3600  # seconds until an ended job is deleted
NODE = "node"  # the Trainer's name of the workers' job, and of every container that it changes
TRAINER = "trainer.kubeflow.org/v1alpha1"
STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


def kind_of(spec: LaunchSpec, pods: Pods) -> Kind:
    """The chosen kind of job; by default, a Job for one host and an MPIJob for several."""
    return pods.kind or ("mpijob" if spec.hosts > 1 else "job")


def documents(spec: LaunchSpec, pods: Pods, token: str | None = None) -> list[Document]:
    """The objects of a launch in the order in which they are created, the job last.

    token: of the ranks' status lines in the log; None if no process reads them.
    """
    domain = [_compute_domain(spec, pods)] if pods.nvlink_domain else []
    kind = kind_of(spec, pods)
    if kind == "mpijob":
        return [*domain, _mpi_job(spec, pods, token)]
    if kind == "job":
        return [*domain, _job(spec, pods, token)]
    if kind == "jobset":
        return [*domain, _job_set(spec, pods, token)]
    return [*domain, _training_runtime(spec, pods, token), _train_job(spec, pods)]


def text(objects: Sequence[Document]) -> str:
    """The objects as YAML, scripts as literal blocks. Raises UserError without PyYAML."""
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
    return "---\n".join(yaml.dump(each, Dumper=dumper, sort_keys=False, width=110) for each in objects)


def _mpi_job(spec: LaunchSpec, pods: Pods, token: str | None) -> Document:
    """An MPIJob: one rank per GPU in the worker pods; the launcher pod has no ranks and fits on any node."""
    launcher, worker = launcher_container(spec, pods, token), worker_container(spec, pods)
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
        variables={**launcher.settings(pods.root), **spec.settings, **({TOKEN: token} if token else {})},
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


def _job_set(spec: LaunchSpec, pods: Pods, token: str | None) -> Document:
    """A JobSet: the pods of an MPIJob, whose hostfile the launcher writes."""
    hosts = write_hosts(spec, pods, f"{pods.name}-{WORKER}-0-", f".{pods.name}")
    launcher = template(pods, LAUNCHER, launcher_container(spec, pods, token, hosts), ranks=False)
    worker = template(pods, WORKER, worker_container(spec, pods), ranks=True)
    for pod in (launcher, worker):
        keys_volume(pods, pod)
    # The launcher writes the hostfile into a volume, because the image's /etc belongs to root.
    launcher["spec"]["volumes"].append({"name": "hosts", "emptyDir": {}})
    launcher["spec"]["containers"][0]["volumeMounts"].append({"name": "hosts", "mountPath": "/etc/mpi"})
    deadline = _deadline(pods)
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(pods),
        "spec": {
            "ttlSecondsAfterFinished": KEPT,
            **_set_of_jobs(
                _replicated(WORKER, worker, deadline, pods=spec.hosts),
                _replicated(LAUNCHER, launcher, deadline),
            ),
        },
    }


def _train_job(spec: LaunchSpec, pods: Pods) -> Document:
    """A TrainJob: its pods are in the TrainingRuntime of the same name."""
    return {
        "apiVersion": TRAINER,
        "kind": "TrainJob",
        "metadata": _metadata(pods),
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "TrainingRuntime",
                "name": pods.name,
            },
            "trainer": {"numNodes": spec.hosts, "numProcPerNode": spec.per_host},
            **_deadline(pods),
        },
    }


def _training_runtime(spec: LaunchSpec, pods: Pods, token: str | None) -> Document:
    """The pods of a TrainJob. The Trainer adds keys and hostfile to the containers that are named NODE."""
    launcher = template(pods, LAUNCHER, launcher_container(spec, pods, token, name=NODE), ranks=False)
    worker = template(pods, WORKER, worker_container(spec, pods, name=NODE), ranks=True)
    for pod in (launcher, worker):
        pod["spec"]["securityContext"] = {"fsGroup": pods.user}  # may read the private key
    jobs = _set_of_jobs(
        _replicated(NODE, worker, {}, pods=spec.hosts), _replicated(LAUNCHER, launcher, {}, {STEP: "trainer"})
    )
    return {
        "apiVersion": TRAINER,
        "kind": "TrainingRuntime",
        "metadata": _metadata(pods, queued=False),
        "spec": {
            "mlPolicy": {
                "numNodes": 1,  # the launcher; the TrainJob gives the number of workers
                "mpi": {
                    "numProcPerNode": spec.per_host,
                    "mpiImplementation": IMPLEMENTATIONS[pods.mpi],
                    "sshAuthMountPath": pods.ssh_folder,
                    "runLauncherAsNode": False,
                },
            },
            "template": {"spec": jobs},
        },
    }


def _set_of_jobs(*jobs: Document) -> Document:
    """The jobs of a JobSet that ends with its launcher, and does not restart."""
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [LAUNCHER]},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": list(jobs),
    }


def _replicated(
    name: str, pod: Document, deadline: Document, labels: Document | None = None, pods: int = 1
) -> Document:
    """One job of a JobSet. pods: how many it has, numbered from 0."""
    pod["spec"]["restartPolicy"] = "Never"
    return {
        "name": name,
        "replicas": 1,
        "template": {
            **({"metadata": {"labels": labels}} if labels else {}),
            "spec": {
                "completionMode": "Indexed",
                "parallelism": pods,
                "completions": pods,
                "backoffLimit": 0,
                **deadline,
                "template": pod,
            },
        },
    }


def _compute_domain(spec: LaunchSpec, pods: Pods) -> Document:
    """The NVLink domain of the pods with ranks, which get its IMEX channel by a resource claim."""
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": _metadata(pods, queued=False),
        "spec": {
            "numNodes": spec.hosts,
            "channel": {"resourceClaimTemplate": {"name": claim_template(pods)}},
        },
    }


def _metadata(pods: Pods, *, queued: bool = True) -> Document:
    namespace = {"namespace": pods.namespace} if pods.namespace else {}
    queue = {QUEUE: pods.queue} if pods.queue and queued else {}
    return {"name": pods.name, **namespace, "labels": {**PROJECT, **queue}}


def _policy(pods: Pods) -> Document:
    """Do not restart: a silently repeated measurement is invalid."""
    return {"backoffLimit": 0, "ttlSecondsAfterFinished": KEPT, **_deadline(pods)}


def _deadline(pods: Pods) -> Document:
    return {"activeDeadlineSeconds": pods.time_limit} if pods.time_limit else {}
