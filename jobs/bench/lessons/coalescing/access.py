"""Compute which pieces of memory a strided access touches: the hardware always moves whole pieces.

Element i of an access is element first + i * stride in memory. A piece is `size` consecutive elements: a
sector of 32 bytes on a GPU, a cache line of 64 bytes on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Access:
    """Read `count` elements of 4 bytes, `stride` apart from `first` on, and write them contiguously."""

    stride: int
    first: int
    count: int

    @property
    def useful(self) -> int:
        """Bytes of the elements read and written."""
        return 2 * 4 * self.count


def pieces(access: Access, size: int) -> int:
    """Count the different pieces that the reads touch."""
    if access.stride >= size:
        return access.count
    last = access.first + (access.count - 1) * access.stride
    return last // size - access.first // size + 1


def moved(access: Access, size: int) -> int:
    """Return the bytes that memory must move: each touched piece once, and the written bytes."""
    return 4 * size * pieces(access, size) + 4 * access.count


def pieces_of_load(access: Access, size: int, lanes: int = 32) -> int:
    """Count the pieces that one load of a warp touches; its first lane reads element `first`."""
    return len({(access.first + lane * access.stride) // size for lane in range(lanes)})


def ceiling(access: Access, size: int) -> float:
    """Return useful over moved bytes: the access's best rate as a fraction of a plain copy's."""
    return access.useful / moved(access, size)


def shifted(access: Access, turn: int, size: int) -> Access:
    """Shift the access, so that repetitions do not find their pieces in a cache.

    Strides below a piece touch every piece anyway, and are not shifted.
    """
    if access.stride <= size:
        return access
    return Access(access.stride, access.first + turn * size % access.stride, access.count)
