"""Loops of whole-array functions in runs: what the record says, NaN, endless loops, and options of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.job.whole_call import call_whole
from meshrun.runner.options.step_options import SaveInterval, StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.programs.execute import ProgramRun
from meshrun.runner.report.summary import render
from meshrun.runner.run.declare import distribute
from meshrun.runner.run.execute import Options, RunProgress, execute, run
from meshrun.runner.steps.program_steps import ProgramStepper
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.world.world import open_world


@distribute(outputs=("u", "sweeps"))
def relaxed(u, *, tol: float = 0.1):
    """Heat a little, then relax until no cell changes by more than tol."""
    u[3, 3] += 1
    change, sweeps = np.inf, 0
    while change > tol:
        for _ in range(6):
            before = u.copy()
            u[1:-1] = (before[2:] + before[:-2]) / 2
        change = np.max(np.abs(u - before))
        sweeps += 1
    return u, np.max(u) * 0 + sweeps


@distribute(outputs=("u",), series=("changes",))
def with_series(u):
    """Sweeps until a cell changes little; a series of the last change of each step."""
    u[3, 3] += 1
    change = np.max(u)
    while change > 0.1:
        before = u.copy()
        u[1:-1] = (before[2:] + before[:-2]) / 2
        change = np.max(np.abs(u - before))
    return u, change


@distribute(outputs=("u",))
def swept(u, *, n: int = 9):
    """A known number of sweeps."""
    for _ in range(n):
        before = u.copy()
        u[1:-1] = (before[2:] + before[:-2]) / 2
    return u


@distribute(outputs=("u",))
def divided(u, *, limit: float = 0.5):
    """Divide by a value that becomes 0: inf - inf is NaN, which ends the loop."""
    scale, change = np.max(u), np.inf
    while change > limit:
        u = u + np.roll(u, 1, 0) / scale
        scale = scale - 1
        change = np.max(np.abs(u - np.roll(u, 1, 1)))
    return u


@distribute(outputs=("u",))
def never_begun(u, *, limit: float = 0.5):
    """The condition compares a NaN before the first iteration."""
    change = np.max(u) * np.nan
    while change > limit:
        u = np.roll(u, 1, 0)
        change = np.max(u)
    return u


@distribute(outputs=("u",))
def worse(u):
    """Divide by what gets smaller from step to step."""
    u = u - 1
    scale, change = np.max(u) - 0 * np.min(u), np.inf
    while change > 0.5:
        u = u + (np.roll(u, 1, 0) - u) / scale
        change = np.max(np.abs(u - np.roll(u, 1, 1)))
    return u


@distribute(outputs=("x",))
def conjugate(b):
    """A few iterations of conjugate gradients."""
    x, r, p, rr = np.zeros_like(b), b.copy(), b.copy(), np.max(b)
    while rr > 1e-6:
        q = 4 * p
        q[1:] -= p[:-1]
        q[:-1] -= p[1:]
        x = x + p / rr
        r = r - q * (q / rr)
        last, rr = rr, np.max(r * r)
        p = r + rr / last * p
    return x


@distribute(outputs=("u",))
def shifted(u):
    return u - np.min(u[:3])


@distribute(outputs=("u",))
def one_pass(u):
    return u + 1


@distribute(outputs=("u",))
def smoothed(u, *, tol: float = 0.01):
    """A loop with transforms."""
    change = np.max(u) - np.min(u)
    while change > tol:
        before = u.copy()
        u = np.fft.irfft2(np.fft.rfft2(u) * 0.7, u.shape)
        change = np.max(np.abs(u - before))
    return u


@distribute(outputs=("x",))
def solved(b, k, *, tol: float = 1e-4):
    """Conjugate gradients for heat in a material whose conductivity k varies by orders of magnitude."""
    x, r = np.zeros_like(b), b.copy()
    p, rr = r.copy(), np.vdot(r, r)
    least = tol * tol * rr
    while rr > least:
        q = 1e-3 * p
        q[1:] += k[1:] * (p[1:] - p[:-1])
        q[:-1] += k[1:] * (p[:-1] - p[1:])
        q[:, 1:] += k[:, 1:] * (p[:, 1:] - p[:, :-1])
        q[:, :-1] += k[:, 1:] * (p[:, :-1] - p[:, 1:])
        alpha = rr / np.sum(p * q)
        x += alpha * p
        r -= alpha * q
        before, rr = rr, np.vdot(r, r)
        p = r + rr / before * p
    return x


LINES = {job: job.function.__code__.co_firstlineno for job in (relaxed, swept, divided, never_begun)}
WHILE, FOR = LINES[relaxed] + 5, LINES[relaxed] + 6


@pytest.fixture
def start(tmp_path: Path) -> Path:
    np.save(tmp_path / "u.npy", np.random.default_rng(0).random((24, 9)))
    return tmp_path / "u.npy"


def on_ranks(ranks: int, job: Any, start: Path, options: Options, **parameters: Any) -> dict[str, Any]:
    targets = [start.with_name(f"{name}_after.npy") for name in (*job.output_names, *job.series)]

    def rank(control: Any) -> Any:
        world = open_world("cpu", control=control)
        return run(job, [start], targets, parameters, options, world=world)

    record: dict[str, Any] = run_ranks(ranks, rank, timeout=60)[0]
    return record


def sweeps_of(start: Path, steps: int) -> tuple[Any, list[int]]:
    """Return NumPy's field after so many steps, and the iterations of each."""
    u, counts = np.load(start), []
    for step in range(steps):
        u, sweeps = call_whole(relaxed, [u], relaxed.complete({}), step)
        counts.append(int(sweeps))
    return u, counts


# Iterations in the record and the summary


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("steps", [None, 4])
def test_the_record_counts_the_iterations_of_each_loop(start: Path, ranks: int, steps: int | None) -> None:
    record = on_ranks(ranks, relaxed, start, Options(verify="full", steps=StepOptions(steps=steps)))
    _, counts = sweeps_of(start, steps or 1)
    assert min(counts) > 1
    total, last = sum(counts), counts[-1]
    assert record["loops"] == [
        {"line": WHILE, "iterations": total, "last": last, "waits": True},
        {"line": FOR, "iterations": 6 * total, "last": 6, "waits": False},
    ]
    text = render(record)
    assert f"loop in line {WHILE}: {total} iterations" in text
    assert f"line {WHILE} waits for a value in each of its iterations" in text
    assert (f", {last} of them the last time" in text) == (steps is not None)
    assert f"line {FOR} waits" not in text


@pytest.mark.parametrize("fuse", ["off", "require"])
def test_counted_loops_are_counted_however_they_are_computed(start: Path, fuse: Any) -> None:
    record = on_ranks(2, swept, start, Options(fuse=fuse, steps=StepOptions(steps=3)))
    line = LINES[swept] + 3
    assert record["loops"] == [{"line": line, "iterations": 27, "last": 9, "waits": False}]


# NaN


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_nan_in_a_condition_means_what_it_means_in_python(start: Path, ranks: int) -> None:
    np.save(start, np.full((24, 9), 3.0))
    record = on_ranks(ranks, divided, start, Options(steps=StepOptions(steps=3)))
    with np.errstate(all="ignore"):
        u = np.load(start)
        for step in range(3):
            u = call_whole(divided, [u], divided.complete({}), step)
    np.testing.assert_array_equal(np.load(start.with_name("u_after.npy")), u)
    warnings = [one for one in record["warnings"] if "NaN" in one]
    assert len(warnings) <= 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_nan_is_a_warning_with_line_step_and_iteration(start: Path, ranks: int) -> None:
    whole = np.load(start)
    whole[5, 5] = np.inf  # in the first iteration inf - inf
    np.save(start, whole)
    record = on_ranks(ranks, divided, start, Options(steps=StepOptions(steps=3)))
    (warning,) = [one for one in record["warnings"] if "NaN" in one]
    line = LINES[divided] + 4
    assert warning.startswith(
        f"the condition of the loop in line {line} compares a NaN in step 1, after iteration 1 (nan > 0.5): "
        f"u is not finite, first in cell [5, 5], on [rank 0, "
    )
    assert warning.endswith("]: inf")
    record = on_ranks(ranks, never_begun, start, Options())
    (warning,) = [one for one in record["warnings"] if "NaN" in one]
    assert (
        "in step 1, before the first iteration (nan > 0.5): u is not finite, first in cell [5, 5]" in warning
    )
    np.save(start, np.ones((24, 9)))
    record = on_ranks(ranks, never_begun, start, Options())
    (warning,) = [one for one in record["warnings"] if "NaN" in one]
    assert warning.endswith("(nan > 0.5): all arrays of the loop are finite")


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_cell_is_that_of_what_the_condition_reduces(start: Path, ranks: int) -> None:
    """The direction of conjugate gradients is NaN everywhere then, the residual in some cells."""
    whole = np.ones((24, 9))
    whole[20, 4] = np.inf
    np.save(start, whole)
    record = on_ranks(ranks, conjugate, start, Options())
    (warning,) = [one for one in record["warnings"] if "NaN" in one]
    assert "after iteration 1 (nan > 1e-06): r is not finite, first in cell [19, 4], " in warning
    assert f"on [rank {0 if ranks == 1 else 2}, " in warning


@pytest.mark.parametrize("ranks", [1, 2])
def test_check_finite_makes_a_nan_an_error(start: Path, ranks: int) -> None:
    whole = np.load(start)
    whole[5, 5] = np.inf
    np.save(start, whole)
    checked = Options(steps=StepOptions(check_finite=1))
    with pytest.raises(RunError, match=r"after iteration 1 \(nan > 0.5\): u is not finite, first in cell"):
        on_ranks(ranks, divided, start, checked)
    assert not start.with_name("u_after.npy").exists()


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_error_has_step_and_checkpoint(start: Path, ranks: int) -> None:
    """In step 3, a value becomes 0 by which the loop divides."""
    np.save(start, np.full((24, 9), 3.0))
    steps = StepOptions(steps=9, check_finite=100, checkpoint=SaveInterval(steps=2))
    with pytest.raises(RunError) as failure:
        on_ranks(ranks, worse, start, Options(steps=steps))
    assert "compares a NaN in step 3, after iteration 1 (nan > 0.5): u is not finite, " in str(failure.value)
    assert "the last checkpoint is that of step 2" in str(failure.value)
    assert start.with_name("u_after.npy.checkpoint").exists()


@pytest.mark.parametrize("ranks", [1, 2])
def test_check_finite_looks_at_results(start: Path, ranks: int) -> None:
    whole = np.load(start)
    whole[23, 8] = np.nan
    np.save(start, whole)
    with pytest.raises(RunError, match=r"u is not finite in the result: cell \[23, 8\], on \[rank"):
        on_ranks(ranks, shifted, start, Options(steps=StepOptions(check_finite=1)))


def test_check_finite_is_of_steps_and_loops(start: Path) -> None:
    with pytest.raises(UserError, match=r"functions with reductions or loops.*--steps N"):
        on_ranks(2, one_pass, start, Options(steps=StepOptions(check_finite=1)))


@pytest.mark.parametrize("ranks", [1, 2])
def test_loops_with_transforms_say_the_same(start: Path, ranks: int) -> None:
    line = smoothed.function.__code__.co_firstlineno + 4
    u, changes = np.load(start), []
    for _ in range(4):
        u, before = 0.7 * u, u
        changes.append(np.abs(u - before).max())
    with pytest.raises(RunError) as failure:
        on_ranks(ranks, smoothed, start, Options(max_iterations=4))
    says = str(failure.value)
    assert f"the loop in line {line} did not end within 4 iterations: in the last 3 its condition " in says
    numbers = [float(one.split(" > 0.01")[0]) for one in says.split("compared ")[1].split(", ")[:3]]
    np.testing.assert_allclose(numbers, changes[1:], rtol=1e-4)

    whole = np.load(start)
    whole[7, 3] = np.nan
    np.save(start, whole)
    (warning,) = [one for one in on_ranks(ranks, smoothed, start, Options())["warnings"] if "NaN" in one]
    assert (
        f"loop in line {line} compares a NaN in step 1, before the first iteration (nan > 0.01): " in warning
    )
    whole[7, 3] = 1e308  # the sums of a transform overflow
    np.save(start, whole)
    with pytest.raises(RunError, match=r"compares a NaN in step 1, .*is not finite, first in cell \["):
        on_ranks(ranks, smoothed, start, Options(steps=StepOptions(check_finite=1)))


# Progress


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_solve_shows_its_iterations(start: Path, ranks: int) -> None:
    shown: list[tuple[int, int, str]] = []

    def rank(control: Any) -> None:
        world = open_world("cpu", control=control)
        mine: Any = (lambda *given: shown.append((*given[:2], given[2]()))) if world.rank == 0 else None
        progress = RunProgress(iterations=mine) if mine else RunProgress()
        targets = [start.with_name(f"{name}_after.npy") for name in relaxed.output_names]
        execute(
            world,
            relaxed,
            start,
            targets,
            {"tol": 0.1},
            Options(),
            transaction=OutputTransaction(),
            progress=progress,
        )

    run_ranks(ranks, rank, timeout=60)
    _, (count,) = sweeps_of(start, 1)
    assert [one[:2] for one in shown] == [
        (WHILE, n) for n in range(2, count + 1)
    ]  # the first one is unrolled
    changes = [float(text.removesuffix(" > 0.1")) for _, _, text in shown]
    assert changes[-1] <= 0.1 < changes[0]


# Loops that do not end


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_endless_loop_fails_with_its_line_and_its_last_numbers(start: Path, ranks: int) -> None:
    with pytest.raises(RunError) as failure:
        on_ranks(ranks, relaxed, start, Options(max_iterations=5), tol=-1.0)
    says = str(failure.value)
    assert f"the loop in line {WHILE} did not end within 5 iterations: in the last 3 its condition" in says
    numbers = [
        float(one.split(" > -1")[0]) for one in says.split("compared ")[1].split(", ") if " > -1" in one
    ]
    assert len(numbers) == 3
    u, changes = np.load(start), []
    u[3, 3] += 1
    for sweep in range(30):
        before = u.copy()
        u[1:-1] = (before[2:] + before[:-2]) / 2
        if sweep % 6 == 5:
            changes.append(np.abs(u - before).max())
    np.testing.assert_allclose(numbers, changes[-3:], rtol=1e-5)


def test_an_endless_loop_ends_in_python(start: Path) -> None:
    whole = np.load(start)
    with pytest.raises(RunError, match=rf"line {WHILE} did not end within 7 iterations.*max_iterations="):
        relaxed.run(start, [start.with_name("a.npy"), start.with_name("b.npy")], tol=-1.0, max_iterations=7)
    np.testing.assert_array_equal(np.load(start), whole)


# Verification of a solve


def heat_files(folder: Path, dtype: str, spread: float) -> list[Path]:
    chance = np.random.default_rng(2)
    arrays = {"b": chance.normal(size=(14, 11)), "k": np.exp(spread * chance.normal(size=(14, 11)))}
    for name, one in arrays.items():
        np.save(folder / f"{name}.npy", one.astype(dtype))
    return [folder / f"{name}.npy" for name in arrays]


def solves(folder: Path, ranks: int, files: list[Path], verify: Any) -> dict[str, Any]:
    def rank(control: Any) -> Any:
        world = open_world("cpu", control=control)
        return run(solved, files, [folder / "x.npy"], {"tol": 1e-4}, Options(verify=verify), world=world)

    record: dict[str, Any] = run_ranks(ranks, rank, timeout=60)[0]
    return record


@pytest.mark.parametrize(("ranks", "dtype"), [(1, "float64"), (2, "float32"), (3, "float64"), (3, "float32")])
def test_a_solve_that_amplifies_rounding_is_verified(tmp_path: Path, ranks: int, dtype: str) -> None:
    """NumPy's sums lead to another number of iterations, and to other digits within the tolerance."""
    record = solves(tmp_path, ranks, heat_files(tmp_path, dtype, 3), "full")
    assert record["verify"]["against"].endswith("with sums that are rounded once")
    assert record["verify"]["cells"] == 14 * 11
    assert record["loops"][0]["iterations"] > 100


@pytest.mark.parametrize("mode", ["sample", "full"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_halo_that_is_an_iteration_old_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, mode: str
) -> None:
    fill, filled = ProgramRun._fill_halos, dict[int, list[Any]]()

    def stale_once(self: Any, stale: Any) -> None:
        fill(self, stale)
        mine = filled.setdefault(self.world.rank, [])
        for array in stale:
            block, own = array.block.copy(), array.interior.copy()
            if len(mine) == 5:
                array.block[...] = mine[-1]
                array.interior[...] = own
            mine.append(block)

    files = heat_files(tmp_path, "float64", 0)
    solves(tmp_path, ranks, files, mode)
    monkeypatch.setattr(ProgramRun, "_fill_halos", stale_once)
    with pytest.raises(RunError, match="verification failed: cell"):
        solves(tmp_path, ranks, files, mode)
    assert all(len(mine) > 6 for mine in filled.values())


# Frames, checkpoints, series and the other options of steps


@pytest.mark.parametrize("ranks", [1, 2])
def test_loops_keep_the_options_of_steps(start: Path, ranks: int) -> None:
    frames = start.with_name("frames.npy")
    steps = StepOptions(steps=6, every=2, frames=str(frames))
    record = on_ranks(ranks, relaxed, start, Options(verify="full", steps=steps))
    shown = np.load(frames)
    assert len(shown) == 4
    for number, one in enumerate(shown):
        np.testing.assert_array_equal(one, sweeps_of(start, 2 * number)[0])
    assert record["loops"][0]["iterations"] == sum(sweeps_of(start, 6)[1])


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_with_loops_is_resumed(start: Path, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, taken = StepOptions(steps=5, checkpoint=SaveInterval(steps=2)), ProgramStepper._take_step

    def fail(self: Any) -> None:
        if self.done == 3:
            raise RunError("the power is off", everywhere=True)
        taken(self)

    monkeypatch.setattr(ProgramStepper, "_take_step", fail)
    with pytest.raises(RunError, match="power"):
        on_ranks(ranks, relaxed, start, Options(steps=steps))
    monkeypatch.undo()
    record = on_ranks(ranks, relaxed, start, Options(steps=steps, stream=StreamOptions(resume=True)))
    wanted, counts = sweeps_of(start, 5)
    np.testing.assert_array_equal(np.load(start.with_name("u_after.npy")), wanted)
    assert record["steps"]["first"] == 2
    assert record["loops"][0]["iterations"] == sum(counts[2:])  # of this run


@pytest.mark.parametrize("ranks", [1, 2])
def test_until_a_step_changes_little(start: Path, ranks: int) -> None:
    steps = StepOptions(steps=50, every=1, until=0.2)
    record = on_ranks(ranks, swept, start, Options(verify="full", steps=steps))
    done = record["steps"]["steps"]
    assert record["steps"]["until"]["reached"]
    assert 1 < done < 50
    assert record["loops"][0]["iterations"] == 9 * done


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_series_has_a_row_for_each_step(start: Path, ranks: int) -> None:
    on_ranks(ranks, with_series, start, Options(verify="full", steps=StepOptions(steps=4, every=2)))
    u, rows = np.load(start), []
    for step in range(4):
        u, change = call_whole(with_series, [u], {}, step)
        rows.append(change)
    np.testing.assert_array_equal(np.load(start.with_name("changes_after.npy")), rows[1::2])


# Waits


@distribute(outputs=("u",))
def chosen(u, *, tol: float = 0.1):
    """A loop and a condition that ask for values."""
    if np.max(u) > 0.5:
        u = u * 0.9
    while np.sum(u * u) > tol:
        u = u * 0.5
    return u


def test_the_time_of_waits_is_in_record_and_summary_by_line(start: Path) -> None:
    record, line = on_ranks(2, chosen, start, Options()), chosen.function.__code__.co_firstlineno
    (loop,) = record["loops"]
    waits = {one["line"]: one for one in record["waits"]}
    assert {one["file"] for one in record["waits"]} == {None}
    # The sum before the first iteration is not the loop's.
    assert waits[line + 5]["times"] == loop["iterations"] > 1
    assert 0 < waits[line + 5]["seconds"] < record["seconds"]
    assert f"line {line + 5} waits for a value in each of its iterations, " in render(record)


def test_one_cpu_rank_waits_for_nobody(start: Path) -> None:
    record = on_ranks(1, chosen, start, Options())
    assert record["waits"] == []
    assert render(record).count("in all") == 0
