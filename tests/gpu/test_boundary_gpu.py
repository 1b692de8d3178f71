"""Boundaries by input, axis and side on GPUs, on one rank or several: the bits of whole padded arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from step_runs import PAD

import meshrun
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import World

STEPS = 19
TABLE = np.random.default_rng(2).random(STEPS)
LEVEL = 0.75
PLANE = {
    "sides": (((0.5, "nearest"), ("reflect", 1)), (("mirror", 2.0), ("nearest", "reflect"))),
    "wrapped": (("wrap", (0.25, "nearest")), ("wrap", ("nearest", "mirror"))),
    "apart": (("wrap", "nearest"), (("nearest", "reflect"), "wrap")),
    "timed": ((("inflow", "nearest"), "wrap"), (("level", "reflect"), "wrap")),
}
SPACE = (("wrap", ("inflow", "nearest"), ("mirror", 0.5)), ("wrap", "nearest", (0.0, "reflect")))


def plane(u, v, *, inflow: meshrun.Series, level: float = LEVEL):
    own = u[1:-1, 1:-1]
    sides = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    return own + (sides - own * 4) / 8 + v[2:, 2:] / 4, v[1:-1, 1:-1] / 2 + (u[:-2, :-2] - v[:-2, 2:]) / 8


def space(u, v, *, inflow: meshrun.Series, level: float = LEVEL):
    own = u[1:-1, 1:-1, 1:-1]
    sides = u[2:, 1:-1, 1:-1] + u[:-2, 1:-1, 1:-1] + u[1:-1, 2:, 1:-1] + u[1:-1, :-2, 1:-1]
    sides = sides + u[1:-1, 1:-1, 2:] + u[1:-1, 1:-1, :-2]
    return own + (sides - own * 6) / 16, v[1:-1, 1:-1, 1:-1] / 2 + (u[:-2, :-2, 1:-1] - v[1:-1, :-2, 2:]) / 8


def padded(array: Any, rules: Any, step: int) -> Any:
    for axis, rule in enumerate(rules):
        pieces = [array]
        for side in (0, 1):
            one = rule[side] if isinstance(rule, tuple) else rule
            one = {"inflow": TABLE[step], "level": LEVEL}.get(one, one)
            wide = [(0, 0)] * array.ndim
            wide[axis] = (1, 0) if side == 0 else (0, 1)
            more = (
                np.pad(array, wide, PAD[one])
                if isinstance(one, str)
                else np.pad(array, wide, constant_values=np.asarray(one).astype(array.dtype))
            )
            cell = np.take(more, [0 if side == 0 else -1], axis)
            pieces.insert(0 if side == 0 else 2, cell)
        array = np.concatenate(pieces, axis)
    return array


@pytest.mark.parametrize("fuse", ["require", "off"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("function", "shape", "rules"),
    [(plane, (203, 301), one) for one in PLANE.values()] + [(space, (37, 41, 66), SPACE)],
    ids=[*PLANE, "space"],
)
def test_steps_have_the_bits_of_whole_padded_arrays(
    world: World, folder: Path, function: Any, shape: Any, rules: Any, dtype: str, fuse: Any
) -> None:
    rng = np.random.default_rng(1)
    u, v = (rng.random(shape).astype(dtype) for _ in range(2))
    before, after = ([folder / f"{name}{n}.npy" for n in "uv"] for name in ("in", "out"))
    world.on_root(lambda: [np.save(path, one) for path, one in zip(before, (u, v), strict=True)])
    boundary = dict(zip("uv", rules, strict=True))
    job = meshrun.map_blocks(halo=1, boundary=boundary, outputs=("u", "v"), feeds=("u", "v"))(function)
    options = Options(device="cuda", fuse=fuse, steps=StepOptions(STEPS))
    record = run(job, before, after, {"inflow": TABLE}, options, world=world)
    assert record["devices"][0]["kind"] == "cuda"
    if world.rank == 0:
        for step in range(STEPS):
            u, v = function(padded(u, rules[0], step), padded(v, rules[1], step), inflow=None)
        for path, one in zip(after, (u, v), strict=True):
            assert np.load(path).tobytes() == one.tobytes()


def broadcasting(u, column, line, number):
    own = u[1:-1, 1:-1]
    return own * 0.5 + 0.125 * (column[2:] - column[:-2]) * own + line[2:] * number - 0.25 * u[1:-1, :-2]


@pytest.mark.parametrize("fuse", ["require", "off"])
@pytest.mark.parametrize("boundary", ["constant", "wrap", "mirror"])
def test_inputs_that_broadcast_have_numpys_bits(world: World, folder: Path, boundary: Any, fuse: Any) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.random(shape).astype("f4") for shape in ((203, 301), (203, 1), (301,), ())]
    names = [folder / f"in{number}.npy" for number in range(4)]
    world.on_root(lambda: [np.save(path, one) for path, one in zip(names, arrays, strict=True)])
    job = meshrun.map_blocks(halo=1, boundary=boundary, cval=2.0)(broadcasting)
    options = Options(device="cuda", fuse=fuse, steps=StepOptions(STEPS))
    run(job, names, [folder / "out.npy"], {}, options, world=world)
    if world.rank == 0:
        more: Any = {"constant_values": 2.0} if boundary == "constant" else {}
        mode: Any = PAD.get(boundary, boundary)
        u, column, line, number = arrays
        column, line = np.pad(column, ((1, 1), (0, 0)), mode, **more), np.pad(line, 1, mode, **more)
        for _ in range(STEPS):
            u = broadcasting(np.pad(u, 1, mode, **more), column, line, number)
        assert np.load(folder / "out.npy").tobytes() == u.tobytes()
