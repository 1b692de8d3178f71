r"""Flow past a square in a channel, by a projection method: the pressure of each time step comes from sweeps.

    python3 examples/solvers/inputs.py
    meshrun -n 2 run examples/solvers/obstacle.py inputs/stream_u.npy inputs/stream_v.npy inputs/rest.npy \
        inputs/fluid.npy stream_u.npy stream_v.npy pressure.npy --steps 2500
"""

import numpy as np

import meshrun


@meshrun.distribute(outputs=("u", "v", "p"))
def obstacle(u, v, p, fluid, *, sweeps: int = 20, dt: float = 0.004, nu: float = 0.00125):
    """Take one step of the Navier-Stokes equations in a channel of height 1.

    The pressure p of (n + 2, m + 2) is in cells, u of (n + 2, m + 1) and v of (n + 1, m + 2) on their faces.
    Fluid enters through the first faces of u, which keep their velocity, and leaves where p is 0.

    fluid: 1 in cells of fluid and beyond the outlet; 0 in the walls (rows 0 and -1), in the obstacle and
    before the inlet (column 0). sweeps: of Jacobi's method for the pressure. nu: viscosity.
    """
    h = 1 / (p.shape[0] - 2)

    # Fluid passes the faces between two cells of fluid.
    open_u, open_v = fluid[:, 1:] * fluid[:, :-1], fluid[1:] * fluid[:-1]

    # Convection and viscosity: products in cells and at their corners.
    uu, vv = ((u[1:-1, 1:] + u[1:-1, :-1]) / 2) ** 2, ((v[1:, 1:-1] + v[:-1, 1:-1]) / 2) ** 2
    uv = (u[1:] + u[:-1]) * (v[:, 1:] + v[:, :-1]) / 4
    du = nu * laplace(u, open_u, h) - (uu[:, 1:] - uu[:, :-1] + uv[1:, 1:-1] - uv[:-1, 1:-1]) / h
    dv = nu * laplace(v.T, open_v.T, h).T - (vv[1:] - vv[:-1] + uv[1:-1, 1:] - uv[1:-1, :-1]) / h
    u[1:-1, 1:-1] += dt * du * open_u[1:-1, 1:-1]
    v[1:-1, 1:-1] += dt * dv * open_v[1:-1, 1:-1]
    u[:, -1], v[:, -1] = u[:, -2], v[:, -2]

    # The pressure that leaves each cell without a source; none acts through closed faces.
    left, right, above, below = open_u[1:-1, :-1], open_u[1:-1, 1:], open_v[:-1, 1:-1], open_v[1:, 1:-1]
    faces = np.maximum(left + right + above + below, 1)
    source = h / dt * (u[1:-1, 1:] - u[1:-1, :-1] + v[1:, 1:-1] - v[:-1, 1:-1])
    for _ in range(sweeps):
        q = p.copy()
        around = left * q[1:-1, :-2] + right * q[1:-1, 2:] + above * q[:-2, 1:-1] + below * q[2:, 1:-1]
        p[1:-1, 1:-1] = (around - source) / faces
    u[1:-1, 1:] -= dt / h * right * (p[1:-1, 2:] - p[1:-1, 1:-1])
    v[1:-1, 1:-1] -= dt / h * below[:-1] * (p[2:-1, 1:-1] - p[1:-2, 1:-1])
    return u, v, p


def laplace(u, open_u, h):
    """Return the second derivatives. Beyond a wall along axis 1 is the opposite velocity."""
    middle, walls = u[1:-1, 1:-1], 2 - open_u[2:, 1:-1] - open_u[:-2, 1:-1]
    around = u[1:-1, 2:] + u[1:-1, :-2] + u[2:, 1:-1] + u[:-2, 1:-1]
    return (around - (4 + walls) * middle) / h**2
