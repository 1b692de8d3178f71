"""Chains of stages of few cells, on the host and as a GPU's one block of threads: the bits of NumPy."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fused import FLAGS, GXX
from nvrtc_log import log_of_text

from meshrun.runner.compiler.compiled import CHAIN_THREADS
from meshrun.runner.compiler.whole import chain_code
from meshrun.runner.programs import chains, execute, replicas
from meshrun.runner.programs.stages import StagedProgram
from tests.facts.program_runs import plain, planned, run_program
from tests.unit.programs.test_levels import cell_cycle, cycle, field

needs_compiler = pytest.mark.skipif(GXX is None, reason="needs a C++ compiler")


def chained(program: StagedProgram) -> list[list[int]]:
    return chains.chains_of(program, "cpu", set(), ())


def check(function: Any, *arrays: Any, names: Any = ("out",), kind: str = "cpu", grid: Any = (1, 1)) -> None:
    """Compare the results of compiled stages with NumPy's, to the bit."""
    program = planned(function, arrays, names, kind)
    found = run_program(program, arrays, grid[: len(program.space)], compiled=True)
    for one, want in zip(found, plain(function, arrays), strict=True):
        np.testing.assert_array_equal(one, want)


@needs_compiler
def test_a_cycle_is_one_call() -> None:
    u, f = field(33, 17), field(33, 17, seed=1)
    program = planned(cycle, [u, f], ("out",))
    assert chained(program) == [[*range(len(program.stages))]]
    check(cycle, u, f)


def shapes(u, v):
    """Vectors, integers, places, values and faces."""
    w = np.zeros_like(u)
    w[1:-1] = u[2:] - u[:-2] * np.arange(u.shape[1])[:, None]
    for _ in range(3):
        w[:, 1:-1] = np.abs(w[:, 2:]) * 2 + np.sqrt(np.abs(w[:, :-2]) + w[:, 1:-1] ** 2)
        w[2:-1] = w[1:-2] + w[3:] * np.sqrt(np.abs(w[2:-1]))
    v[1:-1] += v[2:] // 3 + (w[1:-1, :, 0] > 1)
    return w, v


@needs_compiler
def test_vectors_and_integers() -> None:
    u = field(12, 9, 3, dtype="f8")
    v = np.random.default_rng(1).integers(-9, 9, (12, 9)).astype("i4")
    check(shapes, u, v, names=("w", "v"))


def lines(u):
    for number in range(6):
        u[1:-1] = np.sqrt(u[:-2] * u[2:] + number) * u[1:-1]
        u[0] = u[-1]
    return u


def volumes(u):
    c = u[::2, ::2, ::2] * 2
    for _ in range(3):
        c[1:-1, :, 1:-1] = np.sqrt(c[2:, :, 1:-1] + c[:-2, :, 1:-1] * c[1:-1, :, 2:] + 3) - c[1:-1, :, :-2]
    return u + np.repeat(np.repeat(np.repeat(c, 2, axis=0), 2, axis=1), 2, axis=2)


@needs_compiler
def test_lines_and_volumes() -> None:
    check(lines, field(40))
    check(volumes, field(8, 6, 12), grid=(1, 1, 1))


@needs_compiler
def test_what_a_chain_writes_is_exchanged_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of a run on several ranks writes arrays that are split, whose halo a later stage reads."""
    monkeypatch.setattr(replicas, "MOST_CELLS", {"cpu": 200})
    u, f = field(33, 33), field(33, 33, seed=1)
    program = planned(cycle, [u, f], ("out",))
    (found,) = run_program(program, [u, f], (2, 1), compiled=True, before=[u * 3, f - 1])
    np.testing.assert_array_equal(found, plain(cycle, [u, f])[0])


def test_what_no_chain_computes() -> None:
    """Stages that are large, that exchange cells, of complex numbers, or whose cells are reduced."""

    def swept(u):
        for _ in range(3):
            u[1:-1] = np.sqrt(u[2:] * u[:-2] + 1)
        return u

    u = field(40, 30)
    assert chained(planned(swept, [u], ("out",)))
    assert not chained(planned(swept, [field(300, 300)], ("out",)))
    assert not chained(planned(swept, [u + 1j], ("out",)))
    program = planned(swept, [u], ("out",))
    assert not chains.chains_of(program, "cpu", set(range(len(program.arrays))), ())

    def rolled(u):
        for _ in range(3):
            u = np.sqrt(np.roll(u, 1, axis=0) * np.roll(u, -1, axis=0) + u)
        return u

    program = planned(rolled, [u], ("out",))
    wraps = [number for number, one in enumerate(program.arrays) if one.wraps]
    assert not chains.chains_of(program, "cpu", wraps, ())


def test_a_gpus_chain_has_the_smallest_levels() -> None:
    """A stage that one block of threads computes for longer than a launch takes has a launch of its own."""
    program = planned(cycle, [field(257, 257), field(257, 257)], ("out",), "cuda")
    chain = max(chains.chains_of(program, "cuda", set(), ()), key=len)
    work = [chains.operations_of(stage.cells, program.space) for stage in program.kernels]
    assert len(chain) > 15
    assert max(work[number] for number in chain) <= chains.MOST_OPERATIONS
    assert work[chain[0] - 1] > chains.MOST_OPERATIONS < work[chain[-1] + 1]


def test_a_chain_ends_after_so_many_stages() -> None:
    """Of 2-D arrays, what a GPU's block of threads is given of their stages fits its shared memory."""

    program = planned(cycle, [field(9, 9), field(9, 9)], ("out",), bottom=120)
    found = chained(program)
    assert sum(map(len, found)) == len(program.stages) > chains.MOST_STAGES
    assert max(map(len, found)) == chains.MOST_STAGES
    stages = [[one.program.program for one in chains.kernels_of(program.kernels[n].cells)] for n in found[0]]
    source = chain_code.chain_source(stages, 1024)
    shared = [int(size) for size in re.findall(r"__shared__ \w+ \w+\[(\d+)\]", source)]
    assert 8 * sum(shared) < 48 << 10


CUDA = """
#define __global__
#define __shared__
#define __launch_bounds__(...)
static thread_local struct { unsigned x, y; } threadIdx, blockIdx, blockDim = {1, 1}, gridDim = {1, 1};
#define __syncthreads()
extern "C" void block(unsigned y) { blockIdx.y = y; }
"""


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Chains as a GPU computes them, by blocks of one thread, on the host. Return how many of them."""
    found: list[Any] = []

    def compiled(programs: Any, _cells: int, _backend: Any) -> chain_code.Chain:
        text, made = (
            tmp_path / f"chain{len(found)}.cpp",
            tmp_path / f"chain{len(list(tmp_path.iterdir()))}.so",
        )
        text.write_text(CUDA + chain_code.chain_source(programs, 1))
        subprocess.run([str(GXX), *FLAGS, "-o", str(made), str(text)], check=True)
        library = ctypes.CDLL(str(made))

        def launch(grid: Any, block: Any, arguments: Any) -> None:
            found.append((grid, block))
            for box in range(grid[1]):
                library.block(box)
                library.chain(*(ctypes.c_ulonglong(int(one)) for one in arguments))

        boxes = len(programs[0]) if len(programs) == 1 else 1
        return chain_code.Chain(launch, np, (1, boxes), 1)

    monkeypatch.setattr(execute, "compile_chain", compiled)
    return found


@needs_compiler
@pytest.mark.parametrize("function", [cycle, cell_cycle])
def test_the_kernel_of_a_gpu(function: Any, launches: list[Any]) -> None:
    size = 33 if function is cycle else 32
    check(function, field(size, size), field(size, size, seed=1), kind="cuda")
    assert launches == [((1, 1), (1, 1))]


@needs_compiler
def test_the_boxes_of_a_stage_are_computed_at_once(
    launches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a correction of an odd number of rows: whole blocks, a row, and a column of every second row."""
    monkeypatch.setattr(chains, "MOST_OPERATIONS", 0)
    monkeypatch.setattr(
        execute, "chains_of", lambda program, _kind, *given: chains.chains_of(program, "cuda", *given)
    )
    check(cycle, field(9, 9), field(9, 9, seed=1), kind="cuda")
    assert {grid[1] for grid, _ in launches} == {4}


def test_the_kernel_of_a_gpu_compiles() -> None:
    """Without spilled registers. Each thread of a large block has 128."""
    program = planned(cell_cycle, [field(16, 16), field(16, 16)], ("out",), "cuda")
    stages = [stage.cells for stage in program.kernels]
    programs = [[one.program.program for one in chains.kernels_of(cells)] for cells in stages]
    several = next(one for one in programs if len(one) > 1)
    for source in (chain_code.chain_source(programs, CHAIN_THREADS), chain_code.chain_source([several], 128)):
        log = log_of_text(source, "chain", ("--fmad=false",), "90")
        assert "warning" not in log
        assert "0 bytes spill stores" in log
