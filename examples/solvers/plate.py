r"""Heat in a plate: a hot edge, a cold one, and two that no heat passes.

    python3 examples/solvers/inputs.py
    meshrun -n 2 run examples/solvers/plate.py inputs/plate.npy warm.npy \
        --steps 6000 --every 1500 --frames plate.webp --frame-range 0:1 --frame-colors inferno
"""

import meshrun


@meshrun.distribute
def plate(u, *, rate: float = 0.2):
    """Take one step of the heat equation.

    rate: diffusivity * time step / cell size squared; stable up to 0.25.
    """
    new = u.copy()
    new[1:-1, 1:-1] += rate * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    new[0], new[-1] = 1, 0
    new[:, 0], new[:, -1] = new[:, 1], new[:, -2]
    return new
