"""Where a program gets memory from while it runs: one protocol over the system's own calls and over pools."""

from __future__ import annotations

from typing import Any, Protocol

Handle = Any  # what stands for an allocation


class Pool(Protocol):
    """Memory of one device, given out and taken back. Not for several threads."""

    @property
    def label(self) -> str:
        """For tables."""

    def allocate(self, nbytes: int) -> Handle:
        """New memory, not initialised. Raises UserError where there is not enough."""

    def release(self, handle: Handle) -> None:
        """Take it back; what was queued before still finds it there."""

    def address(self, handle: Handle) -> int:
        """Where it begins."""

    def settle(self, handle: Handle | None = None) -> None:
        """Return when what was asked for is done: on a GPU, all queued work; on a host, pages in place."""

    def reserved(self) -> int:
        """Bytes taken from the device and not given back, in use or not."""

    def trim(self) -> None:
        """Give back to the device what is not in use."""

    def close(self) -> None:
        """Orderly end; everything has been released."""


def open_pools(most: int) -> list[Pool]:
    """Every way to allocate memory of the current GPU, on the current stream; close each at the end.

    most: bytes that CuPy's pool may hold.
    """
    from runner.device.raw.cuda_allocators import KEEP, AsyncPool, CupyPool, DriverPool

    return [DriverPool(), AsyncPool(), AsyncPool(KEEP), CupyPool(most)]
