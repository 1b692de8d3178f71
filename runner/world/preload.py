"""Preload NVML and NCCL in a thread while MPI and CuPy initialise, which takes longer.

NVML attaches to every GPU of the host, about 40 ms each, and libnccl has hundreds of megabytes. Later users
of either find it loaded, or get the same error.
"""

from __future__ import annotations

import contextlib
import threading

from meshrun.runner.errors import MeshrunError, UserError
from meshrun.runner.system import nvml


def start(device: str) -> threading.Thread | None:
    """Start preloading in a thread that need not be joined; None for device "cpu", which loads nothing.

    device: the choice of the option `device`.
    """
    if device == "cpu":
        return None
    thread = threading.Thread(target=_load, name="preload", daemon=True)
    thread.start()
    return thread


def _load() -> None:
    try:
        nvml.start()  # stays initialised until the process ends
    except UserError:
        return
    with contextlib.suppress(ImportError, MeshrunError, RuntimeError):
        from meshrun.runner.comm import nccl

        nccl.load()
