"""A job in a cluster, from its submission to the verdict, by a kubectl that plays what one would say."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshrun.launch.kubernetes import job as kubernetes_job
from meshrun.launch.kubernetes import kubectl
from meshrun.launch.kubernetes.pods import Pods
from meshrun.launch.spec import LaunchSpec
from meshrun.runner.errors import RunError, UserError

# "get" is answered from the files pods, job and events: a list of answers, of which the last one stays.
# "logs" from log.0, log.1 ...: a step a line, ["line", TIME, TEXT], ["sleep", SECONDS], ["signal", NUMBER]
# for who reads it, ["end", STATUS]; lines before --since-time are the reader's affair: the real one knows
# whole seconds only. "create" and "delete" end with the answer in the file of that name, or with that signal
# for who waits.
KUBECTL = r"""
import json, os, signal, sys, time
here = os.environ["PLAYED"]
words = sys.argv[1:]
def path(name): return os.path.join(here, name)
def turn(name):
    try: count = int(open(path(name + ".turn")).read())
    except FileNotFoundError: count = 0
    open(path(name + ".turn"), "w").write(str(count + 1))
    return count
def answer(name, otherwise):
    if not os.path.exists(path(name)): return otherwise
    answers = json.load(open(path(name)))
    return answers[min(turn(name), len(answers) - 1)]
def tell(found):
    if isinstance(found, str): sys.exit(found)
    print(json.dumps(found))
sent = sys.stdin.read() if words[0] == "create" else ""
open(path("calls"), "a").write(json.dumps([*words, sent]) + "\n")
if words[0] in ("create", "delete"):
    said = answer(words[0], "")
    if isinstance(said, int): os.kill(os.getppid(), said); time.sleep(20)
    sys.exit(said or 0)
if words[0] == "logs":
    token = ""
    for line in open(path("calls")):
        call = json.loads(line)
        if call[0] == "create" and '"@' in json.dumps(json.loads(call[-1])):
            token = json.dumps(json.loads(call[-1])).split('"@')[1].split('"')[0]
    name = path("log." + str(turn("log")))
    for line in open(name if os.path.exists(name) else os.devnull):
        what, *more = json.loads(line)
        if what == "line":
            sys.stdout.write(more[0] + " " + more[1].replace("TOKEN", token)); sys.stdout.flush()
        elif what == "sleep": time.sleep(more[0])
        elif what == "signal": os.kill(os.getppid(), more[0])
        elif what == "end": print("unexpected EOF", file=sys.stderr); sys.exit(more[0])
    sys.exit(0)
if words[1] == "pods": tell(answer("pods", {"items": []}))
elif words[1] == "events": tell(answer("events", {"items": []}))
else: tell(answer("job", {"kind": "MPIJob", "metadata": {"name": "wires"}}))
"""
SPEC = LaunchSpec(("bench", "all_reduce"), 2, 8)
PODS = Pods("registry.example/meshrun:1", name="wires", namespace="lab", start_timeout=30)
ENDED = {"terminated": {"exitCode": 0, "reason": "Completed"}}
RUNS: dict[str, Any] = {"running": {}}
RECORD = '\x1emeshrun-run TOKEN record {"complete": true}\n'


class Cluster:
    """What the played kubectl will answer, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def play(self, name: str, *answers: Any) -> None:
        (self.folder / name).write_text(json.dumps(answers))

    def log(self, number: int, *steps: tuple[Any, ...]) -> None:
        (self.folder / f"log.{number}").write_text("".join(json.dumps(step) + "\n" for step in steps))

    @property
    def calls(self) -> list[list[str]]:
        calls = self.folder / "calls"
        return [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []

    def asked(self, verb: str) -> list[list[str]]:
        return [call for call in self.calls if call[0] == verb]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable} -IS\n{KUBECTL}")
    program.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.defpath}")
    monkeypatch.setenv("PLAYED", str(tmp_path))
    for name, seconds in (("STEP", 0.05), ("START_INTERVAL", 0.1), ("RUN_INTERVAL", 0.1)):
        monkeypatch.setattr(kubernetes_job, name, seconds)
    return Cluster(tmp_path)


def pod(role: str, state: dict[str, Any] | None = None, number: int = 0, **status: Any) -> dict[str, Any]:
    suffix = "launcher" if role == "launcher" else f"worker-{number}"
    states = {"containerStatuses": [{"name": "meshrun", "state": state}]} if state else {}
    metadata = {"name": f"wires-{suffix}", "labels": {"app.kubernetes.io/component": role}}
    return {"metadata": metadata, "status": {**states, **status}}


def pods(*each: dict[str, Any]) -> dict[str, Any]:
    return {"items": list(each)}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def unschedulable(role: str, number: int = 0) -> dict[str, Any]:
    said = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    return pod(role, number=number, phase="Pending", conditions=[placed])


WORKERS = (pod("worker", RUNS), pod("worker", RUNS, 1))
STARTED = pods(pod("launcher", RUNS), *WORKERS)
DONE = pods(pod("launcher", ENDED), *WORKERS)


def left(status: int, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": status, "reason": reason}}


def line(second: int, text: str) -> tuple[str, str, str]:
    return ("line", f"2026-01-01T00:00:{second:02}.000000000Z", text)


def test_a_run_that_is_complete(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.play("pods", pods(), pods(pod("launcher", waiting("ContainerCreating"))), STARTED, DONE)
    cluster.log(0, line(1, "a table\n"), line(2, RECORD), line(3, "the end\n"))
    assert kubernetes_job.start(SPEC, PODS) == 0
    out, err = capfd.readouterr()
    assert out == "a table\nthe end\n"
    assert "mpijob/wires is submitted" in err
    assert "pod wires-launcher waits: ContainerCreating" in err
    (create,) = cluster.asked("create")
    assert create[:-1] == ["create", "-f", "-", "-n", "lab"]
    assert json.loads(create[-1])["metadata"]["name"] == "wires"
    assert not cluster.asked("delete")
    assert all("-n" in call and call[call.index("-n") + 1] == "lab" for call in cluster.calls)


def test_a_job_that_succeeds_without_the_record_has_failed(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.play("pods", STARTED, DONE)
    cluster.log(0, line(1, "a table\n"))
    assert kubernetes_job.start(SPEC, PODS) == 1
    assert "exit status 0 of the launcher, no completion record" in capfd.readouterr().err


def test_a_rank_that_tells_a_failure(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    told = {"exit_code": 2, "sentence": "[rank 3] no good", "rank": 3}
    cluster.play("pods", STARTED, pods(pod("launcher", left(2)), *WORKERS))
    cluster.log(
        0,
        line(1, f"\x1emeshrun-run TOKEN failure {json.dumps(told)}\n"),
        line(2, "meshrun: [rank 3] no good\n"),
    )
    assert kubernetes_job.start(SPEC, PODS) == 2
    out, err = capfd.readouterr()
    assert out == "meshrun: [rank 3] no good\n"
    assert "no good" not in err


def test_a_log_that_breaks_is_passed_on_once_and_whole(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.play("pods", *[STARTED] * 8, DONE)
    cluster.log(0, line(1, "one\n"), line(2, "tw"), ("end", 1))
    cluster.log(1, line(1, "one\n"), line(2, "two\n"), ("end", 1))
    cluster.log(2, line(2, "two\n"), line(3, "three\n"), ("sleep", 2))
    # The last lines came when the program had ended, and the stream was broken again.
    cluster.log(3, line(3, "three\n"), line(4, RECORD), line(5, "no newline"))
    assert kubernetes_job.start(SPEC, PODS) == 0
    assert capfd.readouterr().out == "one\ntwo\nthree\nno newline"
    since = [word for call in cluster.asked("logs") for word in call if word.startswith("--since-time")]
    assert since[0] == "--since-time=2026-01-01T00:00:01.000000000Z"


def test_what_mpiexec_says_of_itself_is_for_debug_only(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    ruler = "-" * 74 + "\n"
    killed = (
        "prterun noticed that process rank 1 with PID 71 on node wires-worker-0 exited on signal 9 (K).\n"
    )
    cluster.play("pods", STARTED, pods(pod("launcher", left(137)), *WORKERS))
    cluster.log(0, line(1, ruler), line(1, ruler), line(2, killed), line(3, ruler))
    assert kubernetes_job.start(SPEC, PODS) == 1
    out, err = capfd.readouterr()
    assert "[rank 1, host wires-worker-0] killed by signal 9" in err
    assert "prterun noticed" not in out + err


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            pods(pod("launcher", RUNS), pod("worker", waiting("ImagePullBackOff", 'Back-off "x"'), 1)),
            'pod wires-worker-1 cannot start: ImagePullBackOff: Back-off "x". Try: check --image',
        ),
        (
            pods(pod("launcher", waiting("CreateContainerConfigError", 'secret "s" not found'))),
            'pod wires-launcher cannot start: CreateContainerConfigError: secret "s" not found',
        ),
        (
            pods(pod("launcher", RUNS), pod("worker", left(137, "OOMKilled"))),
            "pod wires-worker-0 was ended: OOMKilled. Try: a larger --memory",
        ),
        (
            pods(
                pod("launcher", RUNS), pod("worker", phase="Failed", reason="Evicted", message="low on disk")
            ),
            "pod wires-worker-0 was ended: Evicted: low on disk",
        ),
        (
            pods(pod("launcher", RUNS), pod("worker", left(255))),
            "pod wires-worker-0 ended too early: got exit status 255",
        ),
    ],
)
def test_a_pod_that_cannot_run_ends_the_job(
    cluster: Cluster, capfd: pytest.CaptureFixture[str], answer: Any, said: str
) -> None:
    cluster.play("pods", pods(), answer)
    cluster.log(0, ("sleep", 20))
    assert kubernetes_job.start(SPEC, PODS) == 1
    assert f"meshrun: {said}" in capfd.readouterr().err
    (delete,) = cluster.asked("delete")
    assert delete[1] == "mpijob/wires"


def test_pods_that_no_node_takes(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.play("pods", pods(unschedulable("launcher")))
    assert kubernetes_job.start(SPEC, Pods("image", name="wires", start_timeout=1)) == 1
    err = capfd.readouterr().err
    assert err.count("pod wires-launcher waits: Unschedulable: 0/3 nodes are available: 3 Insufficient") == 1
    assert "mpijob/wires has not started in 1 s" in err
    assert cluster.asked("delete")


def test_a_worker_that_no_node_takes_is_why_a_host_did_not_answer(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    told = {"exit_code": 1, "sentence": "no answer by ssh from wires-worker-1", "rank": 0}
    worker = unschedulable("worker", 1)
    cluster.play("pods", pods(pod("launcher", RUNS), worker), pods(pod("launcher", left(1)), worker))
    cluster.log(
        0,
        line(1, f"meshrun: {told['sentence']}\n"),
        line(2, f"\x1emeshrun-run TOKEN failure {json.dumps(told)}\n"),
    )
    assert kubernetes_job.start(SPEC, PODS) == 1
    out, err = capfd.readouterr()
    assert out == "meshrun: no answer by ssh from wires-worker-1\n"
    assert "pod wires-worker-1 waits: Unschedulable: 0/3 nodes" in err
    assert "no rank said why" not in err


def test_an_operator_that_is_not_there(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    about = {"kind": "MPIJob", "name": "wires"}
    event = {"type": "Warning", "reason": "ValidationError", "message": "bad", "involvedObject": about}
    other = {**event, "message": "other", "involvedObject": {"kind": "MPIJob", "name": "wiresome"}}
    cluster.play("events", {"items": [other, event]})
    assert kubernetes_job.start(SPEC, Pods("image", name="wires", start_timeout=1)) == 1
    err = capfd.readouterr().err
    assert "mpijob/wires has not started in 1 s: mpijob wires: ValidationError: bad" in err
    assert "other" not in err


def test_a_queue_has_all_the_time(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    held = {"kind": "MPIJob", "metadata": {"name": "wires"}, "spec": {"runPolicy": {"suspend": True}}}
    cluster.play("job", held)
    cluster.play("pods", *[pods()] * 10, STARTED, DONE)
    cluster.log(0, line(1, RECORD))
    assert kubernetes_job.start(SPEC, Pods("image", name="wires", start_timeout=0)) == 0
    assert capfd.readouterr().err.count("mpijob/wires is waiting in its queue") == 1


def test_a_time_limit(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    ended = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}
    failed = {"kind": "MPIJob", "metadata": {"name": "wires"}, "status": {"conditions": [ended]}}
    dying = pod("launcher", left(143))
    dying["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    cluster.play("pods", STARTED, pods(dying), pods())
    cluster.play("job", failed)
    assert kubernetes_job.start(SPEC, PODS) == 1
    assert (
        "mpijob wires failed: DeadlineExceeded: too long. Try: a longer --time-limit"
        in capfd.readouterr().err
    )


def test_a_job_that_someone_deletes(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.play("pods", STARTED, pods())
    cluster.play("job", {})
    assert kubernetes_job.start(SPEC, PODS) == 1
    assert "mpijob/wires was deleted" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_deletes_the_job_and_waits(
    cluster: Cluster, capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    cluster.play("pods", STARTED)
    cluster.log(0, line(1, "a table\n"), ("signal", number), ("sleep", 20))
    assert kubernetes_job.start(SPEC, PODS) == 128 + number
    (delete,) = cluster.asked("delete")
    assert delete[1:5] == ["mpijob/wires", "--ignore-not-found", "--cascade=foreground", "--timeout=120s"]
    assert f"interrupted by {number.name}: every rank has ended" in capfd.readouterr().err


def test_a_second_signal_does_not_wait(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.play("pods", STARTED)
    cluster.play("delete", signal.SIGINT)
    cluster.log(0, ("signal", signal.SIGTERM), ("sleep", 20))
    assert kubernetes_job.start(SPEC, PODS) == 128 + signal.SIGTERM
    assert cluster.asked("delete")
    err = capfd.readouterr().err
    assert "not waiting for the pods of mpijob/wires to end" in err
    assert "every rank has ended" not in err


def test_a_job_that_may_still_be_there(cluster: Cluster) -> None:
    cluster.play("pods", STARTED)
    cluster.play("delete", "Error from server (Forbidden): no")
    cluster.log(0, ("signal", signal.SIGINT), ("sleep", 20))
    with pytest.raises(RunError, match=r"mpijob/wires may still exist: Error from server \(Forbidden\)"):
        kubernetes_job.start(SPEC, PODS)


def test_a_log_that_cannot_be_read(cluster: Cluster) -> None:
    cluster.play("pods", STARTED)
    for number in range(kubernetes_job.MAX_LOG_FAILURES):
        cluster.log(number, ("end", 1))
    with pytest.raises(RunError, match=r"log of wires-launcher cannot be read.* unexpected EOF") as refused:
        kubernetes_job.start(SPEC, PODS)
    assert "kubectl delete mpijob/wires" in str(refused.value)


def test_a_cluster_that_does_not_answer(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_job, "ANSWER_TIMEOUT", 0.3)
    cluster.play("pods", STARTED, "Unable to connect to the server")
    cluster.log(0, ("sleep", 20))
    with pytest.raises(RunError, match=r"no answer from the cluster for .* Unable to connect to the server"):
        kubernetes_job.start(SPEC, PODS)


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ('no matches for kind "MPIJob" in version "kubeflow.org/v2beta1"', "install the MPI operator"),
        ("Error from server (Forbidden): mpijobs is forbidden", "kubectl auth can-i create mpijobs"),
    ],
)
def test_a_job_that_the_cluster_does_not_take(cluster: Cluster, said: str, hint: str) -> None:
    cluster.play("create", said)
    with pytest.raises(UserError, match=re.escape(said)) as refused:
        kubernetes_job.start(SPEC, PODS)
    assert hint in str(refused.value)
    assert refused.value.exit_code == 2


NVLINK = replace(PODS, nvlink_domain=True)


def test_what_a_job_needs_ends_with_it(cluster: Cluster) -> None:
    cluster.play("job", {"kind": "MPIJob", "metadata": {"name": "wires", "uid": "u-1"}})
    cluster.play("pods", STARTED, DONE)
    cluster.log(0, line(1, RECORD))
    assert kubernetes_job.start(SPEC, NVLINK) == 0
    assert [json.loads(call[-1])["kind"] for call in cluster.asked("create")] == ["ComputeDomain", "MPIJob"]
    ((_, name, *_, change, _, _, _),) = cluster.asked("patch")
    assert name == "computedomain/wires"
    owner = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "wires", "uid": "u-1"}
    assert json.loads(change) == {"metadata": {"ownerReferences": [owner]}}
    assert not cluster.asked("delete")


def test_a_job_that_the_cluster_rejects_leaves_nothing(cluster: Cluster) -> None:
    cluster.play("create", "", "Error from server (Forbidden): mpijobs is forbidden")
    with pytest.raises(UserError, match=r"the cluster rejected mpijob/wires"):
        kubernetes_job.start(SPEC, NVLINK)
    assert [call[1] for call in cluster.asked("delete")] == ["computedomain/wires"]


@pytest.mark.parametrize(
    ("pods_", "kind", "said"),
    [
        (NVLINK, "ComputeDomain", "install NVIDIA's DRA driver for GPUs"),
        (replace(PODS, kind="jobset", ssh_secret="keys"), "JobSet", "install JobSet (github.com"),
        (replace(PODS, kind="trainjob"), "TrainingRuntime", "install the Kubeflow Trainer (github.com"),
    ],
)
def test_what_installs_a_kind_that_is_not_there(cluster: Cluster, pods_: Pods, kind: str, said: str) -> None:
    cluster.play("create", f'no matches for kind "{kind}" in version "x"')
    with pytest.raises(UserError, match=re.escape(said)):
        kubernetes_job.start(SPEC, pods_)
    assert not cluster.asked("delete")


def test_a_job_set_that_its_queue_holds(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    held = {"kind": "JobSet", "metadata": {"name": "wires"}, "spec": {"suspend": True}}
    cluster.play("job", held)
    cluster.play("pods", *[pods()] * 5, STARTED, DONE)
    cluster.log(0, line(1, RECORD))
    job_set = replace(PODS, kind="jobset", ssh_secret="keys", queue="gpus", start_timeout=0)
    assert kubernetes_job.start(SPEC, job_set) == 0
    assert capfd.readouterr().err.count("jobset/wires is waiting in its queue") == 1


def test_a_manifest_that_is_no_good_is_not_submitted(cluster: Cluster) -> None:
    with pytest.raises(UserError, match="is invalid: metadata"):
        kubernetes_job.start(SPEC, Pods("image", name="Wires"))
    assert cluster.calls == []


def test_no_kubectl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"no kubectl on PATH.*Try: install it") as refused:
        kubectl.find()
    assert refused.value.exit_code == 2


def test_a_file_named_by_ranks_is_not_one_here(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ours = tmp_path / "out.npy.partial"
    ours.touch()
    cluster.play("pods", STARTED, pods(pod("launcher", left(1)), *WORKERS))
    cluster.log(0, line(1, f"\x1emeshrun-run TOKEN partial {json.dumps(str(ours))}\n"))
    assert kubernetes_job.start(SPEC, PODS) == 1
    assert ours.exists()


def test_a_plain_job(cluster: Cluster) -> None:
    cluster.play("pods", pods(pod("launcher", RUNS)), pods(pod("launcher", ENDED)))
    cluster.log(0, line(1, RECORD))
    assert kubernetes_job.start(LaunchSpec(("selftest",), 1, 2), PODS) == 0
    assert any(call[:2] == ["get", "pods"] for call in cluster.calls)
    assert json.loads(cluster.asked("create")[0][-1])["kind"] == "Job"
