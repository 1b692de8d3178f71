"""`meshrun launch kubernetes`: the manifest that its words make, and every mistake in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest

from meshrun.launch.cli.main import command
from meshrun.runner.errors import UserError

GOLDEN = Path(__file__).parents[1] / "kubernetes" / "golden"
BENCH = ("bench", "all_reduce", "-b", "8", "-e", "8G", "-f", "2")


def run_command(*words: str) -> Any:
    return command.main(["launch", "kubernetes", *words, "--", *BENCH], standalone_mode=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--toleration", "gpu"], "expected KEY[=VALUE]:EFFECT"),
        (["--toleration", "gpu:Never"], "expected KEY[=VALUE]:EFFECT"),
        (["--rdma", "rdma/ib"], "expected NAME=VALUE"),
        (["--rdma", "rdma/ib=0"], "expected RESOURCE=N"),
        (["--volume", "data"], "expected CLAIM:PATH"),
        (["--volume", "data:here"], "expected CLAIM:PATH"),
        (["--time-limit", "soon"], "expected seconds"),
        (["--time-limit", "0"], "expected seconds"),
        (["--shm", "much"], "expected a size such as 16Gi"),
        (["--memory", "16Gi"], "--shm 16Gi leaves nothing of --memory 16Gi"),
        (["-x", "A B=1"], "expected NAME=VALUE"),
        (["--hugepages", "2Mi"], "expected NAME=VALUE"),
        (["--hugepages", "2Mi=3Mi"], "3Mi is no multiple of a page of 2Mi"),
        (["--hugepages", "2Mi=some"], "expected a size such as 16Gi"),
        (["--annotation", "k"], "expected NAME=VALUE"),
        (["--volume", "data:/a", "--volume", "data:/b"], "--volume names data more than once"),
        (["--rdma", "rdma/ib=1", "--rdma", "rdma/ib=2"], "--rdma names rdma/ib more than once"),
        (["--kind", "pod"], "'pod' is not one of"),
    ],
)
def test_what_is_no_option_s_value(words: list[str], said: str) -> None:
    with pytest.raises(click.UsageError, match=re.escape(said)):
        run_command("-j", "2x8", "--image", "image", "--print", *words)


def test_a_manifest_that_would_be_refused_is_no_manifest() -> None:
    with pytest.raises(UserError, match=r"is invalid: metadata\.name: got 'Wires'") as refused:
        run_command("-j", "2x8", "--image", "image", "--name", "Wires", "--print")
    assert refused.value.exit_code == 2


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    status = run_command(
        "-j", "2x8", "--image", "registry.example/meshrun:1", "--name", "wires", "-N", "lab",
        "--queue", "gpus", "--rdma", "rdma/ib=8", "--memory", "200Gi", "--cpu", "96",
        "--volume", "pictures:/data",
        "--node-selector", "cloud.google.com/gke-accelerator=nvidia-h200-141gb",
        "--toleration", "nvidia.com/gpu:NoSchedule", "--service-account", "runs", "--time-limit", "2h",
        "--clean-pods", "All", "-x", "NCCL_DEBUG=INFO", "-x", "PRICE=$5", "--network", "eth0",
        "--host-timeout", "30", "--print",
    )  # fmt: skip
    assert status == 0
    assert capsys.readouterr().out == (GOLDEN / "mpijob_2x8.yaml").read_text()


def test_print_of_several_objects(capsys: pytest.CaptureFixture[str]) -> None:
    status = run_command(
        "-j", "2x4", "--kind", "jobset", "--image", "registry.example/meshrun:1", "--name", "wires",
        "--queue", "gpus", "--rdma", "rdma/ib=4", "--memory", "200Gi", "--time-limit", "2h",
        "--topology-required", "cloud.provider.com/topology-rack", "--nvlink-domain",
        "--annotation", "k8s.v1.cni.cncf.io/networks=rail-0,rail-1", "--hugepages", "2Mi=2Gi",
        "--image-pull-secret", "registry", "--ssh-secret", "wires-ssh", "--print",
    )  # fmt: skip
    assert status == 0
    assert capsys.readouterr().out == (GOLDEN / "jobset_2x4.yaml").read_text()


def test_choices_that_exclude_each_other_are_wrong_words() -> None:
    with pytest.raises(UserError, match=r"--kind job runs on one node, not on 2") as refused:
        run_command("-j", "2x8", "--image", "image", "--kind", "job", "--print")
    assert refused.value.exit_code == 2
