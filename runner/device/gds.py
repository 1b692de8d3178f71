"""Files whose bytes go to and from a GPU without passing through the host's memory: GPUDirect Storage.

By kvikio, where it is installed and cuFile finds that the driver can; its fallback, which copies through the
host, is not used: the runner's own pipeline does that.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import RunError, first_line
from runner.region import Array


@functools.cache
def why_not() -> str | None:
    """What keeps this process from GPUDirect Storage; None where nothing does."""
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
    """A file for GPUs to read, or to read and write; for any number of threads."""

    def __init__(self, path: Path, write: bool = False) -> None:
        import kvikio

        self._path = path
        self._file = kvikio.CuFile(path, "r+" if write else "r")

    def read(self, target: Array, offset: int) -> None:
        """Fill a flat uint8 device array; on return its bytes are there for kernels of any stream."""
        with self._told("read"):
            count = self._file.read(target, target.nbytes, offset)
        if count != target.nbytes:
            raise RunError(
                f"{self._path} became shorter while it was read",
                got=f"{offset + count:,} bytes",
                expected=f"{offset + target.nbytes:,}",
            )

    def write(self, source: Array, offset: int) -> None:
        """Write a flat uint8 device array, which nothing may be about to change."""
        with self._told("write"):
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
    def _told(self, verb: str) -> Iterator[None]:
        """kvikio's errors as a sentence."""
        try:
            yield
        except (OSError, RuntimeError) as reason:
            raise RunError(self._cannot(verb), got=first_line(reason)) from reason
