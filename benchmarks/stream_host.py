"""A streamed map on CPUs, from a `.npy` file to a `.npy` file: `meshrun run`, dask.array and NumPy by hand.

    pip install "dask[array]"
    python benchmarks/stream_host.py [--gib 4] [--chunk-mib 8] [--memory-mib 256] [--dir DIR] [--rounds 7]
                                     [--json FILE]

All call the same function on blocks of the same rows with their halo: the mean of each cell's four
neighbours less the cell, float32, five light passes. Two processes or threads each; in turn:

meshrun               `meshrun -n 2 run stream_host.py:edges IN OUT`
dask                  dask.array.map_overlap from a memory-mapped file, stored to another, two threads
loop                  one process: chunk after chunk from a memory-mapped file to another
loop, 2 processes     the same, half of the rows in each
one rank              what `meshrun run` does, in one process
one rank, no journal  the same without all that a later --resume needs: the journal, and its syncs
copy                  one process that copies the file, by read and write: no function, no halo

Before each, the input is in the page cache, what was written earlier is on the disk, and no output is
there. whole: from the command to its end; inside: without Python's start, imports and MPI's. Memory: the
most that is resident in any one process, file pages that it has mapped included.

Where a virtual machine gives free memory back to its host, new pages cost many times a copy, and at
random: `copy` then differs from round to round, and so does everything else.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import meshrun

COLUMNS = 16384
STEP = 8 << 20  # bytes of a file that are read or made at a time, so that this process stays small
RANKS = 2
# Of this Python, else the first on the path.
MESHRUN = shutil.which("meshrun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@meshrun.map_blocks(halo=1, boundary="reflect")
def edges(block: Any, *, out: Any, xp: Any) -> None:
    """The mean of the four neighbours less the cell itself: a quarter of the Laplacian."""
    xp.add(block[:-2, 1:-1], block[2:, 1:-1], out=out)
    xp.add(out, block[1:-1, :-2], out=out)
    xp.add(out, block[1:-1, 2:], out=out)
    xp.multiply(out, xp.float32(0.25), out=out)
    xp.subtract(out, block[1:-1, 1:-1], out=out)


def computed(block: Any) -> Any:
    out = np.empty((block.shape[0] - 2, block.shape[1] - 2), block.dtype)
    edges.function(block, out=out, xp=np)
    return out


# The peers, each in a process of its own: source, target, rows of a chunk, memory in bytes.


def dask_threads(source: Path, target: Path, rows: int, memory: int) -> None:
    import dask
    import dask.array

    made = create(source, target)
    array = dask.array.from_array(np.load(source, mmap_mode="r"), chunks=(rows, made.shape[1]))
    # dask's "reflect" is ours for one cell: the outermost cell once more.
    result = dask.array.map_overlap(
        computed, array, depth=1, boundary="reflect", trim=False, meta=np.empty((0, 0), array.dtype)
    )
    with dask.config.set(scheduler="threads", num_workers=RANKS):
        dask.array.store(result, made, lock=False)


def copy(source: Path, target: Path, rows: int, memory: int) -> None:
    with open(target, "wb", buffering=0) as file:
        for piece in pieces(source):
            file.write(piece)


def loop(source: Path, target: Path, rows: int, first: int = 0, last: int | None = None) -> None:
    given, made = np.load(source, mmap_mode="r"), np.load(target, mmap_mode="r+")
    height, width = given.shape
    last = height if last is None else last
    padded = np.empty((rows + 2, width + 2), given.dtype)
    for a in range(first, last, rows):
        b = min(a + rows, last)
        block = padded[: b - a + 2]
        low, high = max(a - 1, 0), min(b + 1, height)
        block[low - a + 1 : high - a + 1, 1:-1] = given[low:high]
        if a == 0:
            block[0] = block[1]
        if b == height:
            block[-1] = block[-2]
        block[:, 0], block[:, -1] = block[:, 1], block[:, -2]
        edges.function(block, out=made[a:b], xp=np)


def loop_in_one(source: Path, target: Path, rows: int, memory: int) -> None:
    create(source, target)
    loop(source, target, rows)


def loop_in_two(source: Path, target: Path, rows: int, memory: int) -> None:
    from multiprocessing import get_context

    height = create(source, target).shape[0]
    half = height // rows // 2 * rows
    parts = [(0, half), (half, height)]
    processes = [get_context("fork").Process(target=loop, args=(source, target, rows, *p)) for p in parts]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert all(process.exitcode == 0 for process in processes), "a process failed"


def one_rank(source: Path, target: Path, rows: int, memory: int) -> None:
    from meshrun.runner.options.stream_options import StreamOptions
    from meshrun.runner.run.execute import Options, run

    columns = np.load(source, mmap_mode="r").shape[1]
    stream = StreamOptions(chunk_bytes=chunk_bytes(rows, columns), host_memory=memory)
    run(edges, source, target, {}, Options(device="cpu", stream=stream))


def one_rank_unjournaled(source: Path, target: Path, rows: int, memory: int) -> None:
    """With the journal replaced by one that keeps nothing."""
    import runner.stream.run as streamed

    from meshrun.runner.storage.formats.flat import FlatSink

    class Journal(streamed.Journal):
        def begin(self, identity: Any) -> None: ...
        def log(self, writer: str, boot: str) -> Any: ...
        def remove(self) -> None: ...

    class Syncer:
        def __init__(self, log: Any, sync: Any) -> None: ...
        def done(self, number: int) -> None: ...
        def close(self) -> None: ...

    replaced: list[tuple[Any, str, Any]] = [
        (streamed, "Journal", Journal),
        (streamed, "Syncer", Syncer),
        (FlatSink, "sync", lambda sink: None),
    ]
    for holder, name, without in replaced:
        setattr(holder, name, without)
    one_rank(source, target, rows, memory)


PEERS: dict[str, Callable[[Path, Path, int, int], None]] = {
    "dask": dask_threads,
    "loop": loop_in_one,
    "loop, 2 processes": loop_in_two,
    "one rank": one_rank,
    "one rank, no journal": one_rank_unjournaled,
    "copy": copy,
}
IMPORTS = {  # that `inside` leaves out
    "dask": ["dask.array"],
    "one rank": ["meshrun.runner.run.execute", "meshrun.runner.maps.streamed.streaming"],
    "one rank, no journal": ["meshrun.runner.run.execute", "meshrun.runner.maps.streamed.streaming"],
}


def create(source: Path, target: Path) -> Any:
    given = np.load(source, mmap_mode="r")
    return np.lib.format.open_memmap(target, "w+", given.dtype, given.shape)


def alone(name: str, source: Path, target: Path, rows: int, memory: int) -> None:
    """A peer in this process; prints its seconds without Python's start and the imports."""
    for module in IMPORTS.get(name, []):
        importlib.import_module(module)
    begin = time.perf_counter()
    PEERS[name](source, target, rows, memory)
    print(json.dumps({"seconds": time.perf_counter() - begin}))


# The comparison.


def chunk_bytes(rows: int, columns: int) -> int:
    """Of so many rows with the halo, as --chunk-bytes counts."""
    return (rows + 2) * (columns + 2) * 4


def command(name: str, source: Path, target: Path, rows: int, columns: int, memory: int) -> list[str]:
    if name != "meshrun":
        words = [sys.executable, __file__, "--peer", name, source, target, rows, memory]
    else:
        words = [MESHRUN, "-n", RANKS, "run", f"{__file__}:edges"]
        words += [source, target, "--device", "cpu", "--json", target.with_suffix(".json")]
        words += ["--chunk-bytes", chunk_bytes(rows, columns), "--host-memory", memory]
    return [str(word) for word in words]


def measured(name: str, source: Path, target: Path, rows: int, columns: int, memory: int) -> dict[str, Any]:
    """One run of one of them: seconds in all, seconds after the imports, resident bytes."""
    target.unlink(missing_ok=True)
    os.sync()
    for _ in pieces(source):
        pass
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(
            command(name, source, target, rows, columns, memory), stdout=told, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)  # of it and of all those that it has waited for
        whole = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        told.seek(0)
        text = told.read().decode()
    if process.returncode:
        raise SystemExit(f"{name} failed:\n{text}")
    found = {"whole": whole, "cpu": usage.ru_utime + usage.ru_stime, "resident": usage.ru_maxrss << 10}
    if name == "meshrun":
        record = json.loads(target.with_suffix(".json").read_text())
        if record["stream"]["rows"] != rows:
            raise SystemExit("meshrun's chunks are smaller than the peers': more --memory-mib")
        limits = record["stream"]["limits"]
        stages = {stage: load["seconds"] for stage, load in limits["stages"].items()}
        found |= {"inside": record["seconds"], "streamed": limits["wall_seconds"], "stages": stages}
        return found
    return found | {"inside": json.loads(text.splitlines()[-1])["seconds"]}


def pieces(path: Path) -> Iterator[bytearray]:
    buffer = bytearray(STEP)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            yield buffer[:count] if count < len(buffer) else buffer


def checksum(path: Path) -> int:
    """Of the values; the headers say the same in different versions of the format."""
    value, header = 0, np.load(path, mmap_mode="r").offset
    for piece in pieces(path):
        value = zlib.crc32(memoryview(piece)[header:], value)
        header = 0
    return value


def fill(path: Path, shape: tuple[int, int]) -> None:
    generator, each = np.random.default_rng(0), STEP // 4 // shape[1]
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for first in range(0, shape[0], each):
            file.write(generator.random((min(each, shape[0] - first), shape[1]), np.float32).data)


def check(names: list[str], folder: Path) -> None:
    """All give the bits of the function itself, called once, on a small array."""
    source, target, (rows, columns) = folder / "small.npy", folder / "result.npy", (103, 37)
    fill(source, (rows, columns))
    expected = computed(np.pad(np.load(source), 1, mode="symmetric"))
    for name in names:
        measured(name, source, target, 8, columns, 1 << 24)
        if name == "copy":
            continue
        assert np.load(target).tobytes() == expected.tobytes(), f"{name} gives something else"


def compare(names: list[str], folder: Path, options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    source, target = folder / "in.npy", folder / "out.npy"
    height = int(options.gib * (1 << 30)) // (4 * COLUMNS)
    rows = (options.chunk_mib << 20) // (4 * COLUMNS)
    fill(source, (height, COLUMNS))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    results = set()
    for number in range(options.rounds + 1):
        first = number % len(names)  # none is always after the same one
        for name in names[first:] + names[:first]:
            one = measured(name, source, target, rows, COLUMNS, options.memory_mib << 20)
            if number:
                found[name].append(one)
            elif name != "copy":  # for warming up, and for the results
                results.add(checksum(target))
                assert len(results) == 1, f"{name} gives something else"
    return found


def main() -> None:
    if sys.argv[1:2] == ["--peer"]:
        name, source, target, rows, memory = sys.argv[2:]
        alone(name, Path(source), Path(target), int(rows), int(memory))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--chunk-mib", type=int, default=8, help="of a chunk's own rows")
    parser.add_argument("--memory-mib", type=int, default=256, help="meshrun's --host-memory")
    parser.add_argument("--dir", type=Path, help="for the files; default: a temporary folder")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = ["meshrun", *PEERS]
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        check(names, Path(folder))
        found = compare(names, Path(folder), options)
    report(options, found)


def report(options: argparse.Namespace, found: dict[str, list[dict[str, Any]]]) -> None:
    keys = ("whole", "inside", "cpu", "resident")
    medians, least = (
        {name: {key: of(row[key] for row in rows) for key in keys} for name, rows in found.items()}
        for of in (statistics.median, min)
    )
    print(f"{options.gib:g} GiB, chunks of {options.chunk_mib} MiB, {options.rounds} rounds: median (least)")
    print(f"{'':22}{'whole, s':>16}{'inside, s':>16}{'CPU, s':>16}{'MiB':>7}  whole over meshrun's")
    for name, one in medians.items():
        times = "".join(f"{f'{one[key]:.2f} ({least[name][key]:.2f})':>16}" for key in keys[:3])
        ratios = " ".join(f"{of[name]['whole'] / of['meshrun']['whole']:6.2f}" for of in (medians, least))
        print(f"{name:22}{times}{one['resident'] / 2**20:7.0f}  {ratios}")
    with_it, without = (found[name] for name in ("one rank", "one rank, no journal"))
    ratios = [one["inside"] / other["inside"] for one, other in zip(with_it, without, strict=True)]
    journal = statistics.median(ratios) - 1
    print(f"the journal: {journal:+.1%} of the run inside, median over the rounds")
    if options.json:
        from importlib.metadata import version

        from meshrun.runner.report.record import write_json

        record = {
            "benchmark": "stream_host",
            "command": " ".join(["python", *sys.argv]),
            "machine": machine(),
            "gib": options.gib,
            "chunk_mib": options.chunk_mib,
            "memory_mib": options.memory_mib,
            "directory": str(options.dir),
            "medians": medians,
            "least": least,
            "journal": journal,
            "rounds": found,
            "versions": {name: version(name) for name in ("meshrun", "mpi4py", "numpy", "dask")},
        }
        write_json(options.json, "benchmark", 1, record)


def machine() -> str:
    import platform

    from meshrun.runner.device.cpu import CpuBackend

    return f"{CpuBackend().device.name}, {os.cpu_count()} CPUs, {platform.platform()}"


if __name__ == "__main__":
    main()
