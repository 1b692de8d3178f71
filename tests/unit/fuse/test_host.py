"""Programs compiled for the host compute what the plain function computes, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fuse_programs import Sample, sample
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.fuse.evaluate import evaluate
from runner.fuse.graph import Program
from runner.fuse.host import Kernel, library, source
from runner.fuse.trace import NotTraceable, trace
from runner.region import HostArray
from runner.system.compiler import Compiler

OWN = {1: (71,), 2: (5, 37), 3: (3, 4, 21)}  # cells of each number of axes: whole vectors, and a rest
BATCH = 25  # programs of one library
REFUSED = ("raises an integer to a power", "adds ", "raises OverflowError")  # of what NumPy computes


def same(found: HostArray, expected: HostArray) -> bool:
    """Whether two arrays have the same bits; one NaN is as good as another."""
    found, expected = np.ascontiguousarray(found), np.ascontiguousarray(expected)
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return False
    bits = f"u{found.itemsize}"
    return bool(
        ((found.view(bits) == expected.view(bits)) | ((found != found) & (expected != expected))).all()
    )


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


def computed(kernel: Kernel, blocks: list[HostArray], widths: tuple[tuple[int, int], ...]) -> list[HostArray]:
    axes = kernel.program.axes
    own = tuple(n - low - high for n, (low, high) in zip(blocks[0].shape, widths, strict=False))
    outs = [np.full((*own, *one.trailing), 77).astype(one.dtype) for one in kernel.program.outputs]
    assert len(own) == axes
    kernel.run(blocks, outs, widths)
    return outs


@settings(max_examples=max(settings.default.max_examples // 10, 1))
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
            assert reason.reason.startswith(REFUSED), f"{reason}\n{one.text}"
    loaded = library(source([program for _, _, program in taken]), compiler, None)
    for number, (one, blocks, program) in enumerate(taken):
        results = one(blocks), evaluate(program, blocks, one.widths), computed(
            Kernel(program, loaded, number), blocks, one.widths
        )  # fmt: skip
        kinds = [(operand.dtype.str, operand.trailing) for operand in one.inputs]
        for plain, by_numpy, by_host in zip(*results, strict=True):
            assert same(by_numpy, plain), f"the trace of\n{one.text}on {kinds}, seed {first + number}"
            assert same(by_host, plain), f"the code of\n{one.text}on {kinds}, seed {first + number}"
