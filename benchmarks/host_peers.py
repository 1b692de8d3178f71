"""Seven functions on a CPU, two threads: kernels of meshrun, JAX, and for some numba and Devito.

    python benchmarks/host_peers.py [cells of a side] [names of functions]

Needs `pip install jax numba devito`. The peers take turns within each round; the table has the least time of
a step in milliseconds, by the clock and of all processors. A machine that does other work shows in the
difference.
meshrun's kernels are called by two threads, one for each half of the rows: a run adds the exchange of halos,
and gains by taking several steps while rows are in the cache.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from meshrun.runner.compiler.cpp.host import build
from meshrun.runner.compiler.trace.graph import Operand
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.system.cached_files import cache_folder
from meshrun.runner.system.compiler import find_compiler

ROUNDS = 15
STEPS = 20  # that Devito takes at once
F = np.float32


def sh(b, w, dy=0, dx=0):
    return b[w + dy : b.shape[0] - w + dy, w + dx : b.shape[1] - w + dx]


def lap(b, w=1):
    return sh(b, w, 1, 0) + sh(b, w, -1, 0) + sh(b, w, 0, 1) + sh(b, w, 0, -1) - F(4) * sh(b, w)


def gray_scott(xp, u, v):
    a, b = sh(u, 1), sh(v, 1)
    r = a * b * b
    return a + F(0.16) * lap(u) - r + F(0.035) * (F(1) - a), b + F(0.08) * lap(v) + r - F(0.095) * b


def shallow(xp, h, p, q):
    g = F(9.81)
    c = F(0.02)

    def flux(h, p, q):
        return p, p * p / h + F(0.5) * g * h * h, p * q / h

    fx = flux(h, p, q)
    fy = flux(h, q, p)
    out = []
    for s, a, b in ((h, fx[0], fy[0]), (p, fx[1], fy[2]), (q, fx[2], fy[1])):
        mean = F(0.25) * (sh(s, 1, 1, 0) + sh(s, 1, -1, 0) + sh(s, 1, 0, 1) + sh(s, 1, 0, -1))
        out.append(mean - c * (sh(a, 1, 0, 1) - sh(a, 1, 0, -1)) - c * (sh(b, 1, 1, 0) - sh(b, 1, -1, 0)))
    return tuple(out)


W8 = [F(x) for x in (-205 / 72 * 2, 8 / 5, -1 / 5, 8 / 315, -1 / 560)]


def acoustic(xp, u, old, vel):
    w = 4
    s = W8[0] * sh(u, w)
    for k in range(1, 5):
        s = s + W8[k] * (sh(u, w, k, 0) + sh(u, w, -k, 0) + sh(u, w, 0, k) + sh(u, w, 0, -k))
    return F(2) * sh(u, w) - sh(old, w) + sh(vel, w) * s, sh(u, w)


def dendrite(xp, phi, T):
    gx = F(0.5) * (phi[1:-1, 2:] - phi[1:-1, :-2])
    gy = F(0.5) * (phi[2:, 1:-1] - phi[:-2, 1:-1])
    th = xp.arctan2(gy, gx)
    e = F(0.01) * (F(1) + F(0.02) * xp.cos(F(6) * (th - F(0.2))))
    de = -F(0.01 * 6 * 0.02) * xp.sin(F(6) * (th - F(0.2)))
    phi[1:-1, 1:-1]
    A = e * de * gy
    B = e * de * gx
    e2 = e * e
    div = F(0.5) * (A[2:, 1:-1] - A[:-2, 1:-1]) - F(0.5) * (B[1:-1, 2:] - B[1:-1, :-2])
    gr = (
        F(0.5) * (e2[1:-1, 2:] - e2[1:-1, :-2]) * gx[1:-1, 1:-1]
        + F(0.5) * (e2[2:, 1:-1] - e2[:-2, 1:-1]) * gy[1:-1, 1:-1]
    )
    m = F(0.9 / np.pi) * xp.arctan(F(10) * (F(1) - sh(T, 2)))
    c = sh(phi, 2)
    dphi = F(0.3) * (div + gr + sh(e2, 1) * lap(phi, 2) + c * (F(1) - c) * (c - F(0.5) + m))
    return c + dphi, sh(T, 2) + F(0.1) * lap(T, 2) + F(1.8) * dphi


R = 6
RING = [
    (y, x, F(np.exp(4 - 1 / ((r := np.hypot(y, x) / R) * (1 - r) + 1e-9) / 1)))
    for y in range(-R, R + 1)
    for x in range(-R, R + 1)
    if 0 < np.hypot(y, x) < R
]

S = sum(k for *_, k in RING)
RING = [(y, x, F(k / S)) for y, x, k in RING]


def lenia(xp, u):
    s = F(0)
    for y, x, k in RING:
        s = s + k * sh(u, R, y, x)
    g = F(2) * xp.exp(-(((s - F(0.15)) / F(0.015)) ** 2) / F(2)) - F(1)
    return (xp.clip(sh(u, R) + F(0.1) * g, F(0), F(1)),)


def hll(xp, r, mx, my, E):
    gam = F(1.4)

    def one(r, mx, my, E, ax):
        d = (0, 1) if ax == 1 else (1, 0)
        L = [z[0 : z.shape[0] - d[0], 0 : z.shape[1] - d[1]] for z in (r, mx, my, E)]
        Rr = [z[d[0] :, d[1] :] for z in (r, mx, my, E)]

        def st(s):
            r, mx, my, E = s
            u, v = mx / r, my / r
            p = (gam - F(1)) * (E - F(0.5) * r * (u * u + v * v))
            c = xp.sqrt(gam * p / r)
            n = u if ax == 1 else v
            f = (r * n, mx * n + (p if ax == 1 else F(0)), my * n + (F(0) if ax == 1 else p), (E + p) * n)
            return n, c, f

        nl, cl, fl = st(L)
        nr, cr, fr = st(Rr)
        sl = xp.minimum(nl - cl, nr - cr)
        sr = xp.maximum(nl + cl, nr + cr)
        return [
            xp.where(sl >= 0, a, xp.where(sr <= 0, b, (sr * a - sl * b + sl * sr * (y - x)) / (sr - sl)))
            for a, b, x, y in zip(fl, fr, L, Rr, strict=False)
        ]

    fx = one(r, mx, my, E, 1)
    fy = one(r, mx, my, E, 0)
    return tuple(
        sh(z, 1) - F(0.1) * (a[1:-1, 1:] - a[1:-1, :-1]) - F(0.1) * (b[1:, 1:-1] - b[:-1, 1:-1])
        for z, a, b in zip((r, mx, my, E), fx, fy, strict=False)
    )


def red_black(xp, p, rhs, red):
    def half(p, w, colour):
        n = F(0.25) * (
            sh(p, 1, 1, 0)
            + sh(p, 1, -1, 0)
            + sh(p, 1, 0, 1)
            + sh(p, 1, 0, -1)
            - rhs[w + 1 : rhs.shape[0] - w - 1, w + 1 : rhs.shape[1] - w - 1]
        )
        return xp.where(
            colour[w + 1 : colour.shape[0] - w - 1, w + 1 : colour.shape[1] - w - 1],
            sh(p, 1) + F(1.7) * (n - sh(p, 1)),
            sh(p, 1),
        )

    a = half(p, 0, red)
    b = half(a, 1, ~red)
    return (b,)


CASES = {
    "gray_scott": (gray_scott, 1, "uu", (0, 1)),
    "shallow": (shallow, 1, "uzz", (0, 1, 2)),
    "acoustic": (acoustic, 4, "zzs", (0, 1)),
    "dendrite": (dendrite, 2, "uu", (0, 1)),
    "lenia": (lenia, R, "u", (0,)),
    "hll": (hll, 1, "uzzE", (0, 1, 2, 3)),
    "red_black": (red_black, 2, "uzm", (0,)),
}


def fields(kinds, n):
    g = np.random.default_rng(0)
    out = []
    for k in kinds:
        if k == "u":
            out.append(g.uniform(0.8, 1.0, (n, n)).astype(F))
        elif k == "z":
            out.append(g.uniform(-0.01, 0.01, (n, n)).astype(F))
        elif k == "s":
            out.append(np.full((n, n), 0.05, F))
        elif k == "E":
            out.append(np.full((n, n), 2.5, F))
        else:
            out.append(np.add.outer(np.arange(n), np.arange(n)) % 2 == 0)
    return out


def by_meshrun(function, width, fed, arrays):
    """Return one step by two threads, from arrays with a halo."""
    widths = ((width, width),) * 2
    operands = [Operand(f"a{at}", one.dtype) for at, one in enumerate(arrays)]
    names = [f"r{at}" for at in range(len(fed))]
    program = trace(lambda *blocks: function(np, *blocks), operands, widths, {}, frozenset(), names)
    kernel = build(program, find_compiler(), cache_folder())
    rows, columns = (n - 2 * width for n in arrays[0].shape)
    outs = [np.empty((rows, columns), one.dtype) for one in program.outputs]
    halves = []
    for first, last in ((0, rows // 2), (rows // 2, rows)):
        blocks = [one[first : last + 2 * width] for one in arrays]
        halves.append(kernel.bind(blocks, [one[first:last] for one in outs], widths))
    pool = ThreadPoolExecutor(2)
    return lambda: list(pool.map(lambda half: half(), halves))


def by_jax(function, width, fed, arrays):
    import jax
    import jax.numpy as jnp

    held = [jnp.asarray(one) for one in arrays]
    step = jax.jit(lambda *blocks: function(jnp, *blocks))
    return lambda: jax.block_until_ready(step(*held))


def by_numba(name, arrays, width):
    """Return one step of loops that are written for numba; None for a function that has none here."""
    import numba

    @numba.njit(parallel=True, fastmath=False)
    def gray(u, v, a, b):
        for y in numba.prange(1, u.shape[0] - 1):
            for x in range(1, u.shape[1] - 1):
                c, d = u[y, x], v[y, x]
                r = c * d * d
                lu = u[y + 1, x] + u[y - 1, x] + u[y, x + 1] + u[y, x - 1] - F(4) * c
                lv = v[y + 1, x] + v[y - 1, x] + v[y, x + 1] + v[y, x - 1] - F(4) * d
                a[y - 1, x - 1] = c + F(0.16) * lu - r + F(0.035) * (F(1) - c)
                b[y - 1, x - 1] = d + F(0.08) * lv + r - F(0.095) * d

    ys, xs = (np.array([one[at] for one in RING]) for at in (0, 1))
    ks = np.array([one[2] for one in RING], F)

    @numba.njit(parallel=True, fastmath=False)
    def life(u, a):
        for y in numba.prange(R, u.shape[0] - R):
            sums = np.zeros(u.shape[1] - 2 * R, F)
            for i in range(len(ks)):
                for x in range(len(sums)):
                    sums[x] += ks[i] * u[y + ys[i], x + R + xs[i]]
            for x in range(len(sums)):
                t = (sums[x] - F(0.15)) / F(0.015)
                g = F(2) * np.exp(-(t * t) / F(2)) - F(1)
                a[y - R, x] = min(max(u[y, x + R] + F(0.1) * g, F(0)), F(1))

    loops = {"gray_scott": gray, "lenia": life}
    if name not in loops:
        return None
    shape = tuple(n - 2 * width for n in arrays[0].shape)
    outs = [np.empty(shape, F) for _ in arrays]
    return lambda: loops[name](*arrays, *outs)


def by_devito(name, arrays, width):
    """Return one step of equations for Devito; None for a function that has none here.

    A call takes STEPS steps.
    """
    if name not in ("gray_scott", "acoustic"):
        return None
    import devito

    side = arrays[0].shape[0] - 2 * width
    grid = devito.Grid((side, side), dtype=F, extent=(side - 1, side - 1))
    (x, y), t = grid.dimensions, grid.stepping_dim

    def taps(field, k):
        return field[t, x + k, y] + field[t, x - k, y] + field[t, x, y + k] + field[t, x, y - k]

    if name == "gray_scott":
        a, b = (devito.TimeFunction(name=one, grid=grid, space_order=2) for one in "ab")
        r, laplace = a * b * b, [taps(one, 1) - 4 * one for one in (a, b)]
        equations = [
            devito.Eq(a.forward, a + F(0.16) * laplace[0] - r + F(0.035) * (1 - a)),
            devito.Eq(b.forward, b + F(0.08) * laplace[1] + r - F(0.095) * b),
        ]
        given = [(a, arrays[0]), (b, arrays[1])]
    else:
        u = devito.TimeFunction(name="u", grid=grid, space_order=8, time_order=2)
        speed = devito.Function(name="speed", grid=grid, space_order=8)
        waves = W8[0] * u + sum(W8[k] * taps(u, k) for k in range(1, 5))
        equations = [devito.Eq(u.forward, 2 * u - u.backward + speed * waves)]
        given = [(u, arrays[0]), (speed, arrays[2])]
    inner = (slice(width, -width),) * 2
    for field, array in given:
        field.data[:] = array[inner]
    operator = devito.Operator(equations, language="openmp")
    return lambda: operator.apply(time_m=1, time_M=STEPS, nthreads=2)


def main() -> None:
    # JAX takes a thread for each processor.
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=true intra_op_parallelism_threads=2"
    os.environ["NUMBA_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "2"
    os.environ["DEVITO_LOGGING"] = "ERROR"
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    given = sys.argv[1:]
    side = int(given.pop(0)) if given and given[0].isdigit() else 2048
    print(f"{side} x {side} float32, 2 threads: ms of a step by the clock (of all processors)")
    peers = "".join(f"{one:>18s}" for one in ("meshrun", "JAX", "numba", "Devito"))
    print(f"{'function':12s}{peers}{'best peer / meshrun':>22s}")
    for name, (function, width, kinds, fed) in CASES.items():
        if given and name not in given:
            continue
        arrays = [np.pad(one, width, mode="wrap") for one in fields(kinds, side)]
        ways = [by_meshrun(function, width, fed, arrays), by_jax(function, width, fed, arrays)]
        ways += [by_numba(name, arrays, width), by_devito(name, arrays, width)]
        best = [(float("inf"), float("inf"))] * len(ways)
        for turn in range(ROUNDS):
            for at, way in enumerate(ways):
                if way is None:
                    continue
                clock, used = time.perf_counter(), time.process_time()
                way()
                steps = STEPS if at == len(ways) - 1 else 1
                took = (time.perf_counter() - clock) / steps, (time.process_time() - used) / steps
                if turn:  # the first one compiles
                    best[at] = min(best[at][0], took[0]), min(best[at][1], took[1])
        cells = [f"{a * 1e3:8.2f} ({b * 1e3:6.2f})" if np.isfinite(a) else "-" for a, b in best]
        ratio = min(a for a, _ in best[1:]) / best[0][0], min(b for _, b in best[1:]) / best[0][1]
        row = "".join(f"{one:>18s}" for one in cells)
        print(f"{name:12s}{row}{ratio[0]:>14.2f} ({ratio[1]:.2f})", flush=True)


if __name__ == "__main__":
    main()
