"""Which pieces of memory a strided access touches: hardware moves whole ones, however little is wanted.

Element i of an access is number first + i * stride in memory; a grain is so many neighbouring elements.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Access:
    """count elements of 4 bytes, read `stride` apart from `first` on, written next to each other."""

    stride: int
    first: int
    count: int

    @property
    def useful(self) -> int:
        """Bytes read and written that were asked for."""
        return 2 * 4 * self.count


def grains(access: Access, size: int) -> int:
    """How many different grains of `size` elements the reads touch."""
    if access.stride >= size:
        return access.count
    last = access.first + (access.count - 1) * access.stride
    return last // size - access.first // size + 1


def moved(access: Access, size: int) -> int:
    """Bytes that must move: each touched grain once, and what is written."""
    return 4 * size * grains(access, size) + 4 * access.count


def asked(access: Access, size: int, lanes: int = 32) -> int:
    """How many grains one load of a warp asks for; its first lane reads element `first`."""
    return len({(access.first + lane * access.stride) // size for lane in range(lanes)})


def ceiling(access: Access, size: int) -> float:
    """Useful bytes of what must move, as a fraction: the best that an access can do beside a plain copy."""
    return access.useful / moved(access, size)


def turned(access: Access, turn: int, size: int) -> Access:
    """The same access elsewhere, so that one after another do not find grains in a cache.

    Elements less than a grain apart use every grain anyway, and stay where they are.
    """
    if access.stride <= size:
        return access
    return Access(access.stride, access.first + turn * size % access.stride, access.count)
