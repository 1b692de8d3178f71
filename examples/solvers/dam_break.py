r"""A dam breaks: the nonlinear equations of shallow water. Each step is as long as the fastest wave allows.

    python3 examples/solvers/inputs.py
    meshrun -n 2 run examples/solvers/dam_break.py inputs/dam.npy inputs/calm.npy inputs/calm.npy \
        inputs/clock.npy water.npy flow_x.npy flow_y.npy hours.npy --steps 150
"""

import numpy as np

import meshrun

GRAVITY = 9.81


@meshrun.distribute(outputs=("h", "hu", "hv", "time"))
def dam_break(h, hu, hv, time, *, dx: float = 1.0, courant: float = 0.45):
    """Take one step in a basin with walls, by Rusanov's fluxes.

    h: depth. hu, hv: depth times the velocities along axes 1 and 0. time: so far. dx: cell size. courant:
    cells that the fastest wave passes in a step; less than 0.5 keeps depths positive.
    """
    speed = np.maximum(np.abs(velocity(h, hu)), np.abs(velocity(h, hv))) + np.sqrt(GRAVITY * h)
    dt = courant * dx / np.max(speed)
    h_right, hu_right, hv_right = change(h, hu, hv)
    h_down, hv_down, hu_down = change(h.T, hv.T, hu.T)
    h -= dt / dx * (h_right + h_down.T)
    hu -= dt / dx * (hu_right + hu_down.T)
    hv -= dt / dx * (hv_right + hv_down.T)
    time += dt
    return h, hu, hv, time


def velocity(h, hu):
    """Return hu / h, and 0 where no water is."""
    return np.where(h > 0, hu / np.maximum(h, 1e-12), 0)


def change(h, hu, hv):
    """Return what leaves each cell along axis 1: water, and its momentum along and across."""
    # Beyond each wall is the mirror image.
    h, hu, hv = (np.pad(field, ((0, 0), (1, 1)), "edge") for field in (h, hu, hv))
    hu[:, 0], hu[:, -1] = -hu[:, 1], -hu[:, -2]
    u = velocity(h, hu)

    # A mean of the fluxes on both sides, less as much diffusion as the faster wave needs.
    speed = np.abs(u) + np.sqrt(GRAVITY * h)
    fastest = np.maximum(speed[:, 1:], speed[:, :-1])
    changes = []
    for field, flux in ((h, hu), (hu, hu * u + GRAVITY / 2 * h**2), (hv, hv * u)):
        passed = (flux[:, 1:] + flux[:, :-1] - fastest * (field[:, 1:] - field[:, :-1])) / 2
        changes.append(passed[:, 1:] - passed[:, :-1])
    return changes
