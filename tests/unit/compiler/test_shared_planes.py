"""Blocks that march through planes in shared memory, run on the host: NumPy's bits."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import whole_functions as whole
from fused import GXX, cases, check_in_memory, example, host, launchers, same, view, widths_of
from nvrtc_log import log_of
from step_runs import PAD, beyond_ends
from whole_kernels import compile_texts, in_blocks

from meshrun.runner.compiler.cuda import shared_planes
from meshrun.runner.compiler.cuda.pass_launch import have_equal_alignment
from meshrun.runner.compiler.cuda.shared_planes import SharedPlanes, choose, reads_of_turn
from meshrun.runner.compiler.cuda.single_pass import emit, finds_ends
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Graph, Node, Operand, Program

needs_compiler = pytest.mark.skipif(GXX is None, reason="needs g++")
SHAPES = [
    SharedPlanes(3, (2, 2), (8, 4)),
    SharedPlanes(5, (1, 4), (8, 4), ahead=2, unroll=2),
    SharedPlanes(9, (3, 1), (16, 2), ahead=3),
]
OWN = [(9, 8, 32), (11, 13, 45)]


def star(dtype: str, radius: int = 4) -> Program:
    """A wave of order 8: two fields, a speed, and the field before as a second result."""
    graph, kind = Graph(), np.dtype(dtype)
    load = functools.partial(graph.load, 0, kind)
    total: Node = graph.operation("multiply", kind, [load((0, 0, 0)), graph.constant(-3, kind)])
    for axis, distance in product(range(3), range(1, radius + 1)):
        sides = [tuple(side * distance * (one == axis) for one in range(3)) for side in (1, -1)]
        pair = graph.operation("add", kind, [load(side) for side in sides])
        weighted = graph.operation("multiply", kind, [pair, graph.constant(distance, kind)])
        total = graph.operation("add", kind, [total, weighted])
    moved = graph.operation("multiply", kind, [graph.load(2, kind, (0, 0, 0)), total])
    new = graph.operation("subtract", kind, [moved, graph.load(1, kind, (0, 0, 0))])
    inputs = tuple(Operand(name, kind) for name in ("now", "before", "speed"))
    outputs = tuple(Operand(name, kind) for name in ("new", "old"))
    return Program(3, inputs, outputs, ((new,), (load((0, 0, 0)),)), graph)


def random(seed: int) -> Program:
    """Sums and choices of elements at any offsets, of inputs of several dtypes, into several outputs."""
    rng, graph = np.random.default_rng(seed), Graph()
    kinds = [np.dtype(one) for one in rng.choice(["f4", "f8", "i4", "u8", "f4"], rng.integers(1, 4))]
    reach = rng.integers(0, 4, (len(kinds), 3, 2))
    known: dict[np.dtype[Any], list[Node]] = {}
    for number, kind in enumerate(kinds):
        for _ in range(rng.integers(2, 14)):
            offset = tuple(int(rng.integers(-low, high + 1)) for low, high in reach[number])
            known.setdefault(kind, []).append(graph.load(number, kind, offset))
    for _ in range(14):
        kind = [*known][rng.integers(len(known))]
        a, b, c = (known[kind][rng.integers(len(known[kind]))] for _ in range(3))
        condition = graph.operation("less", np.dtype(bool), [a, b])
        chosen = graph.operation("where", kind, [condition, b, c])
        known[kind].append(graph.operation("add", kind, [chosen, a]))
    outputs = tuple(Operand(f"o{number}", kind) for number, kind in enumerate(known))
    inputs = tuple(Operand(f"i{number}", kind) for number, kind in enumerate(kinds))
    return Program(3, inputs, outputs, tuple((nodes[-1],) for nodes in known.values()), graph)


BEST = tuple(
    Operand(name, np.dtype("f4"), (), combine) for name, combine in (("new", "maximum"), ("old", ""))
)


@needs_compiler
def test_any_program_gives_the_bits_of_numpy(tmp_path: Path) -> None:
    """At any alignment and pitches; blocks at the ends of axes; threads with several rows or one."""
    examples = star("float32"), star("float64", 2), example("seven_point", "float32", 3)
    made = []
    for number, program in enumerate([*examples, *map(random, range(9))]):
        shape = SHAPES[number % 3]
        made.append(emit(program, march=shape, wide=number % 2 == 1, apart=len(program.inputs) > 1))
    for kernel, run in zip(made, host(tmp_path, made), strict=True):
        for own, odd in product(OWN, (0, 1, 3)):
            check_in_memory(kernel.program, run, kernel, own, odd)


@needs_compiler
@pytest.mark.parametrize("boundary", PAD)
def test_cells_beyond_the_ends_of_rows_are_found_and_not_read(boundary: str, tmp_path: Path) -> None:
    """What is there is poison."""
    programs = [star("float32"), star("int32", 3)]
    kernels = [emit(one, march=SHAPES[n], ends=boundary) for n, one in enumerate(programs)]
    for kernel, run in zip(kernels, host(tmp_path, kernels), strict=True):
        program, widths = kernel.program, widths_of(kernel.program)
        for own, odd in product(OWN, (0, 3)):
            found = finds_ends(program, boundary, own[-1])
            assert found == [0]
            blocks, outs = cases(program, own, odd)
            filled = [beyond_ends(block, boundary, widths) for block in blocks]
            low, high = widths[-1]
            for outside in (blocks[0][..., :low], blocks[0][..., blocks[0].shape[-1] - high :]):
                outside.view(np.uint8)[...] = 0xEE
            run(kernel, blocks, outs, widths)
            for out, expected in zip(outs, evaluate(program, filled, widths), strict=True):
                same(out, expected)


@needs_compiler
@pytest.mark.parametrize("whole_rows", [False, True])
def test_cells_near_the_ends_of_whole_arrays_are_made_by_other_blocks(
    whole_rows: bool, tmp_path: Path
) -> None:
    """Or by branches, at the ends of rows."""
    field = whole.field(14, 17, 23)
    functions = whole.cube, placed
    programs = [
        replace(whole.traced(one, [field], ("out",)).program, whole_rows=whole_rows) for one in functions
    ]
    runs = compile_texts(tmp_path, programs, march=SharedPlanes(2, (1, 2), (4, 8)))
    for program, run, function in zip(programs, runs, functions, strict=True):
        in_blocks(program, run, [field], [function(field.copy())], wraps=False)


def placed(u: Any) -> Any:
    """Positions, and masks of them."""
    z, y, x = np.indices(u.shape, dtype=np.float32)
    new = u.copy()
    new[1:-1, 1:-1, 1:-1] += u[:-2, 1:-1, 2:] + u[2:, :-2, 1:-1] + np.float32(0.5) * u[1:-1, 2:, :-2]
    new = new + z * np.float32(3) - y + x
    new[3:5, 2:9, 4:] -= 1
    return new


@needs_compiler
@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("__syncthreads();", ""),
        ("await_copies<0>();", "await_copies<1>();"),
        ("slot0_4 == 5", "slot0_4 == 4"),
        ("own_place<Ends::wrap>(at, length2)", "at"),
    ],
)
def test_the_comparison_finds(text: str, instead: str, tmp_path: Path) -> None:
    """Of mutants of the text, each gives other bits than NumPy."""
    program, own = star("float32"), OWN[1]
    kernel = emit(program, march=SHAPES[0], ends="wrap")
    assert text in kernel.source
    (run,) = host(tmp_path, [replace(kernel, source=kernel.source.replace(text, instead))])
    widths = widths_of(program)
    blocks, outs = cases(program, own, 0)
    filled = [beyond_ends(block, "wrap", widths) for block in blocks]
    blocks[0][..., :4] = blocks[0][..., -4:] = 99
    run(kernel, blocks, outs, widths)
    with pytest.raises(AssertionError):
        same(outs[0], evaluate(program, filled, widths)[0])


def test_threads_march_alone_where_planes_would_not_help() -> None:
    large = 512, 512, 512
    assert isinstance(choose(star("float32"), large), SharedPlanes)
    for program, why in (
        (example("heat", "float32"), "three axes"),
        (example("seven_point", "float32", 3), "3 elements"),
        (example("diffusion3d", "float16", 3), "smaller than 4 bytes"),
        (star("float32", 40), "too many"),
        (replace(star("float32"), outputs=BEST), "combined of all"),
    ):
        assert why in str(choose(program, large))
    assert "smaller than 8 x 16 x 64 cells" in str(choose(star("float32"), (2**12, 15, 2**10)))
    assert "fewer than" in str(choose(star("float32"), (128, 128, 128)))


def test_blocks_have_fewer_cells_where_threads_would_hold_more() -> None:
    found = {dtype: choose(star(dtype, 4)) for dtype in ("float32", "float64")}
    assert [(one.cells, one.blocks) for one in found.values() if isinstance(one, SharedPlanes)] == [
        ((2, 2), 3), ((2, 1), 3),
    ]  # fmt: skip
    for radius, cells, blocks in ((5, (2, 2), 2), (7, (1, 2), 2)):
        wide = choose(star("float32", radius))
        assert isinstance(wide, SharedPlanes)
        assert (wide.cells, wide.blocks) == (cells, blocks)
    for lengths, planes, unroll in (((40, 1024, 1024), 20, 1), ((160, 512, 448), 16, 2)):
        marched = choose(star("float32", 4), lengths)
        assert isinstance(marched, SharedPlanes)
        assert (marched.planes, marched.unroll) == (planes, unroll)
    few = choose(star("float32", 2))
    assert isinstance(few, SharedPlanes)
    assert few.unroll == 4


@pytest.mark.parametrize(
    ("offsets", "beside"),
    [
        (((1, 1), (2, 2)), (-1, 2, -1, 2)), (((-2, -1), (-1, -3)), (2, -1, 3, -1)),
        (((0, 6), (1, 9)), (0, 1, -6, 9)), (((3, -7), (0, -5)), (0, 3, 7, -5)),
    ],
)  # fmt: skip
def test_rows_and_columns_that_no_cell_reads_are_not_copied(offsets: Any, beside: Any) -> None:
    """They may be before the first byte of memory, or after the last one."""
    graph, kind = Graph(), np.dtype("float32")
    total = graph.operation("add", kind, [graph.load(0, kind, (0, *one)) for one in offsets])
    program = Program(3, (Operand("u", kind),), (Operand("out", kind),), ((total,),), graph)
    shape = SharedPlanes(4, (2, 2), (32, 8))
    (ring,) = shared_planes.rings(shape, program.inputs, reads_of_turn(program, shape.cells)[0], "uint32")
    assert ring.beside == beside


def test_a_kernel_takes_planes_for_aligned_blocks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    program, own, marches = star("float32"), (33, 16, 72), []
    monkeypatch.setattr(shared_planes, "LEAST_CELLS", 1)

    def compiled(kernel: DeviceKernel, source: str, name: str, shared: int) -> Any:
        marches.append(shared > 0)
        return lambda *launch, shared_mem: None

    monkeypatch.setattr(DeviceKernel, "_compiled", compiled)
    kernel = DeviceKernel(program, widths_of(program))
    for odd, together in ((0, True), (1, False)):
        blocks = [view(tuple(n + 8 for n in own), np.float32, 3, odd=odd) for _ in range(3)]
        outs = [view(own, np.float32, 3) for _ in range(2)]
        assert have_equal_alignment(program, blocks, outs, widths_of(program)) == together
        kernel.bind(blocks, outs, (0, 0, 0))
    assert marches == [True, False]


@needs_compiler
@pytest.mark.parametrize(("axes", "own", "together"), [
    (3, (16, 9, 65), False), (3, (66, 8, 66), False), (3, (17, 16, 64), True), (3, (34, 32, 128), True),
    (3, (35, 23, 88), True), (3, (9, 17, 72), True), (3, (33, 32, 72), True), (2, (13, 131), False),
])  # fmt: skip
def test_results_over_an_input_are_computed_once(
    axes: int, own: tuple[int, ...], together: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a leapfrog scheme writes them: a second thread would read what the first one has written."""
    monkeypatch.setattr(shared_planes, "LEAST_CELLS", 1)
    marched: list[bool] = []

    def compiled(kernel: DeviceKernel, source: str, name: str, shared: int) -> Any:
        march = SharedPlanes(1, (1, 1), (1, 1), shared=shared) if shared else None
        marched.append(shared > 0)
        text: Any = SimpleNamespace(source=source, name=name, planes=march, shared=shared)
        (launch,) = launchers(tmp_path, [text])
        return launch

    monkeypatch.setattr(DeviceKernel, "_compiled", compiled)
    whole_star = star("int32") if axes == 3 else heat_over()
    program = replace(whole_star, outputs=whole_star.outputs[:1], results=whole_star.results[:1])
    widths = widths_of(program)
    blocks, _ = cases(program, own, 0)
    if together:  # rows of whole vectors
        assert blocks[0].strides[-2] % 16 == 0
    expected = evaluate(program, blocks, widths)[0]
    out = blocks[1][tuple(slice(low, -high or None) for low, high in widths)]
    DeviceKernel(program, widths)(blocks, [out], (0,) * axes)
    np.testing.assert_array_equal(out, expected)
    assert marched == [together]


def heat_over() -> Program:
    """Of two axes: an input that is read at the own cell, and one beside it."""
    graph, kind = Graph(), np.dtype("int32")
    sides = [graph.load(0, kind, offset) for offset in ((0, 1), (1, 0), (-1, 0), (0, -2))]
    total: Node = graph.load(1, kind, (0, 0))
    for side in sides:
        total = graph.operation("add", kind, [total, side])
    inputs = Operand("now", kind), Operand("before", kind)
    return Program(2, inputs, (Operand("new", kind),), ((total,),), graph)


def check_log(log: str, most: int = 0) -> None:
    assert "warning" not in log
    ((stack, stores),) = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", log)
    assert int(stack) <= 2 * most
    assert int(stores) <= most


@pytest.mark.parametrize("architecture", ["80", "90", "100"])
@pytest.mark.parametrize(
    ("dtype", "radius", "lengths"),
    [
        ("float32", 4, None), ("float32", 4, (512, 256, 256)), ("float64", 4, (512, 256, 256)),
        ("int32", 3, None), ("float64", 2, None),
    ],
)  # fmt: skip
def test_it_compiles_and_spills_nothing(
    dtype: str, radius: int, lengths: tuple[int, int, int] | None, architecture: str
) -> None:
    program = star(dtype, radius)
    chosen = choose(program, lengths)
    assert isinstance(chosen, SharedPlanes)
    check_log(log_of(emit(program, march=chosen, ends="wrap"), architecture))
    check_log(log_of(emit(program, march=chosen, once=True), architecture), most=4)  # bytes: one register
