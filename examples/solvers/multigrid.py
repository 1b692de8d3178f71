r"""Poisson's equation by multigrid: a V-cycle per step, or a full multigrid, which needs no start.

    python3 examples/solvers/inputs.py
    meshrun -n 2 run examples/solvers/multigrid.py inputs/potential.npy inputs/charges.npy \
        potential.npy left.npy --steps 6
"""

import numpy as np

import meshrun


@meshrun.distribute(outputs=("u",), series=("left",))
def multigrid(u, f, *, full: bool = False):
    """Solve -laplace(u) = f on a square of side 1, between edges that keep their values.

    A level has every second vertex of the one above: the numbers of vertices are 2^k + 1.

    full: begin with the solutions of coarser levels, rather than with u.
    """
    h = 1 / (u.shape[0] - 1)
    if full:
        u = u + full_multigrid(residual(u, f, h), h)
    u = cycle(u, f, h)
    return u, np.abs(residual(u, f, h)).max()


def full_multigrid(f, h):
    """Return a solution with edges of 0, from the coarsest level up."""
    if min(f.shape) <= 3:
        return smoothed(np.zeros_like(f), f, h, 20)
    return cycle(prolonged(full_multigrid(restricted(f), 2 * h), f), f, h)


def cycle(u, f, h):
    """Return a better solution: smoothed, corrected by the next coarser level, and smoothed again."""
    if min(u.shape) <= 3:
        return smoothed(u, f, h, 20)
    u = smoothed(u, f, h, 2)
    coarse = restricted(residual(u, f, h))
    u = u + prolonged(cycle(np.zeros_like(coarse), coarse, 2 * h), u)
    return smoothed(u, f, h, 2)


def smoothed(u, f, h, sweeps):
    """Return a solution after damped Jacobi sweeps."""
    for _ in range(sweeps):
        u = u + 0.2 * h**2 * residual(u, f, h)
    return u


def residual(u, f, h):
    """Return what is missing of f; at the edges 0."""
    r = np.zeros_like(u)
    around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    r[1:-1, 1:-1] = f[1:-1, 1:-1] - (4 * u[1:-1, 1:-1] - around) / h**2
    return r


def restricted(r):
    """Return the means around every second vertex; at the edges 0."""
    coarse = np.zeros_like(r[::2, ::2])
    rows = r[1:-3:2] + 2 * r[2:-2:2] + r[3:-1:2]
    coarse[1:-1, 1:-1] = (rows[:, 1:-3:2] + 2 * rows[:, 2:-2:2] + rows[:, 3:-1:2]) / 16
    return coarse


def prolonged(coarse, like):
    """Return the vertices of a level, and between them their means. like: an array of the finer level."""
    fine = np.zeros_like(like)
    fine[::2, ::2] = coarse
    fine[1::2, ::2] = (coarse[:-1] + coarse[1:]) / 2
    fine[:, 1::2] = (fine[:, :-2:2] + fine[:, 2::2]) / 2
    return fine
