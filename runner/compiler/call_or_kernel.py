"""Whether a kernel on the host is slower than the function that it replaces. Measured once, where it may be.

A kernel computes a value anew for each cell that reads it, and NumPy once for each cell: for most operations
the memory traffic of NumPy costs more, for slow ones it may not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from meshrun.runner.compiler.block_function import BlockFunction
from meshrun.runner.compiler.compiled import HostKernel
from meshrun.runner.compiler.cpp.source import source
from meshrun.runner.compiler.operations import INEXACT, whole_exponent
from meshrun.runner.compiler.passes.branches import Conditions
from meshrun.runner.compiler.passes.ends import interior
from meshrun.runner.compiler.result_type import hide_output
from meshrun.runner.compiler.traced import random_blocks
from meshrun.runner.plan.task import Task, TaskKernel
from meshrun.runner.system import cached_files
from meshrun.runner.system.compiler import find_compiler

SLOW = INEXACT | {"floor_divide", "remainder", "fmod"}
NO_VECTORS = frozenset(["floor_divide", "remainder", "fmod"])  # no loop of these is vectorised
CELLS, ROW = 1 << 17, 1024  # of a sample, and of its rows
ROUNDS = 3


def may_be_slower(task: Task, kernel: TaskKernel | None) -> bool:
    """Return whether a kernel may be slower than the function: then `is_slower` measures it.

    Not for functions that need to be told where their block is.
    """
    if not isinstance(kernel, HostKernel) or isinstance(task.job.function, BlockFunction):
        return False
    if not set(task.job.services) <= {"xp"} or kernel.program.has_places or kernel.program.scalars:
        return False
    program = interior(kernel.program)
    moved = Conditions(program.graph)
    slow = [node for node in program.nodes if node.op in SLOW and not whole_exponent(node)]
    # Powers of integers are loops of their own.
    scalar = any(
        node.op in NO_VECTORS or (node.op == "power" and node.dtype.kind in "iu") for node in program.nodes
    )
    return scalar or len({moved(node) for node in slow}) < len(slow)


def is_slower(task: Task, kernel: TaskKernel | None, folder: Path | None) -> bool:
    """Return whether calls of the function take less time than the kernel, on one processor.

    As an earlier run measured it, or this one, which keeps the answer in the folder: last bits of functions
    such as `exp` follow from it. If nothing can be kept there, nothing is measured, and the answer is no.
    """
    compiler = find_compiler()
    if compiler is None or not isinstance(kernel, HostKernel):
        return False
    size = str(math.ceil(math.log2(max(math.prod(task.shape), 1))))
    words = [source([kernel.program]), compiler.path, compiler.version, np.__version__, size]
    path = cached_files.path_of(folder, words, ".slower")
    kept = cached_files.read(path)
    if kept in (b"kernel", b"call"):
        return kept == b"call"
    if path is None:
        return False
    seconds = _seconds(task, kernel)
    answer = b"call" if seconds[1] < seconds[0] else b"kernel"
    return cached_files.keep(path, answer) is not None and answer == b"call"


def _seconds(task: Task, kernel: HostKernel) -> tuple[float, float]:
    """Return the time of the kernel and of the function for a sample, on one processor."""
    program, loops = kernel.program, kernel.loops
    assert loops is not None
    own = [1] * program.axes
    own[-1] = min(task.shape[program.axes - 1], ROW)
    own[0] = max(min(task.shape[0], CELLS // math.prod(own)), 1) if program.axes > 1 else own[0]
    for axis in range(1, program.axes - 1):
        own[axis] = max(min(task.shape[axis], round(math.sqrt(CELLS // ROW))), 1)
        own[0] = max(own[0] // own[axis], 1)
    widths = task.widths[: program.axes]
    blocks = random_blocks(task, program, [n + sum(width) for n, width in zip(own, widths, strict=True)])
    outs = [np.empty((*own, *one.trailing), one.dtype) for one in program.outputs]
    wanted = {"xp": np} if "xp" in task.job.services else {}

    def call() -> None:
        given = (field.as_given(block) for field, block in zip(task.fields, blocks, strict=True))
        task.job.function(*given, **wanted, **task.parameters)

    run = loops.bind(blocks, outs, widths)
    with hide_output(failures=False), np.errstate(all="ignore"):
        rounds = [(_timed(run), _timed(call)) for _ in range(ROUNDS)]
    return min(kernel for kernel, _ in rounds), min(called for _, called in rounds)


def _timed(call: Callable[[], None]) -> float:
    """Return the processor time of a call: other processes do not count."""
    before = time.thread_time()
    call()
    return time.thread_time() - before
