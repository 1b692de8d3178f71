"""Closed surfaces of triangles whose volumes are known, and STL files of them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def cube(low: float = 0.0, high: float = 1.0) -> Array:
    """(12, 3, 3): corners (x, y, z), outwards."""
    faces = []
    for axis, side in itertools.product(range(3), (0, 1)):
        u, v = (axis + 1) % 3, (axis + 2) % 3
        corners = np.zeros((4, 3))
        corners[:, axis] = side
        corners[:, u], corners[:, v] = [0, 1, 1, 0], [0, 0, 1, 1]
        ordered = corners if side else corners[::-1]
        faces += [ordered[[0, 1, 2]], ordered[[0, 2, 3]]]
    return low + (high - low) * np.array(faces)


def sphere(divisions: int = 3) -> Array:
    """An icosahedron, each triangle of which is divided in four so many times, on the unit sphere."""
    golden = (1 + 5**0.5) / 2
    points = np.array(
        [p for a in (-1, 1) for b in (-golden, golden) for p in ((0, a, b), (a, b, 0), (b, 0, a))]
    )
    near = [
        triple
        for triple in itertools.combinations(points, 3)
        if all(abs(np.linalg.norm(a - b) - 2) < 1e-9 for a, b in itertools.combinations(triple, 2))
    ]
    made = np.array([t if np.linalg.det(t) > 0 else t[::-1] for t in map(np.array, near)])
    made /= np.linalg.norm(made, axis=-1, keepdims=True)
    for _ in range(divisions):
        a, b, c = np.moveaxis(made, 1, 0)
        ab, bc, ca = ((one + other) / np.linalg.norm(one + other, axis=-1, keepdims=True)
                      for one, other in ((a, b), (b, c), (c, a)))  # fmt: skip
        made = np.concatenate([np.stack(t, 1) for t in ((a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca))])
    return made


def save_binary(path: Path, triangles: Array, header: bytes = b"made") -> Path:
    facets = np.zeros(
        len(triangles), [("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")]
    )
    facets["corners"] = triangles
    path.write_bytes(header.ljust(80) + len(triangles).to_bytes(4, "little") + facets.tobytes())
    return path


def save_text(path: Path, triangles: Array, end: str = "\n") -> Path:
    lines = ["solid made"]
    for triangle in triangles:
        lines += ["  facet normal 0 0 0", "    outer loop"]
        lines += [f"      vertex {x:.9e} {y:.9e} {z:.9e}" for x, y, z in triangle]
        lines += ["    endloop", "  endfacet"]
    path.write_text(end.join([*lines, "endsolid made", ""]), newline="")
    return path
