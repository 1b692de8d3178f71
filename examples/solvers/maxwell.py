r"""Maxwell's equations in the plane on Yee's grid: a flat pulse meets a disc of glass between conducting
walls (K. S. Yee, IEEE Transactions on Antennas and Propagation 14, 1966).

    python3 examples/solvers/inputs.py
    meshrun -n 2 run examples/solvers/maxwell.py inputs/field.npy inputs/magnetic_x.npy \
        inputs/magnetic_y.npy inputs/glass.npy ez.npy hx.npy hy.npy --pulse inputs/pulse.npy --steps 320
"""

import meshrun


@meshrun.distribute(outputs=("ez", "hx", "hy"))
def maxwell(ez, hx, hy, permittivity, *, step, pulse: meshrun.Series, courant: float = 0.5):
    """Take one step. ez is 0 at the walls.

    ez: electric field at the corners, (n, m). hx, hy: magnetic fields between them along axes 0 and 1,
    (n - 1, m) and (n, m - 1), half a step later. permittivity: (n, m), relative. pulse: what the source adds
    to ez in each step. courant: cells that light passes in a step; stable up to 0.7.
    """
    hx -= courant * (ez[1:] - ez[:-1])
    hy += courant * (ez[:, 1:] - ez[:, :-1])
    turning = hy[1:-1, 1:] - hy[1:-1, :-1] - hx[1:, 1:-1] + hx[:-1, 1:-1]
    ez[1:-1, 1:-1] += courant / permittivity[1:-1, 1:-1] * turning
    ez[1:-1, 4] += pulse[step]
    return ez, hx, hy
