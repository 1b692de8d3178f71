"""The heartbeat process: started by the first rank of each host, exchanges heartbeats with rank 0's process.

It is a separate process because a rank's threads stop while an extension holds the GIL, possibly for longer
than the time-out. It uses TCP because a lost host may block MPI: every host connects to rank 0's process,
which answers. Standard input ends with the rank; standard output reports the port and the lost hosts.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from meshrun.runner.world.helper_process import rank_has_ended, read_setting, write_message
from meshrun.runner.world.watchdog.channel import Connection, Hub, connect

MAX_MISSED_BEATS = 3  # of this process itself; if it missed more, it was stopped
BEATS_PER_TIMEOUT = 5
POLL_INTERVAL = 0.1  # seconds; short, because a launcher waits for this process when its rank has ended
END_TIMEOUT = 5.0  # seconds for a rank to end the run, unless the setting has "last"


@dataclass
class SilenceTracker:
    """The time since the last message of every host that has sent one.

    seconds: time-out. checked: time of the last check. heard: time of each host's last message, by its first
    rank.
    """

    seconds: float
    checked: float
    heard: dict[int, float] = field(default_factory=dict)

    def hear(self, rank: int, now: float) -> None:
        self.heard[rank] = now

    def leave(self, rank: int) -> None:
        """Stop watching a host whose ranks have ended normally."""
        self.heard.pop(rank, None)

    def lost(self, now: float) -> list[int]:
        """The hosts that have exceeded the time-out, by their first ranks.

        Time in which this process did not run does not count: messages from then are still unread.
        """
        gap, self.checked = now - self.checked, now
        if gap > MAX_MISSED_BEATS * self.seconds / BEATS_PER_TIMEOUT:
            self.heard = {rank: min(then + gap, now) for rank, then in self.heard.items()}
        return sorted(rank for rank, then in self.heard.items() if now - then > self.seconds)


def lead(setting: dict[str, Any]) -> list[int]:
    """On rank 0: receive from all hosts and answer each; returns the lost hosts, or [] once the rank has
    ended."""
    hub = Hub(setting["token"])
    try:
        write_message({"port": hub.listen(setting["others"], setting.get("address", ""))})
    except OSError as failure:
        write_message({"error": f"rank 0 cannot listen: {failure.strerror or failure}"})
        return []
    silence = SilenceTracker(setting["seconds"], time.monotonic())
    while not rank_has_ended():
        for rank, message in hub.poll(POLL_INTERVAL):
            if "leaving" in message:
                silence.leave(rank)
            else:
                silence.hear(rank, time.monotonic())
                if rank in hub.connections:
                    hub.connections[rank].send({"beat": True})
        if lost := silence.lost(time.monotonic()):
            hub.broadcast({"lost": lost})
            return lost
    hub.broadcast({"leaving": True})
    return []


def follow(setting: dict[str, Any]) -> list[int]:
    """On another host: exchange heartbeats with rank 0; returns [0] if it is lost, [] once the rank has
    ended."""
    connection = connect(setting["candidates"], setting["port"], setting["token"], setting["rank"])
    if not isinstance(connection, Connection):
        write_message({"error": connection})
        return []
    connection.send({"beat": True})  # before the rank continues: a host that never sent one is not watched
    write_message({"connected": True})
    beat, sent = setting["seconds"] / BEATS_PER_TIMEOUT, time.monotonic()
    silence = SilenceTracker(setting["seconds"], sent, {0: sent})
    while not rank_has_ended() and silence.heard:
        if time.monotonic() - sent > beat:
            connection.send({"beat": True})
            sent = time.monotonic()
        messages = connection.receive(POLL_INTERVAL)
        if messages is None:  # rank 0's process has ended without a message
            time.sleep(POLL_INTERVAL)
        elif reports := [message["lost"] for message in messages if "lost" in message]:
            # Rank 0 should end the run, and this rank with it.
            select.select([sys.stdin], [], [], setting.get("last", END_TIMEOUT))
            return [] if rank_has_ended() else list(reports[0])
        elif any("leaving" in message for message in messages):
            silence.leave(0)
        elif messages:
            silence.hear(0, time.monotonic())
        if lost := silence.lost(time.monotonic()):
            return lost
    connection.send({"leaving": True})
    return []


def main() -> None:
    rank_process = os.getppid()
    setting = read_setting()
    lost = lead(setting) if "others" in setting else follow(setting)
    if not lost:
        return
    write_message({"lost": lost})
    select.select([sys.stdin], [], [], setting.get("last", END_TIMEOUT))
    if not rank_has_ended() and os.getppid() == rank_process:
        os.kill(rank_process, signal.SIGKILL)
