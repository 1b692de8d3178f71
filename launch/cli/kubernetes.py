"""`meshrun launch kubernetes`: the run described once, as a job in the cluster that kubectl is set up for."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, get_args

import click

from launch.cli.params import DEBUG, NETWORK, PRINT, SETTING, SHAPE, TIMEOUT, WORDS, Form, made
from launch.cli.plugins import conclude
from launch.kubernetes.pods import CleanPods, Implementation, Pods, Toleration, memory_bytes

LONGEST = 2**31 - 1  # seconds, of a pod's activeDeadlineSeconds
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
DURATION = re.compile(r"([1-9]\d*)([smhd]?)")
TOLERATION = re.compile(r"([^=:\s]+)(?:=([^=:\s]*))?:(NoSchedule|PreferNoSchedule|NoExecute)")


def pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"expected NAME=VALUE, not {text!r}")
    return name, value


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
    """K:EFFECT for any value of a taint, K=V:EFFECT for one; in Kubernetes' fields."""
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
@click.option("--image", required=True, help="With meshrun in it; the Containerfile builds one.")
@click.option("--name", help="Of the job.  [default: meshrun- and some digits]")
@click.option("-N", "--namespace", help="Where.  [default: the one that kubectl is set to]")
@click.option("--queue", metavar="NAME", help="Kueue's local queue.")
@click.option(
    "--gpu-resource", default=Pods.gpu_resource, show_default=True, help="Of which each rank gets one."
)
@click.option("--no-gpus", is_flag=True, help="Ranks on CPUs.")
@click.option(
    "--rdma",
    type=Form("RESOURCE=N", counted),
    multiple=True,
    metavar="RESOURCE=N",
    help="Network adapters for each pod with ranks, and IPC_LOCK to pin memory for them.",
)
@click.option(
    "--shm",
    type=Form("SIZE", size),
    default=Pods.shm,
    show_default=True,
    metavar="SIZE",
    help="Of /dev/shm, in memory.",
)
@click.option(
    "--memory", type=Form("SIZE", size), metavar="SIZE", help="For each pod with ranks, with --shm in it."
)
@click.option("--cpu", metavar="N", help="For each pod with ranks.")
@click.option(
    "--volume",
    "volumes",
    type=Form("CLAIM:PATH", mounted),
    multiple=True,
    metavar="CLAIM:PATH",
    help="A persistent volume claim, and where ranks find it.",
)
@click.option(
    "--node-selector",
    type=Form("K=V", pair),
    multiple=True,
    metavar="K=V",
    help="A label that nodes must have.",
)
@click.option(
    "--toleration",
    "tolerations",
    type=Form("K[=V]:EFFECT", toleration),
    multiple=True,
    metavar="K[=V]:EFFECT",
    help="A taint that nodes may have.",
)
@click.option("--service-account", metavar="NAME", help="Of the pods.  [default: the namespace's]")
@click.option(
    "--time-limit", type=Form("TIME", seconds), metavar="TIME", help="For the whole job: 90s, 30m, 2h, 1d."
)
@click.option(
    "--start-timeout",
    type=Form("TIME", seconds),
    default=Pods.start_timeout,
    show_default=True,
    metavar="TIME",
    help="For pods to start, and for hosts to answer by ssh.",
)
@click.option(
    "--clean-pods",
    type=click.Choice(get_args(CleanPods)),
    default=Pods.clean_pods,
    show_default=True,
    help="Which workers are deleted at the end.",
)
@click.option(
    "--mpi",
    type=click.Choice(get_args(Implementation)),
    default=Pods.mpi,
    show_default=True,
    help="The image's.",
)
@click.option(
    "--python",
    default=Pods.python,
    show_default=True,
    metavar="PATH",
    help="The image's, with meshrun and mpiexec beside it.",
)
@click.option("--root", is_flag=True, help="The image's user is root.")
@NETWORK
@SETTING
@TIMEOUT
@PRINT
@DEBUG
@WORDS
def kubernetes(
    wanted: tuple[int | None, int] | None,
    name: str | None,
    gpu_resource: str,
    no_gpus: bool,
    rdma: Sequence[tuple[str, int]],
    volumes: Sequence[tuple[str, str]],
    node_selector: Sequence[tuple[str, str]],
    network: str | None,
    settings: Sequence[str],
    host_timeout: float,
    show: bool,
    debug: bool,
    words: tuple[str, ...],
    **more: Any,
) -> int:
    """Ranks in pods: an MPIJob (kubeflow.org/v2beta1), or a plain Job on one node.

    \b
    meshrun launch kubernetes -j 2x8 --image registry/meshrun:1 -- bench all_reduce -b 8 -e 8G -f 2
    meshrun launch kubernetes -j 8 --image registry/meshrun:1 --print -- selftest
    """
    from launch.kubernetes import job as target

    if more["memory"] and memory_bytes(more["memory"]) <= memory_bytes(more["shm"]):
        raise click.UsageError(
            f"--shm {more['shm']} leaves nothing of --memory {more['memory']}: /dev/shm counts as memory"
        )
    spec = made(
        words, wanted, [], settings=settings, files_here=False, network=network, host_timeout=host_timeout
    )
    pods = Pods(
        name=name or f"meshrun-{secrets.token_hex(3)}",
        gpu_resource=None if no_gpus else gpu_resource,
        rdma=dict(rdma),
        volumes=dict(volumes),
        node_selector=dict(node_selector),
        **more,
    )
    if show:
        click.echo(target.preview(spec, pods), nl=False)
        return 0
    return target.start(spec, pods, debug=debug, conclude=partial(conclude, spec.words))
