"""`meshrun selftest`: check that this installation computes correct results on this machine.

Every check is a run with full verification: small arrays with awkward shapes from files, cut along one and
two axes, with every boundary, time steps, and the installed jobs on their own inputs. The option `mutate`
tests verification itself: each deliberate bug in the runner must be detected.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import MeshrunError, RunError
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.discover import find, names
from meshrun.runner.options.choices import BOUNDARIES, Boundary, DeviceChoice
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.report.table import table
from meshrun.runner.report.units import counted
from meshrun.runner.run.declare import map_blocks, reduce_blocks
from meshrun.runner.run.execute import Options, execute
from meshrun.runner.run.installation.mutations import MUTATIONS, Mutation
from meshrun.runner.spelling import option
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.system.launcher import BY_HAND, Started
from meshrun.runner.world.binding import visible_gpus
from meshrun.runner.world.failure import FailureHandler, Guard
from meshrun.runner.world.rank_process import join_world
from meshrun.runner.world.run_status import run_at
from meshrun.runner.world.termination import on_termination
from meshrun.runner.world.world import World, open_world

SIMULATED = 4  # ranks as threads, if there is only one process
WIDTH = 2
SIDE = 2 * WIDTH + 1
WEIGHTS = np.arange(1.0, SIDE * SIDE + 1).reshape(SIDE, SIDE) * np.resize([1.0, -1.0, 1.0], (SIDE, SIDE))
STEP_HALO = ((2, 1), (1, 2))
NEIGHBOURS = list(product(range(2), range(4), range(4)))  # field, row, column
STEP_WEIGHTS = [(4 * number + 1, 4 * number + 3) for number in range(len(NEIGHBOURS))]  # of the two sums


def _expected(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    windows = np.lib.stride_tricks.sliding_window_view(block, (SIDE, SIDE))
    sums: np.ndarray[Any, Any] = np.einsum("abij,ij->ab", windows, WEIGHTS)
    return sums


@map_blocks(halo=WIDTH, out=lambda shape, dtype: (shape, np.dtype(np.float32)), reference=_expected)
def stencil(block: Any, *, out: Any, xp: Any) -> None:
    """Compute a sum over 5x5 neighbours with 25 different weights: no two cells can be confused."""
    rows, columns = out.shape
    sums = xp.zeros((rows, columns), np.float64)
    for i in range(SIDE):
        for j in range(SIDE):
            sums += WEIGHTS[i, j] * block[i : i + rows, j : j + columns]
    out[...] = sums


@map_blocks(halo=WIDTH, out=stencil.out, reference=lambda block: _expected(2 * block))
def in_place(block: Any, *, out: Any, xp: Any) -> None:
    """Compute the same for twice the values, by a function that doubles them in its block."""
    block *= 2
    stencil.function(block, out=out, xp=xp)


def _expected_half(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    windows = np.lib.stride_tricks.sliding_window_view(block, (4, 4))[::2, ::2]
    sums: np.ndarray[Any, Any] = np.einsum("abij,ij->ab", windows, WEIGHTS[:4, :4])
    return sums


@map_blocks(
    halo=1,
    out=lambda shape, dtype: ((shape[0] // 2, shape[1] // 2), np.dtype(np.float32)),
    reference=_expected_half,
)
def half(block: Any, *, out: Any, xp: Any) -> None:
    """Compute a sum over 2x2 cells and their neighbours: the result has half as many rows and columns."""
    rows, columns = out.shape
    sums = xp.zeros((rows, columns), np.float64)
    for i in range(4):
        for j in range(4):
            sums += WEIGHTS[i, j] * block[i : i + 2 * rows : 2, j : j + 2 * columns : 2]
    out[...] = sums


@map_blocks(halo=STEP_HALO, outputs=2)
def stepping(now: Any, before: Any, *, xp: Any) -> Any:
    """Compute two sums over 4x4 neighbours in two fields, modulo 2^32. No two of the 64 weights are equal and
    all are odd, so that no two cells can be confused and no change of a cell is lost."""
    (above, below), (left, right) = STEP_HALO
    rows, columns = now.shape[0] - above - below, now.shape[1] - left - right
    sums = [xp.zeros((rows, columns), np.uint32) for _ in range(2)]
    for (field, i, j), weights in zip(NEIGHBOURS, STEP_WEIGHTS, strict=True):
        cells = (now, before)[field][i : i + rows, j : j + columns]
        sums[0] += np.uint32(weights[0]) * cells
        sums[1] += np.uint32(weights[1]) * cells
    return sums[0], sums[1]


@reduce_blocks(combine=lambda a, b: (a[0] + b[0], max(a[1], b[1])))
def total(block: Any) -> tuple[float, float]:
    """Return the sum and the largest value."""
    return float(block.sum(dtype=np.float64)), float(block.max())


@dataclass(frozen=True)
class Trial:
    """One verified run."""

    title: str
    job: Job
    shape: tuple[int, ...]
    dtype: str
    parameters: dict[str, Any]
    options: Options


def trials(ranks: int, device: DeviceChoice) -> Iterator[Trial]:
    """Yield trials of this module's jobs over all boundaries and cuts, then those of every installed job."""
    for boundary in BOUNDARIES:
        for grid in (None, "0x0"):
            options = Options(device=device, verify="full", boundary=boundary, grid=grid)
            cut = "rows" if grid is None else "rows and columns"
            yield Trial(f"stencil, {boundary}, {cut} cut", stencil, (61, 43), "float32", {}, options)
            yield Trial(f"half as long, {boundary}, {cut} cut", half, (62, 46), "float32", {}, options)
        for every in (1, 2):
            steps = StepOptions(3, steps_per_exchange=every)
            options = Options(device=device, verify="full", boundary=boundary, grid="0x0", steps=steps)
            title = f"3 steps, {boundary}, halos exchanged every {'step' if every == 1 else '2 steps'}"
            yield Trial(title, stepping, (61, 43), "uint32", {}, options)
    full = Options(device=device, verify="full")
    yield Trial("fewer rows than ranks", stencil, (max(ranks - 1, 3), 7), "uint8", {}, full)
    yield Trial("a function that works in place", in_place, (61, 43), "float32", {}, full)
    yield Trial("a reduction", total, (1031, 2053), "float32", {}, full)
    for name in names():
        job = find(name)
        for shape, dtype, parameters in job.trials:
            yield Trial(f"{name}, {dtype}", job, shape, dtype, parameters, full)


def launcher_ranks(device: DeviceChoice) -> int:
    """Return how many ranks a check of the launcher should start on this machine."""
    return max(visible_gpus(device), 2)


def main(
    *,
    mutate: bool = False,
    device: DeviceChoice = "auto",
    started: Started = BY_HAND,
    debug: bool = False,
) -> int:
    """Run the checks as one rank; return the exit status. Rank 0 prints a line for each check."""
    handler = FailureHandler(run_at(started.run) if started.run else None, debug)
    on_termination(handler.terminate)
    if mutate:
        return mutation_table()
    world = join_world(handler, device, False, started)
    if isinstance(world, int):
        return world
    with Guard(world.own_rank, handler, reports_single_rank=True):
        failed = _check_ranks(world, device)
        if world.size == 1 and world.backend.device.kind == "cpu":
            failed += _check_simulated()
        world.close()
    if failed:
        failure = RunError(f"selftest: {failed} check(s) failed", everywhere=True)
        return handler.report_common(failure, world.rank)
    if world.rank == 0 and handler.status is not None:
        handler.status.complete({"job": "selftest", "ranks": world.size})
    return 0


def _check_ranks(world: World, device: DeviceChoice) -> int:
    kind = "GPU" if world.backend.device.kind == "cuda" else "CPU"
    title = f"{counted(world.size, 'rank')}, {kind}, {world.arrays.label}"
    with _folder(world) as folder:
        failures = 0
        for trial in trials(world.size, device):
            failures += _report(world.rank, title, trial.title, partial(_run, world, trial, folder))
        failures += _report(world.rank, title, "all-reduce", lambda: _check_all_reduce(world))
    return failures


def _check_simulated() -> int:
    title = f"{SIMULATED} simulated ranks, CPU"
    failures = 0
    with tempfile.TemporaryDirectory(prefix="meshrun-") as folder:
        for trial in trials(SIMULATED, "cpu"):
            failures += _report(0, title, trial.title, partial(_run_simulated, trial, Path(folder)))
    return failures


def _report(rank: int, where: str, title: str, check: Callable[[], Any]) -> int:
    begin = time.perf_counter()
    failure: MeshrunError | None = None
    try:
        check()
    except MeshrunError as reason:
        failure = reason
    if rank == 0:
        seconds = time.perf_counter() - begin
        verdict = "ok  " if failure is None else "FAIL"
        sys.stdout.write(f"{verdict}  {where}: {title} ({seconds:.2f} s)\n")
        if failure is not None:
            sys.stdout.write(f"      {failure}\n")
        sys.stdout.flush()
    return failure is not None


def _run(world: World, trial: Trial, folder: Path) -> None:
    sources = [folder / f"input-{name}.npy" for name in trial.job.arrays]
    names = trial.job.output_names if trial.job.kind == "map" else ()
    targets = [folder / f"output-{name}.npy" for name in names]

    def save() -> None:
        for number, source in enumerate(sources):
            np.save(source, _values(trial.shape, trial.dtype, number))

    world.on_root(save)
    transaction = OutputTransaction()
    try:
        execute(world, trial.job, sources, targets, trial.parameters, trial.options, transaction=transaction)
    finally:
        transaction.roll_back()


def _run_simulated(trial: Trial, folder: Path, ranks: int = SIMULATED) -> None:
    def rank(control: Control) -> None:
        _run(open_world("cpu", control=control), trial, folder)

    run_ranks(ranks, rank)


def _check_all_reduce(world: World) -> None:
    array = world.xp.full(1000, world.rank + 1, np.float64)
    world.all_reduce(array)
    wanted = world.size * (world.size + 1) / 2
    if not bool((array == wanted).all()):
        raise RunError("an all-reduce gave a wrong sum", got=float(array[0]), expected=wanted)


def _values(shape: tuple[int, ...], dtype: str, number: int) -> np.ndarray[Any, Any]:
    """Return random values for input `number`."""
    generator = np.random.default_rng([len(shape), number])
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return generator.random(shape).astype(dtype)


@contextmanager
def _folder(world: World) -> Iterator[Path]:
    """Yield a folder that every rank can reach: in the working directory, because hosts do not share /tmp."""
    base = None if len(world.hosts) == 1 else "."
    path = world.on_root(lambda: Path(tempfile.mkdtemp(prefix="meshrun-", dir=base)))
    try:
        yield path
    finally:
        if world.rank == 0:
            shutil.rmtree(path, ignore_errors=True)


def mutation_table() -> int:
    """Apply every mutation and print whether verification detected it; return the exit status."""
    print(f"each broken runner, on {SIMULATED} simulated ranks, with {option('verify', 'full')}:\n")
    missed = 0
    lines = table(("", ""), [(one.name, one.what) for one in MUTATIONS], left=(0, 1), indent=0)
    for mutation, line in zip(MUTATIONS, lines, strict=True):
        noticed = caught(mutation)
        missed += noticed is None
        verdict = "caught" if noticed else "MISSED"
        print(f"{verdict}  {line:<{max(map(len, lines))}}  {noticed or 'the wrong result was accepted'}")
    count = len(MUTATIONS)
    if missed:
        print(f"\nVerification is NOT to be trusted here: it missed {missed} of {count} broken runners.")
        return 1
    print(f"\nVerification caught all {count} broken runners.")
    return 0


def caught(mutation: Mutation) -> str | None:
    """Return verification's message for a run with `mutation`; None if it detected nothing."""
    with tempfile.TemporaryDirectory(prefix="meshrun-") as folder, mutation.broken():
        cuts: tuple[tuple[Boundary, str], ...] = (("reflect", "4x1"), ("mirror", "2x2"), ("wrap", "4x1"))
        for boundary, grid in cuts:
            full = Options(device="cpu", verify="full")
            cut = Options(device="cpu", verify="full", boundary=boundary, grid=grid)
            steps = replace(cut, steps=StepOptions(5, steps_per_exchange=2 if grid == "2x2" else 1))
            trial = {
                "map": Trial("", stencil, (4 * 3000 + 1, 211), "float32", {}, cut),
                "in place": Trial("", in_place, (4 * 3000 + 1, 211), "float32", {}, cut),
                "steps": Trial("", stepping, (4 * 60 + 1, 53), "uint32", {}, steps),
                "reduce": Trial("", total, (1031, 4099), "float32", {}, full),
            }[mutation.kind]
            # A broken runner also calls the function on the small arrays that it tries before a run.
            trial = replace(trial, job=replace(trial.job, split_dependent=True))
            try:
                _run_simulated(trial, Path(folder))
            except RunError as failure:
                if "verification failed" in failure.what:
                    return f"got {failure.got}, expected {failure.expected}"
                raise
    return None
