"""The program of a task's function: traced, and compared with the function on a small block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrun.runner.compiler.block_function import BlockFunction
from meshrun.runner.compiler.operations import inexact_operations
from meshrun.runner.compiler.passes.beyond import with_rules
from meshrun.runner.compiler.result_type import hide_output
from meshrun.runner.compiler.samples import samples
from meshrun.runner.compiler.trace.array import MOST_COMPONENTS
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Extents, Node, Operand, Program, in_order
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.device.api import poisoned
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError
from meshrun.runner.job.block_context import BlockContext
from meshrun.runner.job.series import Series
from meshrun.runner.job.signature import STEP
from meshrun.runner.plan.beyond import check_tables as check_boundary_tables
from meshrun.runner.plan.task import ArrayType, Task
from meshrun.runner.region import HostArray, real_dtype

CHECKED = 11  # cells along each axis of the block on which a trace is compared with the function


def traced(task: Task) -> Program:
    """Return the program that the task's function computes for each own cell. Raises NotTraceable.

    Check the program: on a small block, NumPy's results for it must equal the function's. A function of whole
    arrays was traced for their shapes, before it became one of blocks.
    """
    if isinstance(task.job.function, BlockFunction):
        return task.job.function.program
    with hide_output(failures=False):
        program = trace_of(task)
        _check(task, program)
    if not task.declared_boundary:
        return program
    axes, rules = program.axes, [field.rules for field in task.fields]
    return with_rules(program, rules, task.shape[:axes], task.widths[:axes], task.parameters)


def trace_of(task: Task) -> Program:
    """Return the program that a call of the task's function on traced arrays records. Raises NotTraceable.

    It may be wrong for a function that takes more than its arguments; see `traced`.
    """
    job = task.job
    axes = grid_axes(task)
    if any(
        shape[: task.leading] != task.shape[: task.leading] for shape, _ in task.declared(task.shape) or ()
    ):
        raise NotTraceable("returns a result of another size than its input")
    inputs = tuple(
        Operand(
            field.name,
            np.dtype(field.dtype.newbyteorder("=")),
            field.shape[axes:],
            repeated=None if field.given is None else (len(field.given), field.repeated),
        )
        for field in task.fields
    )
    declared = None
    if job.out is not None or "out" in job.services:
        declared = [
            Operand(name, dtype, shape[axes:])
            for name, (shape, dtype) in zip(job.output_names, task.declared(task.shape) or (), strict=True)
        ]
    outs = declared if "out" in job.services else None
    names = job.output_names
    program = trace(
        job.function, inputs, task.widths[:axes], task.parameters, job.services, names, outs, task.shape
    )
    if any(one.components == 0 for one in program.outputs):
        raise NotTraceable("returns no elements")
    if declared is not None and tuple(declared) != program.outputs:
        raise NotTraceable("returns another dtype or shape than out= declares")
    return program


def check_tables(task: Task, steps: int) -> None:
    """Raise UserError if so many steps take rows beyond the end of a table in time.

    For a function that cannot be traced, as far as it can be.
    """
    job, tape = task.job, task.job.tape
    check_boundary_tables([field.rules for field in task.fields], task.parameters, steps)
    if tape is None and STEP in job.services:
        try:
            with hide_output(failures=False):
                tape = trace_of(task).tape
        except NotTraceable as reason:
            tape = reason.tape
            _try_last_step(task, steps)
    if tape is not None:
        tape.check(steps)


def _try_last_step(task: Task, steps: int) -> None:
    """Call a function that cannot be traced on a small array in the last step, which may need long tables."""
    if not any(parameter.type is Series for parameter in task.job.parameters) or 0 in task.shape:
        return
    sample = next(samples(task))
    shape, blocks = sample.task.shape, [block.copy() for block in sample.padded]
    here = BlockContext(0, 1, "", (0,) * len(shape), shape, shape, None, np, steps - 1)
    try:
        with hide_output(failures=False), np.errstate(all="ignore"):
            sample.task.call(blocks, here, poisoned(CpuBackend(), sample.task.filled(shape)))
    except IndexError as reason:
        raise UserError(
            f"job {task.job.name}: step {steps - 1:,} cannot be taken",
            why=str(reason),
            hint="a longer table in time, or fewer steps",
            everywhere=True,
        ) from reason
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a user's function may raise anything; the run shows it
        return


def reads_of(task: Task, program: Program) -> tuple[tuple[Extents, ...], ...]:
    """Return for each output how far from the own cell each input is read, per axis of the input."""

    def of(results: Sequence[Node], place: int) -> Extents:
        loads = [node for node in in_order(results) if node.op == "load" and node.input == place]
        read = tuple(
            (max([0, *(-at for at in offsets)]), max([0, *offsets]))
            for offsets in ([one.offset[axis] for one in loads] for axis in range(program.axes))
        )
        return read + ((0, 0),) * (len(task.fields[place].shape) - program.axes)

    return tuple(
        tuple(of(results, place) for place in range(len(task.fields))) for results in program.results
    )


def grid_axes(task: Task) -> int:
    """Return the number of grid axes: leading axes along which all cells are computed alike.

    The other axes are short: each of their elements has operations of its own. Raises NotTraceable.
    """
    common = min(len(field.shape) for field in task.fields)
    first = task.fields[0].shape
    for axes in range(max(task.leading, 1), common + 1):
        shapes = [field.shape for field in task.fields]
        if any(shape[:axes] != first[:axes] for shape in shapes):
            break
        if all(math.prod(shape[axes:]) <= MOST_COMPONENTS for shape in shapes):
            return axes
    raise NotTraceable(f"has inputs of different shapes, or more than {MOST_COMPONENTS} elements per cell")


def output_types(task: Task, program: Program) -> tuple[ArrayType, ...]:
    """Return the shape and dtype of each output array."""
    return tuple((task.shape[: program.axes] + one.trailing, one.dtype) for one in program.outputs)


def _check(task: Task, program: Program) -> None:
    """Raise NotTraceable if the function and its trace disagree on a small block."""
    widths = task.widths[: program.axes]
    cells = tuple(CHECKED + axis + sum(width) for axis, width in enumerate(widths))
    if "here" in task.job.services:  # no cells beyond the array
        cells = tuple(min(n, m + sum(w)) for n, m, w in zip(cells, task.shape, widths, strict=False))
    blocks = random_blocks(task, program, cells)
    own = tuple(n - sum(width) for n, width in zip(cells, widths, strict=True))
    outs = [np.zeros(own + one.trailing, one.dtype) for one in program.outputs]
    first = (0,) * program.axes
    expected = evaluate(program, blocks, widths, first, program.tape.row(0))
    here = BlockContext(
        0, 1, "", (0,) * len(task.shape), own + task.shape[program.axes :], task.shape, None, np
    )
    services = {"out": outs[0] if len(outs) == 1 else tuple(outs), "xp": np, STEP: 0, "here": here}
    wanted = {name: services[name] for name in task.job.services}
    with np.errstate(all="ignore"):
        try:
            given = (field.as_given(block) for field, block in zip(task.fields, blocks, strict=True))
            found = task.job.function(*given, **wanted, **task.parameters)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as reason:  # a user's function may raise anything
            raise NotTraceable(f"raises {type(reason).__name__} on a small block: {reason}") from None
    if found is None:
        found = tuple(outs)
    results = found if isinstance(found, (tuple, list)) else (found,)
    # NumPy's own products of complex numbers differ in last bits from one array's layout to another's.
    close = any(node.dtype.kind == "c" for node in program.nodes) and bool(inexact_operations(program.nodes))
    if len(results) != len(expected) or not all(
        _same(one, other, close=close) for one, other in zip(results, expected, strict=True)
    ):
        raise NotTraceable("computes something else when it is traced")


def random_blocks(task: Task, program: Program, cells: Sequence[int]) -> list[HostArray]:
    """Return a block of random values for each input of a task's program. cells: per grid axis."""
    rng, blocks = np.random.default_rng(0), []
    for one, field in zip(program.inputs, task.fields, strict=True):
        shape = *cells, *one.trailing
        own_cells = tuple(1 if axis in field.repeated else n for axis, n in enumerate(shape))
        blocks.append(np.array(np.broadcast_to(_sample(rng, own_cells, one.dtype), shape)))
    return blocks


def _sample(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
    if dtype.kind == "c":
        return _sample(rng, (*shape, 2), real_dtype(dtype)).view(dtype)[..., 0]
    if dtype.kind == "f":
        return rng.normal(0.5, 2, shape).astype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def _same(result: Any, expected: HostArray, *, close: bool) -> bool:
    """Return whether a result is what a trace computes. close: its last bits may differ."""
    if not isinstance(result, np.ndarray):
        return False
    if (result.dtype, result.shape) != (expected.dtype, expected.shape):
        return False
    if close and expected.dtype.kind in "fc":
        few = 64 * float(np.finfo(expected.dtype).eps)
        return bool(np.allclose(result, expected, rtol=few, atol=few, equal_nan=True))
    return bool(np.array_equal(result, expected, equal_nan=expected.dtype.kind in "fc"))
