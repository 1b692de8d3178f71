"""Readings of a GPU beside its work, with NVML replaced by an object with its functions."""

from __future__ import annotations

import threading
from itertools import chain, repeat

import pytest
from nvml import UUID, NVMLError, loaded
from nvml_counters import Nvml

from meshrun.jobs.validate.probe import gpu_load
from meshrun.jobs.validate.probe.gpu_load import GpuLoad, LoadQuantity

DEADLINE = 60.0  # seconds


class Working(Nvml):
    """Its power and clock change with each reading, up to the last ones. enough: all of these were read."""

    def __init__(self, power: list[int], clock: list[int], **more: object) -> None:
        super().__init__(calls={("temperature", 0): 61}, fields={82: 77}, **more)  # type: ignore[arg-type]
        self.type = "uiVal"
        self.enough, self.count = threading.Event(), len(power)
        self.power, self.clock = (chain(values, repeat(values[-1])) for values in (power, clock))

    def nvmlDeviceGetPowerUsage(self, device: str) -> int:
        self.count -= 1
        if self.count < 0:
            self.enough.set()
        return next(self.power)

    def nvmlDeviceGetClockInfo(self, device: str, clock: int) -> int:
        return next(self.clock)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_load, "SETTLING", 0.0)
    monkeypatch.setattr(gpu_load, "INTERVAL", 0.001)


def test_means_and_extremes_of_all_blocks() -> None:
    load = GpuLoad(UUID)
    for power, clock in (([650_000, 700_000, 690_000], [1980, 1500, 1700]), ([710_000], [1600])):
        working = Working(power, clock)
        with loaded(working), load.reading():
            assert working.enough.wait(DEADLINE)
    assert set(load.readings) == {"power", "SM clock", "temperature", "memory temperature"}
    assert (load.readings["power"].least, load.readings["power"].most) == (650, 710)
    assert (load.readings["SM clock"].least, load.readings["SM clock"].most) == (1500, 1980)
    assert 650 < load.readings["power"].mean < 710
    hot = load.readings["temperature"]
    assert (hot.mean, hot.least, hot.most) == (61, 61, 61)
    assert load.readings["memory temperature"].most == 77


def test_a_mean() -> None:
    load = GpuLoad(UUID)
    for value in (3.0, 5.0, 10.0):
        load._add("power", value)
    assert load.readings == {"power": LoadQuantity(3, 18.0, 3.0, 10.0)}
    assert load.readings["power"].mean == 6.0


def test_what_nvml_does_not_report_is_absent() -> None:
    working = Working([1], [1])
    working.calls, working.fields = {}, {}
    load = GpuLoad(UUID)
    with loaded(working), load.reading():
        assert working.enough.wait(DEADLINE)
    assert set(load.readings) == {"power", "SM clock"}


@pytest.mark.parametrize("module", [None, Nvml(failing={"init": NVMLError("Driver Not Loaded")})])
def test_without_nvml(module: Nvml | None) -> None:
    load = GpuLoad(UUID)
    with loaded(module), load.reading():
        pass
    assert load.readings == {}


def test_a_cpu_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshrun.runner.system.nvml._start", lambda: pytest.fail("NVML was asked"))
    load = GpuLoad(None)
    with load.reading():
        pass
    assert load.readings == {}


def test_nothing_is_read_before_clocks_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_load, "SETTLING", DEADLINE)
    load = GpuLoad(UUID)
    with loaded(Working([1], [1])), load.reading():
        pass  # ends before
    assert load.readings == {}


def test_an_error_of_the_work_passes() -> None:
    load = GpuLoad(UUID)
    with loaded(Working([1], [1])), pytest.raises(ZeroDivisionError), load.reading():
        raise ZeroDivisionError
    assert not any(thread.name == gpu_load.THREAD for thread in threading.enumerate())
