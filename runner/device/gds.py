"""GPUDirect Storage: transfer between files and GPU memory without host memory.

Used if kvikio is installed and cuFile reports that the driver supports it. kvikio's fallback through host
memory is not used: the runner's own pipeline does that.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshrun.runner.errors import RunError, first_line
from meshrun.runner.region import Array


@functools.cache
def why_not() -> str | None:
    """Why this process cannot use GPUDirect Storage; None if it can."""
    try:
        from kvikio import cufile_driver
    except ImportError as reason:
        return f"no kvikio: {first_line(reason)}"
    try:
        available = cufile_driver.get("is_gds_available")
    except RuntimeError as reason:
        return f"cuFile: {first_line(reason)}"
    return None if available else "cuFile: GPUDirect Storage is not available here"


class DirectFile:
    """A file that GPUs read, or read and write. Thread-safe."""

    def __init__(self, path: Path, write: bool = False) -> None:
        import kvikio

        self._path = path
        self._file = kvikio.CuFile(path, "r+" if write else "r")

    def read(self, target: Array, offset: int) -> None:
        """Fill a flat uint8 device array from `offset`. On return, kernels of any stream may use it."""
        with self._failures("read"):
            count = self._file.read(target, target.nbytes, offset)
        if count != target.nbytes:
            raise RunError(
                f"{self._path} became shorter while it was read",
                got=f"{offset + count:,} bytes",
                expected=f"{offset + target.nbytes:,}",
            )

    def write(self, source: Array, offset: int) -> None:
        """Write a flat uint8 device array at `offset`; no queued work may still change it."""
        with self._failures("write"):
            count = self._file.write(source, source.nbytes, offset)
        if count != source.nbytes:
            raise RunError(
                self._cannot("write"), got=f"{count:,} bytes written", expected=f"{source.nbytes:,}"
            )

    def close(self) -> None:
        self._file.close()

    def _cannot(self, verb: str) -> str:
        return f"cannot {verb} {self._path} by GPUDirect Storage"

    @contextmanager
    def _failures(self, verb: str) -> Iterator[None]:
        """Convert kvikio's errors to RunError."""
        try:
            yield
        except (OSError, RuntimeError) as reason:
            raise RunError(self._cannot(verb), why=first_line(reason)) from reason
