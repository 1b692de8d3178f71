"""A job in the cluster that kubectl is configured for."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from meshrun.launch.kubernetes import pod_state
from meshrun.launch.kubernetes.pod_template import JOB, Document
from meshrun.launch.kubernetes.pod_state import Object
from meshrun.launch.supervise.query import query

TIMEOUT = 20  # seconds for an answer
ENDING = 120  # seconds for a deleted job's pods to end; their grace period is 30 s
UNKNOWN_KIND = "no matches for kind"


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

    def create(self, manifest: Document) -> None:
        """Submit the job. Raises UserError if the cluster rejects it."""
        from meshrun.runner.errors import UserError

        try:
            self._run(["create", "-f", "-"], text=json.dumps(manifest))
        except NoAnswer as reason:
            lacking = UNKNOWN_KIND in str(reason)
            raise UserError(
                f"the cluster rejected {self}",
                why=str(reason),
                hint="install the MPI operator (github.com/kubeflow/mpi-operator), or -j 1xN for a plain Job"
                if lacking
                else "kubectl config current-context, kubectl auth can-i create "
                + ("mpijobs" if self.kind == "MPIJob" else "jobs"),
            ) from reason

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
