"""A job in the cluster that kubectl is configured for."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from meshrun.launch.kubernetes import pod_state
from meshrun.launch.kubernetes.pod_state import Object
from meshrun.launch.kubernetes.pod_template import JOB, Document
from meshrun.launch.supervise.query import query

TIMEOUT = 20  # seconds for an answer
ENDING = 120  # seconds for a deleted job's pods to end; their grace period is 30 s
UNKNOWN_KIND = "no matches for kind"
# What installs each kind of object.
TRAINER = "the Kubeflow Trainer (github.com/kubeflow/trainer)"
PROVIDERS = {
    "MPIJob": "the MPI operator (github.com/kubeflow/mpi-operator), or -j 1xN for a plain Job",
    "Job": "Kubernetes 1.21 or later",
    "JobSet": "JobSet (github.com/kubernetes-sigs/jobset), or choose another --kind",
    "TrainJob": TRAINER,
    "TrainingRuntime": TRAINER,
    "ComputeDomain": "NVIDIA's DRA driver for GPUs, or leave out --nvlink-domain",
}


class NoAnswer(Exception):
    """A query to the cluster failed."""


@dataclass(frozen=True)
class ClusterJob:
    """A job by kind and name. program: path of kubectl. namespace: None for kubectl's current one."""

    program: str
    kind: str
    name: str
    namespace: str | None

    def __str__(self) -> str:
        return f"{self.kind.lower()}/{self.name}"

    def create(self, objects: Sequence[Document]) -> None:
        """Submit a job, the last of these objects, after those that it needs, which end with it.

        Raises UserError if the cluster rejects one of them; then none is left.
        """
        from meshrun.runner.errors import UserError

        created: list[str] = []
        for each in objects:
            name = f"{each['kind'].lower()}/{each['metadata']['name']}"
            try:
                self._run(["create", "-f", "-"], text=json.dumps(each))
            except NoAnswer as reason:
                for other in created:
                    with contextlib.suppress(NoAnswer):
                        self._run(["delete", other, "--ignore-not-found", "--wait=false"])
                raise UserError(
                    f"the cluster rejected {name}",
                    why=str(reason),
                    hint=f"install {PROVIDERS[each['kind']]}"
                    if UNKNOWN_KIND in str(reason)
                    else f"kubectl config current-context, kubectl auth can-i create {each['kind'].lower()}s",
                ) from reason
            created.append(name)
        if len(created) > 1:
            self._own(created[:-1], objects[-1])

    def _own(self, names: Sequence[str], job: Document) -> None:
        """Let the cluster delete these objects when the job is deleted."""
        submitted = self.get()
        if submitted is None:
            return  # deleted meanwhile
        owner = {key: job[key] for key in ("apiVersion", "kind")}
        owner |= {key: submitted["metadata"][key] for key in ("name", "uid")}
        change = json.dumps({"metadata": {"ownerReferences": [owner]}})
        for name in names:
            self._run(["patch", name, "--type=merge", "-p", change])

    def delete(self) -> None:
        """Remove the job and its pods, and wait until they are gone."""
        words = ["delete", str(self), "--ignore-not-found", "--cascade=foreground", f"--timeout={ENDING}s"]
        self._run(words, seconds=ENDING + TIMEOUT)

    def get(self) -> Object | None:
        """The job's API object; None if it no longer exists."""
        found = self._read(["get", str(self), "--ignore-not-found"])
        return found or None

    def pods(self) -> list[Object]:
        return list(self._read(["get", "pods", "-l", f"{JOB}={self.name}"])["items"])

    def warnings(self) -> list[str]:
        events = self._read(["get", "events", "--field-selector", "type=Warning"])
        return pod_state.warnings(events["items"], self.name)

    def log(self, pod: str, since: str | None) -> subprocess.Popen[bytes]:
        """Follow the output of a pod from its beginning or since a time, with a time stamp on each line."""
        after = [f"--since-time={since}"] if since else []
        return subprocess.Popen(
            self._words(["logs", "--follow", "--timestamps", *after, pod]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def _read(self, words: Sequence[str]) -> Object:
        text = self._run([*words, "-o", "json"])
        try:
            found: Object = json.loads(text or "{}")
        except ValueError as reason:
            raise NoAnswer(text) from reason
        return found

    def _run(self, words: Sequence[str], text: str = "", seconds: float = TIMEOUT) -> str:
        done = query(self._words(words), text, seconds)
        if done.returncode:
            raise NoAnswer(" ".join(done.stderr.split()) or f"exit status {done.returncode}")
        return done.stdout

    def _words(self, words: Sequence[str]) -> list[str]:
        return [self.program, *words, *(["-n", self.namespace] if self.namespace else [])]


def find() -> str:
    from meshrun.runner.errors import UserError

    found = shutil.which("kubectl")
    if found is None:
        raise UserError(
            "no kubectl on PATH, which is needed to submit jobs",
            hint="install it (kubernetes.io/docs/tasks/tools), or submit the output of --print elsewhere",
        )
    return found
