"""What the API says of pods and jobs, as `kubectl get -o json` gives it: do they run, and if not, why not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from launch.kubernetes.manifest import LAUNCHER, ROLE

Object = dict[str, Any]

# Reasons of a waiting container that waiting does not cure.
STUCK = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
)
# Of one that has ended, not by its program.
ENDED = ("ContainerCannotRun", "ContainerStatusUnknown", "OOMKilled", "StartError")
HINTS = {
    "ImagePullBackOff": "--image, or a --service-account that may pull it",
    "InvalidImageName": "--image REGISTRY/NAME:TAG",
    "OOMKilled": "a larger --memory; /dev/shm counts (--shm)",
    "Unschedulable": "fewer GPUs (-j, --gpu-resource), or what the nodes have: --node-selector, --toleration",
    "DeadlineExceeded": "a longer --time-limit",
}


def launcher(pods: Sequence[Object]) -> Object | None:
    """The pod with mpiexec in it."""
    return next((pod for pod in pods if pod["metadata"].get("labels", {}).get(ROLE) == LAUNCHER), None)


def name(thing: Object) -> str:
    return str(thing["metadata"]["name"])


def running(pod: Object) -> bool:
    return any("running" in state for state in _states(pod))


def deleted(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def exit_status(pod: Object) -> int | None:
    """Of the pod's program; None as long as it runs, or has not begun."""
    ends = [state["terminated"] for state in _states(pod) if "terminated" in state]
    if ends:
        return int(ends[0]["exitCode"])
    return 1 if pod.get("status", {}).get("phase") == "Failed" else None


def fault(pod: Object) -> str | None:
    """Why a pod cannot start, or was ended by the cluster; None where neither is so."""
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
    """Why a pod with ranks is not there any more, though nobody has ended it."""
    left = exit_status(pod)
    if pod["metadata"].get("labels", {}).get(ROLE) == LAUNCHER or left is None or deleted(pod):
        return None
    return f"pod {name(pod)} has ended before its time: got exit status {left} of its sshd"


def waits_for(pod: Object) -> str | None:
    """What a pod is waiting for before it starts; None for one that has started."""
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
    """Whether a queue holds a job back."""
    spec = job.get("spec", {})
    return bool(spec.get("suspend") or spec.get("runPolicy", {}).get("suspend"))


def warnings(events: Sequence[Object], job: str) -> list[str]:
    """What events warn of that concern a job or what belongs to it."""
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
