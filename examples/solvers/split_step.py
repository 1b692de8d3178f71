r"""Schroedinger's equation by split steps: the potential acts on the wave function, and the kinetic energy on
its transform (M. D. Feit, J. A. Fleck, A. Steiger, "Solution of the Schroedinger equation by a spectral
method", J. Comput. Phys. 47, 1982).

    python3 examples/solvers/inputs.py
    meshrun -n 2 run examples/solvers/split_step.py inputs/displaced.npy inputs/trap.npy swung.npy --steps 400
"""

import numpy as np

import meshrun


@meshrun.distribute
def split_step(psi, potential, *, dt: float = 0.01, length: float = 20.0):
    """Take one step in a periodic square, in units in which hbar and the mass are 1.

    dt: time step. length: of a side.
    """
    n, m = psi.shape
    kx = 2 * np.pi * np.fft.fftfreq(m, length / m)
    ky = 2 * np.pi * np.fft.fftfreq(n, length / n)[:, None]
    half = np.exp(-0.5j * dt * potential)
    psi = np.fft.ifft2(np.exp(-0.5j * dt * (kx**2 + ky**2)) * np.fft.fft2(half * psi))
    return half * psi
