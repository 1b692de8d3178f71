"""What takes a GPU rank long to load, begun beside MPI and CuPy, which take longer still.

NVML attaches to every GPU of the host, some 40 ms each, and a libnccl is hundreds of megabytes. Whoever
asks for either later finds it loaded, and its own errors if it could not be.
"""

from __future__ import annotations

import contextlib
import threading

from runner import nvml
from runner.errors import MeshrunError, UserError


def begin(device: str) -> threading.Thread | None:
    """Start loading for a rank that `--device` may give a GPU; the thread, which nobody has to wait for."""
    if device == "cpu":
        return None
    thread = threading.Thread(target=_load, name="early", daemon=True)
    thread.start()
    return thread


def _load() -> None:
    try:
        nvml.start()
    except UserError:
        return
    with contextlib.suppress(ImportError, MeshrunError, RuntimeError):
        from runner.comm import nccl

        nccl.load()
