"""What the GPUs of a stuck run do: run a kernel that does not end, have nothing to do, or do not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from runner.errors import UserError
from runner.recorder.snapshot import RankSnapshot
from runner.system.gpu_counters import load_readings
from runner.system.nvml import handle
from runner.world.watchdog.report import ranks_text

TIMEOUT = 1.0  # seconds for all of a host; NVML's calls may wait for a driver that waits for its GPU
FORMS = {"busy": "{} %", "power": "{} W", "SM clock": "SM clock {} MHz", "temperature": "{} C"}

# By name: "busy" (% of the last second or less in which a kernel ran), and those of `load_readings`; empty if
# NVML reports nothing.
GpuState = Mapping[str, float]


def read_states(uuids: Mapping[int, str]) -> dict[int, GpuState]:
    """Return the states of GPUs, by rank. uuids: by rank. Those that do not answer in time are empty."""
    found: dict[int, GpuState] = {}

    def look(rank: int, uuid: str) -> None:
        found[rank] = read_state(uuid)

    threads = [threading.Thread(target=look, args=one, daemon=True) for one in uuids.items()]
    for thread in threads:
        thread.start()
    until = time.monotonic() + TIMEOUT
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0.0))
    return {rank: found.get(rank, {}) for rank in uuids}


def read_state(uuid: str) -> GpuState:
    """Return the state of a GPU."""
    try:
        nvml, gpu = handle(uuid)
    except UserError:
        return {}
    found = load_readings(gpu, nvml)
    with suppress(nvml.NVMLError):
        found["busy"] = float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
    return found


def sentences(ranks: Sequence[RankSnapshot]) -> list[str]:
    """Say what the ranks' GPUs do, a line for those that do the same; nothing of CPUs."""
    groups: dict[str, list[RankSnapshot]] = {}
    for one in ranks:
        if one.gpu is not None:
            groups.setdefault(_doing(one.gpu), []).append(one)
    lines = []
    for doing, members in groups.items():
        numbers = ranks_text(sorted(one.rank for one in members))
        gpus, verb = ("GPU", "is") if len(members) == 1 else ("GPUs", "are")
        lines.append(f"the {gpus} of {numbers} {verb} {doing}{_readings(members)}")
    return lines


def _doing(state: GpuState) -> str:
    if not state:
        return "not answering NVML"
    busy = state.get("busy")
    if busy is None:
        return "in an unknown state"
    return "idle" if busy < 1 else "busy" if busy >= 99 else "busy in part"


def _readings(ranks: Sequence[RankSnapshot]) -> str:
    shown = []
    for name, form in FORMS.items():
        values = [round(one.gpu[name]) for one in ranks if one.gpu and name in one.gpu]
        if values:
            least, most = min(values), max(values)
            shown.append(form.format(least if least == most else f"{least} to {most}"))
    return f": {', '.join(shown)}" if shown else ""
