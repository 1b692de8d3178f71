"""NVML as an object with its functions: what pynvml says of one GPU, and what of it fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from meshrun.runner.system import nvml

UUID = "GPU-00000000-1111-2222-3333-444444444444"


class NVMLError(Exception):
    pass


class InvalidArgument(NVMLError):
    pass


class NotSupported(NVMLError):
    pass


class Nvml:
    """One with these NVLinks (1 active, 0 down). failing: what a call raises, by a word for it."""

    NVMLError = NVMLError
    NVMLError_InvalidArgument = InvalidArgument
    NVMLError_NotSupported = NotSupported
    NVML_NVLINK_MAX_LINKS = 36
    NVML_FEATURE_ENABLED = 1

    def __init__(self, links: list[int], failing: dict[str, NVMLError] | None = None) -> None:
        self.links, self.failing, self.initialized = links, failing or {}, 0

    def _answer(self, name: str, value: Any = None) -> Any:
        assert self.initialized == (name != "init")
        if name in self.failing:
            raise self.failing[name]
        return value

    def nvmlInit(self) -> None:
        self._answer("init")
        self.initialized += 1

    def nvmlShutdown(self) -> None:
        self.initialized -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self._answer("handle")
        if uuid != UUID:
            raise NVMLError("Not Found")
        return "handle"

    def nvmlDeviceGetNvLinkState(self, device: str, link: int) -> int:
        self._answer("state")
        if link >= len(self.links):
            raise InvalidArgument("Invalid Argument")
        return self.links[link]


class AtWork(Nvml):
    """A GPU at work, of which some readings fail."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 2

    def nvmlDeviceGetFieldValues(self, device: str, fields: Any) -> Any:
        raise NotSupported

    def nvmlDeviceGetUtilizationRates(self, device: str) -> Any:
        return SimpleNamespace(gpu=self._answer("busy", 97), memory=3)

    def nvmlDeviceGetPowerUsage(self, device: str) -> int:
        return int(self._answer("power", 412_400))

    def nvmlDeviceGetClockInfo(self, device: str, kind: int) -> int:
        assert kind == self.NVML_CLOCK_SM
        return int(self._answer("clock", 1980))

    def nvmlDeviceGetTemperature(self, device: str, kind: int) -> int:
        return int(self._answer("temperature", 61))


def load(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    """Have `module` stand for pynvml, not started yet; None: it is not installed."""
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(nvml, "_start", cache(nvml._start.__wrapped__))


@contextmanager
def loaded(module: object) -> Iterator[None]:
    """`load`, for what happens inside."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        load(monkeypatch, module)
        yield
