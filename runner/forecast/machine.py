"""Rates of a machine's resources in bytes per second: nominal for known GPUs, or measured on the machine."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from meshrun.runner.errors import UserError
from meshrun.runner.report.record import write_json
from meshrun.runner.spelling import command_option
from meshrun.runner.system.launcher import environment

SCHEMA = 1
NOMINAL = "nominal"
GB = 10**9

# name: memory in GB, its peak rate in GB/s, PCIe generation of 16 lanes. NVIDIA's data sheets, SXM where
# there is one and the name has no other form factor; A100: the one with 80 GB.
GPUS = {
    "t4": (16, 320, 3),
    "v100": (32, 900, 3),
    "a10": (24, 600, 4),
    "a30": (24, 933, 4),
    "a40": (48, 696, 4),
    "a100": (80, 2039, 4),
    "a100-40gb": (40, 1555, 4),
    "l4": (24, 300, 4),
    "l40s": (48, 864, 4),
    "h100": (80, 3350, 5),
    "h100-pcie": (80, 2000, 5),
    "h100-nvl": (94, 3900, 5),
    "h200": (141, 4800, 5),
    "b200": (180, 8000, 5),
    "rtx-4090": (24, 1008, 4),
    "rtx-5090": (32, 1792, 5),
}
# GB/s of pinned copies to one GPU, from it, and both at once (the sum). PCIe 4: an A100 (the README of
# nvbandwidth); 5: an H200; 3: half of 4, as its lanes are.
PCIE = {3: (13, 13, 18.5), 4: (26, 26, 37), 5: (54, 51, 95)}
# GB/s to all GPUs of a host, and from all: four H200s of one host, measured one direction after the other.
PCIE_HOST = {5: (183, 144)}
# GB/s that a host's memory moves, read plus written: two sockets of 6 DDR4-2666, 8 DDR4-3200, 8 DDR5-4800.
MEMORY = {3: 256, 4: 410, 5: 614}
# Files in the page cache, GB/s of one host with 64 cores, of which 4 ranks use 16 each: either way while the
# other goes on, and both together (benchmarks/stream_device.py).
READ, WRITE, BOTH_FILES = 35, 25, 50
CORE = 10  # GB/s, read plus written, of a copy by one core
GPUS_OF_HOST, CORES, HOST_MEMORY = 8, 64, 1 << 40
# Seconds to start ranks on one host: any number, and each. Two and four GPUs, benchmarks/preflight.py; CPUs:
# one and eight ranks, benchmarks/startup.py and benchmarks/preflight.py.
START_GPU, START_CPU = (0.15, 0.6), (0.1, 0.1)


@dataclass(frozen=True)
class Rate:
    """Bytes per second. source: "nominal", or "measured" and the date."""

    value: float
    source: str = NOMINAL


@dataclass(frozen=True)
class Machine:
    """One host of a run and its GPUs, which are identical.

    name: of the GPU, or of the processor. gpus: number on the host; 0 if ranks compute on its cores.
    threads: number that copied files when `rates` were measured. memory: bytes of the host; device_memory: of
    one GPU. start: seconds until ranks run: for any number of them, and more for each rank of a host.
    rates: of the host's files: "read", "write", "read and write" (both at once, the sum); "host memory"
    (read plus written). Of one GPU: "to device", "from device", "both directions" (the sum); the same names
    after "host " are for all its GPUs at once. "kernel": of one GPU's memory, or of the host's memory with
    one core, read plus written.
    """

    name: str
    gpus: int
    cores: int
    threads: int
    memory: int
    device_memory: int
    start: tuple[float, float]
    rates: Mapping[str, Rate]
    host: str = ""
    date: str = ""

    @property
    def measured(self) -> bool:
        return bool(self.date)


def nominal(gpu: str) -> Machine:
    """Return a host with 8 GPUs of that name, a key of `GPUS`."""
    memory, bandwidth, generation = GPUS[gpu]
    to_device, from_device, both = PCIE[generation]
    rates = {
        "read": READ,
        "write": WRITE,
        "read and write": BOTH_FILES,
        "host memory": MEMORY[generation],
        "to device": to_device,
        "from device": from_device,
        "both directions": both,
        "kernel": bandwidth,
    }
    if generation in PCIE_HOST:
        rates["host to device"], rates["host from device"] = PCIE_HOST[generation]
    return Machine(
        gpu.upper(), GPUS_OF_HOST, CORES, CORES, HOST_MEMORY, memory * GB, START_GPU,
        {name: Rate(rate * GB) for name, rate in rates.items()},
    )  # fmt: skip


def nominal_cpu(cores: int, memory: int) -> Machine:
    """Return a host without GPUs. memory: bytes."""
    rates = {
        "read": min(READ, CORE / 2 * cores),  # a copy reads and writes
        "write": min(WRITE, CORE / 2 * cores),
        "host memory": min(MEMORY[4], CORE * cores),
        "kernel": CORE,
    }
    found = {name: Rate(rate * GB) for name, rate in rates.items()}
    return Machine("cpu", 0, cores, cores, memory, 0, START_CPU, found)


def known(name: str) -> str | None:
    """Return the key of `GPUS` for a name such as "NVIDIA H100 80GB HBM3"; None if there is none.

    It is the longest key whose words are all in the name.
    """
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    fits = [key for key in GPUS if {*key.split("-")} <= words]
    return max(fits, key=len, default=None)


def choose(gpu: str | None, measured: Machine | None, here: Machine) -> Machine:
    """Choose a forecast's machine: the measured one if it has such GPUs or no GPU is named.

    gpu: a GPU's name, "cpu", or None. measured: a calibration's result. here: this host, without GPUs.
    """
    if gpu is None:
        return measured or nominal("h200")
    if gpu.lower() == "cpu":
        return measured if measured and not measured.gpus else here
    if measured and measured.gpus and gpu.lower() == measured.name.lower():
        return measured
    key = known(gpu)
    if key is None:
        raise UserError("unknown GPU", got=gpu, expected=f"{', '.join(GPUS)}, or cpu")
    return measured if measured and measured.gpus and known(measured.name) == key else nominal(key)


def rates_file() -> Path:
    """Return the file of this user's measured rates, in the XDG configuration directory."""
    base = environment().get("XDG_CONFIG_HOME", "")  # its specification: ignored unless absolute
    folder = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~"), ".config")
    return folder / "meshrun" / "rates.json"


def save(machine: Machine, path: Path) -> None:
    """Write measured rates; creates the folder if necessary."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise UserError(f"cannot make the folder {path.parent}", why=reason.strerror) from reason
    rates = {name: rate.value for name, rate in machine.rates.items()}
    write_json(path, "rates", SCHEMA, {**asdict(replace(machine, rates={})), "rates": rates})


def load(path: Path) -> Machine | None:
    """Read what `save` wrote; None if there is no file. Raises UserError for any other content."""
    try:
        kept: dict[str, Any] = json.loads(path.read_text())
        if kept.pop("schema") != SCHEMA:
            raise ValueError("of another version of meshrun")
        for name in ("kind", "version"):  # absent from files of meshrun 0.1.0
            kept.pop(name, None)
        source = f"measured {kept['date']}"
        rates = {str(name): _rate(value, source) for name, value in kept.pop("rates").items()}
        return Machine(**{**kept, "start": tuple(kept["start"]), "rates": rates})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as reason:
        detail = f"no {reason}" if isinstance(reason, KeyError) else reason
        raise UserError(
            f"{path} holds no measured rates", got=detail, hint=f"meshrun plan {command_option('calibrate')}"
        ) from reason


def _rate(value: Any, source: str) -> Rate:
    rate = Rate(float(value), source)
    if not 0 < rate.value < float("inf"):
        raise ValueError(f"a rate of {value}")
    return rate
