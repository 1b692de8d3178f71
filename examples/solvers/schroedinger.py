r"""Schroedinger's equation: a wave packet meets a wall with two slits (A. Askar, A. S. Cakmak, "Explicit
integration method for the time-dependent Schroedinger equation", J. Chem. Phys. 68, 1978).

    python3 examples/solvers/inputs.py
    meshrun -n 2 run examples/solvers/schroedinger.py \
        inputs/packet.npy inputs/earlier.npy inputs/wall.npy later.npy before.npy --steps 1500
"""

import meshrun


@meshrun.distribute(outputs=("now", "before"))
def schroedinger(now, before, potential, *, dt: float = 0.1):
    """Take one step of a complex wave function that is 0 at the edges.

    now, before: the wave function and the one a step earlier. dt: time step, in units of mass * cell size
    squared / hbar; stable up to 0.25. potential: in units of hbar squared / mass / cell size squared.
    """
    new = before.copy()
    centre = now[1:-1, 1:-1]
    laplace = now[2:, 1:-1] + now[:-2, 1:-1] + now[1:-1, 2:] + now[1:-1, :-2] - 4 * centre
    new[1:-1, 1:-1] -= 2j * dt * (potential[1:-1, 1:-1] * centre - laplace / 2)
    new[0] = new[-1] = 0
    new[:, 0] = new[:, -1] = 0
    return new, now
