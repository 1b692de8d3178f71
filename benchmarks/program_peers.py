"""The solvers of programs.py on two CPU cores: meshrun's two ranks, NumPy as written, and JAX.

    python benchmarks/program_peers.py [--jax PYTHON] [--sizes 512 1024] [--rounds 7] [--json FILE]

PYTHON: an interpreter that has JAX. float32. Each method has a process of its own (meshrun: two), which waits
without using a core while another one measures. In each round, the methods take turns on each program and
size, with steps for about --seconds. Medians of rounds, microseconds per step (of conjugate gradients: per
iteration), and the least processor time of a round, of all threads and ranks: where other work loads the
machine, elapsed time grows and processor time hardly does, but for ranks that wait for each other.
All methods have the same cores, one for each rank. JAX's results after one step are compared with NumPy's;
tests compare meshrun's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Take = Callable[[int], None]
ITERATIONS = 64  # of a loop of conjugate gradients in one step
SHAPES = {"turbulence": "v", "split_step": "cv", "cavity": "vvv", "v_cycle": "vv", "conjugate_step": "vvv1",
          "conjugate_loop": "vv", "heat_implicit": "v", "recurrence": "vv", "thomas": "v"}  # fmt: skip
OUTPUTS = {"cavity": 3, "conjugate_step": 4}  # results that feed the next step; by default, one


def inputs(name: str, size: int) -> list[Any]:
    """Return smooth fields with some noise: real ones, complex ones, and numbers."""
    noise = np.random.default_rng(0)
    fields: list[Any] = []
    for kind in SHAPES[name]:
        if kind == "1":
            fields.append(np.array(size * size / 4, np.float32))
            continue
        field = 0.5 + 0.01 * noise.random((size, size))
        fields.append(field.astype(np.complex64 if kind == "c" else np.float32))
    return fields


# The programs in JAX: `jit`, loops of `lax`, and updates by `at`.


def spectral_in_jax() -> list[Callable[..., Any]]:
    import jax.numpy as jnp

    def turbulence(w: Any, dt: float = 1e-4, nu: float = 1e-4) -> Any:
        n, m = w.shape
        kx = jnp.fft.rfftfreq(m, 1 / m).astype(w.dtype)
        ky = jnp.fft.fftfreq(n, 1 / n).astype(w.dtype)[:, None]
        k2 = kx**2 + ky**2
        kept = (jnp.abs(kx) < m / 3) & (jnp.abs(ky) < n / 3)

        def change(s: Any) -> Any:
            psi = s / jnp.where(k2 == 0, 1, k2)
            u, v = jnp.fft.irfft2(1j * ky * psi, w.shape), jnp.fft.irfft2(-1j * kx * psi, w.shape)
            wx, wy = jnp.fft.irfft2(1j * kx * s, w.shape), jnp.fft.irfft2(1j * ky * s, w.shape)
            return -nu * k2 * s - kept * jnp.fft.rfft2(u * wx + v * wy)

        s = jnp.fft.rfft2(w)
        a = change(s)
        b = change(s + dt / 2 * a)
        c = change(s + dt / 2 * b)
        return jnp.fft.irfft2(s + dt / 6 * (a + 2 * b + 2 * c + change(s + dt * c)), w.shape)

    def split_step(psi: Any, potential: Any, dt: float = 1e-3) -> Any:
        n, m = psi.shape
        kx = jnp.fft.fftfreq(m, 1 / m).astype(jnp.float32)
        ky = jnp.fft.fftfreq(n, 1 / n).astype(jnp.float32)[:, None]
        half = jnp.exp(-0.5j * dt * potential)
        return half * jnp.fft.ifft2(jnp.exp(-0.5j * dt * (kx**2 + ky**2)) * jnp.fft.fft2(half * psi))

    def heat_implicit(u: Any, rate: float = 0.1) -> Any:
        k = [2 - 2 * jnp.cos(2 * jnp.pi * jnp.fft.fftfreq(n).astype(u.dtype)) for n in u.shape]
        return jnp.fft.ifft2(jnp.fft.fft2(u) / (1 + rate * (k[0][:, None] + k[1]))).real

    return [turbulence, split_step, heat_implicit]


def around(q: Any) -> Any:
    return q[1:-1, 2:] + q[1:-1, :-2] + q[2:, 1:-1] + q[:-2, 1:-1]


def cavity_in_jax() -> Callable[..., Any]:
    from jax import lax

    def cavity(u: Any, v: Any, p: Any, dt: float = 1e-4, dx: float = 0.05, nu: float = 0.1) -> Any:
        source = (u[1:-1, 2:] - u[1:-1, :-2] + v[2:, 1:-1] - v[:-2, 1:-1]) / (2 * dx * dt)

        def sweep(_: Any, p: Any) -> Any:
            p = p.at[1:-1, 1:-1].set((around(p) - dx * dx * source) / 4)
            p = p.at[:, -1].set(p[:, -2])
            p = p.at[0, :].set(p[1, :])
            p = p.at[:, 0].set(p[:, 1])
            return p.at[-1, :].set(0)

        p = lax.fori_loop(0, 50, sweep, p)

        def moved(field: Any, difference: Any) -> Any:
            own = field[1:-1, 1:-1]
            along = u[1:-1, 1:-1] * (own - field[1:-1, :-2]) + v[1:-1, 1:-1] * (own - field[:-2, 1:-1])
            spread = around(field) - 4 * own
            new = own - dt / dx * along - dt / (2 * dx) * difference + nu * dt / dx**2 * spread
            return field.at[1:-1, 1:-1].set(new)

        new_u, new_v = moved(u, p[1:-1, 2:] - p[1:-1, :-2]), moved(v, p[2:, 1:-1] - p[:-2, 1:-1])
        new_u = new_u.at[0].set(0).at[:, 0].set(0).at[:, -1].set(0).at[-1].set(1)
        return new_u, new_v.at[0].set(0).at[-1].set(0).at[:, 0].set(0).at[:, -1].set(0), p

    return cavity


def solvers_in_jax() -> list[Callable[..., Any]]:
    import jax.numpy as jnp
    from jax import lax

    def smoothed(u: Any, f: Any, sweeps: int) -> Any:
        return lax.fori_loop(0, sweeps, lambda _, u: u + 0.8 * ((around(jnp.pad(u, 1)) - f) / 4 - u), u)

    def v_cycle(u: Any, f: Any) -> Any:
        n, m = u.shape
        if min(n, m) < 4:
            return smoothed(u, f, 20)
        u = smoothed(u, f, 2)
        residual = f - (around(jnp.pad(u, 1)) - 4 * u)
        coarse = residual.reshape(n // 2, 2, m // 2, 2).mean(axis=(1, 3))
        error = v_cycle(jnp.zeros_like(coarse), coarse)
        return smoothed(u + jnp.repeat(jnp.repeat(error, 2, axis=0), 2, axis=1), f, 2)

    def product(p: Any) -> Any:
        return 4 * p - around(jnp.pad(p, 1))

    def conjugate_step(x: Any, r: Any, p: Any, rr: Any) -> Any:
        q = product(p)
        alpha = rr / jnp.sum(p * q)
        x, r = x + alpha * p, r - alpha * q
        new = jnp.sum(r * r)
        return x, r, r + new / rr * p, new

    def conjugate_loop(x: Any, b: Any) -> Any:
        def wanted(state: Any) -> Any:
            return (jnp.sqrt(state[3]) > 1e-30) & (state[4] < ITERATIONS)

        r = b - product(x)
        state = (x, r, r, jnp.sum(r * r), 0)
        return lax.while_loop(wanted, lambda s: (*conjugate_step(*s[:4]), s[4] + 1), state)[0]

    return [v_cycle, conjugate_step, conjugate_loop]


def recurrences_in_jax() -> list[Callable[..., Any]]:
    import jax.numpy as jnp
    from jax import lax

    def recurrence(u: Any, b: Any) -> Any:
        def row(before: Any, own: Any) -> Any:
            new = 0.5 * before + own
            return new, new

        return jnp.concatenate([u[:1], lax.scan(row, u[0], b[1:])[1]])

    def thomas(b: Any, k: float = 0.7) -> Any:
        def forward(before: Any, own: Any) -> Any:
            m = 1 + 2 * k + k * before[0]
            new = -k / m, (own + k * before[1]) / m
            return new, new

        def backward(after: Any, own: Any) -> Any:
            new = own[1] - own[0] * after
            return new, new

        zero = jnp.zeros_like(b[0])
        _, rows = lax.scan(forward, (zero, zero), b)
        return lax.scan(backward, zero, rows, reverse=True)[1]

    return [recurrence, thomas]


def in_jax() -> dict[str, Callable[..., Any]]:
    import jax

    programs = [*spectral_in_jax(), cavity_in_jax(), *solvers_in_jax(), *recurrences_in_jax()]
    return {one.__name__: jax.jit(one) for one in programs}


# The methods, each in a process that takes turns


class Turns:
    """The turns of a method. folder: where the parent says whose turn it is, and methods answer."""

    def __init__(self, folder: Path, method: str) -> None:
        self._folder, self._method, self._done = folder, method, -1

    def __iter__(self) -> Any:
        while True:
            try:
                number, method, name, size, steps = json.loads((self._folder / "turn").read_text())
            except FileNotFoundError:
                number, method = -1, ""
            if method == "end":
                return
            if method == self._method and number > self._done:
                self._done = number
                yield name, size, steps
            else:
                time.sleep(0.005)

    def answer(self, record: Any) -> None:
        path = self._folder / f"{self._method}.{self._done}"
        path.with_suffix(".partial").write_text(json.dumps(record))
        path.with_suffix(".partial").rename(path)


def as_peer(method: str, folder: Path) -> None:
    """Take the turns of NumPy or of JAX."""
    if method == "jax":
        import jax

        programs, ready = in_jax(), jax.block_until_ready
    else:
        import programs as written

        programs, ready = {name: getattr(written, name).function for name in SHAPES}, lambda one: one
    turns = Turns(folder, method)
    for name, size, steps in turns:
        # JAX's first step compiles: the state is made for each turn, the program once.
        state = (
            inputs(name, size) if method == "numpy" else [jax.numpy.asarray(a) for a in inputs(name, size)]
        )
        count = OUTPUTS.get(name, 1)

        def take(steps: int, state: Any = state, name: str = name, count: int = count) -> Any:
            for _ in range(steps):
                results = programs[name](*state)
                state[:count] = results if isinstance(results, tuple) else (results,)
            return ready(state)

        result = [np.array(a) for a in take(1)]
        begin, used = time.perf_counter(), time.process_time()
        take(steps)
        spent = [(time.perf_counter() - begin) / steps, (time.process_time() - used) / steps]
        np.savez(folder / f"{name}.{size}.{method}.npz", *result[:count])
        turns.answer(spent)


def as_ranks(folder: Path) -> None:
    """Take the turns of meshrun, on each rank."""
    from programs import PROGRAMS, RECURRENCES, stepping

    from meshrun.runner.steps.stepper import Stepper
    from meshrun.runner.world.world import open_world

    with open_world("cpu") as world:
        known: dict[tuple[str, int], tuple[Callable[[int], float], Stepper]] = {}
        turns = Turns(folder, "meshrun")
        for name, size, steps in turns:
            job, dtypes, _ = (PROGRAMS | RECURRENCES)[name]
            if (name, size) not in known:
                types = [
                    (() if one.endswith("*") else (size, size), np.dtype(one.strip("*"))) for one in dtypes
                ]
                known[name, size] = stepping(world, job, types)
            take, _ = known[name, size]
            take(1)
            used = time.process_time()
            elapsed = max(world.control.allgather(take(steps)))
            used = sum(world.control.allgather(time.process_time() - used)) / steps
            if world.rank == 0:
                turns.answer([elapsed, used])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=SHAPES, nargs="+", default=[*SHAPES], help="these programs")
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048], help="cells of an axis")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a turn, about")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--jax", default="", help="interpreter that has JAX; by default, without JAX")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--as", dest="part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part == "meshrun":
        as_ranks(options.folder)
    elif options.part:
        as_peer(options.part, options.folder)
    else:
        before = os.getloadavg()
        with tempfile.TemporaryDirectory() as folder:
            rows = compared(Path(folder), options)
        if options.json:
            about = {
                "benchmark": "program_peers", "rounds": options.rounds, "ranks": options.ranks,
                "processor": platform.processor() or platform.machine(), "cores": os.cpu_count(),
                "load_before": before, "load": os.getloadavg(),
            }  # fmt: skip
            options.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def compared(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each program and size."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.ranks])
    own = [str(Path(__file__).resolve()), "--folder", str(folder), "--as"]
    command = ["mpirun", "-n", str(options.ranks), sys.executable, *own, "meshrun"]
    commands = {"meshrun": command, "numpy": [sys.executable, *own, "numpy"]}
    if options.jax:
        commands["jax"] = [options.jax, *own, "jax"]
    processes = {method: subprocess.Popen(words, env=os.environ) for method, words in commands.items()}
    try:
        return measured(folder, options, processes)
    finally:
        # Without a turn, a method would wait for ever, also one whose peer has failed.
        (folder / "partial").write_text(json.dumps([sys.maxsize, "end", "", 0, 0]))
        (folder / "partial").rename(folder / "turn")
        for process in processes.values():
            process.wait()


def measured(
    folder: Path, options: argparse.Namespace, processes: dict[str, subprocess.Popen[bytes]]
) -> list[dict[str, Any]]:
    """Return a row for each program and size. processes: of each method; they take turns in `folder`."""
    number, rows = 0, []

    def turn(method: str, *words: Any) -> Any:
        nonlocal number
        number += 1
        (folder / "partial").write_text(json.dumps([number, method, *words]))
        (folder / "partial").rename(folder / "turn")
        answer = folder / f"{method}.{number}"
        while not answer.exists():
            if processes[method].poll() is not None:
                raise SystemExit(f"{method} ended with status {processes[method].returncode}")
            time.sleep(0.005)
        return json.loads(answer.read_text())

    print(f"{'program':<15} {'size':>5}" + "".join(f" {method + ' (cpu)':>20}" for method in processes))
    for name in options.only:
        for size in options.sizes:
            # The first turns compile, and tell how many steps a turn has.
            steps = {m: max(1, round(options.seconds / turn(m, name, size, 1)[0])) for m in processes}
            spent: dict[str, list[Any]] = {method: [] for method in processes}
            for _ in range(options.rounds):
                for method in processes:
                    spent[method].append(turn(method, name, size, steps[method]))
            scale = 1e6 / (ITERATIONS if name == "conjugate_loop" else 1)
            row: dict[str, Any] = {"program": name, "size": size}
            for method, pairs in spent.items():
                elapsed, used = zip(*pairs, strict=True)
                row[method] = {
                    "microseconds": scale * statistics.median(elapsed), "least": scale * min(elapsed),
                    "processor_microseconds": scale * min(used), "steps": steps[method],
                }  # fmt: skip
            rows.append(row)
            texts = [
                f" {row[m]['microseconds']:>11.0f} ({row[m]['processor_microseconds']:.0f})".rjust(21)
                for m in processes
            ]
            print(f"{name:<15} {size:>5}" + "".join(texts), flush=True)
            check(folder, name, size, row)
    return rows


def check(folder: Path, name: str, size: int, row: dict[str, Any]) -> None:
    """Fail if JAX's first step differs from NumPy's by more than rounding."""
    if "jax" not in row:
        return
    results = [np.load(folder / f"{name}.{size}.{method}.npz") for method in ("numpy", "jax")]
    for key in results[0].files:
        a, b = (one[key] for one in results)
        largest = float(np.abs(a).max())
        if not np.allclose(a, b, rtol=1e-3, atol=1e-3 * largest):
            raise SystemExit(f"{name} {size}: JAX computes something else: {np.abs(a - b).max():.3g}")


if __name__ == "__main__":
    main()
