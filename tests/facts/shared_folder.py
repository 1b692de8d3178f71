"""A folder that all ranks of a test see."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from meshrun.runner.world.world import World


def shared_folder(world: World, prefix: str) -> Iterator[Path]:
    """Yield the folder; rank 0 removes it when all ranks have left it. Collective."""
    made = Path(world.on_root(lambda: tempfile.mkdtemp(prefix=prefix)))
    yield made
    world.control.barrier()
    if world.rank == 0:
        shutil.rmtree(made)
