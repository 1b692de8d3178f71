"""What a GPU is called, which NVML has to understand; and its memory."""

from __future__ import annotations

import pytest

from meshrun.runner.system.links import gpu_links
from tests.facts.kept_rows import check_kept_row


def test_the_names_of_gpus_are_those_that_nvml_knows() -> None:
    from meshrun.runner.device.cuda import count, describe

    nvml = pytest.importorskip("pynvml")
    nvml.nvmlInit()
    for device in map(describe, range(count())):
        handle = nvml.nvmlDeviceGetHandleByUUID(device.uuid)
        assert nvml.nvmlDeviceGetName(handle) == device.name
        assert nvml.nvmlDeviceGetPciInfo(handle).busId.lower().endswith(device.bus_id.lower())
        assert gpu_links(device.uuid).pcie.rate
    nvml.nvmlShutdown()


def test_released_memory_is_that_of_fourier_plans_too() -> None:
    from meshrun.runner.device.cuda import CudaBackend

    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    backend, pool = CudaBackend(0), cupy.get_default_memory_pool()
    backend.release_memory()
    kept = pool.total_bytes()
    cupy.fft.fft(cupy.zeros((1 << 24) + 7, "complex64"))  # of a length for which cuFFT needs work areas
    backend.synchronize()
    pool.free_all_blocks()
    assert pool.total_bytes() > kept
    backend.release_memory()
    assert pool.total_bytes() == kept


def test_values_are_kept_as_they_were() -> None:
    from meshrun.runner.device.cuda import CudaBackend

    check_kept_row(CudaBackend(0))


def test_work_stays_on_the_stream_of_the_back_end_when_cupy_copies_cells_that_are_not_contiguous() -> None:
    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    from meshrun.runner.device.cuda import CudaBackend, on_own_stream

    theirs = cupy.cuda.get_current_stream()
    backend = CudaBackend(0)
    inside = cupy.zeros((4, 6))[1:-1, 1:-1]
    inside.get()
    assert cupy.cuda.get_current_stream() == backend.stream
    with backend.beside(backend.mark()):
        side = cupy.cuda.get_current_stream()
        inside.get()
        assert cupy.cuda.get_current_stream() == side != backend.stream
    assert cupy.cuda.get_current_stream() == backend.stream
    theirs.use()
    with on_own_stream(backend):
        inside.get()
        assert cupy.cuda.get_current_stream() == backend.stream
    assert cupy.cuda.get_current_stream() == theirs
