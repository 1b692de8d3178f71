"""The kernel of one pass, run on the host by all its threads: what NumPy computes, to the bit."""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fused import (
    EXAMPLES,
    GXX,
    Run,
    cases,
    check_in_memory,
    example,
    halo,
    host,
    launchers,
    masked,
    noise,
    same,
    shapes,
    view,
    widths_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import programs
from step_runs import PAD, beyond_ends

from meshrun.runner.compiler.cuda import pass_launch, single_pass
from meshrun.runner.compiler.cuda.pass_launch import have_equal_pitches, is_wide, launch_arguments
from meshrun.runner.compiler.cuda.pass_tile import choose_tile, with_fewer_columns
from meshrun.runner.compiler.cuda.single_pass import PassKernel, emit, finds_ends
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Graph, Operand, Program, merge_components

needs_compiler = pytest.mark.skipif(GXX is None, reason="needs g++")


Compiled = list[tuple[PassKernel, Run]]


@pytest.fixture(scope="module")
def compiled_examples(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Compiled]:
    """Compile a kernel for each example and shape, all in one file, which takes g++ less time."""
    kernels = []
    for each in EXAMPLES:
        merged, count = merge_components(example(*each))
        kernels += [(each, emit(merged, lengths=(*own[:-1], own[-1] * count))) for own in shapes(each[2])]
    compiled: dict[Any, Compiled] = {each: [] for each in EXAMPLES}
    runs = host(tmp_path_factory.mktemp("examples"), [kernel for _, kernel in kernels])
    for (each, kernel), run in zip(kernels, runs, strict=True):
        compiled[each].append((kernel, run))
    return compiled


@needs_compiler
@pytest.mark.parametrize(("name", "dtype", "axes", "trailing"), EXAMPLES)
def test_an_example_gives_the_bits_of_its_function(
    name: str, dtype: str, axes: int, trailing: tuple[int, ...], compiled_examples: dict[Any, Compiled]
) -> None:
    program = example(name, dtype, axes, trailing)
    _, count = merge_components(program)
    widths = halo(name, axes)
    made = compiled_examples[name, dtype, axes, trailing]
    for (own, (kernel, run)), odd in product(zip(shapes(axes), made, strict=True), (0, 1, 3)):
        blocks, outs = [], []
        for number, one in enumerate(program.inputs):
            grid = tuple(n + a + b for n, (a, b) in zip(own, widths, strict=True))
            block = view(grid + one.trailing, one.dtype, axes, odd=odd)
            block[...] = noise(block.shape, one.dtype, number)
            blocks.append(block)
        for one in program.outputs:
            outs.append(view(own + one.trailing, one.dtype, axes, odd=odd and odd + 1))
        if count > 1 and odd:  # components of merged axes are cells: rows are contiguous all the same
            assert not blocks[0].flags.c_contiguous
        run(kernel, blocks, outs, widths)
        for out, expected in zip(outs, evaluate(program, blocks, widths), strict=True):
            same(out, expected)


@needs_compiler
@settings(max_examples=max(settings.default.max_examples // 4, 1))
@given(program=programs(), data=st.data())
def test_any_program_gives_the_bits_of_numpy(
    program: Program, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tile = tuple(data.draw(st.sampled_from([1, 2, 4] if axis else [1, 2])) for axis in range(program.axes))
    threads = data.draw(st.sampled_from([(8, 1), (4, 4), (32, 2)]))
    kernels = [
        emit(program, lengths=(1, 1, 4)[-program.axes :]),
        emit(program, lengths=(3, 2, 70)[-program.axes :]),
        emit(program, tile=tile, threads=threads, wide=data.draw(st.booleans())),
        emit(program, tile=(3, *tile[1:]), march=program.axes > 1),
    ]
    runs = host(tmp_path_factory.mktemp("host"), kernels)
    for own in [(1, 1, 4), (3, 2, 7), (2, 5, 70), (4, 4, 17)]:
        for odd in (0, 1, 3):
            for kernel, run in zip(kernels, runs, strict=True):
                if all(a <= b for a, b in zip(kernel.tile, own[-program.axes :], strict=True)):
                    check_in_memory(program, run, kernel, own[-program.axes :], odd)


LATTICE: Any = ("lattice", "float32", 3, ())
WIDE = [one for one in [*EXAMPLES, LATTICE] if finds_ends(example(*one), "wrap", 5)]


def test_examples_find_the_ends_of_rows() -> None:
    found = {(name, dtype) for name, dtype, *_ in WIDE}
    assert {
        ("heat", "float64"),
        ("diffusion3d", "float32"),
        ("lattice", "float16"),
        ("life", "bool"),
    } <= found
    assert "axpy" not in {name for name, _ in found}  # reads nothing beside its own cells
    assert finds_ends(example("diffusion3d", "float16", 3), "wrap", 5) == []  # a march of small elements
    assert ("heat", "float32", 2, (3,)) not in WIDE
    assert finds_ends(example("heat", "float32"), "constant", 5) == []
    assert finds_ends(example("heat", "float32"), "wrap", 1) == []
    assert finds_ends(example("heat", "float32"), "wrap", 0) == []


@needs_compiler
@pytest.mark.parametrize(
    ("boundary", "dtypes"),
    [
        ("reflect", "one of each"),
        ("wrap", "one of each"),
        *(pytest.param(boundary, "all", marks=pytest.mark.nightly) for boundary in PAD),
    ],
)
def test_cells_beyond_the_ends_of_rows_are_found_and_not_read(
    boundary: str, dtypes: str, tmp_path: Path
) -> None:
    """Each example, rows shorter than a tile and of many tiles, at any alignment; what is there is poison."""
    made: list[Any] = []
    for each in WIDE if dtypes == "all" else {one[0]: one for one in WIDE}.values():
        for number, own in enumerate(shapes(each[2])):
            made.append((each, own, emit(example(*each), lengths=own, ends=boundary, wide=number == 1)))
    runs = host(tmp_path, [kernel for *_, kernel in made])
    for (each, own, kernel), run in zip(made, runs, strict=True):
        program, widths = example(*each), halo(each[0], each[2])
        found = finds_ends(program, boundary, own[-1])
        for odd in (0, 3):
            blocks, outs = [], []
            for number, one in enumerate(program.inputs):
                grid = tuple(n + a + b for n, (a, b) in zip(own, widths, strict=True))
                block = view(grid, one.dtype, each[2], odd=odd)
                block[...] = noise(block.shape, one.dtype, number)
                blocks.append(block)
            filled = [beyond_ends(block, boundary, widths) for block in blocks]
            for number, block in enumerate(blocks):
                low, high = widths[-1]
                block[...] = filled[number]
                for outside in (block[..., :low], block[..., block.shape[-1] - high :]):
                    if number in found:
                        outside.view(np.uint8)[...] = 0xEE
            outs = [view(own, one.dtype, each[2], odd=odd and odd + 1) for one in program.outputs]
            run(kernel, blocks, outs, widths)
            for out, expected in zip(outs, evaluate(program, filled, widths), strict=True):
                same(out, expected)


@needs_compiler
@pytest.mark.parametrize("boundary", PAD)
def test_ends_of_mixed_elements_read_from_afar_and_in_branches(boundary: str, tmp_path: Path) -> None:
    graph, kinds = Graph(), [np.dtype(one) for one in ("f4", "u1", "f2")]
    large, small, half = (functools.partial(graph.load, number, kind) for number, kind in enumerate(kinds))
    costly: Any = large((-1, -3))
    for factor in range(3, 12):
        costly = graph.operation("divide", kinds[0], [costly, graph.constant(factor, kinds[0])])
    marked = graph.operation("equal", np.dtype(bool), [small((0, 2)), graph.constant(1, kinds[1])])
    cheap = graph.operation("add", kinds[0], [large((1, 1)), large((0, 0))])
    chosen = graph.operation("where", kinds[0], [marked, costly, cheap])
    inputs = tuple(Operand(f"a{number}", kind) for number, kind in enumerate(kinds))
    outputs = tuple(Operand(f"b{number}", kind) for number, kind in enumerate(kinds))
    results = ((chosen,), (small((0, -1)),), (half((0, 3)),))
    program = Program(2, inputs, outputs, results, graph)
    assert finds_ends(program, boundary, 4) == [0, 1, 2]
    widths = widths_of(program)
    kernels = [emit(program, lengths=(3, length), ends=boundary) for length in (5, 70)]
    kernels.append(emit(program, tile=(1, 1), ends=boundary))
    for kernel, run in zip(kernels, host(tmp_path, kernels), strict=True):
        for own in ((3, 5), (4, 70), (3, 131)):
            if kernel.tile[-1] > own[-1]:
                continue
            blocks, outs = cases(program, own, 1)
            filled = [beyond_ends(block, boundary, widths) for block in blocks]
            run(kernel, blocks, outs, widths)
            for out, expected in zip(outs, evaluate(program, filled, widths), strict=True):
                same(out, expected)


@needs_compiler
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "float16", "bool"])
def test_small_elements_are_read_at_any_alignment(dtype: str, tmp_path: Path) -> None:
    graph, kind = Graph(), np.dtype(dtype)
    for_each = [graph.load(0, kind, (y, x)) for y in (-1, 0) for x in (-3, 0, 2)]
    outputs = tuple(Operand(f"o{number}", kind) for number in range(len(for_each)))
    program = Program(2, (Operand("i", kind),), outputs, tuple((one,) for one in for_each), graph)
    kernel = emit(program)
    (run,) = host(tmp_path, [kernel])
    for odd in range(9):
        for width in (16, 17, 40, 2100):
            check_in_memory(program, run, kernel, (9, width), odd)


@needs_compiler
@pytest.mark.parametrize(
    ("name", "dtype", "axes"),
    [
        ("seven_point", "float32", 3),
        ("diffusion3d", "float64", 3),
        ("heat", "float16", 2),
        ("life", "uint8", 2),
    ],
)
@pytest.mark.parametrize("tile", [(5, 2, 4), (3, 1, 1)])
def test_rows_made_one_after_the_other_are_the_same(
    name: str, dtype: str, axes: int, tile: tuple[int, ...], tmp_path: Path
) -> None:
    program = example(name, dtype, axes)
    kernel = emit(program, tile=(tile[0], *tile[4 - axes :]), march=True)
    (run,) = host(tmp_path, [kernel])
    for own, odd in product([(5, 3, 17), (11, 9, 40)], (0, 1, 3)):
        check_in_memory(program, run, kernel, (own[0], *own[4 - axes :]), odd)


def test_a_turn_loads_only_what_the_one_before_did_not() -> None:
    kernel = emit(example("seven_point", "float32", 3), tile=(16, 1, 4), march=True)
    loop = kernel.source.partition("for (int turn")[2]
    assert loop.count("__ldg") == 4 + 2 * 4 + 2  # the next plane's, those of two rows beside, two at the ends
    assert kernel.description.loads == (3 * 4 + 2 * 4 + 2) / 4


@needs_compiler
@pytest.mark.parametrize(
    ("name", "dtype", "axes", "columns"),
    [
        ("lattice", "float16", 2, 8),
        ("lattice", "float16", 3, 2),
        ("heat", "float16", 2, 6),
        ("life", "uint16", 2, 2),
        ("life", "uint8", 2, 4),
        ("life", "bool", 2, 8),
        ("axpy", "uint8", 4, 12),
    ],
)
def test_cells_of_a_row_made_one_after_the_other_are_the_same(
    name: str, dtype: str, axes: int, columns: int, tmp_path: Path
) -> None:
    """With rows that a turn reads one element of, and three; with as many results as such rows, and more."""
    program = example(name, dtype, axes)
    kernels = [emit(program, tile=(*(1,) * (axes - 2), rows, columns), sweep=True) for rows in (1, 2)]
    for kernel, run in zip(kernels, host(tmp_path, kernels), strict=True):
        for own, odd in product([(3, 2, 2, 17), (2, 3, 4, 40)], (0, 1, 3)):
            check_in_memory(program, run, kernel, own[-axes:], odd)


def test_results_of_a_sweep_take_the_place_of_what_was_read() -> None:
    kernel = emit(example("lattice", "float16"))
    assert (kernel.description.sweep, kernel.tile) == (True, (1, 4))
    assert "uint32 words" not in kernel.source.partition("__global__")[2]
    assert "uint32 words" in emit(example("heat", "float16"), tile=(1, 4), sweep=True).source
    assert not emit(example("lattice", "float16"), lengths=(9, 1)).description.sweep
    assert not emit(example("lattice", "float32")).description.sweep
    assert not emit(example("heat", "float16")).description.sweep  # without branches


def test_a_kernel_has_the_same_text_each_time() -> None:
    """Else no later run would find it among those that are compiled."""
    for dtype, axes in (("float16", 2), ("float16", 3), ("float32", 2)):
        texts = {emit(copy.deepcopy(example("lattice", dtype, axes))).source for _ in range(5)}
        assert len(texts) == 1


def test_a_sweep_makes_whole_words_of_small_elements() -> None:
    for name, dtype, tile in (
        ("heat", "float32", (1, 4)),
        ("heat", "float16", (1, 3)),
        ("life", "uint8", (1, 2)),
    ):
        with pytest.raises(ValueError, match="fill no words"):
            emit(example(name, dtype), tile=tile, sweep=True)
    with pytest.raises(ValueError, match="in a march"):
        emit(example("heat", "float16"), tile=(2, 4), march=True, sweep=True)


def test_a_march_has_rows_to_make() -> None:
    with pytest.raises(ValueError, match="over one axis"):
        emit(example("axpy", "float32", 1), tile=(4,), march=True)


def test_a_row_of_one_thread_shares_what_its_cells_have_in_common() -> None:
    program = example("life", "uint8")
    kernel = emit(program, tile=(8, 16))
    assert kernel.description.loads == 10 * 18 / (8 * 16)
    assert kernel.description.operations < program.operations
    assert kernel.description.load_instructions == 10 * 6 / (8 * 16)
    assert kernel.description.bytes == 2


def test_the_tile_follows_from_bytes_registers_and_nodes() -> None:
    assert choose_tile(example("edges", "float32")) == (4, 4)
    assert choose_tile(example("life", "uint8")) == (16, 16)
    assert choose_tile(example("life", "uint16")) == (4, 8)
    assert choose_tile(example("edges", "uint8")) == (4, 4)
    assert choose_tile(example("grayscale", "uint8", 2, (3,))) == (1, 16)
    assert choose_tile(example("lattice", "float32")) == (2, 4)
    assert choose_tile(example("lattice", "float16")) == (1, 4)
    assert choose_tile(example("lattice", "float16", 3)) == (1, 1, 4)
    assert choose_tile(example("lattice", "float32", 3)) == (1, 1, 1)
    assert choose_tile(example("heat", "float32"), lengths=(9, 1)) == (4, 1)
    assert choose_tile(example("diffusion3d", "float64", 3)) == (64, 2, 2)
    cube = example("diffusion3d", "float32", 3)
    assert choose_tile(cube) == (64, 2, 2)
    assert choose_tile(cube, lengths=(512, 512, 512)) == (64, 2, 2)
    assert choose_tile(cube, lengths=(256, 256, 256)) == (16, 2, 2)
    assert choose_tile(cube, lengths=(5, 9, 1)) == (5, 1, 1)
    assert choose_tile(cube, lengths=(514, 512, 512)) == (58, 2, 2)  # 9 times 58 are 522
    assert choose_tile(cube, lengths=(0, 512, 512)) == (1, 1, 1)
    assert choose_tile(merge_components(example("heat", "float32", 2, (3,)))[0]) == (8, 2)
    assert choose_tile(merge_components(example("edges", "uint8", 2, (3,)))[0]) == (4, 4)
    assert choose_tile(example("axpy", "float32")) == (1, 4)
    assert choose_tile(example("grayscale", "float32", 2, (3,))) == (1, 4)
    assert choose_tile(example("axpy", "float32", 1)) == (4,)


def test_marches_through_small_volumes_have_more_threads() -> None:
    cube, small = (example("diffusion3d", kind, 3) for kind in ("float32", "float16"))
    found = [choose_tile(cube, lengths=(planes, 128, 128)) for planes in (128, 64, 32, 16)]
    assert found == [(8, 2, 2), (8, 2, 2), (8, 2, 1), (8, 1, 1)]
    assert choose_tile(small, lengths=(16, 128, 128)) == (8, *choose_tile(small)[1:])  # of whole words


@pytest.mark.parametrize(
    ("planes", "march"), [(60, 8), (64, 8), (65, 9), (68, 9), (76, 10), (96, 12), (97, 8), (128, 8)]
)
def test_blocks_of_a_small_volume_run_at_once(planes: int, march: int) -> None:
    """Each block of eight layers has a processor: more planes of each are faster than a ninth layer."""
    tile = choose_tile(example("diffusion3d", "float32", 3), lengths=(planes, 128, 128))
    assert tile[0] == march


def test_small_fields_that_stay_in_the_cache_have_more_threads() -> None:
    shared, single = example("heat", "float32"), example("axpy", "float32")
    found = [with_fewer_columns(shared, (4, 4), side * 512) for side in (128, 256, 512, 1024)]
    assert found == [(4, 1), (4, 1), (4, 2), (4, 4)]
    assert with_fewer_columns(single, (1, 4), 512 * 1024) == (1, 1)
    assert with_fewer_columns(single, (1, 4), 2048 * 1024) == (1, 4)
    assert with_fewer_columns(example("life", "uint8"), (16, 16), 64) == (16, 16)  # of whole words


def test_rows_too_short_for_a_tile_are_refused() -> None:
    program = example("axpy", "float32", 1)
    arrays = [np.zeros(3, np.float32) for _ in range(3)]
    with pytest.raises(ValueError, match=r"\(3,\) own cells for a tile of \(4,\)"):
        launch_arguments(emit(program, tile=(4,)), arrays[:2], arrays[2:], ((0, 0),))


def test_arrays_that_do_not_fit_are_refused() -> None:
    program = example("heat", "float32")
    kernel = emit(program)
    block, out = np.zeros((10, 10), np.float32), np.zeros((8, 8), np.float32)
    launch_arguments(kernel, [block], [out], ((1, 1), (1, 1)))
    for wrong_block, wrong_out, widths in [
        (block.astype("f8"), out, ((1, 1), (1, 1))),
        (block.T, out, ((1, 1), (1, 1))),
        (block[:, 1:], out, ((1, 1), (1, 1))),
        (block, out, ((1, 1), (2, 0))),
    ]:
        with pytest.raises(ValueError):
            launch_arguments(kernel, [wrong_block], [wrong_out], widths)


def test_places_beyond_32_bits_need_a_wide_kernel() -> None:
    """Negative pitches do, too: they are none in 32 bits without a sign."""
    program = example("heat", "float32")
    narrow, wide = emit(program), emit(program, wide=True)
    zero = np.zeros(1, np.float32)
    shapes = [((2**15, 2**16), True), ((2**15 - 2, 2**16), False)]
    for shape, large in shapes:
        block, out = (
            np.lib.stride_tricks.as_strided(zero, one, (4 * 2**16, 4)) for one in (shape, (shape[0] - 2, 8))
        )
        block = block[:, :10]
        assert is_wide([block, out]) == large
        launch_arguments(wide, [block], [out], ((1, 1), (1, 1)))
        if large:
            with pytest.raises(ValueError, match="32-bit"):
                launch_arguments(narrow, [block], [out], ((1, 1), (1, 1)))
        else:
            launch_arguments(narrow, [block], [out], ((1, 1), (1, 1)))
    assert is_wide([np.zeros((10, 10), np.float32)[::-1]])


@given(divisor=st.integers(1, 2**31 - 1), times=st.integers(0, 2**31 - 1))
def test_a_division_by_a_product_is_exact(divisor: int, times: int) -> None:
    factor, bits = pass_launch.division(divisor)
    assert 0 < factor < 2**32
    last = (2**31 - 1) // divisor * divisor
    for n in {0, times, times // divisor * divisor, max(times // divisor * divisor - 1, 0), last, 2**31 - 1}:
        assert n * factor < 2**64
        assert n * factor >> bits == n // divisor


def test_no_cells_are_no_blocks() -> None:
    program = example("heat", "float32")
    block, out = np.zeros((2, 10), np.float32), np.zeros((0, 8), np.float32)
    assert launch_arguments(emit(program), [block], [out], ((1, 1), (1, 1))).grid == (0,)


def test_sizes_beyond_32_bits_fit_the_grid() -> None:
    class Huge:
        dtype, itemsize = np.dtype(np.uint8), 1

        def __init__(self, shape: tuple[int, int]) -> None:
            self.shape, self.strides = shape, (shape[1], 1)
            self.data = type("Memory", (), {"ptr": 1 << 20})

    program = example("life", "uint8")
    kernel, side = emit(program, wide=True), 1 << 20
    launch = launch_arguments(kernel, [Huge((side + 2, side + 2))], [Huge((side, side))], ((1, 1), (1, 1)))
    blocks = side // kernel.tile[0] // kernel.threads[1] * (side // kernel.tile[1] // kernel.threads[0])
    assert launch.grid == (blocks,)
    assert [one for one in launch.arguments if one == side]


def test_blocks_of_threads_fit_the_rows() -> None:
    program = example("seven_point", "float32", 3)

    def block(columns: int) -> tuple[int, int]:
        arrays = [np.zeros((4 + more, 6 + more, columns + more), np.float32) for more in (2, 0)]
        return launch_arguments(emit(program, tile=(1, 1, 1), threads=(128, 1)), arrays[:1], arrays[1:],
                                ((1, 1),) * 3).block  # fmt: skip

    assert block(128) == block(256) == block(1281) == (128, 1)
    assert block(257) == block(129) == (32, 4)
    assert block(192) == (64, 2)
    assert block(5) == (8, 16)


def test_short_rows_give_their_threads_to_other_rows() -> None:
    program = example("heat", "float32")
    block, out = np.zeros((1002, 10), np.float32), np.zeros((1000, 8), np.float32)
    launch = launch_arguments(emit(program), [block], [out], ((1, 1), (1, 1)))
    assert launch.block == (2, 64)
    assert launch.grid == (4,)


@needs_compiler
def test_operands_may_have_pitches_of_their_own(tmp_path: Path) -> None:
    program = example("gray_scott", "float32")
    blocks = [view((9, 21), np.float32, 2, odd=odd) for odd in (0, 3)]
    for number, block in enumerate(blocks):
        block[...] = noise(block.shape, np.float32, number)
    outs = [view((7, 19), np.float32, 2, odd=odd) for odd in (2, 0)]
    widths = ((1, 1), (1, 1))
    kernels = [emit(program, tile=(1, 2)), emit(program, tile=(1, 2), apart=True)]
    common, apart = host(tmp_path, kernels)
    with pytest.raises(ValueError, match="kernel with common ones"):
        common(kernels[0], blocks, outs, widths)
    apart(kernels[1], blocks, outs, widths)
    for out, expected in zip(outs, evaluate(program, blocks, widths), strict=True):
        same(out, expected)
    assert have_equal_pitches(program.inputs[:1], blocks[:1], 2)
    assert not have_equal_pitches(program.inputs, blocks, 2)


@needs_compiler
@pytest.mark.parametrize("odd", [0, 3])
def test_more_rows_than_a_launch_takes_are_parts(
    odd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of arrays whose pitches may differ."""
    program, widths, rows = example("gray_scott", "float32"), ((1, 1), (1, 1)), []

    def compiled(kernel: DeviceKernel, source: str, name: str, shared: int) -> Callable[..., None]:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        (run,) = launchers(folder, [SimpleNamespace(source=source, name=name)])

        def launch(grid: Any, block: Any, arguments: Any, shared_mem: int) -> None:
            rows.append(int(arguments[-6]))  # before length1, tiles1 with its factor and bits, and shift
            run(grid, block, arguments)

        return launch

    monkeypatch.setattr(DeviceKernel, "_compiled", compiled)
    monkeypatch.setattr(single_pass, "MOST_ROWS", 8)
    blocks = [view((21, 15), np.float32, 2, odd=one) for one in (0, odd)]
    for number, block in enumerate(blocks):
        block[...] = noise(block.shape, np.float32, number)
    outs = [np.empty((19, 13), np.float32) for _ in range(2)]
    DeviceKernel(program, widths)(blocks, outs, (0, 0))
    for out, expected in zip(outs, evaluate(program, blocks, widths), strict=True):
        same(out, expected)
    assert sum(rows) == 19
    assert max(rows) <= 8


def test_few_cells_of_a_program_with_branches_are_computed_at_a_time() -> None:
    assert choose_tile(masked(divisions=300)) == (2,)
    assert choose_tile(masked(divisions=300, shared=True)) == (4,)
