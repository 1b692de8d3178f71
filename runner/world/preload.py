"""Preload NVML, CuPy and NCCL in a thread while MPI initialises.

NVML attaches to every GPU of the host, about 40 ms each, and libnccl has hundreds of megabytes. Later users
find them loaded, or get the same error. A run that may never open NCCL does not load it: Python's other
threads wait while a library is loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import threading

from meshrun.runner.errors import MeshrunError, UserError
from meshrun.runner.system import nvml


def start(device: str, *, later: bool = False) -> threading.Thread | None:
    """Start preloading in a thread that need not be joined; None for device "cpu", which loads nothing.

    device: the choice of the option `device`. later: NCCL is loaded at its first use.
    """
    if device == "cpu":
        return None
    thread = threading.Thread(target=_load, args=(later,), name="preload", daemon=True)
    thread.start()
    return thread


def _load(later: bool) -> None:
    try:
        nvml.start()  # stays initialised until the process ends
    except UserError:
        return
    with contextlib.suppress(ImportError, MeshrunError, RuntimeError):
        if later:
            importlib.import_module("meshrun.runner.device.cuda")  # with CuPy
            return
        from meshrun.runner.comm import nccl

        nccl.load()
