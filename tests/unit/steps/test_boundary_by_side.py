"""Boundaries that differ by input, axis and side, constants in time too: the bits of whole padded arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_runs import PAD, stepped

import meshrun
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.traced import traced
from meshrun.runner.errors import UserError
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.plan.task import plan_task
from meshrun.runner.system.compiler import find_compiler

MODES = ("reflect", "mirror", "nearest")
TABLE = np.random.default_rng(5).integers(0, 1 << 30, 12).astype(np.uint32)
NUMBER = 77  # of the parameter `level`
Rules = Sequence[tuple[Any, Any]]


@pytest.fixture(scope="module", autouse=True)
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is compiled for all tests of this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def padded(array: Any, widths: Any, rules: Rules, step: int) -> Any:
    """The array with a halo, one side after the other, by numpy.pad alone."""
    for axis, ((low, high), sides) in enumerate(zip(widths, rules, strict=True)):
        pieces = [array]
        for side, (rule, cells) in enumerate(zip(sides, (low, high), strict=True)):
            wide = [(0, 0)] * array.ndim
            wide[axis] = (cells, 0) if side == 0 else (0, cells)
            value = {"table": TABLE[step], "level": NUMBER}.get(rule, rule)
            more = (
                np.pad(array, wide, PAD[value])
                if isinstance(value, str)
                else np.pad(array, wide, constant_values=value)
            )
            place = [slice(None)] * array.ndim
            place[axis] = slice(0, cells) if side == 0 else slice(array.shape[axis], None)
            pieces.insert(0 if side == 0 else 2, more[tuple(place)])
        array = np.concatenate(pieces, axis)
    return array


def job_of(widths: Any, rules: dict[str, Rules], fuse: Any) -> Any:
    """Two fields and a third that stays; no two neighbours have the same weight. Exact modulo 2^32."""

    def function(p, q, kept, *, table: meshrun.Series, level: int = NUMBER):
        sums = []
        for number in (0, 1):
            total = np.uint32(0)
            for at, offset in enumerate(itertools.product(*(range(low + high + 1) for low, high in widths))):
                part = tuple(
                    slice(o, n - low - high + o)
                    for o, n, (low, high) in zip(offset, p.shape, widths, strict=True)
                )
                weight = np.uint32(2 * at + 3 + number)
                total = total + p[part] * weight + (q[part] ^ weight) + kept[part] * np.uint32(at * 5 + 1)
            sums.append(total)
        return tuple(sums)

    boundary = {name: tuple(one) for name, one in rules.items()}
    return meshrun.map_blocks(halo=widths, boundary=boundary, outputs=("p", "q"), fuse=fuse)(function)


@st.composite
def cases(draw: Any) -> Any:
    axes = draw(st.sampled_from((1, 2, 2, 3)))
    most = 2 if axes < 3 else 1
    widths = tuple((one, one) for one in draw(st.tuples(*[st.integers(0, most)] * axes)))
    side = st.sampled_from((*MODES, 7, 0, "table", "level"))
    axis = st.one_of(st.just(("wrap", "wrap")), st.tuples(side, side))
    rules = {name: draw(st.tuples(*[axis] * axes)) for name in ("p", "q", "kept")}
    ranks = draw(st.sampled_from((1, 2, 3, 5)))
    grids = {
        1: [None], 2: [None, "1x2", "1x1x2"], 3: [None, "1x3", "1x3x1"], 5: [None, "1x5"]
    }[ranks]  # fmt: skip
    grid = draw(st.sampled_from([one for one in grids if one is None or one.count("x") == axes - 1]))
    shape = tuple(draw(st.integers(11, 14)) for _ in range(axes))
    return widths, rules, ranks, grid, shape, draw(st.integers(1, 5))


def check(folder: Path, case: Any, fuse: Any, **options: Any) -> dict[str, Any]:
    """Compare a run with the plain loop, and verify it. Returns the record."""
    widths, rules, ranks, grid, shape, steps = case
    job = job_of(widths, rules, fuse)
    rng = np.random.default_rng(1)
    arrays = [rng.integers(0, 1 << 32, shape, np.uint32) for _ in range(3)]
    p, q, kept = arrays
    for step in range(steps):
        blocks = [
            padded(one, widths, rules[name], step)
            for one, name in ((p, "p"), (q, "q"), (kept, "kept"))
        ]  # fmt: skip
        p, q = job.function(*blocks, table=None)
    outputs = [folder / "p.npy", folder / "q.npy"]
    found, record = stepped(
        folder, job, arrays, steps, ranks=ranks, grid=grid, parameters={"table": TABLE}, verify="full",
        outputs=outputs, fuse=fuse, **options,
    )  # fmt: skip
    np.testing.assert_array_equal(found[0], p)
    np.testing.assert_array_equal(found[1], q)
    return record


@settings(max_examples=settings.default.max_examples // 4)
@given(cases())
def test_random_rules_give_the_bits_of_whole_padded_arrays(tmp_path_factory: Any, case: Any) -> None:
    """The function is called, also where its arrays are streamed."""
    check(tmp_path_factory.mktemp("run"), case, "off")
    if case[3] is None:
        stream = StreamOptions(chunk_bytes=40 * 4 * int(np.prod(case[4][1:])) * 4)
        check(tmp_path_factory.mktemp("chunks"), case, "off", stream=stream)


@settings(max_examples=settings.default.max_examples // 4)
@given(cases())
def test_the_program_of_a_kernel_reads_no_cell_beyond_ends_that_do_not_meet(case: Any) -> None:
    widths, rules, _, _, shape, step = case
    job = job_of(widths, rules, "require")
    arrays = [np.random.default_rng(number).integers(0, 1 << 32, shape, np.uint32) for number in range(3)]
    parameters = job.complete({"table": TABLE})
    task = plan_task(job, parameters, [(shape, np.dtype(np.uint32))] * 3, 1)
    program, placed = traced(task), bool(task.declared_boundary)

    def block(array: Any, of_input: Rules) -> Any:
        """What cells beyond ends that do not meet are is of no importance."""
        known = [axis if axis == ("wrap", "wrap") or not placed else (99, 98) for axis in of_input]
        return padded(array, widths, known, step)

    pairs = zip(arrays, job.arrays, strict=True)
    expected = job.function(*(padded(one, widths, rules[name], step) for one, name in pairs), table=None)
    blocks = [block(one, rules[name]) for one, name in zip(arrays, job.arrays, strict=True)]
    axes = program.axes
    found = evaluate(program, blocks, widths[:axes], (0,) * axes, program.tape.row(step))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


WRITTEN = {"p": (("wrap", "wrap"), (0, "nearest")), "q": (("table", "mirror"), ("level", "reflect"))}


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(("ranks", "grid"), [(1, None), (3, None), (4, "2x2")])
def test_a_kernel_has_the_rules_of_all_sides(tmp_path: Path, ranks: int, grid: str | None) -> None:
    rules = {**WRITTEN, "kept": (("nearest", 3), ("wrap", "wrap"))}
    case = ((1, 1), (1, 1)), rules, ranks, grid, (12, 13), 8
    record = check(tmp_path, case, "require")
    assert record["boundary"] == "p=wrap,0:nearest;q=table:mirror,77:reflect;kept=nearest:3,wrap"
    assert record["steps"]["steps_per_kernel"] > 1


def test_what_no_kernel_can_mirror_is_called_with_the_reason(tmp_path: Path) -> None:
    """A halo on one side alone has no cell of the other side, which a mirror needs."""

    @meshrun.map_blocks(halo=((2, 0),), boundary={"u": "reflect", "v": "nearest"}, feeds=("u",))
    def before(u, v):
        return u[:-2] + v[1:-1]

    u = np.arange(9.0)
    expected = np.array([1.0, 0, 1, 3, 5, 7, 9, 11, 13])
    (found,), _ = stepped(tmp_path, before, [u, u], 1, verify="full")
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(UserError, match="needs 1 on both sides"):
        stepped(tmp_path, before, [u, u], 1, fuse="require")


def test_a_rule_of_all_sides_is_the_boundary_itself(tmp_path: Path) -> None:
    """As fast as before: several steps in a kernel, halos that kernels send."""

    @meshrun.map_blocks(halo=1, boundary={"u": ("wrap", ("wrap", "wrap"))})
    def mean(u):
        return (u[2:, 1:-1] + u[:-2, 1:-1]) / 2

    _, record = stepped(tmp_path, mean, [np.ones((8, 8))], 2)
    assert record["boundary"] == "wrap"


def test_a_table_that_is_too_short_is_refused_before_the_first_step(tmp_path: Path) -> None:
    @meshrun.map_blocks(halo=1, boundary=(("inflow", "nearest"),))
    def drift(u, *, inflow: meshrun.Series):
        return u[:-2]

    for fuse in ("off", "require"):
        with pytest.raises(UserError, match=r"the table inflow of .*boundary is too short for 4 steps"):
            stepped(tmp_path, drift, [np.ones(8)], 4, parameters={"inflow": np.ones(3)}, fuse=fuse)


def test_a_call_has_the_values_of_the_first_step_and_iterate_those_of_each() -> None:
    @meshrun.map_blocks(halo=1, boundary=(("inflow", "nearest"),))
    def drift(u, *, inflow: meshrun.Series):
        return u[:-2]

    table = np.array([5.0, 6, 7])
    np.testing.assert_array_equal(drift(np.arange(3.0), inflow=table), [5, 0, 1])
    np.testing.assert_array_equal(drift.iterate(np.arange(3.0), steps=3, inflow=table), [7, 6, 5])
