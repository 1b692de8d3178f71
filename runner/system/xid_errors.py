"""Errors of a GPU that NVIDIA's driver reports (Xid), of any process that uses it."""

from __future__ import annotations

from functools import cache
from typing import Any


def xid_errors(nvml: Any, uuid: str) -> list[int] | None:
    """The Xid numbers since the first call for this GPU, in their order; None if NVML does not report them.

    nvml: pynvml, initialised, which knows the GPU.
    """
    events = _events(nvml, uuid)
    if events is None:
        return None
    queue, found = events
    while True:
        try:
            event = nvml.nvmlEventSetWait_v2(queue, 0)
        except nvml.NVMLError:  # a time-out: no more
            return found
        found.append(int(event.eventData))


@cache
def _events(nvml: Any, uuid: str) -> tuple[Any, list[int]] | None:
    """A queue of this GPU's errors, for the lifetime of the process, and the numbers read from it so far."""
    try:
        queue = nvml.nvmlEventSetCreate()
        gpu = nvml.nvmlDeviceGetHandleByUUID(uuid)
        nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, queue)
    except nvml.NVMLError:
        return None
    return queue, []
