"""Colour maps of frames: 255 colours from control points, and one more for what is not a number.

viridis and inferno: S. van der Walt and N. Smith, 2015 (CC0). coolwarm: K. Moreland, "Diverging Color Maps
for Scientific Visualization", 2009. 33 points each; between them colours are interpolated linearly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrun.runner.region import HostArray

COLORS = 255
NOT_A_NUMBER = 255  # index of its colour
MAGENTA = (255, 0, 255)
POINTS = {
    "viridis": (
        "440154 470d60 48186a 482374 472d7b 453781 424086 3e4989 3b528b 375b8d 33638d 2f6b8e 2c728e "
        "297a8e 26828e 23898e 21918c 1f988b 1fa088 22a785 28ae80 32b67a 3fbc73 4ec36b 5ec962 70cf57 "
        "84d44b 98d83e addc30 c2df23 d8e219 ece51b fde725"
    ),
    "inferno": (
        "000004 040312 0b0724 150b37 210c4a 2f0a5b 3d0965 4a0c6b 57106e 64156e 71196e 7d1e6d 8a226a "
        "972766 a32c61 b0315b bc3754 c73e4c d24644 db503b e45a31 eb6628 f1731d f68013 f98e09 fb9d07 "
        "fcac11 fbbc21 f9cb35 f5db4c f2ea69 f3f68a fcffa4"
    ),
    "coolwarm": (
        "3b4cc0 445acc 4e68d8 5875e1 6282ea 6c8ff1 779af7 82a6fb 8db0fe 98b9ff a3c2fe aec9fc b9d0f9 "
        "c3d5f4 ccd9ed d5dbe5 dddcdc e5d8d1 ecd3c5 f1ccb8 f5c4ac f7ba9f f7b093 f6a586 f4987a f08b6e "
        "eb7d62 e46e56 dd5f4b d44e41 ca3b37 be242e b40426"
    ),
    "gray": "000000 ffffff",
}


def palette(name: str, other: tuple[int, int, int] = MAGENTA) -> bytes:
    """Return 256 colours of 3 bytes each: the map's, then that of values that are not finite, `other`."""
    points = np.array([[int(word[i : i + 2], 16) for i in (0, 2, 4)] for word in POINTS[name].split()])
    places = np.linspace(0, len(points) - 1, COLORS)
    channels = [np.interp(places, np.arange(len(points)), points[:, channel]) for channel in range(3)]
    colors = np.rint(np.stack(channels, axis=1)).astype(np.uint8)
    found: bytes = colors.tobytes()
    return found + bytes(other)


def indices(values: HostArray, low: float, high: float) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the index of each value's colour: 0 at `low` and below, 254 at `high` and above."""
    with np.errstate(over="ignore"):  # what is far above `high` becomes infinite, and is clipped
        scaled = np.subtract(values, low, dtype=np.float64)
        scaled *= (COLORS - 1) / (high - low)
    with np.errstate(invalid="ignore"):
        found = np.rint(np.clip(scaled, 0, COLORS - 1, out=scaled), out=scaled).astype(np.uint8)
    if values.dtype.kind in "fc":
        found[~np.isfinite(values)] = NOT_A_NUMBER
    return found


def value_range(values: HostArray) -> tuple[float, float]:
    """Return the smallest and the largest finite value; a range around a single one; 0 to 1 for none."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    if low < high:
        return low, high
    room = max(abs(low), 1.0) / 2
    return low - room, high + room
