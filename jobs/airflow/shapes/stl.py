"""STL files, binary and ASCII: read, and check that the surface is closed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.region import HostArray
from meshrun.runner.report.units import counted

HEADER, FACET = 84, 50  # bytes
WELD = 1e-6  # of the largest extent: corners that are closer become one
BITS = 20  # of such a distance, in units of it
FACETS = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
VERTEX = re.compile(
    rb"^[ \t]*vertex[ \t]+(\S+)[ \t]+(\S+)[ \t]+(\S+)[ \t]*\r?$", re.MULTILINE | re.IGNORECASE
)


@dataclass(frozen=True)
class Triangles:
    """A closed surface. corners: (n, 3, 3) float64: triangle, corner, (x, y, z) in the file's units.
    oriented: each edge runs in one direction as often as in the other."""

    corners: HostArray
    oriented: bool


def read(path: Path) -> Triangles:
    """Read an STL file. UserError if it cannot be read, is broken, is empty or does not close."""
    try:
        content = path.read_bytes()
    except OSError as reason:
        raise UserError(f"cannot read {path}", why=reason.strerror or reason) from reason
    corners = _parse(path, content).astype(np.float64)
    if not len(corners) or not np.isfinite(corners).all():
        got = "a coordinate that is not finite" if len(corners) else "no triangle"
        raise UserError(f"{path} holds no surface", got=got, expected="an STL file of a closed surface")
    return _closed(path, corners)


def _parse(path: Path, content: bytes) -> HostArray:
    """(n, 3, 3) corners. A file is binary if it has the size that its count says, whatever it begins with."""
    count = int.from_bytes(content[80:HEADER], "little") if len(content) >= HEADER else -1
    if count >= 0 and len(content) == HEADER + FACET * count:
        return np.frombuffer(content, FACETS, count, HEADER)["corners"]
    if content.lstrip()[:5].lower() != b"solid" or b"facet" not in content[:4096].lower():
        got = f"{len(content):,} bytes" + (f", a count of {count:,} triangles" if count >= 0 else "")
        expected = "solid ... endsolid, or 84 bytes and 50 for each triangle"
        raise UserError(f"{path} is not an STL file, or truncated", got=got, expected=expected)
    found = VERTEX.findall(content)
    facets = len(re.findall(rb"^[ \t]*endfacet", content, re.MULTILINE | re.IGNORECASE))
    try:
        corners = np.array(found, dtype=np.float64).reshape(-1, 3, 3) if found else np.zeros((0, 3, 3))
    except ValueError as reason:
        raise UserError(
            f"{path} is a broken STL file", why=reason, expected="three vertices a facet"
        ) from reason
    if facets != len(corners) or b"endsolid" not in content[-4096:].lower():
        got = f"{len(found):,} vertices and {facets:,} facets"
        raise UserError(
            f"{path} is a broken or truncated STL file", got=got, expected="three vertices a facet"
        )
    return corners


def _closed(path: Path, corners: HostArray) -> Triangles:
    """Join corners that are nearly the same, leave out triangles that are then none, and look at all
    edges."""
    points = corners.reshape(-1, 3)
    extent = float((points.max(0) - points.min(0)).max()) or 1.0
    rounded = np.round((points - points.min(0)) / (WELD * extent)).astype(np.int64)
    places = (rounded << np.array([2 * BITS, BITS, 0])).sum(1)
    _, first, number = np.unique(places, return_index=True, return_inverse=True)
    corner = number.reshape(-1, 3)
    corner = corner[(corner != np.roll(corner, 1, axis=1)).all(1)]
    if not len(corner):
        raise UserError(f"{path} holds no surface", got="triangles without area", expected="a closed surface")
    edges = np.concatenate([corner[:, [0, 1]], corner[:, [1, 2]], corner[:, [2, 0]]])
    ends, which = np.unique(edges.min(1) * len(first) + edges.max(1), return_inverse=True)
    uses = np.bincount(which)
    turns = np.bincount(which, np.where(edges[:, 0] < edges[:, 1], 1, -1))
    if (uses % 2).any():
        raise _open_edges(path, points[first], corner, ends, uses)
    return Triangles(points[first[corner]], not turns.any())


def _open_edges(
    path: Path, points: HostArray, corner: HostArray, ends: HostArray, uses: HostArray
) -> UserError:
    """Build the error for edges that an odd number of triangles share.

    points: of which `corner` (n, 3) numbers the corners of triangles. ends, uses: of each edge, the numbers
    of its ends, joined, and how many triangles it has.
    """

    def at(edges: HostArray) -> str:
        middle = points[[*divmod(int(ends[edges[0]]), len(points))]].mean(0)
        return " ".join(f"{value:.6g}" for value in middle)

    single, several = np.flatnonzero(uses == 1), np.flatnonzero((uses % 2 == 1) & (uses > 2))
    repeated = len(corner) - len(np.unique(np.sort(corner, axis=1), axis=0))
    problems = []
    if len(single):
        count = counted(len(single), "edge")
        problems.append(f"{count} with a triangle on one side only, the first near {at(single)}")
    if len(several):
        count = counted(len(several), "edge")
        problems.append(f"{count} with three or more triangles, the first near {at(several)}")
    if repeated:
        problems.append(f"{counted(repeated, 'triangle')} that the file repeats")
    return UserError(
        f"the surface in {path} is not closed",
        got="; ".join(problems),
        expected="two triangles at each edge",
        hint="remove the repeated triangles in a mesh editor"
        if repeated and not len(single)
        else "repair it in a CAD program or mesh editor (make it watertight)",
    )
