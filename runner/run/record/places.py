"""The parts of a record that tell where a run took place: its ranks, and the versions of its software."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

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
