"""Compile a program to a kernel that a task calls in place of its function: on a GPU or on the host."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from runner.fuse import host, single_pass, step_kernel
from runner.fuse.graph import Extents, Program, merge_components
from runner.fuse.operations import compiler_options
from runner.fuse.step_kernel import Axis, StepKernel, Tuning
from runner.fuse.trace import NotTraceable
from runner.region import Array
from runner.system.compiler import cache_folder, find_compiler

Feeds = Sequence[int | None]


@dataclass
class DeviceKernel:
    """CUDA kernels of a program, on the current device and stream.

    widths: of the blocks' halo, per grid axis. arithmetic: "strict" rounds as NumPy does; "fast" lets the
    compiler fuse a multiplication and an addition. feeds: for each output, the number of the input that it
    becomes in the next step, or None. boundary, cval: of the steps.
    """

    program: Program
    widths: Extents
    arithmetic: str = "strict"
    feeds: Feeds = ()
    boundary: str = "reflect"
    cval: float = 0.0
    _passes: dict[int, tuple[single_pass.PassKernel, Callable[..., None]]] = field(default_factory=dict)
    _steps: dict[tuple[int, bool], tuple[StepKernel, Callable[..., None], int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._merged, _ = merge_components(self.program)
        self._widest = single_pass.choose_tile(self._merged)[-1]

    def __call__(self, blocks: Sequence[Array], outs: Sequence[Array]) -> None:
        kernel, launch = self._pass(outs[0])
        call = single_pass.launch_arguments(kernel, blocks, outs, self.widths)
        if call.grid != (0,):
            launch(call.grid, call.block, call.arguments)

    def _pass(self, out: Array) -> tuple[single_pass.PassKernel, Callable[..., None]]:
        """Return the kernel for rows as long as those of `out`, whose tile is no wider than a row."""
        from runner.device.cuda import kernel_of_text

        row = math.prod(out.shape[self._merged.axes - 1 :])
        width = min(max(row // self._merged.outputs[0].components, 1), self._widest)
        if width not in self._passes:
            kernel = single_pass.emit(self._merged, width=width, math=self.arithmetic)
            self._passes[width] = kernel, kernel_of_text(kernel.source, kernel.name, kernel.options)
        return self._passes[width]

    @functools.cached_property
    def _tunings(self) -> dict[bool, Tuning]:
        """The tuning of step kernels, by whether they read vectors."""
        return {vectors: tuning(self.program, vectors) for vectors in (False, True)}

    @functools.cached_property
    def most_steps(self) -> int:
        """Number of steps that one kernel takes fastest; 1 if no kernel takes several.

        Over three axes, kernels of one step are as fast and compile in a tenth of the time.
        """
        if self.program.axes > 2:
            return 1
        most = step_kernel.most_steps(self.program, self.feeds, self._tunings[True])
        return max(min(most, best_steps(self.program)), 1)

    def prepare_steps(self, steps: int, arrays: Sequence[Array]) -> None:
        """Compile the kernel with which `take_steps` takes `steps` steps over arrays laid out as `arrays`."""
        self._step_kernel(steps, step_kernel.takes_vectors(arrays, self._tunings[True]))

    def take_steps(
        self, steps: int, inputs: Sequence[Array], outs: Sequence[Array], axes: Sequence[Axis]
    ) -> None:
        """Take `steps` steps from the own cells of `inputs`, and write the results to those of `outs`.

        Both are views of own cells, in blocks with as many valid cells beside them as `axes` says.
        """
        vectors = step_kernel.takes_vectors([*inputs, *outs], self._tunings[True])
        kernel, launch, registers = self._step_kernel(steps, vectors)
        call = step_kernel.arguments(kernel, inputs, outs, axes[: self.program.axes], registers)
        launch(call.grid, call.block, tuple(map(np.int64, call.values)), shared_mem=call.shared)

    def _step_kernel(self, steps: int, vectors: bool) -> tuple[StepKernel, Callable[..., None], int]:
        """Return the kernel, what launches it, and the registers of a thread."""
        from runner.device.cuda import kernel_of_text
        from runner.device.nvrtc import registers_of

        if (steps, vectors) not in self._steps:
            chosen = self._tunings[vectors]
            kernel = step_kernel.build(self.program, self.feeds, self.boundary, self.cval, steps, chosen)
            options = compiler_options(self.arithmetic)
            launch = kernel_of_text(kernel.source, kernel.name, options, kernel.shared)
            self._steps[steps, vectors] = kernel, launch, registers_of(launch)
        return self._steps[steps, vectors]


def _words(program: Program) -> int:
    """Return the number of 32-bit registers that hold the cells of a column that a step reads."""
    words = [(one.dtype.itemsize + 3) // 4 * one.components for one in program.inputs]
    reads = [max(program.footprint(number)[0]) + 1 for number in range(len(program.inputs))]
    return sum(a * b for a, b in zip(words, reads, strict=True))


def tuning(program: Program, vectors: bool) -> Tuning:
    """Return the tuning that was fastest on an H200 (benchmarks/fuse_steps_device.py)."""
    chosen = step_kernel.suggested(program, vectors=vectors)
    words = _words(program)
    if words <= 2:
        return replace(chosen, ahead=2, rows=256)
    return replace(chosen, columns=4 if words == 3 else 2, blocks=4)


def best_steps(program: Program) -> int:
    """Return the number of steps of one kernel that was fastest on an H200, if registers suffice."""
    return 7 if _words(program) <= 2 else 6


@dataclass
class HostKernel:
    """Compiled loops of a program, on one processor. widths: of the blocks' halo, per grid axis."""

    kernel: host.HostProgram
    widths: Extents

    @property
    def most_steps(self) -> int:
        """The steps of one call whose rows stay in a cache while they are computed."""
        return host.MANY_STEPS if self.kernel.program.axes < 3 else host.MANY_STEPS // 2

    def __call__(self, blocks: Sequence[Array], outs: Sequence[Array]) -> None:
        self.kernel.run(blocks, outs, self.widths)

    def prepare_steps(self, steps: int, arrays: Sequence[Array]) -> None:
        """Do nothing: the library holds all."""


def compile_for(
    device: Any,
    program: Program,
    widths: Extents,
    arithmetic: str = "strict",
    feeds: Feeds = (),
    boundary: str = "reflect",
    cval: float = 0.0,
) -> tuple[DeviceKernel | HostKernel, str]:
    """Return the kernel for a rank's device, and the name of its compiler. Raises NotTraceable without one.

    device: `runner.device.api.Device`. The other arguments are those of `DeviceKernel`.
    """
    if device.kind == "cuda":
        return DeviceKernel(program, widths, arithmetic, feeds, boundary, cval), "CUDA"
    compiler = find_compiler()
    if compiler is None:
        raise NotTraceable("no C++ compiler on this host", "CXX=/path/to/g++, or install one")
    try:
        return HostKernel(host.build(program, compiler, cache_folder()), widths), compiler.path
    except host.NotCompiled as reason:
        raise NotTraceable(str(reason)) from reason
