r"""Turbulence in two dimensions: the vorticity of an incompressible fluid, by a spectral method with the 2/3
rule (S. A. Orszag, "On the elimination of aliasing in finite-difference schemes by filtering high-wavenumber
components", J. Atmos. Sci. 28, 1971) and Runge and Kutta's fourth-order steps.

    python3 examples/solvers/inputs.py
    meshrun -n 2 run examples/solvers/turbulence.py inputs/vortices.npy vorticity.npy --steps 1500
"""

import numpy as np

import meshrun


@meshrun.distribute
def turbulence(vorticity, *, dt: float = 0.01, nu: float = 5e-4):
    """Take one step in a periodic square with sides of 2 pi.

    dt: time step. nu: viscosity.
    """
    n, m = vorticity.shape
    kx, ky = np.fft.rfftfreq(m, 1 / m), np.fft.fftfreq(n, 1 / n)[:, None]
    k2 = kx**2 + ky**2
    kept = (np.abs(kx) < m / 3) & (np.abs(ky) < n / 3)

    def change(w):
        psi = w / np.where(k2 == 0, 1, k2)
        u, v = np.fft.irfft2(1j * ky * psi, (n, m)), np.fft.irfft2(-1j * kx * psi, (n, m))
        wx, wy = np.fft.irfft2(1j * kx * w, (n, m)), np.fft.irfft2(1j * ky * w, (n, m))
        return -nu * k2 * w - kept * np.fft.rfft2(u * wx + v * wy)

    w = np.fft.rfft2(vorticity)
    a = change(w)
    b = change(w + dt / 2 * a)
    c = change(w + dt / 2 * b)
    d = change(w + dt * c)
    return np.fft.irfft2(w + dt / 6 * (a + 2 * b + 2 * c + d), (n, m))
