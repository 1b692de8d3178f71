"""Power, clock and temperatures of one GPU beside its work, read by a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from meshrun.runner.errors import UserError
from meshrun.runner.system.counters.gpu import load_readings
from meshrun.runner.system.nvml import handle

INTERVAL = 0.1  # seconds between two readings
# Seconds before the first: NVML's power is the mean of a second, and clocks rise when work begins.
SETTLING = 1.0
THREAD = "readings of a GPU"


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
            for name, value in load_readings(gpu, nvml).items():
                self._add(name, value)
            if over.wait(INTERVAL):
                return

    def _add(self, name: str, value: float) -> None:
        one = self.readings.setdefault(name, LoadQuantity(0, 0.0, value, value))
        one.count, one.total = one.count + 1, one.total + value
        one.least, one.most = min(one.least, value), max(one.most, value)
