"""The same work in meshrun and its peers, side by side: nox -s peers, or python benchmarks/peers/run.py

Heat in a plate from one .npy file to another, on two ranks of one machine; with --device cuda on two GPUs, or
on one. The peers take turns, and each result is compared with NumPy's. For each: the lines that a user
writes, seconds from the start of the command to its end, the largest memory of its processes together (PSS),
and what happens when the process with the most memory is killed: how the command ends, after how long, and
what it leaves (--kill-steps 0: nothing is killed). A peer that does not run here is left out, with what it
says. Prints a table, and writes --json FILE.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import importlib.util
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent / "programs"
BIN = Path(sys.executable).parent
MOST_BY_NUMPY = 1 << 32  # cells times steps
CORNER = 64  # rows and columns that NumPy computes of more; all are compared with the first peer's
PATIENCE = 60.0  # seconds for a command to end once a process of it was killed


@dataclass(frozen=True)
class Peer:
    """One way of doing the work. words: the command, with {in}, {out} and {steps}. needs: its package."""

    name: str
    needs: str
    program: str
    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


def program(name: str) -> str:
    return str(HERE / name)


MESHRUN = str(BIN / "meshrun") if (BIN / "meshrun").exists() else "meshrun"
OVERSUBSCRIBED = ("--oversubscribe", *(("--allow-run-as-root",) if os.geteuid() == 0 else ()))
FILES = ("{in}", "{out}", "{steps}")
CPUS = (
    Peer("meshrun", "meshrun", "heat_meshrun.py",
         (MESHRUN, "-n", "2", "run", program("heat_meshrun.py"), "{in}", "{out}",
          "--steps", "{steps}", "--device", "cpu")),
    Peer("mpi4py by hand", "mpi4py", "heat_mpi4py.py",
         (str(BIN / "mpiexec"), "-n", "2", *OVERSUBSCRIBED, sys.executable, program("heat_mpi4py.py"),
          *FILES),
         {"OMPI_MCA_btl": "^ofi"}),  # as meshrun sets it: else this wheel sleeps 1 s at start
    Peer("Dask array", "dask", "heat_dask.py", (sys.executable, program("heat_dask.py"), *FILES)),
    Peer("JAX, two devices of one process", "jax", "heat_jax.py",
         (sys.executable, program("heat_jax.py"), *FILES),
         {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}),
)  # fmt: skip
GPUS = (
    *(Peer(f"meshrun, {count} GPU{'s' if count > 1 else ''}", "meshrun", "heat_meshrun.py",
           (MESHRUN, "-n", str(count), "run", program("heat_meshrun.py"), "{in}", "{out}",
            "--steps", "{steps}", "--device", "cuda"))
      for count in (2, 1)),
    Peer("JAX, all GPUs of one process", "jax", "heat_jax.py",
         (sys.executable, program("heat_jax.py"), *FILES)),
    Peer("torch.compile, 1 GPU", "torch", "heat_torch.py",
         (sys.executable, program("heat_torch.py"), *FILES)),
    Peer("numba-cuda, 1 GPU", "numba", "heat_numba.py",
         (sys.executable, program("heat_numba.py"), *FILES)),
    Peer("CuPy, 1 GPU", "cupy", "heat_cupy.py", (sys.executable, program("heat_cupy.py"), *FILES)),
)  # fmt: skip


@dataclass
class Measured:
    """What was found of one peer; seconds and bytes are medians of `rounds`."""

    name: str
    version: str
    lines: int
    seconds: float
    every_second: list[float]
    bytes: int
    largest_difference: float
    killed: dict[str, Any]


def lines_of(path: Path) -> int:
    """Lines of a program that a user writes: without blank lines, comments and docstrings."""
    tree = ast.parse(path.read_text())
    kinds = (ast.Module, ast.FunctionDef, ast.ClassDef)
    texts = [one.body[0] for one in ast.walk(tree) if isinstance(one, kinds) and ast.get_docstring(one)]
    inside = {n for one in texts for n in range(one.lineno, (one.end_lineno or one.lineno) + 1)}
    lines = enumerate(path.read_text().splitlines(), 1)
    return sum(bool(line.strip()) and line.strip()[0] != "#" and n not in inside for n, line in lines)


def version_of(module: str) -> str:
    """The version of the package that has a module, which may have another name."""
    names = importlib.metadata.packages_distributions().get(module, [module])
    return importlib.metadata.version(names[0])


def reference(plate: np.ndarray[Any, Any], steps: int) -> np.ndarray[Any, Any]:
    """The same steps by NumPy in float64."""
    now = plate.astype(float)
    for _ in range(steps):
        wide = np.pad(now, 1, mode="edge")
        sides = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]
        now = now + 0.2 * (sides - 4 * now)
    return now


def tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    parents = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    found = [root]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def memory(process: int) -> int:
    """Proportional set size in bytes: pages that several processes share count once in all; 0 if it ended."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


def folder_of(peer: Peer) -> str:
    return "".join(letter for letter in peer.name if letter.isalnum())


def start(peer: Peer, source: Path, target: Path, steps: int, log: Path) -> subprocess.Popen[bytes]:
    values = {"in": str(source), "out": str(target), "steps": str(steps)}
    words = [word.format(**values) for word in peer.words]
    environment = {**os.environ, **peer.variables}
    with log.open("wb") as output:
        return subprocess.Popen(
            words, env=environment, stdout=output, stderr=output, cwd=target.parent, start_new_session=True
        )


class DoesNotRun(Exception):
    """A peer's command fails on this machine."""


def timed(peer: Peer, source: Path, target: Path, steps: int, log: Path) -> tuple[float, int]:
    """Seconds and largest memory of one run, which has to succeed."""
    begin, most = time.perf_counter(), 0
    running = start(peer, source, target, steps, log)
    while running.poll() is None:
        most = max(most, sum(map(memory, tree(running.pid))))
        time.sleep(0.05)
    seconds = time.perf_counter() - begin
    if running.returncode:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise DoesNotRun(f"{peer.name} ended with {running.returncode}: {''.join(last)}")
    return seconds, most


def killed(peer: Peer, source: Path, target: Path, steps: int, after: float, log: Path) -> dict[str, Any]:
    """Kill the process with the most memory `after` seconds from the start; how and when the command ends."""
    running = start(peer, source, target, steps, log)
    time.sleep(after)
    if running.poll() is not None:
        return {"outcome": "ended before it was killed; use more --kill-steps"}
    everyone = tree(running.pid)
    victim = max(everyone[1:] or everyone, key=memory)  # a worker, unless there is only one process
    os.kill(victim, signal.SIGKILL)
    begin = time.perf_counter()
    try:
        status: int | None = running.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        status = None
        for one in tree(running.pid):
            os.kill(one, signal.SIGKILL)
        running.wait()
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if "rank" in line.lower() or "worker" in line.lower()]
    return {
        "outcome": "went on for a minute" if status is None else f"exit status {status}",
        "seconds": round(time.perf_counter() - begin, 2),
        "output_exists": target.exists(),
        "bytes_left": {
            one.name: one.stat().st_size for one in target.parent.iterdir() if one.is_file() and one != log
        },
        "says": (named or lines or [""])[0][:300],
    }


def measure(
    peers: list[Peer], rows: int, steps: int, rounds: int, kill_steps: int, failed: list[str]
) -> list[Measured]:
    """Measure all that run; take the others out of `peers`, and put their sentences in `failed`."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        source = folder / "in.npy"
        plate = np.random.default_rng(5).random((rows, rows), np.float32)
        np.save(source, plate)
        # Of more cells and steps, NumPy computes a corner, with the cells on which it depends.
        seen = rows if rows * rows * steps <= MOST_BY_NUMPY else min(rows, CORNER)
        expected = reference(plate[: seen + steps, : seen + steps], steps)[:seen, :seen]
        first: np.ndarray[Any, Any] | None = None
        times: dict[str, list[float]] = {peer.name: [] for peer in peers}
        sizes: dict[str, list[int]] = {peer.name: [] for peer in peers}
        differences = {}
        for _ in range(rounds):
            for peer in list(peers):
                own = folder / folder_of(peer) / "run"
                own.mkdir(parents=True, exist_ok=True)
                target = own / "out.npy"
                target.unlink(missing_ok=True)
                try:
                    seconds, size = timed(peer, source, target, steps, own / "log")
                except DoesNotRun as reason:
                    peers.remove(peer)
                    failed.append(str(reason))
                    continue
                times[peer.name].append(seconds)
                sizes[peer.name].append(size)
                result = np.load(target)
                first = result if first is None else first
                differences[peer.name] = float(
                    max(abs(result[:seen, :seen] - expected).max(), abs(result - first).max())
                )
                if differences[peer.name] > 1e-4:
                    sys.exit(f"{peer.name} computes something else: {differences[peer.name]}")
        found = []
        for peer in peers:
            own = folder / folder_of(peer) / "killed"
            own.mkdir()
            after = statistics.median(times[peer.name]) + 1
            outcome: dict[str, Any] = {"outcome": "not killed"}
            if kill_steps:
                outcome = killed(peer, source, own / "out.npy", kill_steps, after, own / "log")
            found.append(
                Measured(
                    peer.name,
                    version_of(peer.needs),
                    lines_of(HERE / peer.program),
                    round(statistics.median(times[peer.name]), 3),
                    [round(one, 3) for one in times[peer.name]],
                    int(statistics.median(sizes[peer.name])),
                    differences[peer.name],
                    outcome,
                )
            )
    return found


def told(killed: dict[str, Any]) -> str:
    if "seconds" not in killed:
        return str(killed["outcome"])
    says = killed["says"].replace("|", "/")[:120]
    return f"{killed['outcome']} after {killed['seconds']} s; says: {says}; leaves {killed['bytes_left']}"


def table(found: list[Measured]) -> str:
    heads = ("", "version", "lines", "seconds", "MB", "when a process is killed")
    rows = [
        (one.name, one.version, one.lines, f"{one.seconds:.2f}", f"{one.bytes / 1e6:.0f}",
         told(one.killed))
        for one in found
    ]  # fmt: skip
    cells = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in cells)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=8192, help="rows and columns of the plate, float32")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kill-steps", type=int, default=100_000, help="steps of the run that is killed")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    asked = CPUS if options.device == "cpu" else GPUS
    peers = [peer for peer in asked if importlib.util.find_spec(peer.needs) is not None]
    absent = [peer.name for peer in asked if peer not in peers]
    load = os.getloadavg()[0]
    failed: list[str] = []
    found = measure(peers, options.rows, options.steps, options.rounds, options.kill_steps, failed)
    print(table(found))
    print(*failed, sep="\n")
    print(f"\nnot installed: {', '.join(absent) or 'none'}; load before the start: {load:.2f}")
    if options.json:
        record = {
            "benchmark": "peers",
            "device": options.device,
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "load_before": load,
            "shape": [options.rows, options.rows],
            "steps": options.steps,
            "rounds": options.rounds,
            "not_installed": absent,
            "failed": failed,
            "peers": [asdict(one) for one in found],
        }
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
