"""Power, clock and temperatures of one GPU beside its work, read by a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from runner.errors import UserError
from runner.system.nvml import handle

INTERVAL = 0.1  # seconds between two readings
# Seconds before the first: NVML's power is the mean of a second, and clocks rise when work begins.
SETTLING = 1.0
THREAD = "readings of a GPU"
# W, MHz, degrees C.
READINGS: dict[str, Callable[[Any, Any], float]] = {
    "power": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "SM clock": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "temperature": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    "memory temperature": lambda nvml, gpu: _field(nvml, gpu, nvml.NVML_FI_DEV_MEMORY_TEMP),
}


@dataclass
class LoadQuantity:
    """What was read of one quantity."""

    count: int
    total: float
    least: float
    most: float

    @property
    def mean(self) -> float:
        return self.total / self.count


class GpuLoad:
    """Readings of one GPU, {quantity: LoadQuantity}; those that NVML does not report are absent.

    uuid: None for a CPU, of which there are no readings.
    """

    def __init__(self, uuid: str | None) -> None:
        self.uuid = uuid
        self.readings: dict[str, LoadQuantity] = {}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read beside the work of the block, from SETTLING after its beginning on."""
        over = threading.Event()
        reader = threading.Thread(target=self._read_until, args=(over,), name=THREAD, daemon=True)
        if self.uuid is not None:
            reader.start()
        try:
            yield
        finally:
            over.set()
            if self.uuid is not None:
                reader.join()

    def _read_until(self, over: threading.Event) -> None:
        assert self.uuid is not None
        try:
            nvml, gpu = handle(self.uuid)
        except UserError:
            return
        if over.wait(SETTLING):
            return
        while True:
            for name, call in READINGS.items():
                with suppress(nvml.NVMLError):
                    self._add(name, float(call(nvml, gpu)))
            if over.wait(INTERVAL):
                return

    def _add(self, name: str, value: float) -> None:
        one = self.readings.setdefault(name, LoadQuantity(0, 0.0, value, value))
        one.count, one.total = one.count + 1, one.total + value
        one.least, one.most = min(one.least, value), max(one.most, value)


def _field(nvml: Any, gpu: Any, field: int) -> float:
    (found,) = nvml.nvmlDeviceGetFieldValues(gpu, [field])
    if found.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(found.nvmlReturn)
    return float(found.value.uiVal)
