"""Kernels compiled for the host and launched there, so that tests of GPU code paths need no GPU."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jobs.kernels

GXX = shutil.which("g++")
SHIM = Path(__file__).with_name("host")
KERNELS = Path(jobs.kernels.__file__).parent


@functools.cache
def build(folder: Path, file: str, instance: str, options: tuple[str, ...]) -> ctypes.CDLL:
    number = len(list(folder.iterdir()))
    source, library = folder / f"{number}.cpp", folder / f"{number}.so"
    source.write_text(
        f'#include "cuda_fp16.h"\n#include "{KERNELS / file}"\n'
        'extern "C" void run(unsigned grid, unsigned block, void** arguments, int synchronizes) {\n'
        f"    launch({instance}, grid, block, arguments, synchronizes);\n}}\n"
    )
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-Wall", "-Wno-unknown-pragmas"]
    flags += ["-Wno-sign-compare", f"-I{SHIM}", f"-I{KERNELS}", *options]
    assert GXX is not None
    subprocess.run([GXX, *flags, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture
def kernels_on_host(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """`jobs.kernels.launch` runs the kernel on the host, on NumPy arrays."""
    if GXX is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.getbasetemp() / "kernels"
    folder.mkdir(exist_ok=True)

    def load(file: str, instance: str, options: tuple[str, ...] = ()) -> Callable[..., None]:
        run = build(folder, file, instance, options).run
        synchronizes = "__syncthreads" in (KERNELS / file).read_text()

        def launch(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
            cells = [
                np.array(argument.ctypes.data if isinstance(argument, np.ndarray) else argument)
                for argument in arguments
            ]
            pointers = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
            run(grid[0], block[0], pointers, int(synchronizes))

        return launch

    monkeypatch.setattr(jobs.kernels, "load", load)
    monkeypatch.setattr(jobs.kernels, "address", lambda array: array.ctypes.data)
