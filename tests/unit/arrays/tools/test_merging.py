"""The kernel that merges sorted runs, on the host: blocks of several threads."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import host_halo
import numpy as np
import pytest
from nvrtc_log import log_of_text
from split_arrays import same, values

from meshrun.runner.arrays.tools import merging
from meshrun.runner.device.cpu import CpuBackend

THREADS, ITEMS = 4, 3
DTYPES = {"f4": "float", "f8": "double", "i2": "short", "u8": "unsigned long long", "b1": "unsigned char"}
LAUNCH = """
extern "C" void find_tiles_{name}(unsigned grid, const {key}* a, i64 n, const {key}* b, i64 m, i64 tile,
                                  i64* cuts) {{
    run_grid(grid, [=] {{ find_tiles<{key}>(a, n, b, m, tile, cuts); }});
}}
extern "C" void merge_tiles_{name}(unsigned grid, const {key}* a, i64 n, const {key}* b, i64 m,
                                   const i64* cuts, {key}* result) {{
    run_grid(grid, [=] {{ merge_tiles<{key}, {threads}, {items}>(a, n, b, m, cuts, result); }});
}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("merge")
    launches = "".join(
        LAUNCH.format(name=name, key=key, threads=THREADS, items=ITEMS) for name, key in DTYPES.items()
    )
    source = folder / "merge.cpp"
    source.write_text(f'#include "{host_halo.HEADER}"\n{merging.KERNEL.read_text()}{launches}')
    flags = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread", f"-DTHREADS={THREADS}"]
    flags.append(f"-I{host_halo.HEADERS}")
    subprocess.run(["g++", *flags, "-o", str(folder / "merge.so"), str(source)], check=True)
    return ctypes.CDLL(str(folder / "merge.so"))


def merged(library: ctypes.CDLL, patch: pytest.MonkeyPatch, keys: Any, lengths: list[int]) -> Any:
    """What `merge_runs` returns when the kernels run on the host."""

    def kernel(path: Path, name: str) -> Callable[..., None]:
        function = getattr(library, f"{name.partition('<')[0]}_{keys.dtype.str[1:]}")

        def launch(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
            assert block == (THREADS,)
            function(
                ctypes.c_uint(grid[0]),
                *(
                    ctypes.c_void_p(one.ctypes.data)
                    if isinstance(one, np.ndarray)
                    else ctypes.c_longlong(int(one))
                    for one in arguments
                ),
            )

        return launch

    patch.setattr(merging, "kernel", kernel)
    patch.setattr(merging, "THREADS", THREADS)
    patch.setattr(merging, "ITEMS", ITEMS)
    return merging.merge_runs(CpuBackend(), keys, lengths)


@pytest.mark.parametrize("kind", ["random", "few", "equal", "special"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_runs_are_merged_as_by_a_stable_sort(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, dtype: str, kind: str
) -> None:
    """Of any lengths and numbers; NaNs of both signs, zeros of both signs."""
    for lengths in (
        [],
        [5],
        [0, 3],
        [12, 12],
        [1, 30],
        [40, 7, 0, 9],
        [2, 3, 5, 7, 11],
        [0, 0, 25, 1, 1, 26],
    ):
        parts = [
            np.sort(values(dtype, length, seed, kind), kind="stable") for seed, length in enumerate(lengths)
        ]
        keys = np.concatenate([np.empty(0, dtype), *parts])
        wanted = np.sort(keys, kind="stable")
        same(merged(library, monkeypatch, keys, lengths), wanted)


def test_only_what_cuda_compares_is_merged() -> None:
    backend = CpuBackend()
    assert not merging.can_merge(backend, np.dtype("f4"))
    device = type("Device", (CpuBackend,), {"asynchronous": True})()
    taken = [
        name
        for name in ("f4", "f8", "?", "i1", ">f4", "f2", "c8", "u8")
        if merging.can_merge(device, np.dtype(name))
    ]
    assert taken == ["f4", "f8", "?", "i1", "u8"]


@pytest.mark.parametrize("architecture", ["80", "90"])
@pytest.mark.parametrize("key", ["unsigned char", "double"])
def test_the_kernels_compile(key: str, architecture: str) -> None:
    """For the smallest and the largest keys, whose tile fits a block's shared memory."""
    text = merging.KERNEL.read_text()
    for name in (f"find_tiles<{key}>", f"merge_tiles<{key}, {merging.THREADS}, {merging.ITEMS}>"):
        log = log_of_text(text, name, ("--fmad=false",), architecture)
        assert "error" not in log
        assert "warning" not in log
    assert merging.THREADS * merging.ITEMS * 8 <= 48 << 10
