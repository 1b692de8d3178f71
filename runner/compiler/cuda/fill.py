"""Fill arrays of a GPU by one kernel that is made of a plain function: for jobs that always want one."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from meshrun.runner.region import Array
from meshrun.runner.spelling import option
from meshrun.runner.system.compiler import NotCompiled

if TYPE_CHECKING:
    from meshrun.runner.compiler.compiled import DeviceKernel
    from meshrun.runner.compiler.trace.graph import Extents, Operand


def fill(
    function: Callable[..., None],
    blocks: Sequence[Array],
    outs: Sequence[Array],
    widths: Extents,
    **parameters: Any,
) -> None:
    """Do what `function(*blocks, out=outs, **parameters)` does, on device arrays, by one kernel.

    function: of a module; it can be traced, and fills `out`: an array, or a tuple of several. blocks: with
    their halo; outs: of own cells. Rows of either may be apart in memory. widths: of the halo, per leading
    axis; further axes have none. parameters: hashable; constants of the kernel. Raises NotTraceable, and
    NotCompiled if the compiler fails.
    """
    from meshrun.runner.compiler.trace.array import MOST_COMPONENTS
    from meshrun.runner.compiler.trace.graph import Operand

    if outs[0].size == 0:
        return
    if any(math.prod(one.shape[len(widths) :]) > MOST_COMPONENTS for one in (*blocks, *outs)):
        widths = (*widths, *[(0, 0)] * (outs[0].ndim - len(widths)))
    axes = len(widths)
    inputs = tuple(Operand(f"block{n}", one.dtype, one.shape[axes:]) for n, one in enumerate(blocks))
    outputs = tuple(Operand(f"out{n}", one.dtype, one.shape[axes:]) for n, one in enumerate(outs))
    device = getattr(getattr(outs[0], "device", None), "id", 0)
    kernel = kernel_of(function, inputs, outputs, widths, tuple(sorted(parameters.items())), device)
    try:
        kernel(blocks, outs, (0,) * axes)
    except NotCompiled as failure:
        failure.hint = option("device", "cpu")  # the option fuse does not apply
        raise


@functools.lru_cache
def kernel_of(
    function: Callable[..., None],
    inputs: tuple[Operand, ...],
    outputs: tuple[Operand, ...],
    widths: Extents,
    parameters: tuple[tuple[str, Any], ...],
    device: int,
) -> DeviceKernel:
    """Return the kernel of a function for one device, kept for the next call."""
    from meshrun.runner.compiler.compiled import DeviceKernel
    from meshrun.runner.compiler.trace.trace import trace

    names = [one.name for one in outputs]
    program = trace(function, inputs, widths, dict(parameters), frozenset(["out"]), names, outputs)
    return DeviceKernel(program, widths)
