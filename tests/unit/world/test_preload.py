"""What is loaded beside MPI's start: NVML and NCCL where there is a GPU, and no error of theirs is told."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import nvml
import pytest
from nvml import NVMLError

from meshrun.runner.errors import UserError
from meshrun.runner.world import preload


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The order in which things were asked to load, with stand-ins for both."""
    asked: list[str] = []
    pynvml: Any = ModuleType("pynvml")
    pynvml.NVMLError, pynvml.nvmlInit = NVMLError, lambda: asked.append("nvml")
    nccl: Any = ModuleType("meshrun.runner.comm.nccl")
    nccl.load = lambda: asked.append("nccl")
    nvml.load(monkeypatch, pynvml)
    monkeypatch.setitem(sys.modules, "meshrun.runner.comm.nccl", nccl)
    monkeypatch.setattr("meshrun.runner.comm.nccl", nccl, raising=False)
    return asked


def finish(device: str, *, later: bool = False) -> None:
    thread = preload.start(device, later=later)
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_both_are_loaded_for_a_rank_that_may_have_a_gpu(loaded: list[str], device: str) -> None:
    finish(device)
    assert loaded == ["nvml", "nccl"]


def test_a_run_that_may_never_open_nccl_does_not_load_it(
    loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preload.importlib, "import_module", loaded.append)
    finish("auto", later=True)
    assert loaded == ["nvml", "meshrun.runner.device.cuda"]


def test_nothing_is_loaded_for_the_cpu(loaded: list[str]) -> None:
    assert preload.start("cpu") is None
    assert loaded == []


def test_without_a_driver_nccl_is_left_alone(loaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlInit", refuse)
    finish("auto")
    assert loaded == []


def test_without_nvml_nccl_is_left_alone(loaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.load(monkeypatch, None)
    finish("auto")
    assert loaded == []


def test_a_failure_is_left_to_whoever_asks_later(
    loaded: list[str], monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def fail() -> None:
        raise UserError("no libnccl")

    monkeypatch.setattr(sys.modules["meshrun.runner.comm.nccl"], "load", fail)
    finish("auto")
    assert not recwarn.list  # pytest tells of exceptions that end a thread


def test_the_driver_is_initialised_by_calls_that_leave_python_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[tuple[Any, ...]] = []

    class Library:
        def __init__(self, name: str) -> None:
            if "nvidia" in name:
                raise OSError(f"{name}: cannot open shared object file")

        def cuInit(self, flags: int) -> int:
            called.append(("cuInit", flags))
            return 100  # CUDA_ERROR_NO_DEVICE

    monkeypatch.setattr(preload.ctypes, "CDLL", Library)
    for thread in preload.start_driver():
        thread.join(60)
    assert called == [("cuInit", 0)]


@pytest.mark.parametrize(
    ("words", "started"),
    [([], True), (["--device", "cuda"], True), (["--device", "cpu"], False), (["--device=cpu"], False)],
)
@pytest.mark.parametrize("rank", [None, "0"])
def test_a_rank_that_may_use_a_gpu_initialises_the_driver_before_its_job_is_loaded(
    monkeypatch: pytest.MonkeyPatch, words: list[str], started: bool, rank: str | None
) -> None:
    import click

    from meshrun.launch.cli import job_command

    calls: list[str] = []
    monkeypatch.setattr(preload, "start_driver", lambda: calls.append("driver"))
    monkeypatch.setattr(job_command, "job_command", lambda name: calls.append(name) or click.Command(name))
    for name in ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
        if rank is not None:
            monkeypatch.setenv(name, "2" if name.endswith("SIZE") else rank)
    jobs = job_command.Jobs("run")
    jobs.resolve_command(click.Context(jobs), ["laplacian", "a.npy", "b.npy", *words])
    assert calls == ["driver", "laplacian"] if started and rank else ["laplacian"]
