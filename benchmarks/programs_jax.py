"""Time the solvers of programs.py in JAX on several devices of one process, by `shard_map`.

    python benchmarks/programs_jax.py [--devices 4] [--only NAME:SIZE ...] [--seconds 0.2] [--rounds 5]
        [--check] [--json FILE]

Arrays are split along axis 0, as meshrun's are. Neighbours' rows come by `ppermute`, sums by `psum`, and the
transposes of Fourier transforms by `all_to_all`; levels of few rows are gathered on each device. float32.
Microseconds per step, median of the rounds. --check compares a step of small arrays with NumPy's and ends.
On CPUs: XLA_FLAGS=--xla_force_host_platform_device_count=4 JAX_PLATFORMS=cpu. Needs JAX alone, but for
--check.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "ranks"
FEW_ROWS = 32  # per device, below which a level of the V-cycle is gathered
SPLIT, WHOLE = PartitionSpec(AXIS), PartitionSpec()


# Neighbours, and places in the whole


def rows_around(p: Any) -> tuple[Any, Any]:
    """Return the row above this device's and the one below, zeros beyond the whole."""
    n = lax.axis_size(AXIS)
    if n == 1:
        return jnp.zeros_like(p[:1]), jnp.zeros_like(p[:1])
    above = lax.ppermute(p[-1:], AXIS, [(rank, rank + 1) for rank in range(n - 1)])
    return above, lax.ppermute(p[:1], AXIS, [(rank + 1, rank) for rank in range(n - 1)])


def extended(p: Any) -> Any:
    above, below = rows_around(p)
    return jnp.concatenate([above, p, below])


def at_ends() -> tuple[Any, Any]:
    """Return whether this device has the first rows, and the last ones."""
    rank = lax.axis_index(AXIS)
    return rank == 0, rank == lax.axis_size(AXIS) - 1


def sides(p: Any) -> Any:
    """Return the sum of each cell's neighbours, zeros beyond the whole."""
    rows = extended(p)
    total = rows[:-2] + rows[2:]
    for axis in range(1, p.ndim):
        wide = jnp.pad(p, [(int(axis == other),) * 2 for other in range(p.ndim)])
        n = p.shape[axis]
        total += lax.slice_in_dim(wide, 0, n, axis=axis) + lax.slice_in_dim(wide, 2, n + 2, axis=axis)
    return total


# Programs: each takes and returns a device's own rows


def conjugate(x: Any, r: Any, p: Any, rr: Any) -> tuple[Any, ...]:
    """An iteration of conjugate gradients, of 5 points in a plane and of 7 in a cube."""
    q = 2 * p.ndim * p - sides(p)
    alpha = rr / lax.psum(jnp.sum(p * q), AXIS)
    x, r = x + alpha * p, r - alpha * q
    new = lax.psum(jnp.sum(r * r), AXIS)
    return x, r, r + new / rr * p, new


def cavity(u: Any, v: Any, p: Any, dt: float = 1e-4, dx: float = 0.05, nu: float = 0.1) -> tuple[Any, ...]:
    first, last = at_ends()
    row = jnp.arange(u.shape[0])[:, None]
    inner = ~((first & (row == 0)) | (last & (row == u.shape[0] - 1)))

    def differences(q: Any) -> tuple[Any, Any]:
        return q[1:-1, 2:] - q[1:-1, :-2], q[2:, 1:-1] - q[:-2, 1:-1]

    def around(q: Any) -> Any:
        return q[1:-1, 2:] + q[1:-1, :-2] + q[2:, 1:-1] + q[:-2, 1:-1]

    wide_u, wide_v = extended(u), extended(v)
    source = (differences(wide_u)[0] + differences(wide_v)[1]) / (2 * dx * dt)

    def sweep(_: Any, p: Any) -> Any:
        new = (around(extended(p)) - dx * dx * source) / 4
        p = p.at[:, 1:-1].set(jnp.where(inner, new, p[:, 1:-1]))
        p = p.at[:, -1].set(p[:, -2])
        p = p.at[0].set(jnp.where(first, p[1], p[0]))
        p = p.at[:, 0].set(p[:, 1])
        return p.at[-1].set(jnp.where(last, 0, p[-1]))

    p = lax.fori_loop(0, 50, sweep, p)
    fields = []
    for field, wide, difference in zip((u, v), (wide_u, wide_v), differences(extended(p)), strict=True):
        own = field[:, 1:-1]
        along = u[:, 1:-1] * (own - field[:, :-2]) + v[:, 1:-1] * (own - wide[:-2, 1:-1])
        spread = around(wide) - 4 * own
        new = own - dt / dx * along - dt / (2 * dx) * difference + nu * dt / dx**2 * spread
        fields.append(field.at[:, 1:-1].set(jnp.where(inner, new, own)))
    u, v = fields
    u = u.at[0].set(jnp.where(first, 0, u[0])).at[:, 0].set(0).at[:, -1].set(0)
    v = v.at[0].set(jnp.where(first, 0, v[0])).at[-1].set(jnp.where(last, 0, v[-1]))
    return u.at[-1].set(jnp.where(last, 1, u[-1])), v.at[:, 0].set(0).at[:, -1].set(0), p


def smoothed(around: Callable[[Any], Any], u: Any, f: Any, sweeps: int) -> Any:
    return lax.fori_loop(0, sweeps, lambda _, u: u + 0.8 * ((around(u) - f) / 4 - u), u)


def v_cycle(u: Any, f: Any, around: Callable[[Any], Any] = sides) -> Any:
    n, m = u.shape
    if around is sides and n < FEW_ROWS:
        whole = [lax.all_gather(a, AXIS, tiled=True) for a in (u, f)]
        return lax.dynamic_slice_in_dim(v_cycle(*whole, sides_of_whole), lax.axis_index(AXIS) * n, n)
    if min(n, m) < 4:
        return smoothed(around, u, f, 20)
    u = smoothed(around, u, f, 2)
    residual = f - (around(u) - 4 * u)
    coarse = residual.reshape(n // 2, 2, m // 2, 2).mean(axis=(1, 3))
    error = v_cycle(jnp.zeros_like(coarse), coarse, around)
    return smoothed(around, u + jnp.repeat(jnp.repeat(error, 2, axis=0), 2, axis=1), f, 2)


def sides_of_whole(u: Any) -> Any:
    q = jnp.pad(u, 1)
    return q[:-2, 1:-1] + q[2:, 1:-1] + q[1:-1, :-2] + q[1:-1, 2:]


def shallow_water(h: Any, u: Any, v: Any, courant: float = 0.3) -> tuple[Any, ...]:
    first, last = at_ends()
    dt = courant / jnp.sqrt(1 + lax.pmax(jnp.max(h), AXIS))
    u = u - dt * (h - extended(h)[:-2])
    u = u.at[0].set(jnp.where(first, 0, u[0]))
    v = v.at[:, 1:].add(-dt * (h[:, 1:] - h[:, :-1])).at[:, 0].set(0)
    flow = extended(u)[2:] - u
    h = h - dt * flow.at[-1].set(jnp.where(last, 0, flow[-1]))
    h = h.at[:, :-1].add(-dt * (v[:, 1:] - v[:, :-1]))
    h = h.at[-1].set(jnp.where(last, h[-2], h[-1]))
    return h.at[:, -1].set(h[:, -2]), u, v


def turbulence(w: Any, dt: float = 1e-4, nu: float = 1e-4) -> Any:
    """A step of Runge and Kutta; the spectrum is split along its columns, some of them beyond the last."""
    ranks, m = lax.axis_size(AXIS), w.shape[1]
    n, columns = w.shape[0] * ranks, m // 2 + 1
    mine = -(-columns // ranks)
    kx = (lax.axis_index(AXIS) * mine + jnp.arange(mine)).astype(w.dtype)
    ky = jnp.fft.fftfreq(n, 1 / n).astype(w.dtype)[:, None]
    k2 = kx**2 + ky**2
    kept = (jnp.abs(kx) < m / 3) & (jnp.abs(ky) < n / 3)

    def forward(a: Any) -> Any:
        half = jnp.pad(jnp.fft.rfft(a, axis=1), ((0, 0), (0, mine * ranks - columns)))
        return jnp.fft.fft(lax.all_to_all(half, AXIS, 1, 0, tiled=True), axis=0)

    def inverse(s: Any) -> Any:
        rows = lax.all_to_all(jnp.fft.ifft(s, axis=0), AXIS, 0, 1, tiled=True)
        return jnp.fft.irfft(rows[:, :columns], m, axis=1)

    def change(s: Any) -> Any:
        psi = s / jnp.where(k2 == 0, 1, k2)
        u, v = inverse(1j * ky * psi), inverse(-1j * kx * psi)
        return -nu * k2 * s - kept * forward(u * inverse(1j * kx * s) + v * inverse(1j * ky * s))

    s = forward(w)
    a = change(s)
    b = change(s + dt / 2 * a)
    c = change(s + dt / 2 * b)
    return inverse(s + dt / 6 * (a + 2 * b + 2 * c + change(s + dt * c)))


# The functions, their inputs by axes, and the results that feed the next step
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[int, ...], int]] = {
    "cavity": (cavity, (2, 2, 2), 3),
    "conjugate_step": (conjugate, (2, 2, 2, 0), 4),
    "conjugate_cube": (conjugate, (3, 3, 3, 0), 4),
    "v_cycle": (v_cycle, (2, 2), 1),
    "turbulence": (turbulence, (2,), 1),
    "shallow_water": (shallow_water, (2, 2, 2), 3),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--devices", type=int, default=len(jax.devices()))
    parser.add_argument("--only", nargs="+", default=[f"{name}:1024" for name in PROGRAMS])
    parser.add_argument("--seconds", type=float, default=0.2, help="of a round, about")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.devices > len(jax.devices()):
        raise SystemExit(f"JAX has {len(jax.devices())} devices, {options.devices} are asked for")
    mesh = Mesh(np.array(jax.devices()[: options.devices]), (AXIS,))
    # Devices of a CPU share its threads: those of the next step may keep this one's from meeting.
    if jax.default_backend() == "cpu":
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    rows: list[dict[str, Any]] = []
    failed = []
    print(f"{'program':<22} {'size':>6} {'us a step':>10}", flush=True)
    for word in options.only:
        name, _, size = word.partition(":")
        if options.check:
            check(mesh, name, int(size))
            continue
        try:
            rows.append(measure(mesh, name, int(size), options))
        except jax.errors.JaxRuntimeError as error:  # too little memory, mostly: the next one may fit
            failed.append(name)
            print(f"{name:<22} {size:>6} {str(error).splitlines()[0]}", flush=True)
            continue
        print(f"{name:<22} {size:>6} {rows[-1]['microseconds']:>10.1f}", flush=True)
        # A limit of time may end the programs that follow.
        if options.json:
            about = {"benchmark": "programs", "method": f"JAX {jax.__version__}", "ranks": options.devices}
            options.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    if failed:
        raise SystemExit(f"JAX failed in {', '.join(failed)}")


def sharded(mesh: Mesh, name: str) -> Callable[..., tuple[Any, ...]]:
    """Return a step of a program, whose fields of the step before are overwritten."""
    function, axes, outputs = PROGRAMS[name]
    specs = [SPLIT if axis else WHOLE for axis in axes]

    def step(*state: Any) -> tuple[Any, ...]:
        results = function(*state)
        return results if isinstance(results, tuple) else (results,)

    split = jax.shard_map(
        step, mesh=mesh, in_specs=tuple(specs), out_specs=tuple(specs[:outputs]), check_vma=False
    )
    return jax.jit(split, donate_argnums=tuple(range(outputs)))


def measure(mesh: Mesh, name: str, size: int, options: argparse.Namespace) -> dict[str, Any]:
    _, axes, outputs = PROGRAMS[name]
    step, state = sharded(mesh, name), []
    for number, axis in enumerate(axes):
        # Smooth fields with some noise, made by each device for itself.
        sharding = NamedSharding(mesh, SPLIT if axis else WHOLE)
        make = jax.jit(
            lambda key, shape=(size,) * axis: 0.5 + 0.01 * jax.random.uniform(key, shape),
            out_shardings=sharding,
        )
        state.append(make(jax.random.key(number)))

    def take(steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            state[:outputs] = step(*state)
        jax.block_until_ready(state)
        return (time.perf_counter() - begin) / steps

    take(2)  # compiles, and once more for arrays that a step laid out
    steps = max(int(options.seconds / take(4)), 1)
    rounds = [take(steps) for _ in range(options.rounds)]
    return {"program": name, "size": size, "steps": steps, "microseconds": 1e6 * statistics.median(rounds)}


def check(mesh: Mesh, name: str, size: int) -> None:
    """Fail if a step differs from NumPy's by more than rounding."""
    import programs

    _, axes, outputs = PROGRAMS[name]
    draw = np.random.default_rng(0)
    state = [(0.5 + 0.01 * draw.random((size,) * axis)).astype(np.float32) for axis in axes]
    specs = [NamedSharding(mesh, SPLIT if axis else WHOLE) for axis in axes]
    results = sharded(mesh, name)(*map(partial(jax.device_put), state, specs))
    expected = programs.PROGRAMS[name][0].function(*(a.copy() for a in state))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, right in zip(results, expected[:outputs], strict=True):
        largest = float(np.abs(right).max())
        if not np.allclose(got, right, rtol=1e-3, atol=1e-3 * largest):
            raise SystemExit(f"{name} {size}: JAX computes something else: {np.abs(got - right).max():.3g}")
    print(f"{name:<22} {size:>6} as NumPy", flush=True)


if __name__ == "__main__":
    main()
