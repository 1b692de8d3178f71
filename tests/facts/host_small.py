"""comm/small/kernels/small.cu compiled for the host, with ranks as threads."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_halo import HEADER, HostPeers, HostTables

from meshrun.runner.comm.api import Control
from meshrun.runner.comm.small.collectives import KERNELS, OPERATIONS, TYPES, UNITS, SmallCollectives
from meshrun.runner.device.api import HEADERS
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.device.kernel_text import with_headers

SLOTS = Path(__file__).with_suffix(".h")
REDUCE = 'extern "C" void {0} (unsigned grid, const Members* members, {1}* array, i64 count) {{\n'
REDUCE += "    run_grid(grid, [=] {{ {2}(*members, array, count); }});\n}}\n"
EXCHANGE = (
    'extern "C" void {0} (unsigned grid, const Members* members, {1}* source, {1}* target, i64 count) {{\n'
)
EXCHANGE += "    run_grid(grid, [=] {{ {2}(*members, source, target, count); }});\n}}\n"


def symbol(name: str) -> str:
    return "launch_" + re.sub(r"\W+", "_", name)


def all_instances(sizes: Sequence[int]) -> list[str]:
    """The names of all kernels for so many ranks."""
    kinds = [*itertools.product(TYPES.values(), OPERATIONS.values())]
    reductions = [f"all_reduce<{kind}, {operation}, {size}>" for size in sizes for kind, operation in kinds]
    return reductions + [f"all_to_all<{unit}, {size}>" for size in sizes for unit in UNITS.values()]


def compiled(
    folder: Path, names: Sequence[str], changes: Sequence[tuple[str, str]] = (), threads: int = 1
) -> Path:
    """A library of the kernels of these names, with some lines changed; each must be there once.

    threads: of a block; with several, each rank needs a copy of the library.
    """
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    text = with_headers(KERNELS)
    for line, instead in changes:
        assert text.count(line) == 1, line
        text = text.replace(line, instead)
    for name in names:
        kind = name[name.index("<") + 1 : name.index(",")]
        text += (REDUCE if name.startswith("all_reduce") else EXCHANGE).format(symbol(name), kind, name)
    source, library = folder / "small.cpp", folder / f"small{threads}.so"
    source.write_text(f'#include "{HEADER}"\n#include "{SLOTS}"\n{text}')
    flags = [
        "-std=c++20",
        "-O0",
        "-w",
        "-shared",
        "-fPIC",
        "-pthread",
        f"-DTHREADS={threads}",
        f"-I{HEADERS}",
    ]
    subprocess.run(["g++", *flags, "-o", str(library), str(source)], check=True)
    return library


class Tables(HostTables):
    def kernel(self, path: Path, name: str) -> Callable[..., None]:
        return super().kernel(path, symbol(name).removeprefix("launch_"))


class Peers(HostPeers):
    def empty(self, shape: Any, dtype: Any) -> Any:
        return np.full(shape, 0xA5, dtype)


def opened(
    control: Control, library: Path, patience: float = 30, shut: dict[int, str] | None = None
) -> SmallCollectives:
    """The collectives of a rank that is a thread."""
    return SmallCollectives(control, CpuBackend(), Tables(library), Peers(control, shut), patience)
