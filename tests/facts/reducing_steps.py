"""Steps of fields with sums: of the state at their begin or their end, of sums, of cells of every size."""

from __future__ import annotations

import numpy as np


def laplacian(u):
    return u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]


def mean(u, t):
    """A sum of the state at the step's begin, which the step before has done."""
    dt = u.dtype.type(0.2) / (np.abs(u).mean() + u.dtype.type(1))
    u[1:-1, 1:-1] += dt * laplacian(u)
    t += dt
    return u, t


def energy(u, t):
    """Sums that nothing needs before the result, of a part and of all cells, with a maximum."""
    new = u.copy()
    new[1:-1, 1:-1] += u.dtype.type(0.1) * laplacian(u)
    new[0], new[:, -1] = new[1], 0
    t += np.linalg.norm(new) / 1000 + np.vdot(u, np.roll(u, 1, 0)) / 100000 + new[2:-3].max() / 10
    return new, t


def centred(u, t):
    """A sum that reads another sum."""
    t += u.std()
    u -= u.mean()
    return u, t


def every_size(u, t):
    """Neighbours of very different size, whose sums no double holds."""
    rows, columns = np.arange(u.shape[0])[:, None], np.arange(u.shape[1])
    scaled = u * np.where((rows + columns) % 2 == 1, u.dtype.type(2.0**60), u.dtype.type(2.0**-50))
    t += scaled.sum() * u.dtype.type(2.0**-60)
    return u * u.dtype.type(0.875), t


def five_points(p):
    """Return the product with the matrix of five points; cells beyond the edges are 0."""
    q = 4 * p
    q[1:] -= p[:-1]
    q[:-1] -= p[1:]
    q[:, 1:] -= p[:, :-1]
    q[:, :-1] -= p[:, 1:]
    return q


def conjugate(x, r, p, rs, beta):
    """An iteration of conjugate gradients; cells beyond the edges are 0. It takes two kernels."""
    p = r + beta * p
    q = five_points(p)
    alpha = rs / np.vdot(p, q)
    x += alpha * p
    r -= alpha * q
    new = np.vdot(r, r)
    return x, r, p, new, new / rs


def directions(x, r, p, rs):
    """An iteration of conjugate gradients that ends with the next direction. It takes two kernels."""
    q = five_points(p)
    alpha = rs / np.sum(p * q)
    x, r = x + alpha * p, r - alpha * q
    new = np.sum(r * r)
    return x, r, r + new / rs * p, new


def apart(u, t):
    """Sums and extremes of cells that are apart."""
    t += u[::2, 1::3].sum() / 100 + u[1:-2:3].max() - u[:, 4::5].min()
    return np.roll(u, 1, 1) * u.dtype.type(0.75) + u / 8, t
