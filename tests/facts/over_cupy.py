"""Modules that import CuPy, for tests with a CuPy that is made up."""

from __future__ import annotations

import sys

NAMES = (
    "meshrun.runner.comm.peer_arrays",
    "meshrun.runner.device.cuda",
    "meshrun.runner.device.cuda_graphs",
    "meshrun.runner.device.copy_streams",
    "meshrun.runner.device.nvrtc",
    "meshrun.runner.device.raw.cuda_memory",
)


def forget() -> None:
    """Have whoever needs them import them again: those that are loaded have the CuPy of their test."""
    for name in NAMES:
        if sys.modules.pop(name, None) is not None:
            package, _, module = name.rpartition(".")
            delattr(sys.modules[package], module)
