"""Build the parts of a record that all ranks contribute to: places, phases, versions."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from meshrun.runner.report.phases import Phases
from meshrun.runner.report.versions import installed_version
from meshrun.runner.world.world import World


def places(world: World) -> list[dict[str, Any]]:
    """Return an entry per rank: its number, host and device."""
    return [
        {
            "rank": rank.number,
            "host": rank.host,
            "local_rank": rank.local,
            "kind": rank.device.kind,
            "index": rank.device.index,
            "name": rank.device.name,
            "uuid": rank.device.uuid,
        }
        for rank in world.ranks
    ]


def checksum_record(world: World, choice: str) -> dict[str, Any] | None:
    """Return what all ranks have checked of what crossed them; None without `checksum`. Collective."""
    if world.checksums is None:
        return None
    counts = world.control.allgather((world.checksums.messages, world.checksums.nbytes))
    messages, nbytes = map(sum, zip(*counts, strict=True))
    return {"mode": choice, "messages": messages, "bytes": nbytes}


def phase_table(world: World, phases: Phases, limits: dict[str, tuple[float, str]]) -> dict[str, Any]:
    """Return each phase over all ranks. Collective.

    limits: per phase, the most bytes per second that this rank could move, and the source of that figure.
    In the table, the rate is bytes read plus written per rank, divided by the slowest rank's seconds.
    """
    mine = {name: (phase.seconds, phase.moved) for name, phase in phases.phases.items()}
    everyone = world.control.allgather((mine, limits))
    names = list(dict.fromkeys(name for those, _ in everyone for name in those))
    table = {}
    for name in names:
        entries = [
            (*those[name], limit.get(name), rank)
            for rank, (those, limit) in enumerate(everyone)
            if name in those
        ]
        slowest = max(entries, key=lambda entry: entry[0])
        fastest = min(entries, key=lambda entry: entry[0])
        seconds, moved, limit, _ = slowest
        rate = moved / seconds if moved and seconds else None
        table[name] = {
            "seconds": seconds,
            "seconds_fastest": fastest[0],
            "slowest_rank": slowest[3],
            "fastest_rank": fastest[3],
            "bytes": sum(entry[1] for entry in entries),
            "bytes_per_second": rate,
            "limit_bytes_per_second": limit[0] if limit else None,
            "limit_source": limit[1] if limit else None,
            "fraction_of_limit": rate / limit[0] if rate and limit else None,
        }
    return table


def versions(world: World) -> dict[str, str]:
    """Return the versions of the software that the run's figures depend on."""
    found = {"python": sys.version.split()[0], "numpy": np.__version__, "transport": world.arrays.label}
    for package in ("meshrun", "mpi4py"):
        if known := installed_version(package):
            found[package] = known
    if "mpi4py.MPI" in sys.modules:
        library = sys.modules["mpi4py.MPI"].Get_library_version()
        found["mpi"] = library.replace("\0", "").splitlines()[0].strip()
    if world.backend.device.kind == "cuda":
        found["cupy"] = world.xp.__version__
        found["cuda_runtime"] = str(world.xp.cuda.runtime.runtimeGetVersion())
        found["cuda_driver"] = str(world.xp.cuda.runtime.driverGetVersion())
    return found
