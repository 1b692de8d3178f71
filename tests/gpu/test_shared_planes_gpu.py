"""Blocks that march through planes in shared memory, also over an input, on GPUs: the bits of NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fused import cases, same, widths_of
from step_runs import plain_loop

import meshrun
from meshrun.runner.compiler.cuda import shared_planes
from meshrun.runner.compiler.cuda.pass_launch import launch_arguments
from meshrun.runner.compiler.cuda.shared_planes import SharedPlanes, choose
from meshrun.runner.compiler.cuda.single_pass import PassKernel, emit
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Program
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import World
from tests.unit.compiler.test_shared_planes import random, star

cupy = pytest.importorskip("cupy", reason="needs CuPy")

STEPS = 47  # some of them in graphs


def check(kernel: PassKernel, own: tuple[int, ...], odd: int) -> None:
    """Compare all outputs, and that nothing else is written."""
    from meshrun.runner.device.cuda import kernel_of_text

    blocks, outs = cases(kernel.program, own, odd, cupy)
    widths = widths_of(kernel.program)
    call = launch_arguments(kernel, blocks, outs, widths)
    compiled = kernel_of_text(kernel.source, kernel.name, (), kernel.shared)
    compiled(call.grid, call.block, call.arguments, shared_mem=kernel.shared)
    wanted = evaluate(kernel.program, [one.get() for one in blocks], widths)
    for out, expected in zip(outs, wanted, strict=True):
        same(out.get(), expected)
        out[...] = 1
        base = out.base if out.base is not None else out
        assert int((base != 1).sum()) == int((base == 0).sum())


PROGRAMS = {
    **{f"star of {dtype}": star(dtype) for dtype in ("float32", "float64", "int32")},
    "star of radius 7": star("float32", 7),
    **{f"random {seed}": random(seed) for seed in range(40, 52)},
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_any_program_gives_the_bits_of_numpy(name: str) -> None:
    program: Program = PROGRAMS[name]
    chosen = choose(program)
    shapes = [SharedPlanes(5, (1, 2), (32, 4), blocks=2), SharedPlanes(16, (2, 2), (32, 8), ahead=2)]
    shapes += [chosen] if isinstance(chosen, SharedPlanes) else []
    for shape in shapes:
        kernel = emit(program, march=shape, apart=True)
        for own in ((32, 16, 128), (37, 41, 331)):
            for odd in (0, 1, 3):
                check(kernel, own, odd)


def wave(now: Any, before: Any, speed: Any) -> Any:
    """Order 8 in space."""
    own = (slice(4, -4),) * 3
    total = -8 * now[own]
    for axis in range(3):
        for distance in range(1, 5):
            for shift in (distance, -distance):
                place = tuple(
                    slice(4 + shift * (n == axis), m - 4 + shift * (n == axis))
                    for n, m in enumerate(now.shape)
                )
                total = total + now[place] * (0.5 / distance)
    return 2 * now[own] - before[own] + speed[own] * total, now[own]


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(("dtype", "shape"), [("f4", (40, 50, 192)), ("f8", (67, 33, 70))])
def test_steps_of_a_leapfrog_scheme(
    world: World,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    boundary: str,
    dtype: str,
    shape: tuple[int, ...],
) -> None:
    """On one rank, or on several by each way of exchange."""
    monkeypatch.setattr(shared_planes, "LEAST_CELLS", 1)
    job = meshrun.map_blocks(halo=4, boundary=boundary, cval=0.5, outputs=2, feeds=("now", "before"))(wave)
    rng = np.random.default_rng(3)
    arrays = [(rng.random(shape) * scale).astype(dtype) for scale in (1, 1, 0.02)]
    inputs, outputs = [folder / f"{n}.npy" for n in range(3)], [folder / f"out{n}.npy" for n in range(2)]
    world.on_root(lambda: [np.save(path, one) for path, one in zip(inputs, arrays, strict=True)] and None)
    halos: list[Any] = ["auto"] if world.size == 1 else ["direct", "nccl"]
    for halo in halos:
        options = Options(device="cuda", fuse="require", steps=StepOptions(STEPS, halo=halo))
        record = run(job, inputs, outputs, {}, options, world=world)
        assert record["devices"][0]["kind"] == "cuda"
        if world.rank == 0:
            wanted = plain_loop(wave, arrays, STEPS, ((4, 4),) * 3, boundary, [0, 1], 0.5)
            assert [np.load(path).tobytes() for path in outputs] == [one.tobytes() for one in wanted]
