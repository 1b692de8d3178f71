"""Time steps on a GPU: the bits of a plain NumPy loop; frames, checkpoints and CuPy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.compiler.cuda.steps.layout import Axis, Choice, Tuning, layout_of
from meshrun.runner.compiler.cuda.steps.tuning import ChosenKernel
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.trace.graph import Operand
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.job.discover import find
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.options.step_options import SaveInterval, StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.steps.blocks import StepBlocks

PAD: dict[str, Any] = {"reflect": "symmetric", "mirror": "reflect", "nearest": "edge", "wrap": "wrap"}


def padded(array: Any, boundary: str) -> Any:
    if boundary == "constant":
        return np.pad(array, 1, "constant", constant_values=9)
    return np.pad(array, 1, PAD[boundary])


@meshrun.map_blocks(halo=1, outputs=2, cval=9)
def mixed(block: Any, other: Any) -> Any:
    """Of whole numbers modulo 2^32: exact in any order."""
    inner = (slice(1, -1), slice(1, -1))
    return 3 * block[:-2, 1:-1] + 5 * block[2:, 2:] + other[inner], block[inner] ^ 1


@meshrun.map_blocks(halo=1, cval=9)
def warmed(block: Any) -> Any:
    """Seven points, with a weight for each: several steps of one kernel."""
    sides = block[:-2, 1:-1, 1:-1] - 0.5 * block[2:, 1:-1, 1:-1] + 0.75 * block[1:-1, :-2, 1:-1]
    sides = sides + 0.3 * block[1:-1, 2:, 1:-1] - 0.2 * block[1:-1, 1:-1, :-2] + block[1:-1, 1:-1, 2:]
    return 0.4 * (block[1:-1, 1:-1, 1:-1] + sides)


@meshrun.map_blocks(halo=2, outputs=2)
def carried(block: Any, other: Any) -> Any:
    """Two stages, of which several rows read the first; it divides, also by zero."""
    ratio = other[:, 1:-1] / block[:, 1:-1]
    flow = ratio * ratio * other[:, 1:-1] + 0.5 * block[:, 2:] * block[:, :-2]
    inner = (slice(2, -2), slice(2, -2))
    after = block[inner] - 0.05 * (flow[3:-1, 1:-1] - flow[1:-3, 1:-1])
    return after, 0.25 * (other[inner] + flow[2:-2, 2:] - flow[2:-2, :-2])


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("columns", [2, 4])
def test_stages_are_kept_in_a_kernel_of_several_steps(boundary: str, steps: int, columns: int) -> None:
    import cupy

    shape, rng = (77, 512), np.random.default_rng(steps)
    fields = [1 + rng.random(shape, np.float32), rng.random(shape, np.float32) - np.float32(0.5)]
    fields[1][20:40] = 0
    for number, value in enumerate([0, 1e-40, 3e38, np.inf, np.nan, -0.0, 1e-30]):
        fields[number % 2][50 + number, 60 * number + 3] = value
    inputs = [Operand(name, np.dtype(np.float32)) for name in ("block", "other")]
    widths = ((2, 2), (2, 2))
    program = trace(carried.function, inputs, widths, {}, frozenset(), ["a", "b"])
    tuning = Tuning(columns, ahead=3, blocks=2, vectors=True, keeps=True)
    chosen = ChosenKernel(Choice(steps, tuning), "predicted")
    kernel = DeviceKernel(program, widths, "strict", (0, 1), boundary, 9, chosen)
    assert layout_of(kernel.program, (0, 1)).kept
    given = [cupy.asarray(field) for field in fields]
    outs = [cupy.empty_like(field) for field in given]
    kernel.bind_steps(steps, given, outs, [Axis(length, 0, length) for length in shape])()
    more = {"constant_values": 9} if boundary == "constant" else {}
    for _ in range(steps):
        with np.errstate(all="ignore"):
            blocks = [np.pad(field, 2, PAD.get(boundary, "constant"), **more) for field in fields]
            fields = list(carried.function(*blocks))
    for out, field in zip(outs, fields, strict=True):
        found = out.get()
        assert np.array_equal(np.isnan(found), np.isnan(field))
        same = found.view(np.uint32) == field.view(np.uint32)
        assert np.all(same | np.isnan(field))


@meshrun.map_blocks(halo=4, outputs=2, cval=9)
def leapfrog(now: Any, before: Any) -> Any:
    """A wave, of whole numbers modulo 2^32: the field that was is overwritten."""
    inner = (slice(4, -4),) * 3
    total = now[inner]
    for far in range(1, 5):
        for axis in range(3):
            for shift in (-far, far):
                cells = [slice(4, -4)] * 3
                cells[axis] = slice(4 + shift, now.shape[axis] - 4 + shift)
                total = total + now[tuple(cells)] * np.uint32(2 * far + axis + shift % 7)
    return total - before[inner], now[inner]


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("shape", [(9, 10, 11), (37, 23, 29), (50, 103, 90), (64, 64, 64)])
def test_a_wave_overwrites_the_field_that_was(tmp_path: Path, boundary: str, shape: tuple[int, ...]) -> None:
    fields = list(np.random.default_rng(1).integers(0, 2**32, (2, *shape), np.uint32))
    paths = [tmp_path / f"{name}.npy" for name in ("now", "before", "next", "last")]
    for path, field in zip(paths, fields, strict=False):
        np.save(path, field)
    run(leapfrog, paths[:2], paths[2:], {}, Options(device="cuda", boundary=boundary, steps=StepOptions(7)))
    for _ in range(7):
        more = {"constant_values": 9} if boundary == "constant" else {}
        now, before = (np.pad(field, 4, PAD.get(boundary, "constant"), **more) for field in fields)
        fields = list(leapfrog.function(now, before))
    for path, field in zip(paths[2:], fields, strict=True):
        assert np.load(path).tobytes() == field.tobytes()


@meshrun.distribute(outputs=2, feeds=("now", "before"), series="trace")
def struck(now: Any, before: Any) -> Any:
    """A wave with sources and receivers, of whole numbers modulo 2^32."""
    new = np.roll(now, 3, 0) + np.uint32(3) * np.roll(now, -4, 1) + np.roll(now, 1, 2) - before
    at = np.array([0, 3, 8, 3]), np.array([0, 2, 9, 2]), np.array([5, 2, 0, 2])
    new[at] += np.uint32(7)
    return new, now, new[at]


@pytest.mark.parametrize("shape", [(9, 10, 11), (64, 64, 64)])
def test_a_wave_with_points_overwrites_the_field_that_was(tmp_path: Path, shape: tuple[int, ...]) -> None:
    fields: Any = list(np.random.default_rng(1).integers(0, 2**32, (2, *shape), np.uint32))
    paths = [tmp_path / f"{name}.npy" for name in ("now", "before", "next", "last", "trace")]
    for path, field in zip(paths, fields, strict=False):
        np.save(path, field)
    run(struck, paths[:2], paths[2:], {}, Options(device="cuda", fuse="require", steps=StepOptions(40)))
    rows = []
    for _ in range(40):
        *fields, row = struck.function(*(field.copy() for field in fields))
        rows.append(row)
    for path, field in zip(paths[2:], (*fields, np.stack(rows)), strict=True):
        assert np.load(path).tobytes() == field.tobytes()


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(2, 3, 5), (37, 23, 29), (50, 203, 190)])
@pytest.mark.parametrize("copies", ["one", "two"])
def test_steps_over_three_axes_are_a_plain_loop(
    tmp_path: Path, boundary: str, dtype: str, shape: tuple[int, ...], copies: Any
) -> None:
    field = np.random.default_rng(1).random(shape).astype(dtype)
    before, after = tmp_path / "a.npy", tmp_path / "b.npy"
    np.save(before, field)
    options = Options(device="cuda", boundary=boundary, steps=StepOptions(8, copies=copies))
    record = run(warmed, [before], [after], {}, options)
    assert record["devices"][0]["kind"] == "cuda"
    for _ in range(8):
        field = warmed.function(padded(field, boundary))
    assert np.load(after).tobytes() == field.tobytes()


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("shape", [(5, 4, 3), (37, 23, 29), (64, 130, 128)])
def test_single_passes_store_the_cells_beyond_the_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boundary: str, shape: tuple[int, ...]
) -> None:
    """In graphs too: no launch fills these cells between two steps."""
    monkeypatch.setattr("meshrun.runner.compiler.device_kernel.DeviceKernel.most_steps", 1)
    monkeypatch.setattr(StepBlocks, "_fill_outside", lambda *_: pytest.fail("a launch fills them"))
    field = np.random.default_rng(1).random(shape, np.float32)
    before, after = tmp_path / "a.npy", tmp_path / "b.npy"
    np.save(before, field)
    options = Options(device="cuda", boundary=boundary, fuse="require", steps=StepOptions(75))
    record = run(warmed, [before], [after], {}, options)
    assert record["steps"]["graph"] is True
    for _ in range(75):
        field = warmed.function(padded(field, boundary))
    assert np.load(after).tobytes() == field.tobytes()


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("shape", [(5, 300), (37, 23), (1025, 515)])
def test_single_passes_store_the_rows_beyond_the_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boundary: str, shape: tuple[int, int]
) -> None:
    monkeypatch.setattr("meshrun.runner.compiler.device_kernel.DeviceKernel.most_steps", 1)
    monkeypatch.setattr(StepBlocks, "_fill_outside", lambda *_: pytest.fail("a launch fills them"))
    fields = tuple(np.random.default_rng(1).integers(0, 2**32, (2, *shape), np.uint32))
    inputs, outputs = [tmp_path / "a.npy", tmp_path / "b.npy"], [tmp_path / "c.npy", tmp_path / "d.npy"]
    for path, field in zip(inputs, fields, strict=True):
        np.save(path, field)
    options = Options(device="cuda", boundary=boundary, fuse="require", steps=StepOptions(75))
    assert run(mixed, inputs, outputs, {}, options)["steps"]["steps_per_kernel"] == 1
    for _ in range(75):
        fields = mixed.function(*(padded(field, boundary) for field in fields))
    for path, field in zip(outputs, fields, strict=True):
        np.testing.assert_array_equal(np.load(path), field)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("shape", [(37, 23), (3, 300), (1025, 515)])
@pytest.mark.parametrize("copies", ["one", "two"])
def test_steps_are_a_plain_loop(tmp_path: Path, boundary: str, shape: tuple[int, int], copies: Any) -> None:
    fields = np.random.default_rng(1).integers(0, 2**32, (2, *shape), np.uint32)
    inputs, outputs = [tmp_path / "a.npy", tmp_path / "b.npy"], [tmp_path / "c.npy", tmp_path / "d.npy"]
    for path, field in zip(inputs, fields, strict=True):
        np.save(path, field)
    options = Options(device="cuda", boundary=boundary, steps=StepOptions(9, copies=copies), verify="full")
    record = run(mixed, inputs, outputs, {}, options)
    assert record["devices"][0]["kind"] == "cuda"
    expected = tuple(fields)
    for _ in range(9):
        expected = mixed.function(*(padded(field, boundary) for field in expected))
    for path, field in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(np.load(path), field)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("name", "parameters", "shape"),
    [
        ("laplacian", {}, (67, 41)),
        ("laplacian", {}, (64, 128)),
        ("laplacian", {}, (33, 20, 3)),
        ("convolve", {"kernel": "0 1 0; 1 2 1; 0 1 0", "normalize": True}, (67, 41)),
        ("convolve", {"kernel": "1 2 1", "normalize": True}, (50, 21)),
    ],
)
def test_steps_of_built_in_jobs_are_single_passes(
    tmp_path: Path, name: str, parameters: dict[str, Any], shape: tuple[int, ...], dtype: str
) -> None:
    job = find(name)
    array = (np.random.default_rng(2).random(shape) * 200).astype(dtype)
    expected = array
    for _ in range(4):
        with np.errstate(all="ignore"):
            expected = job(expected, **parameters)  # type: ignore[operator]
    np.save(tmp_path / "in.npy", array)
    options = Options(device="cuda", steps=StepOptions(4))
    run(job, tmp_path / "in.npy", tmp_path / "out.npy", parameters, options)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)


calls: dict[str, int] = {}  # of a function: captured, it would be compared by `resume`


def test_frames_checkpoints_until_and_resume(tmp_path: Path) -> None:
    calls.update(made=0, most=30)

    @meshrun.map_blocks(halo=1, boundary="wrap", fuse="off", split_dependent=True)  # it counts its calls
    def fades(block: Any) -> Any:
        calls["made"] += 1
        if calls["made"] > calls["most"]:
            raise ValueError("stop")
        return (block[:-2, 1:-1] + block[2:, 1:-1]) * np.float32(0.25)

    field = np.random.default_rng(3).random((300, 200)).astype(np.float32)
    np.save(tmp_path / "in.npy", field)
    film = str(tmp_path / "film.npy")
    steps = StepOptions(60, checkpoint=SaveInterval(steps=7))
    with pytest.raises(ValueError, match="stop"):
        run(fades, tmp_path / "in.npy", tmp_path / "out.npy", {}, Options(device="cuda", steps=steps))
    calls["most"] = 10**6
    steps = StepOptions(60, checkpoint=SaveInterval(steps=7), frames=film, every=10, until=1e-6)
    resume = Options(device="cuda", steps=steps, stream=StreamOptions(resume=True))
    record = run(fades, tmp_path / "in.npy", tmp_path / "out.npy", {}, resume)
    done, first = record["steps"]["steps"], record["steps"]["first"]
    assert first == 28
    assert record["steps"]["until"]["reached"]
    fields = [field]
    for _ in range(done):
        fields.append(fades.function(np.pad(fields[-1], 1, "wrap")))
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), fields[-1])
    shown = [step for step in range(first, done + 1) if step % 10 == 0]
    np.testing.assert_array_equal(np.load(film), [fields[step] for step in shown])


def test_cupy_arrays_take_steps() -> None:
    cupy = pytest.importorskip("cupy")
    fields = np.random.default_rng(4).integers(0, 99, (2, 40, 30), np.uint32)
    theirs = cupy.cuda.Stream(non_blocking=True)
    with theirs:
        found = mixed.iterate(*map(cupy.asarray, fields), steps=6)
        stages = []
        for stage in mixed.iterate(*map(cupy.asarray, fields), steps=6, every=4):
            assert cupy.cuda.get_current_stream() == theirs
            stages.append(stage)
    expected = [tuple(fields)]
    for _ in range(6):
        expected.append(mixed.function(*(padded(field, "reflect") for field in expected[-1])))
    for got, wanted in ((found, expected[6]), (stages[0], expected[4]), (stages[1], expected[6])):
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(cupy.asnumpy(one), other)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("each", [1, 3])
def test_steps_in_chunks_are_a_plain_loop(tmp_path: Path, boundary: str, each: int) -> None:
    fields = np.random.default_rng(6).integers(0, 2**32, (2, 301, 215), np.uint32)
    inputs, outputs = [tmp_path / "a.npy", tmp_path / "b.npy"], [tmp_path / "c.npy", tmp_path / "d.npy"]
    for path, field in zip(inputs, fields, strict=True):
        np.save(path, field)
    options = Options(
        device="cuda",
        boundary=boundary,
        steps=StepOptions(10, steps_per_exchange=each),
        stream=StreamOptions(chunk_bytes=100_000),
        verify="full",
    )
    record = run(mixed, inputs, outputs, {}, options)
    assert record["stream"]["chunks"] > 3
    expected = tuple(fields)
    for _ in range(10):
        expected = mixed.function(*(padded(field, boundary) for field in expected))
    for path, field in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(np.load(path), field)
