"""Kernels compiled for the host and launched there, so that tests of GPU code paths need no GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import host_kernels
import numpy as np
import pytest

import meshrun.jobs.kernels


@pytest.fixture(scope="session")
def libraries(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled kernels are kept; for the next run too, unless pytest keeps nothing."""
    cache = getattr(pytestconfig, "cache", None)
    return cache.mkdir("kernels") if cache else tmp_path_factory.mktemp("kernels")


@pytest.fixture
def kernels_on_host(monkeypatch: pytest.MonkeyPatch, libraries: Path) -> None:
    """`jobs.kernels.launch` runs the kernel on the host, on NumPy arrays."""
    if host_kernels.GXX is None:
        pytest.skip("needs g++")

    def load(file: str, instance: str, options: tuple[str, ...] = ()) -> Callable[..., None]:
        run = host_kernels.run(libraries, file, instance, options)
        synchronizes = "__syncthreads" in (host_kernels.KERNELS / file).read_text()

        def launch(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
            cells = [
                np.array(argument.ctypes.data if isinstance(argument, np.ndarray) else argument)
                for argument in arguments
            ]
            pointers = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
            run(grid[0], block[0], pointers, int(synchronizes))

        return launch

    monkeypatch.setattr(meshrun.jobs.kernels, "load", load)
    monkeypatch.setattr(meshrun.jobs.kernels, "address", lambda array: array.ctypes.data)
