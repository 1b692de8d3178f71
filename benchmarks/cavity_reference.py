"""The least velocity of lid-driven cavities by second-order differences of the stream function: a reference.

    python benchmarks/cavity_reference.py

Shares nothing with jobs/airflow. Newton's method on the steady equations of stream function and vorticity,
vorticity at walls by Jensen's formula, on 32, 64 and 128 cells; the last column extrapolates from two sizes.
It needs SciPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import spsolve


def at_walls(m: int, h: float) -> tuple[Any, Any, Any, Any]:
    """What vorticity at walls adds to its Laplacian and its slopes along x and y next to them: matrices that
    multiply the stream function; and the lid's part, the vorticity at the lid at rest in the fluid."""
    n = np.arange(m * m).reshape(m, m)
    laplacian, along_x, along_y = (sparse.lil_matrix((m * m, m * m)) for _ in range(3))
    lid = np.zeros(m * m)
    lid[n[-1]] = -3 / h
    sides = ((n[:, 0], n[:, 1], along_x, -1), (n[:, -1], n[:, -2], along_x, 1),
             (n[0], n[1], along_y, -1), (n[-1], n[-2], along_y, 1))  # fmt: skip
    for first, second, slope, sign in sides:
        for place, one, other in zip(first, first, second, strict=True):
            for column, factor in ((one, -4 / h**2), (other, 0.5 / h**2)):
                laplacian[place, column] += factor / h**2
                slope[place, column] += sign * factor / (2 * h)
    return laplacian.tocsr(), along_x.tocsr(), along_y.tocsr(), lid


def least_velocity(cells: int, reynolds: float) -> tuple[float, float]:
    """Return the least velocity along x on the vertical centreline, over the lid's, and its height."""
    m, h = cells - 1, 1 / cells
    one, second = np.ones(m), sparse.diags([1.0, -2.0, 1.0], [-1, 0, 1], (m, m)) / h**2
    first = sparse.diags([-1.0, 1.0], [-1, 1], (m, m)) / (2 * h)
    unit = sparse.diags([one], [0])
    laplacian = (sparse.kron(unit, second) + sparse.kron(second, unit)).tocsr()
    along_x, along_y = sparse.kron(unit, first).tocsr(), sparse.kron(first, unit).tocsr()
    wall, wall_x, wall_y, lid = at_walls(m, h)
    psi, omega = np.zeros(m * m), np.zeros(m * m)
    for number in (100.0, reynolds):
        for _ in range(30):
            u, v = along_y @ psi, -(along_x @ psi)
            slope_x = along_x @ omega + wall_x @ psi
            slope_y = along_y @ omega + wall_y @ psi + lid / (2 * h)
            diffusion = laplacian @ omega + wall @ psi + lid / h**2
            wrong = [laplacian @ psi + omega, diffusion / number - u * slope_x - v * slope_y]
            d = sparse.diags
            by_psi = wall / number - d(slope_x) @ along_y + d(slope_y) @ along_x
            by_psi = by_psi - d(u) @ wall_x - d(v) @ wall_y
            by_omega = laplacian / number - d(u) @ along_x - d(v) @ along_y
            matrix = sparse.bmat([[laplacian, sparse.identity(m * m)], [by_psi, by_omega]]).tocsc()
            change = spsolve(matrix, -np.concatenate(wrong))
            psi, omega = psi + change[: m * m], omega + change[m * m :]
            if abs(change[: m * m]).max() < 1e-11:
                break
    column = np.concatenate([[0], (along_y @ psi).reshape(m, m)[:, m // 2], [1]])
    n = int(column.argmin())
    a, b, c = column[n - 1 : n + 2]
    shift = (a - c) / (2 * (a - 2 * b + c))
    return float(b - (a - c) * shift / 4), float((n + shift) * h)


def main() -> None:
    for reynolds in (100.0, 400.0):
        before = np.nan
        for cells in (32, 64, 128):
            least, height = least_velocity(cells, reynolds)
            extrapolated = least + (least - before) / 3
            print(
                f"{reynolds:5.0f} {cells:4} cells  {least:.4f} at {height:.4f}  {extrapolated:.4f}",
                flush=True,
            )
            before = least


if __name__ == "__main__":
    main()
