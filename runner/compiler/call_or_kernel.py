"""Whether a kernel on the host is slower than the function that it replaces. Measured once, where it may be.

A kernel saves the memory traffic between operations. But NumPy has faster loops of some functions, and a
kernel that keeps no rows of costly values computes them again for each cell that reads them.
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
from meshrun.runner.compiler.passes.branches import Conditions, common_path
from meshrun.runner.compiler.passes.ends import interior
from meshrun.runner.compiler.passes.kept_rows import is_costly, is_scalar, kept_rows
from meshrun.runner.compiler.result_type import hide_output
from meshrun.runner.compiler.traced import random_blocks
from meshrun.runner.plan.task import Task, TaskKernel
from meshrun.runner.system import cached_files
from meshrun.runner.system.compiler import find_compiler

CHEAP = 6  # operations whose memory traffic takes NumPy longer than a costly one takes a kernel longer
CELLS = 1 << 22  # of a sample: NumPy's temporaries in it are as slow as in larger arrays
ROW = 1024  # cells of a sample's row
ROUNDS = 3
CLEARLY = 1.05  # times as fast; last bits should not follow from noise
SURELY = 2  # times as fast; one round suffices


def may_be_slower(task: Task, kernel: TaskKernel | None) -> bool:
    """Return whether a kernel may be slower than the function: then `is_slower` measures it.

    Not for functions that need to be told where their block is.
    """
    if not isinstance(kernel, HostKernel) or isinstance(task.job.function, BlockFunction):
        return False
    if not set(task.job.services) <= {"xp"} or kernel.program.has_places or kernel.program.scalars:
        return False
    program = interior(kernel.program)
    if any(map(is_scalar, program.nodes)):
        return True
    stored, kept = (program, []) if common_path(program) else kept_rows(program)
    computed = [*stored.nodes, *(node for rows in kept for node in rows.program.nodes)]
    costly = [node for node in computed if is_costly(node)]
    moved = Conditions(stored.graph)
    again = len({moved(node) for node in costly}) < len(costly)
    cheap = {moved(node) for node in computed if node.operands and node not in costly}
    return again or len(costly) * CHEAP > len(cheap)


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
    answer = b"call" if CLEARLY * seconds[1] < seconds[0] else b"kernel"
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
        rounds: list[tuple[float, float]] = []
        while len(rounds) < ROUNDS and not (rounds and max(rounds[0]) > SURELY * min(rounds[0])):
            rounds.append((_timed(run), _timed(call)))
    return min(kernel for kernel, _ in rounds), min(called for _, called in rounds)


def _timed(call: Callable[[], None]) -> float:
    """Return the processor time of a call: other processes do not count."""
    before = time.thread_time()
    call()
    return time.thread_time() - before
