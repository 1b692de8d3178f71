"""The process that listens for the other hosts: one for each host, beside the first rank there.

    python -I heartbeat_process.py < one line of JSON, and an open pipe

A process of its own because a rank's threads stand still while an extension keeps Python's lock, for longer
than a host may be silent. It talks over TCP, because MPI may be what a lost host has stopped: every host
to rank 0's, which answers. Standard input ends with the rank; standard output tells the port, and who is
lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

LATE = 3  # beats that this process may itself have slept through before others' silence counts from anew
BEATS = 5  # in the time that a host may be silent
TICK = 0.1  # seconds: a launcher waits for this process too, when the rank beside it has ended
LAST = 5.0  # seconds for a rank to end the run, unless the setting says "last"


@dataclass
class Silence:
    """How long every host that was ever heard has been silent.

    seconds: how long it may be. looked: when that was last asked. heard: when every host last was, by the
    first rank there.
    """

    seconds: float
    looked: float
    heard: dict[int, float] = field(default_factory=dict)

    def hear(self, rank: int, now: float) -> None:
        self.heard[rank] = now

    def leave(self, rank: int) -> None:
        """That host's ranks have ended in order."""
        self.heard.pop(rank, None)

    def lost(self, now: float) -> list[int]:
        """Who has been silent for too long, as the first rank there.

        Time that this process did not run does not count: the others' messages are still to be read.
        """
        gap, self.looked = now - self.looked, now
        if gap > LATE * self.seconds / BEATS:
            self.heard = {rank: min(then + gap, now) for rank, then in self.heard.items()}
        return sorted(rank for rank, then in self.heard.items() if now - then > self.seconds)


def lead(setting: dict[str, Any]) -> list[int]:
    """Rank 0's: hear all hosts, and answer each; who is lost, or nobody when the rank has ended."""
    from runner.watch_channel import Hub

    hub = Hub(setting["token"])
    try:
        tell({"port": hub.listen(setting["others"])})
    except OSError as failure:
        tell({"apart": f"rank 0 cannot listen: {failure.strerror or failure}"})
        return []
    silence = Silence(setting["seconds"], time.monotonic())
    while not ended():
        for rank, message in hub.poll(TICK):
            if "leaving" in message:
                silence.leave(rank)
            else:
                silence.hear(rank, time.monotonic())
                if rank in hub.lines:
                    hub.lines[rank].send({"beat": True})
        if lost := silence.lost(time.monotonic()):
            hub.say({"lost": lost})
            return lost
    hub.say({"leaving": True})
    return []


def follow(setting: dict[str, Any]) -> list[int]:
    """Another host's: be heard by rank 0's, and hear it; [0] when that is lost."""
    from runner.watch_channel import Line, connect

    line = connect(setting["candidates"], setting["port"], setting["token"], setting["rank"])
    if not isinstance(line, Line):
        tell({"apart": line})
        return []
    line.send({"beat": True})  # before the rank goes on: who has never been heard is not missed
    tell({"connected": True})
    beat, spoken = setting["seconds"] / BEATS, time.monotonic()
    silence = Silence(setting["seconds"], spoken, {0: spoken})
    while not ended() and silence.heard:
        if time.monotonic() - spoken > beat:
            line.send({"beat": True})
            spoken = time.monotonic()
        messages = line.receive(TICK)
        if messages is None:  # rank 0's is gone, and did not say so
            time.sleep(TICK)
        elif told := [message["lost"] for message in messages if "lost" in message]:
            # Rank 0 is to end the run, and this rank with it.
            select.select([sys.stdin], [], [], setting.get("last", LAST))
            return [] if ended() else list(told[0])
        elif any("leaving" in message for message in messages):
            silence.leave(0)
        elif messages:
            silence.hear(0, time.monotonic())
        if lost := silence.lost(time.monotonic()):
            return lost
    line.send({"leaving": True})
    return []


def ended() -> bool:
    """Whether the rank beside this process has ended, which closes the pipe that it holds."""
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable) and not os.read(0, 1)


def tell(message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the rank, with which this process ends
    rank_process = os.getppid()
    setting = json.loads(os.read(0, 1 << 16))
    lost = lead(setting) if "others" in setting else follow(setting)
    if not lost:
        return
    tell({"lost": lost})
    select.select([sys.stdin], [], [], setting.get("last", LAST))
    if not ended() and os.getppid() == rank_process:
        os.kill(rank_process, signal.SIGKILL)


if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    main()
