r"""Heat by the method of Crank and Nicolson, with steps far longer than an explicit method allows. Conjugate
gradients solve the linear system of each step.

    python3 examples/solvers/inputs.py
    meshrun -n 2 run examples/solvers/implicit_heat.py inputs/coals.npy cooled.npy --steps 3
"""

import numpy as np

import meshrun


@meshrun.distribute
def implicit_heat(u, *, rate: float = 10.0, tol: float = 1e-8):
    """Take one step of the heat equation, with u = 0 around the array.

    rate: diffusivity times the step in time, over the square of the spacing. An explicit method allows 0.25.
    tol: of the residual's norm.
    """
    # (1 + rate / 2 A) x = (1 - rate / 2 A) u, from x = u on.
    x, r = u.copy(), -rate * product(u)
    p, rr = r.copy(), np.sum(r * r)
    while np.sqrt(rr) > tol:
        q = p + rate / 2 * product(p)
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
