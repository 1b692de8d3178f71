"""kernels/halo.cu compiled for the host, and ranks as threads that store into each other's blocks."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.arrays.halo import boxes as halo_boxes
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.peer_memory import Unreachable
from meshrun.runner.device.api import HEADERS
from meshrun.runner.region import Array

HEADER = Path(__file__).with_suffix(".h")
LAUNCHES = """
extern "C" void launch_move_cells(unsigned grid, const i64* table) {
    run_grid(grid, [=] { move_cells(table); });
}
extern "C" void launch_exchange_halos(unsigned grid, const i64* table, State* state, u64* page,
                                      const i64* peers, const u64* pages, i64 neighbours, i64 rank, i64 size,
                                      i64 handshake, u64 patience, u64* failure) {
    run_grid(grid, [=] {
        exchange_halos(table, state, page, peers, pages, neighbours, rank, size, handshake, patience,
                       failure);
    });
}
"""


def compiled(folder: Path, changes: Sequence[tuple[str, str]] = (), threads: int = 1) -> Path:
    """A library of the kernels, with some lines changed; each must be there once. threads: of a block; with
    several, each rank needs a copy of the library."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    text = halo_boxes.KERNELS.read_text()
    for line, instead in changes:
        assert text.count(line) == 1, line
        text = text.replace(line, instead)
    source, library = folder / "halo.cpp", folder / f"halo{threads}.so"
    source.write_text(f'#include "{HEADER}"\n{text}{LAUNCHES}')
    flags = ["-std=c++20", "-O2", "-w", "-shared", "-fPIC", "-pthread"]
    flags += [f"-DTHREADS={threads}", f"-I{HEADERS}"]
    subprocess.run(["g++", *flags, "-o", str(library), str(source)], check=True)
    return library


class HostTables:
    """`runner.comm.peer_arrays.DeviceTables` for NumPy arrays."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def address(self, array: Array) -> int:
        address: int = array.ctypes.data
        return address

    def bytes_of(self, array: Array, first: int, count: int) -> Array:
        base = array
        while base.base is not None:
            base = base.base
        assert base.ctypes.data <= array.ctypes.data + first
        assert array.ctypes.data + first + count <= base.ctypes.data + base.nbytes
        memory = (ctypes.c_uint8 * count).from_address(array.ctypes.data + first)
        return np.frombuffer(memory, np.uint8)

    def upload(self, table: Any) -> Array:
        return table.copy()

    def kernel(self, path: Path, name: str) -> Callable[..., None]:
        function = self._library[f"launch_{name}"]

        def launch(grid: tuple[int], block: tuple[int], arguments: Sequence[Any]) -> None:
            values = [one.ctypes.data if isinstance(one, np.ndarray) else int(one) for one in arguments]
            function(ctypes.c_uint(grid[0]), *map(ctypes.c_uint64, values))

        return launch


class HostPeers:
    """`runner.comm.peer_arrays.PeerArrays` for threads. shut: of a rank that cannot open, why."""

    def __init__(self, control: Control, shut: dict[int, str] | None = None) -> None:
        self._control, self._shut = control, shut or {}
        self.closed = False

    def empty(self, shape: Any, dtype: Any) -> Array:
        return np.empty(shape, dtype)

    def open(self, arrays: Sequence[Array], peers: Collection[int]) -> dict[int, list[int]]:
        found = self._control.allgather([array.ctypes.data for array in arrays])
        if self._control.rank in self._shut:
            raise Unreachable(self._shut[self._control.rank])
        return {peer: found[peer] for peer in peers}

    def close(self) -> None:
        self.closed = True
        self._control.barrier()
