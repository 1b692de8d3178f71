"""A program as a kernel that a task calls in place of its function: on a GPU, or on the host's processor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.fuse import host, single_pass
from runner.fuse.graph import Extents, Program, merge_components
from runner.fuse.trace import NotTraceable
from runner.region import Array
from runner.system.compiler import cache_folder, find_compiler


@dataclass
class DeviceKernel:
    """One CUDA kernel for all results, on the current device and stream.

    widths: of the blocks' halo, per grid axis. arithmetic: "strict" rounds as NumPy does.
    """

    program: Program
    widths: Extents
    arithmetic: str = "strict"
    _kernels: dict[int, tuple[single_pass.Kernel, Callable[..., None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.program, _ = merge_components(self.program)
        self._widest = single_pass.choose_tile(self.program)[-1]

    def __call__(self, blocks: Sequence[Array], outs: Sequence[Array]) -> None:
        kernel, launch = self._compiled(outs[0])
        call = single_pass.launch_arguments(kernel, blocks, outs, self.widths)
        if call.grid != (0,):
            launch(call.grid, call.block, call.arguments)

    def _compiled(self, out: Array) -> tuple[single_pass.Kernel, Callable[..., None]]:
        """Return the kernel for rows of that length: a thread makes no more cells of a row than it has."""
        from runner.device.cuda import kernel_of_text

        row = math.prod(out.shape[self.program.axes - 1 :])
        cells = max(row // self.program.outputs[0].components, 1)
        width = min(cells, self._widest)
        if width not in self._kernels:
            kernel = single_pass.emit(self.program, width=width, math=self.arithmetic)
            self._kernels[width] = kernel, kernel_of_text(kernel.source, kernel.name, kernel.options)
        return self._kernels[width]


@dataclass
class HostKernel:
    """One compiled loop for all results, on one processor. widths: of the blocks' halo, per grid axis."""

    kernel: host.Kernel
    widths: Extents

    def __call__(self, blocks: Sequence[Array], outs: Sequence[Array]) -> None:
        self.kernel.run(blocks, outs, self.widths)


def compile_for(device: Any, program: Program, widths: Extents, arithmetic: str) -> tuple[Any, str]:
    """Return the kernel for a rank's device, and what compiled it; raises NotTraceable if none can.

    device: `runner.device.api.Device`.
    """
    if device.kind == "cuda":
        return DeviceKernel(program, widths, arithmetic), "CUDA"
    compiler = find_compiler()
    if compiler is None:
        raise NotTraceable("no C++ compiler on this host", "CXX=/path/to/g++, or install one")
    try:
        return HostKernel(host.build(program, compiler, cache_folder()), widths), compiler.path
    except host.NotCompiled as reason:
        raise NotTraceable(str(reason)) from reason
