"""Rates of machines: those known, those kept, and their measurement with devices of known behaviour."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.forecast import calibrate as module
from meshrun.runner.forecast.calibrate import calibrate
from meshrun.runner.forecast.machine import GPUS, Machine, choose, known, load, nominal, nominal_cpu, save
from meshrun.runner.system import host_memory

HERE = nominal_cpu(4, 1 << 34)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA A10G", None),
    ],
)
def test_a_gpu_is_known_by_its_drivers_name(name: str, key: str | None) -> None:
    assert known(name) == key


@pytest.mark.parametrize("gpu", GPUS)
def test_nominal_rates_are_in_the_order_of_physics(gpu: str) -> None:
    machine = nominal(gpu)
    rates = {name: rate.value for name, rate in machine.rates.items()}
    one_way = max(rates["to device"], rates["from device"])
    assert rates["kernel"] > rates["both directions"] > one_way
    assert rates["both directions"] <= rates["to device"] + rates["from device"]
    assert not machine.measured


def test_a_measured_machine_is_taken_for_its_own_gpu_alone() -> None:
    measured = replace(nominal("h200"), name="NVIDIA H200", date="2025-01-31")
    odd = replace(measured, name="Somebody's GPU")
    cores = replace(HERE, date="2025-01-31")
    assert choose(None, measured, HERE) is measured
    assert choose("H200", measured, HERE) is measured
    assert choose("a100", measured, HERE) == nominal("a100")
    assert choose("cpu", measured, HERE) is HERE
    assert choose("cpu", cores, HERE) is cores
    assert choose("h200", cores, HERE) == nominal("h200")
    assert choose(None, None, HERE) == nominal("h200")
    assert choose("somebody's gpu", odd, HERE) is odd
    with pytest.raises(UserError, match="unknown GPU: got mi300, expected t4"):
        choose("mi300", measured, HERE)


def test_what_is_kept_is_what_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "new" / "rates.json"
    assert load(file) is None
    measured = replace(nominal("h200"), date="2025-01-31", host="n1")
    save(measured, file)
    loaded = load(file)
    assert loaded is not None
    assert replace(loaded, rates={}) == replace(measured, rates={})
    for name, rate in loaded.rates.items():
        assert (rate.value, rate.source) == (measured.rates[name].value, "measured 2025-01-31")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:40],
        lambda text: "[]",
        lambda text: text.replace('"schema": 1', '"schema": 2'),
        lambda text: text.replace('"read": 35000000000', '"read": 0'),
        lambda text: text.replace('"read": 35000000000', '"read": NaN'),
        lambda text: text.replace('"cores"', '"kernels"'),
    ],
)
def test_a_file_that_holds_no_rates_is_named(tmp_path: Path, spoil: Any) -> None:
    file = tmp_path / "rates.json"
    save(replace(nominal("h200"), date="2025-01-31"), file)
    whole = file.read_text()
    assert spoil(whole) != whole
    file.write_text(spoil(whole))
    with pytest.raises(UserError, match=r"rates\.json holds no measured rates.*--calibrate"):
        load(file)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a row instead of 64 MiB."""
    monkeypatch.setattr(module, "PIECE", module.ROW)


def measured(folder: Path, gpus: int, backend: type[CpuBackend] = CpuBackend) -> Machine:
    return calibrate(folder, gpus, lambda index: backend(), file=module.PIECE, copy=1 << 16)


@pytest.mark.usefixtures("small")
def test_a_host_without_gpus_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    found = measured(tmp_path, 0)
    assert set(found.rates) == {"read", "write", "read and write", "host memory", "kernel"}
    assert all(rate.source == f"measured {found.date}" for rate in found.rates.values())
    assert found.measured
    assert list(tmp_path.iterdir()) == []


class Slow(CpuBackend):
    """A GPU whose copies take their time, each direction beside the other, each GPU beside the others."""

    bus: Any = nullcontext()

    def upload(self, host: np.ndarray[Any, Any], device: Any) -> None:
        with self.bus:
            time.sleep(0.01)

    def download(self, device: Any, host: np.ndarray[Any, Any]) -> None:
        with self.bus:
            time.sleep(0.02)


class Shared(Slow):
    """The same behind one bus for all."""

    bus = threading.Lock()


@pytest.mark.timed
@pytest.mark.usefixtures("small")
def test_gpus_are_measured_alone_and_together(tmp_path: Path) -> None:
    for backend, gain in ((Slow, 2), (Shared, 1)):
        rates = {name: rate.value for name, rate in measured(tmp_path, 2, backend).rates.items()}
        assert rates["to device"] == pytest.approx(2 * rates["from device"], rel=0.3)
        assert rates["host to device"] == pytest.approx(gain * rates["to device"], rel=0.3)
        # One after the other here: twice the bytes in 3 times the time of the way to the device.
        assert rates["both directions"] == pytest.approx(2 / 3 * rates["to device"], rel=0.3)


def test_a_folder_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="folder does not exist"):
        measured(tmp_path / "none", 0)
    monkeypatch.setattr(module, "PIECE", 1 << 60)
    with pytest.raises(UserError, match=r"no room for a test file.*--at FOLDER"):
        module._room(tmp_path, 1 << 62)


def test_a_file_fits_the_memory_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 1 << 10)
    monkeypatch.setattr(host_memory, "_groups", lambda proc, cgroup: iter([(10 << 10, 1 << 10)]))
    assert module._room(tmp_path, 1 << 62) == 2 << 10  # whole pieces of a quarter of what is left


@pytest.mark.usefixtures("small")
def test_a_disk_that_fills_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "pwrite", full)
    with pytest.raises(RunError, match="No space left on device"):
        measured(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []
