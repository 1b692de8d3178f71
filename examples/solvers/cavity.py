r"""Flow in a cavity whose lid moves: sweeps for the pressure within each time step.

    python3 examples/solvers/inputs.py
    meshrun -n 2 run examples/solvers/cavity.py inputs/cavity_u.npy inputs/cavity_v.npy inputs/cavity_p.npy \
        cavity_u.npy cavity_v.npy cavity_p.npy --steps 1500
"""

import meshrun


@meshrun.distribute(outputs=("u", "v", "p"))
def cavity(u, v, p, *, sweeps: int = 20, dt: float = 0.005, nu: float = 0.01):
    """Take one step of the Navier-Stokes equations on a square of side 1 whose lid moves with velocity 1.

    The pressure p of (n + 2, n + 2) is in cells, u of (n + 2, n + 1) and v of (n + 1, n + 2) on their faces.
    The outermost cells are beyond the walls. Rows go from the floor up to the lid.

    sweeps: of Jacobi's method for the pressure. nu: viscosity, 1 / the Reynolds number.
    """
    h = 1 / (p.shape[0] - 2)

    # Convection and viscosity: products in cells and at their corners.
    uu, vv = ((u[1:-1, 1:] + u[1:-1, :-1]) / 2) ** 2, ((v[1:, 1:-1] + v[:-1, 1:-1]) / 2) ** 2
    uv = (u[1:] + u[:-1]) * (v[:, 1:] + v[:, :-1]) / 4
    du = nu * laplace(u, h) - (uu[:, 1:] - uu[:, :-1] + uv[1:, 1:-1] - uv[:-1, 1:-1]) / h
    dv = nu * laplace(v, h) - (vv[1:] - vv[:-1] + uv[1:-1, 1:] - uv[1:-1, :-1]) / h
    u[1:-1, 1:-1] += dt * du
    v[1:-1, 1:-1] += dt * dv

    # The pressure that leaves each cell without a source.
    source = h / dt * (u[1:-1, 1:] - u[1:-1, :-1] + v[1:, 1:-1] - v[:-1, 1:-1])
    for _ in range(sweeps):
        q = p.copy()
        p[1:-1, 1:-1] = (q[1:-1, 2:] + q[1:-1, :-2] + q[2:, 1:-1] + q[:-2, 1:-1] - source) / 4
        p[0], p[-1] = p[1], p[-2]
        p[:, 0], p[:, -1] = p[:, 1], p[:, -2]
    u[1:-1, 1:-1] -= dt / h * (p[1:-1, 2:-1] - p[1:-1, 1:-2])
    v[1:-1, 1:-1] -= dt / h * (p[2:-1, 1:-1] - p[1:-2, 1:-1])

    # The means of the cells beside a wall have its velocity.
    u[0], u[-1] = -u[1], 2 - u[-2]
    v[:, 0], v[:, -1] = -v[:, 1], -v[:, -2]
    return u, v, p


def laplace(field, h):
    """Return the second derivatives."""
    around = field[1:-1, 2:] + field[1:-1, :-2] + field[2:, 1:-1] + field[:-2, 1:-1]
    return (around - 4 * field[1:-1, 1:-1]) / h**2
