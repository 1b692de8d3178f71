"""Call a function of whole arrays as it is."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrun.runner.job.block_context import BlockContext
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.signature import STEP


def call_whole(job: Job, arrays: Sequence[Any], parameters: dict[str, Any], step: int = 0) -> Any:
    """Return the function's results. arrays: of NumPy or CuPy. step: number of the step, from 0 on."""
    xp: Any = np
    if any(hasattr(array, "__cuda_array_interface__") for array in arrays):
        xp = importlib.import_module(type(arrays[0]).__module__.partition(".")[0])
    shape = tuple(arrays[0].shape)
    here = BlockContext(0, 1, "", (0,) * len(shape), shape, shape, None, xp, step)
    services = {"xp": xp, "here": here, STEP: step}
    return job.function(
        *arrays, **{name: services[name] for name in job.services}, **job.arguments(parameters)
    )
