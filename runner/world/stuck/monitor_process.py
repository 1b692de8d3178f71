"""The monitor process: one on each host, says why a run has stopped making progress, and ends it.

It is a separate process because a rank may be stopped, or hold the GIL for ever. On one host it only reads
the recorders of the ranks. On several, each host's process tells rank 0's, over TCP, how far its ranks are,
and what they do when rank 0's process asks. Standard input ends with the rank that has started it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from meshrun.runner.errors import tell
from meshrun.runner.recorder.snapshot import RankSnapshot, from_json, to_json
from meshrun.runner.spelling import command_option
from meshrun.runner.world.helper_process import rank_has_ended, read_setting, write_message
from meshrun.runner.world.run_status import RunLines, run_at
from meshrun.runner.world.stuck import gpu_states, nccl_ras
from meshrun.runner.world.stuck.explain import explain, waiting_in
from meshrun.runner.world.stuck.monitor import HostMonitor
from meshrun.runner.world.watch import watcher
from meshrun.runner.world.watch.judge import RankPart
from meshrun.runner.world.watch.readings import HostReadings, RankCounts
from meshrun.runner.world.watch.watcher import Watcher
from meshrun.runner.world.watchdog.channel import Connection, Hub, connect
from meshrun.runner.world.watchdog.progress import StallTimer

POLL_INTERVAL = 0.5  # seconds between two looks at the recorders
RANK_POLL = 0.1  # seconds between two looks whether the rank has ended, for which a launcher may wait
ANSWER_TIMEOUT = 2.5  # seconds for other hosts to say what their ranks do
END_TIMEOUT = 1.5  # seconds for ranks to clean up after SIGTERM
REMOVE_TIMEOUT = 2.0  # seconds for killed ranks to be gone


class Lead:
    """Rank 0's host: decides that nothing progresses, and reports it."""

    def __init__(self, setting: dict[str, Any], monitor: HostMonitor, hub: Hub | None) -> None:
        self.setting, self.monitor, self.hub = setting, monitor, hub
        self.timer = StallTimer(setting["seconds"])
        self.counts: dict[str, Any] = {}
        self.position = object()
        self.reported: object = None  # the position that has been reported, and not ended
        parts = [RankPart(rank, host, gpu) for rank, (host, gpu) in enumerate(setting.get("watch", ()))]
        self.watcher = Watcher(parts) if parts else None

    def look(self) -> bool:
        """Look at all ranks; returns whether the run has been ended."""
        before, self.counts = self.counts, {**self.counts, "0": self.monitor.progress()}
        for rank, message in self.hub.poll(0) if self.hub else ():
            if "progress" in message:
                self.counts[str(rank)] = message["progress"]
            if "watch" in message and self.watcher:
                self.watch({int(one): RankCounts(**values) for one, values in message["watch"].items()})
        if self.watcher and self.monitor.readings and self.monitor.readings.is_due():
            self.watch(self.monitor.readings.read())
        if self.counts != before:
            self.position = object()
        if not self.timer.is_over(self.position, time.monotonic()) or self.position is self.reported:
            return False
        found, silent = self.collect()
        if not found:
            return False  # all ranks have ended normally
        address = self.setting.get("ras")
        told = [*gpu_states.sentences(found), *(nccl_ras.findings(address) if address else ())]
        if not report(self.setting, found, silent, told):
            self.reported = self.position
            return False
        if self.hub:
            self.hub.broadcast({"end": True})
        return True

    def watch(self, counts: dict[int, RankCounts]) -> None:
        """Judge the ranks' counts, and report what is found to be slow."""
        assert self.watcher is not None
        for finding in self.watcher.add(counts, time.monotonic()):
            watcher.report(finding)

    def collect(self) -> tuple[list[RankSnapshot], dict[int, str]]:
        """Return the snapshots of all ranks that can be read, and why others cannot."""
        waiting = set(self.hub.connections) if self.hub else set()
        if self.hub:
            self.hub.broadcast({"where": True})
        found = self.monitor.snapshots()
        silent = dict.fromkeys(self.monitor.ended, "it has ended normally")
        until = time.monotonic() + ANSWER_TIMEOUT
        while self.hub and waiting and (left := until - time.monotonic()) > 0:
            for rank, message in self.hub.poll(left):
                if "snapshot" in message:
                    with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
                        found.append(from_json(message["snapshot"]))
                if "ended" in message:
                    silent |= dict.fromkeys(message["ended"], "it has ended normally")
                    waiting.discard(rank)
        return sorted(found, key=lambda one: one.rank), silent


class Follow:
    """Another host: tells rank 0's process about its ranks, and ends them on order."""

    def __init__(self, monitor: HostMonitor, connection: Connection) -> None:
        self.monitor, self.connection = monitor, connection
        self.told: dict[int, int] = {}

    def look(self) -> bool:
        counts = self.monitor.progress()
        if counts != self.told:
            self.connection.send({"progress": counts})
            self.told = counts
        if self.monitor.readings and self.monitor.readings.is_due():
            for rank, counts_of in self.monitor.readings.read().items():
                self.connection.send({"watch": {rank: dataclasses.asdict(counts_of)}})
        messages = self.connection.receive(0.01)
        if messages is None:  # rank 0's host has ended; `heartbeat` reports it if it is lost
            return False
        if any("where" in message for message in messages):
            for one in self.monitor.snapshots():
                self.connection.send({"snapshot": to_json(one)})
            self.connection.send({"ended": sorted(self.monitor.ended)})
        return any("end" in message for message in messages)


def report(
    setting: dict[str, Any], found: Sequence[RankSnapshot], silent: dict[int, str], told: Sequence[str] = ()
) -> bool:
    """Say why nothing progresses; returns whether the run is to be ended.

    told: what the GPUs do, and what NCCL says, in lines.
    It is not if the user has chosen no time-out, and the culprits compute in a job's function: that may take
    any time. A run that ends claims its failure, and prints nothing if a rank has failed first.
    """
    explanation = explain(found, setting["size"], silent)
    first, *others = explanation.sentences
    known = {one.rank: one for one in found}
    lines = [f"  {line}" for line in (*others, *told)]
    if not setting["chosen"] and all(computes(known.get(rank)) for rank in explanation.culprits):
        tell(f"no progress for {setting['seconds']:g} s: {first}")
        for line in (
            *lines,
            f"  the run goes on; {command_option('stall_timeout', metavar='SECONDS')} would end it",
        ):
            tell(line)
        return False
    rank = explanation.culprits[0] if explanation.culprits else 0
    place = run_at(setting["run"]) if setting["run"] else RunLines(setting["run_id"], has_reader=False)
    sentence = f"stalled: {first}"
    claimed = True
    with contextlib.suppress(OSError):  # a full disk must not keep it secret
        claimed = place.claim_failure({"exit_code": 1, "sentence": sentence, "rank": rank})
    if claimed:
        lines.append(
            f"  no rank has entered an operation for {setting['seconds']:g} s "
            f"({command_option('stall_timeout')})"
        )
        for line in (sentence, *lines):
            tell(line)
        if isinstance(place, RunLines):
            place.remove_claim()
    return True


def computes(one: RankSnapshot | None) -> bool:
    """Whether a rank waits for no other: it is in a job's function, or does something else of its own."""
    return one is not None and one.state not in ("stopped", "dead") and waiting_in(one) is None


def end_ranks(monitor: HostMonitor) -> None:
    """Have this host's ranks clean up and end; kill those that do not."""
    for number, seconds in ((signal.SIGTERM, END_TIMEOUT), (signal.SIGKILL, REMOVE_TIMEOUT)):
        for pid in monitor.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        _until(seconds, lambda: not monitor.pids())


def _until(seconds: float, is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        time.sleep(0.05)


def watch(look: Callable[[], bool], monitor: HostMonitor) -> None:
    """Look until the rank has ended or the run has been ended, and leave nothing of killed ranks."""
    due = time.monotonic()
    while not rank_has_ended():
        if time.monotonic() >= due:
            if look():
                end_ranks(monitor)
                break
            due = time.monotonic() + POLL_INTERVAL
        if monitor.readings:
            monitor.readings.poll()
        # At random times, since ranks may be stopped and continued at regular ones.
        select.select([sys.stdin], [], [], RANK_POLL * random.uniform(0.5, 1.5))
    _until(REMOVE_TIMEOUT, lambda: not monitor.pids())
    if not monitor.pids():
        monitor.remove()


def main() -> None:
    setting = read_setting()
    gpus = {int(rank): uuid for rank, uuid in setting.get("gpus", {}).items()}
    sys.path += setting.get("path", ())  # of the rank, for pynvml: this process has begun without packages
    readings = HostReadings(setting["run_id"], gpus) if setting.get("watch") else None
    monitor = HostMonitor(setting["run_id"], gpus=gpus, readings=readings)
    if setting["rank"]:
        place = setting["candidates"], setting["port"], setting["token"], setting["rank"]
        connection = connect(*place)
        if not isinstance(connection, Connection):
            return write_message({"error": f"it cannot connect to rank 0: {connection}"})
        write_message({"connected": True})
        return watch(Follow(monitor, connection).look, monitor)
    hub = Hub(setting["token"]) if len(setting["hosts"]) > 1 else None
    try:
        write_message({"port": hub.listen(len(setting["hosts"]) - 1, setting["address"]) if hub else 0})
    except OSError as failure:
        return write_message({"error": f"rank 0 cannot listen: {failure.strerror or failure}"})
    watch(Lead(setting, monitor, hub).look, monitor)
