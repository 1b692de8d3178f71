"""The memory of arrays between stages: coarse grids have their own cells, and arrays share what they can."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.arrays.distributed_array import empty_array
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.compiler.inferred_halo import with_inferred_halo
from meshrun.runner.compiler.whole.trace import WholeInput, trace_whole
from meshrun.runner.forecast.stage_memory import with_stage_memory
from meshrun.runner.plan.chunking import block_memory
from meshrun.runner.plan.task import plan_task
from meshrun.runner.programs.execute import ProgramRun
from meshrun.runner.programs.memory import StageMemory, shared_memory
from meshrun.runner.programs.spectral.spectral_memory import SpectralMemory
from meshrun.runner.programs.spectral.spectral_run import SpectralRun
from meshrun.runner.programs.stages import KernelStage, ReductionStage, plan_program
from meshrun.runner.report.phases import Phases
from meshrun.runner.world.world import open_world
from tests.unit.programs.test_levels import cell_cycle, cycle


@meshrun.distribute(outputs=("u",))
def vertices(u, f):
    """One V-cycle over vertices."""
    return cycle(u, f)


@meshrun.distribute(outputs=("u",))
def cells(u, f):
    """One V-cycle over cells."""
    return cell_cycle(u, f)


@pytest.mark.parametrize(("job", "n"), [(vertices, 8193), (cells, 8192)])
def test_a_large_cycle_fits_a_gpu(job: Any, n: int) -> None:
    """Its two fields of 268 MB each take most of the memory, not the arrays of its dozen levels."""
    types = [((n, n), np.dtype("f4"))] * 2
    known = with_stage_memory(with_inferred_halo(job, types, {}, "cuda"))
    for ranks, most in (1, 6e9), (2, 3e9):
        task = plan_task(known, {}, types, ranks)
        assert 5e8 / ranks < block_memory(task, task.partition[0], asynchronous=True) < most


def summed(u, f):
    """A loop that stays one, beside a reduction and arrays that live long."""
    first = np.sqrt(u[1:-1] + f[:-2])
    for _ in range(40):
        u[1:-1] = np.sqrt(u[2:] * u[:-2] + np.abs(u).max())
    u[1:-1] += first
    return u * u.sum(axis=0)


@pytest.mark.parametrize("function", [summed, cycle, cell_cycle])
@pytest.mark.parametrize("grid", [(1, 1), (2, 1)])
def test_a_run_takes_no_more_than_is_forecast(function: Any, grid: Any) -> None:
    size = 33 if function is cycle else 32
    inputs = [WholeInput(name, (size, size), np.dtype("f4")) for name in ("u", "f")]
    traced = trace_whole(function, inputs, {}, ("out",))
    program = plan_program(traced)
    forecast = StageMemory(traced, (None,))

    def rank(control: Any) -> None:
        taken: list[int] = []

        class Counting:
            def empty(self, shape: Any, dtype: Any) -> Any:
                made = world.backend.empty(shape, dtype)
                taken.append(made.nbytes)
                return made

            def __getattr__(self, name: str) -> Any:
                return getattr(world.backend, name)

        world = open_world("cpu", control=control)
        run = ProgramRun(world, program, grid, Phases(world.backend.synchronize), allocator=Counting())
        assert 0 < sum(taken) <= forecast.nbytes(run.region.shape)

    run_ranks(int(np.prod(grid)), rank)


def spectral_steps(u):
    """Runge and Kutta's steps, each with transforms there and back."""
    n, m = u.shape
    k = np.fft.rfftfreq(m, 1 / m)

    def change(w):
        v = np.fft.irfft2(1j * k * w, (n, m))
        return -0.1 * k**2 * w - np.fft.rfft2(v * v)

    w = np.fft.rfft2(u)
    a = change(w)
    b = change(w + 0.05 * a)
    c = change(w + 0.05 * b)
    d = change(w + 0.1 * c)
    return np.fft.irfft2(w + 0.1 / 6 * (a + 2 * b + 2 * c + d), (n, m))


def spectral_loop(u):
    """A loop of transforms; what it finds and what it leaves change places."""
    for _ in range(40):
        u = u + 0.1 * np.roll(np.fft.irfft2(np.fft.rfft2(u), u.shape), 1, 0)
    return np.fft.irfft2(np.abs(np.fft.rfft2(u)), u.shape)


@pytest.mark.parametrize("function", [spectral_steps, spectral_loop])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_with_transforms_takes_what_is_forecast(function: Any, ranks: int) -> None:
    shape = 96, 64
    program: Any = trace_whole(function, [WholeInput("u", shape, np.dtype("f8"))], {}, ("out",))
    forecast = SpectralMemory(program, (0,))

    def rank(control: Any) -> None:
        world = open_world("cpu", control=control)
        live = Counter[str]()
        make = world.backend.empty

        def counting(shape: Any, dtype: Any) -> Any:
            """Count the bytes of arrays that are there at the same time."""
            made = make(shape, dtype)
            live["now"] += made.nbytes
            weakref.finalize(made, live.subtract, {"now": made.nbytes})
            live["most"] = max(live["most"], live["now"])
            return made

        world.backend.empty = counting
        run = SpectralRun(world, program, (ranks, 1), Phases(world.backend.synchronize))
        run.prepare()
        (plan,) = run.plans
        assert plan is not None
        run.arrays[0], spare = (empty_array(world, plan, np.dtype("f8")) for _ in range(2))
        for array in (run.arrays[0], spare):
            array.interior[...] = 1
        run.take([spare.interior])
        run.take([spare.interior])
        most = forecast.nbytes(run.region.shape)
        assert 0.5 * most < live["most"] < most

    run_ranks(ranks, rank)


def test_arrays_between_transforms_share_memory() -> None:
    """Four stages of a step take no more than two do; the arrays would be a dozen."""
    program: Any = trace_whole(spectral_steps, [WholeInput("u", (96, 64), np.dtype("f8"))], {}, ("out",))
    spectrum = 96 * 33 * 16
    each = [one for one in program.shared if one.shape]
    assert len(each) > 15
    assert SpectralMemory(program, (0,))._bytes_between(1) < 10 * spectrum


@pytest.mark.parametrize("function", [summed, cycle])
def test_no_array_is_overwritten_while_a_stage_needs_it(function: Any) -> None:
    """Each read finds in the shared memory what the array's own stage wrote last."""
    inputs = [WholeInput(name, (33, 33), np.dtype("f4")) for name in ("u", "f")]
    program = plan_program(trace_whole(function, inputs, {}, ("out",)))
    owners, holds = shared_memory(program), dict[int, int]()
    for stage in program.stages:
        if isinstance(stage, ReductionStage):
            written = [] if stage.array is None else [stage.array]
        elif isinstance(stage, KernelStage):
            written = [place.number for place in stage.writes if not place.of_output]
        else:
            continue
        read = [number for number in stage.cells.reads if number in owners]
        assert all(holds[owners[number]] == number for number in read)
        assert not {owners[number] for number in read} & {owners[number] for number in written}
        holds |= {owners[number]: number for number in written}


def test_sweeps_of_one_grid_share_memory() -> None:
    """Two arrays of a grid and dtype are enough for many sweeps: one is read, the other is written."""
    inputs = [WholeInput(name, (33, 33), np.dtype("f4")) for name in ("u", "f")]
    program = plan_program(trace_whole(cycle, inputs, {"bottom": 60}, ("out",), kind="cuda"))
    smallest = [n for n, one in enumerate(program.arrays) if one.shape == (3, 3)]
    owners = shared_memory(program)
    assert len(smallest) > 20
    assert len({owners[number] for number in smallest}) < 6
