"""Check the user's values in a manifest: an API server rejects some late, the operator only by an event.

The fields themselves are fixed by `manifest`, whose tests compare them with the operator's CRD.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from meshrun.launch.kubernetes.pods import Kind, Pods
from meshrun.launch.spec import LaunchSpec

DNS_LABEL = r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"  # RFC 1035: a host's name
NAMESPACE = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"  # RFC 1123
DNS_NAME = r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
LABEL = r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"
KEY = (
    r"((?=[^/]{1,253}/)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
QUANTITY = r"\d+(\.\d+)?(m|k|[MGTPE]|[KMGTPE]i)?"
# A resource of a container: one of Kubernetes' own, or DOMAIN/NAME of a device plugin.
RESOURCE = r"cpu|memory|hugepages-[1-9]\d*[KMG]i|[^/]+/[^/]+"
PAGES = r"HugePages-[1-9]\d*[KMG]i|Memory"
PATH_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
IMAGE = (
    rf"([A-Za-z0-9][A-Za-z0-9.-]*(:\d+)?/)?{PATH_PART}(/{PATH_PART})*"
    r"(:\w[\w.-]{0,127})?(@[A-Za-z][A-Za-z0-9+._-]*:[0-9a-fA-F]{32,})?"
)
BELOW = "a whole number below 10^9"
# Mappings whose keys are the user's.
FREE = ("labels", "limits", "nodeSelector", "annotations")
# End of a path, the form of the value there, and what that is.
RULES = (
    (r"^metadata\.name", DNS_LABEL, "a DNS label: at most 63 of a-z, 0-9 and -, a letter first"),
    (r"^metadata\.namespace", NAMESPACE, "a namespace's name"),
    (r", key", KEY, "a name, or DOMAIN/NAME"),
    (r"(labels|nodeSelector)\[.*\]", LABEL, "a label of at most 63 letters, digits and ._-"),
    (r"limits, key", RESOURCE, "cpu, memory, hugepages-SIZE, or DOMAIN/NAME"),
    (r"emptyDir\.medium", PAGES, "a size of huge pages such as 2Mi or 1Gi"),
    (r"(limits\[.*\]|\.sizeLimit)", QUANTITY, "a quantity such as 16Gi or 500m"),
    (r"\.image", IMAGE, "an image such as registry/name:tag, in lower case"),
    (r"\.env\[\d+\]\.name", r"[A-Za-z_.-][A-Za-z0-9_.-]*", "a variable's name"),
    (r"(annotations\[.*topology\]|topologyKey)", KEY, "a label of nodes"),
    (r"(imagePullSecrets\[\d+\]\.name|secretName)", DNS_NAME, "a Secret's name"),
    (
        r"(slotsPerWorker|replicas|numProcPerNode|numNodes|parallelism)",
        r"\d{1,9}",
        "a whole number below 10^9",
    ),
    (r"\.mountPath", r"/[^:]*", "an absolute path"),
    (r"\.claimName", DNS_NAME, "a claim's name"),
    (r"\.serviceAccountName", DNS_NAME, "a service account's name"),
    (r"tolerations\[\d+\]\.key", KEY, "a taint's key"),
    (r"tolerations\[\d+\]\.value", LABEL, "a taint's value"),
)


def problems(objects: Sequence[dict[str, Any]]) -> list[str]:
    """The errors in the values of a launch's objects, each with the path of its field; empty if valid."""
    wrong = {}
    for path, value in (each for document in objects for each in _values(document, "")):
        expected = [
            what
            for end, form, what in RULES
            if re.search(f"{end}$", path) and not re.fullmatch(form, str(value))
        ]
        if expected:
            wrong[path, value] = f"{path}: got {value!r}, expected {expected[0]}"
    return list(wrong.values()) or [problem for each in objects for problem in _pod_names(each)]


def conflicts(spec: LaunchSpec, pods: Pods, kind: Kind) -> Iterator[str]:
    """The choices that exclude each other, a sentence each."""
    from meshrun.runner.spelling import command_option

    chosen = command_option("kind", kind)
    if kind == "job" and spec.hosts > 1:
        several = command_option("kind", "mpijob")
        yield f"{chosen} runs on one node, not on {spec.hosts}; {several} runs on several"
    if kind == "trainjob" and pods.mpi != "openmpi":
        needed = command_option("mpi", "openmpi")
        yield f"{chosen} needs {needed}: the Trainer writes no hostfile for {pods.mpi}"
    if kind == "trainjob" and pods.root:
        yield (
            f"{chosen} excludes {command_option('root', True)}: the Trainer lets the group read the private "
            "key, which ssh then refuses to use for its owner, root"
        )
    if kind == "jobset" and not pods.ssh_secret:
        yield (
            f"{chosen} needs {command_option('ssh_secret', metavar='NAME')}, since JobSets make no ssh keys; "
            "to make it: ssh-keygen -q -t ecdsa -N '' -f key && kubectl create secret generic NAME "
            "--from-file=ssh-privatekey=key --from-file=ssh-publickey=key.pub"
        )
    if kind != "jobset" and pods.ssh_secret:
        yield f"{command_option('ssh_secret')} is for {command_option('kind', 'jobset')} only"
    if kind in ("jobset", "trainjob") and pods.clean_pods != Pods.clean_pods:
        yield f"{chosen} deletes its running pods at its end; {command_option('clean_pods')} is for MPIJobs"
    taken = {"/dev/shm"} | ({"/dev/hugepages"} if pods.hugepages else set())
    taken |= {pods.ssh_folder} if kind != "job" else set()
    for path in (path.rstrip("/") for path in pods.volumes.values()):
        if path in taken:
            yield f"{command_option('volume')} names the mount path {path or '/'}, which is in use"
        taken.add(path)
    yield from _placement_conflicts(spec, pods)


def _placement_conflicts(spec: LaunchSpec, pods: Pods) -> Iterator[str]:
    from meshrun.runner.spelling import command_option

    if pods.topology_required and pods.topology_preferred:
        yield f"{command_option('topology_required')} excludes {command_option('topology_preferred')}"
    if (pods.topology_required or pods.topology_preferred) and not pods.queue:
        yield f"a topology is Kueue's, which needs {command_option('queue', metavar='NAME')}"
    if pods.nvlink_domain and (spec.hosts == 1 or not pods.gpu_resource):
        domain = command_option("nvlink_domain", True)
        yield f"{domain} joins the GPUs of several nodes, but there is none to join"
    if pods.hugepages and not (pods.memory or pods.cpu):
        memory, cpu = command_option("memory"), command_option("cpu")
        yield f"{command_option('hugepages')} needs {memory} or {cpu} for the same pods"
    if pods.gpu_resource in pods.rdma:
        yield f"{command_option('rdma')} names {pods.gpu_resource}, of which each rank gets one already"


def _values(part: Any, path: str) -> Iterator[tuple[str, str | int]]:
    """Yield the path and the value of every text and number, and of every key of FREE mappings."""
    if isinstance(part, str | int):
        yield path, part
    elif isinstance(part, list):
        for number, element in enumerate(part):
            yield from _values(element, f"{path}[{number}]")
    elif isinstance(part, dict):
        free = path.endswith(FREE)
        for key, element in part.items():
            if free:
                yield f"{path}, key", key
            yield from _values(element, f"{path}[{key}]" if free else f"{path}.{key}".lstrip("."))


def _pod_names(manifest: dict[str, Any]) -> Iterator[str]:
    """Check that the names of a job's pods are valid host names."""
    name, spec = manifest["metadata"]["name"], manifest["spec"]
    if manifest["kind"] == "MPIJob":
        longest = f"{name}-worker-{spec['mpiReplicaSpecs']['Worker']['replicas'] - 1}"
    elif manifest["kind"] == "JobSet":
        # Pods have five random letters in their names; their hosts have not.
        workers = spec["replicatedJobs"][0]["template"]["spec"]["completions"]
        longest = max(f"{name}-worker-0-{workers - 1}-abcde", f"{name}-launcher-0-0-abcde", key=len)
    elif manifest["kind"] == "TrainJob":
        longest = max(
            f"{name}-launcher-0-0-abcde", f"{name}-node-0-{spec['trainer']['numNodes'] - 1}-abcde", key=len
        )
    else:
        return
    if not re.fullmatch(DNS_LABEL, longest):
        yield (
            f"metadata.name: a pod would be named {longest}, with {len(longest)} characters, "
            "at most 63 are valid"
        )
