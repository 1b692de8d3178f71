"""The jobs of random_faults.py, whose results NumPy can make too; each call is an event for an audit hook."""

from __future__ import annotations

import sys
import time
from typing import Any

import meshrun


@meshrun.map_blocks(halo=1, boundary="nearest", split_dependent=True)
def smooth(block: Any, *, out: Any) -> None:
    sys.audit("faults.block")
    time.sleep(0.02)
    out[...] = 2 * block[1:-1, 1:-1] - block[:-2, 1:-1] - block[1:-1, 2:]
