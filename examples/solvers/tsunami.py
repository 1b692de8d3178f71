r"""Shallow water in a basin: a wave runs over a shoal. Each step is as long as the fastest wave allows.

    python3 examples/solvers/inputs.py
    meshrun -n 2 run examples/solvers/tsunami.py inputs/height.npy inputs/still.npy inputs/still.npy \
        inputs/depth.npy inputs/clock.npy height.npy u.npy v.npy time.npy \
        --steps 600 --every 20 --frames tsunami.webp --frame-range -0.1:0.1
"""

import numpy as np

import meshrun

GRAVITY = 9.81


@meshrun.distribute(outputs=("eta", "u", "v", "time"))
def tsunami(eta, u, v, depth, time, *, dx: float = 10.0, courant: float = 0.5):
    """Take one step of the linear equations between walls.

    eta: height of the surface over its rest. u, v: velocities along axes 1 and 0, which are 0 at the walls.
    depth: of the water at rest. time: so far. dx: cell size. courant: cells that the fastest wave passes in
    a step.
    """
    dt = courant * dx / np.sqrt(GRAVITY * np.max(depth + eta))
    u[:, 1:] -= dt / dx * GRAVITY * (eta[:, 1:] - eta[:, :-1])
    v[1:, :] -= dt / dx * GRAVITY * (eta[1:, :] - eta[:-1, :])
    flow_u, flow_v = depth * u, depth * v
    eta[:, :-1] -= dt / dx * (flow_u[:, 1:] - flow_u[:, :-1])
    eta[:, -1] += dt / dx * flow_u[:, -1]
    eta[:-1, :] -= dt / dx * (flow_v[1:, :] - flow_v[:-1, :])
    eta[-1, :] += dt / dx * flow_v[-1, :]
    time += dt
    return eta, u, v, time
