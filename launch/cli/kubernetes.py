"""`meshrun launch kubernetes`: a run as a job in the cluster that kubectl is configured for."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, TypeVar, get_args

import click

from meshrun.launch.cli.params import (
    SHAPE,
    ParsedText,
    TargetOptions,
    build_spec,
    cluster_options,
    parsed_option,
)
from meshrun.launch.cli.plugins import conclude
from meshrun.launch.kubernetes.pods import (
    CleanPods,
    Implementation,
    Kind,
    Pods,
    Toleration,
    memory_bytes,
)

Value = TypeVar("Value")

LONGEST = 2**31 - 1  # seconds, of a pod's activeDeadlineSeconds
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
DURATION = re.compile(r"([1-9]\d*)([smhd]?)")
TOLERATION = re.compile(r"([^=:\s]+)(?:=([^=:\s]*))?:(NoSchedule|PreferNoSchedule|NoExecute)")


def pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"expected NAME=VALUE, not {text!r}")
    return name, value


def pages(text: str) -> tuple[str, str]:
    page, amount = pair(text)
    if memory_bytes(amount) % memory_bytes(page):
        raise ValueError(f"{amount} is no multiple of a page of {page}")
    return page, amount


def once(name: str, pairs: Sequence[tuple[str, Value]]) -> dict[str, Value]:
    """The pairs of a repeated option. Raises UsageError if two have the same name."""
    from meshrun.runner.spelling import option

    names = [key for key, _ in pairs]
    if twice := next((key for key in names if names.count(key) > 1), None):
        raise click.UsageError(f"{option(name)} names {twice} more than once")
    return dict(pairs)


def counted(text: str) -> tuple[str, int]:
    name, count = pair(text)
    if not count.isdecimal() or not int(count):
        raise ValueError(f"expected RESOURCE=N, not {text!r}")
    return name, int(count)


def mounted(text: str) -> tuple[str, str]:
    claim, _, path = text.partition(":")
    if not claim or not PurePosixPath(path).is_absolute():
        raise ValueError(f"expected CLAIM:PATH with an absolute path, not {text!r}")
    return claim, path


def toleration(text: str) -> Toleration:
    """Parse K:EFFECT (any value of the taint) or K=V:EFFECT into Kubernetes' fields."""
    match = TOLERATION.fullmatch(text)
    if not match:
        raise ValueError(f"expected KEY[=VALUE]:EFFECT, such as nvidia.com/gpu:NoSchedule, not {text!r}")
    key, value, effect = match.groups()
    if value is None:
        return {"key": key, "operator": "Exists", "effect": effect}
    return {"key": key, "operator": "Equal", "value": value, "effect": effect}


def seconds(text: str) -> int:
    match = DURATION.fullmatch(text)
    if not match:
        raise ValueError(f"expected seconds, or 90s, 30m, 2h, 1d, not {text!r}")
    if (found := int(match[1]) * UNITS[match[2]]) > LONGEST:
        raise ValueError(f"{text!r} is too long; expected at most {LONGEST} s")
    return found


def size(text: str) -> str:
    memory_bytes(text)
    return text


@click.command()
@SHAPE
@click.option("--image", required=True, help="Container image with meshrun; the Containerfile builds one.")
@click.option(
    "--name", default=lambda: f"meshrun-{secrets.token_hex(3)}",
    help="Name of the job.  [default: meshrun- and random digits]",
)  # fmt: skip
@click.option("-N", "--namespace", help="Namespace of the job.  [default: kubectl's current one]")
@click.option(
    "--kind", type=click.Choice(get_args(Kind)),
    help="Kind of job.  [default: job on one node, mpijob on several]",
)  # fmt: skip
@click.option("--queue", metavar="NAME", help="Local queue of Kueue.")
@click.option(
    "--topology-required", metavar="LABEL",
    help="Kueue: all pods with ranks on nodes with one value of this label.",
)  # fmt: skip
@click.option(
    "--topology-preferred", metavar="LABEL",
    help="Kueue: the same where possible, otherwise on as few values as possible.",
)  # fmt: skip
@click.option(
    "--nvlink-domain", is_flag=True,
    help="Put all pods with ranks into one NVLink domain (NVL72), by a ComputeDomain.",
)  # fmt: skip
@click.option(
    "--gpu-resource",
    default=Pods.gpu_resource,
    show_default=True,
    help="Resource of which each rank gets one.",
)
@click.option("--no-gpus", is_flag=True, help="Run ranks on CPUs.")
@parsed_option(
    "--rdma", "RESOURCE=N", counted, multiple=True,
    help="Network adapters for each pod with ranks; adds IPC_LOCK to pin memory for them.",
)  # fmt: skip
@parsed_option(
    "--shm", "SIZE", size, default=Pods.shm, show_default=True, help="Size of /dev/shm, which is in memory."
)
@parsed_option("--memory", "SIZE", size, help="Memory of each pod with ranks, including --shm.")
@click.option("--cpu", metavar="N", help="CPUs of each pod with ranks.")
@parsed_option(
    "--volume", "CLAIM:PATH", mounted, multiple=True,
    help="Persistent volume claim, and its mount path in pods with ranks.",
)  # fmt: skip
@parsed_option(
    "--hugepages", "PAGE=AMOUNT", pages, help="Huge pages of each pod with ranks, such as 2Mi=2Gi."
)
@click.option("--host-network", is_flag=True, help="Pods with ranks use the network of their node.")
@parsed_option(
    "--annotation", "K=V", pair, multiple=True,
    help="Annotation of pods with ranks, such as networks to attach.",
)  # fmt: skip
@parsed_option("--node-selector", "K=V", pair, multiple=True, help="Label that nodes must have.")
@click.option(
    "--toleration", "tolerations", type=ParsedText("K[=V]:EFFECT", toleration), metavar="K[=V]:EFFECT",
    multiple=True, help="Taint to tolerate.",
)  # fmt: skip
@click.option(
    "--service-account", metavar="NAME", help="Service account of the pods.  [default: the namespace's]"
)
@click.option(
    "--image-pull-secret", "image_pull_secrets", multiple=True, metavar="NAME",
    help="Secret with the registry's password.",
)  # fmt: skip
@click.option("--ssh-secret", metavar="NAME", help="Secret with the ssh keys of a JobSet's pods.")
@parsed_option("--time-limit", "TIME", seconds, help="Time limit of the whole job: 90s, 30m, 2h, 1d.")
@parsed_option(
    "--start-timeout", "TIME", seconds, default=Pods.start_timeout, show_default=True,
    help="Time for pods to start and hosts to answer by ssh.",
)  # fmt: skip
@click.option(
    "--clean-pods",
    type=click.Choice(get_args(CleanPods)),
    default=Pods.clean_pods,
    show_default=True,
    help="Worker pods to delete when the job ends.",
)
@click.option(
    "--mpi",
    type=click.Choice(get_args(Implementation)),
    default=Pods.mpi,
    show_default=True,
    help="MPI in the image.",
)
@click.option(
    "--python",
    default=Pods.python,
    show_default=True,
    metavar="PATH",
    help="Python in the image, in the same folder as meshrun and mpiexec.",
)
@click.option("--root", is_flag=True, help="Run as root, the user of the image.")
@cluster_options
def kubernetes(
    target: TargetOptions,
    gpu_resource: str,
    no_gpus: bool,
    rdma: Sequence[tuple[str, int]],
    volume: Sequence[tuple[str, str]],
    node_selector: Sequence[tuple[str, str]],
    annotation: Sequence[tuple[str, str]],
    **more: Any,
) -> int:
    """Start ranks in pods: an MPIJob, JobSet or TrainJob, or a plain Job on one node.

    \b
    meshrun launch kubernetes -j 2x8 --image registry/meshrun:1 -- bench all_reduce -b 8 -e 8G -f 2
    meshrun launch kubernetes -j 8 --image registry/meshrun:1 --print -- selftest
    """
    from meshrun.launch.kubernetes import job

    if more["memory"] and memory_bytes(more["memory"]) <= memory_bytes(more["shm"]):
        raise click.UsageError(
            f"--shm {more['shm']} leaves nothing of --memory {more['memory']}: /dev/shm counts as memory"
        )
    spec = build_spec(target, files_here=False)
    pods = Pods(
        gpu_resource=None if no_gpus else gpu_resource,
        rdma=once("rdma", rdma),
        volumes=once("volume", volume),
        node_selector=once("node_selector", node_selector),
        annotations=once("annotation", annotation),
        **more,
    )
    if target.show:
        click.echo(job.preview(spec, pods), nl=False)
        return 0
    return job.start(spec, pods, debug=target.debug, conclude=partial(conclude, spec.words))
