"""Start the processes that serve a run's metrics: one on each host, for the ranks there.

Prometheus expects a target per machine: it labels samples by the target that they come from, sees which host
does not answer, and adds up over hosts itself. An endpoint of the whole run would need a connection to each
host, would be lost with its own, and would answer for hosts that do not.
"""

from __future__ import annotations

import atexit
import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING

from meshrun.runner.errors import UserError
from meshrun.runner.report.versions import installed_version
from meshrun.runner.spelling import command_option
from meshrun.runner.world import helper_process
from meshrun.runner.world.metrics.labels import scheduler_labels

if TYPE_CHECKING:
    from meshrun.runner.world.world import World

PROCESS = "meshrun.runner.world.metrics.endpoint_process"
END_TIMEOUT = 2.0  # seconds for answers that are being sent when the run ends


def start(world: World, address_and_port: tuple[str, int]) -> list[str]:
    """Serve the metrics of this run on each of its hosts. Collective.

    Parameters
    ----------
    world: of the run.
    address_and_port: as of `Started`.

    Returns
    -------
    Sentences that say where, on rank 0; else none.

    Raises
    ------
    UserError: on all ranks, if a host cannot serve them, such as on a port that is in use.
    """
    reason = place = ""
    if world.recorder is None:
        reason = "there is no flight recorder"
    elif world.here.local == 0:
        reason, place = _start(world, address_and_port)
    answers = world.control.allgather((reason, place))
    for rank, (why, _) in zip(world.ranks, answers, strict=True):
        if why:
            raise UserError(
                f"host {rank.host} cannot serve metrics on {_text(address_and_port)}",
                why=why,
                hint=f"{command_option('metrics', metavar='PORT')} with another port, or "
                f"{command_option('metrics', 0)} for any free one",
                everywhere=True,
            )
    address = address_and_port[0]
    places = [
        f"{address or rank.host}:{at}" for rank, (_, at) in zip(world.ranks, answers, strict=True) if at
    ]
    return [f"metrics: http://{at}/metrics" for at in places] if world.rank == 0 else []


def _text(address_and_port: tuple[str, int]) -> str:
    address, port = address_and_port
    return f"{address} port {port}" if address else f"port {port}"


def _start(world: World, address_and_port: tuple[str, int]) -> tuple[str, str]:
    """Start this host's process; returns why it cannot serve, else "", and its port."""
    here = [rank for rank in world.ranks if rank.host_id == world.here.host_id]
    setting = {
        "run_id": world.run_id,
        "size": world.size,
        "version": installed_version("meshrun") or "",
        "labels": {"run": world.run_id, "host": world.here.host, **scheduler_labels()},
        "ranks": [rank.number for rank in here],
        "gpus": {str(rank.number): rank.device.uuid for rank in here if rank.device.uuid},
        "address": address_and_port[0],
        "port": address_and_port[1],
        "path": [folder for folder in sys.path if folder],  # the process has begun without packages
    }
    process = helper_process.start(PROCESS, "metrics", setting)
    if isinstance(process, str):
        return process, ""
    answer = helper_process.first_message(process, "metrics")
    atexit.register(_end, process)  # after which `helper_process` kills it
    return answer.get("error", ""), str(answer.get("place", ""))


def _end(process: subprocess.Popen[str]) -> None:
    """Let the process finish the answers that it is sending."""
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_TIMEOUT)
