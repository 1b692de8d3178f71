"""Time steps on one GPU: the runner's loop beside a bare CuPy loop, and steps of kernels beside one pass.

    python benchmarks/steps_device.py [--side 16384] [--steps 100] [--rounds 5] [--json FILE]

All arrays stay on the device. The methods take turns, several rounds; figures are medians. A rate counts each
cell as read once and written once a step.

heat: a five-point stencil as CuPy slices, `heat` below. bare: the same expression in a loop that assigns the
result to the inside of the other array, fills the four edges and swaps the two. steps: the runner's loop over
the same function. with frames: that loop with a 1024 x 1024 picture every 10th step into a folder.
laplacian, convolve: single passes into a contiguous result, and steps of the same job.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np

import meshrun
from meshrun.runner.arrays.distributed_array import empty_array
from meshrun.runner.device.cuda import CudaBackend
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.discover import find
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.plan.task import plan_task
from meshrun.runner.report.phases import Phases
from meshrun.runner.report.record import write_json
from meshrun.runner.steps.loop import StepObserver, take_steps
from meshrun.runner.steps.observers.frames import Frames
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.world.world import World, single_rank_world


@meshrun.map_blocks(halo=1, boundary="nearest")
def heat(block: Any, *, rate: float = 0.2) -> Any:
    centre = block[1:-1, 1:-1]
    sides = block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]
    return centre + np.float32(rate) * (sides - np.float32(4) * centre)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--side", type=int, default=16384)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    world = single_rank_world(CudaBackend(0))
    side, steps = options.side, options.steps
    methods: dict[str, Callable[[], float]] = {
        "heat, bare loop": bare(world, side, steps),
        "heat, steps": stepping(world, heat, side, steps),
        "heat, steps with frames": stepping(world, heat, side, steps, frames=True),
        "copy": copying(world, side, steps),
    }
    for name, parameters in (("laplacian", {}), ("convolve", {"kernel": "0 1 0; 1 -4 1; 0 1 0"})):
        job = find(name)
        methods[f"{name}, single passes"] = passing(world, job, side, steps, parameters)
        methods[f"{name}, steps"] = stepping(world, job, side, steps, parameters)
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(options.rounds + 1):
        for name, method in methods.items():
            seconds[name].append(method())
    moved = 2 * 4 * side**2
    rows = []
    for name, times in seconds.items():
        median = statistics.median(times[1:])  # the first round warms up
        rows.append({"method": name, "seconds_per_step": median, "bytes_per_second": moved / median})
        print(f"{name:28} {1e3 * median:8.3f} ms a step {moved / median / 1e9:7.0f} GB/s", flush=True)
    if options.json:
        record = {
            "benchmark": "steps_device",
            "shape": [side, side],
            "dtype": "float32",
            "steps": steps,
            "rounds": options.rounds,
            "devices": world.places(),
            "versions": world.versions(),
            "rows": rows,
        }
        write_json(options.json, "benchmark", 1, record)


def timed(world: World, act: Callable[[], object], steps: int) -> float:
    """Return seconds a step."""
    world.backend.synchronize()
    begin = time.perf_counter()
    act()
    world.backend.synchronize()
    return (time.perf_counter() - begin) / steps


def bare(world: World, side: int, steps: int) -> Callable[[], float]:
    def loop() -> None:
        now, after = (cupy.ones((side + 2, side + 2), np.float32) for _ in range(2))
        for _ in range(steps):
            after[1:-1, 1:-1] = heat.function(now)
            after[0] = after[1]
            after[-1] = after[-2]
            after[:, 0] = after[:, 1]
            after[:, -1] = after[:, -2]
            now, after = after, now

    return lambda: timed(world, loop, steps)


def stepping(
    world: World,
    job: Job,
    side: int,
    steps: int,
    parameters: dict[str, Any] | None = None,
    frames: bool = False,
) -> Callable[[], float]:
    def run() -> float:
        task = plan_task(job, job.complete(parameters or {}), [((side, side), np.dtype(np.float32))], 1)
        task = task if task.results else task.with_results([((), np.dtype(np.float32))])
        with tempfile.TemporaryDirectory() as folder:
            of_frames = StepOptions(steps, frames=f"{folder}/film", every=10, frame_range=(0.0, 1.0))
            opened = Frames(world, task, of_frames, 0) if frames else None
            stepper = Stepper(world, task, Phases(world.backend.synchronize))
            array = empty_array(world, stepper.plans[0], np.dtype(np.float32))
            array.block[...] = 1
            stepper.start([array])
            observers: list[StepObserver] = [opened] if opened else []
            return timed(world, lambda: take_steps(stepper, steps, observers), steps)

    return run


def passing(world: World, job: Job, side: int, steps: int, parameters: dict[str, Any]) -> Callable[[], float]:
    def loop() -> None:
        block, out = cupy.ones((side + 2, side + 2), np.float32), cupy.empty((side, side), np.float32)
        for _ in range(steps):
            services = {"xp": cupy} if "xp" in job.services else {}
            job.function(block, out=out, **services, **job.complete(parameters))

    return lambda: timed(world, loop, steps)


def copying(world: World, side: int, steps: int) -> Callable[[], float]:
    source, target = (cupy.ones((side, side), np.float32) for _ in range(2))

    def loop() -> None:
        for _ in range(steps):
            cupy.copyto(target, source)

    return lambda: timed(world, loop, steps)


if __name__ == "__main__":
    main()
