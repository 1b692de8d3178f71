"""What a GPU is called, which NVML has to understand."""

from __future__ import annotations

import pytest

from runner.system.links import gpu_links


def test_the_names_of_gpus_are_those_that_nvml_knows() -> None:
    from runner.device.cuda import count, describe

    nvml = pytest.importorskip("pynvml")
    nvml.nvmlInit()
    for device in map(describe, range(count())):
        handle = nvml.nvmlDeviceGetHandleByUUID(device.uuid)
        assert nvml.nvmlDeviceGetName(handle) == device.name
        assert nvml.nvmlDeviceGetPciInfo(handle).busId.lower().endswith(device.bus_id.lower())
        assert gpu_links(device.uuid).pcie.rate
    nvml.nvmlShutdown()
