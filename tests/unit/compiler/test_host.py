"""Programs compiled for the host compute what the plain function computes, to the bit."""

from __future__ import annotations

import itertools
import re
import stat
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from fuse_programs import Sample, sample
from hypothesis import example, given, settings
from hypothesis import strategies as st

import meshrun
from meshrun.runner.compiler.cpp.host import FLAGS, Box, Copy, HostProgram, build, library, steps_order
from meshrun.runner.compiler.cpp.source import source
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Operand, Program
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.plan.halo import source_index
from meshrun.runner.region import HostArray
from meshrun.runner.system import cached_files
from meshrun.runner.system.compiler import Compiler, NotCompiled

OWN = {1: (71,), 2: (5, 37), 3: (3, 4, 21)}  # cells of each number of axes: whole vectors, and a rest
BATCH = 25  # programs of one library
REFUSED = "^(adds |raises OverflowError)"  # of what NumPy computes


def same(found: HostArray, expected: HostArray) -> bool:
    """Whether two arrays have the same bits; one NaN is as good as another."""
    found, expected = np.ascontiguousarray(found), np.ascontiguousarray(expected)
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return False
    bits = f"u{found.itemsize}"
    both_nan = np.isnan(found) & np.isnan(expected) if found.dtype.kind == "f" else False
    return bool(((found.view(bits) == expected.view(bits)) | both_nan).all())


def traced(one: Sample) -> Program:
    names = [f"r{number}" for number in range(one.results)]
    return trace(one.function, one.inputs, one.widths, {"gain": 0.75}, frozenset(["xp"]), names)


def refused(one: Sample, blocks: list[HostArray]) -> bool:
    """Whether NumPy refuses the function; if so, its trace is refused too."""
    try:
        one(blocks)
    except (TypeError, ValueError, OverflowError):
        with pytest.raises(NotTraceable):
            traced(one)
        return True
    return False


def computed(
    kernel: HostProgram, blocks: list[HostArray], widths: tuple[tuple[int, int], ...]
) -> list[HostArray]:
    axes = kernel.program.axes
    own = tuple(n - low - high for n, (low, high) in zip(blocks[0].shape, widths, strict=False))
    outs = [np.full((*own, *one.trailing), 77).astype(one.dtype) for one in kernel.program.outputs]
    assert len(own) == axes
    kernel.run(blocks, outs, widths)
    return outs


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_choices_between_floats_are_vectorised(compiler: Compiler, tmp_path: Path, dtype: str) -> None:
    """With `?:` in the loop GCC computes one of the values in a branch, and vectorises nothing."""
    if "Free Software Foundation" not in subprocess.check_output([compiler.path, "--version"], text=True):
        pytest.skip("another compiler than GCC")

    def function(block: Any, kinds: Any) -> Any:
        chosen = np.where(kinds == 1, 2 * block * block, np.where(kinds == 2, block + 1, block))
        return np.maximum(np.minimum(chosen, 1 - block * 3), -1)

    inputs = [Operand("block", np.dtype(dtype)), Operand("kinds", np.dtype("uint8"))]
    text = source([trace(function, inputs, ((0, 0),), {})])
    line = next(n for n, part in enumerate(text.splitlines(), 1) if "for (int64 x = 0; x < n; ++x)" in part)
    command = [compiler.path, *FLAGS, "-fopt-info-vec-optimized", "-o", str(tmp_path / "a.so"), "-"]
    said = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stderr
    assert re.search(rf":{line}:\d+: optimized: loop vectorized", said), said


def test_loops_with_masks_are_vectorised(compiler: Compiler, tmp_path: Path) -> None:
    """GCC vectorises no loop over `bool` in memory, and no conversion of it to a float."""
    if "Free Software Foundation" not in subprocess.check_output([compiler.path, "--version"], text=True):
        pytest.skip("another compiler than GCC")
    functions = [
        lambda u, m, k: np.where(m, u, 2 * u),
        lambda u, m, k: np.where(m & ~k | (u > 1), u, 2 * u),
        lambda u, m, k: np.where(m, np.where(k, u * u, u + 1), np.where(np.logical_xor(m, k), u, 0)),
        lambda u, m, k: u * m + (u < 1),
        lambda u, m, k: (u > 1) & m | k,
        lambda u, m, k: np.where(m, m.astype(np.int32) + k, np.logical_not(k)),
        lambda u, m, k: np.where(m, np.floor(u), np.ceil(u) - np.trunc(u)),
        lambda u, m, k: np.where(m, k, u.astype(bool)),
    ]
    inputs = [
        [Operand("u", np.dtype(dtype)), Operand("m", np.dtype(bool)), Operand("k", np.dtype(bool))]
        for dtype in ("float16", "float32", "float64")
    ]
    programs = [trace(one, given, ((0, 0),), {}) for one in functions for given in inputs]
    text = source(programs)
    loops = [n for n, part in enumerate(text.splitlines(), 1) if "for (int64 x = 0; x < n; ++x)" in part]
    command = [compiler.path, *FLAGS, "-fopt-info-vec-optimized", "-o", str(tmp_path / "a.so"), "-"]
    said = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stderr
    assert not [n for n in loops if not re.search(rf":{n}:\d+: optimized: loop vectorized", said)], said


@settings(max_examples=max(settings.default.max_examples // 20, 1))
@given(first=st.integers(0, 2**40))
def test_random_functions_compile_to_what_they_compute(
    compiler: Compiler, libraries: Path, first: int
) -> None:
    samples = [sample(first + number) for number in range(BATCH)]
    given = [(one, one.blocks(OWN[one.axes], first)) for one in samples]
    taken = []
    for one, blocks in given:
        if refused(one, blocks):
            continue
        try:
            taken.append((one, blocks, traced(one)))
        except NotTraceable as reason:
            if not re.match(REFUSED, reason.reason):
                raise
    loaded = library(source([program for _, _, program in taken]), compiler, None)
    for number, (one, blocks, program) in enumerate(taken):
        results = one(blocks), evaluate(program, blocks, one.widths), computed(
            HostProgram(program, loaded, number), blocks, one.widths
        )  # fmt: skip
        kinds = [(operand.dtype.str, operand.trailing) for operand in one.inputs]
        for plain, by_numpy, by_host in zip(*results, strict=True):
            assert same(by_numpy, plain), f"the trace of\n{one.text}on {kinds}, seed {first + number}"
            assert same(by_host, plain), f"the code of\n{one.text}on {kinds}, seed {first + number}"


def rounds(a: HostArray, b: HostArray) -> HostArray:
    return (a / (b - a * 3)).astype("f4").astype("f8") / 0.7


def truncates(a: HostArray, b: HostArray) -> HostArray:
    return (a - b).astype("i8").astype("f8") * -1.0 + (a / 64).astype("i4")


def chooses(a: HostArray, b: HostArray) -> HostArray:
    return np.where(a < b, (a * 0.1).astype("f4"), (b * 0.3).astype("f4")).astype("f8") * b


@pytest.mark.parametrize("function", [rounds, truncates, chooses])
def test_the_compiler_keeps_every_rounding(
    compiler: Compiler, libraries: Path, function: Callable[..., Any]
) -> None:
    inputs = [Operand("a", np.dtype("f8")), Operand("b", np.dtype("f8"))]
    kernel = build(trace(function, inputs, ((0, 0),), {}), compiler, libraries)
    for size in (*range(1, 40), 1000):
        blocks = list(np.random.default_rng(size).normal(size=(2, size)))
        assert same(computed(kernel, blocks, ((0, 0),))[0], function(*blocks)), size


# Several steps in one call


@meshrun.map_blocks(halo=1)
def life(board):
    rows = board[:-2] + board[1:-1] + board[2:]
    around = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    return ((around == 3) | ((around == 4) & (board[1:-1, 1:-1] == 1))).astype(board.dtype)


def drift(now, before, speed):
    """Return the next state, the present one, and how much it changed; two fed inputs and one that is not."""
    inner = (slice(2, -1),) + (slice(1, -1),) * (now.ndim - 1)
    beside = (slice(None, -3), *inner[1:])
    after = now[inner] + speed[inner] * (now[beside] - now[inner]) - before[inner] / 8
    return after, now[inner], after - now[inner]


def spread(field):
    """Return the mean of a cell and its neighbours along the last grid axis and the first."""
    return (field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:]) / np.float32(4)


def remainders(field):
    """Return a value that needs remainders of neighbours, which need remainders of theirs."""
    inner = field % 0.3
    outer = (inner[1:-1, 2:] + inner[2:, 1:-1]) % 0.7
    return inner[2:-2, 2:-2] + outer[2:, 1:-1] / 4 + outer[1:-1, :-2] / 8


def line(field):
    return field[1:-1] + (field[:-2] - field[1:-1]) / 3 - field[2:] / 5


@dataclass(frozen=True)
class Case:
    """A function that takes steps. feeds: as `HostProgram.steps`."""

    function: Callable[..., Any]
    inputs: tuple[str, ...]
    feeds: tuple[int | None, ...]
    shape: tuple[int, ...]
    widths: tuple[tuple[int, int], ...]
    kind: str = "f4"
    trailing: tuple[int, ...] = ()


PLANE = ((1, 1), (1, 1))
CASES = {
    "life": Case(life.function, ("board",), (0,), (23, 70), PLANE, "u1"),
    "spread": Case(spread, ("field",), (0,), (17, 9), PLANE),
    "colours": Case(spread, ("field",), (0,), (17, 9), PLANE, "f8", (3,)),
    "remainders": Case(remainders, ("field",), (0,), (23, 41), ((2, 2), (2, 2))),
    "line": Case(line, ("field",), (0,), (61,), ((1, 1),)),
    "drift": Case(drift, ("now", "before", "speed"), (0, 1, None), (19, 11), ((2, 1), (1, 1))),
    "drift3d": Case(drift, ("now", "before", "speed"), (0, 1, None), (13, 6, 7), ((2, 1), (1, 1), (1, 1))),
}


def beyond(case: Case, boundary: str) -> list[Copy]:
    """Return the cells beyond the array, and those that they equal."""
    found = []
    for axis, (n, (low, high)) in enumerate(zip(case.shape, case.widths, strict=True)):
        for target in (*range(-low, 0), *range(n, n + high)):
            source = source_index(target, n, boundary)
            if source is not None:
                found.append(Copy(axis, target, source))
    return found


def padded(case: Case, field: HostArray, boundary: str) -> HostArray:
    """Return the field with its halo, by the definition of the boundary."""
    for axis, (low, high) in enumerate(case.widths):
        n = field.shape[axis]
        sources = [source_index(place, n, boundary) for place in range(-low, n + high)]
        field = np.take(field, [0 if one is None else one for one in sources], axis)
        outside = [place for place, one in enumerate(sources) if one is None]
        field[(slice(None),) * axis + (outside,)] = 0
    return np.ascontiguousarray(field)


def by_loop(
    case: Case, start: list[HostArray], boundary: str, count: int
) -> tuple[list[HostArray], list[HostArray]]:
    """Return the fields and the last step's results after `count` steps of the plain function."""
    fields, results = list(start), []
    for _ in range(count):
        found = case.function(*(padded(case, field, boundary) for field in fields))
        results = list(found) if isinstance(found, tuple) else [found]
        for feed, result in zip(case.feeds, results, strict=True):
            if feed is not None:
                fields[feed] = result
    return fields, results


@pytest.fixture(scope="module")
def kernels(compiler: Compiler) -> dict[str, HostProgram]:
    programs = [
        trace(
            case.function,
            [Operand(one, np.dtype(case.kind), case.trailing) for one in case.inputs],
            case.widths,
            {},
            names=[f"r{number}" for number in range(len(case.feeds))],
        )
        for case in CASES.values()
    ]
    loaded = library(source(programs), compiler, None)
    return {
        name: HostProgram(one, loaded, number)
        for number, (name, one) in enumerate(zip(CASES, programs, strict=True))
    }


def check_steps(kernel: HostProgram, case: Case, boundary: str, count: int, strip: int | None) -> None:
    """Compare the steps of one call with the plain function's, one by one."""
    kind = np.dtype(case.kind)
    rng = np.random.default_rng(3)
    start = [(rng.random(case.shape + case.trailing) * 2).astype(kind) for _ in case.inputs]
    copies = [beyond(case, boundary) if place in case.feeds else [] for place in range(len(start))]
    box = (0,) * len(case.shape), case.shape
    read = [padded(case, field, boundary) for field in start]
    written = [one.copy() if place in case.feeds else one for place, one in enumerate(read)]
    finals = [np.empty(case.shape, kind) if feed is None else None for feed in case.feeds]
    firsts = [[low for low, _ in case.widths]] * len(start)
    kernel.steps((read, written), firsts, [box] * count, case.feeds, copies, case.widths, finals, strip)
    fields, results = by_loop(case, start, boundary, count)
    for place, field in enumerate(fields):
        assert same((read, written)[count % 2][place], padded(case, field, boundary))
    for final, result in zip(finals, results, strict=True):
        assert final is None or same(final, result)


BOUNDARIES = "reflect", "nearest", "mirror", "wrap", "constant"


def test_only_rows_too_few_for_it_are_not_computed_in_strips() -> None:
    """Else each step would read from memory what the step before it has written."""
    case = CASES["drift"]
    for boundary, rows, strip, ring in (
        ("wrap", 28, 3, True),  # 7 steps, a skew of 2 rows on either side
        ("wrap", 27, 27 + 14, False),
        *((one, 27, 3, False) for one in BOUNDARIES if one != "wrap"),
    ):
        along = [one for one in beyond(replace(case, shape=(rows, 11)), boundary) if one.axis == 0]
        found = steps_order(along, (0, rows), case.widths[0], 7, 3)
        assert found == (strip, ring), boundary


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_steps_in_one_call_are_single_steps(
    kernels: dict[str, HostProgram], name: str, boundary: str
) -> None:
    for count, strip in itertools.product((1, 2, 7), (None, 1, 3, 1000)):
        check_steps(kernels[name], CASES[name], boundary, count, strip)


@example(name="drift", boundary="wrap", lengths=(4, 3, 3), count=3, strip=1)
@given(
    name=st.sampled_from(sorted(CASES)),
    boundary=st.sampled_from(BOUNDARIES),
    lengths=st.tuples(st.integers(2, 9), st.integers(2, 5), st.integers(2, 4)),
    count=st.integers(1, 9),
    strip=st.integers(1, 5),
)
def test_steps_of_small_arrays(
    kernels: dict[str, HostProgram],
    name: str,
    boundary: str,
    lengths: tuple[int, ...],
    count: int,
    strip: int,
) -> None:
    case = CASES[name]
    small = replace(case, shape=lengths[: len(case.shape)])
    check_steps(kernels[name], small, boundary, count, strip)


@pytest.mark.parametrize("strip", [1, 4, 1000])
def test_steps_on_a_part_compute_their_neighbours_cells_too(
    compiler: Compiler, libraries: Path, strip: int
) -> None:
    case, count = CASES["spread"], 5
    kernel = build(trace(spread, [Operand("field", np.dtype("f4"))], PLANE, {}), compiler, libraries)
    whole = np.random.default_rng(4).random((40, 30), np.float32)
    expected = whole
    for _ in range(count):
        expected = spread(np.pad(expected, 1))
    own = (slice(10, 25), slice(8, 20))
    wide = np.ascontiguousarray(whole[10 - count : 25 + count, 8 - count : 20 + count])
    other = np.full_like(wide, np.nan)
    boxes: list[Box] = [((-left, -left), (15 + left, 12 + left)) for left in reversed(range(count))]
    kernel.steps(([wide], [other]), [(count, count)], boxes, (0,), [[]], case.widths, strip=strip)
    core = (slice(count, -count),) * 2
    assert same(other[core], expected[own])


# Libraries and where they are kept


@pytest.fixture
def program() -> Program:
    return trace(spread, [Operand("field", np.dtype("f4"))], PLANE, {})


def test_a_library_is_compiled_once(compiler: Compiler, tmp_path: Path, program: Program) -> None:
    folder = tmp_path / "cache" / "meshrun"
    build(program, compiler, folder)
    (path,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(path.stat().st_mode) == 0o700
    before = path.stat().st_mtime_ns
    broken = Compiler(compiler.path, compiler.version)
    build(program, broken, folder)
    assert [one.stat().st_mtime_ns for one in folder.iterdir()] == [before]
    build(program, Compiler(compiler.path, "another one"), folder)
    assert len(list(folder.iterdir())) == 2


def test_many_ranks_may_compile_at_once(compiler: Compiler, tmp_path: Path, program: Program) -> None:
    with ThreadPoolExecutor(4) as pool:
        kernels = list(pool.map(lambda _: build(program, compiler, tmp_path / "meshrun"), range(4)))
    assert len(list((tmp_path / "meshrun").iterdir())) == 1
    block = np.ones((4, 5), np.float32)
    for kernel in kernels:
        assert (computed(kernel, [block], PLANE)[0] == 1).all()


def test_what_others_can_write_is_not_loaded(compiler: Compiler, tmp_path: Path, program: Program) -> None:
    folder = tmp_path / "meshrun"
    build(program, compiler, folder)
    (path,) = folder.iterdir()
    first = path.stat().st_ino
    path.chmod(0o770)
    build(program, compiler, folder)  # compiled anew
    assert path.stat().st_ino != first
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    path.unlink()
    path.symlink_to("/nowhere")
    build(program, compiler, folder)
    assert not path.is_symlink()
    path.unlink()
    folder.chmod(0o770)
    build(program, compiler, folder)  # the folder is not used
    assert not any(folder.iterdir())


def test_a_broken_library_is_compiled_anew(compiler: Compiler, tmp_path: Path, program: Program) -> None:
    build(program, compiler, tmp_path / "meshrun")
    (path,) = (tmp_path / "meshrun").iterdir()
    (tmp_path / "other").mkdir(mode=0o700)
    broken = tmp_path / "other" / path.name
    broken.write_bytes(path.read_bytes()[:2000])
    broken.chmod(0o700)
    kernel = build(program, compiler, tmp_path / "other")
    assert (computed(kernel, [np.ones((4, 5), np.float32)], PLANE)[0] == 1).all()
    assert broken.stat().st_size == path.stat().st_size


def test_a_library_that_cannot_be_kept_is_used_all_the_same(
    compiler: Compiler, tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_files, "write", MagicMock(side_effect=OSError(28, "No space left")))
    kernel = build(program, compiler, tmp_path / "meshrun")
    assert (computed(kernel, [np.ones((4, 5), np.float32)], PLANE)[0] == 1).all()
    assert not any((tmp_path / "meshrun").iterdir())


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'x.cpp:1: error: no such thing' >&2; exit 3", "status 3: x.cpp:1: error: no such thing"),
        (None, "cannot run"),
    ],
)
def test_a_compiler_that_fails_is_a_reason(
    tmp_path: Path, program: Program, script: str | None, reason: str
) -> None:
    path = tmp_path / "c++"
    if script is not None:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    with pytest.raises(NotCompiled, match=reason):
        build(program, Compiler(str(path), ""), tmp_path / "meshrun")
    assert not any((tmp_path / "meshrun").iterdir())


def test_rows_have_to_be_contiguous(compiler: Compiler, libraries: Path, program: Program) -> None:
    kernel = build(program, compiler, libraries)
    out = np.empty((4, 6), np.float32)
    with pytest.raises(ValueError, match="not contiguous"):
        kernel.run([np.ones((6, 16), np.float32)[:, ::2]], [out], PLANE)
    kernel.run([np.ones((12, 9), np.float32)[::2, :8]], [out], PLANE)
    assert (out == 1).all()
