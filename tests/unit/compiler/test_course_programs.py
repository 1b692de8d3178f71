"""Functions as courses have them: each has NumPy's bits in blocks, or is refused with its line."""

from __future__ import annotations

import linecache
import re
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.block_form import block_form
from meshrun.runner.errors import UserError
from tests.unit.compiler.test_whole import check, field, traced

PREAMBLE = "import numpy as np\nfrom numpy import exp, sin, pi, roll, zeros_like\n"

# Name: the dtypes of its fields, and its text.
PROGRAMS: dict[str, tuple[str, str]] = {
    "heat, explicit": ("f8", """
def f(u):
    un = u.copy()
    u[1:-1, 1:-1] = (un[1:-1, 1:-1] + 0.1 * (un[2:, 1:-1] - 2 * un[1:-1, 1:-1] + un[:-2, 1:-1])
                     + 0.1 * (un[1:-1, 2:] - 2 * un[1:-1, 1:-1] + un[1:-1, :-2]))
    u[0, :] = 1
    u[-1, :] = 1
    u[:, 0] = 1
    u[:, -1] = 1
    return u
"""),
    "linear convection": ("f8", """
def f(u):
    un = u.copy()
    row, col = u.shape
    u[1:, 1:] = (un[1:, 1:] - 0.2 * (un[1:, 1:] - un[1:, :-1]) - 0.2 * (un[1:, 1:] - un[:-1, 1:]))
    u[0, :] = 1; u[-1, :] = 1; u[:, 0] = 1; u[:, -1] = 1
    return u
"""),
    "Burgers": ("f8 f8", """
def f(u, v, dt=0.001, dx=0.05, dy=0.05, nu=0.01):
    un = u.copy()
    vn = v.copy()
    u[1:-1, 1:-1] = (un[1:-1, 1:-1] -
                     dt / dx * un[1:-1, 1:-1] * (un[1:-1, 1:-1] - un[1:-1, 0:-2]) -
                     dt / dy * vn[1:-1, 1:-1] * (un[1:-1, 1:-1] - un[0:-2, 1:-1]) +
                     nu * dt / dx**2 * (un[1:-1,2:] - 2 * un[1:-1, 1:-1] + un[1:-1, 0:-2]) +
                     nu * dt / dy**2 * (un[2:, 1:-1] - 2 * un[1:-1, 1:-1] + un[0:-2, 1:-1]))
    v[1:-1, 1:-1] = (vn[1:-1, 1:-1] - dt / dx * un[1:-1, 1:-1] * (vn[1:-1, 1:-1] - vn[1:-1, 0:-2]))
    u[0, :] = 1; u[-1, :] = 1; v[:, 0] = 1; v[:, -1] = 1
    return u, v
"""),
    "Laplace, Neumann side": ("f8", """
def f(p):
    y = np.linspace(0, 1, p.shape[0])
    pn = p.copy()
    p[1:-1, 1:-1] = ((0.01 * (pn[1:-1, 2:] + pn[1:-1, 0:-2]) + 0.02 * (pn[2:, 1:-1] + pn[0:-2, 1:-1])) / 0.06)
    p[:, 0] = 0
    p[:, -1] = y
    p[0, :] = p[1, :]
    p[-1, :] = p[-2, :]
    return p
"""),
    "Poisson with sources": ("f8 f8", """
def f(p, b):
    ny, nx = p.shape
    b[ny // 4, nx // 4] = 100
    b[3 * ny // 4, 3 * nx // 4] = -100
    pd = p.copy()
    p[1:-1, 1:-1] = (pd[1:-1, 2:] + pd[1:-1, :-2] + pd[2:, 1:-1] + pd[:-2, 1:-1] - b[1:-1, 1:-1] * 0.01) / 4
    p[0, :] = 0; p[ny - 1, :] = 0; p[:, 0] = 0; p[:, nx - 1] = 0
    return p, b
"""),
    "cavity: source of pressure": ("f8 f8 f8", """
def build_up_b(b, rho, dt, u, v, dx, dy):
    b[1:-1, 1:-1] = (rho * (1 / dt * ((u[1:-1, 2:] - u[1:-1, 0:-2]) / (2 * dx) +
                     (v[2:, 1:-1] - v[0:-2, 1:-1]) / (2 * dy)) -
                     ((u[1:-1, 2:] - u[1:-1, 0:-2]) / (2 * dx))**2))
    return b

def f(u, v, p):
    b = np.zeros((u.shape[0], u.shape[1]))
    b = build_up_b(b, 1, 0.001, u, v, 0.05, 0.05)
    for q in range(2):
        pn = p.copy()
        p[1:-1, 1:-1] = (pn[1:-1, 2:] + pn[1:-1, 0:-2] + pn[2:, 1:-1] + pn[0:-2, 1:-1] - b[1:-1, 1:-1]) / 4
        p[:, -1] = p[:, -2]
        p[0, :] = p[1, :]
        p[:, 0] = p[:, 1]
        p[-1, :] = 0
    return u, v, p
"""),
    "channel flow, periodic": ("f8", """
def f(u):
    un = u.copy()
    u[1:-1, 1:-1] = un[1:-1, 1:-1] - 0.1 * (un[1:-1, 1:-1] - un[1:-1, 0:-2]) + 0.01
    u[1:-1, -1] = un[1:-1, -1] - 0.1 * (un[1:-1, -1] - un[1:-1, -2]) + 0.01
    u[1:-1, 0] = un[1:-1, 0] - 0.1 * (un[1:-1, 0] - un[1:-1, -1]) + 0.01
    u[0, :] = 0
    u[-1, :] = 0
    return u
"""),
    "wave": ("f8 f8", """
def f(u, u_old):
    u_new = np.zeros_like(u)
    u_new[1:-1, 1:-1] = 2*u[1:-1, 1:-1] - u_old[1:-1, 1:-1] + 0.25*(
        u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4*u[1:-1, 1:-1])
    return u_new, u
"""),
    "wave with a sponge": ("f8 f8", """
def f(u, u_old):
    n, m = u.shape
    x = np.arange(m)
    damping = np.where(x > m - 5, 0.9, 1.0)
    lap = np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - 4*u
    return (2*u - u_old + 0.1*lap) * damping, u * damping[None, :]
"""),
    "upwind": ("f8", """
def f(u, c=0.5):
    new = u.copy()
    new[1:] = u[1:] - c * (u[1:] - u[:-1])
    new[0] = u[0] - c * (u[0] - u[-1])
    return new
"""),
    "Lax-Wendroff": ("f8", """
def f(u, c=0.5):
    up, down = np.roll(u, -1, axis=0), np.roll(u, 1, axis=0)
    return u - c / 2 * (up - down) + c**2 / 2 * (up - 2 * u + down)
"""),
    "Lax-Friedrichs with a flux": ("f8", """
def flux(u):
    return 0.5 * u**2

def f(u, lam=0.3):
    F = flux(u)
    u[1:-1] = 0.5 * (u[2:] + u[:-2]) - 0.5 * lam * (F[2:] - F[:-2])
    u[0], u[-1] = u[1], u[-2]
    return u
"""),
    "minmod limiter": ("f8", """
def minmod(a, b):
    return np.where(a * b > 0, np.where(np.abs(a) < np.abs(b), a, b), 0.0)

def f(u, c=0.4):
    slope = minmod(u - np.roll(u, 1, 0), np.roll(u, -1, 0) - u)
    left = u + 0.5 * (1 - c) * slope
    return u - c * (left - np.roll(left, 1, 0))
"""),
    "van Leer limiter": ("f8", """
def f(u, c=0.4):
    d = np.roll(u, -1, 0) - u
    r = (u - np.roll(u, 1, 0)) / np.where(d == 0, 1e-12, d)
    phi = (r + np.abs(r)) / (1 + np.abs(r))
    face = u + 0.5 * phi * (1 - c) * d
    return u - c * (face - np.roll(face, 1, axis=0))
"""),
    "Gray-Scott": ("f8 f8", """
def laplacian(Z):
    return (Z[0:-2, 1:-1] + Z[1:-1, 0:-2] - 4 * Z[1:-1, 1:-1] + Z[1:-1, 2:] + Z[2:, 1:-1])

def f(U, V, Du=0.16, Dv=0.08, F=0.035, k=0.065):
    u, v = U[1:-1, 1:-1], V[1:-1, 1:-1]
    Lu, Lv = laplacian(U), laplacian(V)
    uvv = u * v * v
    u += Du * Lu - uvv + F * (1 - u)
    v += Dv * Lv + uvv - (F + k) * v
    for Z in (U, V):
        Z[0, :], Z[-1, :] = Z[-2, :], Z[1, :]
        Z[:, 0], Z[:, -1] = Z[:, -2], Z[:, 1]
"""),
    "FitzHugh-Nagumo": ("f8 f8", """
def f(U, V, a=2.8e-4, b=5e-3, tau=0.1, k=-0.005, dt=0.001, dx=0.02):
    def lap(Z):
        Ztop, Zleft, Zbottom, Zright = Z[0:-2, 1:-1], Z[1:-1, 0:-2], Z[2:, 1:-1], Z[1:-1, 2:]
        return (Ztop + Zleft + Zbottom + Zright - 4 * Z[1:-1, 1:-1]) / dx**2
    deltaU, deltaV = lap(U), lap(V)
    Uc, Vc = U[1:-1, 1:-1], V[1:-1, 1:-1]
    U[1:-1, 1:-1], V[1:-1, 1:-1] = (Uc + dt * (a * deltaU + Uc - Uc**3 - Vc + k),
                                    Vc + dt * (b * deltaV + Uc - Vc) / tau)
    for Z in (U, V):
        Z[0, :] = Z[1, :]; Z[-1, :] = Z[-2, :]; Z[:, 0] = Z[:, 1]; Z[:, -1] = Z[:, -2]
    return U, V
"""),
    "life, rolled": ("u1", """
def f(X):
    N = sum(np.roll(np.roll(X, i, 0), j, 1) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i != 0 or j != 0))
    return ((N == 3) | (X & (N == 2))).astype(X.dtype)
"""),
    "life, sliced": ("i4", """
def f(Z):
    N = (Z[0:-2, 0:-2] + Z[0:-2, 1:-1] + Z[0:-2, 2:] + Z[1:-1, 0:-2] + Z[1:-1, 2:] +
         Z[2:, 0:-2] + Z[2:, 1:-1] + Z[2:, 2:])
    birth = (N == 3) & (Z[1:-1, 1:-1] == 0)
    survive = ((N == 2) | (N == 3)) & (Z[1:-1, 1:-1] == 1)
    Z[...] = 0
    Z[1:-1, 1:-1][birth | survive] = 1
    return Z
"""),
    "shallow water": ("f8 f8 f8", """
def f(eta, u, v, g=9.8, H=1.0, dt=0.01, dx=1.0):
    u[:-1, :] = u[:-1, :] - g * dt / dx * (eta[1:, :] - eta[:-1, :])
    v[:, :-1] = v[:, :-1] - g * dt / dx * (eta[:, 1:] - eta[:, :-1])
    u[-1, :] = 0.0
    v[:, -1] = 0.0
    h = H + eta
    eta[1:-1, 1:-1] -= dt / dx * (h[1:-1, 1:-1] * (u[1:-1, 1:-1] - u[:-2, 1:-1]
                                                   + v[1:-1, 1:-1] - v[1:-1, :-2]))
    return eta, u, v
"""),
    "shallow water, upwind heights": ("f8 f8", """
def f(h, u):
    h_e = np.where(u[1:, :] > 0, h[:-1, :], h[1:, :])
    flux = np.zeros((h.shape[0], h.shape[1]))
    flux[1:, :] = u[1:, :] * h_e
    h[:-1, :] -= 0.1 * (flux[1:, :] - flux[:-1, :])
    return h, u
"""),
    "Maxwell, 2-D FDTD": ("f8 f8 f8", """
def f(Ez, Hx, Hy, c=0.5):
    Hx[:, :-1] -= c * (Ez[:, 1:] - Ez[:, :-1])
    Hy[:-1, :] += c * (Ez[1:, :] - Ez[:-1, :])
    Ez[1:-1, 1:-1] += c * (Hy[1:-1, 1:-1] - Hy[:-2, 1:-1] - Hx[1:-1, 1:-1] + Hx[1:-1, :-2])
    Ez[0, :] = 0; Ez[-1, :] = 0; Ez[:, 0] = 0; Ez[:, -1] = 0
    Ez[10, 9] += 1.0
    return Ez, Hx, Hy
"""),
    "KdV, Zabusky-Kruskal": ("f8 f8", """
def f(u, old, dt=0.001, dx=0.1, delta=0.022):
    p1, m1 = np.roll(u, -1, axis=0), np.roll(u, 1, axis=0)
    p2, m2 = np.roll(u, -2, axis=0), np.roll(u, 2, axis=0)
    new = old - dt / (3 * dx) * (p1 + u + m1) * (p1 - m1) - delta**2 * dt / dx**3 * (p2 - 2*p1 + 2*m1 - m2)
    return new, u
"""),
    "Kuramoto, neighbours": ("f8", """
def f(theta, K=1.0, dt=0.05):
    coupling = sum(np.sin(np.roll(theta, s, a) - theta) for s in (1, -1) for a in (0, 1))
    return np.mod(theta + dt * (0.3 + K * coupling), 2 * np.pi)
"""),
    "Schroedinger, real and imaginary": ("f8 f8", """
def f(R, I, dt=0.01):
    def H(p):
        out = np.zeros_like(p)
        out[1:-1] = -0.5 * (p[2:] - 2 * p[1:-1] + p[:-2])
        return out
    R += dt * H(I)
    I -= dt * H(R)
    return R, I
"""),
    "Schroedinger, complex": ("c16", """
def f(psi, dt=0.01):
    lap = np.zeros_like(psi)
    lap[1:-1, 1:-1] = psi[2:, 1:-1] + psi[:-2, 1:-1] + psi[1:-1, 2:] + psi[1:-1, :-2] - 4 * psi[1:-1, 1:-1]
    psi = psi + 0.5j * dt * lap
    psi[0] = 0; psi[-1] = 0; psi[:, 0] = 0; psi[:, -1] = 0
    return psi
"""),
    "Ginzburg-Landau": ("c16", """
def f(A, dt=0.05, b=0.5, c=-1.5):
    lap = np.roll(A, 1, 0) + np.roll(A, -1, 0) + np.roll(A, 1, 1) + np.roll(A, -1, 1) - 4*A
    return A + dt * (A + (1 + 1j*b) * lap - (1 + 1j*c) * np.abs(A)**2 * A)
"""),
    "Allen-Cahn": ("f8", """
def f(u, eps=0.1, dt=0.01):
    lap = np.pad(u, 1, mode="edge")
    lap = lap[2:, 1:-1] + lap[:-2, 1:-1] + lap[1:-1, 2:] + lap[1:-1, :-2] - 4 * u
    return u + dt * (lap - (u**3 - u) / eps**2)
"""),
    "Cahn-Hilliard": ("f8", """
def lap(a):
    return np.roll(a, 1, 0) + np.roll(a, -1, 0) + np.roll(a, 1, 1) + np.roll(a, -1, 1) - 4.0 * a

def f(c, dt=0.01, gamma=0.5):
    mu = c**3 - c - gamma * lap(c)
    c += dt * lap(mu)
    return c
"""),
    "Mandelbrot": ("c16 c16 i4", """
def f(z, c, count):
    inside = np.abs(z) <= 2
    z[inside] = z[inside]**2 + c[inside]
    count[inside] += 1
    return z, c, count
"""),
    "Sobel": ("f8", """
def f(img):
    gx, gy = np.zeros_like(img), np.zeros_like(img)
    gx[1:-1, 1:-1] = (img[:-2, 2:] + 2*img[1:-1, 2:] + img[2:, 2:]
                      - img[:-2, :-2] - 2*img[1:-1, :-2] - img[2:, :-2])
    gy[1:-1, 1:-1] = (img[2:, :-2] + 2*img[2:, 1:-1] + img[2:, 2:]
                      - img[:-2, :-2] - 2*img[:-2, 1:-1] - img[:-2, 2:])
    return np.sqrt(gx**2 + gy**2)
"""),
    "box blur with loops": ("f8", """
def f(img):
    padded = np.pad(img, 1, mode="reflect")
    out = np.zeros(img.shape)
    for dy in range(3):
        for dx in range(3):
            out += padded[dy:dy + img.shape[0], dx:dx + img.shape[1]]
    return out / 9
"""),
    "unsharp mask": ("f4", """
def f(img):
    k = np.array([[1, 2, 1], [2, 4, 2], [1, 2, 1]]) / 16
    p = np.pad(img, ((1, 1), (1, 1)), "edge")
    blurred = sum(k[i, j] * p[i:i + img.shape[0], j:j + img.shape[1]] for i in range(3) for j in range(3))
    return np.clip(img + 0.7 * (img - blurred), 0, 1).astype(img.dtype)
"""),
    "gradient and divergence": ("f8", """
def f(u):
    gy, gx = np.gradient(u)
    norm = np.sqrt(gx**2 + gy**2 + 1e-3)
    return np.gradient(gx / norm, axis=1) + np.gradient(gy / norm, axis=0)
"""),
    "anisotropic diffusion": ("f8", """
def f(img, kappa=0.5, gamma=0.1):
    deltaS, deltaE = np.zeros_like(img), np.zeros_like(img)
    deltaS[:-1, :] = np.diff(img, axis=0)
    deltaE[:, :-1] = np.diff(img, axis=1)
    S, E = deltaS / (1 + (deltaS / kappa)**2), deltaE / (1 + (deltaE / kappa)**2)
    NS, EW = S.copy(), E.copy()
    NS[1:, :] -= S[:-1, :]
    EW[:, 1:] -= E[:, :-1]
    img += gamma * (NS + EW)
    return img
"""),
    "forest fire": ("i4 f8", """
EMPTY, TREE, FIRE = 0, 1, 2

def f(forest, chance):
    burning = forest == FIRE
    near = np.zeros(forest.shape, dtype=bool)
    near[1:, :] |= burning[:-1, :]
    near[:-1, :] |= burning[1:, :]
    near[:, 1:] |= burning[:, :-1]
    near[:, :-1] |= burning[:, 1:]
    new = forest.copy()
    new[burning] = EMPTY
    new[(forest == TREE) & (near | (chance < -3.9))] = FIRE
    new[(forest == EMPTY) & (chance > 3)] = TREE
    return new, chance
"""),
    "Ising, checkerboard": ("i4 f8", """
def f(s, chance, beta=0.4):
    i, j = np.indices(s.shape)
    for colour in (0, 1):
        near = np.roll(s, 1, 0) + np.roll(s, -1, 0) + np.roll(s, 1, 1) + np.roll(s, -1, 1)
        cost = 2 * s * near
        flips = ((i + j) % 2 == colour) & ((cost <= 0) | (chance < -2.5))
        s[flips] *= -1
    return s, chance
"""),
    "red-black Gauss-Seidel": ("f8 f8", """
def f(u, b):
    for first in (1, 2):
        u[1:-1:2, first:-1:2] = 0.25 * (u[:-2:2, first:-1:2] + u[2::2, first:-1:2]
                                        + u[1:-1:2, first - 1:-2:2] + u[1:-1:2, first + 1::2]
                                        - b[1:-1:2, first:-1:2])
    return u, b
"""),
    "reaction of three species": ("f8 f8 f8", """
def f(a, b, c):
    s = sum(np.roll(np.stack([a, b, c], axis=-1), k, axis=0) for k in (-1, 0, 1)) / 3
    x, y, z = s[..., 0], s[..., 1], s[..., 2]
    return (np.clip(x + x * (y - z), 0, 1), np.clip(y + y * (z - x), 0, 1), np.clip(z + z * (x - y), 0, 1))
"""),
    "Black-Scholes, explicit": ("f8", """
def f(V, dt=0.001, r=0.05, sigma=0.2):
    n = V.shape[0]
    S = np.arange(n)[:, None]
    out = V.copy()
    out[1:-1] = (V[1:-1] + dt * (0.5 * sigma**2 * S[1:-1]**2 * (V[2:] - 2*V[1:-1] + V[:-2])
                                 + r * S[1:-1] * (V[2:] - V[:-2]) / 2 - r * V[1:-1]))
    out[0] = 0
    out[-1] = 2 * out[-2] - out[-3]
    return out
"""),
    "Game with a border and a mask": ("f8", """
def f(T):
    ny, nx = T.shape
    y, x = np.ogrid[:ny, :nx] if False else (np.arange(ny)[:, None], np.arange(nx)[None, :])
    disk = (x - nx // 2)**2 + (y - ny // 2)**2 < 16
    T[disk] = 100.0
    T[1:-1, 1:-1] += 0.1 * (T[2:, 1:-1] + T[:-2, 1:-1] + T[1:-1, 2:] + T[1:-1, :-2] - 4 * T[1:-1, 1:-1])
    T[disk] = 100.0
    return T
"""),
    "Runge-Kutta 4": ("f8", """
def rhs(u):
    d = np.zeros_like(u)
    d[1:-1] = u[2:] - 2 * u[1:-1] + u[:-2]
    return d

def f(u, dt=0.1):
    k1 = rhs(u)
    k2 = rhs(u + 0.5 * dt * k1)
    k3 = rhs(u + 0.5 * dt * k2)
    k4 = rhs(u + dt * k3)
    return u + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
"""),
    "mirror at a wall": ("f8", """
def f(u):
    u[:2] = u[4:2:-1]
    u[:, -2:] = -u[:, -3:-5:-1]
    return u
"""),
    "a table of labels": ("f8", """
SPEED = np.array([1.5, 0.5, 3.0, 2.0])
PAIRS = np.array([[1.0, 2.0], [3.0, 4.0]])

def f(u):
    layer = np.where(u > 1, 2, np.where(u < -1, 0, 1))
    weights = np.array([0.25, 0.5])
    return u * SPEED[layer] + weights[(u > 0).astype(int)] * PAIRS[layer % 2, 1]
"""),
    "heaviside source": ("f8", """
def f(u):
    x = np.linspace(-1, 1, u.shape[1])
    return u + 0.1 * np.heaviside(x, 0.5) * np.interp(u, [-2, 0, 2], [1.0, 0.0, 1.0])
"""),
}  # fmt: skip


def products(w):
    turn = np.array([[0.0, -1.0, 0.5], [1.0, 0.0, 0.25]])
    sums = np.einsum("ijk,lk->ijl", w, turn) + w @ turn.T + np.dot(w, turn.T) + np.tensordot(w, turn, (2, 1))
    return np.einsum("...k,...k->...", w, w)[..., None] + sums + np.inner(w, turn)


def test_sums_of_products_agree_within_rounding() -> None:
    from tests.facts.whole_positions import evaluate

    w = field(19, 17, 3)
    (found,) = evaluate(traced(products, [w], ["out"], (0, 1)), [w])
    assert found.shape == (19, 17, 2)
    assert np.allclose(found, products(w), rtol=1e-13, atol=1e-13)
    with pytest.raises(NotTraceable, match="sums products of cells"):
        traced(lambda u: u @ u.T, [field(19, 17)], ["out"])


def test_a_change_that_no_step_would_see_is_refused() -> None:
    @meshrun.distribute(feeds="u")
    def cool(u, source):
        source[0] = 1  # here
        return u + source

    fields = [((19, 17), np.dtype("f8"))] * 2
    with pytest.raises(UserError, match=r"changes its input source.*line") as refused:
        block_form(cool, fields, {})
    assert "source.copy()" in str(refused.value)


REFUSED: dict[str, tuple[str, str, str]] = {
    "scipy's filter": (
        "from scipy.ndimage import laplace\ndef f(u):\n    return laplace(u)  # here",
        "calls scipy.ndimage",
        r"np\.roll",
    ),
    "a sort": ("def f(u):\n    return np.sort(u, axis=0)  # here", r"numpy\.sort", ""),
    "a loop over cells": (
        "def f(u):\n    for i in range(5):\n        if u[i] > 0:  # here\n            u[i] = 0",
        "decides by the value",
        r"np\.where",
    ),
    "a gather": (
        "def f(u):\n    return u[np.arange(19)[::-1]]  # here",
        "picks cells by an array|reverses|points|list",
        "",
    ),
    "flattened": ("def f(u):\n    v = u.flatten()  # here\n    return u", "flatten", "own shape"),
    "frexp": ("def f(u):\n    return np.frexp(u)[0]  # here", "frexp", ""),
    "same twice": ("def f(u):\n    w = u * 2\n    return w, w  # here", "share memory", "copy"),
    "a global array": (
        "G = np.zeros(3)\ndef f(u):\n    G[0] = 1  # here\n    return u * 2",
        "outside",
        "copy",
    ),
    "a global counter": (
        "N = 0\ndef f(u):\n    global N\n    N += 1  # here\n    return u * N",
        "changes N, which is outside",
        "step",
    ),
    "a counter around it": (
        "def make():\n    n = 0\n    def f(u):\n        nonlocal n\n        n += 1  # here\n"
        "        return u * n\n    return f\nf = make()",
        "changes n, which is outside",
        "step",
    ),
    "a list that grows": (
        "LOG = []\ndef f(u):\n    LOG.append(1)  # here\n    return u * len(LOG)",
        "changes LOG, which is outside",
        "an input",
    ),
    "a list of fields": (
        "LOG = []\ndef keep(u):\n    LOG.append(u)  # here\ndef f(u):\n    keep(u)\n    return u + 1",
        "changes LOG, which is outside",
        "an input",
    ),
    "a state in a dict": (
        "STATE = {'t': 0.0}\ndef f(u):\n    STATE['t'] += 0.1  # here\n    return u + STATE['t']",
        "changes STATE, which is outside",
        "an input",
    ),
    "an attribute": (
        "class Solver:\n    n = 0\nsolver = Solver()\ndef f(u):\n"
        "    solver.n += 1  # here\n    return u * solver.n",
        "changes solver, which is outside",
        "step",
    ),
    "an attribute of a class": (
        "class Solver:\n    n = 0\ndef f(u):\n    Solver.n += 1  # here\n    return u * Solver.n",
        "changes Solver, which is outside",
        "step",
    ),
    "an attribute of itself": (
        "def f(u):  # here\n    f.n = getattr(f, 'n', 0) + 1\n    return u * f.n",
        "changes an attribute of f",
        "step",
    ),
    "an object of its own": (
        "class Clock:\n    t = 0.0\n    def tick(self):\n        self.t += 0.1\n        return self.t\n"
        "clock = Clock()\ndef f(u):\n    return u + clock.tick()  # here",
        "changes clock, which is outside",
        "an input",
    ),
    "an array in a dict": (
        "D = {'w': np.zeros(17)}\ndef f(u):\n    D['w'] += 1  # here\n    return u * D['w']",
        "changes D, which is outside",
        "an input",
    ),
    "a function of each cell": (
        "g = np.vectorize(lambda x: max(x, 0.0))\ndef f(u):\n    return g(u)  # here",
        "calls a function for each cell",
        r"np\.where",
    ),
    "a change every second call": (
        "CALLS = []\nRATE = [0.1]\ndef f(u):\n    CALLS.append(0)  # here\n    if len(CALLS) % 2 == 0:\n"
        "        RATE[0] /= 2\n    return u * RATE[0]",
        "changes CALLS, which is outside",
        "",
    ),
    "a gather by cells": (
        "def f(u):\n    j = (3 * u).astype(int)\n    return u[j, 0]  # here",
        "picks cells by an array of integers",
        "points",
    ),
    "a float as an index": (
        "def f(u):\n    n = u.shape[0] / 2\n    u[n] = 1  # here\n    return u",
        "IndexError: only integers, slices.*not float",
        "",
    ),
    "a name as an index": ("def f(u):\n    return u['x']  # here", "IndexError.*not str", ""),
    "a number of a reduction": (
        "def f(u):\n    return u / float(u.sum())  # here",
        "converts a value of a reduction",
        "the value as it is",
    ),
    "a printed value": (
        "def f(u):\n    print(f'{u.max():.3f}')  # here\n    return u",
        "formats a value",
        "series=",
    ),
    "objects": ("def f(u):\n    return u.astype(object)  # here", "computes in object", "float64"),
    "texts": ("def f(u):\n    return u.astype(str)  # here", "computes in <U", "float64"),
    "no end": (
        "def f(u):\n    def g(n):\n        return g(n + 1)  # here\n    return g(0) * u",
        "calls itself too deep",
        "loop",
    ),
    "a misspelt method": ("def f(u):\n    return u.maxx()  # here", "no attribute 'maxx'", ""),
    "too many results": ("def f(u):\n    return u, u + 1  # here", "returns 2 results, not 1", "outputs=2"),
    "nothing": ("def f(u):\n    v = 2 * u  # here", "returns nothing", "return"),
    "a dict": ("def f(u):\n    return {'u': u}  # here", "returns a dict", "return with an array"),
    "a transposed field": ("def f(u):\n    return u.T  # here", "axes of its inputs", "order"),
    "a transform": (
        "def f(u):\n    return np.fft.fft2(u).real  # here",
        r"numpy\.fft\.fft2",
        r"meshrun\.fft",
    ),
    "one row with all": ("def f(u):\n    return u - u[0]  # here", "combines one row", "input"),
    "a mask of numpy.ma": (
        "def f(u):\n    return np.ma.masked_less(u, 0.5).filled(0)  # here",
        "calls numpy.ma",
        "map_blocks",
    ),
    "a buffer": (
        "def f(u):\n    return memoryview(u)  # here",
        "bytes-like object is required, not an array",
        "",
    ),
}


def compiled(text: str) -> Any:
    name = f"<course {abs(hash(text))}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space: dict[str, Any] = {"__name__": "course"}
    exec(compile(text, name, "exec", dont_inherit=True), space)
    return space["f"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_course_program_has_numpys_bits(name: str) -> None:
    kinds, text = PROGRAMS[name]
    arrays = []
    for number, kind in enumerate(kinds.split()):
        values = field(19, 17, seed=number)
        if kind == "c16":
            values = values + 1j * field(19, 17, seed=9 + number)
        arrays.append((values > 0).astype(kind) if kind in ("u1", "i4") else values.astype(kind))
    names = [f"out{n}" for n in range(len(arrays))] if len(arrays) > 1 else ["out"]
    function = compiled(PREAMBLE + text)
    if any(kind == "c16" for kind in kinds.split()):
        check_close(function, arrays, names)
    else:
        with np.errstate(all="ignore"):
            check(function, *arrays, names=names)


def check_close(function: Any, arrays: list[Any], names: list[str]) -> None:
    """Compare complex fields, whose products NumPy itself rounds in several ways."""
    from tests.facts.whole_positions import evaluate

    wanted = function(*(one.copy() for one in arrays))
    found = evaluate(traced(function, arrays, names), arrays)
    for one, other in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.allclose(one, other, rtol=1e-13, atol=1e-13)


def test_a_table_that_is_made_when_it_is_needed_first_is_no_state() -> None:
    text = """
TABLES = {}
def weights(n):
    if n not in TABLES:
        TABLES[n] = [1 / (k + 1) for k in range(n)]
    return TABLES[n]
def f(u):
    for k, w in enumerate(weights(3)):
        u = u + w * np.roll(u, k, axis=0)
    return u
"""
    check(compiled(PREAMBLE + text), field(19, 17))


OBJECTS: dict[str, str] = {
    "a solver": """
class Operator:
    order = 2
    def __init__(self, h): self.h = h
    @property
    def scale(self): return 1 / self.h**self.order
class Laplace(Operator):
    def __init__(self, h):
        super().__init__(h)
        self.calls = 0
    def __call__(self, u):
        found = np.zeros(u.shape)
        found[1:-1] = self.scale * (u[2:] - 2 * u[1:-1] + u[:-2])
        return found
    @staticmethod
    def walls(u): u[0] = u[-1] = 0
solver = Laplace(0.5)
def f(u):
    u = u + 0.01 * solver(u)
    Laplace.walls(u)
    return u
""",
    "an object that it makes": """
from dataclasses import dataclass
@dataclass
class Grid:
    u: object
    def sides(self):
        found = np.empty(self.u.shape)
        found[...] = np.roll(self.u, 1, 0) + np.roll(self.u, -1, 0)
        return found
def f(u):
    return Grid(u).sides()
""",
    "a partial": """
from functools import partial
def weighted(u, w):
    found = np.zeros(u.shape)
    found[1:] = w * u[:-1]
    return found
third = partial(weighted, w=1 / 3)
def f(u): return third(u)
""",
    "a check": """
import copy
def f(u):
    if not isinstance(u, np.ndarray): raise TypeError
    v = copy.deepcopy(u)
    v[0] = 1
    return u + v
""",
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_of_the_users_compute_with_whole_arrays(name: str) -> None:
    check(compiled(PREAMBLE + OBJECTS[name]), field(19, 17))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_has_its_line_and_what_works(name: str) -> None:
    text, says, hint = REFUSED[name]
    function = compiled(PREAMBLE + text)
    line = next(n for n, one in enumerate((PREAMBLE + text).splitlines(), 1) if one.endswith("# here"))
    names = ("a", "b") if name == "same twice" else ("out",)
    with pytest.raises(NotTraceable, match=says) as refused:
        traced(function, [field(19, 17)], names)
    assert refused.value.line == line
    assert re.search(hint, refused.value.hint or "")
