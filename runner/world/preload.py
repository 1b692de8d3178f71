"""Preload NVML and NCCL in a thread while MPI and CuPy initialise, which takes longer.

NVML attaches to every GPU of the host, about 40 ms each, and libnccl has hundreds of megabytes. Code that
needs either later finds it loaded, or gets the error with which it could not be loaded.
"""

from __future__ import annotations

import contextlib
import threading

from runner.errors import MeshrunError, UserError
from runner.system import nvml


def start(device: str) -> threading.Thread | None:
    """Start preloading on a rank that may use a GPU; the thread, which need not be joined.

    device: the choice of `--device`. Returns None for "cpu", which loads nothing.
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
        from runner.comm import nccl

        nccl.load()
