"""Memory allocators: one protocol for the driver's calls and for pools."""

from __future__ import annotations

from typing import Any, Protocol

Handle = Any  # identifies an allocation


class Pool(Protocol):
    """Allocates and frees memory of one device. Not thread-safe."""

    @property
    def label(self) -> str:
        """Name in tables."""

    def allocate(self, nbytes: int) -> Handle:
        """Allocate uninitialised memory. Raises UserError if there is not enough."""

    def release(self, handle: Handle) -> None:
        """Free an allocation; work queued before may still use it."""

    def address(self, handle: Handle) -> int:
        """Start address."""

    def settle(self, handle: Handle | None = None) -> None:
        """Return when allocations are complete: on a GPU, all queued work; on a host, all pages are
        mapped."""

    def reserved(self) -> int:
        """Bytes held from the device, in use or not."""

    def trim(self) -> None:
        """Return unused memory to the device."""

    def close(self) -> None:
        """Free the pool. Everything must have been released."""


def open_pools(most: int) -> list[Pool]:
    """One pool of each kind for the current GPU, on the current stream; close each when done.

    most: limit of CuPy's pool, in bytes.
    """
    from meshrun.runner.device.raw.cuda_allocators import KEEP, AsyncPool, CupyPool, DriverPool

    return [DriverPool(), AsyncPool(), AsyncPool(KEEP), CupyPool(most)]
