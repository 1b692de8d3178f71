"""A pass that also stores the cells beyond the ends of axes, run on the host by all its threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fused import GXX, cases, example, launchers, same, widths_of
from nvrtc_log import log_of
from step_runs import PAD, beyond_ends

from meshrun.runner.compiler.cuda.beyond import Beyond, Sides, cells_beyond
from meshrun.runner.compiler.cuda.pass_launch import launch_arguments
from meshrun.runner.compiler.cuda.single_pass import PassKernel, emit, finds_ends
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Graph, Operand, Program
from meshrun.runner.plan.halo import source_index

needs_compiler = pytest.mark.skipif(GXX is None, reason="needs g++")


def far(dtype: str = "float32") -> tuple[Program, list[int]]:
    """Two fields that read each other from afar, further on one side of each axis than on the other."""
    graph, kind = Graph(), np.dtype(dtype)
    first = [graph.load(0, kind, offset) for offset in ((-1, 0), (3, 0))]
    first += [graph.load(1, kind, offset) for offset in ((-2, 0), (-1, -1))]
    second = [graph.load(0, kind, (0, 2)), graph.load(1, kind, (0, 0))]
    totals = []
    for loads in (first, second):
        total = loads[0]
        for one in loads[1:]:
            total = graph.operation("add", kind, [total, one])
        totals.append((total,))
    operands = [tuple(Operand(f"{name}{n}", kind) for n in range(2)) for name in "io"]
    return Program(2, operands[0], operands[1], tuple(totals), graph), [1, 0]


def programs() -> dict[str, tuple[Program, list[int]]]:
    return {
        "heat": (example("heat", "float32"), [0]),
        "heat of halves": (example("heat", "float16"), [0]),
        "life": (example("life", "uint8"), [0]),
        "lattice": (example("lattice", "float32", 2), [*range(9)]),
        "far": far(),
    }


AROUND = 4  # cells of memory on each side of the own ones


def padded_outs(outs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return for each output memory with cells beyond the ends, all poison, and the view of its own cells."""
    memory, inner = [], (slice(AROUND, -AROUND),) * outs[0].ndim
    for out in outs:
        memory.append(np.zeros([n + 2 * AROUND for n in out.shape], out.dtype))
        memory[-1].view(np.uint8)[...] = 0xA5
    return memory, [one[inner] for one in memory]


def expected_memory(memory: Any, result: Any, widths: Any, boundary: str, sides: Sides) -> Any:
    """Return what the memory of an output must hold: own rows, and copies of them at these sides."""
    found = memory.copy()
    low, high = (width if side else 0 for width, side in zip(widths, sides, strict=True))
    for row in range(-low, len(result) + high):
        found[AROUND + row, AROUND:-AROUND] = result[source_index(row, len(result), boundary) or 0]
    return found


def run_and_compare(
    kernel: PassKernel, launch: Any, beyond: Beyond, own: tuple[int, ...], sides: Sides
) -> None:
    program, boundary = kernel.program, beyond.boundary
    widths = widths_of(program)
    blocks, outs = cases(program, own, 1)
    filled = [beyond_ends(block, boundary, widths) for block in blocks]
    memory, targets = padded_outs(outs)
    wanted = [
        expected_memory(one, result, of_output, boundary, sides)
        for one, result, of_output in zip(
            memory, evaluate(program, filled, widths), beyond.widths, strict=True
        )
    ]
    call = launch_arguments(kernel, filled, targets, widths, sides=sides)
    launch(call.grid, call.block, call.arguments)
    for one, other in zip(memory, wanted, strict=True):
        same(one, other)


@needs_compiler
@pytest.mark.parametrize("boundary", PAD)
def test_a_pass_stores_the_cells_beyond_the_ends(boundary: str, tmp_path: Path) -> None:
    """Short and long axes, each side or neither: the cells are NumPy's, and nothing else is written."""
    made: list[Any] = []
    for program, feeds in programs().values():
        beyond = cells_beyond(program, feeds, boundary)
        for lengths in ((5, 7), (11, 70)):
            row = lengths[-1] if finds_ends(program, boundary, lengths[-1]) else 0
            ends = boundary if row else ""
            made.append((beyond, lengths, emit(program, lengths=lengths, ends=ends, beyond=beyond)))
    for (beyond, lengths, kernel), launch in zip(
        made, launchers(tmp_path, [kernel for *_, kernel in made]), strict=True
    ):
        for sides in ((False, True), (True, False), (True, True)):
            run_and_compare(kernel, launch, beyond, lengths, sides)


def test_what_is_read_beyond_the_ends_is_what_the_next_pass_reads() -> None:
    program, feeds = far()
    found = cells_beyond(program, feeds, "wrap")
    assert found == Beyond("wrap", ((2, 0), (1, 3)))
    assert [found.copies, found.margin] == [3, 3]
    repeated = Beyond("nearest", found.widths)
    assert [repeated.copies, repeated.margin] == [7, 3]
    assert Beyond("mirror", found.widths).margin == 4
    assert cells_beyond(program, feeds, "constant") is None
    assert cells_beyond(example("axpy", "float64"), [0], "wrap") is None
    assert cells_beyond(example("seven_point", "float64", 3), [0], "wrap") is None


def test_the_kernel_of_steps_is_compiled_when_it_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """And launched by a pass that stores beyond some side; one that stores nothing is another kernel."""
    compiled: list[bool] = []

    def compile_source(kernel: DeviceKernel, source: str, name: str, shared: int) -> Any:
        compiled.append("copy_beyond" in source)
        return lambda *launch, shared_mem: None

    monkeypatch.setattr(DeviceKernel, "_compiled", compile_source)
    monkeypatch.setattr(DeviceKernel, "most_steps", 1)
    program = example("heat", "float32")
    kernel = DeviceKernel(program, widths_of(program), feeds=(0,), boundary="wrap", row=70)
    kernel.prepare((11, 70))
    blocks, outs = cases(program, (11, 70), 0)
    kernel.bind(blocks, outs, (0, 0), sides=(True, True))
    assert compiled == [True]
    kernel.bind(blocks, outs, (0, 0))
    assert compiled == [True, False]
    plain = DeviceKernel(program, widths_of(program), feeds=(0,), boundary="constant", row=70)
    plain.prepare((11, 70))
    assert compiled == [True, False, False]


def test_blocks_of_other_lengths_with_the_same_tile_share_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the blocks of several steps between two exchanges, each of which is longer than the next."""
    texts: list[str] = []

    def compile_source(kernel: DeviceKernel, source: str, name: str, shared: int) -> Any:
        texts.append(source)
        return lambda *launch, shared_mem: None

    monkeypatch.setattr(DeviceKernel, "_compiled", compile_source)
    program = example("seven_point", "float32", 3)
    kernel = DeviceKernel(program, widths_of(program), feeds=(0,), boundary="wrap", row=70)
    for planes in (64, 66, 68):
        kernel.prepare((planes, 70, 70))
    assert len(texts) == 1
    kernel.prepare((2, 70, 70))  # a shorter tile
    assert len(texts) == len(set(texts)) == 2


@pytest.mark.parametrize("name", ["heat", "lattice"])
def test_it_compiles_and_spills_nothing(name: str) -> None:
    program = example(name, "float32", 2)
    feeds = [*range(len(program.outputs))]
    log = log_of(emit(program, ends="wrap", beyond=cells_beyond(program, feeds, "wrap")), "90")
    assert "warning" not in log
    assert "0 bytes stack frame, 0 bytes spill stores" in log
