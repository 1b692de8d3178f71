"""Preload NVML, the CUDA driver, CuPy and NCCL in threads while Python imports modules and MPI initialises.

NVML and the driver attach to every GPU of the host, 0.1 to 0.3 s with two, and libnccl has hundreds of
megabytes. Later users find them loaded, or get the same error. A run that may never open NCCL does not load
it: Python's other threads wait while a library is loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import threading

from meshrun.runner.errors import MeshrunError, UserError
from meshrun.runner.system import nvml

# Libraries of NVIDIA's driver, and their functions that attach to GPUs; for the lifetime of the process.
DRIVER = {"libcuda.so.1": ("cuInit", 0), "libnvidia-ml.so.1": ("nvmlInit_v2",)}


def start_driver() -> list[threading.Thread]:
    """Start initialising the driver's libraries in threads that need not be joined.

    For a rank that may use a GPU, as early as it knows that it is one: the calls leave Python to others.
    """
    threads = [
        threading.Thread(target=_initialise, args=(library, *call), name=f"preload {library}", daemon=True)
        for library, call in DRIVER.items()
    ]
    for thread in threads:
        thread.start()
    return threads


def start(device: str, *, later: bool = False) -> threading.Thread | None:
    """Start preloading in a thread that need not be joined; None for device "cpu", which loads nothing.

    device: the choice of the option `device`. later: NCCL is loaded at its first use.
    """
    if device == "cpu":
        return None
    thread = threading.Thread(target=_load, args=(later,), name="preload", daemon=True)
    thread.start()
    return thread


def _initialise(library: str, function: str, *arguments: int) -> None:
    # A failure is left to whoever asks later.
    with contextlib.suppress(OSError, AttributeError):
        getattr(ctypes.CDLL(library), function)(*arguments)


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
