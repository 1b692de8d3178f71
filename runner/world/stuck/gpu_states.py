"""What the GPUs of a stuck run do: run a kernel that does not end, have nothing to do, or do not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from meshrun.runner.errors import UserError
from meshrun.runner.recorder.snapshot import RankSnapshot
from meshrun.runner.system.counters.gpu import load_readings
from meshrun.runner.system.nvml import handle
from meshrun.runner.world.watchdog.report import ranks_text

TIMEOUT = 1.0  # seconds for all of a host; NVML's calls may wait for a driver that waits for its GPU
FORMS = {"busy": "{} %", "power": "{} W", "SM clock": "SM clock {} MHz", "temperature": "{} C"}

# By name: "busy" (% of the last second or less in which a kernel ran), and those of `load_readings`; or why
# NVML does not tell.
GpuState = Mapping[str, float] | str


def read_states(uuids: Mapping[int, str]) -> dict[int, GpuState]:
    """Return the states of GPUs, by rank. uuids: by rank."""
    found: dict[int, GpuState] = {}

    def look(rank: int, uuid: str) -> None:
        found[rank] = read_state(uuid)

    threads = [threading.Thread(target=look, args=one, daemon=True) for one in uuids.items()]
    for thread in threads:
        thread.start()
    until = time.monotonic() + TIMEOUT
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0.0))
    late = f"NVML has not answered within {TIMEOUT:g} s"
    return {rank: found.get(rank, late) for rank in uuids}


def read_state(uuid: str) -> GpuState:
    """Return the state of a GPU."""
    try:
        nvml, gpu = handle(uuid)
    except UserError as reason:
        return str(reason)
    found = load_readings(gpu, nvml)
    with suppress(nvml.NVMLError):
        found["busy"] = float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
    return found or "NVML reports nothing"


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
        readings = readings_text([one.gpu for one in members if one.gpu is not None])
        lines.append(f"the {gpus} of {numbers} {verb} {doing}{f': {readings}' if readings else ''}")
    return lines


def _doing(state: GpuState) -> str:
    if isinstance(state, str):
        return f"in an unknown state: {state}"
    busy = state.get("busy")
    if busy is None:
        return "in an unknown state"
    return "idle" if busy < 1 else "busy" if busy >= 99 else "busy in part"


def readings_text(states: Sequence[GpuState]) -> str:
    """Return the readings of some GPUs: of several, the least and the most of each."""
    shown = []
    for name, form in FORMS.items():
        values = [round(state[name]) for state in states if not isinstance(state, str) and name in state]
        if values:
            least, most = min(values), max(values)
            shown.append(form.format(least if least == most else f"{least} to {most}"))
    return ", ".join(shown)
