"""kubernetes/validate.yaml by Kubernetes' own schema, and what its pods tell a stand-in for the API."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from meshrun.launch.kubernetes import node_verdict, pods
from meshrun.launch.kubernetes.node_verdict import (
    KEY,
    SENTENCE,
    WHEN,
    Api,
    NodeVerdict,
    publish,
    read_verdict,
)

ROOT = Path(__file__).parents[4]
MANIFEST = ROOT / "kubernetes" / "validate.yaml"
NOW = "2026-01-01T03:00:00Z"
TAINT = {"key": KEY, "value": "critical", "effect": "NoSchedule"}
OTHER = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
CRITICAL = NodeVerdict("critical", "CRITICAL: host n7, GPU 3: its NVLink at 61 % of its siblings")


def merged(old: Any, patch: Any) -> Any:
    """RFC 7386, JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    kept = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            kept.pop(name, None)
        else:
            kept[name] = merged(kept.get(name), value)
    return kept


@dataclass
class Cluster:
    """An API server with one node. meanwhile: what others do to it between a question and the next patch."""

    node: dict[str, Any]
    meanwhile: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    refusal: int = 0

    def get(self) -> tuple[int, Any]:
        answer = json.loads(json.dumps(self.node))
        if self.meanwhile:
            self._take(self.meanwhile.pop(0))
        return 200, answer

    def patch(self, change: dict[str, Any]) -> tuple[int, Any]:
        if self.refusal:
            return self.refusal, {"kind": "Status", "message": "nodes is forbidden"}
        expected = change["metadata"].get("resourceVersion", self.node["metadata"]["resourceVersion"])
        if expected != self.node["metadata"]["resourceVersion"]:
            return 409, {"kind": "Status", "message": "the object has been modified"}
        self._take(change)
        return 200, self.node

    def patch_status(self, change: dict[str, Any]) -> tuple[int, Any]:
        """Merge conditions by their types, as a strategic merge patch does."""
        (new,) = change["status"]["conditions"]
        kept = self.node.setdefault("status", {}).setdefault("conditions", [])
        self.node["status"]["conditions"] = [*(each for each in kept if each["type"] != new["type"]), new]
        return 200, self.node

    def _take(self, change: dict[str, Any]) -> None:
        version = str(int(self.node["metadata"]["resourceVersion"]) + 1)
        self.node = merged(self.node, merged(change, {"metadata": {"resourceVersion": version}}))


def handler(cluster: Cluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(*cluster.get())

        def do_PATCH(self) -> None:
            change = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            of_status = self.path.endswith("/status")
            merge = "strategic-merge-patch" if of_status else "merge-patch"
            assert self.headers["Content-Type"] == f"application/{merge}+json"
            self.reply(*(cluster.patch_status if of_status else cluster.patch)(change))

        def reply(self, status: int, document: Any) -> None:
            cluster.asked.append(f"{self.command} {self.path}")
            if self.headers["Authorization"] != "Bearer secret":
                status, document = 401, {}
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *words: Any) -> None:
            pass

    return Handler


@pytest.fixture
def cluster() -> Cluster:
    metadata = {"name": "n7", "resourceVersion": "41", "labels": {"zone": "a"}}
    return Cluster({"kind": "Node", "metadata": metadata, "spec": {"taints": [OTHER]}})


@pytest.fixture
def server(cluster: Cluster) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(cluster)) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def api(server: ThreadingHTTPServer) -> Api:
    return Api(f"http://127.0.0.1:{server.server_port}", "secret")


@pytest.mark.parametrize("status", node_verdict.STATUSES)
def test_the_node_tells_the_verdict(cluster: Cluster, api: Api, status: str) -> None:
    publish(api, "n7", NodeVerdict(status, "a sentence"), NOW)
    metadata = cluster.node["metadata"]
    assert metadata["labels"] == {"zone": "a", KEY: status}
    assert metadata["annotations"] == {SENTENCE: "a sentence", WHEN: NOW}
    assert cluster.node["spec"]["taints"] == ([OTHER, TAINT] if status == "critical" else [OTHER])
    assert cluster.asked == [
        "GET /api/v1/nodes/n7",
        "PATCH /api/v1/nodes/n7",
        "PATCH /api/v1/nodes/n7/status",
    ]


def test_the_node_has_a_condition(cluster: Cluster, api: Api) -> None:
    """True is a problem; the time of transition stays while the status does."""
    ready = {"type": "Ready", "status": "True"}
    cluster.node["status"] = {"conditions": [ready]}
    told = []
    for status, now in (
        ("ok", "t1"),
        ("warning", "t2"),
        ("critical", "t3"),
        ("critical", "t4"),
        ("unknown", "t5"),
    ):
        publish(api, "n7", NodeVerdict(status, status.upper()), now)
        kept, own = cluster.node["status"]["conditions"]
        assert kept == ready
        assert (own["type"], own["message"], own["lastHeartbeatTime"]) == (
            "InterconnectDegraded", status.upper(), now,
        )  # fmt: skip
        told.append((own["status"], own["lastTransitionTime"]))
    assert told == [("False", "t1"), ("False", "t1"), ("True", "t3"), ("True", "t3"), ("Unknown", "t5")]


def test_a_node_without_taints(cluster: Cluster, api: Api) -> None:
    del cluster.node["spec"]["taints"]
    publish(api, "n7", CRITICAL, NOW)
    assert cluster.node["spec"] == {"taints": [TAINT]}


@pytest.mark.parametrize("found", [CRITICAL, NodeVerdict("ok", "OK: fine")])
def test_a_taint_that_is_there_stays_as_it_is(cluster: Cluster, api: Api, found: NodeVerdict) -> None:
    stricter = {**TAINT, "effect": "NoExecute"}
    cluster.node["spec"]["taints"] = [stricter, OTHER]
    publish(api, "n7", found, NOW)
    assert cluster.node["spec"]["taints"] == [stricter, OTHER]
    assert cluster.node["metadata"]["labels"][KEY] == found.status


def test_what_others_change_meanwhile_is_kept(cluster: Cluster, api: Api) -> None:
    cordoned = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    cluster.meanwhile = [{"spec": {"taints": [OTHER, cordoned]}}, {"metadata": {"labels": {"zone": "b"}}}]
    publish(api, "n7", CRITICAL, NOW)
    assert cluster.node["spec"]["taints"] == [OTHER, cordoned, TAINT]
    assert cluster.node["metadata"]["labels"]["zone"] == "b"
    assert len(cluster.asked) == 7


def test_a_node_that_never_rests_is_given_up(cluster: Cluster, api: Api) -> None:
    cluster.meanwhile = [{"metadata": {"labels": {"beat": str(i)}}} for i in range(100)]
    with pytest.raises(OSError, match="409"):
        publish(api, "n7", CRITICAL, NOW)
    assert len(cluster.asked) == 2 * node_verdict.ATTEMPTS


def test_a_report_of_the_real_command(tmp_path: Path) -> None:
    meshrun = Path(sys.executable).with_name("meshrun")
    if not meshrun.exists():
        pytest.skip("meshrun is not installed beside this Python")
    report = tmp_path / "report.json"
    for fault, status, sentence in (
        (",fault=nvlink:h0:5:0.6", "critical", "CRITICAL: host n7, GPU 5: its NVLink at "),
        ("", "ok", "OK: "),
    ):
        words = ["validate", "--simulate", f"hosts=1,gpus=8{fault}", "-J", str(report)]
        subprocess.run([meshrun, *words], check=False, capture_output=True, timeout=60)
        found = read_verdict(report, "h0", "n7")
        assert found.status == status
        assert found.sentence.startswith(sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "no report: "),
        ("", "no report: "),
        ("[]", "no report: "),
        ('{"status": "ok"}', "no report: 'line'"),
        ('{"status": "fine", "line": "OK"}', "a report without a verdict: 'fine'"),
        ('{"status": null, "line": "OK"}', "a report without a verdict: None"),
        ('{"status": "ok", "line": 7}', "a report without a verdict: 'ok'"),
    ],
)
def test_what_is_no_report_is_unknown(tmp_path: Path, text: str | None, sentence: str) -> None:
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    found = read_verdict(tmp_path / "report.json", "pod", "n7")
    assert found.status == "unknown"
    assert found.sentence.startswith(sentence)


@pytest.fixture
def pod(tmp_path: Path, server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A report and a service account's folder, as of a pod of a cluster that speaks TLS."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl for a certificate")
    account = tmp_path / "account"
    account.mkdir()
    words = [
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=127.0.0.1",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    files = ["-keyout", str(tmp_path / "key"), "-out", str(account / "ca.crt")]
    subprocess.run(["openssl", "req", "-x509", *words, *files], check=True, capture_output=True)
    (account / "token").write_text("secret\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(account / "ca.crt", tmp_path / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_port))
    report = tmp_path / "report.json"
    line = CRITICAL.sentence.replace("n7", socket.gethostname())
    report.write_text(json.dumps({"status": "critical", "line": line}))
    return report, account


def test_in_a_pod(cluster: Cluster, pod: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    report, account = pod
    assert node_verdict.main(str(report), "n7", account) == 0
    assert cluster.node["metadata"]["annotations"][SENTENCE] == CRITICAL.sentence
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", cluster.node["metadata"]["annotations"][WHEN])
    assert cluster.node["spec"]["taints"] == [OTHER, TAINT]
    assert capsys.readouterr() == (f"node n7: critical: {CRITICAL.sentence}\n", "")


def test_what_the_cluster_refuses_fails_the_pod(
    cluster: Cluster, pod: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    report, account = pod
    cluster.refusal = 403
    assert node_verdict.main(str(report), "n7", account) == 1
    assert "nodes is forbidden" in capsys.readouterr().err


def test_another_server_is_not_believed(cluster: Cluster, pod: tuple[Path, Path]) -> None:
    report, account = pod
    words = ["-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1"]
    files = ["-keyout", str(account / "key"), "-out", str(account / "ca.crt")]
    subprocess.run(["openssl", "req", "-x509", *words, *files], check=True, capture_output=True)
    assert node_verdict.main(str(report), "n7", account) == 1
    assert cluster.asked == []


def test_outside_of_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert node_verdict.main(str(tmp_path / "none"), "n7", tmp_path) == 1
    assert "node n7 cannot be marked" in capsys.readouterr().err


# The manifest.


def documents() -> dict[str, Any]:
    import yaml

    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text())}


def test_the_manifest_is_good_by_the_schema_of_kubernetes_itself() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    kinds = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "PriorityClass", "CronJob")
    assert tuple(documents()) == kinds
    for document in documents().values():
        validate.validate(document, "1.31", strict=True)


def test_the_parts_of_the_manifest_name_each_other() -> None:
    made = documents()
    job = made["CronJob"]["spec"]["jobTemplate"]["spec"]
    pod = job["template"]["spec"]
    namespace = made["Namespace"]["metadata"]["name"]
    account = made["ServiceAccount"]["metadata"]
    assert {made["CronJob"]["metadata"]["namespace"], account["namespace"]} == {namespace}
    assert pod["serviceAccountName"] == account["name"]
    assert made["ClusterRoleBinding"]["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert made["ClusterRoleBinding"]["roleRef"]["name"] == made["ClusterRole"]["metadata"]["name"]
    assert pod["priorityClassName"] == made["PriorityClass"]["metadata"]["name"]
    assert made["ClusterRole"]["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    ]
    (never_together,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert never_together["labelSelector"]["matchLabels"] == job["template"]["metadata"]["labels"]
    assert job["completions"] == job["parallelism"]
    assert all(each["key"] != KEY for each in pod["tolerations"])


def test_the_pods_measure_all_gpus_they_ask_for_by_what_the_image_has(tmp_path: Path) -> None:
    (container,) = documents()["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"] == {
        "runAsUser": pods.USER,
        "runAsGroup": pods.USER,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    shell, option, script = container["command"]
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert "$(" not in script, "Kubernetes would replace it"
    for name in ("meshrun", "python"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*"\nexit 3\n')
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "NODE": "n7"}
    done = subprocess.run(
        [shell, option, script], env=environment, capture_output=True, text=True, check=False
    )
    measured, told = done.stdout.splitlines()
    assert measured.startswith(f"meshrun -n {gpus} validate ")
    assert measured.endswith("-J /tmp/report.json")
    assert told == "python -I -m meshrun.launch.kubernetes.node_verdict /tmp/report.json n7"
    assert done.returncode == 3, "of the second command"
