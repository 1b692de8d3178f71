r"""Poisson's equation by conjugate gradients, until the residual is small.

python3 examples/solvers/inputs.py
meshrun -n 2 run examples/solvers/conjugate_gradients.py inputs/charges.npy solved.npy
"""

import numpy as np

import meshrun


@meshrun.distribute
def conjugate_gradients(b, *, tol: float = 1e-6):
    """Solve A x = b, with the five-point matrix A and x = 0 around the array.

    tol: of the residual's norm.
    """
    x, r = np.zeros_like(b), b.copy()
    p, rr = r.copy(), np.sum(r * r)
    while np.sqrt(rr) > tol:
        q = product(p)
        alpha = rr / np.sum(p * q)
        x += alpha * p
        r -= alpha * q
        before, rr = rr, np.sum(r * r)
        p = r + rr / before * p
    return x


def product(x):
    """Return A x: four times a cell less its neighbours."""
    y = 4 * x
    y[1:] -= x[:-1]
    y[:-1] -= x[1:]
    y[:, 1:] -= x[:, :-1]
    y[:, :-1] -= x[:, 1:]
    return y
