"""NVML, NVIDIA's management library, initialised once per process at its first use."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

from meshrun.runner.errors import UserError, first_line

_STARTING = threading.Lock()  # one thread initialises NVML while the others wait


def start() -> Any:
    """The module pynvml, initialised for the lifetime of the process.

    Never shut down: initialisation attaches to every GPU of the host, about 40 ms each. The next caller
    retries a failed one. Raises UserError if pynvml is not installed or NVML does not start.
    """
    with _STARTING:
        return _start()


@cache
def _start() -> Any:
    try:
        import pynvml
    except ImportError as reason:
        raise UserError(f"NVML: {first_line(reason)}", hint="pip install nvidia-ml-py") from reason
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as reason:
        raise UserError(f"NVML: {first_line(reason)}") from reason
    return pynvml


def handle(uuid: str) -> tuple[Any, Any]:
    """pynvml, initialised, and its handle of the GPU with this UUID ("GPU-...").

    Raises UserError if NVML does not start or has no such GPU.
    """
    nvml = start()
    try:
        return nvml, nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError as reason:
        raise UserError(f"NVML, {uuid}: {first_line(reason)}") from reason
