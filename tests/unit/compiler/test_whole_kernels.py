"""Kernels of one pass of whole-array functions: blocks of the results have the bits of the whole arrays."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import whole_functions as whole
from fused import GXX, launchers
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_kernels import Run, TextKernel, block_of, compile_loops, compile_texts, halo_of, in_blocks

from meshrun.runner.compiler.cpp import host
from meshrun.runner.compiler.cuda import pass_launch, pass_tile, shared_planes, single_pass
from meshrun.runner.compiler.cuda.shared_planes import SharedPlanes
from meshrun.runner.compiler.device_kernel import MOST_OF_TILE, DeviceKernel, PassVariant
from meshrun.runner.compiler.passes.ends import ends_of, interior, with_whole_rows
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import BOOL, Graph, Operand, Program
from meshrun.runner.compiler.whole.trace import WholeProgram
from meshrun.runner.region import Shape

needs_compiler = pytest.mark.skipif(GXX is None, reason="needs g++")
F4, F8 = np.dtype("f4"), np.dtype("f8")


def line(u):
    new = u * 0.5
    new[0], new[-2:] = u[1], 3
    new[1:-1] += u[2:]
    return new


def turned(u):
    """Complex numbers, turned by a quarter."""
    new = u * 0.5
    new[1:-1] += 1j * u[2:] - u[:-2]
    new[0] = 0
    new[:, -1] = u[:, -2]
    return new


def divided(u):
    """Divisions by zero, and others that trap, in what is not chosen."""
    new = u.copy()
    new[1:] //= u[:-1]
    new[2:] %= u[:-2]
    new[0] = np.iinfo(u.dtype).min
    return new


def remainders(u):
    """Values that neighbours have in common and that take long, between edges."""
    part = u % 3
    new = u.copy()
    new[1:-1, 1:-1] = part[2:, 1:-1] + part[1:-1, 2:] - part[1:-1, :-2]
    new[0] = part[1]
    new[:, -1] = part[:, -2]
    return new


def mostly_masked(u):
    """What few cells need takes long: it is computed in a branch, also where there are edges."""
    costly = u
    for factor in range(3, 11):
        costly = costly / factor
    new = np.where(u > 3.5, costly, u)
    new[0] = new[-1] = 0
    return new


@dataclass(frozen=True)
class Case:
    """A function that was traced, and its results by NumPy."""

    traced: WholeProgram
    arrays: Sequence[Any]
    wanted: Sequence[Any]

    @property
    def program(self) -> Program:
        return self.traced.program

    def check(self, run: Run) -> None:
        in_blocks(self.program, run, self.arrays, self.wanted, wraps=any(self.traced.wraps))


def case(function: Callable[..., Any], *arrays: Any, names: Sequence[str] = ("out",)) -> Case:
    mine = [one.copy() for one in arrays]
    with np.errstate(all="ignore"):
        returned = function(*mine)
        program = whole.traced(function, arrays, names)
    if returned is None:
        returned = tuple(mine[number] for number in program.changed)
    return Case(program, arrays, returned if isinstance(returned, tuple) else (returned,))


PLANES = (
    whole.heat, whole.periodic_by_hand, whole.life, whole.red_then_black, whole.runge_kutta, whole.views,
    whole.differences, whole.overlapping, whole.masked, whole.coordinates, mostly_masked,
    remainders,
)  # fmt: skip


def cases() -> dict[str, Case]:
    found = {"divided": case(divided, whole.field(23, 37, dtype="i4"))}
    numbers = whole.field(23, 17) + 1j * whole.field(23, 17, seed=1)
    found["turned"] = case(turned, numbers.astype("c8"))
    found["wave"] = case(whole.wave, whole.field(20, 17), whole.field(20, 17, seed=1), names=("u", "before"))
    for number, function in enumerate(PLANES):
        for dtype in ("f4", ("u1", "f2", "f8", "i4")[number % 4]):
            with suppress(TypeError):  # NumPy refuses it
                found[f"{function.__name__} {dtype}"] = case(function, whole.field(23, 37, dtype=dtype))
    for dtype in ("f4", "f8", "f2"):
        found[f"cube {dtype}"] = case(whole.cube, whole.field(12, 10, 9, dtype=dtype))
        found[f"line {dtype}"] = case(line, whole.field(61).astype(dtype))
    return found


CASES = cases()
WAYS: dict[str, dict[str, Any] | None] = {
    "loops": None,
    "threads": {},
    "tiles": {"tile": (2, 4)},
    "marches": {"tile": (3, 2), "march": True},
}


@needs_compiler
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("way", WAYS)
def test_blocks_have_the_bits_of_the_whole_arrays(way: str, every: bool, tmp_path: Path) -> None:
    """By day, each function with the first of its dtypes or, in turn, the last one."""
    options = WAYS[way]
    chosen = {
        name: one for name, one in CASES.items() if "tile" not in (options or {}) or one.program.axes == 2
    }
    if not every:
        of_function = {}
        for name in chosen:
            function = name.split(" ")[0]
            if function not in of_function or len(of_function) % 2:
                of_function[function] = name
        chosen = {name: chosen[name] for name in of_function.values()}
    programs = [one.program for one in chosen.values()]
    runs = (
        compile_loops(tmp_path, programs) if options is None else compile_texts(tmp_path, programs, **options)
    )
    for (name, one), run in zip(chosen.items(), runs, strict=True):
        try:
            one.check(run)
        except AssertionError as wrong:
            raise AssertionError(f"{name}: {wrong}") from None


@needs_compiler
@settings(max_examples=max(settings.default.max_examples // 8, 1))
@given(text=whole.programs(), tile=st.sampled_from([(1, 1), (2, 4), (4, 2), (3, 4)]))
def test_random_programs(text: str, tile: tuple[int, int]) -> None:
    fields = whole.field(11, 9), whole.field(11, 9, dtype="f4", seed=1)
    made = case(whole.compiled(text), *fields, names=("u", "v", "w"))
    with tempfile.TemporaryDirectory() as folder:
        for run in (
            *compile_loops(Path(folder), [made.program]),
            *compile_texts(Path(folder), [made.program], tile=tile, march=tile[0] == 3),
        ):
            made.check(run)


def rolled(u):
    """Rows whose ends meet, with edges all the same."""
    new = u + np.roll(u, 1, 1) - np.roll(u, -2, 1) + np.roll(u, 1, 0)
    new[0] = 3
    new[:, 0] = new[:, 1]
    new[:, -1] = u[:, 3]
    return new


@needs_compiler
@pytest.mark.parametrize("options", [{}, {"tile": (2, 4)}])
@pytest.mark.parametrize("dtype", ["f4", "u1", "f8"])
def test_cells_beyond_the_ends_of_whole_rows_need_not_be_in_memory(
    dtype: str, options: dict[str, Any], tmp_path: Path
) -> None:
    made = case(rolled, whole.field(20, 43, dtype=dtype))
    widths, (array,), (wanted,) = halo_of(made.program), made.arrays, made.wanted
    low, high = widths[1]
    (run,) = compile_texts(tmp_path, [made.program], ends="wrap", row=43, **options)
    for first, last in ((0, 7), (7, 20), (0, 20)):
        block = block_of(array, (first, 0), (last, 43), widths)
        block[:, :low] = block[:, block.shape[1] - high :] = 99
        out = np.zeros((last - first, 43), wanted.dtype)
        run([block], [out], (first, 0))
        assert out.tobytes() == wanted[first:last].tobytes()


MUTANTS = {"no rows at an end": ((0, 0), (1, 1)), "no columns at an end": ((1, 1), (0, 0))}


@needs_compiler
@pytest.mark.parametrize(
    "mutant", ["edges of each block", *(pytest.param(one, marks=pytest.mark.nightly) for one in MUTANTS)]
)
def test_the_comparison_finds(mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = pass_launch.launch_arguments

    def at_the_first_cell(*given: Any) -> Any:
        return launch(*given[:4], [0, 0], *given[5:])

    if mutant == "edges of each block":
        monkeypatch.setattr(pass_launch, "launch_arguments", at_the_first_cell)
        monkeypatch.setattr(host.HostProgram, "_place", lambda self, first: host._integers([0, 0]))
    else:
        for module in ("cuda.pass_launch", "cuda.pass_tile", "cuda.single_pass", "cpp.source"):
            monkeypatch.setattr(f"meshrun.runner.compiler.{module}.ends_of", lambda _: MUTANTS[mutant])
    made = CASES["heat f4"]
    for run in (*compile_loops(tmp_path, [made.program]), *compile_texts(tmp_path, [made.program])):
        with pytest.raises(AssertionError):
            made.check(run)


def test_each_cell_near_the_ends_is_made_by_a_thread_of_its_own() -> None:
    """One thread for several would take the latency of memory for each, longer than all others take."""
    program = program_of(whole.heat, 4096, 4096)
    kernel = single_pass.emit(program)
    widths = ((1, 1), (2, 2))
    names = [name for _, name, _ in single_pass.parameters(program, False, False, False)]
    block = np.lib.stride_tricks.as_strided(np.zeros(1, F4), (1002, 4100), (4 * 4100, 4))
    out = np.lib.stride_tricks.as_strided(np.zeros(1, F4), (1000, 4096), (4 * 4096, 4))
    for start, cells in ((0, 4096 + 2 * 999), (1000, 2 * 1000), (3096, 4096 + 2 * 999)):
        call = pass_launch.launch_arguments(kernel, [block], [out], widths, (start, 0))
        share = int(dict(zip(names, call.arguments, strict=True))["share_at_ends"])
        before = [number * share >> 32 for number in range(call.grid[0] + 1)]
        assert before[-1] == -(-cells // (call.block[0] * call.block[1]))
        # They are spread over all blocks.
        assert {b - a for a, b in pairwise(before)} == {0, 1}
        assert abs(before[call.grid[0] // 2] - before[-1] / 2) <= 1


# Rows of a volume


def minus_neighbours(p: Any) -> Any:
    """The product with the matrix of seven points; cells beyond the edges are 0."""
    q = 6 * p
    for axis in range(3):
        head, tail = ((slice(None),) * axis + (own,) for own in (slice(1, None), slice(-1)))
        q[head] -= p[tail]
        q[tail] -= p[head]
    return q


def test_threads_make_whole_rows_of_a_volume_where_memory_is_what_they_wait_for() -> None:
    """Their ends are columns, of which each cell is in another line of memory."""

    def closed(p: Any) -> Any:
        q = minus_neighbours(p)
        q[:, :, 0], q[:, :, -1] = q[:, :, 1], q[:, :, -2]
        return q

    def costly(p: Any) -> Any:
        for _ in range(9):
            p = minus_neighbours(p) * p
        return p

    shape, chosen = (40, 40, 40), []
    for function in (minus_neighbours, closed, costly):
        program = whole.traced(function, [whole.field(*shape)], ("out",)).program
        chosen.append(with_whole_rows(program).whole_rows)
    # What is read at the ends alone, and many conditions, would be for every cell.
    assert chosen == [True, False, False]


def test_threads_march_where_planes_share_much_of_what_they_read() -> None:
    def directions(x: Any, r: Any, p: Any) -> Any:
        q = minus_neighbours(p)
        r = r - 2 * q
        return x + 2 * p, r, r + 3 * p

    def shifted(u: Any) -> Any:  # several planes, none of which two threads read
        return np.roll(u, 1, 0) + 1

    one = whole.field(16, 16, 16)
    for function, arrays, outputs, expected in (
        (minus_neighbours, [one], ("q",), True),
        (directions, [one] * 3, ("x", "r", "p"), False),
        (shifted, [one], ("v",), False),
    ):
        program = whole.traced(function, arrays, outputs).program
        assert pass_tile.marches(interior(program)) is expected


@needs_compiler
@pytest.mark.parametrize("tile", [(3, 1, 2), (2, 2, 1)])
def test_threads_that_march_make_whole_rows(tile: Shape, tmp_path: Path) -> None:
    field = whole.field(9, 11, 13)
    functions = minus_neighbours, whole.cube
    programs = [replace(whole.traced(one, [field], ("out",)).program, whole_rows=True) for one in functions]
    runs = compile_texts(tmp_path, programs, tile=tile, march=True)
    for program, run, function in zip(programs, runs, functions, strict=True):
        in_blocks(program, run, [field], [function(field.copy())], wraps=False)


class InParts(TextKernel):
    """Cells near the array's ends have a kernel of their own."""

    def _parts_of_pass(self, shape: Shape, *, beyond: bool) -> Sequence[single_pass.Part]:
        return "ends", "between"

    def _pass(self, shape: Shape, variant: PassVariant) -> tuple[Any, Any]:
        return next(one for one in self.compiled if one[0].part == variant.part)


@needs_compiler
@pytest.mark.parametrize("march", [True, SharedPlanes(2, (1, 2), (4, 8))])
def test_cells_near_the_ends_have_a_kernel_of_their_own(march: Any, tmp_path: Path) -> None:
    """Together, both make each cell; also what all cells combine to."""
    field = whole.field(30, 45, 48)
    wanted = whole.cube(field.copy())
    program = whole.traced(whole.cube, [field], ("out",)).program
    tile = None if isinstance(march, SharedPlanes) else (3, 1, 2)
    for one in (program, replace(program, whole_rows=True)):
        texts = [
            single_pass.emit(one, tile=tile, march=march, part="between"),
            single_pass.emit(one, march=march, part="ends"),
        ]
        folder = tmp_path / str(one.whole_rows)
        folder.mkdir()
        compiled = list(zip(texts, launchers(folder, texts), strict=True))
        in_blocks(one, InParts(one, compiled, "", 0), [field], [wanted], wraps=False)


def test_large_volumes_are_computed_in_parts() -> None:
    for shape, expected in (((512, 512, 512), 2), ((64, 64, 64), 1), ((40, 4096, 4096), 1)):
        kernel = DeviceKernel(
            whole.traced(whole.cube, [whole.field(*shape)], ("out",)).program, ((1, 1),) * 3
        )
        assert len(kernel._parts_of_pass(shape, beyond=False)) == expected
        assert kernel._parts_of_pass(shape, beyond=True) == ("",)
        widest = shared_planes.choose(kernel.program, (512, 512, 512))
        tiles = [pass_tile.choose_tile(kernel.program, shape)]
        tiles += [] if isinstance(widest, str) else [widest.block]
        assert max(map(max, tiles)) <= MOST_OF_TILE


# The interior


def program_of(function: Callable[..., Any], *shape: int, dtype: str = "f4") -> Program:
    return whole.traced(function, [whole.field(*shape, dtype=dtype)], ("out",)).program


def test_the_interior_has_no_conditions_of_edges() -> None:
    heat = program_of(whole.heat, 64, 48)
    assert ends_of(heat) == ((1, 1), (1, 1))
    assert not interior(heat).has_places
    assert interior(heat).footprint(0) == ((1, 1), (1, 1))
    assert heat.footprint(0) == ((1, 1), (2, 2))
    assert interior(heat).operations == 7


def test_what_is_no_condition_of_an_edge_stays_in_the_interior() -> None:
    def source(u):
        u[30, 20] += 1
        u[1:-1:2] = 0
        return u

    program = program_of(source, 64, 48)
    assert ends_of(program) == ((1, 2), (0, 0))
    kept = {node.value for node in interior(program).conditions}
    assert kept == {(0, 30, 31, 1), (1, 20, 21, 1), (0, 1, 62, 2)}


def test_shifts_have_no_conditions() -> None:
    for function in (whole.life, lambda u: np.roll(np.roll(u, 3, 0) * 2, -2, 1)):
        program = program_of(function, 64, 48, dtype="u1")
        assert not program.has_places
        assert program.lengths == ()


def test_functions_of_the_platform_are_computed_where_conditions_are_not_decided() -> None:
    """Else cells of the interior would have NumPy's last bits, and others the device's."""

    def raised(u):
        factor = np.zeros_like(u)
        factor[2:-2] = 0.3
        return u * np.exp(factor)

    inner = interior(program_of(raised, 64, 48))
    assert any(node.op == "exp" for node in inner.nodes)


@needs_compiler
def test_scalars_are_read_from_their_slots(tmp_path: Path) -> None:
    graph = Graph()
    cell, factor = graph.load(0, F4, (0, 0)), graph.scalar(2, F4)
    scaled = graph.operation("multiply", F4, [cell, factor])
    inside = graph.inside(0, 0, 2)
    edge = graph.operation("cast", F4, [graph.scalar(0, F8)])
    chosen = graph.operation("where", F4, [inside, edge, scaled])
    flagged = graph.operation("where", F4, [graph.scalar(1, BOOL), chosen, cell])
    program = Program(2, (Operand("u", F4),), (Operand("v", F4),), ((flagged,),), graph, lengths=(20, 24))
    assert program.scalars == 3
    slots = np.zeros(3, np.int64)
    slots[:1].view(F8)[0], slots[1:2].view(BOOL)[0], slots[2:].view(F4)[0] = 0.5, True, 3
    block, wanted = whole.field(20, 24, dtype="f4"), np.empty((20, 24), F4)
    wanted[...] = block * np.float32(3)
    wanted[:2] = 0.5
    assert np.array_equal(evaluate(program, [block], ((0, 0), (0, 0)), (0, 0), slots)[0], wanted)
    for run in (*compile_loops(tmp_path, [program]), *compile_texts(tmp_path, [program])):
        out = np.empty((20, 24), F4)
        run([block], [out], (0, 0), slots)  # type: ignore[call-arg]
        assert np.array_equal(out, wanted)


def test_a_kernel_refuses_arrays_without_scalars() -> None:
    graph = Graph()
    program = Program(1, (), (Operand("v", F4),), ((graph.scalar(0, F4),),), graph)
    with pytest.raises(ValueError, match="1 scalars"):
        pass_launch.launch_arguments(single_pass.emit(program), [], [np.zeros(8, F4)], ((0, 0),))
