r"""Burgers' equation over two axes, as courses on computational fluid dynamics have it: differences against
the flow, and edges that keep their values.

    python3 examples/solvers/inputs.py
    meshrun -n 2 run examples/solvers/burgers.py inputs/square.npy inputs/square.npy u.npy v.npy \
        --steps 300 --every 10 --frames burgers.webp --frame-range 1:2
"""

import meshrun


@meshrun.distribute(outputs=("u", "v"))
def burgers(u, v, *, dt: float = 2e-3, dx: float = 1.0 / 64, nu: float = 1e-3):
    """Take one step of the velocities `u` along axis 1 and `v` along axis 0.

    dt: time step. dx: cell size. nu: viscosity.
    """

    def change(w):
        centre = w[1:-1, 1:-1]
        carried = u[1:-1, 1:-1] * (centre - w[1:-1, :-2]) + v[1:-1, 1:-1] * (centre - w[:-2, 1:-1])
        spread = w[1:-1, 2:] + w[1:-1, :-2] + w[2:, 1:-1] + w[:-2, 1:-1] - 4 * centre
        return nu * dt / dx**2 * spread - dt / dx * carried

    un, vn = u.copy(), v.copy()
    un[1:-1, 1:-1] += change(u)
    vn[1:-1, 1:-1] += change(v)
    for w in (un, vn):
        w[0], w[-1], w[:, 0], w[:, -1] = 1, 1, 1, 1
    return un, vn
