r"""Flow past a cylinder by the lattice Boltzmann method with nine velocities, as a short NumPy program has
it: np.roll moves the populations, and a mask finds the cells of the body.

    python3 examples/solvers/inputs.py
    meshrun -n 2 run examples/solvers/channel.py inputs/populations.npy inputs/body.npy later.npy --steps 4000
"""

import numpy as np

import meshrun

CX = (0, 0, 1, 1, 1, 0, -1, -1, -1)
CY = (0, 1, 1, 0, -1, -1, -1, 0, 1)
WEIGHTS = (4 / 9, 1 / 9, 1 / 36, 1 / 9, 1 / 36, 1 / 9, 1 / 36, 1 / 9, 1 / 36)
OPPOSITE = (0, 5, 6, 7, 8, 1, 2, 3, 4)


@meshrun.distribute(outputs=("f",))
def channel(f, body, *, tau: float = 0.6):
    """Take one step of the populations.

    f: of shape (rows, columns, 9). body: True where no fluid is. tau: relaxation time, in steps.
    """
    for i in range(9):
        f[:, :, i] = np.roll(f[:, :, i], (CY[i], CX[i]), axis=(0, 1))
    bounced = [f[:, :, i].copy() for i in OPPOSITE]
    rho = sum(f[:, :, i] for i in range(9))
    ux = sum(CX[i] * f[:, :, i] for i in range(9) if CX[i]) / rho
    uy = sum(CY[i] * f[:, :, i] for i in range(9) if CY[i]) / rho
    for i in range(9):
        along = 3 * (CX[i] * ux + CY[i] * uy)
        rest = rho * WEIGHTS[i] * (1 + along + along**2 / 2 - 1.5 * (ux**2 + uy**2))
        f[:, :, i] += (rest - f[:, :, i]) / tau
        f[:, :, i] = np.where(body, bounced[i], f[:, :, i])
    return f
