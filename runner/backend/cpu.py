"""NumPy on the host."""

from __future__ import annotations

import platform
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from runner.backend import Device
from runner.comm import Array
from runner.partition import Shape


class CpuBackend:
    """The host's memory and NumPy; everything is done when a call returns."""

    xp = np
    asynchronous = False
    stream = None

    def __init__(self) -> None:
        self.device = Device(kind="cpu", name=_processor())

    def empty(self, shape: Shape, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        return np.empty(shape, dtype)

    host_empty = empty

    def upload(self, host: np.ndarray[Any, Any], device: Array) -> None:
        if host is not device:
            device[...] = host

    def download(self, device: Array) -> np.ndarray[Any, Any]:
        return np.asarray(device)

    def mark(self) -> None:
        return None

    def beside(self, mark: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def synchronize(self) -> None:
        pass

    def copy_rate(self) -> float:
        source = np.ones(1 << 22)  # 32 MiB: beyond most caches' share of one rank, and 5 ms long
        target = np.empty_like(source)
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            np.copyto(target, source)
            times.append(time.perf_counter() - begin)
        return 2 * source.nbytes / min(times)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()
