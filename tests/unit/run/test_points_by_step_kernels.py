"""Points and series in CUDA kernels of several steps, run on the host: the bits of the plain function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import host_steps
import numpy as np
import pytest
import step_runs
from host_steps import HostStepKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import pairs_by_day
from point_threads import by_threads
from queued_device import GraphBackend

from meshrun.runner.compiler.cuda.steps.layout import Tuning
from meshrun.runner.compiler.cuda.steps.tuning import Choice
from meshrun.runner.run.declare import distribute
from meshrun.runner.steps import stepper

pytestmark = pytest.mark.skipif(host_steps.GXX is None, reason="needs g++")
N, M, STEPS = 41, 204, 11
RANDOM = np.random.default_rng(5)
SY, SX = RANDOM.integers(0, N, 16), RANDOM.integers(0, M, 16)
RY, RX = RANDOM.integers(0, N, 120), RANDOM.integers(0, M, 120)
EDGES = np.array([0, N - 1, 7, 0, N - 1]), np.array([M - 1, 0, 0, 5, M - 1])
WEIGHTS = RANDOM.random(16).astype(np.float32)
TUNINGS = {
    "elements": Tuning(2, 2, 2, 2, rows=6),
    "vectors": Tuning(4, 1, 2, 3, rows=9, vectors=True),
    "one strip": Tuning(2, 2, 1, 2, rows=99),
}


def around(u):
    return u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]


@distribute(outputs=("u", "before"), series=("trace", "pair", "cell"))
def acoustic(u, before, c, *, step):
    """Sources, written last, of a number of the step; receivers, some at one place; a value of neighbours."""
    new = 2 * u - before
    new[1:-1, 1:-1] += c[1:-1, 1:-1] * around(u)
    new[SY, SX] += WEIGHTS * (0.5 * step + 1)
    y, x = np.array([3, 20, 35]), np.array([5, 106, 187])
    return new, u, new[RY, RX], new[y, x] - u[y + 1, x], u[17, 4]


@distribute(outputs=("u",), series=("here",))
def read_by_neighbours(u):
    """Around the ends; what was written is read by the cells beside."""
    u[SY, SX] += WEIGHTS
    u[EDGES] = 0.5
    new = 0.25 * (np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1))
    return new, new[EDGES]


@distribute(outputs=("u",))
def large(u):
    """What is written at points is too large for products that are not rounded."""
    new = u.copy()
    new[1:-1, 1:-1] = u[1:-1, 1:-1] + 0.2 * around(u)
    new[0] = 1
    new[20, [100, 101, 102]] += np.float32(9e37)
    new[SY, SX] = -new[SY, SX]
    return new


@distribute(outputs=("u",), series=("low", "trace"))
def listened(u, c):
    """Series without writes to points."""
    new = u.copy()
    new[1:-1, 1:-1] += c[1:-1, 1:-1] * around(u)
    return new, 0.25 * u[RY, RX], new[RY, RX]


@distribute(outputs=("u",), series=("trace",))
def closed(u):
    """Edges copy the cells beside them, before some of these and some of those are written to."""
    new = u.copy()
    new[1:-1, 1:-1] += 0.2 * around(u)
    new[0], new[-1] = new[1], new[-2]
    new[EDGES] += 1
    return new, new[RY, RX]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("points")


@pytest.fixture(scope="module")
def made_anew(folder: Path) -> Iterator[Callable[..., list[HostStepKernel]]]:
    """As `made`, for a test that is called with many examples."""
    with pytest.MonkeyPatch.context() as patch:
        yield installer(patch, folder)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Callable[..., list[HostStepKernel]]:
    return installer(monkeypatch, folder)


def installer(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Callable[..., list[HostStepKernel]]:
    """Return what has runs take up to `most` steps by a kernel on the host, and returns these kernels."""

    def install(most: int, tuning: str, changes: Any = ()) -> list[HostStepKernel]:
        kernels: list[HostStepKernel] = []

        def compile_for(
            device: Any, program: Any, widths: Any, arithmetic: str, feeds: Any, boundary: str, cval: float,
            shape: Any, row: int,
        ) -> Any:  # fmt: skip
            choice = Choice(most, TUNINGS[tuning])
            kernel = HostStepKernel(program, widths, arithmetic, feeds, boundary, cval, choice, row)
            kernel.folder, kernel.number, kernel.changes = folder, len(kernels) + 1, changes
            kernels.append(kernel)
            return kernel, "g++"

        monkeypatch.setattr("meshrun.runner.compiler.compiled.compile_for", compile_for)
        for room in ("compiler.whole.point_kernel", "steps.observers.series", "steps.recorded"):
            monkeypatch.setattr(f"meshrun.runner.{room}.compile_points", by_threads)
        return kernels

    return install


def inputs_of(job: Any, shape: tuple[int, int] = (N, M)) -> list[Any]:
    random = np.random.default_rng(1)
    return [random.random(shape, dtype=np.float32) * (0.2 if name == "c" else 1) for name in job.arrays]


def after(job: Any, arrays: list[Any], steps: int, every: int = 1) -> list[Any]:
    """The plain function: the fields after some steps, and rows of its series."""
    count, timed = len(job.output_names), "step" in job.function.__code__.co_varnames
    fields, others, rows = arrays[:count], arrays[count:], []
    for step in range(steps):
        with np.errstate(all="ignore"):
            returned = job.function(*map(np.copy, fields), *others, **({"step": step} if timed else {}))
        returned = returned if isinstance(returned, tuple) else (returned,)
        fields, row = list(returned[:count]), returned[count:]
        if (step + 1) % every == 0 or step + 1 == steps:
            rows.append(row)
    return [*fields, *(np.stack(column) for column in zip(*rows, strict=True))]


def compare(folder: Path, job: Any, ranks: int, steps: int = STEPS, every: int = 1, **options: Any) -> Any:
    """Compare a run with the plain function; return its record."""
    arrays = inputs_of(job)
    outputs = [folder / f"{name}_after.npy" for name in (*job.output_names, *job.series)]
    found, record = step_runs.stepped(
        folder, job, arrays, steps, ranks=ranks, devices=True, outputs=outputs, fuse="require",
        every=None if every == 1 else every, **options,
    )  # fmt: skip
    for name, one, want in zip(outputs, found, after(job, arrays, steps, every), strict=True):
        assert one.tobytes() == want.tobytes(), name.stem
    return record


@pairs_by_day(job=[acoustic, read_by_neighbours, large, listened], tuning=[*TUNINGS], ranks=[1, 2, 3])
def test_bits(tmp_path: Path, made: Any, job: Any, tuning: str, ranks: int) -> None:
    kernels = made(3, tuning)
    compare(tmp_path, job, ranks)
    assert all(kernel.launched == 4 for kernel in kernels)


@pytest.mark.parametrize("ranks", [1, 2])
def test_edges_that_are_copies_take_single_steps(tmp_path: Path, made: Any, ranks: int) -> None:
    kernels = made(3, "elements")
    compare(tmp_path, closed, ranks)
    assert not any(kernel.launched for kernel in kernels)


def test_a_grid(tmp_path: Path, made: Any) -> None:
    kernels = made(2, "elements")
    compare(tmp_path, acoustic, 4, grid="2x2")
    assert all(kernel.launched for kernel in kernels)


@pytest.mark.parametrize("ranks", [1, 2])
def test_rows_every_few_steps(tmp_path: Path, made: Any, ranks: int) -> None:
    kernels = made(2, "elements")
    compare(tmp_path, read_by_neighbours, ranks, every=4)
    assert all(kernel.launched for kernel in kernels)


@pytest.mark.parametrize("waiting", [4, 256])
def test_graphs_go_on_with_the_rows(
    tmp_path: Path, made: Any, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    monkeypatch.setattr(stepper, "EAGER", 2)
    monkeypatch.setattr(stepper, "GRAPH_STEPS", (4,))
    monkeypatch.setattr(step_runs, "QueuedBackend", GraphBackend)
    monkeypatch.setattr("meshrun.runner.steps.observers.series.MOST_WAITING", waiting)
    kernels = made(2, "elements")
    record = compare(tmp_path, acoustic, 1, steps=27)
    assert record["steps"]["graph"]
    assert all(kernel.launched for kernel in kernels)


DEFECTS = {
    "large values are not noticed": (large, "rows.large |= too_large(out.w##n);", ""),
    "the first row near points is that of all": (acoustic, "+ bits_before(points.near, bit)", ""),
    "rows of the tile above": (read_by_neighbours, "rows[row - K * RY]", "rows[row - K * RY - 1]"),
    "rows of the first step alone": (acoustic, "+ LEVEL - 1;", ";"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_defects_are_caught(tmp_path: Path, made: Any, name: str) -> None:
    job, text, instead = DEFECTS[name]
    made(3, "vectors", [(text, instead)])
    with pytest.raises(AssertionError):
        compare(tmp_path, job, 1)


@st.composite
def functions(draw: st.DrawFn) -> Any:
    """Return a job that writes to points before and after a stencil, and has series."""
    axis = st.lists(st.integers(0, 3), min_size=1, max_size=9)  # few places, so that some are the same
    spread = draw(st.sampled_from([1, 7, 13]))
    near = draw(st.integers(0, N - 1)), draw(st.integers(0, M - 1))
    lists = []
    for _ in range(3):
        rows, columns = draw(axis), draw(axis)
        count = min(len(rows), len(columns))
        at = [
            np.array(one[:count]) * spread + start for one, start in zip((rows, columns), near, strict=True)
        ]
        lists.append((at[0] % N, at[1] % M))
    first, last, heard = lists
    wraps, before, after = draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 2))
    values = np.random.default_rng(draw(st.integers(0, 99))).random(len(last[0])).astype(np.float32)

    def function(u, c, *, step):
        if before:
            u[first] *= np.float32(0.5)
        new = u.copy()
        if wraps:
            new += c * (np.roll(u, 1, 0) - 2 * u + np.roll(u, -1, 1))
        else:
            new[1:-1, 1:-1] += c[1:-1, 1:-1] * around(u)
        if after == 1:
            new[last] += values * (0.25 * step)
        elif after == 2:
            new[last] = u[last] - new[last]
        return new, new[heard], 2 * u[heard]

    return distribute(outputs=("u",), series=("after", "before"))(function)


@settings(max_examples=settings.default.max_examples // 25, deadline=None)
@given(
    job=functions(),
    tuning=st.sampled_from(sorted(TUNINGS)),
    most=st.integers(2, 3),
    ranks=st.sampled_from([1, 1, 2]),
    steps=st.integers(2, 7),
)
def test_bits_of_any_points(
    made_anew: Any, tmp_path_factory: pytest.TempPathFactory, job: Any, tuning: str, most: int, ranks: int,
    steps: int,
) -> None:  # fmt: skip
    kernels = made_anew(most, tuning)
    compare(tmp_path_factory.mktemp("any"), job, ranks, steps)
    assert all(kernel.launched for kernel in kernels)
