"""Halos that GPUs store into each other's memory: the bits of a plain NumPy loop.

    mpirun -n 3 python -m pytest tests/gpu/test_direct_halo_gpu.py

On any number of ranks from 2, on GPUs of one host; ranks may share one GPU, where each exchange lasts some
time slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.arrays.halo import direct
from meshrun.runner.arrays.halo.direct import DirectHalos
from meshrun.runner.compiler.cuda.steps.layout import Neighbour, Sending
from meshrun.runner.errors import RunError
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.steps import steps_per_kernel
from meshrun.runner.system.launcher import detect_launcher
from meshrun.runner.world.world import World, open_world

cupy = pytest.importorskip("cupy", reason="needs CuPy")
PAD: dict[str, Any] = {"reflect": "symmetric", "mirror": "reflect", "nearest": "edge", "wrap": "wrap"}
CASES = {  # shape, halo, components of the second field, grid
    "a line": ((67,), ((1, 3),), 0, None),
    "rows": ((37, 23), ((2, 1), (1, 2)), 0, None),
    "rows, wide": ((64, 4100), ((1, 1), (1, 1)), 0, None),
    "a grid": ((41, 29), ((1, 1), (1, 1)), 2, "0x0"),
    "columns": ((9, 60), ((1, 1), (0, 2)), 0, "1x0"),
    "three axes": ((24, 18, 20), ((1, 1), (0, 1), (1, 0)), 0, "0x0"),
}
HALOS = ("direct", "nccl")
# The numbers of steps between exchanges take turns: a run takes 2 s.
COMBINED = [
    (case, boundary, 1 + (first + second) % 3)
    for first, case in enumerate(CASES)
    for second, boundary in enumerate(BOUNDARIES)
]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    launched = detect_launcher()
    if launched is None or launched.size == 1:
        pytest.skip("needs mpirun -n 2 or more")
    opened = open_world("cuda", oversubscribe=True)
    yield opened
    opened.close()


def padded(array: Any, widths: Any, boundary: str) -> Any:
    more = [*widths, *[(0, 0)] * (array.ndim - len(widths))]
    if boundary == "constant":
        return np.pad(array, more, "constant", constant_values=9)
    return np.pad(array, more, PAD[boundary])


def weighted(widths: Any, tail: int) -> Any:
    """Sums over neighbours in which no two have the same weight; of whole numbers modulo 2^32, exact."""

    def function(now: Any, before: Any) -> Any:
        inner = [n - low - high for n, (low, high) in zip(now.shape, widths, strict=True)]
        core = tuple(slice(low, low + n) for n, (low, _) in zip(inner, widths, strict=True))
        total = now[core] * 0
        for number, place in enumerate(np.ndindex(*(low + high + 1 for low, high in widths))):
            part = tuple(slice(a, a + n) for a, n in zip(place, inner, strict=True))
            total = total + (2 * number + 1) * now[part]
            total = total ^ (before[part][..., -1] if tail else before[part])
        old = before[core]
        return total, old * 3 + (total[..., None] if tail else total)

    return function


@meshrun.map_blocks(halo=1, boundary="wrap", strided_out=True)
def sheared(block: Any, *, out: Any, xp: Any) -> Any:
    """Fill `out` without any other memory: a step that a CUDA graph can hold."""
    xp.add(block[:-2, 1:-1], block[2:, 2:], out=out)


def same(world: World, found: Path, expected: Any) -> None:
    def compare() -> None:
        np.testing.assert_array_equal(np.load(found), expected)

    world.on_root(compare)


@meshrun.map_blocks(halo=(4, 1, 1), boundary="wrap", outputs=("after", "old"), feeds=("now", "before"))
def wave(now: Any, before: Any) -> Any:
    """A leapfrog scheme in a volume."""
    own = now[4:-4, 1:-1, 1:-1]
    return 3 * now[8:, 1:-1, 1:-1] + 5 * now[2:-6, 2:, :-2] + own - before[4:-4, 1:-1, 1:-1], own


@meshrun.map_blocks(halo=((2, 1), (1, 1)), boundary="reflect", outputs=2)
def pair(block: Any, other: Any) -> Any:
    """Two fields of a plane."""
    own = block[2:-1, 1:-1] + 3 * other[:-3, 2:]
    return own, block[3:, :-2] - other[2:-1, 1:-1]


@pytest.mark.parametrize("halo", HALOS)
@pytest.mark.parametrize("every", [None, 2, 13])
@pytest.mark.parametrize(("job", "shape"), [(wave, (90, 40, 50)), (pair, (301, 215))])
def test_small_fields_exchange_seldom(
    world: World, folder: Path, job: Any, shape: tuple[int, ...], every: int | None, halo: Any
) -> None:
    """Several kernels between two exchanges, two steps that hand a field on, graphs of both, remainders."""
    random = np.random.default_rng(7)
    fields = [random.integers(0, 2**32, shape, np.uint32) for _ in range(2)]
    inputs, outputs = [folder / "a.npy", folder / "b.npy"], [folder / "c.npy", folder / "d.npy"]
    world.on_root(lambda: [np.save(path, field) for path, field in zip(inputs, fields, strict=True)] and None)
    steps = StepOptions(150, steps_per_exchange=every, halo=halo, until=-1.0, every=70)
    options = Options(device="cuda", fuse="require", grid=str(world.size), steps=steps, oversubscribe=True)
    record = run(job, inputs, outputs, {}, options, world=world)
    if every:  # as asked, or as many as the smallest block allows
        assert record["steps"]["steps_per_exchange"] > 1
    expected = list(fields)
    widths = [one if isinstance(one, tuple) else (one, one) for one in job.halo]
    for _ in range(150):
        expected = list(job.function(*(padded(field, widths, job.boundary) for field in expected)))
    for path, field in zip(outputs, expected, strict=True):
        same(world, path, field)


@pytest.mark.parametrize("halo", HALOS)
@pytest.mark.parametrize(("case", "boundary", "every"), COMBINED)
def test_steps_are_a_plain_loop(
    world: World, folder: Path, case: str, boundary: str, every: int, halo: Any
) -> None:
    shape, widths, tail, grid = CASES[case]
    function = weighted(widths, tail)
    job = meshrun.map_blocks(halo=widths, boundary=boundary, cval=9, outputs=2)(function)
    random = np.random.default_rng(3)
    fields = [random.integers(0, 2**32, one, np.uint32) for one in (shape, (*shape, tail) if tail else shape)]
    inputs, outputs = [folder / "a.npy", folder / "b.npy"], [folder / "c.npy", folder / "d.npy"]

    def save() -> None:
        for path, field in zip(inputs, fields, strict=True):
            np.save(path, field)

    world.on_root(save)
    options = Options(
        device="cuda",
        grid=grid,
        steps=StepOptions(7, steps_per_exchange=every, halo=halo),
        oversubscribe=True,
    )
    record = run(job, inputs, outputs, {}, options, world=world)
    assert record["steps"]["halo"] == "direct" if halo == "direct" else record["steps"]["halo"] != "direct"
    expected = list(fields)
    for _ in range(7):
        expected = list(function(*(padded(field, widths, boundary) for field in expected)))
    for path, field in zip(outputs, expected, strict=True):
        same(world, path, field)


def downwind(now: Any, other: Any) -> Any:
    """Whole numbers; reads the rows after its own only."""
    total = 3 * now[:-1, 1:-1] + 5 * now[1:, 2:] + other[:-1, :-2]
    return total, now[:-1, 1:-1] ^ other[1:, 1:-1]


def mixed(now: Any, other: Any) -> Any:
    """Whole numbers; reads all around."""
    total = 3 * now[:-2, 1:-1] + 5 * now[2:, 2:] + 7 * now[1:-1, :-2] + other[1:-1, 1:-1]
    return total, now[1:-1, 1:-1] ^ other[2:, :-2]


KERNELS = {"downwind": (downwind, ((0, 1), (1, 1))), "mixed": (mixed, ((1, 1), (1, 1)))}


@pytest.mark.parametrize("halo", HALOS)
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(("name", "columns", "steps"), [
    ("mixed", 1000, 9), ("mixed", 1003, 161), ("downwind", 1000, 161), ("downwind", 1003, 9),
])  # fmt: skip
def test_kernels_of_several_steps_are_a_plain_loop(
    world: World, folder: Path, name: str, columns: int, steps: int, boundary: str, halo: Any
) -> None:
    function, widths = KERNELS[name]
    job = meshrun.map_blocks(halo=widths, boundary=boundary, cval=9, outputs=2)(function)
    fields = [np.random.default_rng(n).integers(0, 2**32, (301, columns), np.uint32) for n in range(2)]
    inputs, outputs = [folder / "a.npy", folder / "b.npy"], [folder / "c.npy", folder / "d.npy"]
    world.on_root(lambda: [np.save(path, field) for path, field in zip(inputs, fields, strict=True)])
    options = Options(device="cuda", fuse="require", steps=StepOptions(steps, halo=halo), oversubscribe=True)
    record = run(job, inputs, outputs, {}, options, world=world)
    assert record["steps"]["steps_per_kernel"] > 1
    assert (record["steps"]["exchange_fraction"] is None) == (halo == "direct")
    assert record["steps"]["graph"] == (steps > 100 and (halo == "direct" or world.arrays.capturable))
    expected = list(fields)
    for _ in range(steps):
        expected = list(function(*(padded(field, widths, boundary) for field in expected)))
    for path, field in zip(outputs, expected, strict=True):
        same(world, path, field)


@pytest.mark.parametrize("halo", HALOS)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("boundary", ["reflect", "wrap"])
def test_graphs_of_single_steps_are_a_plain_loop(
    world: World, folder: Path, boundary: str, every: int, overlap: bool, halo: Any
) -> None:
    function, widths = KERNELS["mixed"]
    job = meshrun.map_blocks(halo=widths, boundary=boundary, outputs=2)(function)
    fields = [np.random.default_rng(n).integers(0, 2**32, (301, 515), np.uint32) for n in range(2)]
    inputs, outputs = [folder / "a.npy", folder / "b.npy"], [folder / "c.npy", folder / "d.npy"]
    world.on_root(lambda: [np.save(path, field) for path, field in zip(inputs, fields, strict=True)])
    steps = StepOptions(
        151, halo=halo, steps_per_exchange=every, until=-1.0, every=40
    )  # observed between graphs of all lengths
    options = Options(device="cuda", fuse="require", overlap=overlap, steps=steps, oversubscribe=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshrun.runner.compiler.device_kernel.DeviceKernel.most_steps", 1)
        record = run(job, inputs, outputs, {}, options, world=world)
    assert record["steps"]["steps_per_kernel"] == 1
    assert record["steps"]["steps_per_exchange"] == every
    assert record["overlap"] is overlap
    assert record["steps"]["graph"] == (halo == "direct" or world.arrays.capturable)
    expected = list(fields)
    for _ in range(151):
        expected = list(function(*(padded(field, widths, boundary) for field in expected)))
    for path, field in zip(outputs, expected, strict=True):
        same(world, path, field)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("steps", [5, 200, 301])
def test_many_steps_of_a_function_that_fills_its_result(
    world: World, folder: Path, steps: int, overlap: bool
) -> None:
    field = np.random.default_rng(4).integers(0, 2**32, (60, 70), np.uint32)
    world.on_root(lambda: np.save(folder / "a.npy", field))
    taken = StepOptions(steps, halo="direct")
    options = Options(device="cuda", overlap=overlap, fuse="off", steps=taken, oversubscribe=True)
    record = run(sheared, [folder / "a.npy"], [folder / "b.npy"], {}, options, world=world)
    print(record["steps"])
    if steps > 100 and not overlap:
        assert record["steps"]["graph"] is True
        assert 0 < record["steps"]["exchange_fraction"] < 2
    expected = field
    for _ in range(steps):
        block = np.pad(expected, 1, "wrap")
        expected = block[:-2, 1:-1] + block[2:, 2:]
    same(world, folder / "b.npy", expected)


def test_a_late_rank_is_waited_for(world: World, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = DirectHalos.fill

    def late(halos: DirectHalos, blocks: Any) -> None:
        if world.rank == world.size - 1:
            world.backend.synchronize()
        fill(halos, blocks)

    monkeypatch.setattr(DirectHalos, "fill", late)
    test_many_steps_of_a_function_that_fills_its_result(world, folder, 20, False)


@pytest.mark.parametrize("fuse", ["off", "require"])
def test_a_dead_neighbour_is_named(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch, fuse: Any
) -> None:
    """Rank 0 leaves its exchanges out, or its kernels of several steps tell nobody that they have ended."""
    monkeypatch.setattr(direct, "PATIENCE", 2.0)
    monkeypatch.setattr(steps_per_kernel, "KERNELS_BETWEEN", (1,))
    sending, original = DirectHalos.sending, DirectHalos.check
    nowhere, raised = cupy.zeros(1, np.uint64), []

    def lost(neighbour: Neighbour | None) -> Neighbour | None:
        return replace(neighbour, count=nowhere.data.ptr) if neighbour else None

    def sent(halos: DirectHalos, blocks: Any) -> Sending | None:
        found = sending(halos, blocks)
        return replace(found, before=lost(found.before), after=lost(found.after)) if found else None

    if world.rank == 0 and fuse == "off":
        monkeypatch.setattr(DirectHalos, "fill", lambda halos, blocks: None)
    elif world.rank == 0:
        monkeypatch.setattr(DirectHalos, "sending", sent)

    def check(halos: DirectHalos) -> None:
        try:
            original(halos)
        except RunError as failure:
            raised.append(str(failure))

    monkeypatch.setattr(DirectHalos, "check", check)
    field = np.zeros((60, 70), np.uint32)
    world.on_root(lambda: np.save(folder / "a.npy", field))
    steps = StepOptions(40, halo="direct", steps_per_exchange=1 if fuse == "off" else None)
    options = Options(device="cuda", fuse=fuse, steps=steps, oversubscribe=True)
    run(sheared, [folder / "a.npy"], [folder / "b.npy"], {}, options, world=world)
    found = world.control.allgather(raised)
    assert found[0] == [] or fuse == "require"  # rank 1 leaves out all that follows
    assert any("waited in vain" in text and "rank 0" in text for text in found[1])
