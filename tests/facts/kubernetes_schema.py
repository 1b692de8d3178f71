"""Check a manifest: all fields known, all values valid.

An API server may drop unknown fields, and the operator reports an invalid job only as an event. These are the
fields of an MPIJob according to the operator's CRD, those of pods that `launch.kubernetes.manifest` uses, and
the rules that are not in the CRD (validation.go of kubeflow/mpi-operator v0.8.2). Of JobSets (v1alpha2), of
TrainJobs and TrainingRuntimes (v1alpha1) and of ComputeDomains (v1beta1) they are the fields in use, and the
rules of their admission webhooks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

# Yields the errors of a value as texts that begin with its path.
Check = Callable[[Any, str], Iterator[str]]

DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")  # RFC 1035: a host's name
DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
KEY = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
VARIABLE = re.compile(r"[A-Za-z_.-][A-Za-z0-9_.-]*")
QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|[MGTPE]|[KMGTPE]i)?")
ANY = re.compile(r"(?s).*")
SOME = re.compile(r"(?s).+")
PATH = re.compile(r"/[^:]*")


def problems(manifest: Any) -> list[str]:
    """The errors in an MPIJob or a Job, each with the path of its field; empty if valid."""
    if not isinstance(manifest, dict) or manifest.get("kind") not in KINDS:
        return [f"kind: expected {' or '.join(KINDS)}"]
    found = list(KINDS[manifest["kind"]](manifest, ""))
    return found or list(_pod_names(manifest))


def one_of(*values: str) -> Check:
    def check(value: Any, path: str) -> Iterator[str]:
        if value not in values:
            yield f"{path}: got {value!r}, expected {' or '.join(values)}"

    return check


def text(form: re.Pattern[str] = SOME, what: str = "a text") -> Check:
    def check(value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, str) or not form.fullmatch(value):
            yield f"{path}: got {value!r}, expected {what}"

    return check


def integer(minimum: int = 0, maximum: int = 2**31 - 1) -> Check:
    def check(value: Any, path: str) -> Iterator[str]:
        if type(value) is not int or not minimum <= value <= maximum:
            yield f"{path}: got {value!r}, expected a whole number from {minimum} to {maximum}"

    return check


def boolean(value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, bool):
        yield f"{path}: got {value!r}, expected true or false"


def each(item: Check, least: int = 0) -> Check:
    def check(value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, list) or len(value) < least:
            yield f"{path}: got {value!r}, expected a list of at least {least}"
            return
        for number, element in enumerate(value):
            yield from item(element, f"{path}[{number}]")

    return check


def mapping(value_check: Check) -> Check:
    """A mapping with arbitrary keys, such as labels or resources."""

    def check(value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{path}: got {value!r}, expected names and values"
            return
        for key, element in value.items():
            yield from text(KEY, "a name, or DOMAIN/NAME")(key, f"{path}, key")
            yield from value_check(element, f"{path}[{key}]")

    return check


def fields(required: str = "", **known: Check) -> Check:
    """A mapping with these fields only. required: names of mandatory fields, separated by spaces."""

    def check(value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{path}: got {value!r}, expected the fields {', '.join(known)}"
            return
        below = f"{path}." if path else ""
        yield from (f"{below}{name}: no such field" for name in value if name not in known)
        yield from (f"{below}{name}: missing" for name in required.split() if name not in value)
        for name, element in value.items():
            if name in known:
                yield from known[name](element, f"{below}{name}")

    return check


quantity = text(QUANTITY, "a quantity such as 16Gi or 500m")
labels = mapping(text(LABEL, "a label of at most 63 letters, digits and ._-"))
path = text(PATH, "an absolute path")

container = fields(
    "name image",
    name=text(DNS_LABEL, "a DNS label"),
    image=text(re.compile(r"[^\s:@][^\s]*"), "an image such as registry/name:tag"),
    command=each(text(ANY)),
    args=each(text(ANY)),
    env=each(fields("name", name=text(VARIABLE, "a variable's name"), value=text(ANY))),
    resources=fields(
        limits=mapping(quantity),
        requests=mapping(quantity),
        claims=each(fields("name", name=text(DNS_LABEL, "a DNS label"))),
    ),
    securityContext=fields(
        runAsUser=integer(),
        runAsGroup=integer(),
        runAsNonRoot=boolean,
        allowPrivilegeEscalation=boolean,
        capabilities=fields(add=each(one_of("IPC_LOCK")), drop=each(one_of("ALL"))),
        seccompProfile=fields("type", type=one_of("RuntimeDefault")),
    ),
    volumeMounts=each(fields("name mountPath", name=text(DNS_LABEL, "a DNS label"), mountPath=path)),
)
volume = fields(
    "name",
    name=text(DNS_LABEL, "a DNS label"),
    emptyDir=fields(
        medium=text(re.compile(r"Memory|HugePages-\d+[KMG]i"), "memory or huge pages"), sizeLimit=quantity
    ),
    secret=fields(
        "secretName",
        secretName=text(DNS_NAME, "a Secret's name"),
        defaultMode=integer(0, 0o777),
        items=each(fields("key path", key=text(), path=text(re.compile(r"[^/].*"), "a relative path"))),
    ),
    persistentVolumeClaim=fields("claimName", claimName=text(DNS_NAME, "a claim's name")),
)
toleration = fields(
    key=text(KEY, "a taint's key"),
    operator=one_of("Exists", "Equal"),
    value=text(LABEL, "a taint's value"),
    effect=one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
)
pod = {
    "containers": each(container, least=1),
    "volumes": each(volume),
    "nodeSelector": labels,
    "tolerations": each(toleration),
    "serviceAccountName": text(DNS_NAME, "a service account's name"),
    "hostNetwork": boolean,
    "dnsPolicy": one_of("ClusterFirstWithHostNet"),
    "imagePullSecrets": each(fields("name", name=text(DNS_NAME, "a Secret's name"))),
    "resourceClaims": each(
        fields(
            "name resourceClaimTemplateName",
            name=text(DNS_LABEL, "a DNS label"),
            resourceClaimTemplateName=text(DNS_NAME, "a template's name"),
        )
    ),
    "securityContext": fields(fsGroup=integer(1)),
    "affinity": fields(
        podAffinity=fields(
            requiredDuringSchedulingIgnoredDuringExecution=each(
                fields(
                    "labelSelector topologyKey",
                    labelSelector=fields("matchLabels", matchLabels=labels),
                    topologyKey=text(KEY, "a label of nodes"),
                )
            )
        )
    ),
    "enableServiceLinks": boolean,
    "automountServiceAccountToken": boolean,
}
pod_metadata = fields(labels=labels, annotations=mapping(text(ANY)))
template = fields("spec", metadata=pod_metadata, spec=fields("containers", **pod))
job_template = fields(
    "spec",
    metadata=pod_metadata,
    spec=fields("containers restartPolicy", **pod, restartPolicy=one_of("Never", "OnFailure")),
)
policy: dict[str, Check] = {
    "activeDeadlineSeconds": integer(1, 2**63 - 1),
    "backoffLimit": integer(),
    "ttlSecondsAfterFinished": integer(),
    "suspend": boolean,
    "managedBy": one_of("kubeflow.org/mpi-operator", "kueue.x-k8s.io/multikueue"),
}
metadata = fields(
    "name", name=text(DNS_LABEL, "a DNS label: at most 63 of a-z, 0-9 and -, a letter first"),
    namespace=text(DNS_LABEL, "a namespace's name"), labels=labels, annotations=mapping(text(ANY)),
)  # fmt: skip


def replicas(count: Check) -> Check:
    # A restart policy in the pod's template would be overridden.
    return fields(
        "replicas restartPolicy template",
        replicas=count,
        restartPolicy=one_of("Never", "OnFailure"),
        template=template,
    )


run_policy = fields(
    "cleanPodPolicy",
    **policy,
    cleanPodPolicy=one_of("None", "Running", "All"),
    schedulingPolicy=fields(
        minAvailable=integer(), queue=text(), minResources=mapping(quantity), priorityClass=text(),
        scheduleTimeoutSeconds=integer(),
    ),
)  # fmt: skip
mpi_job_spec = fields(
    "slotsPerWorker mpiImplementation sshAuthMountPath runPolicy mpiReplicaSpecs",
    slotsPerWorker=integer(),
    runLauncherAsWorker=boolean,
    mpiImplementation=one_of("OpenMPI", "Intel", "MPICH"),
    sshAuthMountPath=path,
    launcherCreationPolicy=one_of("AtStartup", "WaitForWorkersReady"),
    runPolicy=run_policy,
    mpiReplicaSpecs=fields("Launcher", Launcher=replicas(integer(1, 1)), Worker=replicas(integer(1))),
)


def ends_with_launcher(value: Any, path: str) -> Iterator[str]:
    """A JobSet's jobs have names of their own, and its success is the launcher's."""
    yield from job_set_fields(value, path)
    names = [job.get("name") for job in value.get("replicatedJobs", ())]
    if len(set(names)) < len(names):
        yield f"{path}.replicatedJobs: got {names}, expected each name once"
    for name in value.get("successPolicy", {}).get("targetReplicatedJobs", ()):
        if name not in names:
            yield f"{path}.successPolicy.targetReplicatedJobs: got {name!r}, expected one of {names}"


replicated_job = fields(
    "name template",
    name=text(DNS_LABEL, "a DNS label"),
    replicas=integer(1, 1),
    template=fields(
        "spec",
        metadata=fields(labels=labels),
        spec=fields(
            "template",
            completionMode=one_of("Indexed"),
            parallelism=integer(1),
            completions=integer(1),
            backoffLimit=integer(0, 0),
            activeDeadlineSeconds=integer(1),
            template=job_template,
        ),
    ),
)
job_set_fields = fields(
    "replicatedJobs successPolicy failurePolicy",
    ttlSecondsAfterFinished=integer(),
    network=fields(enableDNSHostnames=boolean, publishNotReadyAddresses=boolean, subdomain=text(DNS_LABEL)),
    successPolicy=fields("operator", operator=one_of("All", "Any"), targetReplicatedJobs=each(text())),
    failurePolicy=fields(maxRestarts=integer(0, 0)),
    replicatedJobs=each(replicated_job, least=1),
)
mpi_policy = fields(
    numProcPerNode=integer(1),
    mpiImplementation=one_of("OpenMPI"),  # the only one in the CRD
    sshAuthMountPath=path,
    runLauncherAsNode=boolean,
)
TRAINER = one_of("trainer.kubeflow.org/v1alpha1")
runtime_ref = fields(
    "name", name=text(DNS_NAME), kind=one_of("TrainingRuntime"), apiGroup=one_of("trainer.kubeflow.org")
)


def for_the_trainer(value: Any, path: str) -> Iterator[str]:
    """The Trainer finds its jobs and containers by name."""
    yield from fields("spec", spec=ends_with_launcher)(value, path)
    jobs = {job["name"]: job["template"] for job in value["spec"]["replicatedJobs"]}
    if set(jobs) != {"node", "launcher"}:
        yield f"{path}.spec.replicatedJobs: got {sorted(jobs)}, expected node and launcher"
    for name, job in jobs.items():
        names = [container["name"] for container in job["spec"]["template"]["spec"]["containers"]]
        if names != ["node"]:
            yield f"{path}.spec.replicatedJobs: the containers of {name} are {names}, expected node"


KINDS: dict[str, Check] = {
    "JobSet": fields(
        "apiVersion metadata spec",
        apiVersion=one_of("jobset.x-k8s.io/v1alpha2"),
        kind=one_of("JobSet"),
        metadata=metadata,
        spec=ends_with_launcher,
    ),
    "TrainingRuntime": fields(
        "apiVersion metadata spec",
        apiVersion=TRAINER,
        kind=one_of("TrainingRuntime"),
        metadata=metadata,
        spec=fields(
            "mlPolicy template",
            mlPolicy=fields("mpi", numNodes=integer(1), mpi=mpi_policy),
            template=for_the_trainer,
        ),
    ),
    "TrainJob": fields(
        "apiVersion metadata spec",
        apiVersion=TRAINER,
        kind=one_of("TrainJob"),
        metadata=metadata,
        spec=fields(
            "runtimeRef trainer",
            runtimeRef=runtime_ref,
            trainer=fields(numNodes=integer(1), numProcPerNode=integer(1)),
            activeDeadlineSeconds=integer(1),
        ),
    ),
    "ComputeDomain": fields(
        "apiVersion metadata spec",
        apiVersion=one_of("resource.nvidia.com/v1beta1"),
        kind=one_of("ComputeDomain"),
        metadata=metadata,
        spec=fields(
            "numNodes channel",
            numNodes=integer(0),
            channel=fields(
                "resourceClaimTemplate", resourceClaimTemplate=fields("name", name=text(DNS_NAME))
            ),
        ),
    ),
    "MPIJob": fields(
        "apiVersion metadata spec",
        apiVersion=one_of("kubeflow.org/v2beta1"),
        kind=one_of("MPIJob"),
        metadata=metadata,
        spec=mpi_job_spec,
    ),
    "Job": fields(
        "apiVersion metadata spec",
        apiVersion=one_of("batch/v1"),
        kind=one_of("Job"),
        metadata=metadata,
        spec=fields("template", **policy, template=job_template),
    ),
}


def _pod_names(manifest: Any) -> Iterator[str]:
    """Check that the names of an MPIJob's pods are valid host names."""
    if manifest["kind"] != "MPIJob":
        return
    workers = manifest["spec"]["mpiReplicaSpecs"].get("Worker", {}).get("replicas", 1)
    name = f"{manifest['metadata']['name']}-worker-{workers - 1}"
    if not DNS_LABEL.fullmatch(name):
        yield f"metadata.name: a pod would be named {name}, with {len(name)} characters, at most 63 are valid"
