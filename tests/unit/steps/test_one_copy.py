"""Fields in memory once: a step writes into the block that it reads, with the same bits as in two copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy_kernel import NumpyKernel, mixed
from pairs import pairs_by_day
from step_runs import plain_loop, stepped, weighted, weighted_job

import meshrun
from meshrun.runner.errors import UserError
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.chunking import MemoryUse
from meshrun.runner.plan.steps import band_rows, rows_apart, step_memory
from meshrun.runner.plan.task import plan_task
from meshrun.runner.run import prepare
from meshrun.runner.steps.stepper import Stepper


@pytest.fixture(autouse=True)
def in_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Fail if the two blocks of a field that is in memory once are apart."""
    start, seen = Stepper.start, []

    def checked(self: Stepper, blocks: Any) -> None:
        start(self, blocks)
        for place in self.fed:
            seen.append(self.one_copy)
            block, spare = self.arrays[place].block, self.spare[place].block
            apart = not np.may_share_memory(block, spare)
            assert apart is not (self.one_copy and 0 < self.plans[place].rows_before < block.shape[0])

    monkeypatch.setattr(Stepper, "start", checked)
    return seen


@pairs_by_day(
    boundary=BOUNDARIES,
    in_place=[False, True],
    devices=[False, True],
    ranks__grid__every=[(1, None, None), (2, "2x1", None), (3, "1x3", 2), (4, "2x2", 3), (3, "3x1", 2)],
)
def test_a_function_gives_the_bits_of_a_plain_loop(
    tmp_path: Path,
    boundary: str,
    in_place: bool,
    devices: bool,
    ranks: int,
    grid: str | None,
    every: int | None,
) -> None:
    """Functions that overwrite their blocks, too; several bands, from the first and from the last."""
    widths = ((2, 1), (1, 2))
    function = weighted(widths)
    job = weighted_job(function, widths, boundary, ("block", "other"), in_place=in_place)
    rng = np.random.default_rng(5)
    arrays = [rng.integers(0, 2**32, (131, 17), np.uint32) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshrun.runner.maps.in_memory.SLAB", 1)
        found, record = stepped(
            tmp_path, job, arrays, 5, ranks=ranks, grid=grid, steps_per_exchange=every, devices=devices,
            copies="one", fuse="off", overlap=True,
        )  # fmt: skip
    assert record["steps"]["copies"] == 1
    assert not record["overlap"]
    expected = plain_loop(function, arrays, 5, widths, boundary, (0, 1), 9)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("devices", [False, True])
def test_a_band_may_be_written_before_it_is_read(tmp_path: Path, devices: bool) -> None:
    """Threads of a kernel take any order within a band."""

    @meshrun.map_blocks(halo=2, boundary="wrap", strided_out=True, fuse="off")
    def sheared(block: Any, *, out: Any) -> None:
        out[...] = 0x5A5A
        np.multiply(block[:-4, 1:-3] ^ block[4:, 4:], np.uint32(3), out=out)

    def plain(block: Any) -> Any:
        return (block[:-4, 1:-3] ^ block[4:, 4:]) * np.uint32(3)

    array = np.random.default_rng(6).integers(0, 2**32, (150, 13), np.uint32)
    (found,), record = stepped(tmp_path, sheared, [array], 6, devices=devices, copies="one")
    assert record["steps"]["copies"] == 1
    expected = plain_loop(plain, [array], 6, ((2, 2), (2, 2)), "wrap", (0,))
    np.testing.assert_array_equal(found, expected[0])


class AnyOrder(NumpyKernel):
    """A kernel whose threads write before others read."""

    def take_steps(self, steps: int, inputs: Any, outs: Any, axes: Any, *sending: Any) -> None:
        for out in outs:
            out[...] = 0x5A5A
        super().take_steps(steps, inputs, outs, axes)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(
    ("ranks", "grid", "fused"), [(2, "2x1", 3), (3, "3x1", 3), (4, "2x2", 3), (1, "1x1", 1), (2, "1x2", 1)]
)
def test_one_kernel_takes_several_steps_of_a_band(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boundary: str, ranks: int, grid: str, fused: int
) -> None:
    """Where rows are split between ranks: then the halo is as wide as all of the steps."""
    widths = ((2, 1), (1, 2))
    function = mixed(widths)
    job = meshrun.map_blocks(halo=widths, boundary=boundary, cval=9, outputs=2)(function)
    made = []

    def compile_for(
        device: Any, program: Any, widths: Any, arithmetic: str, feeds: Any, boundary: str, cval: float,
        shape: Any, row: int,
    ) -> Any:  # fmt: skip
        made.append(AnyOrder(program, widths, feeds, boundary, cval, 3, row=row))
        return made[-1], "NumPy"

    monkeypatch.setattr("meshrun.runner.compiler.compiled.compile_for", compile_for)
    rng = np.random.default_rng(7)
    arrays = [rng.integers(0, 2**32, (210, 19), np.uint32) for _ in range(2)]
    found, record = stepped(
        tmp_path, job, arrays, 8, ranks=ranks, grid=grid, copies="one", fuse="require", devices=True
    )
    assert record["steps"]["steps_per_kernel"] == fused
    if fused > 1:
        bands = {own[0] for kernel in made for own, _ in kernel.passes}
        assert max(bands) == 12  # rows: four times those that a step reads beside a row
    expected = plain_loop(function, arrays, 8, widths, boundary, (0, 1), 9)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_one_copy_takes_little_more_than_half_the_bytes() -> None:
    task = plan_task(heat(), {}, [((4096, 4096), np.dtype(np.float32))], 1)
    region = task.partition[0]
    assert band_rows(task, region) == 256
    assert rows_apart(task, region) == 257
    one, two = (step_memory(task, region, one_copy=once) for once in (True, False))
    assert two == 2 * 4098 * 4098 * 4
    assert one == (4098 + 257) * 4098 * 4


def heat() -> Any:
    return meshrun.map_blocks(halo=1)(lambda u: u[1:-1, 1:-1] + (u[:-2, 1:-1] - u[2:, 1:-1]))


def test_the_run_has_the_copies_that_are_asked_for_or_says_what_would_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.zeros((400, 400), np.float32)
    task = plan_task(heat(), {}, [(array.shape, array.dtype)], 1)
    one, two = (step_memory(task, task.partition[0], one_copy=once) for once in (True, False))
    assert stepped(tmp_path, heat(), [array], 3)[1]["steps"]["copies"] == 2
    assert stepped(tmp_path, heat(), [array], 3, copies="one")[1]["steps"]["copies"] == 1
    with pytest.raises(UserError, match="--copies does not apply to steps in chunks"):
        stepped(tmp_path, heat(), [array], 3, copies="two", stream=StreamOptions(chunk_bytes=100_000))
    limit = MemoryUse(one - 1, one - 1)
    monkeypatch.setattr(prepare, "limits", lambda world, options: limit)
    words = f"do not fit the memory of the ranks: got {one:,} bytes.*at most {one - 1:,}.*--copies auto"
    with pytest.raises(UserError, match=words):
        stepped(tmp_path, heat(), [array], 3, copies="one")
    assert two > one


def test_halos_are_not_stored_directly_into_a_block_that_neighbours_still_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--halo direct is not possible here: the fields are in memory once"):
        stepped(tmp_path, heat(), [np.zeros((60, 60), np.float32)], 3, ranks=2, copies="one", halo="direct")


@pytest.mark.parametrize("shape", [(300,), (40, 6, 7), (3, 5)])
@pytest.mark.parametrize("devices", [False, True])
def test_arrays_of_any_number_of_axes(tmp_path: Path, shape: tuple[int, ...], devices: bool) -> None:
    inner = (slice(1, -1),) * (len(shape) - 1)

    def function(block: Any) -> Any:
        return block[(slice(None, -2), *inner)] * np.uint32(3) + block[(slice(2, None), *inner)]

    job = meshrun.map_blocks(halo=(1,) * len(shape), boundary="wrap")(function)
    array = np.random.default_rng(8).integers(0, 2**32, shape, np.uint32)
    (found,), record = stepped(tmp_path, job, [array], 5, devices=devices, copies="one")
    assert record["steps"]["copies"] == 1
    np.testing.assert_array_equal(
        found, plain_loop(function, [array], 5, ((1, 1),) * len(shape), "wrap", (0,))[0]
    )
