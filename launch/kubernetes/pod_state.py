"""Interpret API objects of pods and jobs (`kubectl get -o json`): whether they run, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from meshrun.launch.kubernetes.pod_template import LAUNCHER, ROLE

Object = dict[str, Any]

# Reasons for which a waiting container never starts.
STUCK = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
)
# Reasons of a container that was ended from outside.
ENDED = ("ContainerCannotRun", "ContainerStatusUnknown", "OOMKilled", "StartError")
HINTS = {
    "ImagePullBackOff": "check --image, or use a --service-account that may pull it",
    "InvalidImageName": "--image REGISTRY/NAME:TAG",
    "OOMKilled": "a larger --memory, which includes /dev/shm (--shm)",
    "Unschedulable": "fewer GPUs (-j, --gpu-resource), or other nodes: --node-selector, --toleration",
    "DeadlineExceeded": "a longer --time-limit",
}


def launcher(pods: Sequence[Object]) -> Object | None:
    """The pod that runs mpiexec."""
    return next((pod for pod in pods if pod["metadata"].get("labels", {}).get(ROLE) == LAUNCHER), None)


def name(thing: Object) -> str:
    return str(thing["metadata"]["name"])


def running(pod: Object) -> bool:
    return any("running" in state for state in _states(pod))


def deleted(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def exit_status(pod: Object) -> int | None:
    """Exit status of the pod's program; None if it has not ended or not started."""
    ends = [state["terminated"] for state in _states(pod) if "terminated" in state]
    if ends:
        return int(ends[0]["exitCode"])
    return 1 if pod.get("status", {}).get("phase") == "Failed" else None


def fault(pod: Object) -> str | None:
    """Why a pod cannot start, or was ended by the cluster; None otherwise."""
    status = pod.get("status", {})
    if status.get("phase") == "Failed" and status.get("reason"):  # Evicted, NodeShutdown ...
        return _describe_pod(pod, "was ended", status)
    for state in _states(pod):
        if state.get("waiting", {}).get("reason") in STUCK:
            return _describe_pod(pod, "cannot start", state["waiting"])
        if state.get("terminated", {}).get("reason") in ENDED:
            return _describe_pod(pod, "was ended", state["terminated"])
    return None


def lost_worker(pod: Object) -> str | None:
    """Why a pod with ranks has ended too early; None if it has not, or was deleted."""
    left = exit_status(pod)
    if pod["metadata"].get("labels", {}).get(ROLE) == LAUNCHER or left is None or deleted(pod):
        return None
    return f"pod {name(pod)} ended too early: got exit status {left} of its sshd"


def waits_for(pod: Object) -> str | None:
    """Why a pod has not started yet; None if it has."""
    if any("waiting" not in state for state in _states(pod)):
        return None
    conditions = pod.get("status", {}).get("conditions", ())
    unplaced = [each for each in conditions if each["type"] == "PodScheduled" and each["status"] == "False"]
    waiting = [state["waiting"] for state in _states(pod)]
    reasons = [*unplaced, *waiting, {"reason": "Pending"}]
    return _describe_pod(pod, "waits", reasons[0])


def failure(job: Object) -> str | None:
    """Why the cluster has ended a job."""
    for condition in job.get("status", {}).get("conditions", ()):
        if condition["type"] == "Failed" and condition["status"] == "True":
            return describe(f"{job['kind'].lower()} {name(job)} failed", condition)
    return None


def suspended(job: Object) -> bool:
    """Whether a queue has suspended a job."""
    spec = job.get("spec", {})
    return bool(spec.get("suspend") or spec.get("runPolicy", {}).get("suspend"))


def warnings(events: Sequence[Object], job: str) -> list[str]:
    """Warnings in events about a job or its pods."""
    found = []
    for event in events:
        about = event.get("involvedObject", {})
        if event.get("type") == "Warning" and f"{about.get('name')}-".startswith(f"{job}-"):
            found.append(describe(f"{about.get('kind', '').lower()} {about['name']}", event))
    return found


def describe(what: str, state: Object) -> str:
    reason, message = state.get("reason", ""), " ".join(state.get("message", "").split())
    sentence = ": ".join(part for part in (what, reason, message) if part)
    return sentence + (f". Try: {HINTS[reason]}" if reason in HINTS else "")


def _describe_pod(pod: Object, what: str, state: Object) -> str:
    return describe(f"pod {name(pod)} {what}", state)


def _states(pod: Object) -> Iterator[Object]:
    for container in pod.get("status", {}).get("containerStatuses", ()):
        yield container.get("state", {})
