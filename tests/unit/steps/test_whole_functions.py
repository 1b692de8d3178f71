"""Steps of whole-array functions on simulated devices: single passes, and kernels of several steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import host_steps
import numpy as np
import pytest
import whole_functions as whole
from host_steps import HostStepKernel
from step_runs import stepped

import meshrun
from meshrun.runner.arrays.block_layout import BlockLayout
from meshrun.runner.compiler.cuda.steps.layout import Choice, Tuning
from meshrun.runner.compiler.cuda.steps.tuning import ChosenKernel
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.steps.loop_sweeps import LoopSweeps

pytestmark = pytest.mark.skipif(host_steps.GXX is None, reason="needs g++")
STEPS = 7


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


def rolled_with_edges(u):
    new = u + 0.1 * (np.roll(u, 1, 0) - 2 * u + np.roll(u, -1, 0)) + 0.1 * (np.roll(u, 1, 1) - u)
    new[:, 0] = 0.5 * new[:, 1]
    new[4, 7] += 1
    return new


def periodic(u):
    """Both axes have ends that meet, written by hand."""
    new = u.copy()
    sides = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    new[1:-1, 1:-1] += 0.2 * (sides - 4 * u[1:-1, 1:-1])
    new[0], new[-1] = new[-2], new[1]
    new[:, 0], new[:, -1] = new[:, -2], new[:, 1]
    return new


FUNCTIONS = {
    "heat": whole.heat,
    "rolled": rolled_with_edges,
    "stages": whole.runge_kutta,
    "periodic": periodic,
}
LAYOUTS = [(1, None), (2, None), (3, "1x3"), (4, "2x2")]


def check(
    tmp_path: Path, folder: Path, patch: pytest.MonkeyPatch, name: str, most: int, **options: Any
) -> list[HostStepKernel]:
    made: list[HostStepKernel] = []

    def compile_for(
        device: Any, program: Any, widths: Any, arithmetic: str, feeds: Any, boundary: str, cval: float,
        shape: Any, row: int,
    ) -> Any:  # fmt: skip
        choice = ChosenKernel(Choice(most, Tuning(2, 2, 2, 2, rows=6)), "predicted")
        kernel = HostStepKernel(program, widths, arithmetic, feeds, boundary, cval, choice, row)
        kernel.folder, kernel.number = folder, len(made) + 1
        made.append(kernel)
        return kernel, "g++"

    patch.setattr("meshrun.runner.compiler.compiled.compile_for", compile_for)
    function = FUNCTIONS[name]
    field = wanted = whole.field(37, 43, dtype="f4")
    for _ in range(STEPS):
        wanted = function(wanted)
    job = meshrun.distribute(function)
    (found,), record = stepped(tmp_path, job, [field], STEPS, fuse="require", devices=True, **options)
    assert found.tobytes() == wanted.tobytes()
    assert record["fused"]["compiler"] == "g++"
    return made


@pytest.mark.parametrize("every", [None, 3])
@pytest.mark.parametrize(("ranks", "grid"), LAYOUTS)
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "periodic"])
def test_single_passes(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch,
    name: str, ranks: int, grid: str | None, every: int | None,
) -> None:  # fmt: skip
    check(tmp_path, folder, monkeypatch, name, 1, ranks=ranks, grid=grid, steps_per_exchange=every)


@pytest.mark.parametrize(
    ("ranks", "grid"),
    [
        (1, None),
        (2, None),
        *(pytest.param(*one, marks=pytest.mark.nightly) for one in ((4, "2x2"), (2, "1x2"))),
    ],
)
@pytest.mark.parametrize("name", ["heat", "periodic", "rolled"])
def test_several_steps_of_one_kernel(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, ranks: int, grid: str | None
) -> None:
    made = check(tmp_path, folder, monkeypatch, name, 3, ranks=ranks, grid=grid)
    assert all(kernel.launched for kernel in made)


def test_fields_that_do_not_meet_yet_are_found_without_the_first_step(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostStepKernel, "first_steps", 0)
    with pytest.raises(AssertionError):
        check(tmp_path, folder, monkeypatch, "periodic", 3)


def test_chunks_of_fields_with_ends_that_meet_take_single_steps(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is beyond an end of a chunk is not what a kernel of several steps reads there."""
    made = check(tmp_path, folder, monkeypatch, "periodic", 3, stream=StreamOptions(chunk_bytes=1500))
    assert not any(kernel.launched for kernel in made)


def test_no_step_fills_cells_that_no_function_uses(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fills: list[str] = []
    for name in ("fill_outside", "fill_whole_axes"):
        original = getattr(BlockLayout, name)

        def fill(self: BlockLayout, block: Any, name: str = name, original: Any = original) -> None:
            fills.append(name)
            original(self, block)

        monkeypatch.setattr(BlockLayout, name, fill)
    check(tmp_path, folder, monkeypatch, "heat", 1)
    first, fills[:] = fills.copy(), []
    assert len(first) < STEPS  # those before the first step
    check(tmp_path, folder, monkeypatch, "rolled", 1)
    assert len(fills) > len(first) + STEPS


def jacobi(p, b):
    for _ in range(11):
        q = p.copy()
        p[1:-1, 1:-1] = (q[1:-1, 2:] + q[1:-1, :-2] + q[2:, 1:-1] + q[:-2, 1:-1] - b[1:-1, 1:-1]) / 4
        p[:, -1] = p[:, -2]
        p[0, :] = p[1, :]
    return p, b * np.float32(0.5)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_loop_of_sweeps_uses_kernels_of_several_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    taken: list[int] = []
    take = LoopSweeps.take

    def noted(self: LoopSweeps, arrays: Any, *, capturing: bool) -> Any:
        taken.append(self.stepper.fused_steps)
        return take(self, arrays, capturing=capturing)

    monkeypatch.setattr(LoopSweeps, "take", noted)
    p, b = whole.field(40, 43, dtype="f4"), whole.field(40, 43, dtype="f4")
    wanted = p.copy(), b.copy()
    for _ in range(3):
        wanted = jacobi(*wanted)
    job = meshrun.distribute(outputs=("p", "b"))(jacobi)
    found, _ = stepped(tmp_path, job, [p, b], 3, fuse="require", ranks=ranks)
    for one, want in zip(found, wanted, strict=True):
        assert one.tobytes() == want.tobytes()
    assert len(taken) == 3 * ranks
    assert min(taken) > 1
