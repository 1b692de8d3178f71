"""Results that are no fields: a row for each step, in files that are as they would be without a crash."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import pairs_by_day

from meshrun.runner.compiler.whole.block_form import block_form
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.options.step_options import SaveInterval, StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.programs.stages import plan_program
from meshrun.runner.run.declare import distribute
from meshrun.runner.run.execute import Options, run
from meshrun.runner.steps.loop import CheckFinite
from tests.unit.programs.test_levels import cell_cycle
from tests.unit.run.test_distribute import on_ranks

N, M = 40, 33
POINTS = np.random.default_rng(5)
SY, SX = POINTS.integers(0, N, 16), POINTS.integers(0, M, 16)
RY, RX = POINTS.integers(0, N, 512), POINTS.integers(0, M, 512)
WAVELET = POINTS.random(16).astype(np.float32)


@distribute(outputs=("u", "before"), series=("trace", "pair", "cell"))
def acoustic(u, before, c):
    """A wave with 16 sources, 512 receivers and a series of two pressures beside each other."""
    new = 2 * u - before
    new[1:-1, 1:-1] += c[1:-1, 1:-1] * (
        u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
    )
    new[SY, SX] += WAVELET
    y, x = np.array([3, 20, 37]), np.array([5, 6, 7])
    return new, u, new[RY, RX], new[y, x] - u[y + 1, x], u[17, 4]


def files(folder: Path, suffixes: str = "nnn") -> tuple[list[Any], list[Path], list[Path]]:
    arrays = [np.random.default_rng(n).random((N, M), dtype=np.float32) for n in range(3)]
    arrays[2] *= 0.2
    inputs = [folder / f"{name}.npy" for name in acoustic.arrays]
    for path, array in zip(inputs, arrays, strict=True):
        np.save(path, array)
    outputs = [folder / f"{name}_after.npy" for name in acoustic.output_names]
    kinds = {"n": ".npy", "c": ".csv"}
    series = [folder / f"{name}{kinds[s]}" for name, s in zip(acoustic.series, suffixes, strict=True)]
    return arrays, inputs, [*outputs, *series]


def after(arrays: list[Any], steps: int) -> tuple[list[Any], list[list[Any]]]:
    """The plain function: fields after the steps, and a row of each series for each of them."""
    u, before, c = arrays
    rows = []
    for _ in range(steps):
        u, before, *row = acoustic.function(u.copy(), before.copy(), c)
        rows.append(row)
    return [u, before], [[np.asarray(row[n]) for row in rows] for n in range(3)]


def check(outputs: list[Path], arrays: list[Any], steps: int, chosen: list[int]) -> None:
    """Compare the files. chosen: the steps that have a row."""
    fields, series = after(arrays, steps)
    for path, wanted in zip(outputs[:2], fields, strict=True):
        assert np.load(path).tobytes() == wanted.tobytes()
    for path, rows in zip(outputs[2:], series, strict=True):
        wanted = np.stack([rows[step - 1] for step in chosen])
        if path.suffix == ".npy":
            found = np.load(path)
            assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
            assert found.tobytes() == wanted.tobytes()
            continue
        head, *lines = path.read_text().splitlines()
        assert head.startswith("step,")
        assert len(lines) == len(chosen)
        for line, step, row in zip(lines, chosen, wanted, strict=True):
            first, *cells = line.split(",")
            assert int(first) == step
            assert np.array(cells, np.float32).tobytes() == row.tobytes()


KINDS: dict[str, tuple[Options, list[int]]] = {
    "one pass": (Options(verify="full"), [1]),
    "every step": (Options(verify="full", steps=StepOptions(steps=9)), [*range(1, 10)]),
    "every fourth and the last": (Options(steps=StepOptions(steps=9, every=4)), [4, 8, 9]),
    "a kernel": (Options(fuse="require", steps=StepOptions(steps=9, every=3)), [3, 6, 9]),
    "rows by a kernel": (Options(fuse="require", steps=StepOptions(steps=9)), [*range(1, 10)]),
    "rows by single steps": (
        Options(fuse="require", grid="0x0", steps=StepOptions(steps=9, steps_per_exchange=1)),
        [*range(1, 10)],
    ),
    "a grid": (Options(grid="0x0", steps=StepOptions(steps=5)), [*range(1, 6)]),
    "one copy": (Options(steps=StepOptions(steps=5, copies="one")), [*range(1, 6)]),
    "wide halos": (Options(steps=StepOptions(steps=6, steps_per_exchange=3, every=2)), [2, 4, 6]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_rows_are_those_of_the_plain_function(tmp_path: Path, ranks: int, kind: str) -> None:
    arrays, inputs, outputs = files(tmp_path, "ncn" if ranks == 2 else "nnn")
    options, chosen = KINDS[kind]
    record = on_ranks(ranks, acoustic, inputs, outputs, options)
    check(outputs, arrays, chosen[-1], chosen)
    shapes = {one["name"]: one["shape"] for one in record["outputs"]}
    count = len(chosen)
    assert shapes == {
        "u": [N, M], "before": [N, M], "trace": [count, 512], "pair": [count, 3], "cell": [count],
    }  # fmt: skip


ENDS = np.array([0, N - 1, 7, 0]), np.array([M - 1, 0, 0, 5])


@distribute(outputs=("u",), series=("beside", "here"))
def periodic(u):
    """A series is read around the ends, and after what was written to points beside them."""
    u[ENDS] *= 0.5
    new = 0.25 * (np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -2, 1))
    around = np.roll(u, 1, 0) - 2 * np.roll(new, 1, 1)
    return new, around[ENDS], new[ENDS]


def compare(folder: Path, job: Any, ranks: int, steps: int) -> dict[str, Any]:
    """Compare all outputs of steps by kernels with the plain function; return the record."""
    arrays = [np.random.default_rng(n).random((N, M), dtype=np.float32) for n in range(len(job.arrays))]
    inputs = [folder / f"{name}.npy" for name in job.arrays]
    for path, array in zip(inputs, arrays, strict=True):
        np.save(path, array)
    outputs = [folder / f"{name}_after.npy" for name in (*job.output_names, *job.series)]
    record = on_ranks(ranks, job, inputs, outputs, Options(fuse="require", steps=StepOptions(steps=steps)))
    count, rows = len(job.output_names), []
    fields, others = arrays[:count], arrays[count:]
    for _ in range(steps):
        found = job.function(*(one.copy() for one in fields), *others)
        fields = list(found[:count])
        rows.append(found[count:])
    wanted = [*fields, *(np.stack(column) for column in zip(*rows, strict=True))]
    for path, want in zip(outputs, wanted, strict=True):
        assert np.load(path).tobytes() == want.tobytes()
    return record


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("job", [acoustic, periodic], ids=lambda job: job.name)
def test_kernels_of_several_steps_have_a_row_of_each(
    tmp_path: Path, ranks: int, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshrun.runner.compiler.cpp.host.strip_rows", lambda *_: 3)
    monkeypatch.setattr("meshrun.runner.steps.observers.series.MOST_WAITING", 7)
    assert compare(tmp_path, job, ranks, 17)["steps"]["steps_per_kernel"] > 1


@distribute(outputs=("u",), series=("highest", "change", "both"))
def cooled(u):
    """Series of reductions: of the field before a step, after it, and of both."""
    new = u.copy()
    new[1:-1] += 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
    new /= np.maximum(u.max(), np.float32(0.5))
    return new, u.max(), np.abs(new - u).max() * 2, new.min() - u.max()


@distribute(series=("highest",))
def lowered(u):
    """A field that is changed, and a series alone."""
    u *= np.float32(0.75)
    return u.max()


def after_reductions(job: Any, u: Any, steps: int) -> tuple[Any, list[Any]]:
    rows = []
    for _ in range(steps):
        u = u.copy()
        returned = job.function(u)
        u, *row = returned if isinstance(returned, tuple) else (u, returned)
        rows.append(row)
    return u, [np.array(column, column[0].dtype) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("fuse", ["off", "require"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(("steps", "every"), [(None, None), (9, None), (9, 4)])
@pytest.mark.parametrize("job", [cooled, lowered], ids=lambda job: job.name)
def test_series_of_reductions(
    tmp_path: Path, job: Any, steps: int | None, every: int | None, ranks: int, fuse: Any
) -> None:
    u = np.random.default_rng(0).random((N, M), dtype=np.float32)
    np.save(tmp_path / "u.npy", u)
    outputs = [tmp_path / f"{name}_after.npy" for name in (*job.output_names, *job.series)]
    options = Options(fuse=fuse, verify="full", steps=StepOptions(steps=steps, every=every))
    record = on_ranks(ranks, job, [tmp_path / "u.npy"], outputs, options)
    wanted, series = after_reductions(job, u, steps or 1)
    assert np.load(outputs[0]).tobytes() == wanted.tobytes()
    chosen = [n for n in range(1, (steps or 1) + 1) if n % (every or 1) == 0 or n == steps]
    for path, rows in zip(outputs[1:], series, strict=True):
        assert np.load(path).tobytes() == rows[[n - 1 for n in chosen]].tobytes()
    assert [one["shape"] for one in record["outputs"][1:]] == [[len(chosen)]] * len(series)


def test_series_of_reductions_go_on_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    u = np.random.default_rng(0).random((N, M), dtype=np.float32)
    np.save(tmp_path / "u.npy", u)
    outputs = [tmp_path / f"{name}_after.csv" for name in cooled.series]
    outputs.insert(0, tmp_path / "u_after.npy")
    steps = StepOptions(steps=11, every=2, checkpoint=SaveInterval(steps=4))

    def crash(self: Any, stepper: Any) -> None:
        if stepper.done == 7:
            raise RunError("stopped")

    monkeypatch.setattr(CheckFinite, "_check", crash)
    inputs = [tmp_path / "u.npy"]
    with pytest.raises(RunError, match="stopped"):
        on_ranks(2, cooled, inputs, outputs, Options(steps=replace(steps, check_finite=1)))
    monkeypatch.undo()
    on_ranks(3, cooled, inputs, outputs, Options(steps=steps, stream=StreamOptions(resume=True)))
    _, series = after_reductions(cooled, u, 11)
    for path, rows in zip(outputs[1:], series, strict=True):
        lines = [line.split(",") for line in path.read_text().splitlines()[1:]]
        assert [int(step) for step, _ in lines] == [2, 4, 6, 8, 10, 11]
        assert [np.float32(value) for _, value in lines] == [rows[int(step) - 1] for step, _ in lines]


def test_iterators_and_calls_have_series_of_reductions() -> None:
    u = np.random.default_rng(0).random((N, M), dtype=np.float32)
    for stage, done in zip(cooled.iterate(u, steps=5, every=2), (2, 4, 5), strict=True):
        field, series = after_reductions(cooled, u, done)
        for found, want in zip(stage, [field, *(rows[-1] for rows in series)], strict=True):
            assert (found.tobytes(), found.shape) == (want.tobytes(), want.shape)
    assert [np.asarray(one).tobytes() for one in cooled(u)] == [one.tobytes() for one in cooled.function(u)]


@pytest.mark.parametrize("suffixes", ["nnn", "ccc"])
@pytest.mark.parametrize(
    ("stopped", "every", "fuse"), [(5, None, None), (7, 3, None), (8, None, None), (7, None, "require")]
)
def test_no_row_is_lost_or_doubled_after_a_crash(
    tmp_path: Path,
    stopped: int,
    every: int | None,
    fuse: Any,
    suffixes: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrays, inputs, outputs = files(tmp_path, suffixes)
    steps = StepOptions(steps=11, every=every, checkpoint=SaveInterval(steps=4))

    def crash(self: Any, stepper: Any) -> None:
        if stepper.done == stopped:
            raise RunError("stopped")

    monkeypatch.setattr(CheckFinite, "_check", crash)
    with pytest.raises(RunError, match="stopped"):
        on_ranks(3, acoustic, inputs, outputs, Options(fuse=fuse, steps=replace(steps, check_finite=1)))
    monkeypatch.undo()
    # The unfinished file may have more rows, also part of one.
    (partial,) = tmp_path.glob(f".{outputs[2].name}.*.partial")
    with partial.open("ab") as file:
        file.write(b"17,")
    again = Options(fuse=fuse, steps=steps, stream=StreamOptions(resume=True))
    record = on_ranks(2, acoustic, inputs, outputs, again)
    assert record["steps"]["first"] == 4
    chosen = [n for n in range(1, 12) if n % (every or 1) == 0 or n == 11]
    check(outputs, arrays, 11, chosen)
    assert not list(tmp_path.glob(".*.partial"))


def test_a_file_that_lost_its_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, inputs, outputs = files(tmp_path)
    steps = StepOptions(steps=11, checkpoint=SaveInterval(steps=4))
    crash = lambda self, stepper: (_ for _ in ()).throw(RunError("x")) if stepper.done == 5 else None  # noqa: E731
    monkeypatch.setattr(CheckFinite, "_check", crash)
    with pytest.raises(RunError):
        on_ranks(1, acoustic, inputs, outputs, Options(steps=replace(steps, check_finite=1)))
    monkeypatch.undo()
    (partial,) = tmp_path.glob(f".{outputs[2].name}.*.partial")
    content = bytearray(partial.read_bytes())
    content[-3000] ^= 1
    partial.write_bytes(content)
    again = replace(Options(steps=steps), stream=StreamOptions(resume=True))
    with pytest.raises(RunError, match=r"trace cannot go on.*does not hold its first 4 rows"):
        on_ranks(1, acoustic, inputs, outputs, again)


def test_a_run_that_stops_has_the_rows_of_its_steps(tmp_path: Path) -> None:
    arrays, inputs, outputs = files(tmp_path)
    options = Options(steps=StepOptions(steps=20, until=1e9, every=3))
    assert on_ranks(2, acoustic, inputs, outputs, options)["steps"]["steps"] == 3
    check(outputs, arrays, 3, [3])


def test_iterators_and_calls_have_rows() -> None:
    arrays = [np.random.default_rng(n).random((N, M), dtype=np.float32) for n in range(3)]
    for stage, done in zip(acoustic.iterate(*arrays, steps=5, every=2), (2, 4, 5), strict=True):
        fields, series = after(arrays, done)
        wanted = [*fields, *(rows[-1] for rows in series)]
        for found, want in zip(stage, wanted, strict=True):
            assert (found.tobytes(), found.shape) == (want.tobytes(), want.shape)
    assert len(acoustic(*arrays)) == 5
    results = [np.empty((N, M), np.float32), np.empty((N, M), np.float32)]
    rows = [np.empty((3, 512), np.float32), np.empty((3, 3), np.float32), np.empty(3, np.float32)]
    acoustic.run(arrays, [*results, *rows], steps=3, device="cpu")
    for found, want in zip(rows, after(arrays, 3)[1], strict=True):
        assert found.tobytes() == np.stack(want).tobytes()


def test_what_is_refused(tmp_path: Path) -> None:
    _, inputs, outputs = files(tmp_path)
    with pytest.raises(UserError, match=r"trace is a series.*\.npy or \.csv"):
        run(acoustic, inputs, [*outputs[:2], tmp_path / "t.png", *outputs[3:]], {}, Options(device="cpu"))
    with pytest.raises(UserError, match=r"writes 5 outputs"):
        run(acoustic, inputs, outputs[:2], {}, Options(device="cpu"))
    chunks = StreamOptions(chunk_bytes=4096)
    for steps in (StepOptions(), StepOptions(steps=3)):
        with pytest.raises(UserError, match="not computed in chunks"):
            run(acoustic, inputs, outputs, {}, Options(device="cpu", steps=steps, stream=chunks))
    with pytest.raises(UserError, match="series are not names"):
        distribute(series=3)(lambda u: u)
    with pytest.raises(UserError, match="series are not names"):
        distribute(outputs=("u",), series=("u",))(lambda u: (u, 1))

    @distribute(series=("field",))
    def whole(u):
        return u, u * 2

    with pytest.raises(UserError, match=r"returns a field of shape .* as the series field"):
        run(whole, inputs[:1], outputs[1:3], {}, Options(device="cpu"))


def test_a_failure_before_a_checkpoint_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, inputs, outputs = files(tmp_path)
    before = sorted(tmp_path.iterdir())

    def crash(self: Any, stepper: Any) -> None:
        if stepper.done == 5:
            raise RunError("stopped")

    monkeypatch.setattr(CheckFinite, "_check", crash)
    with pytest.raises(RunError, match="stopped"):
        on_ranks(2, acoustic, inputs, outputs, Options(steps=StepOptions(steps=9, check_finite=1)))
    assert sorted(tmp_path.iterdir()) == before


PROGRAM = """
import numpy as np
import meshrun

@meshrun.distribute(series=("trace",))
def cool(u):
    new = u.copy()
    new[1:-1] += 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
    new[[5, 9], [3, 4]] += 1
    return new, new[[5, 7, 9], [3, 3, 4]]
"""


@pytest.mark.nightly
@pytest.mark.parametrize("suffix", [".npy", ".csv"])
def test_a_killed_run_goes_on_without_losing_a_row(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "cool.py").write_text(PROGRAM)
    np.save(tmp_path / "u.npy", np.random.default_rng(0).random((60, 50)))
    words = [sys.executable, "-m", "meshrun", "run", "cool.py", "u.npy"]
    steps = ["--steps", "1000", "--checkpoint", "50"]
    subprocess.run([*words, "w.npy", f"t{suffix}", *steps[:2]], cwd=tmp_path, check=True)
    process = subprocess.Popen([*words, "a.npy", f"b{suffix}", *steps], cwd=tmp_path)
    kept = tmp_path / "a.npy.checkpoint"
    while process.poll() is None and len(list(kept.glob("step-*"))) < 2:
        time.sleep(0.01)
    process.kill()
    process.wait()
    subprocess.run([*words, "a.npy", f"b{suffix}", *steps, "--resume"], cwd=tmp_path, check=True)
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "w.npy").read_bytes()
    assert (tmp_path / f"b{suffix}").read_bytes() == (tmp_path / f"t{suffix}").read_bytes()


@distribute(outputs=("u", "before"), series=("highest", "trace", "beside", "slope", "cell"))
def adaptive(u, before, c):
    """Series at points and of reductions; sources, and receivers at one place."""
    new = 2 * u - before
    new[1:-1, 1:-1] += c[1:-1, 1:-1] * (u[2:, 1:-1] + u[:-2, 1:-1] - 2 * u[1:-1, 1:-1])
    new /= np.maximum(np.abs(new).max(), np.float32(1))
    new[SY, SX] += WAVELET * u.max()
    y, x = np.array([3, 20, 37]), np.array([5, 6, 7])
    slope = (new[y, x] - u[y + 1, x]) * np.array([1, 2, 3], np.float32)
    return new, u, new.max(), new[RY, RX], np.roll(new, 1, 0)[ENDS], slope, u[17, 4] * u.min()


def after_all(job: Any, arrays: list[Any], steps: int) -> tuple[list[Any], list[Any]]:
    """The plain function: fields after the steps, and all rows of each series."""
    count, rows = len(job.output_names), []
    fields, others = [one.copy() for one in arrays[:count]], arrays[count:]
    for _ in range(steps):
        found = job.function(*(one.copy() for one in fields), *others)
        fields = list(found[:count])
        rows.append(found[count:])
    return fields, [np.stack(column) for column in zip(*rows, strict=True)]


def inputs_of(folder: Path, job: Any) -> tuple[list[Any], list[Path], list[Path]]:
    arrays = [np.random.default_rng(n).random((N, M), dtype=np.float32) for n in range(len(job.arrays))]
    inputs = [folder / f"{name}.npy" for name in job.arrays]
    for path, array in zip(inputs, arrays, strict=True):
        np.save(path, array)
    return arrays, inputs, [folder / f"{name}_after.npy" for name in (*job.output_names, *job.series)]


@pytest.mark.parametrize("fuse", ["off", "require"])
@pairs_by_day(
    ranks__grid=[(1, None), (2, None), (3, None), (4, "2x2")], steps__every=[(None, None), (9, None), (9, 4)]
)
def test_series_at_points_beside_reductions(
    tmp_path: Path, steps: int | None, every: int | None, ranks: int, grid: str | None, fuse: Any
) -> None:
    arrays, inputs, outputs = inputs_of(tmp_path, adaptive)
    options = Options(fuse=fuse, grid=grid, steps=StepOptions(steps=steps, every=every))
    on_ranks(ranks, adaptive, inputs, outputs, options)
    fields, series = after_all(adaptive, arrays, steps or 1)
    chosen = [n - 1 for n in range(1, (steps or 1) + 1) if n % (every or 1) == 0 or n == steps]
    for path, want in zip(outputs, [*fields, *(rows[chosen] for rows in series)], strict=True):
        assert np.load(path).tobytes() == want.tobytes(), path.stem


def test_series_at_points_beside_reductions_go_on_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays, inputs, outputs = inputs_of(tmp_path, adaptive)
    steps = StepOptions(steps=11, every=2, checkpoint=SaveInterval(steps=4))

    def crash(self: Any, stepper: Any) -> None:
        if stepper.done == 7:
            raise RunError("stopped")

    monkeypatch.setattr(CheckFinite, "_check", crash)
    with pytest.raises(RunError, match="stopped"):
        on_ranks(2, adaptive, inputs, outputs, Options(steps=replace(steps, check_finite=1)))
    monkeypatch.undo()
    on_ranks(3, adaptive, inputs, outputs, Options(steps=steps, stream=StreamOptions(resume=True)))
    fields, series = after_all(adaptive, arrays, 11)
    for path, want in zip(outputs, [*fields, *(rows[[1, 3, 5, 7, 9, 10]] for rows in series)], strict=True):
        assert np.load(path).tobytes() == want.tobytes(), path.stem


def test_calls_and_iterators_have_series_at_points_beside_reductions() -> None:
    arrays = [np.random.default_rng(n).random((N, M), dtype=np.float32) for n in range(3)]
    for stage, done in zip(adaptive.iterate(*arrays, steps=5, every=2), (2, 4, 5), strict=True):
        fields, series = after_all(adaptive, arrays, done)
        for found, want in zip(stage, [*fields, *(rows[-1] for rows in series)], strict=True):
            assert np.asarray(found).tobytes() == want.tobytes()
    assert [np.asarray(one).tobytes() for one in adaptive(*arrays)] == [
        one.tobytes() for one in adaptive.function(*arrays)
    ]


@st.composite
def reduced(draw: st.DrawFn) -> Any:
    """Return a job with a reduction, and series of fields before it, after it and between, at any points."""
    rows = st.lists(st.integers(-N, N - 1), min_size=1, max_size=5)
    ys = np.array(draw(rows))
    xs = np.array(draw(st.lists(st.integers(-M, M - 1), min_size=len(ys), max_size=len(ys))))
    along, weighs, writes, first = (draw(st.booleans()) for _ in range(4))
    shift, axis = draw(st.integers(-3, 3)), draw(st.integers(0, 1))
    weights = np.random.default_rng(len(ys)).random(len(ys)).astype(np.float32)

    def function(u):
        before = u.copy()
        if writes:
            u[ys, xs] += weights * u.min()
        level = u.max(axis, keepdims=True) if along else u.max()
        new = np.roll(u, shift, axis) / (1 + level)
        heard = (new if first else new - np.roll(before, -shift, axis))[ys, xs]
        heard = heard * weights if weighs else heard
        return new, heard, before[ys, xs] + new[ys, xs] * u.min(), new[ys[0], xs[0]]

    return distribute(outputs=("u",), series=("heard", "both", "least"))(function)


@settings(max_examples=settings.default.max_examples // 5, deadline=None)
@given(
    job=reduced(),
    ranks=st.integers(1, 3),
    steps=st.integers(1, 4),
    every=st.integers(1, 3),
    fuse=st.sampled_from(["off", "off", "off", "require"]),
)
def test_any_series_at_points_beside_reductions(
    tmp_path_factory: pytest.TempPathFactory, job: Any, ranks: int, steps: int, every: int, fuse: Any
) -> None:
    arrays, inputs, outputs = inputs_of(tmp_path_factory.mktemp("any"), job)
    options = Options(fuse=fuse, steps=StepOptions(steps=steps, every=every))
    on_ranks(ranks, job, inputs, outputs, options)
    fields, series = after_all(job, arrays, steps)
    chosen = [n - 1 for n in range(1, steps + 1) if n % every == 0 or n == steps]
    for path, want in zip(outputs, [*fields, *(rows[chosen] for rows in series)], strict=True):
        assert np.load(path).tobytes() == want.tobytes(), path.stem


@distribute(outputs=("u",), series=("trace", "weighed", "least"))
def corrected(u, f):
    """A series of what is computed of coarse grids."""
    new = cell_cycle(u, f)
    y, x = np.array([1, 8, 31]), np.array([2, 2, 17])
    return new, (2 * new)[y, x], (new - u)[y, x] * np.array([1, 2, 3], np.float32), new.min()


@pytest.mark.parametrize("ranks", [1, 2])
def test_series_of_coarse_grids(tmp_path: Path, ranks: int) -> None:
    arrays = [np.random.default_rng(n).random((64, 32), dtype=np.float32) for n in range(2)]
    types = [(one.shape, one.dtype) for one in arrays]
    assert any(one.lattice for one in plan_program(block_form(corrected, types, {}).program).arrays)
    inputs = [tmp_path / f"{name}.npy" for name in corrected.arrays]
    outputs = [tmp_path / f"{name}_after.npy" for name in ("u", *corrected.series)]
    for path, array in zip(inputs, arrays, strict=True):
        np.save(path, array)
    on_ranks(ranks, corrected, inputs, outputs, Options(steps=StepOptions(steps=3)))
    fields, series = after_all(corrected, arrays, 3)
    for path, want in zip(outputs, [*fields, *series], strict=True):
        assert np.load(path).tobytes() == want.tobytes(), path.stem


@distribute(outputs=("u",), series=("before", "after"))
def read_on_one_side(u):
    """Points of which no array is read at the own cell, nor on both sides of it."""
    new = np.roll(u, 1, 0) / (1 + u.max())
    y, x = np.array([0, 11, N - 1]), np.array([0, M - 1, 5])
    new[y, x] = np.roll(u, 4, 1)[y, x] * 2
    return new, np.roll(new, 2, 0)[y, x], np.roll(new, -3, 1)[y, x]


@pytest.mark.parametrize("ranks", [1, 2])
def test_series_that_read_on_one_side_alone(tmp_path: Path, ranks: int) -> None:
    arrays, inputs, outputs = inputs_of(tmp_path, read_on_one_side)
    on_ranks(ranks, read_on_one_side, inputs, outputs, Options(steps=StepOptions(steps=3)))
    fields, rows = after_all(read_on_one_side, arrays, 3)
    for path, want in zip(outputs, [*fields, *rows], strict=True):
        assert np.load(path).tobytes() == want.tobytes(), path.stem
