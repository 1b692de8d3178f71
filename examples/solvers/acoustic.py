r"""Sound in the ground: a source, two layers, and receivers near the surface that record each step. The edges
absorb (C. Cerjan and others, Geophysics 50, 1985).

    python3 examples/solvers/inputs.py
    meshrun -n 2 run examples/solvers/acoustic.py inputs/silence.npy inputs/silence.npy inputs/speed.npy \
        inputs/sponge.npy now.npy before.npy traces.npy --wavelet inputs/ricker.npy --steps 700
"""

import numpy as np

import meshrun

SOURCE = np.array([24]), np.array([100])
RECEIVERS = np.full(160, 20), np.arange(20, 180)


@meshrun.distribute(outputs=("now", "before"), series=("traces",))
def acoustic(now, before, speed, sponge, *, step, wavelet: meshrun.Series, courant: float = 0.5):
    """Take one step, of fourth order in space.

    now, before: pressure, and that of a step earlier. speed: of sound, relative to the fastest. sponge:
    factor on the pressure. wavelet: of the source, for each step. courant: cells that the fastest sound
    passes in a step; stable up to 0.6.
    """
    new = 2 * now - before
    near = now[3:-1, 2:-2] + now[1:-3, 2:-2] + now[2:-2, 3:-1] + now[2:-2, 1:-3]
    far = now[4:, 2:-2] + now[:-4, 2:-2] + now[2:-2, 4:] + now[2:-2, :-4]
    laplace = (16 * near - far - 60 * now[2:-2, 2:-2]) / 12
    new[2:-2, 2:-2] += (courant * speed[2:-2, 2:-2]) ** 2 * laplace
    new[SOURCE] += (courant * speed[SOURCE]) ** 2 * wavelet[step]
    return sponge * new, sponge * now, new[RECEIVERS]
