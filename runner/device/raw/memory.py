"""Kinds and addresses of raw memory, and properties of GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

# pinned: page-locked. huge: page-locked, in huge pages. combined: page-locked and write-combined, which the
# CPU writes fast and reads slowly. mapped: page-locked and accessible to kernels. managed: pages migrate to
# the device that accesses them.
Kind = Literal["device", "pageable", "pinned", "huge", "combined", "mapped", "managed"]
Stream = Any  # of one GPU
Mark = Any  # a point in a stream


@dataclass(frozen=True)
class GpuProperties:
    """One GPU. index: CUDA's in this process. processors: streaming multiprocessors. cache: bytes of L2.

    memory: bytes. bandwidth: peak memory bandwidth in bytes per second, read plus written, from clock and bus
    width; None if unknown. capability: of computing, such as 90; 0 if unknown.
    """

    index: int
    name: str
    uuid: str
    bus_id: str
    processors: int
    memory: int
    cache: int
    bandwidth: float | None
    capability: int = 0


@dataclass(frozen=True)
class Memory:
    """`nbytes` at `address`, valid in the process that allocated or attached it.

    gpu: index of the GPU that holds it; for host and managed memory, of the nearby GPU.
    """

    address: int
    nbytes: int
    kind: Kind
    gpu: int
    owner: Any = field(default=None, repr=False, compare=False)
