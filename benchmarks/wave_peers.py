"""An acoustic wave of order 8 in space, with and without sources and receivers, in meshrun, Devito and JAX.

    python benchmarks/wave_peers.py [--peers PYTHON] [--steps 100] [--rounds 3] [--json FILE]

2048 x 2048 float32 on the processors of this machine: meshrun on two ranks, Devito with two OpenMP threads,
JAX with the threads that it takes. PYTHON: an interpreter that has devito and jax. The methods take turns; a
figure is the median over rounds of the seconds per step, without starting, tracing and compiling.
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
from pathlib import Path
from typing import Any

import numpy as np

SIDE, SOURCES, RECEIVERS, RANKS = 2048, 16, 512, 2
MIDDLE = np.linspace(SIDE // 8, 7 * SIDE // 8, SOURCES).astype(int)
AT_SOURCES = np.full(SOURCES, SIDE // 4), MIDDLE
AT_RECEIVERS = np.full(RECEIVERS, 16), np.linspace(8, SIDE - 9, RECEIVERS).astype(int)
EIGHTH = (-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560)  # weights of a second derivative, by distance
SPEED = 0.05  # squared, times the step in time over the spacing, squared


def in_meshrun(points: bool, steps: int) -> float:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        names = [f"{folder}/{name}.npy" for name in ("now", "before", "speed", "a", "b", "traces", "wavelet")]
        for name in names[:3]:
            np.save(name, np.full((SIDE, SIDE), SPEED, np.float32))
        np.save(names[6], wavelet(steps))
        job = f"{Path(__file__).with_name('whole_costs.py')}:{'acoustic_2048' if points else 'acoustic'}"
        given = [*names[:5], names[5], "--wavelet", names[6]] if points else names[:5]
        record = f"{folder}/record.json"
        words = ["-m", "meshrun", "-n", str(RANKS), "run", job, *given, "--steps", str(steps)]
        words += ["--fuse", "require", "--device", "cpu", "--json", record]
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        taken: float = json.loads(Path(record).read_text())["steps"]["seconds"]
    return taken / steps


def in_devito(points: bool, steps: int) -> float:
    from devito import Eq, Function, Grid, Operator, SparseTimeFunction, TimeFunction, solve

    grid = Grid(shape=(SIDE, SIDE), extent=(SIDE - 1.0, SIDE - 1.0), dtype=np.float32)
    field = TimeFunction(name="u", grid=grid, time_order=2, space_order=8)
    slowness = Function(name="m", grid=grid, space_order=8)
    slowness.data[:] = 1 / SPEED
    updates = [Eq(field.forward, solve(slowness * field.dt2 - field.laplace, field.forward))]
    if points:
        known: dict[str, Any] = {"grid": grid, "nt": steps + 2}
        sources = SparseTimeFunction(name="src", npoint=SOURCES, **known)
        receivers = SparseTimeFunction(name="rec", npoint=RECEIVERS, **known)
        sources.coordinates.data[:] = np.stack(AT_SOURCES, -1)
        receivers.coordinates.data[:] = np.stack(AT_RECEIVERS, -1)
        sources.data[:] = wavelet(steps + 2)[:, None]
        updates += sources.inject(field=field.forward, expr=sources)
        updates += receivers.interpolate(expr=field.forward)
    operator = Operator(updates)
    operator.apply(time_m=1, time_M=2, dt=1.0)
    begin = time.perf_counter()
    operator.apply(time_m=1, time_M=steps, dt=1.0)
    return (time.perf_counter() - begin) / steps


def in_jax(points: bool, steps: int) -> float:
    import jax
    import jax.numpy as jnp

    def step(number: Any, state: Any) -> Any:
        now, before, traces = state
        centre = now[4:-4, 4:-4]
        total = 2 * EIGHTH[0] * centre
        for far, weight in enumerate(EIGHTH[1:], 1):
            rows = now[4 + far : SIDE - 4 + far, 4:-4] + now[4 - far : SIDE - 4 - far, 4:-4]
            columns = now[4:-4, 4 + far : SIDE - 4 + far] + now[4:-4, 4 - far : SIDE - 4 - far]
            total = total + weight * (rows + columns)
        new = jnp.pad(2 * centre - before[4:-4, 4:-4] + SPEED * total, 4)
        if points:
            new = new.at[AT_SOURCES].add(table[number])
            traces = traces.at[number].set(new[AT_RECEIVERS])
        return new, now, traces

    table = jnp.asarray(wavelet(steps))
    run = jax.jit(lambda *state: jax.lax.fori_loop(0, steps, step, state), donate_argnums=(0, 1, 2))
    taken = 0.0
    for _ in range(2):  # the first time it is compiled
        state = [jnp.full((SIDE, SIDE), SPEED, jnp.float32) for _ in range(2)]
        state.append(jnp.zeros((steps, RECEIVERS), jnp.float32))
        jax.block_until_ready(state)
        begin = time.perf_counter()
        jax.block_until_ready(run(*state))
        taken = time.perf_counter() - begin
    return taken / steps


def wavelet(steps: int) -> Any:
    return np.sin(0.1 * np.arange(steps, dtype=np.float32))


METHODS = {"meshrun": in_meshrun, "devito": in_devito, "jax": in_jax}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--method", choices=METHODS, help="measure this one once, and print it")
    parser.add_argument("--points", action="store_true", help="with --method")
    options = parser.parse_args()
    if options.method:
        print(METHODS[options.method](options.points, options.steps))
        return

    # The methods take turns.
    times: dict[tuple[str, bool], list[float]] = {}
    variables = {"OMP_NUM_THREADS": str(RANKS), "DEVITO_LANGUAGE": "openmp", "DEVITO_LOGGING": "ERROR"}
    for _ in range(options.rounds):
        for name in METHODS:
            for points in (False, True):
                python = sys.executable if name == "meshrun" else options.peers
                words = [python, __file__, "--method", name, "--steps", str(options.steps)]
                words += ["--points"] if points else []
                done = subprocess.run(
                    words, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
                )
                times.setdefault((name, points), []).append(float(done.stdout.split()[-1]))

    print(f"{'':<10}{'ms a step':>12}{'with points':>14}{'quotient':>10}")
    rows = []
    for name in METHODS:
        alone, both = (1e3 * statistics.median(times[name, points]) for points in (False, True))
        rows.append({"method": name, "without_ms": alone, "with_ms": both, "quotient": both / alone})
        print(f"{name:<10}{alone:12.2f}{both:14.2f}{both / alone:10.3f}")
    if options.json:
        from meshrun.runner.report.record import write_json

        asked = "import devito, jax, numpy; print(devito.__version__, jax.__version__, numpy.__version__)"
        known = subprocess.run(
            [options.peers, "-c", asked], check=True, capture_output=True, text=True
        ).stdout
        versions = dict(zip(("devito", "jax", "numpy"), known.split(), strict=True))
        record = {"benchmark": "wave_peers", "side": SIDE, "steps": options.steps, "rounds": options.rounds}
        record |= {"machine": platform.processor() or platform.machine(), "cpus": os.cpu_count()}
        write_json(options.json, "benchmark", 1, {**record, "versions": versions, "rows": rows})


if __name__ == "__main__":
    main()
