"""Mark a Kubernetes node with its validation's verdict: a label, two annotations, a condition and, if
critical, a taint.

    python -I -m meshrun.launch.kubernetes.node_verdict REPORT NODE

Runs in a pod whose service account may get and patch nodes and their status (kubernetes/validate.yaml). The
taint is only added: an administrator removes it after repairing the node. The condition is of the form that
node-problem-detector uses, True for a problem, so that NVSentinel's object monitor and others can act on it.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

KEY = "meshrun.dev/interconnect"  # of the label and the taint
SENTENCE, WHEN = "meshrun.dev/verdict", "meshrun.dev/validated"
CONDITION = "InterconnectDegraded"
# Status and reason of the condition, by verdict.
STATES = {
    "ok": ("False", "Validated"),
    "warning": ("False", "ValidatedWithWarnings"),
    "critical": ("True", "SlowOrFaultyPart"),
    "unknown": ("Unknown", "NotJudged"),
}
STATUSES = ("ok", "warning", "critical", "unknown")
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT = 20  # seconds for an answer
ATTEMPTS = 5  # if others change the node at the same time
CONFLICT = 409

Object = dict[str, Any]


@dataclass(frozen=True)
class NodeVerdict:
    """The verdict on a node. status: one of STATUSES."""

    status: str
    sentence: str


@dataclass(frozen=True)
class Api:
    """The cluster's API. url: such as https://10.0.0.1:443. trust: verifies its certificate."""

    url: str
    token: str
    trust: ssl.SSLContext | None = None

    def node(self, name: str) -> Object:
        return self._request("GET", name)

    def patch(self, name: str, change: Object) -> None:
        self._request("PATCH", name, change)

    def patch_status(self, name: str, change: Object) -> None:
        """Merge `change` into the node's status; conditions are merged by their types."""
        self._request("PATCH", name, change, part="/status", merge="strategic-merge-patch")

    def _request(
        self, method: str, node: str, change: Object | None = None, part: str = "", merge: str = "merge-patch"
    ) -> Object:
        """Send a request. Raises OSError without an answer, HTTPError (an OSError) for a refusal."""
        request = urllib.request.Request(
            f"{self.url}/api/v1/nodes/{quote(node, safe='')}{part}",
            method=method,
            data=None if change is None else json.dumps(change).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": f"application/{merge}+json"},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT, context=self.trust) as answer:
            found: Object = json.load(answer)
        return found


def read_verdict(report: Path, host: str, node: str) -> NodeVerdict:
    """The verdict in the JSON report of `meshrun validate`; "unknown" without a report or a verdict in it.

    host: the host's name in the report, which is the pod's.
    """
    try:
        document = json.loads(report.read_text())
        status, line = document["status"], document["line"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as reason:
        return NodeVerdict("unknown", f"no report: {reason}")
    if status not in STATUSES or not isinstance(line, str):
        return NodeVerdict("unknown", f"a report without a verdict: {status!r}")
    return NodeVerdict(status, line.replace(f"host {host}", f"host {node}"))


def merge_patch(node: Object, found: NodeVerdict, now: str) -> Object:
    """The merge patch for the node. The API refuses it (409) if the node has changed in between."""
    patch: Object = {
        "metadata": {
            "resourceVersion": node["metadata"]["resourceVersion"],
            "labels": {KEY: found.status},
            "annotations": {SENTENCE: found.sentence, WHEN: now},
        }
    }
    taints = node["spec"].get("taints", [])
    if found.status == "critical" and not any(taint["key"] == KEY for taint in taints):
        # A merge patch replaces lists, so the existing taints are included.
        patch["spec"] = {"taints": [*taints, {"key": KEY, "value": "critical", "effect": "NoSchedule"}]}
    return patch


def condition(node: Object, found: NodeVerdict, now: str) -> Object:
    """The node's condition. Its time of transition stays while its status does."""
    status, reason = STATES[found.status]
    conditions: list[Object] = node.get("status", {}).get("conditions", [])
    old = next((each for each in conditions if each["type"] == CONDITION), Object())
    since = old.get("lastTransitionTime", now) if old.get("status") == status else now
    return {
        "type": CONDITION,
        "status": status,
        "reason": reason,
        "message": found.sentence,
        "lastHeartbeatTime": now,
        "lastTransitionTime": since,
    }


def publish(api: Api, name: str, found: NodeVerdict, now: str) -> None:
    """Patch the node, retrying if others change it at the same time. Raises OSError if the cluster
    refuses."""
    for attempt in range(ATTEMPTS):
        try:
            node = api.node(name)
            api.patch(name, merge_patch(node, found, now))
            api.patch_status(name, {"status": {"conditions": [condition(node, found, now)]}})
            return
        except urllib.error.HTTPError as refusal:
            if refusal.code != CONFLICT or attempt == ATTEMPTS - 1:
                raise


def cluster_api(environment: Mapping[str, str], account: Path) -> Api:
    """The API of the cluster that runs this pod. Raises KeyError or OSError outside a cluster."""
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
    address = f"[{host}]" if ":" in host else host
    trust = ssl.create_default_context(cafile=str(account / "ca.crt"))
    return Api(f"https://{address}:{port}", (account / "token").read_text().strip(), trust)


def main(report: str, node: str, account: Path = ACCOUNT) -> int:
    """Return 0 if the node is marked, whatever the verdict; else 1."""
    found = read_verdict(Path(report), socket.gethostname(), node)
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    print(f"node {node}: {found.status}: {found.sentence}", flush=True)
    try:
        publish(cluster_api(os.environ, account), node, found, now)
    except (KeyError, OSError) as reason:
        message = reason.read().decode(errors="replace") if isinstance(reason, urllib.error.HTTPError) else ""
        print(f"meshrun: node {node} cannot be marked: {reason!r} {message}".rstrip(), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
