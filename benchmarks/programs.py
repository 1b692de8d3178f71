"""Time solvers that are programs: loops, values, levels and Fourier transforms in functions of whole arrays.

    python benchmarks/programs.py [--only NAME | NAME:SIZE ...] [--sizes 1024 8192] [--device auto|cpu|cuda]
        [--json FILE]

On several ranks with `mpirun -n N`. float32. Each row is a step of a program: of turbulence (Runge-Kutta, 22
transforms of real numbers; 20 if the state is the spectrum), of Schroedinger's equation by split steps, of
cavity flow with 50 sweeps for the pressure, a V-cycle of multigrid on cells (2 + 2 damped Jacobi sweeps, 20
at the bottom), of linear shallow water as long as the highest water allows, or an iteration of conjugate
gradients with five points, as a step and in a `while` loop, and with seven points of a cube.
Microseconds per step: the median of the rounds, the slowest rank. The programs take turns only with
themselves: compare those of one run. The JSON is written after each row.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from whole_arrays import seconds_per_step
from whole_costs import shallow_water_adaptive

import meshrun
from meshrun.runner.arrays.distributed_array import empty_array
from meshrun.runner.compiler.inferred_halo import with_inferred_halo
from meshrun.runner.job.declaration import Job
from meshrun.runner.plan.task import plan_task
from meshrun.runner.report.phases import Phases
from meshrun.runner.report.record import write_json
from meshrun.runner.run.prepare import fused
from meshrun.runner.steps.program_steps import ProgramStepper
from meshrun.runner.steps.stepper import EAGER, Stepper
from meshrun.runner.world.world import World, open_world

Field = np.ndarray[Any, Any]
ITERATIONS = 64  # of a loop of conjugate gradients in one step
MULTIPLE = 8  # of steps: CUDA graphs hold 32, 8 or 2, and a step that is left over is issued by the host


# Turbulence and Schroedinger's equation


def wave_numbers(n: int, m: int, dtype: Any, *, half: bool) -> tuple[Field, Field]:
    kx = np.fft.rfftfreq(m, 1 / m) if half else np.fft.fftfreq(m, 1 / m)
    return kx.astype(dtype), np.fft.fftfreq(n, 1 / n).astype(dtype)[:, None]


def runge_kutta(w: Field, shape: tuple[int, int], dt: float, nu: float) -> Field:
    """Take a step of the spectrum of the vorticity of a fluid in a periodic square."""
    n, m = shape
    kx, ky = wave_numbers(n, m, w.real.dtype, half=True)
    k2 = kx**2 + ky**2
    kept = (np.abs(kx) < m / 3) & (np.abs(ky) < n / 3)

    def change(w: Field) -> Field:
        psi = w / np.where(k2 == 0, 1, k2)
        u, v = np.fft.irfft2(1j * ky * psi, shape), np.fft.irfft2(-1j * kx * psi, shape)
        wx, wy = np.fft.irfft2(1j * kx * w, shape), np.fft.irfft2(1j * ky * w, shape)
        return -nu * k2 * w - kept * np.fft.rfft2(u * wx + v * wy)

    a = change(w)
    b = change(w + dt / 2 * a)
    c = change(w + dt / 2 * b)
    return w + dt / 6 * (a + 2 * b + 2 * c + change(w + dt * c))


@meshrun.distribute
def turbulence(vorticity, *, dt: float = 1e-4, nu: float = 1e-4):
    return np.fft.irfft2(runge_kutta(np.fft.rfft2(vorticity), vorticity.shape, dt, nu), vorticity.shape)


@meshrun.distribute
def turbulence_spectrum(w, *, dt: float = 1e-4, nu: float = 1e-4):
    return runge_kutta(w, (w.shape[0], 2 * (w.shape[1] - 1)), dt, nu)


@meshrun.distribute
def split_step(psi, potential, *, dt: float = 1e-3):
    kx, ky = wave_numbers(*psi.shape, psi.real.dtype, half=False)
    half = np.exp(-0.5j * dt * potential)
    return half * np.fft.ifft2(np.exp(-0.5j * dt * (kx**2 + ky**2)) * np.fft.fft2(half * psi))


@meshrun.distribute
def heat_implicit(u, *, rate: float = 0.1):
    """Take an implicit step of heat on a torus."""
    n, m = u.shape
    ky, kx = (2 - 2 * np.cos(2 * np.pi * np.fft.fftfreq(k).astype(u.dtype)) for k in (n, m))
    return np.fft.ifft2(np.fft.fft2(u) / (1 + rate * (ky[:, None] + kx))).real


# Cavity flow


@meshrun.distribute(outputs=("u", "v", "p"))
def cavity(u, v, p, *, sweeps: int = 50, dt: float = 1e-4, dx: float = 0.05, nu: float = 0.1):
    source = np.zeros_like(p)
    source[1:-1, 1:-1] = (u[1:-1, 2:] - u[1:-1, :-2] + v[2:, 1:-1] - v[:-2, 1:-1]) / (2 * dx * dt)
    for _ in range(sweeps):
        q = p.copy()
        around = q[1:-1, 2:] + q[1:-1, :-2] + q[2:, 1:-1] + q[:-2, 1:-1]
        p[1:-1, 1:-1] = (around - dx * dx * source[1:-1, 1:-1]) / 4
        p[:, -1], p[0, :], p[:, 0] = p[:, -2], p[1, :], p[:, 1]
        p[-1, :] = 0
    old_u, old_v = u.copy(), v.copy()
    for field, old, (up, down) in (
        (u, old_u, (p[1:-1, 2:], p[1:-1, :-2])), (v, old_v, (p[2:, 1:-1], p[:-2, 1:-1])),
    ):  # fmt: skip
        own = old[1:-1, 1:-1]
        along = old_u[1:-1, 1:-1] * (own - old[1:-1, :-2]) + old_v[1:-1, 1:-1] * (own - old[:-2, 1:-1])
        around = old[1:-1, 2:] + old[1:-1, :-2] + old[2:, 1:-1] + old[:-2, 1:-1] - 4 * own
        field[1:-1, 1:-1] = own - dt / dx * along - dt / (2 * dx) * (up - down) + nu * dt / dx**2 * around
    u[0], u[:, 0], u[:, -1], u[-1] = 0, 0, 0, 1
    v[0], v[-1], v[:, 0], v[:, -1] = 0, 0, 0, 0
    return u, v, p


# Multigrid and conjugate gradients


def smoothed(u: Field, f: Field, sweeps: int) -> Field:
    for _ in range(sweeps):
        p = np.pad(u, 1)
        around = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]
        u = u + 0.8 * ((around - f) / 4 - u)
    return u


def cycle(u: Field, f: Field) -> Field:
    n, m = u.shape
    if min(n, m) < 4:
        return smoothed(u, f, 20)
    u = smoothed(u, f, 2)
    p = np.pad(u, 1)
    residual = f - (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * u)
    coarse = residual.reshape(n // 2, 2, m // 2, 2).mean(axis=(1, 3))
    error = cycle(np.zeros_like(coarse), coarse)
    return smoothed(u + np.repeat(np.repeat(error, 2, axis=0), 2, axis=1), f, 2)


@meshrun.distribute(outputs=("u",))
def v_cycle(u, f):
    return cycle(u, f)


def product(p: Field) -> Field:
    q = 4 * p
    q[1:] -= p[:-1]
    q[:-1] -= p[1:]
    q[:, 1:] -= p[:, :-1]
    q[:, :-1] -= p[:, 1:]
    return q


def product_of_cube(p: Field) -> Field:
    q = 6 * p
    q[1:] -= p[:-1]
    q[:-1] -= p[1:]
    q[:, 1:] -= p[:, :-1]
    q[:, :-1] -= p[:, 1:]
    q[:, :, 1:] -= p[:, :, :-1]
    q[:, :, :-1] -= p[:, :, 1:]
    return q


def iteration(q: Field, x: Field, r: Field, p: Field, rr: Any) -> tuple[Field, Field, Field, Any]:
    """Return the state of conjugate gradients after an iteration whose product is q."""
    alpha = rr / np.sum(p * q)
    x, r = x + alpha * p, r - alpha * q
    new = np.sum(r * r)
    return x, r, r + new / rr * p, new


@meshrun.distribute(outputs=("x", "r", "p", "rr"))
def conjugate_step(x, r, p, rr):
    return iteration(product(p), x, r, p, rr)


@meshrun.distribute(outputs=("x", "r", "p", "rr"))
def conjugate_cube(x, r, p, rr):
    return iteration(product_of_cube(p), x, r, p, rr)


@meshrun.distribute(outputs=("x",))
def conjugate_loop(x, b, *, most: int = ITERATIONS):
    r = b - product(x)
    p, rr, iterations = r.copy(), np.sum(r * r), 0
    while np.sqrt(rr) > 1e-30 and iterations < most:
        x, r, p, rr = iteration(product(p), x, r, p, rr)
        iterations += 1
    return x


# Recurrences


@meshrun.distribute(outputs=("u",))
def recurrence(u, b):
    for i in range(1, u.shape[0]):
        u[i] = 0.5 * u[i - 1] + b[i]
    return u


@meshrun.distribute(outputs=("x",))
def thomas(b, *, k: float = 0.7):
    """Solve (1 + 2k) x[i] - k (x[i-1] + x[i+1]) = b[i] along axis 0."""
    c, x, n = np.zeros_like(b), b.copy(), b.shape[0]
    c[0], x[0] = -k / (1 + 2 * k), b[0] / (1 + 2 * k)
    for i in range(1, n):
        m = 1 + 2 * k + k * c[i - 1]
        c[i] = -k / m
        x[i] = (b[i] + k * x[i - 1]) / m
    for i in range(n - 2, -1, -1):
        x[i] -= c[i] * x[i + 1]
    return x


# The functions, the dtypes of their inputs, and the iterations of a step. A dtype of rank 0 has a "*".
PROGRAMS: dict[str, tuple[Job, list[str], int]] = {
    "turbulence": (turbulence, ["f4"], 1),
    "turbulence_spectrum": (turbulence_spectrum, ["c8"], 1),
    "split_step": (split_step, ["c8", "f4"], 1),
    "heat_implicit": (heat_implicit, ["f4"], 1),
    "cavity": (cavity, ["f4"] * 3, 1),
    "v_cycle": (v_cycle, ["f4"] * 2, 1),
    "shallow_water": (shallow_water_adaptive, ["f4"] * 3, 1),
    "conjugate_step": (conjugate_step, ["f4"] * 3 + ["f4*"], 1),
    "conjugate_loop": (conjugate_loop, ["f4"] * 2, ITERATIONS),
    "conjugate_cube": (conjugate_cube, ["f4"] * 3 + ["f4*"], 1),
}
# On CPUs alone: a GPU computes all rows in each iteration.
RECURRENCES: dict[str, tuple[Job, list[str], int]] = {
    "recurrence": (recurrence, ["f4"] * 2, 1),
    "thomas": (thomas, ["f4"], 1),
}


CUBES = ("conjugate_cube",)  # of three axes, each of the cells that --sizes or NAME:SIZE says


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=[name for name in PROGRAMS if name not in CUBES],
        help="these programs; NAME:SIZE for one of a size of its own",
    )  # fmt: skip
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 4096, 8192], help="cells of an axis")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a round, about")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    try:
        cases = cases_of(options.only, options.sizes)
    except ValueError as error:
        parser.error(str(error))
    with open_world(options.device) as world:
        rows: list[dict[str, Any]] = []
        about = {"benchmark": "programs", "rounds": options.rounds, "seconds": options.seconds}
        about |= {"ranks": world.size, "devices": world.places(), "versions": world.versions()}
        if world.rank == 0:
            print(f"{'program':<22} {'size':>6} {'us a step':>10}  graph", flush=True)
        for name, size in cases:
            rows.append(measure(world, name, size, options))
            world.backend.release_memory()
            # A limit of time may end the programs that follow.
            if options.json and world.rank == 0:
                write_json(options.json, "benchmark", 1, {**about, "rows": rows})


def cases_of(words: list[str], sizes: list[int]) -> list[tuple[str, int]]:
    """Return programs and their cells along an axis, from NAME and NAME:SIZE. Raises ValueError."""
    cases = []
    for word in words:
        name, _, size = word.partition(":")
        if name not in PROGRAMS | RECURRENCES:
            raise ValueError(f"there is no program {name}. Known: {', '.join(PROGRAMS | RECURRENCES)}")
        if size and not size.isdecimal():
            raise ValueError(f"the size of {word} is no whole number")
        cases += [(name, each) for each in ([int(size)] if size else sizes)]
    return cases


def measure(world: World, name: str, size: int, options: argparse.Namespace) -> dict[str, Any]:
    """Print and return the row of a program and a size. Collective."""
    job, dtypes, iterations = (PROGRAMS | RECURRENCES)[name]
    shape = (size, size // 2 + 1) if name == "turbulence_spectrum" else (size,) * (3 if name in CUBES else 2)
    types = [(() if one.endswith("*") else shape, np.dtype(one.strip("*"))) for one in dtypes]
    take, stepper = stepping(world, job, types)
    # The first steps on a GPU are issued one by one; those that are timed may be CUDA graphs.
    take(EAGER if world.backend.asynchronous else 4)
    take(MULTIPLE)
    steps = int(options.seconds / max(world.control.allgather(take(MULTIPLE))))
    steps = max(steps // MULTIPLE, 1) * MULTIPLE if world.backend.asynchronous else max(steps, 1)
    take(steps)
    rounds = [max(world.control.allgather(take(steps))) for _ in range(options.rounds)]
    row = {
        "program": name, "size": size, "steps": steps, "iterations": iterations,
        "microseconds": 1e6 * statistics.median(rounds) / iterations,
        "graph": stepper.graph, "graph_reason": stepper.graph_reason,
    }  # fmt: skip
    if world.rank == 0:
        graph = "yes" if stepper.graph else stepper.graph_reason or "no"
        print(f"{name:<22} {size:>6} {row['microseconds']:>10.1f}  {graph}", flush=True)
    return row


def stepping(
    world: World, job: Job, types: list[tuple[tuple[int, ...], np.dtype[Any]]]
) -> tuple[Callable[[int], float], Stepper]:
    """Return what takes steps and tells the seconds of each, and the stepper. Collective."""
    parameters = job.complete({})
    job = with_inferred_halo(job, types, parameters, world.backend.device.kind)
    task, _ = fused(world, plan_task(job, parameters, types, world.size), "require", "strict", 1000)
    kind = Stepper if task.job.program is None else ProgramStepper
    stepper = kind(world, task, Phases(world.backend.synchronize))
    # A smooth field with some noise, so that no value is extreme.
    arrays = []
    for number, (plan, field) in enumerate(zip(stepper.plans, task.fields, strict=True)):
        arrays.append(empty_array(world, plan, field.dtype, stepper))
        own = arrays[-1].interior
        noise = world.xp.random.RandomState(number).random_sample(own.shape)
        own[...] = (0.5 + 0.01 * noise).astype(field.dtype)
    stepper.start(arrays)
    return partial(seconds_per_step, world, stepper), stepper


if __name__ == "__main__":
    main()
