"""Steps of functions of whole arrays, compared with the same in block form.

    python benchmarks/whole_arrays.py [--side 8192] [--steps 400] [--rounds 5] [--device cuda] [--json FILE]
    mpirun -n 2 python benchmarks/whole_arrays.py

Microseconds per step, medians of rounds in which both forms take turns, of the slowest rank, without files.
Edges that a function writes by index are a boundary in block form. single: each step is one pass. several: as
the runner chooses. one pass: over --pass-side squared cells of float32, read and written. Cubes have
--cube-side cells along each axis, other fields --side. copy: the bytes that a step reads and writes, per
second, over the rate of a copy on the same device; more than 1 if several steps read and write the fields
once.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import meshrun
from meshrun.runner.arrays.distributed_array import empty_array
from meshrun.runner.compiler.inferred_halo import with_inferred_halo
from meshrun.runner.job.declaration import Job
from meshrun.runner.plan.task import Task, plan_task
from meshrun.runner.report.phases import Phases
from meshrun.runner.report.record import write_json
from meshrun.runner.run.prepare import fused
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.world.world import World, open_world


@meshrun.distribute
def heat(u, *, rate: float = 0.2):
    """A plate with a hot edge, a cold one, and two through which nothing flows."""
    new = u.copy()
    new[1:-1, 1:-1] += rate * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    new[0], new[-1] = 1, 0
    new[:, 0], new[:, -1] = new[:, 1], new[:, -2]
    return new


@meshrun.map_blocks(halo=1, boundary="nearest")
def heat_blocks(u, *, rate: float = 0.2):
    centre = u[1:-1, 1:-1]
    return centre + rate * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * centre)


def inner(u):
    """The cells between the edges of a plate; edges keep their values."""
    new = u.copy()
    new[1:-1, 1:-1] += 0.2 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    return new


@meshrun.distribute
def held(u):
    """A plate with edges of four temperatures."""
    new = inner(u)
    new[0], new[-1] = 1, 0
    new[:, 0], new[:, -1] = 0.5, 0.25
    return new


@meshrun.distribute
def closed(u):
    """A plate through whose edges nothing flows."""
    new = inner(u)
    new[0], new[-1] = new[1], new[-2]
    new[:, 0], new[:, -1] = new[:, 1], new[:, -2]
    return new


@meshrun.distribute
def by_hand(u):
    """A plate whose opposite edges meet, as cells that are copied from the other end."""
    new = inner(u)
    new[0], new[-1] = new[-2], new[1]
    new[:, 0], new[:, -1] = new[:, -2], new[:, 1]
    return new


def plate_blocks(boundary):
    """Return the same in block form, with a boundary."""

    @meshrun.map_blocks(halo=1, boundary=boundary)
    def plate(u):
        centre = u[1:-1, 1:-1]
        return centre + 0.2 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * centre)

    return plate


def cube_inner(u):
    new = u.copy()
    sides = u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1] + u[1:-1, 2:, 1:-1]
    sides = sides + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:]
    new[1:-1, 1:-1, 1:-1] += 0.1 * (sides - 6 * u[1:-1, 1:-1, 1:-1])
    return new


@meshrun.distribute
def cube_closed(u):
    """A cube through whose faces nothing flows."""
    new = cube_inner(u)
    new[0], new[-1] = new[1], new[-2]
    new[:, 0], new[:, -1] = new[:, 1], new[:, -2]
    new[:, :, 0], new[:, :, -1] = new[:, :, 1], new[:, :, -2]
    return new


@meshrun.distribute
def cube_by_hand(u):
    """A cube whose opposite faces meet, as cells that are copied from the other end."""
    new = cube_inner(u)
    new[0], new[-1] = new[-2], new[1]
    new[:, 0], new[:, -1] = new[:, -2], new[:, 1]
    new[:, :, 0], new[:, :, -1] = new[:, :, -2], new[:, :, 1]
    return new


def cube_blocks(boundary):
    """Return the same in block form, with a boundary."""

    @meshrun.map_blocks(halo=1, boundary=boundary)
    def cube(u):
        centre = u[1:-1, 1:-1, 1:-1]
        sides = u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1] + u[1:-1, 2:, 1:-1]
        return centre + 0.1 * (sides + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:] - 6 * centre)

    return cube


def around(u):
    """Return the sum of differences from the four neighbours, where opposite edges meet."""
    return np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - 4 * u


@meshrun.distribute(outputs=("u", "before"))
def wave(u, before):
    """A surface whose opposite edges meet."""
    return 2 * u - before + 0.25 * around(u), u


@meshrun.map_blocks(halo=1, boundary="wrap", outputs=("after", "old"), feeds=("u", "before"))
def wave_blocks(u, before):
    centre = u[1:-1, 1:-1]
    around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * centre
    return 2 * centre - before[1:-1, 1:-1] + 0.25 * around, centre


@meshrun.distribute(outputs=("u", "v"))
def gray_scott(u, v, *, feed: float = 0.037, kill: float = 0.06):
    """Two substances that react and spread."""
    reaction = u * v * v
    new_u, new_v = u - reaction + feed * (1 - u), v + reaction - (feed + kill) * v
    return new_u + 0.2 * around(u), new_v + 0.1 * around(v)


@meshrun.map_blocks(halo=1, boundary="wrap", outputs=("new_u", "new_v"), feeds=("u", "v"))
def gray_scott_blocks(u, v, *, feed: float = 0.037, kill: float = 0.06):
    def around(field):
        centre = field[1:-1, 1:-1]
        return field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:] - 4 * centre

    here_u, here_v = u[1:-1, 1:-1], v[1:-1, 1:-1]
    reaction = here_u * here_v * here_v
    new_u = here_u - reaction + feed * (1 - here_u) + 0.2 * around(u)
    return new_u, here_v + reaction - (feed + kill) * here_v + 0.1 * around(v)


@meshrun.distribute
def life(board):
    """A board with dead edges, of one byte per cell."""
    new = np.zeros_like(board)
    rows = board[:-2] + board[1:-1] + board[2:]
    around = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    alive = board[1:-1, 1:-1]
    new[1:-1, 1:-1] = (around == 3) | ((around == 4) & (alive == 1))
    return new


@meshrun.map_blocks(halo=1, boundary="constant")
def life_blocks(board):
    rows = board[:-2] + board[1:-1] + board[2:]
    around = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    return ((around == 3) | ((around == 4) & (board[1:-1, 1:-1] == 1))).astype(board.dtype)


@meshrun.distribute(outputs=("h", "u", "v"))
def shallow_water(h, u, v, *, depth: float = 0.3, pull: float = 0.3):
    """Linear waves in a basin: velocities on the faces, none through its walls."""
    u[1:] -= pull * (h[1:] - h[:-1])
    v[:, 1:] -= pull * (h[:, 1:] - h[:, :-1])
    u[0] = 0
    v[:, 0] = 0
    h[:-1] -= depth * (u[1:] - u[:-1])
    h[:, :-1] -= depth * (v[:, 1:] - v[:, :-1])
    h[-1], h[:, -1] = h[-2], h[:, -2]
    return h, u, v


@meshrun.map_blocks(
    halo=((1, 1), (1, 1)), boundary="nearest", outputs=("new_h", "new_u", "new_v"), feeds=("h", "u", "v")
)
def shallow_water_blocks(h, u, v, *, depth: float = 0.3, pull: float = 0.3):
    new_u = u[1:, 1:-1] - pull * (h[1:, 1:-1] - h[:-1, 1:-1])
    new_v = v[1:-1, 1:] - pull * (h[1:-1, 1:] - h[1:-1, :-1])
    flow = (new_u[1:] - new_u[:-1]) + (new_v[:, 1:] - new_v[:, :-1])
    return h[1:-1, 1:-1] - depth * flow, new_u[:-1], new_v[:, :-1]


@meshrun.distribute(feeds="psi")
def schroedinger(psi, potential, *, dt: float = 0.05):
    """A particle in a potential, where opposite edges meet."""
    return psi + 1j * dt * (0.5 * around(psi) - potential * psi)


@meshrun.map_blocks(halo=1, boundary="wrap", feeds="psi")
def schroedinger_blocks(psi, potential, *, dt: float = 0.05):
    own = psi[1:-1, 1:-1]
    near = psi[:-2, 1:-1] + psi[2:, 1:-1] + psi[1:-1, :-2] + psi[1:-1, 2:] - 4 * own
    return own + 1j * dt * (0.5 * near - potential[1:-1, 1:-1] * own)


@meshrun.distribute
def ginzburg_landau(psi, *, dt: float = 0.05):
    """Oscillators that are coupled to their neighbours, where opposite edges meet."""
    return psi + dt * (psi + (1 + 0.5j) * around(psi) - (1 - 1.2j) * np.abs(psi) ** 2 * psi)


@meshrun.map_blocks(halo=1, boundary="wrap")
def ginzburg_landau_blocks(psi, *, dt: float = 0.05):
    own = psi[1:-1, 1:-1]
    near = psi[:-2, 1:-1] + psi[2:, 1:-1] + psi[1:-1, :-2] + psi[1:-1, 2:] - 4 * own
    return own + dt * (own + (1 + 0.5j) * near - (1 - 1.2j) * np.abs(own) ** 2 * own)


PAIRS = {  # the two forms, and the dtypes of their inputs
    "heat": (heat, heat_blocks, ["float32"]),
    "wave": (wave, wave_blocks, ["float32"] * 2),
    "gray_scott": (gray_scott, gray_scott_blocks, ["float32"] * 2),
    "life": (life, life_blocks, ["uint8"]),
    "shallow_water": (shallow_water, shallow_water_blocks, ["float32"] * 3),
    "schroedinger": (schroedinger, schroedinger_blocks, ["complex64", "float32"]),
    "ginzburg_landau": (ginzburg_landau, ginzburg_landau_blocks, ["complex64"]),
    "held": (held, plate_blocks("constant"), ["float32"]),
    "closed": (closed, plate_blocks("nearest"), ["float32"]),
    "by_hand": (by_hand, plate_blocks("wrap"), ["float32"]),
    "cube_closed": (cube_closed, cube_blocks("nearest"), ["float32"]),
    "cube_by_hand": (cube_by_hand, cube_blocks("wrap"), ["float32"]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--side", type=int, default=8192)
    parser.add_argument("--cube-side", type=int, default=512)
    parser.add_argument("--pass-side", type=int, default=16384, help="cells of an axis for one pass; 0: none")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--only", choices=PAIRS, nargs="+", default=[*PAIRS], help="these functions")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with open_world(options.device) as world:
        copied = min(world.control.allgather(world.backend.copy_rate()))
        rows = measure(world, options, copied)
        if options.json and world.rank == 0:
            measured = {
                name: getattr(options, name) for name in ("side", "cube_side", "pass_side", "steps", "rounds")
            }
            where = {"ranks": world.size, "devices": world.places(), "versions": world.versions()}
            measured["copy_bytes_per_second"] = copied
            record = {"benchmark": "whole_arrays", **measured, **where, "rows": rows}
            write_json(options.json, "benchmark", 1, record)


def measure(world: World, options: argparse.Namespace, copied: float) -> list[dict[str, Any]]:
    """Print and return a row for each function and way to take steps.

    copied: bytes per second that each rank's device reads and writes in a copy.
    """
    rows = []
    plane, cube = (options.side,) * 2, (options.cube_side,) * 3
    shapes = {name: cube if name.startswith("cube") else plane for name in options.only}
    cases = [(name, kind, shapes[name]) for name in options.only for kind in ("single", "several")]
    cases += [("heat", "one pass", (options.pass_side,) * 2)] if options.pass_side else []
    if world.rank == 0:
        print(f"copy: {copied / 1e9:.0f} GB/s per rank")
        names = f"{'whole us':>10} {'blocks us':>10} {'quotient':>9} {'copy':>6}"
        print(f"{'function':<16} {'steps':<9} {names}  per kernel")
    for name, kind, shape in cases:
        *jobs, dtypes = PAIRS[name]
        tasks = [task_of(world, job, shape, dtypes) for job in jobs]
        takers = [one_pass(world, task) if kind == "one pass" else stepping(world, task, options.steps, kind)
                  for task in tasks]  # fmt: skip
        times: list[list[float]] = [[], []]
        for _ in range(options.rounds + 1):
            for number, (take, _) in enumerate(takers):
                times[number].append(max(world.control.allgather(take())))
        whole, blocks = (1e6 * statistics.median(each[1:]) for each in times)  # the first round warms up
        moved = sum(np.dtype(dtype).itemsize for dtype in dtypes)
        moved += sum(dtype.itemsize for _, dtype in tasks[0].known)
        share = moved * math.prod(shape) / world.size / (whole / 1e6) / copied
        row = {"function": name, "steps": kind, "whole_us": whole, "blocks_us": blocks, "of_copy": share,
               "quotient": whole / blocks, "per_kernel": [count for _, count in takers]}  # fmt: skip
        rows.append(row)
        if world.rank == 0:
            figures = f"{whole:10.1f} {blocks:10.1f} {whole / blocks:9.3f} {share:6.2f}"
            counts = " and ".join(str(count) for _, count in takers)
            print(f"{name:<16} {kind:<9} {figures}  {counts}", flush=True)
    return rows


def task_of(world: World, job: Job, shape: tuple[int, ...], dtypes: Sequence[str]) -> Task:
    """Return the task of a job for arrays of a shape, with its kernel."""
    types, parameters = [(shape, np.dtype(dtype)) for dtype in dtypes], job.complete({})
    job = with_inferred_halo(job, types, parameters)
    task, _ = fused(world, plan_task(job, parameters, types, world.size), "require", "strict", 100)
    return task


def stepping(world: World, task: Task, steps: int, kind: str) -> tuple[Callable[[], float], int]:
    """Return what takes steps and tells the seconds per step, and the steps of a kernel."""
    stepper = Stepper(world, task, Phases(world.backend.synchronize), one_by_one=kind == "single")
    arrays = []
    for plan, field in zip(stepper.plans, task.fields, strict=True):
        arrays.append(empty_array(world, plan, field.dtype, stepper))
        arrays[-1].block[...] = 1
    stepper.start(arrays)
    return partial(seconds_per_step, world, stepper, steps), stepper.fused_steps


def seconds_per_step(world: World, stepper: Stepper, steps: int) -> float:
    """Take steps; return how long each took on this rank. Collective."""
    world.backend.synchronize()
    world.control.barrier()
    begin = time.perf_counter()
    stepper.advance(steps)
    world.backend.synchronize()
    return (time.perf_counter() - begin) / steps


def one_pass(world: World, task: Task) -> tuple[Callable[[], float], int]:
    """Return what computes this rank's block once, without its halo's exchange, and tells the seconds."""
    assert task.kernel is not None
    region = task.partition[world.rank]
    blocks = [world.backend.empty(field.padded(region.shape), field.dtype) for field in task.fields]
    outs = [world.backend.empty(region.shape, dtype) for _, dtype in task.known]
    for array in (*blocks, *outs):
        array[...] = 1
    call = task.kernel.bind(blocks, outs, region.start)

    def take() -> float:
        world.backend.synchronize()
        begin = time.perf_counter()
        for _ in range(REPEATS):
            call()
        world.backend.synchronize()
        return (time.perf_counter() - begin) / REPEATS

    return take, 1


REPEATS = 5  # passes of a round

if __name__ == "__main__":
    main()
