"""Pinning a file's pages in the page cache, to copy from there, against reading them to pinned memory.

    python benchmarks/pin_pages.py --dir DIR [DIR ...] [--gib 4] [--rounds 3] [--json FILE]

GB/s of one file after another, medians; threads: as many as `meshrun run` would use.

read         the input by the threads to pinned memory, as `meshrun run` does
touch        the pages of a mapping of it, made known to the process by the threads (MADV_POPULATE_READ)
pin          those pages (cudaHostRegister, read-only); "not possible" where the kernel refuses
copy         from them to the GPU
new touch    the pages of a new file whose room is claimed (MADV_POPULATE_WRITE)
new pin      those
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from meshrun.runner.maps.streamed.dispatch import MOST_THREADS
from meshrun.runner.report.record import write_json

PIECE = 64 << 20
READ_ONLY = 8  # cudaHostRegisterReadOnly
PROT_READ, PROT_WRITE, MAP_SHARED = 1, 2, 1
POPULATE_READ, POPULATE_WRITE = 22, 23  # madvise
FAILED = ctypes.c_void_p(-1).value

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
runtime = cupy.cuda.runtime


@contextmanager
def mapping(descriptor: int, nbytes: int, protection: int) -> Iterator[int]:
    address = libc.mmap(None, nbytes, protection, MAP_SHARED, descriptor, 0)
    if address == FAILED:
        raise OSError(ctypes.get_errno(), "mmap")
    try:
        yield address
    finally:
        libc.munmap(address, nbytes)


def seconds(pool: ThreadPoolExecutor, do: Callable[[int], object], places: range) -> float:
    begin = time.perf_counter()
    list(pool.map(do, places))
    return time.perf_counter() - begin


def touched(address: int, advice: int) -> None:
    if libc.madvise(address, PIECE, advice):
        raise OSError(ctypes.get_errno(), "madvise")


def pinned_pages(pool: ThreadPoolExecutor, address: int, places: range, flags: int) -> float | None:
    """Seconds; None where it is not possible. They stay pinned, if it is."""

    def pin(place: int) -> None:
        cupy.cuda.Device(0).use()
        runtime.hostRegister(address + place, PIECE, flags)

    try:
        return seconds(pool, pin, places)
    except runtime.CUDARuntimeError:
        return None


def unpin(address: int, places: range) -> None:
    for place in places:
        runtime.hostUnregister(address + place)


def once(pool: ThreadPoolExecutor, path: Path, nbytes: int, room: list[Any]) -> dict[str, float | None]:
    places, found = range(0, nbytes, PIECE), {}
    device = cupy.cuda.alloc(PIECE)
    stream = cupy.cuda.Stream(non_blocking=True)
    with open(path, "rb", buffering=0) as file:

        def read(place: int) -> None:
            view = memoryview(room[place // PIECE % len(room)])
            while view:
                count = os.preadv(file.fileno(), [view], place)
                view, place = view[count:], place + count

        found["read"] = seconds(pool, read, places)
        with mapping(file.fileno(), nbytes, PROT_READ) as address:
            found["touch"] = seconds(pool, lambda place: touched(address + place, POPULATE_READ), places)
            found["pin"] = pinned_pages(pool, address, places, READ_ONLY)
            if found["pin"] is not None:
                begin = time.perf_counter()
                for place in places:
                    runtime.memcpyAsync(
                        device.ptr, address + place, PIECE, runtime.memcpyHostToDevice, stream.ptr
                    )
                stream.synchronize()
                found["copy"] = time.perf_counter() - begin
                unpin(address, places)
    new = path.with_suffix(".new")
    with open(new, "w+b") as file:
        os.posix_fallocate(file.fileno(), 0, nbytes)
        with mapping(file.fileno(), nbytes, PROT_READ | PROT_WRITE) as address:
            found["new touch"] = seconds(pool, lambda place: touched(address + place, POPULATE_WRITE), places)
            found["new pin"] = pinned_pages(pool, address, places, 0)
            if found["new pin"] is not None:
                unpin(address, places)
    new.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, nargs="+", default=[Path("/dev/shm")])
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    threads, nbytes = min(len(os.sched_getaffinity(0)), MOST_THREADS), options.gib << 30
    room = [np.frombuffer(cupy.cuda.alloc_pinned_memory(PIECE), np.uint8, PIECE) for _ in range(threads)]
    block = np.random.default_rng(0).integers(0, 255, PIECE, np.uint8)
    rows: dict[str, list[dict[str, float | None]]] = {str(folder): [] for folder in options.dir}
    with ThreadPoolExecutor(threads) as pool:
        for number in range(options.rounds + 1):
            for folder in options.dir:
                path = folder / "pin_pages.bin"
                with open(path, "wb") as file:
                    for _ in range(nbytes // PIECE):
                        file.write(block.data)
                taken = once(pool, path, nbytes, room)
                path.unlink()
                if number:  # the first is for warming up
                    rows[str(folder)].append(taken)
    for folder, found in rows.items():
        print(folder, f"{threads} threads, GB/s")
        for name in found[0]:
            values = [one[name] for one in found if one[name] is not None]
            middle = f"{nbytes / statistics.median(values) / 1e9:.1f}" if values else "not possible"
            print(f"  {name:10} {middle}")
    if options.json:
        record = {
            "benchmark": "pin_pages",
            "command": " ".join(sys.argv),
            "device": runtime.getDeviceProperties(0)["name"].decode(),
            "kernel": platform.release(),
            "cupy": cupy.__version__,
            "threads": threads,
            "bytes": nbytes,
            "seconds": rows,
        }
        write_json(options.json, "benchmark", 1, record)


if __name__ == "__main__":
    main()
