"""Plans as Kubernetes manifests: the whole text, what a strict schema says of it, and the image that fits."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes_schema import problems

from meshrun.launch.kubernetes import manifest, pods, user_values
from meshrun.launch.kubernetes.launcher_script import HOSTFILE, script
from meshrun.launch.kubernetes.pods import Kind, Pods, memory_bytes
from meshrun.launch.spec import LaunchSpec
from meshrun.runner.errors import UserError

ROOT = Path(__file__).parents[4]
GOLDEN = Path(__file__).with_name("golden")
BENCH = ("bench", "all_reduce", "-b", "8", "-e", "8G", "-f", "2")

MPI_JOB = (
    LaunchSpec(
        BENCH, 2, 8, settings={"NCCL_DEBUG": "INFO", "PRICE": "$5"}, network="eth0", host_timeout=30.0
    ),
    Pods(
        "registry.example/meshrun:1",
        name="wires",
        namespace="lab",
        queue="gpus",
        rdma={"rdma/ib": 8},
        memory="200Gi",
        cpu="96",
        volumes={"pictures": "/data"},
        node_selector={"cloud.google.com/gke-accelerator": "nvidia-h200-141gb"},
        tolerations=({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},),
        service_account="runs",
        time_limit=7200,
        clean_pods="All",
    ),
)
JOB = (LaunchSpec(BENCH, 1, 8), Pods("registry.example/meshrun:1", name="wires", memory="200Gi", cpu="96"))
CPU_MPICH = (
    LaunchSpec(("selftest",), 3, 4),
    Pods("registry.example/meshrun:mpich", name="wires", gpu_resource=None, shm="1Gi", mpi="mpich"),
)
JOB_SET = (
    LaunchSpec(BENCH, 2, 4),
    Pods(
        "registry.example/meshrun:1",
        name="wires",
        kind="jobset",
        queue="gpus",
        memory="200Gi",
        rdma={"rdma/ib": 4},
        topology_required="cloud.provider.com/topology-rack",
        nvlink_domain=True,
        annotations={"k8s.v1.cni.cncf.io/networks": "rail-0,rail-1"},
        hugepages=("2Mi", "2Gi"),
        image_pull_secrets=("registry",),
        ssh_secret="wires-ssh",
        time_limit=7200,
    ),
)
TRAIN_JOB = (
    LaunchSpec(BENCH, 2, 8),
    Pods(
        "registry.example/meshrun:1",
        name="wires",
        namespace="lab",
        kind="trainjob",
        queue="gpus",
        topology_preferred="cloud.provider.com/topology-block",
        host_network=True,
        time_limit=7200,
    ),
)
CASES = {
    "mpijob_2x8": MPI_JOB,
    "job_1x8": JOB,
    "mpijob_cpu_mpich": CPU_MPICH,
    "jobset_2x4": JOB_SET,
    "trainjob_2x8": TRAIN_JOB,
}


def made(
    spec: LaunchSpec = MPI_JOB[0], chosen: Pods = MPI_JOB[1], token: str | None = None
) -> dict[str, Any]:
    return manifest.documents(spec, chosen, token)[-1]


def pod(document: dict[str, Any], role: str = "Launcher") -> Any:
    return document["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    spec, chosen = CASES[name]
    assert manifest.text(manifest.documents(spec, chosen)) == (GOLDEN / f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", CASES)
def test_golden_texts_are_what_the_cluster_takes(name: str) -> None:
    import yaml

    spec, chosen = CASES[name]
    objects = list(yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()))
    assert objects == manifest.documents(spec, chosen)
    assert [problem for each in objects for problem in problems(each)] == []
    assert user_values.problems(objects) == []
    assert list(user_values.conflicts(spec, chosen, manifest.kind_of(spec, chosen))) == []


def pod_templates(part: Any) -> Iterator[dict[str, Any]]:
    """Every template of pods, at any depth."""
    if isinstance(part, dict):
        if "containers" in part.get("spec", {}):
            yield part
        for element in part.values():
            yield from pod_templates(element)
    elif isinstance(part, list):
        for element in part:
            yield from pod_templates(element)


@pytest.mark.parametrize("name", CASES)
def test_pods_are_good_by_the_schema_of_kubernetes_itself(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    found = [each for document in manifest.documents(*CASES[name]) for each in pod_templates(document)]
    assert len(found) == (1 if name == "job_1x8" else 2)
    for template in found:
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "wires"},
            "spec": {"template": {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}},
        }
        validate.validate(job, "1.31", strict=True)


def test_only_a_followed_job_has_a_token() -> None:
    followed = made(token="f00d")
    launcher = pod(followed)["containers"][0]
    assert {"name": "MESHRUN_TOKEN", "value": "f00d"} in launcher["env"]
    assert launcher["args"][launcher["args"].index("--run-dir") + 1] == "@f00d"
    assert problems(followed) == []
    assert "run-dir" not in manifest.text([made()])


def test_what_the_user_says_is_not_kubernetes_syntax() -> None:
    launcher = pod(made(LaunchSpec(("run", "elementwise", "$(HOME)", "a$$b"), 2, 1)))["containers"][0]
    assert launcher["args"][-2:] == ["$$(HOME)", "a$$$$b"]
    assert {"name": "PRICE", "value": "$$5"} in pod(made())["containers"][0]["env"]


def test_kubernetes_leaves_the_script_alone() -> None:
    """It replaces $$, and $(NAME) where NAME is a variable."""
    for mpi in ("openmpi", "mpich", "intel"):
        text = script(mpi)
        assert "$$" not in text
        assert not re.search(r"\$\([A-Za-z0-9_.-]+\)", text)


@pytest.mark.parametrize("role", ["Launcher", "Worker"])
@pytest.mark.parametrize("rdma", [{}, {"rdma/ib": 8}])
def test_pods_have_only_the_rights_that_they_need(role: str, rdma: dict[str, int]) -> None:
    spec = pod(made(chosen=Pods("image", rdma=rdma)), role)
    added = {"add": ["IPC_LOCK"]} if rdma and role == "Worker" else {}
    assert spec["automountServiceAccountToken"] is False
    assert spec["containers"][0]["securityContext"] == {
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], **added},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_a_service_account_that_is_named_is_for_its_token() -> None:
    assert "automountServiceAccountToken" not in pod(made(chosen=Pods("image", service_account="runs")))


def test_the_image_s_own_user_or_root() -> None:
    for root, user, folder, allowed in (
        (False, 1000, "/home/mpiuser/.ssh", False),
        (True, 0, "/root/.ssh", True),
    ):
        document = made(chosen=Pods("image", root=root))
        assert document["spec"]["sshAuthMountPath"] == folder
        for role in ("Launcher", "Worker"):
            assert pod(document, role)["containers"][0]["securityContext"]["runAsUser"] == user
        names = [each["name"] for each in pod(document)["containers"][0]["env"]]
        assert ("OMPI_ALLOW_RUN_AS_ROOT" in names) == allowed
        assert ("-f" in pod(document, "Worker")["containers"][0]["command"]) != root


def test_intel_mpi() -> None:
    launcher = pod(made(chosen=Pods("image", mpi="intel")))["containers"][0]
    assert launcher["args"][:8] == [
        "/opt/meshrun/bin/mpiexec", "-f", HOSTFILE, "-ppn", "8", "-iface", "eth0", "-n",
    ]  # fmt: skip
    assert {"name": "I_MPI_PIN", "value": "off"} in launcher["env"]


def set_at(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        *way, last = path.split(".")
        at: Any = document
        for key in way:
            at = at[int(key)] if key.isdecimal() else at[key]
        if value is None:
            del at[last]
        else:
            at[last] = value

    return change


CONTAINER = "spec.mpiReplicaSpecs.Launcher.template.spec.containers"
WORKER = "spec.mpiReplicaSpecs.Worker"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        # Unknown fields, at each depth.
        ("spec.slotPerWorker", 8, "spec.slotPerWorker: no such field"),
        ("spec.runPolicy.cleanPodPolcy", "All", "spec.runPolicy.cleanPodPolcy: no such field"),
        (f"{CONTAINER}.0.resourcess", {}, "containers[0].resourcess: no such field"),
        (f"{WORKER}.template.spec.nodeSelecter", {}, "Worker.template.spec.nodeSelecter: no such field"),
        (
            f"{WORKER}.template.spec.restartPolicy",
            "Never",
            "Worker.template.spec.restartPolicy: no such field",
        ),
        ("spec.mpiReplicaSpecs.Workers", {}, "spec.mpiReplicaSpecs.Workers: no such field"),
        # Types and choices.
        ("spec.slotsPerWorker", "8", "spec.slotsPerWorker: got '8', expected a whole number"),
        ("spec.slotsPerWorker", True, "spec.slotsPerWorker: got True, expected a whole number"),
        (f"{WORKER}.replicas", "2", "Worker.replicas: got '2'"),
        (
            "spec.mpiImplementation",
            "OMPI",
            "spec.mpiImplementation: got 'OMPI', expected OpenMPI or Intel or MPICH",
        ),
        ("apiVersion", "kubeflow.org/v1", "apiVersion: got 'kubeflow.org/v1'"),
        ("kind", "MpiJob", "kind: expected JobSet or TrainingRuntime or TrainJob"),
        (f"{CONTAINER}.0.env.0.value", 1, "env[0].value: got 1, expected a text"),
        # The operator's own rules.
        ("spec.mpiReplicaSpecs.Launcher", None, "spec.mpiReplicaSpecs.Launcher: missing"),
        ("spec.mpiReplicaSpecs.Launcher.replicas", 2, "Launcher.replicas: got 2"),
        (f"{WORKER}.replicas", 0, "Worker.replicas: got 0"),
        (f"{WORKER}.replicas", None, "Worker.replicas: missing"),
        (
            f"{WORKER}.restartPolicy",
            "Always",
            "Worker.restartPolicy: got 'Always', expected Never or OnFailure",
        ),
        (f"{WORKER}.restartPolicy", None, "Worker.restartPolicy: missing"),
        (CONTAINER, [], "containers: got [], expected a list of at least 1"),
        ("spec.runPolicy.cleanPodPolicy", None, "spec.runPolicy.cleanPodPolicy: missing"),
        ("spec.runPolicy.cleanPodPolicy", "Some", "spec.runPolicy.cleanPodPolicy: got 'Some'"),
        ("spec.runPolicy.backoffLimit", -1, "spec.runPolicy.backoffLimit: got -1"),
        ("spec.runPolicy.ttlSecondsAfterFinished", -1, "ttlSecondsAfterFinished: got -1"),
        ("spec.runPolicy.activeDeadlineSeconds", 0, "activeDeadlineSeconds: got 0"),
        ("spec.runPolicy.managedBy", "me", "spec.runPolicy.managedBy: got 'me'"),
        ("spec.sshAuthMountPath", None, "spec.sshAuthMountPath: missing"),
        ("spec.slotsPerWorker", None, "spec.slotsPerWorker: missing"),
    ],
)
def test_what_the_schema_refuses(path: str, value: Any, said: str) -> None:
    document = made()
    set_at(path, value)(document)
    found = problems(document)
    assert len(found) == 1
    assert said in found[0]


def test_the_longest_name() -> None:
    document = made()
    document["metadata"]["name"] = "a" * 54
    assert problems(document) == user_values.problems([document]) == []


LABELS, SELECTOR = f"metadata.labels[{manifest.QUEUE}]", "Worker.template.spec.nodeSelector"
POD = f"{WORKER}.template.spec"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("metadata.name", "Wires", "metadata.name: got 'Wires', expected a DNS label"),
        (
            "metadata.name",
            "a" * 55,
            f"metadata.name: a pod would be named {'a' * 55}-worker-1, with 64 characters",
        ),
        ("metadata.namespace", "-lab", "metadata.namespace: got '-lab', expected a namespace's name"),
        ("metadata.labels", {manifest.QUEUE: "a b"}, f"{LABELS}: got 'a b', expected a label"),
        (f"{POD}.nodeSelector", {"a b": "c"}, f"{SELECTOR}, key: got 'a b', expected a name, or DOMAIN/NAME"),
        (f"{POD}.nodeSelector", {"a": "-"}, f"{SELECTOR}[a]: got '-', expected a label of at most 63"),
        (f"{POD}.volumes.0.emptyDir.sizeLimit", "16 GB", "sizeLimit: got '16 GB', expected a quantity"),
        (f"{POD}.volumes.1.persistentVolumeClaim.claimName", "A", "claimName: got 'A', expected a claim's"),
        (f"{POD}.tolerations.0.key", "a b", "tolerations[0].key: got 'a b', expected a taint's key"),
        (f"{POD}.tolerations.0.value", "a b", "tolerations[0].value: got 'a b', expected a taint's value"),
        (f"{POD}.serviceAccountName", "A", "serviceAccountName: got 'A', expected a service account's name"),
        (
            f"{POD}.containers.0.volumeMounts.1.mountPath",
            "a",
            "mountPath: got 'a', expected an absolute path",
        ),
        (f"{POD}.containers.0.resources.limits", {"cpu": "x"}, "limits[cpu]: got 'x', expected a quantity"),
        (f"{POD}.containers.0.resources.limits", {"g u": "1"}, "limits, key: got 'g u', expected a name"),
        (f"{CONTAINER}.0.image", "", "containers[0].image: got ''"),
        (f"{CONTAINER}.0.image", "a b", "containers[0].image: got 'a b', expected an image"),
        (f"{CONTAINER}.0.env.0.name", "A B", "env[0].name: got 'A B', expected a variable's name"),
    ],
)
def test_what_the_user_gets_wrong_is_named_like_a_wrong_field(path: str, value: Any, said: str) -> None:
    document = made()
    set_at(path, value)(document)
    found = user_values.problems([document])
    assert len(found) == 1
    assert said in found[0]
    assert found[0].split(", expected")[0] == problems(document)[0].split(", expected")[0]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("metadata.namespace", "0lab", ""),  # only names of hosts begin with a letter
        (f"{POD}.serviceAccountName", "a..b", "serviceAccountName: got 'a..b'"),
        (f"{POD}.serviceAccountName", "a.-b", "serviceAccountName: got 'a.-b'"),
        (f"{POD}.nodeSelector", {"a..b/c": "d"}, "key: got 'a..b/c'"),
        (f"{POD}.containers.0.resources.limits", {"rdma": "1"}, "key: got 'rdma', expected cpu, memory"),
        (f"{CONTAINER}.0.image", "Registry/Image", "image: got 'Registry/Image'"),
        (f"{CONTAINER}.0.image", "r.example:5000/a/b:1@sha256:" + "0" * 64, ""),
        (f"{CONTAINER}.0.image", "r.example/a:b:c", "image: got 'r.example/a:b:c'"),
        (f"{POD}.imagePullSecrets", [{"name": "A_b"}], "imagePullSecrets[0].name: got 'A_b'"),
    ],
)
def test_names_by_the_rules_of_kubernetes(path: str, value: Any, said: str) -> None:
    document = made()
    set_at(path, value)(document)
    found = user_values.problems([document])
    assert len(found) == bool(said)
    assert said in "".join(found)


@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_the_longest_names_of_job_sets(kind: Kind) -> None:
    """A pod is called NAME-launcher-0-0- and five letters."""
    spec = LaunchSpec(BENCH, 2, 8)
    for length, valid in ((44, True), (45, False)):
        objects = manifest.documents(spec, Pods("image", name="a" * length, kind=kind, ssh_secret="keys"))
        found = user_values.problems(objects)
        assert (not found) == valid
        assert valid or found == [
            f"metadata.name: a pod would be named {'a' * 45}-launcher-0-0-abcde, "
            "with 64 characters, at most 63 are valid"
        ]


@pytest.mark.parametrize(
    ("hosts", "chosen", "said"),
    [
        (2, {"kind": "job"}, "--kind job runs on one node, not on 2"),
        (2, {"kind": "jobset"}, "--kind jobset needs --ssh-secret NAME"),
        (2, {"ssh_secret": "keys"}, "--ssh-secret is for --kind jobset only"),
        (2, {"kind": "trainjob", "mpi": "mpich"}, "--kind trainjob needs --mpi openmpi"),
        (2, {"kind": "trainjob", "root": True}, "--kind trainjob excludes --root"),
        (2, {"kind": "trainjob", "clean_pods": "All"}, "--clean-pods is for MPIJobs"),
        (2, {"topology_required": "rack"}, "needs --queue NAME"),
        (
            2,
            {"queue": "q", "topology_required": "a", "topology_preferred": "b"},
            "--topology-required excludes",
        ),
        (1, {"nvlink_domain": True}, "--nvlink-domain joins the GPUs of several nodes"),
        (2, {"nvlink_domain": True, "gpu_resource": None}, "--nvlink-domain joins"),
        (2, {"hugepages": ("2Mi", "2Gi")}, "--hugepages needs --memory or --cpu"),
        (2, {"rdma": {"nvidia.com/gpu": 2}}, "--rdma names nvidia.com/gpu"),
        (
            1,
            {"volumes": {"a": "/data", "b": "/data/"}},
            "--volume names the mount path /data, which is in use",
        ),
        (1, {"volumes": {"a": "/dev/shm"}}, "--volume names the mount path /dev/shm"),
        (2, {"volumes": {"a": "/home/mpiuser/.ssh"}}, "--volume names the mount path /home/mpiuser/.ssh"),
    ],
)
def test_choices_that_exclude_each_other(hosts: int, chosen: dict[str, Any], said: str) -> None:
    spec, pods_ = LaunchSpec(BENCH, hosts, 8), Pods("image", **chosen)
    (found,) = user_values.conflicts(spec, pods_, manifest.kind_of(spec, pods_))
    assert said in found


def test_any_kind_runs_on_one_node() -> None:
    spec = LaunchSpec(BENCH, 1, 8)
    for kind, at_last in (("mpijob", "MPIJob"), ("jobset", "JobSet"), ("trainjob", "TrainJob")):
        chosen = Pods("image", kind=kind, ssh_secret="keys" if kind == "jobset" else None)
        assert list(user_values.conflicts(spec, chosen, kind)) == []
        objects = manifest.documents(spec, chosen)
        assert objects[-1]["kind"] == at_last
        assert [problem for each in objects for problem in problems(each)] == []


def test_the_launcher_of_a_job_set_writes_the_names_of_the_pods(tmp_path: Path) -> None:
    """JobSets call a pod's host NAME-JOB-0-NUMBER, in the domain NAME."""
    for mpi, last in (("openmpi", "wires-worker-0-10.wires slots=8"), ("mpich", "wires-worker-0-10.wires:8")):
        (document,) = manifest.documents(
            LaunchSpec(BENCH, 11, 8), Pods("image", name="wires", kind="jobset", ssh_secret="k", mpi=mpi)
        )
        launcher = document["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
        written = launcher["containers"][0]["command"][2].partition("# The launcher")[0]
        file = tmp_path / mpi
        subprocess.run(["/bin/sh", "-ec", written.replace(HOSTFILE, str(file))], check=True, timeout=60)
        lines = file.read_text().splitlines()
        assert (len(lines), lines[-1]) == (11, last)
        folder = str(Path(HOSTFILE).parent)
        assert {"name": "hosts", "mountPath": folder} in launcher["containers"][0]["volumeMounts"]


@pytest.mark.parametrize(("root", "folder"), [(False, "/home/mpiuser/.ssh"), (True, "/root/.ssh")])
def test_ssh_accepts_the_keys_of_a_job_set(root: bool, folder: str) -> None:
    """Root's own key is refused if others may read it, which fsGroup would let them."""
    chosen = Pods("image", kind="jobset", ssh_secret="keys", root=root)
    (document,) = manifest.documents(LaunchSpec(BENCH, 2, 8), chosen)
    for template in pod_templates(document):
        spec = template["spec"]
        assert ("securityContext" in spec) != root
        (keys,) = (each["secret"] for each in spec["volumes"] if each["name"] == "keys")
        assert keys["defaultMode"] == 0o400
        assert {each["path"] for each in keys["items"]} == {"id_rsa", "id_rsa.pub", "authorized_keys"}
        assert {"name": "keys", "mountPath": folder} in spec["containers"][0]["volumeMounts"]


def test_more_ranks_than_the_api_takes() -> None:
    document = made(LaunchSpec(("selftest",), 2, 1 << 40))
    (found,) = user_values.problems([document])
    assert found.startswith("spec.slotsPerWorker: got 1099511627776, expected a whole number below 10^9")


def test_without_a_yaml_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UserError, match=re.escape("pip install 'meshrun[kubernetes]'")):
        manifest.text([made()])


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("2k", 2000), ("2Ki", 2048), ("1.5Gi", 1.5 * 2**30), ("3T", 3e12)]
)
def test_sizes(text: str, size: float) -> None:
    assert memory_bytes(text) == size


# The launcher's script, with an ssh of our own.

SSH = """#!/bin/sh
for word; do case $word in n*) host=$word;; esac; done
echo "$host" >>"$LOG"
[ "$host" != n2 ] || [ "$(grep -c n2 "$LOG")" -gt "$LATE" ] || { echo "no route to n2" >&2; exit 255; }
"""


def launched(
    folder: Path, late: int, timeout: int, text: str, *words: str
) -> subprocess.CompletedProcess[str]:
    (folder / "hostfile").write_text("n1 slots=8\nn2:8\n")
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(stat.S_IRWXU)
    return subprocess.run(
        ["/bin/sh", "-c", text, "await_hosts", str(folder / "hostfile"), str(timeout), *words],
        env={
            "PATH": f"{folder}:{os.defpath}",
            "LOG": str(folder / "log"),
            "LATE": str(late),
            "MESHRUN_TOKEN": "f00d",
            "NCCL_DEBUG": "INFO",
            "UCX_TLS": "tcp",
            "LD_LIBRARY_PATH": "/a b",
            "OTHER": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_script_waits_for_every_host(tmp_path: Path) -> None:
    done = launched(tmp_path, 1, 30, script("mpich"), "/bin/echo", "two  words", "$HOME")
    assert (done.returncode, done.stdout) == (0, "two  words $HOME\n")
    assert re.fullmatch(r"meshrun: waiting for ssh to n2, attempt 1, \d+ s: no route to n2\n", done.stderr)


def test_the_script_hands_open_mpi_the_variables_that_there_are(tmp_path: Path) -> None:
    done = launched(tmp_path, 0, 30, script("openmpi"), "/bin/echo", "-n 16")
    words = done.stdout.split()
    assert {words[i + 1] for i, word in enumerate(words) if word == "-x"} == {
        "NCCL_DEBUG", "UCX_TLS", "LD_LIBRARY_PATH", "MESHRUN_TOKEN",
    }  # fmt: skip
    assert words[-2:] == ["-n", "16"]


def test_the_script_gives_up_with_the_host_s_name(tmp_path: Path) -> None:
    done = launched(tmp_path, 1000, 2, script("openmpi"), "/bin/echo", "started")
    assert (done.returncode, done.stdout) == (1, "")
    *waits, said, told, _ = done.stderr.split("\n")
    assert all(line.startswith("meshrun: waiting for ssh to n2, attempt ") for line in waits)
    sentence = re.fullmatch(
        r"meshrun: (no answer by ssh from n2 in \d+ s\. Try: kubectl describe pod n2)", said
    )
    assert sentence
    assert told == (
        f'\x1emeshrun-run f00d failure {{"exit_code": 1, "sentence": "{sentence[1]}", "rank": 0}}'
    )


# The image.


def containerfile() -> list[str]:
    text = re.sub(r"(?m)^\s*#.*\n", "", (ROOT / "Containerfile").read_text())
    return re.sub(r"\\\n\s*", "", text).splitlines()


def test_the_image_has_what_the_manifests_name() -> None:
    lines = containerfile()
    venv = str(Path(pods.PYTHON).parents[1])
    assert f"COPY --from=build {venv} {venv}" in lines
    assert any(f"python -m venv {venv}" in line for line in lines)
    assert f"USER {pods.USER}:{pods.USER}" in lines
    assert any(f"--uid {pods.USER}" in line and line.rstrip().endswith(".sshd_config") for line in lines)
    assert f"WORKDIR {pods.HOME}" in lines
    assert any(f"PATH={venv}/bin:" in line for line in lines if line.startswith("ENV"))
    assert any(f"> {pods.HOME}/.sshd_config" in line for line in lines)


def test_the_image_s_sshd_and_ssh_agree() -> None:
    written = {
        path: re.findall(r"'([^']*)'", texts)
        for line in containerfile()
        for texts, path in re.findall(r"printf '%s\\n' ((?:'[^']*' )+)> (\S+)", line)
    }
    server = written[f"{pods.HOME}/.sshd_config"]
    client = [line.strip() for line in written["/etc/ssh/ssh_config.d/meshrun.conf"]]
    folder = Pods("image").ssh_folder
    assert "Port 2222" in server
    assert "Port 2222" in client
    assert f"HostKey {folder}/id_rsa" in server  # the names under which the operator mounts its keys
    assert f"AuthorizedKeysFile {folder}/authorized_keys" in server
    assert "StrictModes no" in server
    pinned = 'KnownHostsCommand /bin/sed "s/^/* /" %d/.ssh/authorized_keys'
    assert {"StrictHostKeyChecking yes", pinned, "UserKnownHostsFile /dev/null"} <= set(client)
